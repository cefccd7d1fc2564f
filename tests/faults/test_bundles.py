"""The follower of a bundle is made once, and only when it may, whatever goes wrong while its members are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from loadtest.servers.nodes import until as until_now
from loadtest.servers.sentinel import Watched
from tests.faults.stages import Meanwhile
from tests.running import die_at_work, running
from tests.transports import AsyncWith, BlockingWith, Fault, Forgetful, Repeating, ReplyLost, Unreachable
from tests.waiting import until
from wheelq import (
    AsyncClient,
    Bundle,
    BundleState,
    Client,
    Continuation,
    Job,
    JobSpec,
    Retry,
    Scheduler,
    Settings,
    Worker,
)
from wheelq.base.clock import ManualClock, SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import BundleClosed, NotReplicated, OutcomeUnknown, ServerError, Unavailable
from wheelq.following.carrier import Carrier
from wheelq.model.topic import Topic
from wheelq.protocol.call import Call
from wheelq.protocol.calls import bundles, outgoing, worker
from wheelq.protocol.calls.bundles import NONE
from wheelq.protocol.keys import Keys
from wheelq.scheduler.draining import Draining, EndedGroups
from wheelq.scheduler.parts import NodeParts
from wheelq.settings import ClientSettings, SchedulerSettings, TopicSettings
from wheelq.transport import Address, AsyncTransport, Transport

MEMBERS = 20
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Scene:
    """A topic with members, and the jobs that have followed."""

    def __init__(self, url: str, settings: Settings, topic: str) -> None:
        self.url, self.settings, self.topic, self.next = url, settings, topic, f"{topic}-next"
        self.server = url
        self.keys = Keys(settings.prefix)
        self.client = Client.connect(url, settings)
        self.plain = Transport(Address(url))
        self.ran: list[str] = []
        self.followed: list[Any] = []
        self.client.configure(self.next, keep_done_ms=600_000)
        self.client.configure(topic)

    def close(self) -> None:
        self.client.close()
        self.plain.close()

    def faulty(self, *faults: Fault) -> Client:
        return Client(BlockingWith(self.url, *faults), self.keys, self.settings.client)

    def schedule(self, count: int = MEMBERS, delay: float = 0, client: Client | None = None, **given: Any) -> str:
        jobs = [JobSpec(n, delay=delay) for n in range(count)]
        then = {} if "bundle" in given else {"then": Continuation(self.next, "all")}
        return (client or self.client).schedule_many(self.topic, jobs, **then, **given).bundle or ""

    def worker(self, *faults: Fault, group: str = "g") -> Worker:
        transport = AsyncWith(self.url, *faults)
        found = Worker(transport, group, self.keys, self.settings.worker)

        @found.handler(self.topic, retry=Retry(max_attempts=1))
        async def handle(job: Job) -> None:
            self.ran.append(job.id)
            if job.payload == "bad":
                raise ValueError("bad")

        @found.handler(self.next)
        async def follow(job: Job) -> None:
            self.followed.append(job.payload)

        return found

    @asynccontextmanager
    async def served(self, *workers: Worker) -> AsyncIterator[None]:
        async with running(Scheduler.connect(self.url, self.settings), *workers):
            yield

    def look(self, bundle: str) -> Bundle:
        found = self.client.bundle(bundle)
        assert found is not None
        return found

    async def numbers_are(self, bundle: str, *wanted: int) -> None:
        """Members, and how many are done, dead, cancelled and left."""

        def are_so() -> bool:
            one = self.look(bundle)
            return (one.members, one.done, one.dead, one.cancelled, one.left) == wanted

        await until(are_so)

    async def ends_once(self, bundle: str, *wanted: int) -> None:
        await self.numbers_are(bundle, *wanted)
        await until(lambda: self.followed == ["all"])
        await until(lambda: self.look(bundle).state is BundleState.ENDED)
        await until(self.nothing_is_left)
        assert self.followed == ["all"]

    def nothing_is_left(self) -> bool:
        """No count, no member and no report is left anywhere."""
        shards = [self.keys.shard(name, n) for name in (self.topic, self.next) for n in range(8)]
        with redis.Redis.from_url(self.server) as raw:
            return not any(raw.exists(shard.bundles) or raw.xlen(shard.outgoing) for shard in shards)

    async def check(self, topic: str = "", settings: ClientSettings | None = None) -> None:
        """As the leader of a topic's first shard does every ten minutes."""
        transport = AsyncTransport(Address(self.url))
        parts = NodeParts(transport, self.keys, SystemClock(), SchedulerSettings(), "node")
        carrier = Carrier(transport, self.keys, settings)
        await EndedGroups(parts, dict, carrier).look(topic or self.topic, Topic())
        await carrier.idle()
        await transport.close()


