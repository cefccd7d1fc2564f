"""Replies about what is known of jobs get lost, requests arrive twice: all is kept once, and nobody waits in vain."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import redis

from tests.faults.stages import FAULTS, Bench, Look, Meanwhile
from tests.transports import AsyncWith, BlockingWith, Fault, Forgetful, Repeating, ReplyLost, Unreachable
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Client, JobState
from wheelq.errors import OutcomeUnknown
from wheelq.model.topic import Topic
from wheelq.protocol.calls import state, worker
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport

HOUR_MS = 3_600_000
KEEPS = TopicSettings(keep_done_ms=HOUR_MS, retention_ms=HOUR_MS)


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_state_of_a_finished_job_is_kept_once(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    at = Bench(url, topic, struck := fault("conclude"))
    at.shard.topic = Topic(keep_done_ms=HOUR_MS)
    for delivery in at.deliver("a", "b"):
        at.settler.done(delivery)
    await at.until_done(at.settler.flush)
    assert (Look(raw, topic).live(), Look(raw, topic).pending("g"), struck.struck) == (set(), 0, 1)
    keys = Keys().shard(topic, 0)
    kept = raw.hget(keys.done, "a")
    assert kept is not None
    assert kept.count(b"1:g") == 1
    info = at.plain.send(state.get(keys, "a"))
    assert info is not None
    assert info.state is JobState.DONE


def fired(url: str, topic: str, jobs: int) -> Transport:
    """Jobs that the group `g` has finished, and the topic keeps."""
    plain, keys = Transport(Address(url)), Keys().shard(topic, 0)
    with Client(BlockingWith(url), topic_settings=KEEPS) as client:
        for n in range(jobs):
            client.schedule(topic, n, delay=0)
    plain.send(worker.make_group(keys, "g"))
    entries = plain.send(worker.read([keys], "g", "w1", jobs, 1))[0]
    plain.send(worker.ack(keys, "g", "w1", 0, HOUR_MS, [(one.entry_id, one.member) for one in entries]))
    return plain


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("fault", [ReplyLost, Repeating, Forgetful])
def test_a_rerun_runs_each_entry_once(url: str, topic: str, raw: redis.Redis, fault: type[Fault], after: int) -> None:
    fired(url, topic, 250)
    client = Client(BlockingWith(url, struck := fault("rerun", after=after)))
    done = client.rerun(topic, group="g", since=datetime.now(UTC) - timedelta(minutes=5))
    assert (done.jobs, struck.struck) == (250, 1)
    assert len(Look(raw, topic).ready()) == 500


@pytest.mark.parametrize("fault", [ReplyLost, Unreachable])
def test_a_rerun_that_was_broken_off_continues_by_its_name(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    fired(url, topic, 250)
    since = datetime.now(UTC) - timedelta(minutes=5)
    client = Client(BlockingWith(url, fault("rerun", after=1, times=2)))
    with pytest.raises(OutcomeUnknown if fault is ReplyLost else Exception):
        client.rerun(topic, group="g", since=since, name="mend")
    assert Client(BlockingWith(url)).rerun(topic, group="g", since=since, name="mend").jobs == 250
    assert len(Look(raw, topic).ready()) == 500


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_waiting_client_gets_the_result_although_a_message_is_lost(
    url: str, topic: str, fault: type[Fault]
) -> None:
    """It takes a few seconds longer then."""
    plain, keys = Transport(Address(url)), Keys().shard(topic, 0)
    client = AsyncClient(AsyncWith(url, struck := fault("XREAD")), topic_settings=KEEPS)
    await client.schedule(topic, 1, delay=0, key="a")
    waiting = asyncio.create_task(client.wait(topic, "a", timeout=PATIENCE))
    plain.send(worker.make_group(keys, "g"))
    [entry] = plain.send(worker.read([keys], "g", "w1", 1, 1))[0]
    await until(lambda: struck.struck > 0)
    ended = state.Concluded(entry.entry_id, entry.member, 1, b"\x07")
    plain.send(state.conclude(keys, "g", "w1", 0, HOUR_MS, [ended]))
    assert await waiting == 7
    await client.close()


async def test_a_job_that_ends_before_its_client_listens_is_found_ended(
    url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No news tells of it: the client looks at the job after it has begun to listen, and not only after a while."""
    monkeypatch.setattr("wheelq.producer.jobs.LOOK_AGAIN", 3_600.0)
    plain, keys = Transport(Address(url)), Keys().shard(topic, 0)

    def end() -> None:
        plain.send(worker.make_group(keys, "g"))
        [entry] = plain.send(worker.read([keys], "g", "w1", 1, 1))[0]
        plain.send(state.conclude(keys, "g", "w1", 0, HOUR_MS, [state.Concluded(entry.entry_id, "a", 1, b"\x07")]))

    client = AsyncClient(AsyncWith(url, Meanwhile("listen", end)), topic_settings=KEEPS)
    await client.schedule(topic, 1, delay=0, key="a")
    assert await asyncio.wait_for(client.wait(topic, "a"), PATIENCE) == 7
    await client.close()
