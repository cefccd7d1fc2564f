"""Followers are made once, whatever goes wrong between the settling of a job and the removal from `outgoing`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from tests.faults.stages import FAULTS
from tests.records import RECORD
from tests.running import running
from tests.transports import ALWAYS, AsyncWith, Fault, Refusing, ReplyLost, Unreachable
from tests.waiting import until
from wheelq import AsyncClient, Job, JobSpec, Scheduler, Settings, Worker
from wheelq.admin import Inspector
from wheelq.admin.metrics import FleetMetrics
from wheelq.base.clock import SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.following.carrier import Carrier
from wheelq.following.notes import Notes
from wheelq.model.topic import Topic, shard_of
from wheelq.protocol.calls import draining, producer, state, worker
from wheelq.protocol.calls import outgoing as calls
from wheelq.protocol.calls.outgoing import LIFE_MS, Outgoing
from wheelq.protocol.calls.state import Concluded
from wheelq.protocol.keys import Keys, tag_keys
from wheelq.scheduler.shard import Role
from wheelq.settings import ClientSettings, WorkerSettings
from wheelq.transport import Address, AsyncTransport, Transport


class Scene:
    """A shard whose jobs are followed by jobs of another topic, which are run and forgotten by `consume`."""

    def __init__(self, url: str, topic: str) -> None:
        self.url, self.target = url, f"{topic}-next"
        self.keys = Keys().shard(topic, 0)
        self.raw = redis.Redis.from_url(url)
        self.plain = Transport(Address(url))
        self.ran: list[str] = []
        self.carriers: list[tuple[Carrier, AsyncWith]] = []

    def carrier(self, *faults: Fault) -> Carrier:
        """A carrier of another process."""
        transport = AsyncWith(self.url, *faults)
        carrier = Carrier(transport, Keys())
        self.carriers.append((carrier, transport))
        return carrier

    async def close(self) -> None:
        for carrier, transport in self.carriers:
            await carrier.close()
            await transport.close()
        self.plain.close()
        self.raw.close()

    def leave(self, *specs: JobSpec, on_duplicate: Any = "keep", carrier: Carrier | None = None) -> list[Outgoing]:
        """Let a job be run and settled, with its followers; what it has left."""
        self.plain.send(worker.make_group(self.keys, "g"))
        self.plain.send(producer.schedule(self.keys, [("a", "+0", RECORD)], "keep", "1"))
        [entry] = self.plain.send(worker.read([self.keys], "g", "w1", 10, 1))[0]
        notes = Notes(self.keys, entry.entry_id, "g", ClientSettings(), 0)
        for spec in specs or (JobSpec(1),):
            notes.add(self.target, spec, on_duplicate)
        followers = notes.followers if carrier is None else carrier.placed(notes.followers)
        ended = [Concluded(entry.entry_id, entry.member, entry.due_ms, b"")]
        return self.plain.send(state.conclude(self.keys, "g", "w1", 0, 0, ended, 0, [followers])).outgoing

    async def carry(self, carrier: Carrier, entries: list[Outgoing]) -> None:
        carrier.carry(self.keys, entries)
        await carrier.idle(30)

    def age(self, ms: int = 60_000, **changes: int) -> None:
        """Make everything outgoing older."""
        entries = self.raw.xrange(self.keys.outgoing)
        self.raw.delete(self.keys.outgoing)
        for entry_id, fields in entries:
            made, _, number = entry_id.partition(b"-")
            if fields[b"placed"]:
                fields[b"placed"] = int(fields[b"placed"]) - changes.get("placed", 0)
            self.raw.xadd(self.keys.outgoing, fields, id=f"{int(made) - ms}-{int(number)}")
        if entries:
            self.raw.execute_command("XSETID", self.keys.outgoing, entries[-1][0])

    def claim(self) -> list[Outgoing]:
        """As a scheduler node does, a while later."""
        self.age()
        return self.plain.send(calls.claim(self.keys, "0-0")).entries

    async def carry_again(self, times: int = 3) -> None:
        """Let other carriers claim what is left."""
        for _ in range(times):
            await self.carry(self.carrier(), self.claim())

    def consume(self, shards: int = 4) -> None:
        """Run what is ready in the target, and let it be forgotten."""
        for number in range(shards):
            keys = Keys().shard(self.target, number)
            self.plain.send(worker.make_group(keys, "g"))
            self.raw.hdel(keys.counts, "born")
            entries = self.plain.send(worker.read([keys], "g", "w1", 100, 1))[0]
            self.ran += [entry.id for entry in entries]
            self.plain.send(worker.ack(keys, "g", "w1", 0, 0, [(one.entry_id, one.member) for one in entries]))
            assert not self.raw.hlen(keys.jobs)

    @property
    def now_ms(self) -> int:
        seconds, micros = self.raw.time()
        return int(seconds) * 1_000 + int(micros) // 1_000

    @property
    def left(self) -> int:
        return self.raw.xlen(self.keys.outgoing)


@pytest.fixture
async def scene(url: str, topic: str) -> AsyncIterator[Scene]:
    scene = Scene(url, topic)
    yield scene
    await scene.close()


@pytest.mark.parametrize("placed", ["placed when it was settled", "placed by its carrier"])
async def test_a_follower_is_carried_and_removed(scene: Scene, placed: str) -> None:
    carrier = scene.carrier()
    if placed == "placed when it was settled":
        await scene.carry(carrier, scene.leave())
        scene.consume()
    entries = scene.leave(carrier=carrier)
    assert (entries[0].follower.shard >= 0) == (placed == "placed when it was settled")
    await scene.carry(carrier, entries)
    assert scene.left == 0
    scene.consume()
    assert scene.ran[-1:] == [entries[0].follower.id]


async def test_followers_of_one_shard_share_calls_and_stay_in_order(scene: Scene) -> None:
    counted = Refusing("schedule", times=0)
    big = JobSpec("x" * 10_000)
    await scene.carry(scene.carrier(counted), scene.leave(*map(JobSpec, range(60)), big, *map(JobSpec, range(60, 80))))
    assert counted.met == 4, "50, 10, the big one, 20"
    scene.consume()
    assert [int(id[-2:]) for id in scene.ran] == list(range(81))
    assert scene.left == 0


async def test_a_follower_that_is_refused_keeps_those_of_its_call_from_nothing(scene: Scene) -> None:
    first, second, third = scene.leave(JobSpec(1), JobSpec(2), JobSpec(3), carrier=scene.carrier())
    for key in tag_keys(Keys().prefix, scene.target, 0, calls.TURN_MS):
        scene.raw.hset(key, second.follower.tag, "no answer")  # the script fails to read it
    await scene.carry(scene.carrier(), [first, second, third])
    scene.consume()
    assert scene.ran == [first.follower.id, third.follower.id]
    [left] = scene.claim()
    assert (left.follower.id, left.refusals) == (second.follower.id, 1)


async def test_a_follower_that_was_sent_before_does_not_set_the_time_of_those_behind_it(scene: Scene) -> None:
    sent = scene.leave()
    await scene.carry(scene.carrier(Unreachable("XDEL")), sent)
    sent_ms = scene.now_ms
    while scene.now_ms < sent_ms + 20:
        pass
    [new] = scene.leave()
    await scene.carry(scene.carrier(), [*scene.claim(), new])
    info = scene.plain.send(state.get(Keys().shard(scene.target, 0), new.follower.id))
    assert info is not None
    assert info.scheduled_ms is not None
    assert info.scheduled_ms >= sent_ms + 20
    assert scene.left == 0


@pytest.mark.parametrize("is_forgotten", [True, False], ids=["run and forgotten meanwhile", "still there"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("call", ["register_topic", "place_outgoing", "schedule", "XDEL"])
async def test_whatever_befalls_a_call_the_follower_is_made_once(
    scene: Scene, call: str, fault: type[Fault], is_forgotten: bool
) -> None:
    entries = scene.leave(JobSpec(1), JobSpec(2), JobSpec(3, key="k"))
    await scene.carry(scene.carrier(fault(call)), entries)
    if is_forgotten:
        scene.consume()
    await scene.carry_again()
    scene.consume()
    assert sorted(scene.ran) == sorted(one.follower.id for one in entries)
    assert scene.left == 0


@pytest.mark.parametrize("is_forgotten", [True, False], ids=["run and forgotten meanwhile", "still there"])
@pytest.mark.parametrize("after", range(8))
async def test_a_carrier_that_dies_between_two_calls_loses_and_doubles_nothing(
    scene: Scene, after: int, is_forgotten: bool
) -> None:
    """From the call on it does nothing any more."""
    entries = scene.leave(JobSpec(1), JobSpec(2))
    dead = scene.carrier(Unreachable(after=after, times=ALWAYS))
    await scene.carry(dead, entries)
    if is_forgotten:
        scene.consume()
    await scene.carry_again()
    scene.consume()
    assert sorted(scene.ran) == sorted(one.follower.id for one in entries)
    assert scene.left == 0


async def test_a_carrier_that_never_hears_an_answer_makes_one_follower(scene: Scene) -> None:
    entries = scene.leave()
    for _ in range(3):
        await scene.carry(scene.carrier(ReplyLost("schedule", times=ALWAYS)), entries)
        scene.consume()
        entries = scene.claim()
    await scene.carry(scene.carrier(), entries)
    scene.consume()
    assert len(scene.ran) == 1
    assert scene.left == 0


async def test_two_carriers_at_once_make_one_follower(scene: Scene) -> None:
    entries = scene.leave(*(JobSpec(n) for n in range(20)))
    claimed = scene.claim()
    await asyncio.gather(*(scene.carry(scene.carrier(), some) for some in (entries, claimed, claimed)))
    scene.consume()
    await scene.carry_again()
    scene.consume()
    assert sorted(scene.ran) == sorted(one.follower.id for one in entries)
    assert scene.left == 0


async def test_a_tag_is_forgotten_only_after_a_while_and_if_nobody_else_has_the_follower(scene: Scene) -> None:
    carrier = scene.carrier()
    await scene.carry(carrier, scene.leave())
    [(place, done)] = carrier._done.items()
    assert len(done) == 1
    assert carrier._forgettable(*place) == b"", "a call with it may be on its way"
    entries = scene.leave()
    again = scene.claim()
    await scene.carry(carrier, entries)
    assert len(done) == 1, "another carrier has claimed it, and may send it once more"
    await scene.carry(scene.carrier(), again)
    scene.consume()
    assert len(scene.ran) == 2


async def test_no_tag_is_forgotten_of_followers_that_a_failover_may_bring_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were sent again later than their tags were kept, because no replica confirmed them, and made twice."""
    monkeypatch.setattr("wheelq.following.carrier.FORGET_S", 0.0)
    carrier = scene.carrier()
    await scene.carry(carrier, scene.leave())
    [place] = carrier._done
    assert carrier._forgettable(*place)
    entries = scene.leave(JobSpec(2))
    left = scene.raw.xrange(scene.keys.outgoing)
    await scene.carry(carrier, entries)
    scene.raw.client_kill_filter(_type="normal", skipme=True)
    transport = scene.carriers[0][1]
    await until(lambda: transport.interruptions > 0)
    for _, values in left:  # as they were before they were removed
        scene.raw.xadd(scene.keys.outgoing, values)
    for number in range(8):  # the tags of other calls, in every shard
        await scene.carry(carrier, scene.leave(*(JobSpec([number, n]) for n in range(8))))
    scene.consume()
    await scene.carry_again()
    scene.consume()
    assert scene.ran.count(entries[0].follower.id) == 1