@pytest.fixture
def scene(url: str, settings: Settings, topic: str) -> Any:
    scene = Scene(url, settings, topic)
    yield scene
    scene.close()


BEGINNING = ["open_bundle", "enter_bundle", "schedule"]
END = ["close_bundle", "shut_bundle", "tally_bundle", "forget_bundle"]


@pytest.mark.parametrize("fault", [ReplyLost, Repeating], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("call", BEGINNING + END)
async def test_a_producer_that_hears_no_answer_makes_one_bundle(scene: Scene, call: str, fault: type[Fault]) -> None:
    struck = fault(call)
    with scene.faulty(struck) as client:
        bundle = scene.schedule(client=client, close=call != "forget_bundle")
    async with scene.served(scene.worker()):
        if call == "forget_bundle":
            await scene.numbers_are(bundle, MEMBERS, MEMBERS, 0, 0, 0)
            with scene.faulty(struck) as client:
                client.close_bundle(bundle)
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)
    assert struck.struck == 1


@pytest.mark.parametrize("fault", [ReplyLost, Repeating, Unreachable], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("call", ["conclude", "tally_bundle", "forget_bundle", "schedule", "XDEL"])
async def test_a_worker_that_hears_no_answer_counts_once(scene: Scene, call: str, fault: type[Fault]) -> None:
    struck = fault(call, times=1 if fault is Repeating else 2)
    bundle = scene.schedule()
    async with scene.served(scene.worker(struck)):
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)
    assert struck.struck


@pytest.mark.parametrize("fault", [ReplyLost, Repeating, Unreachable], ids=lambda fault: fault.__name__)
async def test_a_burial_without_an_answer_counts_once(scene: Scene, fault: type[Fault]) -> None:
    bundle = (
        scene.client.schedule_many(scene.topic, [JobSpec("bad", delay=0)], then=Continuation(scene.next, "all")).bundle
        or ""
    )
    async with scene.served(scene.worker(fault("bury", times=1 if fault is Repeating else 2))):
        await scene.numbers_are(bundle, 1, 0, 1, 0, 0)
    assert scene.followed == []
    assert [dead.payload for dead in scene.look(bundle).dead_jobs] == ["bad"]


@pytest.mark.parametrize("call", ["cancel", "cancel_due", "cancel_members"])
async def test_a_cancellation_without_an_answer_counts_once(scene: Scene, call: str) -> None:
    bundle = scene.schedule(1, delay=600)
    with scene.faulty(Repeating(call)) as client:
        if call == "cancel":
            [job] = scene.client.waiting(scene.topic).jobs
            client.cancel(scene.topic, job.id)
        elif call == "cancel_due":
            client.cancel_due(scene.topic, since=EPOCH)
        else:
            client.cancel_bundle(bundle)
    await scene.numbers_are(bundle, 1, 0, 0, 1, 0)
    async with scene.served(scene.worker()):
        if call == "cancel_members":
            assert scene.look(bundle).state is BundleState.CANCELLED
        else:
            await scene.ends_once(bundle, 1, 0, 0, 1, 0)


async def test_a_member_whose_worker_was_killed_counts_when_it_has_run_again(scene: Scene) -> None:
    bundle = scene.schedule(1)
    await die_at_work(Worker.connect(scene.url, group="g", settings=scene.settings), scene.topic)
    assert scene.look(bundle).left == 1
    async with scene.served(scene.worker()):
        await scene.ends_once(bundle, 1, 1, 0, 0, 0)


