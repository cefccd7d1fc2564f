"""Producers that use all calls of a client, and record every answer.

Each is a thread with its own `Client`, door to the server, seed and job ids. About half of its calls schedule single
jobs; the others schedule batches, schedule keyed jobs again (keep, replace, raise), and cancel, move or run waiting
jobs; a few make bundles, whose followers are promised, too (see `bundles`). If a call has no answer, the client has
already repeated it; the producer records "unknown" and leaves the job alone (see `promises`). One job in thirty fails
at its first attempt. If there are replicas, one of them should confirm
every change, and the producer records whether it did.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from loadtest.torture.bundles import AFTER, Bundled
from loadtest.torture.listening import Listening
from loadtest.torture.promises import Answer, Asked, Call
from loadtest.torture.shares import of_a_key
from wheelq import Client, Continuation, JobSpec, Receipt, Receipts, Settings
from wheelq.errors import (
    BundleNotFound,
    DuplicateJob,
    NotReplicated,
    OutcomeUnknown,
    PartlyScheduled,
    Refused,
    ServerError,
    WheelqError,
)
from wheelq.model.bundle import When
from wheelq.protocol.keys import Keys
from wheelq.transport import Address

T = TypeVar("T")
CLOSING_TRIES = 40
REMEMBERED = 500
"""How many of its latest jobs a producer may still touch."""
DELAYS = ((0.0, 0.0), (0.02, 1.0), (0.02, 1.0), (1.0, 5.0), (1.0, 5.0), (5.0, 15.0))
"""Ranges of delays in seconds; each range is equally likely."""
MANY = (1, 2, 5, 20, 60)
"""Sizes of batches."""
FAILING = 30
"""One in this many jobs fails at its first attempt."""


class Producer(threading.Thread):
    """One producer; `log` grows while it runs."""

    def __init__(
        self,
        name: str,
        url: str,
        settings: Settings,
        topics: Sequence[str],
        seed: str,
        rate: float,
        longest_delay: float,
        makes_bundles: bool = True,
    ) -> None:
        """About `rate` jobs a second, none for later than `longest_delay` seconds."""
        super().__init__(name=name, daemon=True)
        self.log: list[Call] = []
        self.bundles: list[Bundled] = []
        self.topic_of: dict[str, str] = {}
        self.may_go_on = threading.Event()
        """Cleared: it pauses."""
        self.may_go_on.set()
        self.failure: BaseException | None = None
        """The error that ended the producer too early."""
        confirms = settings.client.durability == "replicated"
        self._transport = Listening(Address(url, settings.connection), confirms=confirms)
        self._client = Client(self._transport, Keys(settings.prefix), settings.client)
        self._topics = topics
        self._random = random.Random(seed)
        self._longest_delay = longest_delay
        self._pause_s = 3.0 / rate  # an action schedules three jobs on average
        self._number = 0
        self._members: set[str] = set()
        self._recent: deque[Call] = deque(maxlen=REMEMBERED)
        self._is_over = threading.Event()
        self._actions: tuple[tuple[Callable[[], None], int], ...] = (
            (self._schedule, 50),
            (self._schedule_many, 10),
            (self._again, 8),
            (self._cancel, 9),
            (self._move, 9),
            (self._run_now, 3),
            (self._bundle, 2 * makes_bundles),
        )

    def finish(self) -> None:
        """Make `run` end."""
        self.may_go_on.set()
        self._is_over.set()

    def run(self) -> None:
        actions, weights = zip(*self._actions, strict=True)
        try:
            while not self._is_over.wait(self._random.expovariate(1 / self._pause_s)):
                self.may_go_on.wait()
                self._transport.begin()
                self._random.choices(actions, weights)[0]()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._client.close()

    # --- actions ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        topic = self._random.choice(self._topics)
        self._schedule_one(topic, self._spec(topic), Asked.SCHEDULE, "keep")

    def _again(self) -> None:
        """Schedule a job whose id is taken, in one of three ways."""
        if (old := self._recall()) is not None and old.id.startswith("key-") and old.id not in self._members:
            how = self._random.choice(("keep", "replace", "raise"))
            asked = Asked.REPLACE if how == "replace" else Asked.SCHEDULE
            topic = self.topic_of[old.id]
            spec = of_a_key(topic, JobSpec({"fails": old.fails}, self._delay(), key=old.id))
            self._schedule_one(topic, spec, asked, how)

    def _schedule_one(self, topic: str, spec: JobSpec, asked: Asked, how: Any) -> None:
        due_ms = self._due_ms(spec)
        try:
            receipt = self._client.schedule(
                topic,
                spec.payload,
                delay=spec.delay,
                at=spec.at,
                key=spec.key,
                partition_key=spec.partition_key,
                on_duplicate=how,
            )
        except DuplicateJob as error:
            self._note(asked, topic, error.ids[0], Answer.KEPT, due_ms, spec)
        except NotReplicated as error:
            self._transport.was_not_confirmed()
            self._note_receipt(asked, topic, error.receipts[0], due_ms, spec)
        except ServerError as error:
            for id in self._transport.sent:
                self._note(asked, topic, id, _answer_of(error), due_ms, spec)
        else:
            self._note_receipt(asked, topic, receipt, due_ms, spec)

    def _schedule_many(self) -> None:
        self._schedule_all(self._random.choice(self._topics))

    def _schedule_all(self, topic: str, **of_bundle: Any) -> Receipts[Any] | WheelqError:
        """Schedule some jobs in one call; returns the receipts, or the error."""
        specs = [self._spec(topic) for _ in range(self._random.choice(MANY))]
        due_ms = [self._due_ms(spec) for spec in specs]
        outcome: Receipts[Any] | WheelqError
        unknown: Mapping[int, str] = {}
        nothing = Answer.REFUSED
        try:
            outcome = self._client.schedule_many(topic, specs, **of_bundle)
            receipts = dict(enumerate(outcome))
        except NotReplicated as error:
            self._transport.was_not_confirmed()
            outcome, receipts = error, dict(enumerate(error.receipts))
        except PartlyScheduled as error:
            self._transport.was_not_confirmed()
            outcome, receipts, unknown = error, dict(error.receipts), error.unknown
        except (ServerError, BundleNotFound) as error:
            outcome, receipts, nothing = error, {}, _answer_of(error)
        for place, receipt in receipts.items():
            self._note_receipt(Asked.SCHEDULE, topic, receipt, due_ms[place], specs[place])
        for place, id in unknown.items():
            self._note(Asked.SCHEDULE, topic, id, Answer.UNKNOWN, due_ms[place], specs[place])
        # Nothing was done for the other jobs, as the client reports. The producer does not know the ids of jobs
        # without a key; the recording transport does.
        known = {*unknown.values(), *(receipt.id for receipt in receipts.values())}
        for id in self._transport.sent:
            if id not in known:
                self._note(Asked.SCHEDULE, topic, id, nothing, min(due_ms), JobSpec({"fails": 0}))
        return outcome

    def _bundle(self) -> None:
        """Make a bundle in two calls, perhaps in two topics, and close it: then a job must follow."""
        made, when = Bundled(), "all_done" if self._random.random() < 0.5 else "all_ended"
        then: dict[str, Any] = {"then": Continuation(AFTER, {"fails": 0}, when=cast(When, when)), "close": False}
        for topic in self._random.choices(self._topics, k=2):
            self._transport.begin()
            answer = self._schedule_all(topic, **({"bundle": made.id} if made.id else then))
            made.is_sure &= not isinstance(answer, WheelqError)
            made.id = made.id or answer.bundle or ""
            if not made.id:
                return
            if isinstance(answer, Receipts):  # else a failover may undo that they are members
                made.members |= {receipt.id for receipt in answer if receipt.bundle == made.id}
            made.perhaps |= set(self._transport.sent)
            self._members |= made.perhaps
        closed_ms = _now_ms()
        made.is_sure &= self._close(made.id)
        self.bundles.append(made)
        self.topic_of[made.follower] = AFTER
        self.log.append(
            Call(Asked.SCHEDULE, made.follower, Answer.CREATED if made.is_sure else Answer.UNKNOWN, closed_ms)
        )

    def _close(self, bundle: str) -> bool:
        """Close a bundle, and again until that is confirmed. Returns False if it takes too long."""
        for _ in range(CLOSING_TRIES):
            try:
                self._client.close_bundle(bundle)
            except (ServerError, BundleNotFound):
                self._is_over.wait(0.5)
            else:
                return True
        return False

    def _cancel(self) -> None:
        if (old := self._recall()) is not None:
            self._touch(old, Asked.CANCEL, 0, lambda topic: self._client.cancel(topic, old.id))

    def _move(self) -> None:
        if (old := self._recall()) is not None:
            delay = self._delay()
            due_ms = _now_ms() + int(delay * 1000)
            self._touch(
                old, Asked.RESCHEDULE, due_ms, lambda topic: self._client.reschedule(topic, old.id, delay=delay)
            )

    def _run_now(self) -> None:
        if (old := self._recall()) is not None:
            self._touch(old, Asked.RUN_NOW, _now_ms(), lambda topic: self._client.run_now(topic, old.id))

    def _touch(self, old: Call, asked: Asked, due_ms: int, call: Callable[[str], object]) -> None:
        topic = self.topic_of[old.id]
        try:
            answer = Answer(str(call(topic)))
        except NotReplicated:
            answer = Answer.UNKNOWN  # what it has changed may be undone
        except ServerError as error:
            answer = _answer_of(error)
        spec = JobSpec({"fails": old.fails})
        self._note(asked, topic, old.id, answer, due_ms, spec)

    # --- records ---------------------------------------------------------------------------------------------------

    def _note_receipt(self, asked: Asked, topic: str, receipt: Receipt, least_ms: int, spec: JobSpec) -> None:
        answer = Answer.REPLACED if receipt.replaced else Answer.CREATED if receipt.created else Answer.KEPT
        due_ms = receipt.due_ms if self._transport.is_confirmed else min(receipt.due_ms, least_ms)
        self._note(asked, topic, receipt.id, answer, due_ms, spec)

    def _note(self, asked: Asked, topic: str, id: str, answer: Answer, due_ms: int, spec: JobSpec) -> None:
        call = Call(asked, id, answer, due_ms, spec.payload["fails"], self._transport.is_confirmed)
        self.topic_of[id] = topic
        self.log.append(call)
        if answer not in (Answer.UNKNOWN, Answer.REFUSED, Answer.UNAVAILABLE, Answer.CANCELLED, Answer.NOT_FOUND):
            self._recent.append(call)

    def _recall(self) -> Call | None:
        """Returns a recent waiting job whose state is known, for the next action."""
        if not self._recent:
            return None
        now_ms = _now_ms()
        places = [place for place, call in enumerate(self._recent) if call.due_ms > now_ms]  # those that surely wait
        if not places or self._random.random() < 0.3:
            places = list(range(len(self._recent)))
        place = self._random.choice(places)
        call = self._recent[place]
        del self._recent[place]  # it is remembered again when its answer is noted
        return call

    # --- new jobs --------------------------------------------------------------------------------------------------

    def _spec(self, topic: str) -> JobSpec:
        self._number += 1
        key = f"key-{self.name}-{self._number}" if self._random.random() < 0.4 else None
        payload = {"fails": 1 if self._random.randrange(FAILING) == 0 and key else 0, "n": self._number}
        if self._random.random() < 0.2:
            return of_a_key(topic, JobSpec(payload, at=datetime.now(UTC) + timedelta(seconds=self._delay()), key=key))
        return of_a_key(topic, JobSpec(payload, delay=self._delay(), key=key))

    def _delay(self) -> float:
        return min(self._random.uniform(*self._random.choice(DELAYS)), self._longest_delay)

    def _due_ms(self, spec: JobSpec) -> int:
        """The earliest possible due time of a job scheduled now: the server's clock is this machine's."""
        if spec.at is not None:
            return int(spec.at.timestamp() * 1000)
        assert isinstance(spec.delay, float)
        return _now_ms() + int(spec.delay * 1000)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _answer_of(error: WheelqError) -> Answer:
    if isinstance(error, (OutcomeUnknown, BundleNotFound)):
        return Answer.UNKNOWN
    return Answer.REFUSED if isinstance(error, Refused) else Answer.UNAVAILABLE
