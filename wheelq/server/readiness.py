"""Checks whether the service can work: Redis answers and takes writes, a scheduler is alive, no job is overdue.

Producers are served without a scheduler too (jobs wait), so only Redis and a shutdown make a server unready. All else
is listed in `problems`, for people and alarms, also that some masters of a cluster are away. A shard at rest has no
leader, and a paused or limited topic has overdue jobs: neither is a problem.

The check needs no key, so it must be cheap. At most one runs per second, shared by all requests, and it looks at no
more than `SHARDS` shards. Shards with overdue jobs are looked at again the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import Field

from wheelq.admin import NodeInfo, figures
from wheelq.base.clock import Clock
from wheelq.base.fresh import Fresh
from wheelq.base.plural import counted
from wheelq.errors import AWAY, Refused, ServerError, ServerFull
from wheelq.model.topic import Topic
from wheelq.producer.driver import AsyncDriver
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leader, notes, registry, shard_counts
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server.problems import words_of
from wheelq.server.schemas.model import Answer
from wheelq.transport import AsyncTransport

T = TypeVar("T")

LATE_MS = 1_000
"""Longer overdue than this means that sweeps do not keep up."""
FRESH_S = 1.0
"""How long an answer is reused."""
DEADLINE_S = 1.0
"""How long Redis may take to answer."""
ANSWER_S = 0.4
"""How long the masters of a cluster may take to answer about their shards."""
SHARDS = 500
"""The most shards that one check looks at; others have their turn at the next checks."""
ASKED = 10
"""The most shards with overdue jobs that are asked for their leader."""
NOTE_MS = 1
"""How long the note that tests writing is kept."""


class Readiness(Answer):
    """The result of a check."""

    ready: bool
    redis: bool = Field(description="Whether Redis answers.")
    schedulers: int | None = Field(description="Live scheduler nodes; this and other figures are null if unknown.")
    leading: int | None = Field(description="Shards that have a leader; a shard at rest needs none.")
    shards: int | None = Field(description="Shards in all.")
    overdue_ms: int | None = Field(
        description="How long the most overdue job, which should have been promoted, has been due."
    )
    problems: list[str]


class ReadinessCheck:
    """Checks Redis, schedulers and shards."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._driver = AsyncDriver(transport, figures.ASKS_ALWAYS, clock)
        self._keys = keys
        self._looking = Fresh(self._look, FRESH_S, clock)
        self._next = 0
        self._late: dict[str, ShardKeys] = {}

    async def look(self) -> Readiness:
        """Returns the result; never raises, and answers within `DEADLINE_S`."""
        try:
            return await self._looking.get(DEADLINE_S)
        except TimeoutError:
            return unready(f"Redis has not answered within {DEADLINE_S:g} s", answers=False)

    def close(self) -> None:
        self._looking.close()

    async def _look(self) -> Readiness:
        try:
            nodes, topics, refusal = await asyncio.gather(
                self._driver.run(figures.nodes(self._keys)),
                self._transport.send(registry.topics(self._keys)),
                self._refusal(),
            )
            overdue_ms, away, refused = await self._overdue_ms(topics.settings)
            leaderless = await self._leaderless()
        except ServerError as error:
            return unready(words_of(error), answers=isinstance(error, Refused))
        except TimeoutError:
            return unready(f"Redis has not answered within {ANSWER_S:g} s", answers=False)
        found = _judge(nodes, topics, overdue_ms, leaderless, away, refused)
        if refusal is None:
            return found
        return found.model_copy(update={"ready": False, "problems": [refusal, *found.problems]})

    async def _refusal(self) -> str | None:
        """Returns why Redis refuses to write; None if it writes, or a master of a cluster is away."""
        try:
            await self._each([notes.remember(self._keys.note("ready", ""), b"", NOTE_MS)])
        except ServerFull as error:
            return f"Redis is full: {error}"
        except Refused as error:
            return f"Redis takes no writes: {error}"
        except (ServerError, TimeoutError):
            return None  # on a single server, the other calls fail as well
        return None

    async def _each(self, calls: Sequence[Call[T]]) -> list[T | BaseException]:
        """Returns the answers; an error from a master of a cluster that is away.

        Raises: ServerError or TimeoutError, if there is no answer at all.
        """
        if not calls:
            return []
        asked = [asyncio.create_task(self._transport.send(call)) for call in calls]
        try:
            await asyncio.wait(asked, timeout=ANSWER_S)
        finally:
            for one in asked:
                one.cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        failed = [one for one in found if isinstance(one, BaseException)]
        if len(failed) == len(found):
            raise failed[0] if isinstance(failed[0], ServerError) else TimeoutError
        return found

    async def _overdue_ms(self, topics: Mapping[str, Topic]) -> tuple[int, int, int]:
        """Returns how long the most overdue job of the checked shards has been due.

        And how many of these shards are away, and how many were refused: a key is not what wheelq has written.
        """
        shards = [
            self._keys.shard(name, n)
            for name, topic in topics.items()
            if not topic.paused and not topic.is_shaped
            for n in range(topic.all_shards)
        ]
        known = {keys.delayed for keys in shards}
        chosen = {name: keys for name, keys in self._late.items() if name in known}
        start = self._next % max(1, len(shards))
        turn = [*shards[start:], *shards[:start]][: SHARDS - len(chosen)]
        self._next = start + len(turn)
        chosen |= {keys.delayed: keys for keys in turn}
        first = await self._each([shard_counts.first_due(keys) for keys in chosen.values()])
        now_ms = await self._transport.send(server_time_us()) // 1000
        overdue = {name: now_ms - due_ms for name, due_ms in zip(chosen, first, strict=True) if isinstance(due_ms, int)}
        late = sorted((name for name, ms in overdue.items() if ms > LATE_MS), key=overdue.__getitem__, reverse=True)
        self._late = {name: chosen[name] for name in late[: SHARDS // 2]}
        refused = sum(isinstance(one, Refused) and not isinstance(one, AWAY) for one in first)
        away = sum(isinstance(one, BaseException) for one in first) - refused
        return max(0, *overdue.values()) if overdue else 0, away, refused

    async def _leaderless(self) -> list[str]:
        """Returns the topics of the checked shards that lack a leader."""
        late = list(self._late.values())[:ASKED]
        looks = await self._each([leader.look(keys) for keys in late])
        has_none = [isinstance(one, leader.Looked) and not one.token for one in looks]
        return sorted({keys.topic for keys, none in zip(late, has_none, strict=True) if none})


def _judge(
    nodes: Sequence[NodeInfo],
    topics: registry.RegisteredTopics,
    overdue_ms: int,
    leaderless: Sequence[str],
    away: int,
    refused: int,
) -> Readiness:
    found = []
    if not nodes:
        found.append("no scheduler node is alive: jobs wait and are not promoted; start wheelq scheduler")
    if overdue_ms > LATE_MS:
        found.append(f"a job has been due for {overdue_ms / 1000:,.1f} s: the schedulers do not keep up")
    # Anybody may ask, so topics are counted and not named.
    if leaderless:
        has = counted(len(leaderless), "topic has", "topics have")
        found.append(f"{has} jobs that are due, and a shard without a leader: wheelq doctor names them")
    if away:
        found.append(f"{counted(away, 'shard has', 'shards have')} not answered: is a master of the cluster away?")
    if refused:
        found.append(f"{counted(refused, 'shard')} cannot be read: wheelq doctor says why")
    if topics.unreadable:
        found.append(f"{counted(len(topics.unreadable), 'topic')} cannot be read: wheelq doctor says why")
    return Readiness(
        ready=True,
        redis=True,
        schedulers=len(nodes),
        leading=sum(node.leading for node in nodes),
        shards=sum(topic.shards for topic in topics.settings.values()),
        overdue_ms=overdue_ms,
        problems=found,
    )


def unready(problem: str, *, answers: bool) -> Readiness:
    """Returns the answer of a server that is unready for this reason; `answers`: whether Redis does."""
    return Readiness(
        ready=False,
        redis=answers,
        schedulers=None,
        leading=None,
        shards=None,
        overdue_ms=None,
        problems=[problem],
    )
