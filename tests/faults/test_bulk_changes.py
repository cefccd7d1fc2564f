"""Many jobs changed at once, while they fall due, replies get lost and callers die: each job runs, or was cancelled."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.faults.stages import FAULTS, HARMLESS
from tests.found import job_of
from tests.transports import BlockingWith, Fault, ReplyLost
from tests.waiting import PATIENCE
from wheelq import Client, JobSpec
from wheelq.embedded import EmbeddedServer
from wheelq.errors import OutcomeUnknown, ServerError
from wheelq.model.job import from_ms
from wheelq.protocol.calls import leader
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport

HOUR_S = 3_600


def ready_ids(client: Client, topic: str) -> Counter[str]:
    """How often each job was promoted."""
    found: Counter[str] = Counter()
    cursor = None
    while True:
        page = client.jobs(topic, state="ready", limit=500, cursor=cursor)
        found.update(job.id for job in page.jobs)
        cursor = page.cursor
        if cursor is None:
            return found


@contextmanager
def a_leader(url: str, topic: str) -> Iterator[threading.Event]:
    """Promotes what is due, 50 jobs at a time, as fast as it can; the event says that it has begun."""
    keys, transport = Keys().shard(topic, 0), Transport(Address(url))
    token = transport.send(leader.acquire(keys, "node", "run:1", 60_000, "1")).token
    ended, began = threading.Event(), threading.Event()

    def promote() -> None:
        while not ended.is_set():
            transport.send(leader.sweep(keys, token, 60_000, 50))
            began.set()

    thread = threading.Thread(target=promote)
    thread.start()
    try:
        yield began
    finally:
        ended.set()
        thread.join()
        transport.close()


@pytest.mark.parametrize("change", ["cancel", "move"])
def test_a_job_that_falls_due_meanwhile_is_either_promoted_or_changed(url: str, topic: str, change: str) -> None:
    """Jobs fall due in a row, and a leader promotes them while they are changed."""
    with Client.connect(url) as client:
        client.make_group(topic, "g")
        specs = [JobSpec(n, delay=0.3 + n / 10_000, key=f"j{n}") for n in range(5_000)]
        last_ms = max(receipt.due_ms for receipt in client.schedule_many(topic, specs))
        with a_leader(url, topic) as began:
            assert began.wait(PATIENCE)
            until = from_ms(last_ms + 1)
            if change == "cancel":
                done = client.cancel_due(topic, until=until)
            else:
                done = client.reschedule_due(topic, until=until, by=HOUR_S)
        left = client.count_due(topic)
        promoted = ready_ids(client, topic)
    assert left == (0 if change == "cancel" else done.jobs)
    assert set(promoted.values()) <= {1}
    assert len(promoted) + done.jobs == 5_000


@pytest.mark.parametrize("fault", [ReplyLost, *HARMLESS])
@pytest.mark.parametrize("change", ["cancel_due", "move_due"])
def test_a_repeated_call_changes_and_counts_each_job_once(
    url: str, topic: str, fault: type[Fault], change: str
) -> None:
    client = Client(BlockingWith(url, struck := fault(change, after=1)), topic_settings=TopicSettings(shards=2))
    receipts = client.schedule_many(topic, [JobSpec(n, delay=HOUR_S + n, key=f"j{n}") for n in range(2_500)])
    if change == "cancel_due":
        done = client.cancel_due(topic, since=receipts[0].due)
        assert client.count_due(topic) == 0
    else:
        done = client.reschedule_due(topic, since=receipts[0].due, by=60)
        info = job_of(client, topic, "j7")
        assert info.due_ms == receipts[7].due_ms + 60_000
    assert (struck.struck, done.jobs, done.is_done) == (1, 2_500, True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_change_that_was_broken_off_continues_by_its_name(url: str, topic: str, fault: type[Fault]) -> None:
    """Some faults break nothing off."""
    client = Client(BlockingWith(url, fault("move_due", after=2, times=2)))
    receipts = client.schedule_many(topic, [JobSpec(n, delay=HOUR_S + n, key=f"j{n}") for n in range(2_500)])
    done, errors = None, []
    while done is None:
        try:
            done = client.reschedule_due(topic, since=receipts[0].due, by=60, name="later")
        except ServerError as error:
            errors.append(error)
    assert len(errors) <= 2
    assert all(type(error) is OutcomeUnknown and "name='later'" in str(error) for error in errors[:1])
    assert (done.jobs, done.is_done) == (2_500, True)
    for n in (0, 499, 500, 2_499):
        info = job_of(client, topic, f"j{n}")
        assert info.due_ms == receipts[n].due_ms + 60_000


PROGRAM = """
import sys
from datetime import datetime
from wheelq import Client
url, topic, since = sys.argv[1:]
def told(progress):
    print(progress.jobs, flush=True)
    if progress.jobs >= 1000:
        sys.stdin.read()
Client.connect(url).reschedule_due(topic, since=datetime.fromisoformat(since), by=60, name="later", progress=told)
"""


def test_a_caller_that_is_killed_on_the_way_leaves_a_change_that_continues(
    private_server: Callable[..., EmbeddedServer], topic: str
) -> None:
    url = private_server().url
    with Client.connect(url) as client:
        receipts = client.schedule_many(topic, [JobSpec(n, delay=HOUR_S + n, key=f"j{n}") for n in range(2_500)])
        since = receipts[0].due
        command = [sys.executable, "-c", PROGRAM, url, topic, since.isoformat()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while int(process.stdout.readline()) < 1_000:
                pass
            process.kill()
        done = client.reschedule_due(topic, since=since, by=60, name="later")
        assert (done.jobs, done.is_done) == (2_500, True)
        for n in (0, 999, 1_000, 2_499):
            info = job_of(client, topic, f"j{n}")
            assert info.due_ms == receipts[n].due_ms + 60_000
