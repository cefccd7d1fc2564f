"""What a schedule call waits for, besides the server's answer, before it returns.

| `durability`   | the jobs are then …                               | and are lost only if …                          |
|----------------|---------------------------------------------------|-------------------------------------------------|
| `"server"`     | in the server                                     | it fails before its own persistence got to them |
| `"replicated"` | in the server and in `replicas` replicas          | these fail, or a failover promotes another      |
| `"fsynced"`    | on the server's disk, and `fsynced_replicas` more | these disks fail                                |

    EVALSHA schedule … ─┐                                        ┌─▶ receipts
    EVALSHA mark        ├─▶ one connection, written in one go ───┼─▶ (so that there is a write to wait for)
    WAIT n timeout     ─┘                                        └─▶ how many have confirmed

Over one connection, because the server waits for what *that connection* wrote last: on a new one WAIT is answered at
once, and says nothing. If the connection breaks, all of it is repeated with the same job ids on the next, which may
lead to another primary that does not have the jobs yet. While it waits the connection takes nothing else, so up to
5,000 jobs go before each WAIT.

When too few confirm in time the jobs are scheduled all the same, and `NotReplicated` says so. What happens to a job
later (promoted, acknowledged) is not waited for: a failover may forget it, and the job then runs again.

How a topic stands is confirmed in the same way, for in a cluster it may be another node's matter, and what no topic
names no scheduler finds: its registration, and its number of shards, before the first job that relies on them, and a
change of it by a client whose default is to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, get_args

from wheelq.errors import InvalidInput, NotReplicated, OutcomeUnknown, Refused, ServerError, ServerTooOld, WheelqError
from wheelq.protocol.call import Call, command, scripted, together
from wheelq.protocol.calls.registry import VERSION_FIELD
from wheelq.settings import ClientSettings, Durability

BATCHES = 10
"""Most schedule calls, of up to 500 jobs each, before one WAIT."""

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class Confirmation(Generic[T]):
    """Waits behind the schedule calls of one order, and remembers whether enough confirmed."""

    def __init__(self, durability: Durability, settings: ClientSettings) -> None:
        self.durability = durability
        self._replicas = settings.replicas if durability == "replicated" else settings.fsynced_replicas
        self._timeout_ms = settings.replicated_timeout_ms
        self._wanted = self._replicas + (durability == "fsynced")  # the server itself is one of them
        self._shortage: tuple[int, str] | None = None

    def ask(self) -> Call[Any]:
        """Whether the server can confirm, asked before anything is scheduled. See `impossible`."""
        return self._wait(replicas=0, timeout_ms=1)

    def impossible(self, error: Refused) -> Refused:
        """What it means that `ask` was refused."""
        if not isinstance(error, ServerTooOld):
            return error
        return ServerTooOld(
            f"durability={self.durability!r} needs Redis 7.2 or newer, or Valkey, whose WAITAOF can wait for the disk; "
            "on this server set appendfsync to always, which needs no waiting, or use durability='replicated'"
        )

    def behind(self, calls: Iterable[Call[T]]) -> Iterator[Call[list[T | ServerError]]]:
        """The same calls, up to ten of one shard together, with a WAIT behind them.

        Where some of the ten were refused, their errors stand among the answers to the others. Once a confirmation has
        failed to come, no more time is spent on waiting.
        """
        chain: list[Call[T]] = []
        try:
            for call in calls:
                if chain and (len(chain) == BATCHES or call.key != chain[0].key):
                    yield self._behind(chain)
                    chain = []
                chain.append(call)
        except WheelqError:  # the next call cannot be made: those that could come first
            if chain:
                yield self._behind(chain)
            raise
        if chain:
            yield self._behind(chain)

    def topic(self, call: Call[U], topics: str) -> Call[U]:
        """The same call about a topic, with a WAIT behind it; `topics` is the key in which it stands."""
        return self._one(call, command("HINCRBY", topics, VERSION_FIELD, 0, read=_as_is, key=topics))

    def fence(self, call: Call[U], delayed: str) -> Call[U]:
        """The same call about the terms of a shard, with a WAIT behind it; `delayed` is the key of what waits there."""
        return self._one(call, _mark(delayed))

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
        return self._confirmed(calls, _mark(calls[0].keys[0]), _as_is)

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
            return command("WAIT", replicas, timeout_ms, read=_as_is, wait_ms=timeout_ms)
        return command("WAITAOF", 1, replicas, timeout_ms, read=_as_is, wait_ms=timeout_ms)


def confirmation(durability: Durability | None, settings: ClientSettings) -> Confirmation[Any] | None:
    """What `durability` wants confirmed (None: what the settings say); None when nothing. Raises: InvalidInput."""
    chosen = durability or settings.durability
    if chosen not in get_args(Durability):
        raise InvalidInput("durability", f"{chosen!r} is none of {', '.join(get_args(Durability))}")
    return None if chosen == "server" else Confirmation(chosen, settings)


def _mark(delayed: str) -> Call[int]:
    """A write that changes nothing, in the shard of this key."""
    return scripted("mark", (delayed,), (), int)


def _as_is(reply: Any) -> Any:
    return reply
