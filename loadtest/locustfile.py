"""Locust's part of the load test: users that schedule jobs, and the lateness of those jobs as an entry of its own.

    users ──schedule──▶ server ──▶ scheduler ──▶ worker ──lateness──▶ list ──▶ listener (a greenlet)

Started by `python -m loadtest.locust_run`, which also starts server, scheduler and worker and fills the list. By hand:

    locust -f loadtest/locustfile.py --headless --host redis://localhost:6379 --shape spike --seconds 30
"""

import argparse
import os
import random
import time
from array import array
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import locust
from locust import User, constant_throughput, task
from locust.env import Environment

from loadtest.bare import connect
from loadtest.shapes import JOBS_PER_USER, SHAPES
from loadtest.stage import CLOCK_ERROR_MS, PAYLOAD_BYTES
from wheelq import Client, Settings, WheelqError

DELAY_S = (0.05, 2.0)  # jobs are due evenly between these
hooks: Any = locust.events  # its type says nothing of what listeners take
LAST_WORD_S = 10.0  # longest wait at the end for the lateness of jobs that are still to run


class Producer(User):
    """Schedules jobs one by one, at a constant rate. All share one blocking client, as the threads of a service do."""

    wait_time = constant_throughput(JOBS_PER_USER)
    wheelq: ClassVar[Client]
    topic: ClassVar[str]
    ids: ClassVar[list[str]] = []
    """Of the jobs that were scheduled for sure."""

    def on_start(self) -> None:
        """Users begin apart: all at the same instant, they would mostly wait for each other."""
        time.sleep(random.random() / JOBS_PER_USER)

    @task
    def schedule(self) -> None:
        payload, delay = os.urandom(PAYLOAD_BYTES), random.uniform(*DELAY_S)
        problem: WheelqError | None = None
        start = time.perf_counter()
        try:
            self.ids.append(self.wheelq.schedule(self.topic, payload, delay=delay).id)
        except WheelqError as error:
            problem = error
        took_ms = (time.perf_counter() - start) * 1000
        _report("schedule", self.topic, took_ms, problem)


class Listener:
    """Reads the lateness of jobs, in ms, from a list of packed floats, and reports each as a request of its own."""

    def __init__(self, url: str, key: str) -> None:
        self.heard = 0
        self._url = url
        self._key = key
        self._is_done = False
        self._thread = Thread(target=self._listen, daemon=True)  # Locust has patched threads: this is a greenlet
        self._thread.start()

    def stop(self, **_: Any) -> None:
        """Listen until every job has been heard of, or nothing more is to be expected."""
        give_up = time.monotonic() + LAST_WORD_S
        while self.heard < len(Producer.ids) and time.monotonic() < give_up:
            time.sleep(0.05)
        self._is_done = True
        self._thread.join()

    def _listen(self) -> None:
        with connect(self._url) as client:
            while not self._is_done:
                found: Any = client.blpop([self._key], timeout=1)
                for late_ms in array("d", found[1] if found else b""):
                    problem = AssertionError("started before it was due") if late_ms < -CLOCK_ERROR_MS else None
                    _report("lateness", "start of the handler", max(0.0, late_ms), problem)
                    self.heard += 1


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("wheelq")
    group.add_argument("--shape", default="steady", choices=sorted(SHAPES))
    group.add_argument("--rate", type=float, default=1_000.0, help="jobs a second")
    group.add_argument("--seconds", type=float, default=10.0)
    group.add_argument("--topic", default="locust")
    group.add_argument("--prefix", default="wheelq", help="first part of every key")
    group.add_argument("--ids", type=Path, metavar="FILE", help="write the ids of all scheduled jobs there")
    group.add_argument("--lateness-key", default="", help="list with the lateness of jobs; empty: it is not reported")


def _prepare(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    assert options is not None
    Producer.wheelq = Client.connect(environment.host, Settings(prefix=options.prefix))
    Producer.topic = options.topic
    shape = SHAPES[options.shape](options.rate, options.seconds)
    shape.runner = environment.runner
    environment.shape_class = shape
    if options.ids:
        hooks.quitting.add_listener(lambda **_: options.ids.write_text("\n".join(Producer.ids)))
    if options.lateness_key:
        hooks.test_stop.add_listener(Listener(environment.host or "", options.lateness_key).stop)


def _report(kind: str, name: str, took_ms: float, problem: Exception | None) -> None:
    hooks.request.fire(
        request_type=kind, name=name, response_time=took_ms, response_length=0, exception=problem, context={}
    )


hooks.init_command_line_parser.add_listener(_add_options)
hooks.init.add_listener(_prepare)