async def test_nobody_carries_at_once_if_the_worker_dies_with_its_report(scene: Scene) -> None:
    """The leader carries it, then."""
    bundle = scene.schedule()
    broken = Unreachable("tally_bundle", times=10**9)
    async with scene.served(scene.worker(broken)):
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)
    assert broken.struck


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
async def test_the_members_topic_is_resharded_meanwhile(scene: Scene, before: int, after: int) -> None:
    scene.client.set_shards(scene.topic, before)
    scene.client.set_shards(scene.next, before)
    bundle = scene.schedule(delay=0.5, close=False)
    scene.client.set_shards(scene.topic, after)
    scene.client.set_shards(scene.next, after)
    scene.schedule(delay=0.5, bundle=bundle)
    async with scene.served(scene.worker()):
        await scene.numbers_are(bundle, 2 * MEMBERS, 2 * MEMBERS, 0, 0, 0)
        scene.client.close_bundle(bundle)
        await scene.ends_once(bundle, 2 * MEMBERS, 2 * MEMBERS, 0, 0, 0)


async def test_a_producer_that_knows_a_former_number_of_shards_adds_members_to_the_new_ones(scene: Scene) -> None:
    bundle = scene.schedule(close=False)
    with Client.connect(scene.url, scene.settings) as other:
        other.set_shards(scene.topic, 4)
    scene.schedule(bundle=bundle)
    async with scene.served(scene.worker()):
        await scene.numbers_are(bundle, 2 * MEMBERS, 2 * MEMBERS, 0, 0, 0)
        scene.client.close_bundle(bundle)
        await scene.ends_once(bundle, 2 * MEMBERS, 2 * MEMBERS, 0, 0, 0)


async def test_a_former_shard_is_given_up_only_when_it_counts_for_no_bundle(
    scene: Scene, transport: AsyncTransport
) -> None:
    scene.client.set_shards(scene.topic, 2)
    bundle = scene.schedule(close=False)
    scene.client.set_shards(scene.topic, 1)
    async with scene.served(scene.worker()):
        await scene.numbers_are(bundle, MEMBERS, MEMBERS, 0, 0, 0)

    async def is_draining() -> bool:
        with redis.Redis.from_url(scene.url) as raw:  # finished jobs are kept for the first minute
            raw.delete(*(scene.keys.shard(scene.topic, n).ready for n in range(2)))
        await Draining(NodeParts(transport, scene.keys, ManualClock()), lambda: [scene.topic]).step()
        return bool(scene.client.topic(scene.topic).settings.draining)

    assert await is_draining()
    scene.client.close_bundle(bundle)
    assert not await is_draining()
    async with scene.served(scene.worker()):
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


async def test_a_topic_with_members_is_removed(scene: Scene) -> None:
    """They are cancelled; what follows is made if nothing else is left."""
    other = f"{scene.topic}-other"
    scene.client.set_shards(scene.topic, 2)
    bundle = scene.schedule(delay=600, close=False)
    scene.client.schedule_many(other, [JobSpec(1, delay=600)], bundle=bundle)
    scene.client.close_bundle(bundle)
    scene.client.remove_topic(scene.topic, force=True)
    await scene.numbers_are(bundle, MEMBERS + 1, 0, 0, MEMBERS, 1)
    [job] = scene.client.waiting(other).jobs
    scene.client.cancel(other, job.id)
    async with scene.served(scene.worker()):
        await scene.ends_once(bundle, MEMBERS + 1, 0, 0, MEMBERS + 1, 0)


async def test_the_followers_topic_is_removed(scene: Scene) -> None:
    """Nothing follows, and nothing is left."""
    bundle = scene.schedule(delay=0.2)
    scene.client.remove_topic(scene.next, force=True)
    assert scene.client.bundle(bundle) is None
    async with scene.served(scene.worker()):
        await until(lambda: len(scene.ran) == MEMBERS)
        await until(scene.nothing_is_left)
    assert scene.followed == []


