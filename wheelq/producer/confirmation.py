"""Waits for replicas or disks before a schedule call or a change returns, as `durability` asks.

| `durability`   | the jobs are then …                               | and are lost only if …                          |
|----------------|---------------------------------------------------|-------------------------------------------------|
| `"server"`     | in the server                                     | it fails before it has persisted them           |
| `"replicated"` | in the memory of the server and `replicas` more   | a failover promotes a replica without them      |
| `"fsynced"`    | on the server's disk, and `fsynced_replicas` more | these disks fail                                |

    EVALSHA schedule … ─┐                                        ┌─▶ receipts
    EVALSHA mark        ├─▶ one connection, written at once ─────┼─▶ (so that there is a write to wait for)
    WAIT n timeout     ─┘                                        └─▶ how many have confirmed

All go over one connection, because WAIT concerns the last write of *that connection*: on a new one it returns at once
and means nothing. If the connection breaks, all calls are repeated with the same job ids over the next connection,
which may lead to another primary that does not have the jobs yet. A waiting connection sends nothing else, so up to
5,000 jobs go before each WAIT.

If too few confirm in time, the jobs are scheduled anyway, and `NotReplicated` says so. Clients whose default is to
wait also wait for each script of `CHANGES`, one at a time. What schedulers and workers do to a job (promote,
acknowledge) is not confirmed: a failover may lose it, and the job then runs again.

`"replicated"` promises what WAIT does: `replicas` of the replicas have the jobs. A failover may promote one of the
others, and in a planned `SENTINEL FAILOVER` those still confirm to the old primary, whose last jobs are then lost. If
`replicas` is the number of all replicas, any promoted one has the jobs, but every call raises `NotReplicated` while one
is away. For a planned switch use `FAILOVER TO host port` on the primary (in a cluster `CLUSTER FAILOVER` on the
replica): writes pause until that replica has them all.

A topic's registration and its number of shards are confirmed in the same way before the first job that relies on them,
and so are changes by a client whose default is to wait: in a cluster another node may hold the registry, and schedulers
find only registered topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, get_args

from wheelq.errors import InvalidInput, NotReplicated, OutcomeUnknown, Refused, ServerError, ServerTooOld, WheelqError
from wheelq.producer.operation import Operation, Step, Stream, ask
from wheelq.protocol.call import Call, as_it_is, command, scripted, together
from wheelq.protocol.calls.registry import VERSION_FIELD
from wheelq.settings import ClientSettings, Durability

BATCHES = 10
"""The most schedule calls, of up to 500 jobs each, before one WAIT."""
CHANGES = {
    *("cancel", "reschedule", "run_now", "cancel_due", "move_due", "rerun", "replay", "purge"),
    *("recurring_change", "schedule", "register_topic", "place_outgoing"),
    *("open_bundle", "close_bundle", "shut_bundle", "tally_bundle", "cancel_members", "enter_bundle"),
}
"""The scripts by which an operation changes jobs, recurring jobs, followers and topics."""

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class Confirmation(Generic[T]):
    """Waits after the schedule calls of one operation, and records whether enough confirmed."""

    def __init__(self, durability: Durability, settings: ClientSettings) -> None:
        self.durability = durability
        self._replicas = settings.replicas if durability == "replicated" else settings.fsynced_replicas
        self._timeout_ms = settings.replicated_timeout_ms
        self._wanted = self._replicas + (durability == "fsynced")  # the server itself is one of them
        self._shortage: tuple[int, str] | None = None

    def ask(self) -> Call[Any]:
        """Asks whether the server can confirm, before anything is scheduled. See `impossible`."""
        return self._wait(replicas=0, timeout_ms=1)

    def impossible(self, error: Refused) -> Refused:
        """Returns the error to raise if `ask` was refused."""
        if not isinstance(error, ServerTooOld):
            return error
        return ServerTooOld(
            f"durability={self.durability!r} needs Redis 7.2 or newer, or Valkey, whose WAITAOF can wait for the disk; "
            "on this server set appendfsync to always, which needs no waiting, or use durability='replicated'"
        )

    def behind(self, calls: Iterable[Call[T]]) -> Iterator[Call[list[T | ServerError]]]:
        """Groups the calls, up to ten of one shard together, with a WAIT after them.

        The answer to a group has errors in place of refused calls. Once one confirmation has failed, no more time is
        spent on waiting.
        """
        chain: list[Call[T]] = []
        try:
            for call in calls:
                if chain and (len(chain) == BATCHES or call.key != chain[0].key):
                    yield self._behind(chain)
                    chain = []
                chain.append(call)
        except WheelqError:  # the next call cannot be made: send the ones before it first
            if chain:
                yield self._behind(chain)
            raise
        if chain:
            yield self._behind(chain)

    def topic(self, call: Call[U], topics: str) -> Call[U]:
        """Returns a call that changes a topic, with a WAIT after it; `topics` is the key that holds the topic."""
        return self._one(call, command("HINCRBY", topics, VERSION_FIELD, 0, read=as_it_is, key=topics))

    def fence(self, call: Call[U], delayed: str) -> Call[U]:
        """Returns a call that changes a shard's terms, with a WAIT after it; `delayed` is its sorted set."""
        return self._one(call, _mark(delayed))

    def each(self, operation: Operation[V]) -> Operation[V]:
        """Does an operation with a WAIT after each of its changes."""
        go_on: Callable[[Any], Step] = operation.send
        answer: Any = None
        while True:
            try:
                step = go_on(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                go_on, answer = operation.send, (yield from self._step(step))
            except ServerError as error:
                go_on, answer = operation.throw, error

    def _step(self, step: Step) -> Operation[Any]:
        if isinstance(step, Call):
            return (yield self._change(step) if step.name in CHANGES else step)
        if isinstance(step, Stream) and not step.holds_up:
            calls = list(step.calls)
            if any(call.name in CHANGES for call in calls):
                for call in calls:
                    step.take((yield self._change(call)))
                return None
            step = replace(step, calls=calls)
        return (yield step)

    def _change(self, call: Call[U]) -> Call[U]:
        stem, _, key = call.keys[0].rpartition(":")
        return self.topic(call, call.keys[0]) if key == "topics" else self.fence(call, f"{stem}:delayed")

    def falls_short(self) -> bool:
        """Whether too few have confirmed so far."""
        return self._shortage is not None

    def check(self, receipts: Sequence[Any]) -> None:
        """Raises: NotReplicated, if too few have confirmed."""
        if self._shortage is not None:
            confirmed, reason = self._shortage
            raise NotReplicated(receipts, confirmed, self._wanted, reason)

    def _one(self, call: Call[U], mark: Call[Any]) -> Call[U]:
        def read(answers: list[U | ServerError]) -> U:
            [answer] = answers
            if isinstance(answer, ServerError):
                raise answer
            return answer

        return self._confirmed([call], mark, read)

    def _behind(self, calls: Sequence[Call[T]]) -> Call[list[T | ServerError]]:
        return self._confirmed(calls, _mark(calls[0].keys[0]), as_it_is)

    def _confirmed(
        self, calls: Sequence[Call[U]], mark: Call[Any], then: Callable[[list[U | ServerError]], V]
    ) -> Call[V]:
        def read(replies: Sequence[Any | ServerError]) -> V:
            answers, behind = replies[: len(calls)], replies[len(calls) :]
            for reply in replies:
                if isinstance(reply, OutcomeUnknown):
                    raise reply
            if len(behind) == 2:
                self._shortage = self._shortage or self._what_is_missing(*behind)
            pairs = zip(calls, answers, strict=True)
            return then([reply if isinstance(reply, ServerError) else call.read(reply) for call, reply in pairs])

        waits = [self._wait(self._replicas, self._timeout_ms)] if self._shortage is None else []
        return together([*calls, mark, *waits], read)

    def _what_is_missing(self, marked: Any, waited: Any) -> tuple[int, str] | None:
        for reply in (marked, waited):
            if isinstance(reply, ServerError):
                return 0, str(reply)
        on_disk, replicas = (0, waited) if self.durability == "replicated" else waited
        confirmed = on_disk + min(replicas, self._replicas)
        return None if confirmed >= self._wanted else (confirmed, f"waited {self._timeout_ms:,} ms")

    def _wait(self, replicas: int, timeout_ms: int) -> Call[Any]:
        if self.durability == "replicated":
            return command("WAIT", replicas, timeout_ms, read=as_it_is, wait_ms=timeout_ms)
        return command("WAITAOF", 1, replicas, timeout_ms, read=as_it_is, wait_ms=timeout_ms)


class Confirmer:
    """Makes the confirmations of one client, and knows which its server can give."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._can_confirm: set[Durability] = set()

    def confirming(self, durability: Durability | None) -> Operation[Confirmation[Any] | None]:
        """Returns the confirmation to wait for, which the server can give. Raises: InvalidInput, Refused."""
        found = confirmation(durability, self._settings)
        if found is not None and found.durability not in self._can_confirm:
            try:
                yield from ask(found.ask())
            except Refused as error:
                raise found.impossible(error) from error
            self._can_confirm.add(found.durability)
        return found

    def changing(self, operation: Operation[V]) -> Operation[V]:
        """Does an operation whose changes are confirmed as the settings require.

        Raises also: NotReplicated (then the change was made).
        """
        confirming = yield from self.confirming(None)
        if confirming is None:
            return (yield from operation)
        outcome = yield from confirming.each(operation)
        confirming.check(())
        return outcome


def confirmation(durability: Durability | None, settings: ClientSettings) -> Confirmation[Any] | None:
    """Returns the confirmation for `durability` (None: the settings'), or None. Raises: InvalidInput."""
    chosen = durability or settings.durability
    if chosen not in get_args(Durability):
        raise InvalidInput("durability", f"{chosen!r} is not one of {', '.join(get_args(Durability))}")
    return None if chosen == "server" else Confirmation(chosen, settings)


def _mark(delayed: str) -> Call[int]:
    """A write that changes nothing, in the shard of this key."""
    return scripted("mark", (delayed,), (), int)
