"""`Lookout`: looks for many shards share calls, and only a shard that may have missed something looks itself."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from wheelq.base.clock import ManualClock
from wheelq.errors import Unavailable
from wheelq.protocol.call import Call
from wheelq.protocol.calls.leader import ToLookAt
from wheelq.protocol.keys import Keys
from wheelq.scheduler import promoter
from wheelq.scheduler.promoter import Lookout
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport

BEAT_S = 0.5


class Lines:
    """A transport that answers with these places, and notes the topics that each call asked about."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answer: list[int] | Exception = []
        self.servers: dict[str, str] = {}
        """Of a cluster, by topic."""
        self.away = asyncio.Event()
        """Set when the node called "away" answers."""

    def slot(self, key: str) -> int:
        return int("elsewhere" in key)

    def server_of(self, key: str) -> str | None:
        return self.servers.get(key.split("{")[1].split(":")[0])

    async def send(self, call: Call[Any]) -> Any:
        self.asked.append([key.split("{")[1].split(":")[0] for key in call.keys[1::2]])
        if self.server_of(call.keys[0]) == "away":
            await self.away.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class One:
    """A leader."""

    def __init__(self, scene: Scene, topic: str, in_s: float = BEAT_S) -> None:
        self._scene = scene
        self._keys = Keys().shard(topic, 0)
        self.looks_at = scene.clock.monotonic() + in_s
        self.is_promoting = False
        self.was_looked_at = 0
        self.looked_itself = 0
        scene.lookout.expect(self)

    def to_look_at(self, now: float) -> ToLookAt | None:
        return None if self.is_promoting else ToLookAt(self._keys, "token", 7)

    def has_looked(self, asked_at: float, at: ToLookAt) -> None:
        assert at.keys == self._keys
        self.was_looked_at += 1
        self.looks_at = asked_at + BEAT_S
        self._scene.lookout.expect(self)

    def look_yourself(self) -> None:
        self.looked_itself += 1


class Scene:
    """A lookout with a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lines = Lines()
        settings = SchedulerSettings(sweep_ms=int(BEAT_S * 1000))
        self.lookout = Lookout(cast("AsyncTransport", self.lines), self.clock, settings)

    async def pass_by(self, seconds: float) -> float:
        """Let time pass, and look; when to look next."""
        self.clock.advance(seconds)
        return await self.lookout.step()


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_shards_share_a_call_once_a_beat(scene: Scene) -> None:
    leaders = [One(scene, topic, in_s) for topic, in_s in (("a", BEAT_S), ("b", BEAT_S + 0.04), ("c", BEAT_S + 0.2))]
    assert await scene.pass_by(0.1) == pytest.approx(0.4)
    assert scene.lines.asked == []
    assert await scene.pass_by(0.4) == pytest.approx(0.2)
    assert scene.lines.asked == [["a", "b"]], "c has time"
    await scene.pass_by(0.2)
    await scene.pass_by(0.3)
    assert scene.lines.asked == [["a", "b"], ["c"], ["a", "b"]]
    assert [one.was_looked_at for one in leaders] == [2, 2, 1]


async def test_a_look_that_was_put_off_waits(scene: Scene) -> None:
    one = One(scene, "a")
    one.looks_at += 0.3  # by a promotion
    assert await scene.pass_by(BEAT_S) == pytest.approx(0.3)
    assert scene.lines.asked == []
    await scene.pass_by(0.3)
    assert one.was_looked_at == 1


async def test_a_leader_with_nothing_to_look_for_is_forgotten_and_may_come_back(scene: Scene) -> None:
    one = One(scene, "a")
    one.looks_at = float("inf")
    assert await scene.pass_by(BEAT_S) == promoter.LONGEST_S
    one.looks_at = scene.clock.monotonic() + BEAT_S
    scene.lookout.expect(one)
    await scene.pass_by(BEAT_S)
    assert one.was_looked_at == 1


async def test_while_a_shard_promotes_a_look_waits_for_the_answer(scene: Scene) -> None:
    one = One(scene, "a")
    one.is_promoting = True
    assert 0 < await scene.pass_by(BEAT_S) <= BEAT_S / 4
    one.is_promoting = False
    await scene.pass_by(BEAT_S / 4)
    assert one.was_looked_at == 1


async def test_only_the_shards_that_are_named_look_themselves(scene: Scene) -> None:
    leaders = [One(scene, topic) for topic in "abc"]
    scene.lines.answer = [1]
    await scene.pass_by(BEAT_S)
    assert [one.looked_itself for one in leaders] == [0, 1, 0]
    assert [one.was_looked_at for one in leaders] == [1, 0, 1]


async def test_after_an_error_all_look_themselves(scene: Scene) -> None:
    leaders = [One(scene, topic) for topic in "ab"]
    scene.lines.answer = Unavailable("away")
    await scene.pass_by(BEAT_S)
    assert [one.looked_itself for one in leaders] == [1, 1]


async def test_each_slot_has_its_own_call(scene: Scene) -> None:
    for topic in ("a", "elsewhere", "b"):
        One(scene, topic)
    await scene.pass_by(BEAT_S)
    assert sorted(scene.lines.asked) == [["a", "b"], ["elsewhere"]]


async def test_a_node_of_a_cluster_that_is_away_holds_up_no_look_at_others(scene: Scene) -> None:
    scene.lines.servers = {"elsewhere": "away", "a": "here"}
    away, here = One(scene, "elsewhere"), One(scene, "a")
    for _ in range(3):
        await scene.pass_by(BEAT_S)
        await asyncio.sleep(0)
    assert (away.was_looked_at, here.was_looked_at) == (0, 3)
    scene.lines.away.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert away.was_looked_at == 1


async def test_a_look_that_is_needed_earlier_than_was_said_comes_earlier(scene: Scene) -> None:
    """As when the server's clock was set back and then the shard has started afresh."""
    one = One(scene, "a", in_s=60.0)
    one.looks_at = scene.clock.monotonic() + BEAT_S
    scene.lookout.expect(one)
    await scene.pass_by(BEAT_S)
    assert one.was_looked_at == 1


async def test_many_shards_are_looked_at_step_by_step(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that promotions can go in between."""
    monkeypatch.setattr(promoter, "MOST_LOOKED_AT", 2)
    for topic in "abc":
        One(scene, topic)
    assert await scene.pass_by(BEAT_S) == 0
    assert await scene.lookout.step() > 0
    assert scene.lines.asked == [["a", "b"], ["c"]]
