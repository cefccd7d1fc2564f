"""One command for the Locust test: starts a server, a scheduler and a worker, and Locust against them; then judges.

    python -m loadtest.locust_run                                        # 1,000 jobs/s for 10 s
    python -m loadtest.locust_run --shape spike --rate 1000 --seconds 30 --report locust.json
    python -m loadtest.locust_run --url redis://localhost:6379           # a server that runs already

Exit code 1: a request failed, or a job was lost, early or doubled. What Locust counts stands in the report, in the
format of its `--json-file`; lateness is the entry with the method "lateness", in ms, from due to start of the handler.
"""

import argparse
import json
import subprocess
import sys
import time
from array import array
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadtest.bare import connect
from loadtest.figures import percentile
from loadtest.parts import Runs
from loadtest.server import add_options, server_at
from loadtest.stage import Play, Sizes, Stage

ROOT = Path(__file__).parents[1]
SHAPES = ("steady", "spike")  # not imported: Locust patches whatever process imports it, also the worker's
PATIENCE_S = 10.0  # at the end, for jobs that still wait
PUMP_S = 0.1  # how often lateness goes from the worker to Locust


def run(url: str, options: argparse.Namespace, scratch: Path) -> int:
    """Run Locust against the server at `url`, print what came out; the exit code."""
    report, ids = options.report or scratch / "report.json", scratch / "ids"
    with Stage.on(url, Sizes(), options.loop) as stage, Play(stage, "locust") as play:
        play.warm_up()
        warm = play.worker.started()
        key = f"{stage.settings.prefix}:lateness"
        locust = subprocess.Popen(_command(stage, play.topic, key, options, report, ids), cwd=ROOT)
        try:
            _pump(stage, play, key, warm, locust)
        finally:
            locust.kill()
            code = locust.wait()
        if not ids.exists():
            raise SystemExit(f"Locust failed with exit code {code}: see what it printed")
        _wait_until_empty(stage, play.topic)
        runs = play.stop()
        wrong = _wrong(runs, set(ids.read_text().split())) | {"left behind": stage.left(play.topic)}
    _show(json.loads(report.read_text()), sorted(runs.lateness_since(warm)))
    print(f"of {len(runs) - warm:,} jobs " + ", ".join(f"{count:,} {what}" for what, count in wrong.items()))
    return 1 if code or any(wrong.values()) else 0


def _command(stage: Stage, topic: str, key: str, options: argparse.Namespace, report: Path, ids: Path) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    command += ["--host", stage.url, "--prefix", stage.settings.prefix, "--topic", topic, "--lateness-key", key]
    command += ["--loglevel", "ERROR", "--stop-timeout", "2", "--shape", options.shape]
    command += ["--rate", str(options.rate), "--seconds", str(options.seconds), "--ids", str(ids)]
    return [*command, "--json-file", str(report.absolute().with_suffix(""))]


def _pump(stage: Stage, play: Play, key: str, warm: int, locust: "subprocess.Popen[bytes]") -> None:
    """Carry the lateness of every start from the worker to Locust's list, until Locust ends."""
    seen = warm
    with connect(stage.url) as client:
        while locust.poll() is None:
            time.sleep(PUMP_S)
            fresh: array[float] = play.worker.lateness_since(seen)
            seen += len(fresh)
            if fresh:
                client.rpush(key, fresh.tobytes())


def _wait_until_empty(stage: Stage, topic: str) -> None:
    """Locust may have stopped a user in the middle of a call, whose job then nobody waits for."""
    give_up = time.monotonic() + PATIENCE_S
    while stage.left(topic) and time.monotonic() < give_up:
        time.sleep(PUMP_S)


def _wrong(runs: Runs, scheduled: set[str]) -> dict[str, int]:
    ran = set(runs.ids)
    early = sum(int(entry_id.partition("-")[0]) < due_ms for _, entry_id, due_ms, _ in runs.rows())
    return {"lost": len(scheduled - ran), "early": early, "doubled": len(runs) - len(ran)}


def _show(rows: list[dict[str, Any]], lateness_ms: list[float]) -> None:
    for row in rows:
        mean_ms = row["total_response_time"] / max(1, row["num_requests"])
        print(
            f"{row['method']} {row['name']}: {row['num_requests']:,}, {row['num_failures']:,} failed, "
            f"mean {mean_ms:.1f} ms, most {row['max_response_time']:.1f} ms"
        )
    marks = ", ".join(f"p{share * 100:g} {percentile(lateness_ms, share):.1f}" for share in (0.5, 0.99, 0.999, 1))
    print(f"lateness in ms, exactly: {marks}")


def main() -> int:
    """Runs the test; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.locust_run", description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--aof", default="off", choices=["off", "everysec", "always"], help="of the private server")
    parser.add_argument("--shape", default="steady", choices=SHAPES)
    parser.add_argument("--rate", type=float, default=1_000.0, help="jobs a second (default %(default)g)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--loop", default="asyncio", choices=["asyncio", "uvloop"], help="what the two processes run on"
    )
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="keep Locust's report there")
    options = parser.parse_args()
    if options.report and options.report.suffix != ".json":
        parser.error("--report: the name must end in .json, as Locust's own do")
    with server_at(options.url, options.server, options.aof) as url, TemporaryDirectory() as scratch:
        return run(url, options, Path(scratch))


if __name__ == "__main__":
    sys.exit(main())