# the target changes meanwhile


async def configure(scene: Scene, change: Callable[[AsyncClient], Any]) -> None:
    async with AsyncClient.connect(scene.url) as client:
        await change(client)


@pytest.mark.parametrize("is_forgotten", [True, False], ids=["run and forgotten meanwhile", "still there"])
@pytest.mark.parametrize("spec", [JobSpec(1), JobSpec(1, key="k"), JobSpec(1, partition_key="p")], ids=str)
async def test_the_target_is_resharded_after_the_call_whose_reply_was_lost(
    scene: Scene, spec: JobSpec, is_forgotten: bool
) -> None:
    entries = scene.leave(spec)
    await scene.carry(scene.carrier(ReplyLost("schedule")), entries)
    if is_forgotten:
        scene.consume()
    await configure(scene, lambda client: client.set_shards(scene.target, 4))
    await scene.carry_again()
    scene.consume()
    assert scene.ran == [entries[0].follower.id]
    assert scene.left == 0


async def test_the_target_is_resharded_between_settling_and_sending(scene: Scene) -> None:
    carrier = scene.carrier()
    await scene.carry(carrier, scene.leave())
    scene.consume()
    entries = scene.leave(*(JobSpec(n) for n in range(20)), carrier=carrier)
    assert {one.follower.terms for one in entries} == {Topic().known_terms}
    await configure(scene, lambda client: client.set_shards(scene.target, 4))
    await scene.carry(carrier, entries)
    scene.consume()
    assert sorted(scene.ran[1:]) == sorted(one.follower.id for one in entries)
    assert scene.left == 0