@pytest.mark.parametrize("has_other", [True, False], ids=["another group has done them", "the only group"])
async def test_a_group_that_has_not_ended_the_members_is_removed(scene: Scene, has_other: bool) -> None:
    scene.client.make_group(scene.topic, "lazy")
    if has_other:
        scene.client.make_group(scene.topic, "g")
    bundle = scene.schedule()
    async with scene.served(*[scene.worker()] if has_other else []):
        if has_other:
            await until(lambda: len(scene.ran) == MEMBERS)
        await scene.numbers_are(bundle, MEMBERS, 0, 0, 0, MEMBERS)
        await asyncio.to_thread(scene.client.remove_group, scene.topic, "lazy")
        await scene.numbers_are(bundle, *((MEMBERS, MEMBERS, 0, 0, 0) if has_other else (MEMBERS, 0, 0, MEMBERS, 0)))
        if not has_other:
            async with running(scene.worker()):
                await scene.ends_once(bundle, MEMBERS, 0, 0, MEMBERS, 0)
        else:
            await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


async def test_a_group_is_removed_while_the_others_trim_what_it_has_held_up(scene: Scene) -> None:
    """The entries are gone when its ids are released."""
    scene.client.make_group(scene.topic, "lazy")
    scene.client.make_group(scene.topic, "g")
    bundle = scene.schedule()
    async with scene.served(scene.worker()):
        await until(lambda: len(scene.ran) == MEMBERS)
        with redis.Redis.from_url(scene.url) as raw:
            ready = scene.keys.shard(scene.topic, 0).ready
            await until(lambda: raw.xpending(ready, "g")["pending"] == 0)
            trimming = Meanwhile("release_ids", lambda: raw.xtrim(ready, maxlen=0))
            with scene.faulty(trimming) as client:
                await asyncio.to_thread(client.remove_group, scene.topic, "lazy")
        assert trimming.struck
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


def drive(scene: Scene, how: str) -> None:
    """End all members of one shard as programs do that know of no bundles."""
    keys = scene.keys.shard(scene.topic, 0)
    scene.plain.send(worker.make_group(keys, "g"))
    entries = scene.plain.send(worker.read([keys], "g", "w", 100, None))[0]
    if how == "acknowledged":
        scene.plain.send(worker.ack(keys, "g", "w", 0, 0, [(entry.entry_id, entry.member) for entry in entries]))
    elif how == "buried":
        for entry in entries:
            burial = worker.Burial("failed", "", "", 1, entry.due_ms)
            call = worker.bury(keys, "g", "w", entry, burial, TopicSettings())
            former = call.__class__(call.what, call.keys[:7], call.args[:15], call.read, key=call.key)
            scene.plain.send(former)
    else:
        with redis.Redis.from_url(scene.url) as raw:
            raw.xtrim(keys.ready, maxlen=0)
            raw.delete(keys.jobs)


@pytest.mark.parametrize(
    ("how", "numbers"),
    [
        ("acknowledged", (MEMBERS, MEMBERS, 0, 0, 0)),
        ("buried", (MEMBERS, 0, MEMBERS, 0, 0)),
        ("trimmed", (MEMBERS, MEMBERS, 0, 0, 0)),
    ],
)
async def test_members_that_ended_uncounted_are_found(scene: Scene, how: str, numbers: tuple[int, ...]) -> None:
    """By a worker of the release before, by a consumer in another language, or by a trim from outside."""
    bundle = scene.schedule()
    waiting = scene.schedule(3, delay=600)
    drive(scene, how)
    await scene.check()
    await scene.check()
    await scene.numbers_are(bundle, *numbers)
    await scene.numbers_are(waiting, *((3, 3, 0, 0, 0) if how == "trimmed" else (3, 0, 0, 0, 3)))
    async with scene.served(scene.worker()):
        if how == "acknowledged":
            await until(lambda: scene.followed == ["all"])
        elif how == "buried":
            scene.client.dead.purge(scene.topic, all=True)
            await scene.numbers_are(bundle, MEMBERS, 0, 0, MEMBERS, 0)
            await until(lambda: scene.followed == ["all"])


