"""`Carrier`: takes followers from `outgoing` to their shards, one target topic beside the other.

    place    fix shard and terms, and write them down ─▶ send ─▶ the target answers    arrived: remove
                ▲                                                                      moved, not here: place again
                └──────────────────────────────────────────────────────────────────────full, refused: later

The tag of a follower is made when it is noted, and stays the same wherever it is sent, until a shard has answered under
it that it has no room, or no job of its id. What is not answered stays in `outgoing` as it is: a scheduler node claims
it a second later, and sends the very same call. A target topic that is slow, full or away holds up no other.

What shards report of their bundles goes the same way, without a tag: see `protocol.calls.bundles`.

A follower is given up after `MOST_REFUSALS` refusals, or when its tag may have expired (see `protocol.calls.outgoing`):
then it is buried in its own topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from wheelq import reminders
from wheelq.base.clock import Clock, SystemClock
from wheelq.base.ids import make_tag
from wheelq.errors import NotReplicated, ServerError, WheelqError, is_away
from wheelq.model.topic import Topic
from wheelq.producer.confirmation import Confirmer
from wheelq.producer.driver import AsyncDriver
from wheelq.producer.operation import Operation, ask
from wheelq.producer.outbox.kept import Kept, Parcel, Sending
from wheelq.producer.scheduling import Scheduling
from wheelq.producer.topics import Topics
from wheelq.protocol.calls import bundles, registry
from wheelq.protocol.calls import outgoing as calls
from wheelq.protocol.calls.outgoing import NOWHERE, REPORTS, TURN_MS, Follower, Outgoing
from wheelq.protocol.calls.producer import Fixed, Placed, Tagging
from wheelq.protocol.calls.worker import CALLED_ON_DEATH
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import BreakerSettings, ClientSettings, TopicSettings
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.following")

AT_ONCE = 500
"""The most followers of one topic that are sent at a time."""
MOST_QUEUED = 10_000
"""The most followers of one topic that wait here to be sent; the others wait in `outgoing`."""
STALE_S = 5.0
"""A follower is not sent that was taken longer ago: another carrier has claimed it since."""
FORGET_S = 10.0
"""How long after its removal the tag of a follower is forgotten: by then every call with it has arrived."""
MOST_REFUSALS = 60
"""After this many refusals a follower is buried; with the pauses in between that takes half an hour."""
MOVES = 8
"""How often a follower may move in one delivery; the rest is left for later."""
KEEPS_ALL = TopicSettings(dead_retention_ms=0, dead_max=0)
"""For a burial in a topic whose settings are not known here: it may keep more dead jobs than others."""
NO_BREAKER = BreakerSettings(failures=1_000_000_000)
"""One target that is away must not hold up the others."""


class OnItsWay(NamedTuple):
    """A follower that this carrier has taken from `outgoing`."""

    source: ShardKeys
    entry: Outgoing
    at: float
    """When, in monotonic seconds."""


class Carrier:
    """Carries followers in the background. For one event loop."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys | None = None,
        settings: ClientSettings | None = None,
        topic_settings: TopicSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings = settings or ClientSettings()
        """By which followers are checked and confirmed."""
        self._keys = keys = keys or Keys()
        self._clock = clock = clock or SystemClock()
        self._topics = Topics(keys, topic_settings or TopicSettings(), settings.topics_ttl_ms, clock)
        tagging = Tagging.of(settings, transport.reply_timeout_ms)
        self._scheduling = Scheduling(self._topics, keys, settings, clock, tagging)
        self._confirmer = Confirmer(settings)
        self._transport = transport
        self._interruptions = 0
        self._driver = AsyncDriver(transport, NO_BREAKER, clock)
        self._is_called = False  # whether it is known that the topic `CALLED_ON_DEATH` has callbacks
        self._queues: dict[str, deque[OnItsWay]] = {}  # by target topic
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._done: defaultdict[tuple[str, int], deque[tuple[float, bytes]]] = defaultdict(lambda: deque(maxlen=20_000))

    def placed(self, followers: Sequence[Follower]) -> list[Follower]:
        """Returns the followers, placed as far as their topics are known here."""
        return [
            self._placed(one, known.topic) if (known := self._topics.known(one.topic)) else one for one in followers
        ]

    def carry(self, source: ShardKeys, entries: Iterable[Outgoing]) -> None:
        """Carry followers that were just added to a shard's `outgoing`, or claimed there."""
        now = self._clock.monotonic()
        for entry in entries:
            topic = entry.follower.topic
            queue = self._queues.setdefault(topic, deque())
            if len(queue) < MOST_QUEUED:
                queue.append(OnItsWay(source, entry, now))
            if topic not in self._tasks:
                task = asyncio.create_task(self._empty(topic, queue), name=f"wheelq followers {topic}")
                self._tasks[topic] = task

    async def report(self, source: ShardKeys, bundle: str, report: str) -> None:
        """Take a report of a bundle, which is not in `outgoing`, to the shard that keeps that. Raises: ServerError."""
        await self._driver.run(self._report(source, bundle, report, entry_id=""))

    async def idle(self, seconds: float | None = None) -> None:
        """Wait until everything taken was carried or left, but no longer than this."""
        ends_at = None if seconds is None else self._clock.monotonic() + seconds
        while self._tasks and (ends_at is None or self._clock.monotonic() < ends_at):
            left = None if ends_at is None else ends_at - self._clock.monotonic()
            await asyncio.wait(list(self._tasks.values()), timeout=left)

    async def close(self) -> None:
        """Stop. What is under way stays in `outgoing`."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one topic -------------------------------------------------------------------------------------------------

    async def _empty(self, topic: str, queue: deque[OnItsWay]) -> None:
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), AT_ONCE))]
                oldest = self._clock.monotonic() - STALE_S
                batch = [taken for taken in batch if taken.at >= oldest]
                deliver = self._reports if topic == REPORTS else partial(self._delivery, topic)
                try:
                    await self._driver.run(deliver(batch))
                except WheelqError as error:
                    reminders.warn(logger, f"followers for topic {topic} wait", error)
                except Exception:  # the followers stay in `outgoing`
                    logger.exception("followers for topic %s wait", topic)
        finally:
            del self._queues[topic], self._tasks[topic]

    def _reports(self, batch: list[OnItsWay]) -> Operation[None]:
        """Takes what shards report of their bundles to the shards that keep these. Raises: ServerError."""
        for source, entry, _ in batch:
            yield from self._report(source, entry.follower.id, entry.follower.record, entry.entry_id)

    def _report(self, source: ShardKeys, bundle: str, report: str | bytes, entry_id: str) -> Operation[None]:
        keeper = bundles.keeping(self._keys, bundle)
        tallied = yield from self._confirmer.changing(ask(bundles.tally(keeper, bundle, [report])))
        if not tallied.is_full:  # else it is reported again
            self.carry(keeper, tallied.outgoing)
            yield from ask(bundles.forget(source, bundle, report, entry_id, tallied.has_ended))

    def _delivery(self, topic: str, batch: list[OnItsWay]) -> Operation[None]:
        """Carries followers of one topic. Raises: ServerError; those without an answer stay as they are."""
        given_up = [taken for taken in batch if _is_given_up(taken.entry)]
        yield from self._bury(given_up)
        batch = [taken for taken in batch if not _is_given_up(taken.entry)]
        for _ in range(MOVES):
            if not batch:
                return
            try:
                if topic == CALLED_ON_DEATH and not self._is_called:
                    yield from ask(registry.add_callback_topic(self._keys, topic))
                    yield from ask(registry.announce(self._keys, topic))
                    self._is_called = True
                placed = yield from self._scheduling.placement(topic)
                if not (batch := (yield from self._write_down(batch, placed))):
                    return
                batch.sort(key=lambda taken: taken.entry.follower.shard)  # those of one shard share calls
                sending = Sending(placed, [self._parcel(taken) for taken in batch])
                failure = yield from self._send(sending)
            except WheelqError as error:
                if not (is_away(error) or isinstance(error, NotReplicated)):
                    yield from self._postpone(batch)
                raise
            batch = yield from self._take_answers(batch, sending, failure)

    def _write_down(self, batch: list[OnItsWay], placed: Topic) -> Operation[list[OnItsWay]]:
        """Places the followers that have no place; returns those that are still there, in order."""
        news: dict[tuple[str, str], Outgoing] = {}
        for source, some in _by_source(taken for taken in batch if taken.entry.follower.shard == NOWHERE):
            wanted = [one._replace(follower=self._placed(one.follower, placed)) for one in some]
            entry_ids = yield from self._confirmer.changing(ask(calls.place(source, wanted)))
            for before, one, entry_id in zip(some, wanted, entry_ids, strict=True):
                news[source.outgoing, before.entry_id] = one._replace(entry_id=entry_id)
        found = (
            taken._replace(entry=news.get((taken.source.outgoing, taken.entry.entry_id), taken.entry))
            for taken in batch
        )
        return [taken for taken in found if taken.entry.entry_id]

    def _placed(self, follower: Follower, topic: Topic) -> Follower:
        """Returns a follower with its next place: first where former numbers of shards may have placed its id."""
        if follower.shard != NOWHERE and follower.terms:
            return follower
        *former, last = topic.places(follower.partition_key or follower.id)[::-1]
        if not follower.on_duplicate:  # no other job has its id
            former = []
        if follower.shard in former:
            former = former[former.index(follower.shard) + 1 :]
        if former:
            return follower._replace(shard=former[0], terms="")
        return follower._replace(shard=last, terms=topic.known_terms)

    def _parcel(self, taken: OnItsWay) -> Parcel:
        one = taken.entry.follower
        due_ms, priority = int(one.due.rstrip("hl")), one.due[len(one.due.rstrip("hl")) :]
        kept = Kept(0, one.topic, one.id, due_ms, priority, one.record, one.partition_key or None, one.how)
        place = Fixed(one.tag, one.shard, one.terms, TURN_MS)
        done = self._forgettable(one.topic, one.shard)
        return Parcel(one.topic, one.how, [kept], place, is_repeated=taken.entry.claims > 0, done=done)

    def _send(self, sending: Sending) -> Operation[ServerError | None]:
        """Sends parcels; returns the error of those without an answer. Raises: NotReplicated."""
        try:
            yield from self._scheduling.parcels(sending)
        except NotReplicated:  # they have arrived, but stay in `outgoing` until that is confirmed
            raise
        except ServerError as error:
            return error
        return None

    def _take_answers(
        self, batch: list[OnItsWay], sending: Sending, failure: ServerError | None
    ) -> Operation[list[OnItsWay]]:
        """Removes what has arrived; returns what has to be placed again. Raises: `failure`."""
        arrived, again, full, refused = [], [], [], []
        answers = [*sending.answers, *[None] * (len(batch) - len(sending.answers))]
        for taken, answer in zip(batch, answers, strict=True):
            one = taken.entry.follower
            if answer is None:
                refused += [taken] if failure is not None and not is_away(failure) else []
            elif _has_arrived(answer):
                arrived.append(taken)
            elif answer.full:
                full.append(_with(taken, one._replace(tag=make_tag(), shard=NOWHERE, terms="")))
            elif answer.terms_in_force is not None:
                again.append(_with(taken, one._replace(shard=NOWHERE, terms="")))
            else:  # a former shard, which has no job of this id, and would say so again to the same tag
                again.append(_with(taken, self._placed(one, sending.placed)._replace(tag=make_tag())))
        yield from self._remove(arrived)
        yield from self._postpone([*full, *refused])
        if failure is not None:
            raise failure
        return (yield from self._moved(again))

    def _moved(self, batch: list[OnItsWay]) -> Operation[list[OnItsWay]]:
        """Writes down the places of followers that have to go elsewhere; returns those that are still there."""
        found: list[OnItsWay] = []
        for source, some in _by_source(batch):
            entry_ids = yield from self._confirmer.changing(ask(calls.place(source, some)))
            now = self._clock.monotonic()
            found += [
                OnItsWay(source, one._replace(entry_id=entry_id), now)
                for one, entry_id in zip(some, entry_ids, strict=True)
                if entry_id
            ]
        return found

    def _postpone(self, batch: list[OnItsWay]) -> Operation[None]:
        """Leaves followers for later that their target has refused."""
        for source, some in _by_source(batch):
            counted = [one._replace(refusals=one.refusals + 1) for one in some]
            yield from self._confirmer.changing(ask(calls.place(source, counted)))

    def _remove(self, arrived: list[OnItsWay]) -> Operation[None]:
        for source, some in _by_source(arrived):
            removed = yield from ask(calls.remove(source, some))
            if removed == len(some):  # else another carrier has claimed some, and may send them once more
                now = self._clock.monotonic()
                for one in some:
                    if not one.claims:
                        self._done[one.follower.topic, one.follower.shard].append((now, one.follower.tag))

    def _forgettable(self, topic: str, shard: int) -> bytes:
        """Returns a tag that no call will be repeated with; "" if there is none.

        None after an interruption: a failover may have brought back what was removed, and it is sent again.
        """
        if self._interruptions != self._transport.interruptions:
            self._interruptions = self._transport.interruptions
            self._done.clear()
        done = self._done.get((topic, shard))
        if not done or done[0][0] > self._clock.monotonic() - FORGET_S:
            return b""
        return done.popleft()[1]

    def _bury(self, given_up: list[OnItsWay]) -> Operation[None]:
        for taken in given_up:
            one, refusals = taken.entry.follower, taken.entry.refusals
            why = f"its topic refused it {refusals} times"
            if refusals < MOST_REFUSALS:
                why = "it was sent too long ago: it may have run already. Replay it if it has not"
            shard = self._keys.shard(one.topic, max(one.shard, 0))
            known = self._topics.known(one.topic)
            yield from ask(calls.bury(shard, one, f"not delivered: {why}", known.topic if known else KEEPS_ALL))
            yield from ask(calls.remove(taken.source, [taken.entry]))
            logger.error(
                "job %s of %s follows a job of %s and is buried: %s", one.id, one.topic, taken.source.topic, why
            )


def _is_given_up(entry: Outgoing) -> bool:
    return entry.refusals >= MOST_REFUSALS or entry.is_too_old


def _has_arrived(answer: Placed) -> bool:
    return any(receipt is not None for receipt in answer.receipts)


def _with(taken: OnItsWay, follower: Follower) -> OnItsWay:
    return taken._replace(entry=taken.entry._replace(follower=follower))


def _by_source(batch: Iterable[OnItsWay]) -> list[tuple[ShardKeys, list[Outgoing]]]:
    """Groups followers by the shard from which they come."""
    found: dict[str, tuple[ShardKeys, list[Outgoing]]] = {}
    for taken in batch:
        found.setdefault(taken.source.outgoing, (taken.source, []))[1].append(taken.entry)
    return list(found.values())
