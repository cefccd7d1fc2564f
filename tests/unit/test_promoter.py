"""`Promoter`: which shards share a call, and what it tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from tests.waiting import until
from wheelq.base.clock import ManualClock, ServerClock
from wheelq.base.metrics import Lateness
from wheelq.errors import Unavailable
from wheelq.protocol.call import Call
from wheelq.protocol.calls.leader import Promoted, ToPromote
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.promoter import MOST_SHARDS, Answer, Promoter, PromotionCoalescing, Taken
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport


class Lines:
    """A transport that answers as told, and notes how many shards and jobs each call names."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self.sent: list[tuple[int, int]] = []
        self.answer: Callable[[int], Any] = lambda shards: [promoted()] * shards

    def slot(self, key: str) -> int:
        return int(key.partition(":")[2].partition("}")[0].rpartition(":")[2]) % self.slots

    def server_of(self, key: str) -> str | None:
        return None if self.slots == 1 else "a node"

    async def send(self, call: Call[Any]) -> Any:
        shards = len(call.keys) // 7
        about = 2 if shards == 1 else 3 * shards  # arguments that are not members
        self.sent.append((shards, len(call.args) - about))
        answers = self.answer(shards)
        if asyncio.iscoroutine(answers):
            answers = await answers
        return answers[0] if call.name == "promote" else answers


def promoted() -> Promoted:
    return Promoted(0, Lateness(0, (1,)), None, [])


class One:
    """A shard with some due ids."""

    def __init__(self, number: int, clock: ManualClock, due: int = 1) -> None:
        self.keys: ShardKeys = Keys().shard("t", number)
        self.server = ServerClock(clock)
        self.server.observe(clock.monotonic(), int(clock.monotonic() * 1e6))
        self.due = due
        self.answers: list[Answer] = []

    def take(self, now: float) -> Taken | None:
        members = [f"id-{n}" for n in range(self.due)]
        return Taken(self, ToPromote(self.keys, "token", members)) if members else None

    def wake(self) -> None: ...

    def answered(self, asked_at: float, taken: Taken, answer: Answer) -> None:
        assert taken.shard is self
        self.answers.append(answer)


class Scene:
    """A promoter with a clock that stands still."""

    def __init__(self, slots: int = 1, **settings: int) -> None:
        self.clock = ManualClock()
        self.lines = Lines(slots)
        in_force = SchedulerSettings(**settings)
        transport = cast("AsyncTransport", self.lines)
        self.promoter = Promoter(transport, self.clock, in_force, PromotionCoalescing(in_force))

    def shards(self, count: int, due: int = 1) -> Sequence[One]:
        """Shards that expect their ids now."""
        made = [One(number, self.clock, due) for number in range(count)]
        for shard in made:
            self.promoter.expect(shard, self.clock.monotonic())
        return made


async def test_shards_that_are_due_together_share_a_call() -> None:
    scene = Scene()
    shards = scene.shards(3, due=2)
    await scene.promoter.step()
    assert scene.lines.sent == [(3, 6)]
    assert all(shard.answers == [promoted()] for shard in shards)


async def test_a_call_has_no_more_jobs_than_a_batch_and_no_more_shards_than_a_script_is_quick_for() -> None:
    scene = Scene(batch=10)
    scene.shards(5, due=4)
    await scene.promoter.step()
    assert scene.lines.sent == [(2, 8), (2, 8), (1, 4)]
    scene = Scene(batch=500)
    scene.shards(MOST_SHARDS + 1)
    await scene.promoter.step()
    assert scene.lines.sent == [(MOST_SHARDS, MOST_SHARDS), (1, 1)]


async def test_a_shard_is_asked_at_the_instant_that_it_named_last() -> None:
    scene = Scene()
    [shard] = scene.shards(1)
    scene.promoter.expect(shard, scene.clock.monotonic() + 5)
    assert await scene.promoter.step() == pytest.approx(5)
    scene.promoter.expect(shard, scene.clock.monotonic() + 2)
    assert await scene.promoter.step() == pytest.approx(2)
    scene.clock.advance(2)
    await scene.promoter.step()
    assert scene.lines.sent == [(1, 1)]
    scene.clock.advance(3)
    await scene.promoter.step()
    assert scene.lines.sent == [(1, 1)], "it has named no other since"


async def test_a_shard_that_is_forgotten_or_has_nothing_is_not_promoted() -> None:
    scene = Scene()
    first, second, third = scene.shards(3)
    second.due = 0
    scene.promoter.forget(first)
    await scene.promoter.step()
    assert scene.lines.sent == [(1, 1)]
    assert [len(shard.answers) for shard in (first, second, third)] == [0, 0, 1]


async def test_after_a_promotion_the_others_wait_for_the_next() -> None:
    scene = Scene(gather_ms=2)
    scene.shards(1)
    await scene.promoter.step()
    scene.shards(2)
    rest = await scene.promoter.step()
    assert 0.0019 < rest < 0.0031
    scene.clock.advance(rest)
    await scene.promoter.step()
    assert scene.lines.sent == [(1, 1), (2, 2)]


async def test_a_shard_that_expects_something_earlier_wakes_the_promoter() -> None:
    scene = Scene()
    running = asyncio.create_task(scene.promoter.run())
    await asyncio.sleep(0)
    [shard] = scene.shards(1)
    await until(lambda: bool(shard.answers))
    scene.promoter.stop()
    await running


@pytest.mark.parametrize("error", [Unavailable("away"), ZeroDivisionError("a bug")], ids=["server", "bug"])
async def test_after_an_error_no_shard_waits_for_an_answer(error: Exception) -> None:
    """Also those whose call was not sent yet: each looks for its jobs by itself."""
    scene = Scene(batch=2)
    shards = scene.shards(4)

    def fail(_: int) -> Any:
        raise error

    scene.lines.answer = fail
    try:
        await scene.promoter.step()
    except ZeroDivisionError:
        assert scene.lines.sent == [(2, 2)]
    for shard in shards:
        [answer] = shard.answers
        assert isinstance(answer, str)


async def test_in_a_cluster_each_slot_has_a_call_of_its_own_and_waits_for_no_other() -> None:
    scene, away = Scene(slots=2), asyncio.Event()
    shards = scene.shards(4)
    first = True

    def answer(count: int) -> Any:
        nonlocal first
        is_away, first = first, False

        async def later() -> list[Promoted]:
            if is_away:
                await away.wait()
            return [promoted()] * count

        return later()

    scene.lines.answer = answer
    await scene.promoter.step()
    await until(lambda: bool(shards[1].answers))
    assert scene.lines.sent == [(2, 2), (2, 2)]
    assert [len(shard.answers) for shard in shards] == [0, 1, 0, 1]
    away.set()
    await until(lambda: bool(shards[0].answers))
