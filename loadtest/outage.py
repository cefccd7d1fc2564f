"""Redis is away for a while under an HTTP service that stays in use: every job answered with 2xx must run.

    python -m loadtest.outage      # 30 s, 200 requests/s; Redis frozen and killed; with an outbox and without
    python -m loadtest.outage --seconds 5 --how kill --outbox

Each request makes one job with an id of its own, due within a second. A request whose outcome is unknown (504, or no
answer) is repeated with the same id until the outcome is known. Its job may run twice, because the id is free once the
first job has run. A worker runs the jobs; the topic keeps finished jobs (`keep_done_ms`), so that a job is recognised
if an outbox delivers it again after it ran. The service waits a second for a reply (`reply_timeout_ms`), so that it
answers fast while Redis is frozen.

At the end the streams are read and judged: every job answered with 2xx was promoted exactly once, and ran; no job that
was refused (503) did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from loadtest.bench.figures import Figure, Outcome, Target, percentile
from loadtest.command import add_report, parser, report
from loadtest.http import ask_once
from loadtest.judge import FaultKind, Promise, Promotion, Verdict, judge
from loadtest.servers.measured import binary_of
from loadtest.servers.nodes import free_port
from loadtest.servers.processes import running
from loadtest.torture.fleet import Fleet, read_promotions
from wheelq import Client, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.producer.outbox.store import Outbox
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys
from wheelq.settings import OutboxSettings, TopicSettings
from wheelq.transport import Address, Transport

How = Literal["freeze", "kill"]
TOPIC, GROUP, SHARDS = "orders", "g", 2
HOUR_MS = 3_600_000
AROUND_S = 1.0
"""Requests before and after the outage."""
MAYBE = (Promise(0, must_run=False),)
"""The earlier life of a job whose request was repeated because its outcome was unknown."""
JUDGED = (FaultKind.LOST, FaultKind.EARLY, FaultKind.DOUBLED, FaultKind.REFUSED_BUT_RAN, FaultKind.UNKNOWN)
FAST_MS: dict[How, int] = {"kill": 1_000, "freeze": 1_500}
"""The most milliseconds until a 503. A frozen server is recognised only by its silence, which takes longer."""


@dataclass(slots=True)
class Answers:
    """The answers that callers got."""

    promises: dict[str, Promise] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    refused_ms: list[float] = field(default_factory=list)
    """How long each 503 took."""


class Callers:
    """Makes jobs at a steady rate, whatever the service answers."""

    def __init__(self, port: int) -> None:
        self.answers = Answers()
        self._port = port

    async def ask(self, seconds: float, rate: float) -> None:
        """Send requests for some seconds; returns when every outcome is known."""
        started = time.monotonic()
        tasks = []
        for n in range(round(seconds * rate)):
            await asyncio.sleep(max(0.0, started + n / rate - time.monotonic()))
            tasks.append(asyncio.create_task(self._make(f"job-{n}", n % 10 / 10)))
        await asyncio.gather(*tasks)

    async def _make(self, id: str, delay: float) -> None:
        """Make a job; repeat the request while its outcome is unknown."""
        was_sent = False
        while True:
            asked, asked_ms = time.monotonic(), time.time() * 1000
            try:
                job = json.dumps({"id": id, "delay": delay}).encode()
                status, answer = await ask_once(self._port, "POST", f"/v1/topics/{TOPIC}/jobs", job)
            except (OSError, EOFError):
                status = 504
            self.answers.statuses[status] += 1
            if 200 <= status < 300:
                receipt = json.loads(answer)
                due_ms = receipt["due_ms"]
                if receipt["in_outbox"]:  # due from when it was kept, or from the request, if Redis had it before
                    due_ms = min(due_ms, int(asked_ms + delay * 1000))
                sure = Promise(due_ms, must_run=True)
                self.answers.promises[id] = Promise(0, True, before=MAYBE) if was_sent else sure
                return
            if status == 503 and not was_sent:
                self.answers.refused_ms.append((time.monotonic() - asked) * 1000)
                self.answers.promises[id] = Promise(0, must_run=False, may_run=False, was_refused=True)
                return
            was_sent = was_sent or status != 503
            await asyncio.sleep(0.5)


class Play:
    """A server, a scheduler, a worker and the delay service."""

    def __init__(self, directory: Path, binary: Path, outbox: bool) -> None:
        self._stack = ExitStack()
        self._directory = directory
        self._binary = binary
        self._outbox = directory / "outbox.db" if outbox else None

    def __enter__(self) -> Play:
        enter = self._stack.enter_context
        self.server = enter(EmbeddedServer(self._directory / "data", binary=self._binary, fsync="always"))
        self.url = self.server.url
        settings = Settings(topic=TopicSettings(shards=SHARDS, retention_ms=HOUR_MS, keep_done_ms=HOUR_MS))
        self.fleet = enter(Fleet(self.url, self._directory))
        with Client.connect(self.url, settings) as client:
            client.schedule(TOPIC, delay=0, key="first")
        self.fleet.start("scheduler")
        self.fleet.start("worker", TOPIC, GROUP)
        config = self._directory / "wheelq.toml"
        outbox = f'[outbox]\npath = "{self._outbox}"\n' if self._outbox else ""
        config.write_text(f"[connection]\nreply_timeout_ms = 1000\n[client]\nreplicated_timeout_ms = 500\n{outbox}")
        self.port = free_port()
        serve = ["-m", "wheelq", "server", "--port", str(self.port), "--url", self.url, "--config", str(config)]
        enter(running([sys.executable, *serve, "--log-level", "error"], self.port))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def away(self, how: How) -> Iterator[None]:
        """Freezes or kills the server during the block."""
        if how == "kill":
            self.server.kill()
            yield
            self.server.start()
        else:
            pid = self.server.pid
            os.kill(pid, signal.SIGSTOP)
            try:
                yield
            finally:
                os.kill(pid, signal.SIGCONT)

    def verdict(self, answers: Answers, patience_s: float = 60.0) -> Verdict:
        """Wait until the outbox is empty and every promised job has run, then judge."""
        must_run = {id for id, promise in answers.promises.items() if promise.must_run}
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            ran = {run.id for run in self.fleet.runs()}
            if self.kept() == 0 and must_run <= ran:
                break
            time.sleep(0.1)
        transport = Transport(Address(self.url))
        promotions: list[Promotion] = []
        for shard in range(SHARDS):
            ready = Keys().shard(TOPIC, shard).ready
            promotions += read_promotions(transport.send(command("XRANGE", ready, "-", "+", read=list, key=ready)))
        transport.close()
        promises = answers.promises | {"first": Promise(0, must_run=True)}
        return judge(promises, promotions, self.fleet.runs())

    def kept(self) -> int:
        """Jobs in the outbox."""
        return Outbox(OutboxSettings(path=str(self._outbox))).info().jobs if self._outbox else 0


async def outage(play: Play, how: How, seconds: float, rate: float) -> Answers:
    """Callers send requests from a second before the server is away until a second after it is back."""
    callers = Callers(play.port)
    asking = asyncio.create_task(callers.ask(seconds + 2 * AROUND_S, rate))
    await asyncio.sleep(AROUND_S)
    with play.away(how):
        await asyncio.sleep(seconds)
    await asking
    return callers.answers


def measure(binary: Path, how: How, outbox: bool, seconds: float, rate: float) -> Outcome:
    """Measure one outage, and judge its jobs."""
    with TemporaryDirectory(prefix="wheelq-outage-") as directory, Play(Path(directory), binary, outbox) as play:
        answers = asyncio.run(outage(play, how, seconds, rate))
        verdict = play.verdict(answers)
    refused = sorted(answers.refused_ms)
    figures = [Figure(f"answered {status}", count, "answers") for status, count in sorted(answers.statuses.items())]
    if refused:
        figures.append(Figure("p99 until a 503", percentile(refused, 0.99), "ms", Target(at_most=FAST_MS[how])))
    wrong = {kind.words: verdict.count(kind) for kind in JUDGED}
    return Outcome(f"{how}, {'outbox' if outbox else 'no outbox'}", figures, len(answers.promises), wrong)


def main() -> int:
    """Measure and print; returns the exit code."""
    arguments = parser("outage", __doc__)
    arguments.add_argument("--server", default="valkey", metavar="valkey|redis62|PATH", help="what the server runs")
    arguments.add_argument("--seconds", type=float, default=30, help="how long it is away")
    arguments.add_argument("--rate", type=float, default=200, help="requests a second")
    arguments.add_argument("--how", choices=["freeze", "kill"], help="only this")
    arguments.add_argument("--outbox", action=argparse.BooleanOptionalAction, help="only with, or without, one")
    add_report(arguments)
    options = arguments.parse_args()
    hows: list[How] = [options.how] if options.how else ["freeze", "kill"]
    outboxes = [True, False] if options.outbox is None else [options.outbox]
    binary = binary_of(options.server)
    found = [measure(binary, how, outbox, options.seconds, options.rate) for outbox in outboxes for how in hows]
    return report(found, options)


if __name__ == "__main__":
    sys.exit(main())
