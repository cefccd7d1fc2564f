"""What is told of one job over HTTP: all that the library knows of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from importlib.resources import files

import pytest
from pydantic import TypeAdapter

from tests.http.conftest import Http
from tests.waiting import CLOCK_ERROR_MS, PATIENCE
from wheelq import AsyncClient, Bury, GroupInfo, Job, JobInfo, Retry, Settings, Worker
from wheelq.errors import JobFailed
from wheelq.model.state import Progress
from wheelq.server.schemas.views import GroupView, JobView, ProgressView
from wheelq.settings import TopicSettings

JOBS = "/v1/topics/orders/jobs"
AS_BYTES = {"payload_base64", "result_base64"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Topics keep finished jobs for an hour."""
    return replace(settings, topic=TopicSettings(keep_done_ms=3_600_000))


@pytest.fixture
async def worker(url: str, settings: Settings) -> AsyncIterator[Worker]:
    """Runs what its handler is given: fails a payload of "bad", tells its progress, returns the rest."""
    worker = Worker.connect(url, group="billing", settings=settings)

    @worker.handler("orders", retry=Retry(max_attempts=2, delays=[0]))
    async def handle(job: Job) -> object:
        await job.progress(0.5, "half")
        if job.payload == "bad":
            raise Bury("no such order")
        if job.payload == "slow":
            await asyncio.sleep(60)
        return job.payload

    running = asyncio.create_task(worker.run())
    yield worker
    worker.stop(0)
    await running


@pytest.mark.parametrize(("view", "known"), [(JobView, JobInfo), (GroupView, GroupInfo), (ProgressView, Progress)])
def test_nothing_that_is_known_is_left_out(view: type, known: type) -> None:
    told = set(view.model_fields) - AS_BYTES  # type: ignore[attr-defined]
    assert told - {"due"} == {field.name for field in fields(known)}


@pytest.mark.parametrize("view", [JobView, GroupView])
def test_the_examples_of_the_document_have_the_form_of_answers(view: type) -> None:
    examples = json.loads((files("wheelq.server") / "schemas/examples.json").read_bytes())
    for example in examples[view.__name__]:
        TypeAdapter(view).validate_python(example)


async def test_a_job_that_waits_has_no_groups_yet(http: Http) -> None:
    await http.post(JOBS, json={"delay": 60, "id": "a", "payload": 1})
    found = (await http.get(f"{JOBS}/a")).json()
    JobView.model_validate(found)
    assert (found["state"], found["groups"], found["worker"], found["attempt"]) == ("waiting", {}, None, 1)


async def test_a_finished_job_tells_its_result_times_and_worker_while_it_is_kept(
    http: Http, aclient: AsyncClient, worker: Worker
) -> None:
    await http.post(JOBS, json={"delay": 0, "id": "a", "payload": {"total": 6}})
    await aclient.wait("orders", "a", timeout=PATIENCE)
    found = (await http.get(f"{JOBS}/a")).json()
    JobView.model_validate(found)
    assert (found["state"], found["result"], found["worker"]) == ("done", {"total": 6}, worker.name)
    assert found["due_ms"] <= found["promoted_ms"] <= found["started_ms"] <= found["finished_ms"] + CLOCK_ERROR_MS
    assert found["groups"]["billing"]["result"] == {"total": 6}


async def test_bytes_that_a_handler_returned_are_told_as_base64(
    http: Http, aclient: AsyncClient, worker: Worker
) -> None:
    await http.post(JOBS, json={"delay": 0, "id": "a", "payload_base64": "AP8="})
    await aclient.wait("orders", "a", timeout=PATIENCE)
    found = (await http.get(f"{JOBS}/a")).json()
    assert (found["result_base64"], "result" in found) == ("AP8=", False)


async def test_a_job_that_was_given_up_tells_why(http: Http, aclient: AsyncClient, worker: Worker) -> None:
    await http.post(JOBS, json={"delay": 0, "id": "a", "payload": "bad"})
    with pytest.raises(JobFailed):
        await aclient.wait("orders", "a", timeout=PATIENCE)
    found = (await http.get(f"{JOBS}/a")).json()
    JobView.model_validate(found)
    group = found["groups"]["billing"]
    assert (found["state"], group["reason"]) == ("dead", "given_up")
    assert "no such order" in found["last_error"]
    assert found["finished_ms"] == group["finished_ms"]


async def test_a_running_job_tells_its_progress(http: Http, worker: Worker) -> None:
    await http.post(JOBS, json={"delay": 0, "id": "a", "payload": "slow"})
    until = time.monotonic() + PATIENCE
    while not (found := (await http.get(f"{JOBS}/a")).json())["progress"]:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    JobView.model_validate(found)
    assert (found["state"], found["progress"]["fraction"], found["progress"]["text"]) == ("running", 0.5, "half")
    assert found["groups"]["billing"]["deliveries"] == 1
