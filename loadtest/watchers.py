"""The cost of watching: open dashboards, each a stream of events, and a scrape of `/metrics` every second.

    python -m loadtest.watchers [--topics 200] [--streams 5] [--seconds 30]    processor time of the server, its calls
    python -m loadtest.watchers --lateness [--rounds 3]                       1,300 jobs/s, with and without watchers
    python -m loadtest.watchers --scrape [--topics 3000]                      how long one scrape takes

    streams ──┐
    streams ──┼─▶ one server process ──▶ Redis ◀── scheduler, worker         at what cost, and are jobs later?
    scrapes ──┘

Processor time is that of the process `wheelq server`. MONITOR counts the calls that clients send; calls inside scripts
do not count. Lateness is measured in turns with and without watchers, because a busy machine makes both later.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import Self
from urllib.request import urlopen

from loadtest.bench.bare import connect
from loadtest.bench.figures import percentile
from loadtest.bench.stage import QUICK, Play, Stage, due_apart
from loadtest.command import parser, tell_load
from loadtest.servers.nodes import free_port
from loadtest.servers.processes import Process, running
from wheelq import Client, JobSpec, Settings
from wheelq.embedded import EmbeddedServer

MOST_OF_A_CORE, MOST_CALLS, MOST_SCRAPE_S = 0.05, 50.0, 0.5
LOOK_S = 5.0
"""There is at most one look at Redis in this many seconds, however many watchers there are."""
ANSWER_S, SETTLE_S, SCRAPE_S = 60.0, 6.0, 1.0
RATE, RATE_S, AHEAD_MS = 1_300, 8, 4_000


class Server:
    """A process `wheelq server`."""

    def __init__(self, process: Process, port: int) -> None:
        self._process = process
        self.port = port

    @classmethod
    @contextmanager
    def on(cls, url: str, prefix: str) -> Iterator[Self]:
        """Runs it during the block, with default settings."""
        port = free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ_")}
        environment |= {"WHEELQ_URL": url, "WHEELQ_PREFIX": prefix}
        command = [sys.executable, "-m", "wheelq", "server", "--port", str(port)]
        with running(command, port, environment, subprocess.DEVNULL) as process:
            yield cls(process, port)

    def get(self, path: str) -> bytes:
        """Returns the body of an answer."""
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=ANSWER_S) as answer:
            body: bytes = answer.read()
            return body

    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        with open(f"/proc/{self._process.pid}/stat") as stat:
            user, system = stat.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Watchers:
    """Streams and a scraper, each a thread."""

    def __init__(self, server: Server, streams: int) -> None:
        self.looks = [0] * streams
        """How many looks each stream has received."""
        self.scrapes: list[float] = []
        """How long each scrape took, in seconds."""
        self._server = server
        self._has_ended = threading.Event()
        self._connections = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(streams)]
        self._threads = [threading.Thread(target=self._listen, args=(n,)) for n in range(streams)]
        self._threads.append(threading.Thread(target=self._scrape))
        for thread in self._threads:
            thread.start()

    def _listen(self, number: int) -> None:
        connection = self._connections[number]
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/events")
            answer = connection.getresponse()
            while line := answer.readline():
                self.looks[number] += line.strip() == b"event: look"

    def _scrape(self) -> None:
        while not self._has_ended.wait(SCRAPE_S):
            began = time.monotonic()
            self._server.get("/metrics")
            self.scrapes.append(time.monotonic() - began)

    def close(self) -> None:
        """Stop watching."""
        self._has_ended.set()
        for connection in self._connections:
            if connection.sock is not None:
                connection.sock.shutdown(2)
        for thread in self._threads:
            thread.join()


@dataclass(frozen=True, slots=True)
class Watched:
    """The cost of watchers in some seconds."""

    topics: int
    streams: int
    seconds: float
    of_a_core: float
    """Processor time of the server process, as a share of the time."""
    looks: int
    """The most looks that one stream has received."""
    calls: float
    """Commands a second that the server process sent to Redis."""

    def __str__(self) -> str:
        return (
            f"{self.streams} streams and a scrape a second, {self.topics} topics, {self.seconds:.0f} s: "
            f"{self.of_a_core:.1%} of a core, {self.looks} looks, {self.calls:.1f} calls a second"
        )

    @property
    def missed(self) -> list[str]:
        """The figures that miss their target."""
        judged = {
            "processor time": self.of_a_core < MOST_OF_A_CORE,
            "looks": 0 < self.looks <= self.seconds / LOOK_S + 1,
            "calls": self.calls < MOST_CALLS,
        }
        return [name for name, is_met in judged.items() if not is_met]


def watch(topics: int, streams: int, seconds: float) -> Watched:
    """Watch an otherwise idle wheelq with this many topics."""
    with EmbeddedServer(appendonly=False) as redis, ExitStack() as stack:
        _fill(redis.url, Settings(), topics)
        server = stack.enter_context(Server.on(redis.url, Settings().prefix))
        watchers = stack.enter_context(closing(Watchers(server, streams)))
        time.sleep(SETTLE_S)  # data that is read only once has been read by then
        with _commands(redis.url) as sent:
            looks, used_s, began = list(watchers.looks), server.cpu_s(), time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            used_s = server.cpu_s() - used_s
            most = max(now - before for now, before in zip(watchers.looks, looks, strict=True))
        return Watched(topics, streams, took, used_s / took, most, sent[0] / took)


def compare_lateness(rounds: int, streams: int, topics: int) -> list[str]:
    """Run jobs at 1,300/s in turns with and without watchers; returns the figures that missed their targets."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with EmbeddedServer(appendonly=False) as redis, Stage.on(redis.url, QUICK, "uvloop") as stage, ExitStack() as stack:
        _fill(redis.url, stage.settings, topics)
        server = stack.enter_context(Server.on(redis.url, stage.settings.prefix))
        play = stack.enter_context(Play(stage, "watched"))
        play.warm_up()
        for number in range(2 * rounds):
            is_watched = number % 2 == 1
            with closing(Watchers(server, streams if is_watched else 0)) if is_watched else ExitStack():
                p50_ms, p99_ms = _one_run(play)
            found[is_watched].append((p50_ms, p99_ms))
            print(f"{'with' if is_watched else 'without':8} p50 {p50_ms:5.1f} ms, p99 {p99_ms:6.1f} ms", flush=True)
        wrong = {what: jobs for what, jobs in play.wrong(play.finish()).items() if jobs}
    missed = [f"{jobs} jobs {what}" for what, jobs in wrong.items()]
    for place, name in enumerate(("p50", "p99")):
        most = max(one[place] for one in found[False])
        if median(one[place] for one in found[True]) > most:
            missed.append(f"{name} (above every run without watchers)")
    return missed


