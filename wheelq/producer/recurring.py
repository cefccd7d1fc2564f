"""`Recurrences`: operations on recurring jobs.

A change reads the recurring job, decides, and writes if the job has not changed since. If another caller has changed
it, the change starts again. If the reply is lost, the call is sent once more, and the script finds out whether the
change was already made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from wheelq.base.ids import make_id
from wheelq.errors import InvalidInput, RecurringUnreadable, TopicFull
from wheelq.model.checks import check_new_id, check_topic, expiry, limits, shifted
from wheelq.model.job import Payload, Priority, Receipt
from wheelq.model.recurring import RecurringInfo, RecurringOutcome, RecurringReceipt, Rule, check_name
from wheelq.producer.operation import Operation, ask, ask_all, ask_until_known
from wheelq.producer.topics import Topics
from wheelq.protocol import codec
from wheelq.protocol.calls import producer, registry
from wheelq.protocol.calls import recurring as calls
from wheelq.protocol.calls.producer import Tagging
from wheelq.protocol.calls.recurring import FoundRecurring
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.protocol.recurring_codec import StoredRecurring, occurrence_id
from wheelq.settings import ClientSettings

KEEP = object()
"""Stands for the job's present payload."""


class _Change(NamedTuple):
    """A change to write."""

    outcome: RecurringOutcome
    after: StoredRecurring | None
    takes_back: bool = False
    """Whether to withdraw the waiting occurrence."""


