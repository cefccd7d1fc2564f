"""Locust's part of the load test: users that schedule jobs through the library, the HTTP API and the classic API.

    Library    schedules with the library; the worker runs the jobs        Http       the same by POST …/jobs
    Pull       posts jobs, leases what is due and acknowledges it          Classic    adds tasks and pulls those due

`python -m loadtest.locust_run` starts this and the servers. To run it by hand, against servers of your own:

    locust -f loadtest/locustfile.py --headless --host redis://localhost:6379 --shape spike --seconds 30 Library
    locust -f loadtest/locustfile.py --headless --http http://127.0.0.1:7380 --processes 2 Http Pull Classic
"""

import argparse
import base64
import os
import random
import time
from pathlib import Path
from typing import Any

import locust
from locust import FastHttpUser, constant_throughput, task
from locust.env import Environment
from locust.runners import WorkerRunner

from loadtest.bench.stage import PAYLOAD_BYTES
from loadtest.shapes import JOBS_PER_USER, SHAPES
from wheelq.testing.locust import WheelqUser, record_lateness

DELAY_S = (0.05, 2.0)  # jobs are due evenly between these
LEASE = {"count": 20, "lease": 30, "wait": 0}
GROUP = "pull"
hooks: Any = locust.events  # its type says nothing of what listeners take


class Ledger:
    """The jobs that the users of this process made and consumed, for the judge: a file for each process."""

    topic = "locust"
    made: tuple[list[str], list[str], list[str]] = ([], [], [])
    """Ids by topic: run by workers, pulled, pulled by the classic API."""
    taken: tuple[list[str], list[str], list[str]] = ([], [], [])

    @classmethod
    def write(cls, folder: Path) -> None:
        """A line for each id: made or taken, place of the topic, id."""
        lines = [
            f"{what} {place} {id}"
            for what, ids in (("made", cls.made), ("taken", cls.taken))
            for place, known in enumerate(ids)
            for id in known
        ]
        (folder / f"{os.getpid()}.ids").write_text("\n".join(lines))


WORKED, PULLED, CLASSIC = range(3)


def _delay() -> float:
    return random.uniform(*DELAY_S)


class Library(WheelqUser):
    """Schedules jobs one by one with the library."""

    wait_time = constant_throughput(JOBS_PER_USER)

    def on_start(self) -> None:
        """Begin at a random moment: users that begin together would mostly wait for each other."""
        time.sleep(random.random() / JOBS_PER_USER)

    @task
    def schedule(self) -> None:
        receipt = self.client.schedule(Ledger.topic, os.urandom(PAYLOAD_BYTES), delay=_delay())
        Ledger.made[WORKED].append(receipt.id)


class _OverHttp(FastHttpUser):
    abstract = True
    wait_time = constant_throughput(JOBS_PER_USER)
    on_start = Library.on_start

    def __init__(self, environment: Environment) -> None:
        assert environment.parsed_options is not None
        self.host = environment.parsed_options.http  # --host is the Redis server
        super().__init__(environment)

    def post(self, topic: str, place: int) -> None:
        """Schedule one job."""
        body = {"payload": base64.b64encode(os.urandom(PAYLOAD_BYTES)).decode(), "delay": _delay()}
        with self.client.post(f"/v1/topics/{topic}/jobs", json=body, name="jobs", catch_response=True) as answer:
            if answer.status_code == 201:
                Ledger.made[place].append(answer.json()["id"])
            else:
                answer.failure(f"{answer.status_code}: {answer.text}")


class Http(_OverHttp):
    """Schedules jobs over HTTP; the worker runs them."""

    @task
    def schedule(self) -> None:
        self.post(Ledger.topic, WORKED)


class Pull(_OverHttp):
    """Schedules jobs over HTTP, and consumes them over HTTP."""

    @task(20)
    def schedule(self) -> None:
        self.post(f"{Ledger.topic}-pull", PULLED)

    @task(4)
    def consume(self) -> None:
        path = f"/v1/topics/{Ledger.topic}-pull/groups/{GROUP}"
        with self.client.post(f"{path}/lease", json=LEASE, name="lease", catch_response=True) as answer:
            if answer.status_code == 404:  # nobody has posted a job yet
                answer.success()
            jobs = answer.json()["jobs"] if answer.status_code == 200 else []
        now_ms = time.time() * 1000  # all is on one machine
        for job in jobs:
            record_lateness(self.environment, f"{Ledger.topic}-pull", now_ms - job["due_ms"])
        if jobs:
            handles = [job["handle"] for job in jobs]
            done = self.client.post(f"{path}/ack", json={"handles": handles}, name="ack")
            if done.status_code == 200:
                Ledger.taken[PULLED].extend(job["id"] for job in jobs)


class Classic(_OverHttp):
    """Adds tasks by the classic API, and pulls those that are due."""

    @task
    def add(self) -> None:
        body = {"topic": f"{Ledger.topic}-classic", "timing_moment": int(time.time() + 1 + _delay()), "content": "{}"}
        with self.client.post("/delay/task/add", json=body, name="classic add", catch_response=True) as answer:
            reply = answer.json() if answer.status_code == 200 else {"dm_error": answer.status_code}
            if reply["dm_error"]:
                answer.failure(str(reply))
            else:
                Ledger.made[CLASSIC].append(str(reply["task_id"]))

    @task(2)
    def pull(self) -> None:
        body = {"topic": f"{Ledger.topic}-classic"}
        with self.client.post("/delay/task/pull", json=body, name="classic pull", catch_response=True) as answer:
            reply = answer.json() if answer.status_code == 200 else {"dm_error": answer.status_code}
            if reply["dm_error"] not in (0, 1201):  # 1201: no task is due
                answer.failure(str(reply))
            elif not reply["dm_error"]:
                Ledger.taken[CLASSIC].append(str(reply["task_id"]))


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the load test's users")
    group.add_argument("--shape", default="steady", choices=sorted(SHAPES))
    group.add_argument("--rate", type=float, default=1_000.0, help="calls a second")
    group.add_argument("--seconds", type=float, default=10.0)
    group.add_argument("--http", metavar="URL", help="of `wheelq server`, for Http, Pull and Classic")
    group.add_argument("--topic", default="locust")
    group.add_argument("--ids", metavar="FOLDER", help="write the ids of all jobs there, a file for each process")


def _prepare(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    assert options is not None
    Ledger.topic = options.topic
    if options.ids:
        hooks.quitting.add_listener(lambda **_: Ledger.write(Path(options.ids)))
    if not isinstance(environment.runner, WorkerRunner):
        shape = SHAPES[options.shape](options.rate, options.seconds)
        shape.runner = environment.runner
        environment.shape_class = shape


hooks.init_command_line_parser.add_listener(_add_options)
hooks.init.add_listener(_prepare)
