"""wheelq wait and rerun, and what wheelq job shows of jobs that ran."""

from __future__ import annotations

from tests.cli.commands import wheelq
from wheelq import Client
from wheelq.protocol.calls import state, worker
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

HOUR_MS = 3_600_000


def run(url: str, topic: str, result: bytes) -> None:
    """What a worker does with one job of the topic."""
    keys, transport = Keys().shard(topic, 0), Transport(Address(url))
    transport.send(worker.make_group(keys, "g"))
    [entry] = transport.send(worker.read([keys], "g", "w1", 1, 1))[0]
    done = state.Concluded(entry.entry_id, entry.member, 1, result)
    transport.send(state.conclude(keys, "g", "w1", HOUR_MS, HOUR_MS, [done]))
    transport.close()


def test_a_finished_job_is_shown_waited_for_and_run_again(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        client.configure(topic, keep_done_ms=HOUR_MS, retention_ms=HOUR_MS)
        client.schedule(topic, 1, delay=0, key="a")
    assert wheelq("wait", topic, "a", "--timeout", "100ms", url=url).code == 1
    run(url, topic, b"\x07")
    shown = wheelq("job", topic, "a", url=url).out
    assert f"{topic}/a is done" in shown
    assert "worker: w1" in shown
    assert "result: 7" in shown
    told = wheelq("job", topic, "a", "--json", url=url).json
    assert (told["state"], told["result"], told["groups"]["g"]["worker"]) == ("done", 7, "w1")
    assert wheelq("wait", topic, "a", url=url) == (0, "7\n", "")
    again = wheelq("rerun", topic, "--group", "g", "--since", "1h", url=url)
    assert again == (0, "1 job runs again in g; 0 left out, because it has not finished them yet\n", "")
    assert wheelq("rerun", topic, "--group", "none", "--since", "1h", url=url).code == 2


def test_to_wait_for_a_job_that_is_not_known_says_so(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        client.configure(topic, keep_done_ms=60_000)
    answer = wheelq("wait", topic, "none", url=url)
    assert (answer.code, "is not known" in answer.err) == (3, True)