class Recurrences:
    """The recurring jobs of one server, by topic and name."""

    def __init__(self, topics: Topics, keys: Keys, settings: ClientSettings, tagging: Tagging) -> None:
        self._topics = topics
        self._keys = keys
        self._payload_max_bytes = settings.payload_max_bytes
        self._max_delay_ms = settings.max_delay_ms
        self._tagging = tagging

    def put(
        self,
        topic: str,
        name: str,
        payload: Payload,
        headers: Mapping[str, str] | None,
        priority: Priority,
        expires: float | timedelta | None,
        attempts: int | None,
        timeout: float | timedelta | None,
        rule: Rule,
    ) -> Operation[RecurringReceipt]:
        """Create the recurring job with this name, or change it. A paused one stays paused."""
        check_topic(topic)
        check_new_id(check_name(name), "name")
        shifted("+0", name, priority, None, self._max_delay_ms)  # refuses an invalid priority
        if isinstance(expires, datetime):
            raise InvalidInput(
                "expires", "must be seconds or a timedelta after each due time; see end for the last one"
            )
        expiring = None if expires is None else expiry(expires, self._max_delay_ms)
        parts = codec.Parts(None, None, *limits(attempts, timeout))
        record = codec.encode(payload, headers, self._payload_max_bytes, parts, expiring, codec.NO_LIFE)

        def decide(found: FoundRecurring) -> _Change:
            before, now_ms = found.entry, found.server_us // 1000
            if before is None:
                return _Change(
                    RecurringOutcome.CREATED, StoredRecurring.new(rule, record, None, rule.next(now_ms), priority)
                )
            if before.says(rule, record, priority):
                return _Change(RecurringOutcome.UNCHANGED, before)
            return _updated(found, name, before, rule, record, priority)

        self._topics.forget(topic)  # the server may have lost it, and no other call would register it soon
        yield from self._topics.register(topic)
        outcome, found, after = yield from self._change(topic, name, decide)
        assert after is not None
        return RecurringReceipt(name, outcome, after.next_due_ms(name, found.server_us // 1000))

    def revise(self, topic: str, name: str, rule: Rule, payload: Payload = KEEP) -> Operation[RecurringOutcome]:
        """Change only the rule, and the payload if given. Returns UPDATED, UNCHANGED or NOT_FOUND."""

        def decide(found: FoundRecurring) -> _Change:
            before = found.entry
            if before is None:
                return _Change(RecurringOutcome.NOT_FOUND, None)
            record = before.record if payload is KEEP else self._with_payload(before.record, payload)
            if before.says(rule, record, before.priority):
                return _Change(RecurringOutcome.UNCHANGED, before)
            return _updated(found, name, before, rule, record, before.priority)

        return (yield from self._change(topic, name, decide))[0]

    def _with_payload(self, record: bytes, payload: Payload) -> bytes:
        former = codec.decode(record)
        expiring = ("x", former.expires_after_ms) if former.expires_after_ms is not None else None
        parts = codec.parts_of(record)
        return codec.encode(payload, former.headers, self._payload_max_bytes, parts, expiring, codec.NO_LIFE)

    def pause(self, topic: str, name: str) -> Operation[RecurringOutcome]:
        """PAUSED, UNCHANGED (it was before) or NOT_FOUND."""

        def decide(found: FoundRecurring) -> _Change:
            before = found.entry
            if before is None:
                return _Change(RecurringOutcome.NOT_FOUND, None)
            if before.is_paused:
                return _Change(RecurringOutcome.UNCHANGED, before)
            takes_back = _takes_back(found, name, before)
            after = before.changed(None if takes_back else before.state.last_ms, None, is_paused=True)
            return _Change(RecurringOutcome.PAUSED, after, takes_back)

        return (yield from self._change(topic, name, decide))[0]

    def resume(self, topic: str, name: str) -> Operation[RecurringOutcome]:
        """RESUMED, UNCHANGED (it was not paused) or NOT_FOUND."""

        def decide(found: FoundRecurring) -> _Change:
            before = found.entry
            if before is None:
                return _Change(RecurringOutcome.NOT_FOUND, None)
            if not before.is_paused:
                return _Change(RecurringOutcome.UNCHANGED, before)
            last_ms = before.state.last_ms
            next_ms = before.rule.next(max(found.server_us // 1000, last_ms or 0))
            return _Change(RecurringOutcome.RESUMED, before.changed(last_ms, next_ms, is_paused=False))

        return (yield from self._change(topic, name, decide))[0]

    def remove(self, topic: str, name: str) -> Operation[RecurringOutcome]:
        """REMOVED or NOT_FOUND."""

        def decide(found: FoundRecurring) -> _Change:
            if found.entry is None:
                return _Change(RecurringOutcome.NOT_FOUND, None)
            return _Change(RecurringOutcome.REMOVED, None, found.is_waiting)

        return (yield from self._change(topic, name, decide))[0]

    def trigger(self, topic: str, name: str) -> Operation[Receipt | None]:
        """Schedule its job once, now, besides its occurrences; None if there is no such recurring job."""
        keys = self._keys.shard(check_topic(topic), 0)
        entry = (yield from ask(calls.read_one(keys, check_name(name), to_change=True))).entry
        if entry is None:
            return None
        id = f"{name}@{make_id()}"
        record = codec.with_life(entry.record, codec.make_life())
        job = id, shifted("+0", id, entry.priority, None, self._max_delay_ms), record
        known = yield from self._topics.register(topic)
        while True:
            call = producer.schedule(keys, [job], "keep", known.known_terms, self._tagging.tag(has_key=True))
            placed = yield from ask_until_known(call)
            if placed.terms_in_force is None:
                if placed.full:
                    raise TopicFull(topic, {0: job[0]}, {})
                return placed.receipts[0]
            known = yield from self._topics.catch_up(topic, placed.terms_in_force, keys.shard)

    def get(self, topic: str, name: str) -> Operation[RecurringInfo | None]:
        """Returns a recurring job; None if there is none with this name. Raises: RecurringUnreadable."""
        found = yield from ask(calls.read_one(self._keys.shard(check_topic(topic), 0), check_name(name)))
        try:
            return None if found.entry is None else found.entry.info(topic, name, found.server_us // 1000)
        except codec.UnreadableRecord as error:
            raise RecurringUnreadable(topic, name, str(error)) from error

    def list(self, topic: str | None) -> Operation[list[RecurringInfo]]:
        """Returns the recurring jobs of a topic, or of all topics, by topic and name."""
        if topic is None:
            topics = sorted((yield from ask(registry.topics(self._keys))).settings)
        else:
            topics = [check_topic(topic)]
        now_ms = (yield from ask(server_time_us())) // 1000
        found: dict[tuple[str, str], RecurringInfo] = {}
        cursors = dict.fromkeys(topics, b"0")
        while cursors:
            asked = list(cursors.items())
            pages = yield from ask_all(calls.page(self._keys.shard(name, 0), cursor) for name, cursor in asked)
            for (where, _), (cursor, entries) in zip(asked, pages, strict=True):
                found |= {(where, name): entry.info(where, name, now_ms) for name, entry in entries.items()}
                cursors[where] = cursor
            cursors = {where: cursor for where, cursor in cursors.items() if cursor != b"0"}
        return [found[place] for place in sorted(found)]

    def _change(
        self, topic: str, name: str, decide: Callable[[FoundRecurring], _Change]
    ) -> Operation[tuple[RecurringOutcome, FoundRecurring, StoredRecurring | None]]:
        keys = self._keys.shard(check_topic(topic), 0)
        check_name(name)
        while True:
            found = yield from ask(calls.read_one(keys, name, to_change=True))
            outcome, after, takes_back = decide(found)
            before = found.entry
            if after is before:
                return outcome, found, after
            withdrawn = None
            if takes_back and before is not None and before.state.last_ms is not None:
                withdrawn = occurrence_id(name, before.state.last_ms)
            look_ms = None if after is None else after.look_ms(name)
            call = calls.change(keys, name, before.state if before else None, after, look_ms, withdrawn)
            if (yield from ask_until_known(call)):
                return outcome, found, after


def _takes_back(found: FoundRecurring, name: str, before: StoredRecurring) -> bool:
    """Whether a change takes back the last occurrence: only if it waits and is not due, else it runs as defined."""
    return found.is_waiting and before.is_ahead(name, found.server_us // 1000)


def _updated(
    found: FoundRecurring, name: str, before: StoredRecurring, rule: Rule, record: bytes, priority: Priority
) -> _Change:
    """Returns the change to another rule, record or priority; a paused job stays paused."""
    now_ms, last_ms = found.server_us // 1000, before.state.last_ms
    takes_back = _takes_back(found, name, before)
    if rule == before.rule:
        next_ms = last_ms if takes_back else before.state.next_ms
    else:
        takes_back &= last_ms is not None and last_ms > now_ms  # one that only jitter puts off stays
        next_ms = rule.next(now_ms if takes_back else max(now_ms, last_ms or 0))
    kept_ms, coming_ms = None if takes_back else last_ms, None if before.is_paused else next_ms
    after = StoredRecurring.new(rule, record, kept_ms, coming_ms, priority, before.is_paused)
    return _Change(RecurringOutcome.UPDATED, after, takes_back)