@pytest.mark.parametrize("is_retried", [False, True], ids=["at once", "after a retry"])
async def test_a_rerun_that_dies_while_its_member_lives_in_another_group_counts_nothing(
    scene: Scene, is_retried: bool
) -> None:
    keys = scene.keys.shard(scene.topic, 0)
    scene.client.configure(scene.topic, retention_ms=600_000)
    for group in ("g", "h"):
        scene.client.make_group(scene.topic, group)
    bundle = scene.schedule(1)
    async with scene.served():
        async with running(scene.worker()):
            await until(lambda: len(scene.ran) == 1)
        assert scene.client.rerun(scene.topic, group="g", since=EPOCH).jobs == 1
        taken: list[worker.Entry] = []

        def take() -> bool:
            taken[:] = scene.plain.send(worker.read([keys], "g", "w", 100, None))[0]
            return len(taken) == 1

        await until(take)
        if is_retried:
            scene.plain.send(worker.retry(keys, "g", "w", taken[0], 0, taken[0].record))
            await until(take)
        burial = worker.Burial("failed", "", "", 1, taken[0].due_ms)
        assert scene.plain.send(worker.bury(keys, "g", "w", taken[0], burial, TopicSettings()))
        await scene.numbers_are(bundle, 1, 0, 0, 0, 1)
        async with running(scene.worker(group="h")):
            await scene.ends_once(bundle, 1, 1, 0, 0, 0)
        assert scene.client.dead.purge(scene.topic, all=True) == 1
        await scene.numbers_are(bundle, 1, 1, 0, 0, 0)


async def test_the_server_is_restarted_meanwhile(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path, settings: Settings, topic: str
) -> None:
    server = private_server(tmp_path / "data")
    scene = Scene(server.url, settings, topic)
    bundle = scene.schedule(delay=1.0)
    server.stop()
    server = private_server(tmp_path / "data")
    scene = Scene(server.url, settings, topic)
    async with scene.served(scene.worker()):
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


async def test_the_report_waits_while_the_followers_have_no_room(scene: Scene) -> None:
    bundle = scene.schedule()
    keeper = scene.keys.shard(scene.next, 0)
    with redis.Redis.from_url(scene.url) as raw:
        pipe = raw.pipeline()
        for _ in range(10_000):
            pipe.xadd(keeper.outgoing, {"a": "b"})
        pipe.execute()
        assert scene.plain.send(bundles.tally(keeper, bundle, [])).is_full
        raw.delete(keeper.outgoing)
    async with scene.served(scene.worker()):
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


async def test_a_report_that_comes_twice_or_late_changes_nothing(scene: Scene) -> None:
    bundle = scene.schedule(1, delay=600)
    keeper, name = scene.keys.shard(scene.next, 0), f"{scene.topic}:0"
    [kept] = [scene.plain.send(bundles.kept(keeper, bundle))]
    assert kept is not None
    assert kept.reports == {name: None}
    for report in (f"{name} 1 0 1 0 7", f"{name} 1 1 0 0 6", f"{name} 1 0 1 0 7", "elsewhere:0 1 1 0 0 9"):
        answer = scene.plain.send(bundles.tally(keeper, bundle, [report]))
        assert (answer.has_ended, answer.outgoing) == (False, ())
    [made] = scene.plain.send(bundles.tally(keeper, bundle, [f"{name} 1 1 0 0 8"])).outgoing
    assert made.follower.topic == scene.next
    again = scene.plain.send(bundles.tally(keeper, bundle, [f"{name} 1 1 0 0 8"]))
    assert (again.has_ended, again.outgoing) == (True, ())
    assert scene.plain.send(outgoing.how_many(keeper)) == 1


async def test_a_shard_that_was_shut_or_never_noted_takes_no_member(scene: Scene) -> None:
    bundle = scene.schedule(0, close=False)
    shard = scene.keys.shard(scene.topic, 0)
    scene.plain.send(bundles.shut(shard, bundle))
    with pytest.raises(BundleClosed):
        scene.schedule(1, bundle=bundle)
    assert scene.plain.send(bundles.totals(shard, bundle)) == NONE._replace(
        version=scene.plain.send(bundles.totals(shard, bundle)).version  # type: ignore[union-attr]
    )
    assert scene.client.waiting(scene.topic).jobs == []