async def test_a_key_that_waits_where_a_former_number_of_shards_placed_it_is_kept(scene: Scene) -> None:
    async with AsyncClient.connect(scene.url) as client:
        for n in range(8):
            await client.schedule(scene.target, "old", delay=3_600, key=f"k{n}")
        await client.set_shards(scene.target, 4)
        entries = scene.leave(*(JobSpec("new", delay=3_600, key=f"k{n}") for n in range(8)))
        await scene.carry(scene.carrier(), entries)
        assert scene.left == 0
        found = [await client.get(scene.target, f"k{n}") for n in range(8)]
        assert [info.payload for info in found if info] == ["old"] * 8
        assert (await client.topic(scene.target)).waiting == 8
        await scene.carry(scene.carrier(), scene.leave(JobSpec("new", delay=9, key="k1"), on_duplicate="replace"))
        info = await client.get(scene.target, "k1")
        assert info is not None
        assert info.payload == "new"


async def test_a_follower_may_return_to_a_shard_that_had_no_job_of_its_key(scene: Scene) -> None:
    """A former number of shards pointed there, and the number in force does by the time it is sent again."""
    key = next(key for key in map(str, range(9)) if shard_of(key, 2) == 1)
    async with AsyncClient.connect(scene.url) as client:
        await client.configure(scene.target)
        await client.set_shards(scene.target, 2)
        await client.set_shards(scene.target, 1)
        [entry] = scene.leave(JobSpec(1, key=key))
        asked = Unreachable("schedule", after=1)
        await scene.carry(scene.carrier(asked), [entry])
        assert (asked.met, scene.left) == (2, 1)
        await client.set_shards(scene.target, 2)
    await scene.carry_again()
    scene.consume()
    assert scene.ran == [key]
    assert scene.left == 0


