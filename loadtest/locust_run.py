"""One command for the Locust test: starts a server, a scheduler and a worker, and Locust against them; then judges.

    python -m loadtest.locust_run                                        # 1,000 jobs/s for 10 s
    python -m loadtest.locust_run --shape spike --rate 1000 --seconds 30 --report locust.json
    python -m loadtest.locust_run --users library http pull classic --processes 2 --html report.html
    python -m loadtest.locust_run --shape soak --seconds 28800 --limit "lateness p99.9 100" --limit "schedule p99 20"
    python -m loadtest.locust_run --url redis://localhost:6379           # a server that runs already

Exit code 1: a call failed, a limit (`--limit`) was broken, or a job was lost, early or doubled. The report holds what
Locust counts, in the format of its `--json-file`; lateness has the method "lateness": see `wheelq.testing.locust`. The
lateness that is printed at the end is exact: from due to start of the handler, of every job that the worker ran.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from loadtest.bench.figures import percentile
from loadtest.bench.parts import Runs
from loadtest.bench.stage import Play, Sizes, Stage
from loadtest.command import parser
from loadtest.servers.measured import add_options, server_at
from loadtest.servers.nodes import free_port
from loadtest.servers.processes import running
from wheelq.base.metrics import Measured
from wheelq.protocol.calls.counts import histograms
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

ROOT = Path(__file__).parents[1]
SHAPES = ("steady", "spike", "soak")  # not imported: Locust patches every process that imports it, also the worker's
USERS = ("library", "http", "pull", "classic")
PLACES = ("", "-pull", "-classic")  # the suffixes of the topics, in the order of the locustfile
PATIENCE_S = 10.0  # at the end, for jobs that still wait
LAST_WORD_S = 10.0  # the longest delay, plus two times the pause between two reports of a worker


@dataclass(frozen=True, slots=True)
class Seen:
    """Ids by topic, as the processes of Locust recorded them."""

    made: tuple[list[str], ...]
    taken: tuple[list[str], ...]

    @classmethod
    def read(cls, folder: Path) -> Seen:
        """All files of a folder."""
        found: dict[str, tuple[list[str], ...]] = {what: tuple([] for _ in PLACES) for what in ("made", "taken")}
        for file in folder.glob("*.ids"):
            for line in file.read_text().splitlines():
                what, place, id = line.split(" ", 2)
                found[what][int(place)].append(id)
        return cls(found["made"], found["taken"])


def run(url: str, options: argparse.Namespace, scratch: Path) -> int:
    """Run Locust against the server at `url`, and print the result; returns the exit code."""
    report = options.report or scratch / "report.json"
    with Stage.on(url, Sizes(), options.loop) as stage, Play(stage, "locust") as play, _http(stage, options) as http:
        play.warm_up()
        warm = play.worker.started()
        _wait_until_counted(stage, play.topic, warm)
        locust = subprocess.Popen(_command(play.topic, http, options, report, scratch), cwd=ROOT, env=_env(stage))
        try:
            code = locust.wait()
        finally:
            locust.kill()
        seen = Seen.read(scratch)
        if not any(seen.made):
            raise SystemExit(f"Locust failed with exit code {code}: see what it printed")
        if http:
            _drain(http, stage, play.topic, seen)
        _wait_until_empty(stage, play.topic)
        runs = play.stop()
        wrong = _wrong(runs, seen) | {"left behind": sum(stage.left(play.topic + place) for place in PLACES)}
    _show(json.loads(report.read_text()), sorted(runs.lateness_since(warm)))
    jobs = sum(map(len, seen.made))
    print(f"of {jobs:,} jobs " + ", ".join(f"{count:,} {what}" for what, count in wrong.items()))
    return 1 if code or any(wrong.values()) else 0


def _wait_until_counted(stage: Stage, topic: str, count: int) -> None:
    """Wait until the worker's figures of jobs before the test are in Redis, so that Locust does not count them."""
    give_up = time.monotonic() + PATIENCE_S
    with closing(Transport(Address(stage.url))) as transport:
        while time.monotonic() < give_up:
            found = transport.send(histograms(Keys(stage.settings.prefix)))
            started = [
                counts for (kind, name, _), (_, *counts) in found.items() if (kind, name) == (Measured.START, topic)
            ]
            if sum(map(sum, started)) >= count:
                return
            time.sleep(0.1)


def _env(stage: Stage) -> dict[str, str]:
    return os.environ | {"WHEELQ_URL": stage.url, "WHEELQ_PREFIX": stage.settings.prefix}


@contextmanager
def _http(stage: Stage, options: argparse.Namespace) -> Iterator[str | None]:
    """Yields the URL of an HTTP server, which is started if one of the users needs it."""
    if options.users == ["library"]:
        yield None
        return
    port = free_port()
    prefix = f"WHEELQ_PREFIX={stage.settings.prefix}"
    serve = [sys.executable, "-m", "wheelq", "server", "--port", str(port), "--url", stage.url]
    with running(["env", prefix, *serve, "--log-level", "warning"], port):
        yield f"http://127.0.0.1:{port}"