async def test_a_producer_that_enters_a_shard_while_the_bundle_is_closed_leaves_nothing(scene: Scene) -> None:
    bundle = scene.schedule(1, close=False)
    other = f"{scene.topic}-other"
    closing = Meanwhile("enter_bundle", lambda: scene.client.close_bundle(bundle))
    with scene.faulty(closing) as client, pytest.raises(BundleClosed):
        client.schedule_many(other, [JobSpec(1, delay=0)], bundle=bundle)
    assert scene.plain.send(bundles.totals(scene.keys.shard(other, 0), bundle)) is None
    async with scene.served(scene.worker()):
        await scene.ends_once(bundle, 1, 1, 0, 0, 0)


class Checking(Fault):
    """Looks whether a fact holds when a call is made."""

    def __init__(self, name: str, fact: Callable[[], bool], **when: int) -> None:
        super().__init__(name, **when)
        self._fact = fact
        self.held = False

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        self.held = self._fact()
        return [call]


async def test_a_bundle_notes_a_shard_only_when_that_takes_members(scene: Scene) -> None:
    """Even if the server does not know the script: else the bundle could be closed before the shard is open."""
    bundle = scene.schedule(1, close=False)
    other = f"{scene.topic}-other"
    shard = scene.keys.shard(other, 0)
    noting = Checking("open_bundle", lambda: scene.plain.send(bundles.totals(shard, bundle)) is not None, after=1)
    with scene.faulty(Forgetful("enter_bundle"), noting) as client:
        client.schedule_many(other, [JobSpec(1, delay=0)], bundle=bundle)
    assert (noting.struck, noting.held) == (1, True)


async def test_a_shard_that_was_opened_for_a_bundle_that_never_noted_it_forgets_it(scene: Scene) -> None:
    """Its producer has died meanwhile, for instance."""
    bundle = scene.schedule(1, close=False)
    other = f"{scene.topic}-other"
    shard = scene.keys.shard(other, 0)
    with scene.faulty(Unreachable("open_bundle", after=1)) as client, pytest.raises(Unavailable):
        client.schedule_many(other, [JobSpec(1, delay=0)], bundle=bundle)
    await scene.check(other)
    assert scene.plain.send(bundles.totals(shard, bundle)) == NONE, "somebody may still join it"
    scene.client.close_bundle(bundle)
    await scene.check(other)
    assert scene.plain.send(bundles.totals(shard, bundle)) is None
    async with scene.served(scene.worker()):
        await scene.ends_once(bundle, 1, 1, 0, 0, 0)


@pytest.mark.parametrize("call", ["shut_bundle", "tally_bundle", "forget_bundle"])
async def test_a_producer_dies_while_it_closes_a_bundle(scene: Scene, call: str) -> None:
    """Its members have ended before, so no worker has a report to carry."""
    bundle = scene.schedule(close=False)
    async with scene.served(scene.worker()):
        await scene.numbers_are(bundle, MEMBERS, MEMBERS, 0, 0, 0)
        with scene.faulty(Unreachable(call)) as client, pytest.raises(Unavailable):
            client.close_bundle(bundle)
        await scene.check()
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


@pytest.mark.parametrize("call", ["shut_bundle", "tally_bundle", "forget_bundle"])
async def test_a_bundle_is_closed_again_by_its_producer(scene: Scene, call: str) -> None:
    """No scheduler looks: the second call does all that the first did not."""
    bundle = scene.schedule(close=False)
    async with scene.served(scene.worker()):
        await scene.numbers_are(bundle, MEMBERS, MEMBERS, 0, 0, 0)
        with scene.faulty(Unreachable(call)) as client:
            with pytest.raises(Unavailable):
                client.close_bundle(bundle)
            client.close_bundle(bundle)
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