async def test_a_full_target_holds_up_no_other_and_gets_its_follower_later(scene: Scene) -> None:
    other = f"{scene.target}-other"
    async with AsyncClient.connect(scene.url) as client:
        await client.configure(scene.target, max_pending=1)
        await client.schedule(scene.target, delay=3_600, key="in the way")
        [full] = scene.leave(JobSpec(1, delay=60))
        scene.target, full_target = other, scene.target
        free = scene.leave()
        scene.target = full_target
        carrier = scene.carrier()
        carrier.carry(scene.keys, [full])
        carrier.carry(scene.keys, free)
        await carrier.idle(30)
        assert scene.left == 1
        assert (await client.topic(other)).ready == 1
        await scene.carry(scene.carrier(), scene.claim())
        assert scene.left == 1
        await client.cancel(scene.target, "in the way")
        await scene.carry_again()
        assert scene.left == 0
        assert (await client.topic(scene.target)).waiting == 1


async def test_what_is_left_can_be_seen(scene: Scene) -> None:
    scene.leave(JobSpec(1), JobSpec(2))
    await scene.carry(scene.carrier(Unreachable(times=ALWAYS)), scene.claim())
    scene.claim()
    async with AsyncClient.connect(scene.url) as client:
        await client.configure(scene.keys.topic)
    text = await FleetMetrics(AsyncTransport(Address(scene.url)), Keys(), SystemClock(), "1").text()
    assert f'wheelq_outgoing_jobs{{topic="{scene.keys.topic}"}} 2' in text
    with Inspector.connect(scene.url) as inspector:
        assert any("2 jobs that follow" in finding.title for finding in inspector.doctor())


async def test_a_paused_target_takes_its_follower(scene: Scene) -> None:
    async with AsyncClient.connect(scene.url) as client:
        await client.configure(scene.target)
        await client.pause(scene.target)
        await scene.carry(scene.carrier(), scene.leave())
        assert scene.left == 0
        assert (await client.topic(scene.target)).waiting == 1