def _one_run(play: Play) -> tuple[float, float]:
    started, count = play.worker.started(), RATE * RATE_S
    play.schedule(due_apart(play.now_ms() + AHEAD_MS, count, 1000 / RATE))
    play.wait()
    lateness_ms = sorted(play.worker.lateness_since(started))
    return percentile(lateness_ms, 0.5), percentile(lateness_ms, 0.99)


def time_scrapes(topics: int) -> list[str]:
    """Time scrapes of many topics, each after the previous data has expired; returns the figures that missed."""
    with EmbeddedServer(appendonly=False) as redis:
        _fill(redis.url, Settings(), topics)
        with Server.on(redis.url, Settings().prefix) as server:
            took, used = [], []
            for _ in range(5):
                began, used_s = time.monotonic(), server.cpu_s()
                size = len(server.get("/metrics"))
                took.append(time.monotonic() - began)
                used.append(server.cpu_s() - used_s)
                time.sleep(LOOK_S)
    times = " ".join(f"{seconds:.2f}" for seconds in took)
    print(f"{topics:,} topics, {size:,} bytes: {times} s, of which {median(used):.2f} s processor time of the server")
    return [] if median(took) < MOST_SCRAPE_S else ["wall time of a scrape"]


def _fill(url: str, settings: Settings, topics: int) -> None:
    """Schedule jobs that are due in an hour, so that nothing runs meanwhile, and create a group for each topic."""
    with Client.connect(url, settings) as client:
        for number in range(topics):
            client.schedule_many(f"topic-{number:04}", [JobSpec(n, delay=3_600 + n) for n in range(5)])
            client.make_group(f"topic-{number:04}", "workers")


@contextmanager
def _commands(url: str) -> Iterator[list[int]]:
    """Counts the commands that clients send during the block, in a list of one number."""
    sent, has_ended = [0], threading.Event()
    with connect(url) as client, client.monitor() as monitor:

        def count() -> None:
            while not has_ended.is_set():
                sent[0] += monitor.next_command()["client_type"] != "lua"

        listening = threading.Thread(target=count, daemon=True)
        listening.start()
        yield sent
        has_ended.set()
        client.ping()  # MONITOR sees this command, so the thread ends
        listening.join()


def main() -> int:
    """Read the options, measure, and judge."""
    arguments = parser("watchers", __doc__)
    arguments.add_argument("--lateness", action="store_true", help="compare lateness with and without watchers")
    arguments.add_argument("--scrape", action="store_true", help="time scrapes of many topics")
    arguments.add_argument("--topics", type=int)
    arguments.add_argument("--streams", type=int, default=5)
    arguments.add_argument("--seconds", type=int, default=30)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    tell_load()
    if options.lateness:
        missed = compare_lateness(options.rounds, options.streams, options.topics or 200)
    elif options.scrape:
        missed = time_scrapes(options.topics or 3_000)
    else:
        found: Watched = watch(options.topics or 200, options.streams, options.seconds)
        print(found)
        missed = found.missed
    print("missed: " + ", ".join(missed) if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