async def test_a_shard_forgets_a_bundle_only_when_a_replica_has_confirmed_its_report(scene: Scene) -> None:
    """Else a failover could undo that the report has arrived, and the bundle would never end."""
    bundle, shard = scene.schedule(close=False), scene.keys.shard(scene.topic, 0)
    settings = ClientSettings(durability="replicated", replicated_timeout_ms=50)
    async with scene.served(scene.worker()):
        await scene.numbers_are(bundle, MEMBERS, MEMBERS, 0, 0, 0)
        with Client(Transport(Address(scene.url)), scene.keys, settings) as client, pytest.raises(NotReplicated):
            client.close_bundle(bundle)
        for _ in range(2):
            found = scene.plain.send(bundles.totals(shard, bundle))
            assert found is not None
            assert found.done == MEMBERS
            await scene.check(settings=settings)
        await scene.check()
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


async def test_a_producer_that_does_not_know_whether_the_bundle_was_made_knows_its_id(scene: Scene) -> None:
    with scene.faulty(ReplyLost("open_bundle", times=2)) as client, pytest.raises(OutcomeUnknown) as caught:
        scene.schedule(1, client=client)
    assert scene.look(caught.value.bundle or "").state is BundleState.OPEN
    scene.client.cancel_bundle(caught.value.bundle or "")
    assert scene.nothing_is_left()


async def test_members_of_two_bundles_and_of_none_share_a_shard(scene: Scene) -> None:
    one, other = scene.schedule(), scene.schedule(2, delay=600)
    scene.client.schedule_many(scene.topic, [JobSpec(n, delay=0) for n in range(10)])
    async with scene.served(scene.worker()):
        await scene.numbers_are(one, MEMBERS, MEMBERS, 0, 0, 0)
        await until(lambda: scene.followed == ["all"])
        await scene.numbers_are(other, 2, 0, 0, 0, 2)


async def test_two_groups_one_of_them_without_knowledge_of_bundles(scene: Scene) -> None:
    """The worker of this release ends the job last, or the check finds it."""
    bundle = scene.schedule()
    scene.client.make_group(scene.topic, "new")
    drive(scene, "acknowledged")
    await scene.numbers_are(bundle, MEMBERS, 0, 0, 0, MEMBERS)
    async with scene.served(scene.worker(group="new")):
        await scene.ends_once(bundle, MEMBERS, MEMBERS, 0, 0, 0)


async def test_asyncio_and_blocking_close_at_once(scene: Scene, url: str, settings: Settings) -> None:
    bundle = scene.schedule(0, close=False)
    async with AsyncClient.connect(url, settings) as client:
        await asyncio.gather(*(client.close_bundle(bundle) for _ in range(5)))
        async with scene.served(scene.worker()):
            await scene.ends_once(bundle, 0, 0, 0, 0, 0)


@pytest.mark.long
async def test_the_primary_is_replaced_while_a_bundle_is_open(
    server_binary: Path, settings: Settings, topic: str
) -> None:
    """Members that a replica has confirmed are counted once, and the follower is made once."""
    settings = replace(settings, client=ClientSettings(durability="replicated", replicated_timeout_ms=2_000))
    with Watched(server_binary, down_after_ms=60_000) as watched:
        before, scene = watched.primary(), Scene(watched.url, settings, topic)
        async with scene.served(scene.worker()):
            bundle = await asyncio.to_thread(scene.schedule, close=False)
            await asyncio.to_thread(scene.schedule, delay=3.0, bundle=bundle)
            await asyncio.to_thread(watched.switch_over, before)
            await asyncio.to_thread(until_now, "another is the primary", lambda: watched.primary() is not before)
            scene.server = f"redis://127.0.0.1:{watched.primary().port}"
            await insist(lambda: scene.schedule(bundle=bundle))
            await insist(lambda: scene.client.close_bundle(bundle))
            await until(lambda: scene.followed == ["all"])
            found = scene.look(bundle)
            assert found.state is BundleState.ENDED
            assert (found.done, found.left, found.dead) == (found.members, 0, 0)
            assert found.members >= 3 * MEMBERS
        assert scene.followed == ["all"]
        scene.close()


async def insist(do: Callable[[], object]) -> None:
    """Repeat a call until it is done and confirmed."""

    async def is_done() -> bool:
        try:
            await asyncio.to_thread(do)
        except (ServerError, BundleClosed):
            return False
        return True

    await until(is_done)