async def test_a_target_that_goes_on_refusing_gets_its_follower_as_a_dead_job(scene: Scene) -> None:
    [one] = scene.leave()
    refusing = scene.carrier(Refusing("schedule", times=ALWAYS))
    await scene.carry(refusing, [one])
    for _ in range(60):
        await scene.carry(refusing, scene.claim())
        if not scene.left:
            break
    assert scene.left == 0
    async with AsyncClient.connect(scene.url) as client:
        [dead] = (await client.dead.list(scene.target)).jobs
        assert (dead.id, dead.reason, dead.payload) == (one.follower.id, "undelivered", 1)
        assert "refused it 60 times" in dead.error
        assert (await client.dead.replay(scene.target, all=True)).replayed == 1
        assert (await client.topic(scene.target)).waiting == 1


async def test_a_follower_whose_tag_may_have_expired_is_buried_and_never_sent(scene: Scene) -> None:
    [one] = scene.leave()
    await scene.carry(scene.carrier(ReplyLost("schedule")), [one])
    scene.consume()
    scene.age(placed=LIFE_MS + 1)
    await scene.carry_again()
    scene.consume()
    assert len(scene.ran) == 1
    assert scene.left == 0
    async with AsyncClient.connect(scene.url) as client:
        [dead] = (await client.dead.list(scene.target)).jobs
        assert "may have run already" in dead.error


async def test_a_burial_removes_no_dead_job_that_its_topic_still_keeps(scene: Scene) -> None:
    """The topic keeps them for ever; other topics, as many and as long as by default."""
    dead = Keys().shard(scene.target, 0).dead
    async with AsyncClient.connect(scene.url) as client:
        await client.configure(scene.target, dead_retention_ms=0, dead_max=0)
    scene.raw.xadd(dead, {"id": "old", "group": "g", "record": RECORD}, id="1-1")
    [one] = scene.leave()
    await scene.carry(scene.carrier(ReplyLost("schedule")), [one])
    scene.age(placed=LIFE_MS + 1)
    await scene.carry_again()
    assert [fields[b"id"].decode() for _, fields in scene.raw.xrange(dead)] == ["old", one.follower.id]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("call", ["bury_follower", "XDEL"])
async def test_whatever_befalls_the_burial_there_is_one_dead_job(scene: Scene, call: str, fault: type[Fault]) -> None:
    await scene.carry(scene.carrier(ReplyLost("schedule")), scene.leave())
    scene.age(placed=LIFE_MS + 1)
    await scene.carry(scene.carrier(fault(call)), scene.claim())
    await scene.carry_again()
    assert scene.left == 0
    async with AsyncClient.connect(scene.url) as client:
        assert len((await client.dead.list(scene.target)).jobs) == 1


async def test_a_target_that_is_being_removed_takes_its_follower_when_it_is_gone(scene: Scene) -> None:
    async with AsyncClient.connect(scene.url) as client:
        await client.schedule(scene.target, delay=3_600)
        entries = scene.leave(JobSpec(1, delay=60))
        await client.remove_topic(scene.target, force=True)
        await scene.carry_again()
        await scene.carry(scene.carrier(), entries)
        assert scene.left == 0
        assert (await client.topic(scene.target)).waiting == 1


async def test_a_target_whose_server_is_away_leaves_what_it_cannot_take(scene: Scene) -> None:
    entries = scene.leave()
    await scene.carry(scene.carrier(Unreachable(times=ALWAYS)), entries)
    assert scene.left == 1
    await scene.carry_again()
    assert scene.left == 0


async def test_a_shard_is_not_given_up_while_something_is_outgoing(scene: Scene) -> None:
    """A former shard that is otherwise empty."""
    entries = scene.leave()
    assert scene.plain.send(draining.holds_entries(scene.keys.outgoing))
    await scene.carry(scene.carrier(), entries)
    assert not scene.plain.send(draining.holds_entries(scene.keys.outgoing))


# whole workers and schedulers


def following(url: str, topic: str, settings: Settings) -> tuple[Worker, list[str]]:
    """A worker whose jobs are followed unless their payload is None, and the payloads of the followers that it ran."""
    worker, ran = Worker.connect(url, group="g", settings=settings), list[str]()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        if job.payload is not None:
            job.then(f"{topic}-next", job.payload)

    @worker.handler(f"{topic}-next")
    async def after(job: Job) -> None:
        ran.append(job.payload)

    return worker, ran