def _command(topic: str, http: str | None, options: argparse.Namespace, report: Path, ids: Path) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    command += ["--topic", topic, "--loglevel", "ERROR", "--stop-timeout", "2", "--shape", options.shape]
    command += ["--rate", str(options.rate), "--seconds", str(options.seconds), "--ids", str(ids)]
    command += ["--lateness-wait", str(LAST_WORD_S), "--json-file", str(report.absolute().with_suffix(""))]
    command += [f"--limit={limit}" for limit in options.limit]
    if http:
        command += ["--http", http]
    if options.html:
        command += ["--html", str(options.html.absolute())]
    if options.processes > 1:
        command += ["--processes", str(options.processes)]
    return [*command, *map(str.capitalize, options.users)]


def _drain(http: str, stage: Stage, topic: str, seen: Seen) -> None:
    """Consume over HTTP the jobs that the users had not consumed yet when they were stopped."""
    pulled, classic = f"/v1/topics/{topic}-pull/groups/pull", {"topic": f"{topic}-classic"}
    give_up = time.monotonic() + PATIENCE_S
    with httpx.Client(base_url=http) as client:
        while seen.made[1] and stage.left(f"{topic}-pull") and time.monotonic() < give_up:
            jobs = client.post(f"{pulled}/lease", json={"count": 100, "wait": 1}).raise_for_status().json()["jobs"]
            if jobs:
                client.post(f"{pulled}/ack", json={"handles": [job["handle"] for job in jobs]}).raise_for_status()
            seen.taken[1].extend(job["id"] for job in jobs)
        while seen.made[2] and stage.left(f"{topic}-classic") and time.monotonic() < give_up:
            reply = client.post("/delay/task/pull", json=classic).raise_for_status().json()
            if reply["dm_error"] == 0:
                seen.taken[2].append(str(reply["task_id"]))
            else:
                time.sleep(0.1)  # the next is not due yet


def _wait_until_empty(stage: Stage, topic: str) -> None:
    """Wait until all jobs have run. Locust may have stopped a user in the middle of a call: its job is not counted."""
    give_up = time.monotonic() + PATIENCE_S
    while stage.left(topic) and time.monotonic() < give_up:
        time.sleep(0.1)


def _wrong(runs: Runs, seen: Seen) -> dict[str, int]:
    ran = Counter(runs.ids)
    taken = [ran, *map(Counter, seen.taken[1:])]
    early = sum(int(entry_id.partition("-")[0]) < due_ms for _, entry_id, due_ms, _ in runs.rows())
    lost = sum(len(set(made) - set(found)) for made, found in zip(seen.made, taken, strict=True))
    return {"lost": lost, "early": early, "doubled": sum(found.total() - len(found) for found in taken)}


def _show(rows: list[dict[str, Any]], lateness_ms: list[float]) -> None:
    for row in rows:
        mean_ms = row["total_response_time"] / max(1, row["num_requests"])
        print(
            f"{row['method']} {row['name']}: {row['num_requests']:,}, {row['num_failures']:,} failed, "
            f"mean {mean_ms:.1f} ms, most {row['max_response_time']:.1f} ms"
        )
    if lateness_ms:
        marks = ", ".join(f"p{share * 100:g} {percentile(lateness_ms, share):.1f}" for share in (0.5, 0.99, 0.999, 1))
        print(f"lateness in ms, exactly: {marks}")


def main() -> int:
    """Run the test; returns the exit code."""
    arguments = parser("locust_run", __doc__)
    add_options(arguments)
    arguments.add_argument("--aof", default="off", choices=["off", "everysec", "always"], help="of the private server")
    arguments.add_argument("--shape", default="steady", choices=SHAPES)
    arguments.add_argument("--users", nargs="+", default=["library"], choices=USERS, help="equally many of each")
    arguments.add_argument("--rate", type=float, default=1_000.0, help="calls a second (default %(default)g)")
    arguments.add_argument("--seconds", type=float, default=10.0)
    arguments.add_argument(
        "--loop", default="asyncio", choices=["asyncio", "uvloop"], help="what the two processes run on"
    )
    arguments.add_argument("--processes", type=int, default=1, metavar="N", help="of Locust (default %(default)d)")
    arguments.add_argument(
        "--limit", action="append", default=[], metavar="'KIND[/NAME] MEASURE MOST'", help="see `wheelq.testing.limits`"
    )
    arguments.add_argument("--html", type=Path, metavar="FILE.html", help="Locust's report with charts")
    arguments.add_argument("--report", type=Path, metavar="FILE.json", help="keep Locust's figures there")
    options = arguments.parse_args()
    if options.report and options.report.suffix != ".json":
        arguments.error("--report: the name must end in .json, as Locust's own do")
    with server_at(options.url, options.server, options.aof) as url, TemporaryDirectory() as scratch:
        return run(url, options, Path(scratch))


if __name__ == "__main__":
    sys.exit(main())
