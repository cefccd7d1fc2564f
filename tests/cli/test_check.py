"""check: the jobs that the code to be deployed could not read."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import wheelq
from wheelq import Client, Job, JobSpec, Worker
from wheelq.admin import payloads
from wheelq.protocol import codec
from wheelq.protocol.call import command
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

MOMENT = datetime(2031, 1, 1, tzinfo=UTC)
Target = Callable[[Worker], str]


@pytest.fixture
def client(url: str) -> Any:
    with Client.connect(url) as client:
        yield client


@pytest.fixture
def worker(url: str, topic: str) -> Worker:
    """Its handler takes `close(order_id, lines)`."""
    worker = Worker.connect(url, group="shop")

    @worker.task(topic)
    async def close(order_id: int, lines: list[int] = []) -> None: ...  # noqa: B006

    return worker


@pytest.fixture
def target(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> str:
    """MODULE:NAME of the worker."""
    module = types.ModuleType("checked_jobs")
    vars(module)["worker"] = worker
    monkeypatch.setitem(sys.modules, "checked_jobs", module)
    return "checked_jobs:worker"


def check(target: str, url: str, *options: object) -> tuple[int, Any]:
    answer = wheelq("check", target, *options, "--json", url=url)
    return answer.code, answer.json


def test_jobs_that_fit_are_counted(client: Client, topic: str, url: str, target: str) -> None:
    client.schedule_many(topic, [JobSpec({"order_id": n}, at=MOMENT) for n in range(3)])
    assert check(target, url) == (0, {"jobs": 3, "untyped": [], "misfits": []})
    assert wheelq("check", target, url=url).out == "all payloads fit: 3 jobs looked at\n"


def test_a_topic_without_jobs_fits(url: str, target: str) -> None:
    assert check(target, url) == (0, {"jobs": 0, "untyped": [], "misfits": []})


def test_jobs_that_do_not_fit_are_counted_by_field_and_some_are_named(
    client: Client, topic: str, url: str, target: str
) -> None:
    wrong = [{"order_id": 1, "reason": "late"}] * 3 + [{"order_id": 1, "lines": [0, n * "x"]} for n in range(1, 3)]
    specs = [JobSpec(payload, key=f"j{n}", at=MOMENT + timedelta(seconds=n)) for n, payload in enumerate(wrong)]
    client.schedule_many(topic, [*specs, JobSpec({"order_id": 1}, at=MOMENT)])
    code, found = check(target, url)
    assert (code, found["jobs"]) == (1, 6)
    unknown = "close has no such argument; it has: order_id, lines"
    assert found["misfits"] == [
        {"topic": topic, "field": "reason", "error": unknown, "jobs": 3, "ids": ["j0", "j1"]},
        {"topic": topic, "field": "lines[]", "error": "must be int, not 'x'", "jobs": 2, "ids": ["j3", "j4"]},
    ]
    answer = wheelq("check", target, url=url)
    assert answer.code == 1
    assert [line.split()[:3] for line in answer.out.splitlines()[1:]] == [
        [topic, "reason", "3"],
        [topic, "lines[]", "2"],
    ]


def test_waiting_ready_and_retrying_jobs_of_the_group_are_looked_at(
    client: Client, topic: str, url: str, target: str
) -> None:
    """Of ready jobs those that the group has not been given; of retries its own."""
    bad = {"order_id": "x"}
    client.schedule_many(topic, [JobSpec(bad, key=key, delay=0) for key in ("read", "retry", "ready")])
    client.schedule(topic, bad, key="waiting", at=MOMENT)
    transport, keys = Transport(Address(url)), Keys().shard(topic, 0)
    for group in ("shop", "mail"):
        transport.send(calls.make_group(keys, group))
        first, second = transport.send(calls.read([keys], group, "w1", 2, None))[0]
        for entry in (first, second) if group == "mail" else (second,):
            transport.send(
                calls.retry(keys, group, "w1", entry, 3_600_000, codec.again(entry.record, 0, "no", counts=True))
            )
    transport.close()
    code, found = check(target, url)
    assert (code, found["jobs"]) == (1, 3)
    assert [(one["field"], one["jobs"]) for one in found["misfits"]] == [("order_id", 3)]


def test_every_page_is_read_and_a_sample_ends_early(
    client: Client, topic: str, url: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample is of the first due."""
    monkeypatch.setattr(payloads, "PAGE", 3)
    specs = [JobSpec({"order_id": "x" if n == 9 else n}, at=MOMENT + timedelta(seconds=n // 4)) for n in range(10)]
    client.schedule_many(topic, specs)
    client.schedule_many(topic, [JobSpec({"order_id": n}, delay=0) for n in range(7)])
    code, found = check(target, url)
    assert (code, found["jobs"], found["misfits"][0]["jobs"]) == (1, 17, 1)
    assert check(target, url, "--sample", 5) == (0, {"jobs": 5, "untyped": [], "misfits": []})
    assert check(target, url, "--sample", 12)[1]["jobs"] == 12


def test_many_wrong_fields_are_told_apart_as_far_as_makes_sense(
    client: Client, topic: str, url: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "KINDS", 2)
    client.schedule_many(topic, [JobSpec({"order_id": 1, f"f{n}": 1}, key=f"j{n}", at=MOMENT) for n in range(4)])
    code, found = check(target, url)
    assert code == 1
    fields = sorted((one["field"], one["jobs"]) for one in found["misfits"])
    assert fields == [("f0", 1), ("f1", 1), ("other fields", 2)]


def test_a_record_that_cannot_be_read_is_named(client: Client, topic: str, url: str, target: str) -> None:
    client.schedule_many(topic, [JobSpec({"order_id": 1}, key=key, at=MOMENT) for key in ("good", "bad")])
    transport, keys = Transport(Address(url)), Keys().shard(topic, 0)
    transport.send(command("HSET", keys.jobs, "bad", b"\x09of a later version", read=int, key=keys.jobs))
    transport.close()
    code, found = check(target, url)
    assert (code, [(one["field"], one["ids"]) for one in found["misfits"]]) == (1, [("record", ["bad"])])


def test_a_handler_that_takes_any_payload_is_named(
    client: Client, topic: str, url: str, worker: Worker, target: str
) -> None:
    @worker.handler(f"{topic}-untyped")
    async def handle(job: Job) -> None: ...

    @worker.batch_handler(f"{topic}-typed")
    async def store(jobs: list[Job[int]]) -> None: ...

    client.schedule(f"{topic}-untyped", "anything", at=MOMENT)
    client.schedule(f"{topic}-typed", "no number", at=MOMENT)
    code, found = check(target, url)
    assert (code, found["jobs"], found["untyped"]) == (1, 1, [f"{topic}-untyped"])
    assert [one["topic"] for one in found["misfits"]] == [f"{topic}-typed"]


def test_a_worker_that_is_not_there_cannot_be_checked(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert wheelq("check", "no_such_module:worker", url=url).code == 2
