"""32. Bundles: one job follows when many have ended: `schedule_many(…, then=Continuation(…))`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from tests.spec.conftest import Inbox, Run
from tests.waiting import until
from wheelq import (
    AsyncClient,
    Bundle,
    BundleState,
    Bury,
    Client,
    Continuation,
    Job,
    JobSpec,
    Retry,
    Settings,
    Worker,
)
from wheelq.errors import BundleClosed, BundleNotFound, DuplicateJob, InvalidInput, InvalidJob, Refused
from wheelq.protocol.calls.bundles import keeping
from wheelq.protocol.keys import Keys
from wheelq.testing import WheelqTest

PUBLISH = Continuation("publish", {"album": 7})
WHEN_ENDED = Continuation("publish", {"album": 7}, when="all_ended")
KEEP_MS = 3_600_000


@pytest.fixture
def kit(wheelq: WheelqTest) -> WheelqTest:
    """A test whose worker resizes pictures, refuses bad ones, and publishes albums."""
    wheelq.client.configure("publish", keep_done_ms=KEEP_MS)

    @wheelq.worker.handler("resize", retry=Retry(max_attempts=2, base=1))
    def resize(job: Job) -> None:
        if job.payload == "bad" and not job.replays:
            raise Bury("a bad picture")
        if job.payload == "late" and job.attempt == 1:
            raise ValueError("try again")

    wheelq.worker.handler("publish")(lambda job: None)
    wheelq.raise_errors = False
    return wheelq


def numbers(client: Client, bundle: str | None) -> tuple[int, ...]:
    """Members, and how many are done, dead, cancelled and left."""
    found = known(client.bundle(bundle or ""))
    return found.members, found.done, found.dead, found.cancelled, found.left


def known(found: Bundle | None) -> Bundle:
    assert found is not None, "there is no such bundle"
    return found


def specs(*payloads: Any, delay: float = 10, **given: Any) -> list[JobSpec]:
    return [JobSpec(payload, delay=delay, **given) for payload in payloads]


# the three-line case


def test_one_job_follows_when_all_have_ended(kit: WheelqTest) -> None:
    receipts = kit.client.schedule_many("resize", specs(*range(5)), then=PUBLISH)
    assert [receipt.bundle for receipt in receipts] == [receipts.bundle] * 5
    assert numbers(kit.client, receipts.bundle) == (5, 0, 0, 0, 5)
    kit.advance(9.999)
    kit.assert_not_ran("publish")
    kit.advance(0.001)
    kit.assert_ran("publish", payload={"album": 7}, times=1)
    assert numbers(kit.client, receipts.bundle) == (5, 5, 0, 0, 0)
    kit.advance(hours=2)
    kit.assert_ran("publish", times=1)


def test_it_follows_the_last_of_many_shards_and_topics(kit: WheelqTest) -> None:
    kit.worker.handler("crop")(lambda job: None)
    for topic in ("resize", "publish"):
        kit.client.configure(topic)
        kit.client.set_shards(topic, 4)
    bundle = kit.client.schedule_many("resize", specs(*range(50)), then=PUBLISH, close=False).bundle
    more = kit.client.schedule_many("crop", specs(*range(50), delay=20), bundle=bundle)
    assert more.bundle == bundle
    kit.client.close_bundle(bundle or "")
    kit.advance(19)
    kit.assert_not_ran("publish")
    assert numbers(kit.client, bundle) == (100, 50, 0, 0, 50)
    kit.advance(1)
    kit.assert_ran("publish", times=1)


def test_the_follower_is_a_job_like_any_other(kit: WheelqTest) -> None:
    then = Continuation("publish", 1, delay=60, key="album-7", headers={"a": "b"}, priority="high", attempts=3)
    kit.client.schedule_many("resize", specs(1), then=then)
    kit.advance(10)
    kit.assert_scheduled("publish", "album-7", payload=1, due_in=60, within=0)
    kit.advance(60)
    [run] = kit.assert_ran("publish", "album-7")
    assert (run.job.headers, run.job.max_attempts) == ({"a": "b"}, 3)


@pytest.mark.parametrize(("how", "payload"), [("keep", "old"), ("replace", "new")])
def test_a_live_job_that_has_its_key_is_kept_or_replaced(kit: WheelqTest, how: Any, payload: str) -> None:
    kit.client.schedule("publish", "old", delay=100, key="k")
    kit.client.schedule_many("resize", specs(1), then=Continuation("publish", "new", key="k", on_duplicate=how))
    kit.advance(200)
    kit.assert_ran("publish", "k", payload=payload, times=1)


def test_an_empty_bundle_ends_at_once(kit: WheelqTest) -> None:
    assert kit.client.schedule_many("resize", [], then=PUBLISH) == []
    kit.run_due()
    kit.assert_ran("publish", times=1)


# members


def test_members_are_added_until_the_bundle_is_closed(kit: WheelqTest) -> None:
    bundle = kit.client.schedule_many("resize", specs(1, delay=0), then=PUBLISH, close=False).bundle or ""
    for n in range(3):
        kit.client.schedule_many("resize", specs(n, delay=0), bundle=bundle)
        kit.advance(60)
    kit.assert_not_ran("publish")
    assert known(kit.client.bundle(bundle)).state is BundleState.OPEN
    kit.client.close_bundle(bundle)
    kit.client.close_bundle(bundle)
    with pytest.raises(BundleClosed):
        kit.client.schedule_many("resize", specs(4), bundle=bundle)
    kit.run_due()
    kit.assert_ran("publish", times=1)
    kit.client.close_bundle(bundle)
    with pytest.raises(BundleClosed):
        kit.client.schedule_many("resize", specs(4), bundle=bundle)
    kit.assert_nothing_waits()


def test_a_job_whose_id_was_kept_is_no_member(kit: WheelqTest) -> None:
    kit.client.schedule("resize", "old", delay=100, key="a")
    receipts = kit.client.schedule_many("resize", [*specs("new", key="a"), *specs("new", key="b")], then=PUBLISH)
    assert [(one.created, one.bundle) for one in receipts] == [(False, None), (True, receipts.bundle)]
    assert numbers(kit.client, receipts.bundle)[0] == 1
    kit.advance(10)
    kit.assert_ran("publish", times=1)


def test_a_member_that_is_replaced_is_cancelled_and_the_new_one_counts(kit: WheelqTest) -> None:
    first = kit.client.schedule_many("resize", specs(1, 2, key=None), then=PUBLISH)
    id = first[0].id
    second = kit.client.schedule_many("resize", specs(3, key=id, delay=20), then=WHEN_ENDED, on_duplicate="replace")
    assert second[0].replaced
    assert numbers(kit.client, first.bundle) == (2, 0, 0, 1, 1)
    assert numbers(kit.client, second.bundle) == (1, 0, 0, 0, 1)
    kit.client.schedule("resize", 4, key=id, delay=30, on_duplicate="replace")
    assert numbers(kit.client, second.bundle) == (1, 0, 0, 1, 0), "by a job of no bundle"
    kit.advance(10)
    kit.assert_ran("publish", times=2)


def test_with_raise_the_members_that_were_made_stay(kit: WheelqTest) -> None:
    kit.client.schedule("resize", "old", delay=100, key="a")
    with pytest.raises(DuplicateJob) as caught:
        kit.client.schedule_many("resize", [*specs(1, key="a"), *specs(2, key="b")], then=PUBLISH, on_duplicate="raise")
    bundle = caught.value.bundle or ""
    assert numbers(kit.client, bundle) == (1, 0, 0, 0, 1)
    kit.client.close_bundle(bundle)
    kit.advance(10)
    kit.assert_ran("publish", times=1)


def test_debounced_members_count_once_each(kit: WheelqTest) -> None:
    """Each call replaces the job of the one before."""
    debounce = {"key": "a", "max_wait": 60}
    bundle = ""
    for _ in range(3):
        receipts = kit.client.schedule_many(
            "resize", specs(1, **debounce), then=PUBLISH, on_duplicate="replace", close=False
        )
        if bundle:
            assert numbers(kit.client, bundle) == (1, 0, 0, 1, 0)
        bundle = receipts.bundle or ""
        kit.client.close_bundle(bundle)
    kit.advance(60)
    kit.assert_ran("publish", times=3)


def test_the_same_id_twice_in_a_call(kit: WheelqTest) -> None:
    kept = kit.client.schedule_many("resize", specs(1, 2, key="a"), then=PUBLISH)
    assert numbers(kit.client, kept.bundle) == (1, 0, 0, 0, 1)
    again = kit.client.schedule_many("resize", specs(1, 2, key="b"), then=PUBLISH, on_duplicate="replace")
    assert numbers(kit.client, again.bundle) == (2, 0, 0, 1, 1)
    kit.advance(10)
    kit.assert_ran("publish", times=2)


def test_an_error_names_the_bundle_which_is_open(kit: WheelqTest) -> None:
    with pytest.raises(InvalidJob) as caught:
        kit.client.schedule_many("resize", [JobSpec(1, delay=1), JobSpec(1, delay=-1)], then=PUBLISH)
    bundle = caught.value.bundle or ""
    assert known(kit.client.bundle(bundle)).state is BundleState.OPEN
    kit.client.schedule_many("resize", specs(2), bundle=bundle)
    kit.client.close_bundle(bundle)
    kit.advance(10)
    kit.assert_ran("publish", times=1)


@pytest.mark.parametrize(
    "then",
    [
        Continuation("publish", when="sometime"),  # type: ignore[arg-type]
        Continuation("no topic", 1),
        Continuation("publish", on_duplicate="raise"),
        Continuation("publish", delay=-1),
        Continuation("publish", object()),  # type: ignore[arg-type]
        "publish",
    ],
)
def test_a_follower_that_cannot_be_is_refused_at_the_call(kit: WheelqTest, then: Any) -> None:
    with pytest.raises(InvalidInput):
        kit.client.schedule_many("resize", specs(1), then=then)
    kit.assert_nothing_waits()


def test_a_bundle_that_is_not_known(kit: WheelqTest) -> None:
    for unknown in ("publish:no", "resize:0:1"):
        assert kit.client.bundle(unknown) is None
        for call in (kit.client.close_bundle, kit.client.cancel_bundle):
            with pytest.raises(BundleNotFound):
                call(unknown)
        with pytest.raises(BundleNotFound):
            kit.client.schedule_many("resize", specs(1), bundle=unknown)
    with pytest.raises(InvalidInput):
        kit.client.bundle("no bundle")
    with pytest.raises(InvalidInput, match="then"):
        kit.client.schedule_many("resize", specs(1), bundle="publish:no", then=PUBLISH)
    kit.assert_nothing_waits()


def test_an_ended_bundle_is_kept_as_long_as_finished_jobs_of_its_followers_topic(kit: WheelqTest) -> None:
    bundle = kit.client.schedule_many("resize", specs(1), then=PUBLISH).bundle or ""
    kit.advance(10)
    found = known(kit.client.bundle(bundle))
    assert (found.state, found.when, found.follower_topic) == (BundleState.ENDED, "all_done", "publish")
    assert known(kit.client.get("publish", found.follower_id)).payload == {"album": 7}
    kit.client.schedule("publish", "later", delay=KEEP_MS / 1000 + 1)
    kit.advance(KEEP_MS / 1000 + 1)
    assert kit.client.bundle(bundle) is None


# each path that ends a job


def test_a_member_that_is_retried_counts_when_it_ends(kit: WheelqTest) -> None:
    bundle = kit.client.schedule_many("resize", specs("late"), then=PUBLISH).bundle
    kit.advance(10)
    assert numbers(kit.client, bundle) == (1, 0, 0, 0, 1)
    kit.assert_not_ran("publish")
    kit.advance(10)
    kit.assert_ran("publish", times=1)


def test_a_dead_member_holds_up_all_done_until_it_is_replayed(kit: WheelqTest) -> None:
    bundle = kit.client.schedule_many("resize", specs("bad", 1), then=PUBLISH).bundle
    kit.advance(60)
    found = known(kit.client.bundle(bundle or ""))
    assert (found.state, found.done, found.dead, found.left) == (BundleState.CLOSED, 1, 1, 0)
    [dead] = found.dead_jobs
    assert (dead.topic, dead.payload, dead.reason) == ("resize", "bad", "given_up")
    kit.assert_not_ran("publish")
    kit.client.dead.replay_one("resize", dead.dead_id)
    assert numbers(kit.client, bundle) == (2, 1, 0, 0, 1)
    kit.run_due()
    assert numbers(kit.client, bundle) == (2, 2, 0, 0, 0)
    kit.assert_ran("publish", times=1)


def test_a_dead_member_does_not_hold_up_all_ended(kit: WheelqTest) -> None:
    bundle = kit.client.schedule_many("resize", specs("bad", 1), then=WHEN_ENDED).bundle
    kit.advance(10)
    kit.assert_ran("publish", times=1)
    assert numbers(kit.client, bundle) == (2, 1, 1, 0, 0)
    kit.client.dead.replay("resize", all=True)
    kit.advance(10)
    kit.assert_ran("publish", times=1)


def test_a_dead_member_that_is_purged_is_cancelled(kit: WheelqTest) -> None:
    bundle = kit.client.schedule_many("resize", specs("bad", 1), then=PUBLISH).bundle
    kit.advance(10)
    kit.client.dead.purge("resize", all=True)
    kit.run_due()
    assert numbers(kit.client, bundle) == (2, 1, 0, 1, 0)
    kit.assert_ran("publish", times=1)


def test_a_dead_member_that_its_topic_keeps_no_longer_is_cancelled(kit: WheelqTest) -> None:
    kit.client.configure("resize", dead_max=1)
    bundle = kit.client.schedule_many("resize", specs("bad"), then=PUBLISH).bundle
    kit.client.schedule("resize", "bad", delay=20)
    kit.advance(15)
    kit.assert_not_ran("publish")
    kit.advance(10)
    assert numbers(kit.client, bundle) == (1, 0, 0, 1, 0)
    kit.assert_ran("publish", times=1)


def cancel_one(client: Client, ids: list[str]) -> None:
    client.cancel("resize", ids[0])


def cancel_due(client: Client, ids: list[str]) -> None:
    client.cancel_due("resize", until=None, since=client_now() - timedelta(days=9_999))


def client_now() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)


@pytest.mark.parametrize("cancel", [cancel_one, cancel_due])
@pytest.mark.parametrize("then", [PUBLISH, WHEN_ENDED], ids=["all_done", "all_ended"])
def test_a_cancelled_member_has_ended(
    kit: WheelqTest, cancel: Callable[[Client, list[str]], None], then: Continuation
) -> None:
    receipts = kit.client.schedule_many("resize", specs(1), then=then)
    cancel(kit.client, [receipt.id for receipt in receipts])
    assert numbers(kit.client, receipts.bundle) == (1, 0, 0, 1, 0)
    kit.run_due()
    kit.assert_ran("publish", times=1)
    kit.assert_not_ran("resize")


def test_a_member_that_expires_or_is_skipped_is_cancelled(kit: WheelqTest) -> None:
    kit.client.configure("resize", misfire="skip", grace_ms=1_000)
    bundle = kit.client.schedule_many(
        "resize", [*specs(1, expires=5), *specs(2), *specs(3, delay=100)], then=PUBLISH
    ).bundle
    kit.client.pause("resize")
    kit.advance(60)
    kit.client.resume("resize")
    kit.advance(60)
    assert numbers(kit.client, bundle) == (3, 1, 0, 2, 0)
    kit.assert_ran("publish", times=1)


def test_run_now_and_reschedule_change_nothing_about_membership(kit: WheelqTest) -> None:
    a, b = (receipts := kit.client.schedule_many("resize", specs(1, 2), then=PUBLISH))
    kit.client.run_now("resize", a.id)
    kit.client.reschedule("resize", b.id, delay=100)
    kit.advance(50)
    assert numbers(kit.client, receipts.bundle) == (2, 1, 0, 0, 1)
    kit.advance(50)
    kit.assert_ran("publish", times=1)


def test_a_rerun_counts_nothing(kit: WheelqTest) -> None:
    kit.client.configure("resize", retention_ms=KEEP_MS)
    began = kit.now
    bundle = kit.client.schedule_many("resize", [*specs("bad"), *specs(1), *specs(2, delay=100)], then=PUBLISH).bundle
    kit.advance(10)
    assert numbers(kit.client, bundle) == (3, 1, 1, 0, 1)
    group = kit.worker.group
    for _ in range(2):
        kit.client.rerun("resize", group=group, since=began)
        kit.advance(1)
        assert numbers(kit.client, bundle) == (3, 1, 1, 0, 1)
    kit.client.dead.replay("resize", all=True)
    kit.advance(1)
    assert numbers(kit.client, bundle) == (3, 2, 0, 0, 1), "of three dead ones, two died in reruns"
    kit.advance(100)
    kit.assert_ran("publish", times=1)


# several groups


@pytest.fixture
def both(kit: WheelqTest) -> WheelqTest:
    """A second group runs each picture as well, and fails for some."""
    second = Worker.connect(group="second")

    @second.handler("resize", retry=Retry(max_attempts=2, base=60))
    def resize(job: Job) -> None:
        if job.payload in ("bad", "bad in the second") and not job.replays:
            raise Bury("a bad picture")
        if job.payload == "slow" and job.attempt == 1:
            raise ValueError("try again")

    kit.add(second)
    kit.run_due()
    return kit


def test_a_member_counts_once_when_the_last_group_has_ended_it(both: WheelqTest) -> None:
    bundle = both.client.schedule_many("resize", specs(1, "slow"), then=PUBLISH).bundle
    both.advance(10)
    assert numbers(both.client, bundle) == (2, 1, 0, 0, 1)
    both.assert_not_ran("publish")
    both.advance(120)
    assert numbers(both.client, bundle) == (2, 2, 0, 0, 0)
    both.assert_ran("publish", times=1)


def test_a_member_is_dead_if_it_is_dead_in_one_group(both: WheelqTest) -> None:
    bundle = both.client.schedule_many("resize", specs("bad in the second", 1), then=PUBLISH).bundle
    both.advance(10)
    assert numbers(both.client, bundle) == (2, 1, 1, 0, 0)
    both.client.dead.replay("resize", all=True)
    both.run_due()
    assert numbers(both.client, bundle) == (2, 2, 0, 0, 0)
    both.assert_ran("publish", times=1)


@pytest.mark.parametrize("last", ["replay", "purge"])
def test_a_member_that_is_dead_in_two_groups_is_dead_until_both_are_dealt_with(both: WheelqTest, last: str) -> None:
    bundle = both.client.schedule_many("resize", specs("bad"), then=PUBLISH).bundle
    both.advance(10)
    assert numbers(both.client, bundle) == (1, 0, 1, 0, 0)
    both.client.dead.replay("resize", group="second")
    assert numbers(both.client, bundle) == (1, 0, 0, 0, 1)
    both.run_due()
    assert numbers(both.client, bundle) == (1, 0, 1, 0, 0)
    both.assert_not_ran("publish")
    if last == "replay":
        both.client.dead.replay("resize", all=True)
    else:
        both.client.dead.purge("resize", all=True)
    both.run_due()
    assert numbers(both.client, bundle) == ((1, 1, 0, 0, 0) if last == "replay" else (1, 0, 0, 1, 0))
    both.assert_ran("publish", times=1)


# cancelling a bundle


def test_a_cancelled_bundle_is_not_followed_and_its_waiting_members_never_run(kit: WheelqTest) -> None:
    bundle = kit.client.schedule_many("resize", [*specs(1), *specs(*range(300), delay=20)], then=PUBLISH).bundle or ""
    kit.client.schedule("resize", "another", delay=20)
    kit.advance(10)
    assert kit.client.cancel_bundle(bundle) == 300
    assert kit.client.cancel_bundle(bundle) == 0
    kit.advance(60)
    kit.assert_ran("resize", times=2)
    kit.assert_not_ran("publish")
    assert known(kit.client.bundle(bundle)).state is BundleState.CANCELLED
    with pytest.raises(BundleClosed):
        kit.client.schedule_many("resize", specs(4), bundle=bundle)


def test_a_bundle_with_a_dead_member_ends_with_cancel(kit: WheelqTest) -> None:
    bundle = kit.client.schedule_many("resize", specs("bad"), then=PUBLISH).bundle or ""
    kit.advance(10)
    assert kit.client.cancel_bundle(bundle) == 0
    kit.client.dead.replay("resize", all=True)
    kit.advance(10)
    kit.assert_not_ran("publish")


# on a real server


async def test_a_bundle_on_asyncio(
    aclient: AsyncClient, run: Run, topic: str, make_worker: Callable[..., Worker], inbox: Inbox, scheduler: object
) -> None:
    worker = make_worker()
    published = Inbox()

    @worker.handler(f"{topic}-next")
    async def publish(job: Job) -> None:
        published.put(job)

    run(worker)
    await aclient.configure(f"{topic}-next", keep_done_ms=60_000)
    await aclient.configure(topic)
    await aclient.set_shards(topic, 4)
    jobs = [JobSpec(n, delay=0) for n in range(100)]
    receipts = await aclient.schedule_many(topic, jobs, then=Continuation(f"{topic}-next", "all"))
    [job] = await published.wait_for(1)
    assert (job.payload, len(inbox.jobs)) == ("all", 100)

    async def is_done() -> bool:
        found = known(await aclient.bundle(receipts.bundle or ""))
        return (found.members, found.done, found.left) == (100, 100, 0)

    await until(is_done)


async def test_members_are_not_kept_in_an_outbox(url: str, settings: Settings, topic: str, tmp_path: Any) -> None:
    async with AsyncClient.connect(url, settings, outbox=tmp_path / "outbox") as client:
        receipts = await client.schedule_many(topic, specs(1), then=PUBLISH)
        assert known(await client.bundle(receipts.bundle or "")).left == 1


async def test_nothing_stays_of_members_that_were_dead_when_their_bundle_had_ended(
    aclient: AsyncClient, worker: Worker, scheduler: object, run: Run, url: str, settings: Settings, topic: str
) -> None:
    """A shard that kept them counted as used, and was never given up after a change of the number of shards."""

    @worker.handler(topic)
    async def refuse(job: Job) -> None:
        raise Bury("never")

    run(worker)
    bundle = (await aclient.schedule_many(topic, specs(1, 2), then=WHEN_ENDED)).bundle or ""
    shard = Keys(settings.prefix).shard(topic, 0)
    with Redis.from_url(url) as raw:
        await until(lambda: raw.hlen(shard.bundles) == 2)  # its two members: the bundle itself is over
        assert known(await aclient.bundle(bundle)).dead == 2
        assert await aclient.dead.purge(topic, all=True) == 2
        assert raw.hgetall(shard.bundles) == {}


async def test_a_topic_that_was_removed_and_is_used_again_has_members_left(
    url: str, settings: Settings, scheduler: object, run: Run, make_worker: Callable[..., Worker], topic: str
) -> None:
    """Its report from its end was taken for one of its new members, and the follower was made before they had ended."""
    soon = replace(settings, client=replace(settings.client, topics_ttl_ms=100))
    async with AsyncClient.connect(url, soon) as client:
        await client.configure("publish", keep_done_ms=KEEP_MS)
        first = await client.schedule_many(topic, specs(1, delay=60), then=PUBLISH, close=False)
        bundle = first.bundle or ""
        await client.remove_topic(topic, force=True)
        receipts = await client.schedule_many(topic, specs(2, 3, delay=60), bundle=bundle)
        await client.close_bundle(bundle)
        found = known(await client.bundle(bundle))
        assert (found.state, found.members, found.cancelled, found.left) == (BundleState.CLOSED, 3, 1, 2)
        for one in receipts:
            await client.cancel(topic, one.id)

        async def has_ended() -> bool:
            ended = known(await client.bundle(bundle))
            return (ended.state, ended.members, ended.cancelled) == (BundleState.ENDED, 3, 3)

        await until(has_ended)


async def test_a_topic_whose_bundle_cannot_end_is_removed_later(url: str, settings: Settings, topic: str) -> None:
    """The report of its members found no room for the follower, and was lost: the bundle would never have ended."""
    soon = replace(settings, client=replace(settings.client, topics_ttl_ms=100))
    async with AsyncClient.connect(url, soon) as client:
        bundle = (await client.schedule_many(topic, specs(1, 2, delay=60), then=PUBLISH)).bundle or ""
        outgoing = keeping(Keys(settings.prefix), bundle).outgoing
        with Redis.from_url(url) as raw:
            with raw.pipeline() as many:
                for _ in range(10_000):
                    many.xadd(outgoing, {"topic": "x"})
                many.execute()
            with pytest.raises(Refused, match=f"follower of bundle {bundle}: remove the topic again"):
                await client.remove_topic(topic, force=True)
            assert known(await client.bundle(bundle)).state is BundleState.CLOSED
            raw.delete(outgoing)
            await client.remove_topic(topic, force=True)
            assert raw.xlen(outgoing) == 1
        assert known(await client.bundle(bundle)).state is BundleState.ENDED