@pytest.fixture
def settings() -> Settings:
    return Settings(prefix=f"following-{secrets.token_hex(6)}", worker=WorkerSettings(block_ms=500))


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_scheduler_carries_what_a_dead_worker_has_left(
    url: str, topic: str, settings: Settings, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is settled, and then its worker does nothing more."""
    worker, ran = following(url, topic, settings)
    monkeypatch.setattr(worker._parts.carrier, "carry", lambda *_: None)
    async with AsyncClient.connect(url, settings) as client, running(Scheduler.connect(url, settings), worker):
        await client.configure(topic)
        await client.set_shards(topic, shards)
        await client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(20)])
        await until(lambda: len(ran) >= 20)
        assert sorted(ran) == [*range(20)]


@pytest.mark.parametrize("source", ["at rest", "paused", "with a backlog"])
async def test_a_scheduler_that_has_heard_no_hint_carries_what_is_left(
    url: str, topic: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    worker, ran = following(url, topic, settings)
    monkeypatch.setattr(worker._parts.carrier, "carry", lambda *_: None)
    deaf, node = Scheduler.connect(url, settings), Scheduler.connect(url, settings)
    monkeypatch.setattr(deaf._outgoing, "found", lambda keys: None)
    async with AsyncClient.connect(url, settings) as client, running(worker):
        async with running(deaf):
            await client.schedule(topic, 1, delay=0)
            await until(lambda: worker.handled == 1)
            if source == "paused":
                await client.pause(topic)
        if source == "with a backlog":
            await client.configure(topic, max_rate=1)
            await client.schedule_many(topic, [JobSpec(None, delay=0.001) for _ in range(1_000)])
        assert ran == []
        async with running(node):
            await until(lambda: ran[:1] == [1])


async def test_a_standby_carries_what_is_left_while_there_is_no_leader(
    url: str, topic: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, ran = following(url, topic, settings)
    monkeypatch.setattr(worker._parts.carrier, "carry", lambda *_: None)
    nodes = [Scheduler.connect(url, settings) for _ in range(2)]
    async with AsyncClient.connect(url, settings) as client, running(*nodes, worker):
        await client.configure(topic)
        await until(lambda: any(shard.role is Role.STANDBY for node in nodes for shard in node._shards.values()))
        for node in nodes:
            if any(shard.role is Role.LEADER for shard in node._shards.values()):
                monkeypatch.setattr(node._outgoing, "step", lambda: asyncio.sleep(1, 1.0))
        await client.schedule(topic, 1, delay=0)
        await until(lambda: ran == [1])


async def test_an_ack_waits_for_room_and_holds_up_no_other(url: str, topic: str, settings: Settings) -> None:
    worker, ran = following(url, topic, settings)
    keys = Keys(settings.prefix).shard(topic, 0)
    with redis.Redis.from_url(url) as raw, raw.pipeline() as many:
        for _ in range(10_000):
            many.xadd(keys.outgoing, {"topic": "x"})
        many.execute()
        async with AsyncClient.connect(url, settings) as client, running(worker):
            await client.schedule(topic, 1, delay=0)
            for _ in range(3):
                await client.schedule(topic, None, delay=0)

            async def only_one_is_left() -> bool:
                info = await client.topic(topic)
                return (info.ready, info.running) == (0, 1)

            await until(only_one_is_left)
            assert ran == []
            raw.delete(keys.outgoing)
            await until(lambda: ran == [1])


async def test_a_worker_that_stops_carries_what_it_has_settled(url: str, topic: str, settings: Settings) -> None:
    worker, ran = following(url, topic, settings)
    async with AsyncClient.connect(url, settings) as client:
        await client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(50)])
        async with running(worker):
            await until(lambda: worker.handled >= 50)
        info = await client.topic(f"{topic}-next")
        assert info.ready + len(ran) == 50


async def test_followers_outlive_a_restart_of_the_server(
    private_server: Callable[..., EmbeddedServer], topic: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = private_server()
    worker, ran = following(server.url, topic, settings)
    monkeypatch.setattr(worker._parts.carrier, "carry", lambda *_: None)
    async with AsyncClient.connect(server.url, settings) as client:
        async with running(worker):
            await client.schedule(topic, 1, delay=0)
            await until(lambda: worker.handled == 1)

        server.kill()
        server.start()
        again, ran = following(server.url, topic, settings)
        async with running(Scheduler.connect(server.url, settings), again, patiently=True):
            await until(lambda: ran == [1])
