"""`AsyncCarrier`: carries out what an asyncio client has to do; the twin of `blocking.Carrier`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from wheelq.breaker import Breaker
from wheelq.clock import Clock
from wheelq.errors import OutcomeUnknown, Refused, ServerError, TopicFull
from wheelq.job import JobSpec, OnDuplicate, Receipt
from wheelq.operations import Do, Many, Operation, Step, Topics, Wait
from wheelq.outbox import Parcel
from wheelq.protocol.batches import Order, accepted
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.producer import NewJob, Placed
from wheelq.protocol.durability import Confirmation, confirmation
from wheelq.protocol.keys import Keys
from wheelq.settings import BreakerSettings, ClientSettings, Durability
from wheelq.topics import Topic
from wheelq.transport import AsyncGuarded, AsyncTransport, Siblings

T = TypeVar("T")


class AsyncCarrier:
    """Sends calls, orders of jobs, and operations; knows the topics on the way."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys,
        topics: Topics,
        settings: ClientSettings,
        breaker: BreakerSettings,
        clock: Clock,
    ) -> None:
        self._breaker = Breaker(breaker, clock)
        self._transport = AsyncGuarded(transport, self._breaker)
        self._siblings = Siblings(transport)  # a call that waits would hold up all others on the shared connection
        self._keys = keys
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._can_confirm: set[Durability] = set()

    async def schedule(
        self, topic: str, spec: JobSpec, job: NewJob, on_duplicate: OnDuplicate, durability: Durability | None
    ) -> Receipt:
        """Schedule one job. Raises: DuplicateJob, NotReplicated, and the server's errors."""
        waiting = await self._confirmation(durability)
        found = await self._register(topic, waiting)
        was_sent = False
        if waiting is None and not found.draining:  # the short way, for nearly always
            shard = self._keys.shard(topic, found.places(spec.partition_key or job[0])[0])
            try:
                answer = await self._transport.send(producer.schedule(shard, (job,), on_duplicate, found.terms))
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
        return (await self._carry_out(order, topic, on_duplicate, waiting))[0]

    async def schedule_many(
        self, topic: str, order: Order, on_duplicate: OnDuplicate, durability: Durability | None
    ) -> list[Receipt]:
        """Schedule the jobs of an order. Raises also: InvalidJob, PartlyScheduled."""
        waiting = await self._confirmation(durability)
        order.place_by(await self._register(topic, waiting))
        return await self._carry_out(order, topic, on_duplicate, waiting)

    async def deliver(self, parcel: Parcel) -> list[Receipt]:
        """Schedule what an outbox kept; one receipt each, in order. A taken id is told by its receipt only."""
        topic, on_duplicate = parcel.topic, "keep" if parcel.on_duplicate == "raise" else parcel.on_duplicate
        order = Order(self._keys, topic, (), on_duplicate, self._settings, self._clock.wall_ms())
        waiting = await self._confirmation(None)
        order.place_by(await self._register(topic, waiting))
        for place, job in enumerate(parcel.jobs):
            spec = JobSpec(partition_key=job.partition_key)
            order.put((job.id, job.due, job.record), spec, place=place)
        return await self._carry_out(order, topic, on_duplicate, waiting)

    async def run(self, operation: Operation[T]) -> T:
        """Carry out an operation: do each step, and give it the answer or the error."""
        go_on: Callable[[Any], Step] = operation.send
        answer: Any = None
        while True:
            try:
                step = go_on(answer)
            except StopIteration as end:
                return cast(T, end.value)
            try:
                go_on, answer = operation.send, await self._do(step)
            except ServerError as error:
                go_on, answer = operation.throw, error

    async def change(self, make: Callable[[Confirmation[Any] | None], Operation[T]]) -> T:
        """Carry out a change, confirmed as the settings want it. Raises also: NotReplicated, when it is made."""
        waiting = await self._confirmation(None)
        outcome = await self.run(make(waiting))
        if waiting is not None:
            waiting.check(())
        return outcome

    async def close(self) -> None:
        """Close the connections; they are opened again when needed."""
        await self._siblings.close()
        await self._transport.close()

    async def _carry_out(
        self, order: Order, topic: str, on_duplicate: OnDuplicate, waiting: Confirmation[Placed] | None
    ) -> list[Receipt]:
        repeats = self._settings.repeats - order.was_sent  # a lost reply is forgiven that often
        while not order.is_complete:
            try:
                await self._send_all(order, waiting)
                if order.terms_in_force is not None:
                    terms, shard = order.terms_in_force, order.refused_by
                    order.place_by(await self.run(self._topics.catch_up(topic, terms, shard, waiting)))
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

    async def _send_all(self, order: Order, waiting: Confirmation[Placed] | None) -> None:
        if waiting is None:
            async for answer in self._transport.stream(order.unanswered()):
                order.settle(answer)
            return
        async with self._siblings.one() as transport:
            confirming = AsyncGuarded(transport, self._breaker)
            async for answers in confirming.stream(waiting.behind(order.unanswered())):
                order.settle_all(answers)

    async def _confirmation(self, durability: Durability | None) -> Confirmation[Placed] | None:
        """What is to be confirmed; the server is asked first whether it can. Raises: InvalidInput, Refused."""
        found = confirmation(durability, self._settings)
        if found is not None and found.durability not in self._can_confirm:
            try:
                await self._transport.send(found.ask())
            except Refused as error:
                raise found.impossible(error) from error
            self._can_confirm.add(found.durability)
        return found

    async def _register(self, topic: str, waiting: Confirmation[Placed] | None) -> Topic:
        found = self._topics.known(topic) if waiting is None else None  # the short way, for nearly always
        return found if found is not None else await self.run(self._topics.register(topic, waiting))

    async def _do(self, step: Step) -> Any:
        match step:
            case Many(calls):
                return [answer async for answer in self._transport.stream(calls)]
            case Wait(seconds):
                return await self._clock.sleep(seconds)
            case Do(act):
                return await act()
            case Call(wait_ms=wait_ms) as call if wait_ms:
                async with self._siblings.one() as transport:
                    return await AsyncGuarded(transport, self._breaker).send(call)
            case call:
                return await self._transport.send(call)
