"""scheduler, worker and up as real processes: their work, their end, and what becomes of those that are killed."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running, is_alive, wheelq
from tests.waiting import eventually
from wheelq import Client, JobSpec
from wheelq.embedded import EmbeddedServer
from wheelq.settings import Settings

Start = Callable[..., Running]

MODULE = """
import os, time
from pathlib import Path
from wheelq import Worker

worker = Worker.connect()

@worker.handler("{topic}")
def handle(job):
    if job.payload == "slow":
        Path("slow").touch()
        time.sleep(60)
    with open("handled", "a") as file:
        print(job.id, file=file)

def make():
    return worker
"""


@pytest.fixture
def module(tmp_path: Path, topic: str) -> Path:
    """A directory with a module `jobs` whose worker handles `topic` and writes ids to the file `handled`."""
    (tmp_path / "jobs.py").write_text(MODULE.format(topic=topic))
    return tmp_path


def handled(directory: Path) -> list[str]:
    file = directory / "handled"
    return sorted(file.read_text().split()) if file.exists() else []


def schedule(url: str, topic: str, key: str, delay: float = 0.2, payload: object = None) -> None:
    with Client.connect(url) as client:
        client.schedule(topic, payload, delay=delay, key=key)


# scheduler and worker


def test_the_module_of_a_worker_obeys_the_settings_file_of_its_command(
    module: Path, start: Start, url: str, topic: str
) -> None:
    """Its module only says `Worker.connect()`: with another prefix, it would work elsewhere in silence."""
    prefix = f"of-{topic}"
    file = module / "wheelq.toml"
    file.write_text(f"url = '{url}'\nprefix = '{prefix}'\n[worker]\nconcurrency = 1\n")
    start(module, "scheduler", "--config", file)
    start(module, "worker", "jobs:worker", "--config", file)
    with Client.connect(settings=Settings(url=url, prefix=prefix)) as client:
        client.schedule(topic, key="configured", delay=0.1)
    assert eventually(lambda: handled(module) == ["configured"])


def test_a_job_goes_from_the_scheduler_to_the_worker_and_both_stop_in_good_order(
    url: str, topic: str, module: Path, start: Start
) -> None:
    scheduler = start(module, "scheduler", url=url)
    worker = start(module, "worker", "jobs:make", url=url)
    worker.wait_for("group default, topics " + topic)
    scheduler.wait_for("runs on ")
    schedule(url, topic, "k")
    assert eventually(lambda: handled(module) == ["k"])
    # The scheduler may have promoted jobs of others, too: the server is shared.
    for running, last in ((worker, r"1 job done, 0 runs failed"), (scheduler, r"it promoted [1-9]\d* jobs?")):
        running.signal(signal.SIGTERM)
        assert running.end() == 0
        assert re.search(f"{last}$", running.said.rstrip())


@pytest.mark.slow
def test_a_worker_says_that_due_jobs_wait_because_no_scheduler_runs(
    private_server: Callable[..., EmbeddedServer], topic: str, module: Path, start: Start
) -> None:
    url = private_server().url
    schedule(url, topic, "late", delay=0.1)
    worker = start(module, "worker", "jobs:worker", url=url)
    worker.wait_for(f"jobs of {topic} have been due for ")
    assert "no scheduler runs: start one (wheelq scheduler)" in worker.said
    start(module, "scheduler", url=url)
    assert eventually(lambda: handled(module) == ["late"])


def test_a_second_signal_ends_a_worker_at_once(url: str, topic: str, module: Path, start: Start) -> None:
    start(module, "scheduler", url=url)
    worker = start(module, "worker", "jobs:worker", url=url)
    schedule(url, topic, "k", payload="slow")
    assert eventually((module / "slow").exists)
    worker.signal(signal.SIGINT)
    worker.wait_for("a second signal stops at once")
    worker.signal(signal.SIGINT)
    assert worker.end() == -signal.SIGINT, "not by itself"


def test_a_scheduler_warns_of_a_server_that_evicts(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path, start: Start
) -> None:
    url = private_server(options={"maxmemory-policy": "allkeys-lru"}).url
    start(tmp_path, "scheduler", url=url).wait_for("WARNING wheelq: maxmemory-policy is allkeys-lru")


def test_a_killed_process_of_several_is_started_again(url: str, topic: str, module: Path, start: Start) -> None:
    workers = start(module, "worker", "jobs:worker", "-p", 2, url=url)
    workers.wait_for("group default, topics", times=2)
    first, second = workers.children("wheelq worker")
    os.kill(first, signal.SIGKILL)
    workers.wait_for("was killed by signal 9; it is started again")
    workers.wait_for("group default, topics", times=3)
    assert second in workers.children("wheelq worker")
    workers.signal(signal.SIGTERM)
    assert workers.end() == 0
    assert workers.said.count("has stopped; ") == 2


def test_processes_end_with_their_supervisor_even_when_it_is_killed(url: str, module: Path, start: Start) -> None:
    workers = start(module, "worker", "jobs:worker", "-p", 2, url=url)
    workers.wait_for("group default, topics", times=2)
    children = workers.children("wheelq worker")
    workers.signal(signal.SIGKILL)
    assert eventually(lambda: not any(map(is_alive, children)))


# MODULE:NAME


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (None, "jobs:worker", "there is no module 'jobs' in "),
        (None, "jobs.deep:worker", "there is no module 'jobs' in "),
        ("", "jobs", "MODULE:NAME: 'jobs' must look like shop.jobs:worker"),
        ("", "jobs.py:worker", "MODULE:NAME: 'jobs.py:worker' names a file, not a module: did you mean jobs:worker?"),
        ("", "./shop/jobs:worker", "did you mean shop.jobs:worker?"),
        ("", "jobs:worker", "module jobs has no 'worker'; it has no Worker at its top level"),
        ("worker = 7", "jobs:worker", "jobs:worker is a int, not a Worker"),
        ("def worker(): 1 / 0", "jobs:worker", "ZeroDivisionError: division by zero"),
        ("def worker(scope): ...", "jobs:worker", "jobs:worker is a function, not a Worker"),
        ("from fastapi import FastAPI\nworker = FastAPI()", "jobs:worker", "jobs:worker is a FastAPI, not a Worker"),
        ("import json\n\njson.loads('{')", "jobs:worker", 'jobs.py", line 3, in <module>'),
        ("import nosuchmodule", "jobs:worker", "ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("def (", "jobs:worker", "SyntaxError: "),
        ("raise SystemExit(3)", "jobs:worker", "SystemExit: 3"),
        ("from wheelq import Worker\nworker = Worker.connect()", "jobs:worker", "this worker has no handlers"),
        ("from wheelq import Worker\nworker = Worker.connect('x://')", "jobs:worker", "'x://' is not a server URL"),
        ("from wheelq import Worker\nwrker = Worker.connect()", "jobs:worker", "no 'worker'; it has wrker"),
    ],
)
def test_a_module_that_cannot_be_used_is_explained_without_a_traceback_of_ours(
    tmp_path: Path, start: Start, source: str | None, target: str, words: str
) -> None:
    if source is not None:
        (tmp_path / "jobs.py").write_text(source)
    worker = start(tmp_path, "worker", target, url="redis://127.0.0.1:1")
    assert worker.end() == 2
    assert words in worker.said
    assert "wheelq/cli" not in worker.said


def test_several_processes_of_a_module_that_cannot_be_used_are_not_started_again(tmp_path: Path, start: Start) -> None:
    workers = start(tmp_path, "worker", "jobs:worker", "-p", 2, url="redis://127.0.0.1:1")
    assert workers.end() == 2
    assert "started again" not in workers.said


def test_an_unknown_log_level_is_refused() -> None:
    answer = wheelq("scheduler", "--log-level", "loud", url="redis://127.0.0.1:1")
    assert (answer.code, answer.err) == (2, "log-level: 'loud' must be debug, info, warning or error\n")


def test_scheduler_and_worker_wait_for_a_server_that_is_away_and_can_be_stopped(module: Path, start: Start) -> None:
    started = [start(module, *words, url="redis://127.0.0.1:1") for words in (["scheduler"], ["worker", "jobs:worker"])]
    for running in started:
        running.wait_for("waiting until the server can be used: no connection to redis://127.0.0.1:1")
        running.signal(signal.SIGTERM)
        assert running.end() == 0
        assert "Traceback" not in running.said


def test_scheduler_and_worker_begin_when_their_server_is_there(
    module: Path, topic: str, start: Start, private_server: Callable[..., EmbeddedServer]
) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    started = [start(module, *words, url=url) for words in (["scheduler"], ["worker", "jobs:worker"])]
    for running in started:
        running.wait_for("waiting until the server can be used: no connection to ")
    private_server(port=port)
    schedule(url, topic, "k")
    assert eventually(lambda: handled(module) == ["k"])


def test_a_scheduler_with_a_wrong_password_ends_with_a_sentence(
    tmp_path: Path, start: Start, private_server: Callable[..., EmbeddedServer]
) -> None:
    url = private_server(password="right").url.replace("right", "wrong")
    scheduler = start(tmp_path, "scheduler", url=url)
    assert scheduler.end() == 2
    assert "check user and password" in scheduler.said
    assert "Traceback" not in scheduler.said


@pytest.mark.parametrize("command", ["scheduler", "worker jobs:worker", "worker jobs:worker -p 2", "server"])
def test_a_database_that_is_not_there_ends_every_part_with_a_sentence(
    url: str, module: Path, start: Start, command: str
) -> None:
    part = start(module, *command.split(), url=f"{url}?db=99")
    assert part.end() == 2
    assert "DB index is out of range; check the number at the end of the URL" in part.said
    assert "Traceback" not in part.said


def test_a_worker_whose_background_task_dies_ends_with_an_error(url: str, module: Path, start: Start) -> None:
    """So that whatever keeps it running starts it again, and the log says why."""
    with (module / "jobs.py").open("a") as file:
        file.write("async def die(lines):\n    raise KeyError('unexpected')\nworker._janitor.run = die\n")
    worker = start(module, "worker", "jobs:worker", url=url)
    assert worker.end() == 1
    assert "KeyError: 'unexpected'" in worker.said


# up


@pytest.fixture
def up(module: Path, start: Start) -> tuple[Running, str]:
    """A running `wheelq up jobs:worker`, and its URL."""
    port = free_port()
    running = start(module, "up", "jobs:worker", "--port", port)
    running.wait_for("group default, topics")
    running.wait_for("runs on ")
    return running, f"redis://127.0.0.1:{port}"


def children(running: Running) -> dict[str, int]:
    names = {"server": "-server", "scheduler": "wheelq scheduler", "worker": "wheelq worker"}
    return {part: pid for part, words in names.items() for pid in running.children(words)}


def test_up_runs_everything_and_stops_worker_scheduler_and_server_in_this_order(
    up: tuple[Running, str], module: Path, topic: str
) -> None:
    running, url = up
    assert f"export WHEELQ_URL={url}\n" in running.said
    schedule(url, topic, "k")
    assert eventually(lambda: handled(module) == ["k"])
    started = children(running)
    assert set(started) == {"server", "scheduler", "worker"}
    running.signal(signal.SIGINT)
    assert running.end() == 0
    assert not any(map(is_alive, started.values()))
    worker_end, scheduler_end = running.said.index("1 job done"), running.said.index("it promoted 1 job")
    assert worker_end < scheduler_end
    assert "until the server is back" not in running.said, "the server was there to the end"


def is_written(url: str) -> bool:
    """Whether a server that is killed now loses nothing: while its disk is busy, it writes up to two seconds late."""
    with redis.Redis.from_url(url) as server:
        return int(server.info("persistence")["aof_buffer_length"]) == 0


@pytest.mark.parametrize("part", ["server", "scheduler", "worker"])
def test_up_starts_again_what_is_killed_and_no_job_is_lost(
    up: tuple[Running, str], module: Path, topic: str, part: str
) -> None:
    running, url = up
    schedule(url, topic, "before", delay=1.0)
    assert eventually(lambda: is_written(url))
    os.kill(children(running)[part], signal.SIGKILL)
    running.wait_for(f"{part} was killed by signal 9; it is started again in 0.1 s")
    running.wait_for(f"{part} runs again")
    schedule(url, topic, "after")
    assert eventually(lambda: handled(module) == ["after", "before"]), running.said


def test_nothing_of_up_outlives_it_even_when_it_is_killed(up: tuple[Running, str]) -> None:
    running, _ = up
    started = children(running)
    running.signal(signal.SIGKILL)
    assert eventually(lambda: not any(map(is_alive, started.values())))


def test_up_without_a_module_prints_jobs_and_keeps_its_data_where_told(tmp_path: Path, start: Start) -> None:
    running = start(tmp_path, "up", "--port", free_port(), "--data", "elsewhere")
    running.wait_for(", prints every job that falls due")
    assert (tmp_path / "elsewhere").is_dir()


def test_printing_takes_no_job_from_a_worker_and_leaves_no_group_behind(
    private_server: Callable[..., EmbeddedServer], topic: str, module: Path, start: Start
) -> None:
    url = private_server().url
    printing = start(module, "worker", "wheelq.cli.up:printing_worker", url=url)
    start(module, "worker", "jobs:worker", url=url).wait_for(" runs, group default")
    start(module, "scheduler", url=url)
    with Client.connect(url) as client:
        client.schedule_many(topic, [JobSpec(n, delay=0.2, key=f"job-{n}") for n in range(10)])
        assert eventually(lambda: handled(module) == [f"job-{n}" for n in range(10)])
        for n in range(10):
            printing.wait_for(f"{topic}/job-{n} is due: {n}")
        assert {group.name for group in client.groups(topic)} == {"default", "wheelq-up"}
        printing.signal(signal.SIGINT)
        assert printing.end() == 0
        assert [group.name for group in client.groups(topic)] == ["default"]


def test_up_on_a_port_in_use_names_it(url: str, tmp_path: Path, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = start(tmp_path, "up", "--port", taken.getsockname()[1])
        assert running.end() == 2
    assert "cannot listen on 127.0.0.1:" in running.said
