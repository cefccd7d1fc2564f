"""The herd: a million jobs due at one instant, while another topic runs as usual.

    python -m loadtest.herd                          # 1,000,000 jobs, one shard
    python -m loadtest.herd --shards 8
    python -m loadtest.herd --jobs 100000 --strict   # exit code 1 when a target is missed, too

    herd      all due at T, in one topic; its worker starts them as they come
    calm      200 jobs a second, each at its own millisecond, in another topic with a worker of its own
    one scheduler process leads both

The promises: no call keeps the server busy for more than 10 ms, the calm topic's jobs start within 50 ms (p99) while
the herd is drained, and the scheduler's memory does not grow with the herd. Calls are measured in two ways: by the
processor time of the server's main thread, call by call, in a herd that this process leads itself; and by the server's
slow log while everything runs, which uses the wall clock. In the slow log, a call that had to wait for a processor is
slow too. So that the times of calls mean something even with five processes on two processors, the server's main thread
gets priority if this process may set it (as root), as if it had a machine of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from loadtest.bench.bare import connect
from loadtest.bench.figures import Figure, Outcome, Target
from loadtest.bench.parts import Part, run_scheduler, run_worker
from loadtest.bench.stage import PAYLOAD_BYTES, Sizes, Stage
from loadtest.command import add_report, parser, report, tell_load
from loadtest.servers.measured import add_options, server_at
from wheelq import Client, JobSpec
from wheelq.model.job import from_ms
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.keys import Keys
from wheelq.settings import SchedulerSettings
from wheelq.transport import Address, Transport

CALM_RATE, CALM_S, AHEAD_S = 200, 150, 3
SLOW_US = 10_000
PATIENCE_S = 600.0


def herd(stage: Stage, jobs: int) -> Outcome:
    """Measure one herd from the moment when it is due to its last start."""
    with ExitStack() as held:
        client = held.enter_context(Client.connect(stage.url, stage.settings))
        server = held.enter_context(connect(stage.url))
        due, promised = _schedule(client, server, stage, jobs)
        scheduler = held.enter_context(Part(run_scheduler, stage.url, stage.settings, stage.loop))
        of_herd, of_calm = (
            held.enter_context(Part(run_worker, stage.url, stage.settings, [topic], stage.loop))
            for topic in ("herd", "calm")
        )
        of_calm.wait_for(1, PATIENCE_S)
        before_mb = scheduler.peak_mb()
        goes_first = _put_first(server.info("server")["process_id"])
        _watch(server)
        of_herd.wait_for(jobs, PATIENCE_S)
        figures = _worst_calls(server, goes_first)
        peak_mb = scheduler.peak_mb()
        runs, calm = of_herd.stop(), of_calm.stop()
    due_ms, lateness_ms = due.timestamp() * 1000, runs.lateness_since(0)
    last_ms = max(lateness_ms, default=0.0)
    beside = [start - at for _, _, at, start in calm.rows() if due_ms - 500 <= at <= due_ms + last_ms]
    figures += [
        Figure("calm topic meanwhile, p99", _p99(beside), "ms", Target(at_most=50)),
        Figure("calm topic meanwhile, jobs", len(beside), "jobs"),
        Figure("herd worked off in", last_ms / 1000, "s"),
        Figure("herd", jobs / last_ms * 1000 if last_ms else 0.0, "jobs/s"),
        Figure("scheduler's memory, peak", peak_mb, "MB"),
        Figure("of that because of the herd", peak_mb - before_mb, "MB", Target(at_most=64)),
    ]
    return Outcome("herd", figures, jobs, wrong(promised, runs.ids, lateness_ms))


def wrong(promised: set[str], started: Iterable[str], lateness_ms: Iterable[float]) -> Counter[str]:
    """Returns how many jobs were lost, early or doubled, by their ids, so that a double does not hide a lost job."""
    starts = Counter(started)
    return Counter(
        lost=len(promised - starts.keys()),
        early=sum(ms < -1 for ms in lateness_ms),
        doubled=starts.total() - len(starts),
    )


def _schedule(client: Client, server: Any, stage: Stage, jobs: int) -> tuple[datetime, set[str]]:
    """Schedule the herd, and the calm topic around it; returns when the herd is due, and its ids."""
    bulk_s = _schedule_rate(client, stage)
    due = from_ms(_now_ms(server) + 1000 * (5 * AHEAD_S + jobs * bulk_s))
    payload = os.urandom(PAYLOAD_BYTES)
    receipts = client.schedule_many("herd", (JobSpec(payload, at=due) for _ in range(jobs)))
    late_s = _now_ms(server) / 1000 + 3 * AHEAD_S - due.timestamp()
    if late_s > 0:
        raise SystemExit(f"scheduling took {late_s:.0f} s longer than thought: the herd was due before it was there")
    calm_from, apart = due - timedelta(seconds=AHEAD_S), timedelta(seconds=1 / CALM_RATE)
    client.schedule_many("calm", (JobSpec(n, at=calm_from + n * apart) for n in range(CALM_RATE * CALM_S)))
    return due, {receipt.id for receipt in receipts}


def _watch(server: Any) -> None:
    """Count calls from now on, and log those above a millisecond."""
    server.config_set("slowlog-log-slower-than", 1_000)
    server.config_set("slowlog-max-len", 100_000)
    server.slowlog_reset()
    server.config_resetstat()


def _worst_calls(server: Any, goes_first: bool) -> list[Figure]:
    spent_us = [entry["duration"] for entry in server.slowlog_get(100_000)]
    count = server.info("commandstats")["cmdstat_evalsha"]["calls"]
    worst = f"worst call while all run{', server first' if goes_first else ''}"
    return [
        Figure(worst, max(spent_us, default=0) / 1000, "ms", Target(at_most=SLOW_US / 1000)),
        Figure(f"calls above {SLOW_US // 1000} ms, of {count:,}", sum(us > SLOW_US for us in spent_us), "calls"),
    ]


def alone(stage: Stage, jobs: int) -> list[Figure]:
    """Returns the cost of the calls of a herd's leader, in processor time of the server's main thread (Linux)."""
    settings, keys = SchedulerSettings(), Keys(stage.settings.prefix).shard("alone", 0)
    with Client.connect(stage.url, stage.settings) as client, connect(stage.url) as server:
        client.configure("alone", max_pending=0)
        payload = os.urandom(PAYLOAD_BYTES)
        at = from_ms(_now_ms(server) + 3_600_000)
        client.schedule_many("alone", (JobSpec(payload, at=at) for _ in range(jobs)))
        schedstat = Path(f"/proc/{server.info('server')['process_id']}/schedstat")
        now_ms = _now_ms(server)
        for start in range(0, jobs, 5_000):  # they are due from now on
            members = server.zrange(keys.delayed, start, start + 4_999)
            server.zadd(keys.delayed, dict.fromkeys(members, now_ms))
        with closing(Transport(Address(stage.url))) as transport:
            lease_ms = settings.lease_ms
            token = transport.send(calls.acquire(keys, "herd", "run:1", lease_ms, "1")).token
            window = calls.open_window(keys, token, lease_ms, None, settings.window_ms, settings.window_ids, 60_000)
            sweep = calls.sweep(keys, token, lease_ms, settings.batch)
            figures = []
            measured: list[tuple[str, Call[Any], int]] = [
                (f"window of {settings.window_ids:,}", window, 20),
                (f"sweep of {settings.batch}", sweep, jobs // settings.batch),
            ]
            for name, call, times in measured:
                spent_ms = []
                for _ in range(times):
                    before = int(schedstat.read_text().split()[0])
                    transport.send(call)
                    spent_ms.append((int(schedstat.read_text().split()[0]) - before) / 1e6)
                figures.append(Figure(f"{name}: processor time, median", median(spent_ms), "ms"))
                figures.append(
                    Figure(f"{name}: worst of {times:,}", max(spent_ms), "ms", Target(at_most=SLOW_US / 1000))
                )
            return figures


def _schedule_rate(client: Client, stage: Stage) -> float:
    """Returns the seconds that scheduling a job in bulk takes here, generously rounded up."""
    began = time.monotonic()
    client.schedule_many("herd", [JobSpec(b"", delay=86_400, key=f"measure-{n}") for n in range(10_000)])
    seconds = (time.monotonic() - began) / 10_000
    for shard in range(stage.settings.topic.shards):
        with connect(stage.url) as server:
            server.delete(*server.keys(f"{stage.settings.prefix}:{{herd:{shard}}}:*"))
    return 2 * seconds


def _put_first(pid: int) -> bool:
    try:
        os.setpriority(os.PRIO_PROCESS, pid, -20)
    except OSError:  # another machine's server, or no right to
        return False
    return True


def _now_ms(server: Any) -> int:
    seconds, us = server.time()
    return int(seconds * 1000 + us // 1000)


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98] if len(values) > 1 else 0.0


def main() -> int:
    """Measure and print; returns the exit code."""
    arguments = parser("herd", __doc__)
    add_options(arguments)
    arguments.add_argument("--jobs", type=int, default=1_000_000, metavar="N")
    arguments.add_argument("--shards", type=int, default=1, metavar="N")
    arguments.add_argument("--loop", default="asyncio", choices=["asyncio", "uvloop"])
    add_report(arguments)
    options = arguments.parse_args()
    tell_load()
    with (
        server_at(options.url, options.server, "off") as url,
        Stage.on(url, Sizes(), options.loop, options.shards) as stage,
    ):
        figures = alone(stage, min(options.jobs, 100_000))
        outcome = herd(stage, options.jobs)
    return report([replace(outcome, figures=[*figures, *outcome.figures])], options)


if __name__ == "__main__":
    sys.exit(main())
