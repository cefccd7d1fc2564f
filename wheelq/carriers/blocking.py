"""`Carrier`: carries out what a blocking client has to do; `aio.AsyncCarrier` is its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from wheelq.breaker import Breaker
from wheelq.clock import Clock, sleep
from wheelq.errors import OutcomeUnknown, Refused, ServerError, TopicFull
from wheelq.job import JobSpec, OnDuplicate, Receipt
from wheelq.operations import Do, Many, Operation, Step, Topics, Wait
from wheelq.outbox import Parcel
from wheelq.protocol.batches import Order, accepted
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.producer import NewJob, Placed
from wheelq.protocol.durability import Confirmation, confirmation
from wheelq.protocol.keys import Keys
from wheelq.settings import BreakerSettings, ClientSettings, Durability
from wheelq.topics import Topic
from wheelq.transport import Guarded, Transport

T = TypeVar("T")


class Carrier:
    """Sends calls, orders of jobs, and operations; knows the topics on the way."""

    def __init__(
        self,
        transport: Transport,
        keys: Keys,
        topics: Topics,
        settings: ClientSettings,
        breaker: BreakerSettings,
        clock: Clock,
    ) -> None:
        self._breaker = Breaker(breaker, clock)
        self._transport = Guarded(transport, self._breaker)
        self._keys = keys
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._can_confirm: set[Durability] = set()

    def schedule(
        self, topic: str, spec: JobSpec, job: NewJob, on_duplicate: OnDuplicate, durability: Durability | None
    ) -> Receipt:
        """Schedule one job. Raises: DuplicateJob, NotReplicated, and the server's errors."""
        waiting = self._confirmation(durability)
        found = self._register(topic, waiting)
        was_sent = False
        if waiting is None and not found.draining:  # the short way, for nearly always
            shard = self._keys.shard(topic, found.places(spec.partition_key or job[0])[0])
            try:
                answer = self._transport.send(producer.schedule(shard, (job,), on_duplicate, found.terms))
            except OutcomeUnknown as error:
                if not self._settings.repeats:
                    raise OutcomeUnknown(str(error), (job[0],)) from error
                was_sent = True
            else:
                if answer.full:
                    raise TopicFull(topic, {0: job[0]}, {})
                if answer.terms_in_force is None:
                    return accepted(topic, answer.receipts, on_duplicate)[0]
        order = Order(self._keys, topic, (), on_duplicate, self._settings, self._clock.wall_ms())
        order.place_by(found)
        order.put(job, spec, was_sent=was_sent)
        return self._carry_out(order, topic, on_duplicate, waiting)[0]

    def schedule_many(
        self, topic: str, order: Order, on_duplicate: OnDuplicate, durability: Durability | None
    ) -> list[Receipt]:
        """Schedule the jobs of an order. Raises also: InvalidJob, PartlyScheduled."""
        waiting = self._confirmation(durability)
        order.place_by(self._register(topic, waiting))
        return self._carry_out(order, topic, on_duplicate, waiting)

    def deliver(self, parcel: Parcel) -> list[Receipt]:
        """Schedule what an outbox kept; one receipt each, in order. A taken id is told by its receipt only."""
        topic, on_duplicate = parcel.topic, "keep" if parcel.on_duplicate == "raise" else parcel.on_duplicate
        order = Order(self._keys, topic, (), on_duplicate, self._settings, self._clock.wall_ms())
        waiting = self._confirmation(None)
        order.place_by(self._register(topic, waiting))
        for place, job in enumerate(parcel.jobs):
            spec = JobSpec(partition_key=job.partition_key)
            order.put((job.id, job.due, job.record), spec, place=place)
        return self._carry_out(order, topic, on_duplicate, waiting)

    def run(self, operation: Operation[T]) -> T:
        """Carry out an operation: do each step, and give it the answer or the error."""
        go_on: Callable[[Any], Step] = operation.send
        answer: Any = None
        while True:
            try:
                step = go_on(answer)
            except StopIteration as end:
                return cast(T, end.value)
            try:
                go_on, answer = operation.send, self._do(step)
            except ServerError as error:
                go_on, answer = operation.throw, error

    def change(self, make: Callable[[Confirmation[Any] | None], Operation[T]]) -> T:
        """Carry out a change, confirmed as the settings want it. Raises also: NotReplicated, when it is made."""
        waiting = self._confirmation(None)
        outcome = self.run(make(waiting))
        if waiting is not None:
            waiting.check(())
        return outcome

    def close(self) -> None:
        """Close the connections; they are opened again when needed."""
        self._transport.close()

    def _carry_out(
        self, order: Order, topic: str, on_duplicate: OnDuplicate, waiting: Confirmation[Placed] | None
    ) -> list[Receipt]:
        repeats = self._settings.repeats - order.was_sent  # a lost reply is forgiven that often
        while not order.is_complete:
            try:
                self._send_all(order, waiting)
                if order.terms_in_force is not None:
                    terms, shard = order.terms_in_force, order.refused_by
                    order.place_by(self.run(self._topics.catch_up(topic, terms, shard, waiting)))
            except OutcomeUnknown as error:
                if not repeats:
                    raise order.failed(error) from error
                order.lost()
                repeats -= 1
            except ServerError as error:
                raise order.failed(error) from error
        if waiting is not None:
            waiting.check(order.receipts())
        return accepted(topic, order.receipts(), on_duplicate)

    def _send_all(self, order: Order, waiting: Confirmation[Placed] | None) -> None:
        if waiting is None:
            for answer in self._transport.stream(order.unanswered()):
                order.settle(answer)
            return
        for answers in self._transport.stream(waiting.behind(order.unanswered())):
            order.settle_all(answers)

    def _confirmation(self, durability: Durability | None) -> Confirmation[Placed] | None:
        """What is to be confirmed; the server is asked first whether it can. Raises: InvalidInput, Refused."""
        found = confirmation(durability, self._settings)
        if found is not None and found.durability not in self._can_confirm:
            try:
                self._transport.send(found.ask())
            except Refused as error:
                raise found.impossible(error) from error
            self._can_confirm.add(found.durability)
        return found

    def _register(self, topic: str, waiting: Confirmation[Placed] | None) -> Topic:
        found = self._topics.known(topic) if waiting is None else None  # the short way, for nearly always
        return found if found is not None else self.run(self._topics.register(topic, waiting))

    def _do(self, step: Step) -> Any:
        match step:
            case Many(calls):
                return list(self._transport.stream(calls))
            case Wait(seconds):
                return sleep(seconds)
            case Do(act):
                return act()
            case call:
                return self._transport.send(call)
