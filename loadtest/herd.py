"""The herd: a million jobs due at one instant, while another topic goes on as ever.

    herd      all due at T, in one topic; its worker starts them as they come
    calm      200 jobs a second, each at its own millisecond, in another topic with a worker of its own
    one scheduler process leads both

What is asked: no call keeps the server busy for more than 10 ms, the calm topic's jobs start within 50 ms (p99) while
the herd is worked off, and the scheduler's memory does not grow with the herd. Calls are looked at in two ways. By the
processor time of the server's main thread, call by call, in a herd that this process leads itself; and by the server's
slow log while all run, which goes by the wall clock. There a call that had to wait for a processor is slow too; so that
five processes on two processors tell something about calls, the server's main thread goes first where this process may
say so (as root), as it would on a machine of its own.

    python -m loadtest.herd                          # 1,000,000 jobs, one shard
    python -m loadtest.herd --shards 8
    python -m loadtest.herd --jobs 100000 --strict   # exit code 1 when a target is missed, too
"""

import argparse
import json
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

from loadtest.bare import connect
from loadtest.figures import Figure, Outcome, Target, as_table
from loadtest.parts import Part, run_scheduler, run_worker
from loadtest.server import add_options, server_at
from loadtest.stage import PAYLOAD_BYTES, Sizes, Stage
from wheelq import Client, JobSpec
from wheelq.job import from_ms
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.keys import Keys
from wheelq.settings import SchedulerSettings
from wheelq.transport import Address, Transport

CALM_RATE, CALM_S, AHEAD_S = 200, 150, 3
SLOW_US = 10_000
PATIENCE_S = 600.0


def herd(stage: Stage, jobs: int) -> Outcome:
    """One herd from the moment it is due to its last start."""
    with ExitStack() as held:
        client = held.enter_context(Client.connect(stage.url, stage.settings))
        server = held.enter_context(connect(stage.url))
        due, promised = _schedule(client, server, stage, jobs)
        scheduler = held.enter_context(Part(run_scheduler, stage.url, stage.settings, stage.loop))
        of_herd, of_calm = (
            held.enter_context(Part(run_worker, stage.url, stage.settings, topic, stage.loop))
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
    """How many jobs were lost, early or doubled, by the id of every start: one that is lost makes up for no other."""
    starts = Counter(started)
    return Counter(
        lost=len(promised - starts.keys()),
        early=sum(ms < -1 for ms in lateness_ms),
        doubled=starts.total() - len(starts),
    )


def _schedule(client: Client, server: Any, stage: Stage, jobs: int) -> tuple[datetime, set[str]]:
    """The herd, and the calm topic around it: when the herd is due, and its ids."""
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
    """From now on calls are counted, and those above a millisecond written down."""
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
    """What the calls of a herd's leader cost the server, by the processor time of its main thread (Linux)."""
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
    """Seconds a job takes to be scheduled in bulk here, generously."""
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
    """Measures and prints; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.herd", description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--jobs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--shards", type=int, default=1, metavar="N")
    parser.add_argument("--loop", default="asyncio", choices=["asyncio", "uvloop"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed, too")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.2f} before", file=sys.stderr)
    with (
        server_at(options.url, options.server, "off") as url,
        Stage.on(url, Sizes(), options.loop, options.shards) as stage,
    ):
        figures = alone(stage, min(options.jobs, 100_000))
        outcome = herd(stage, options.jobs)
    outcome = replace(outcome, figures=[*figures, *outcome.figures])
    print(as_table([outcome]))
    if options.json:
        options.json.write_text(json.dumps(outcome.as_dict(), indent=2) + "\n")
    return 0 if outcome.is_correct and (outcome.meets_targets or not options.strict) else 1


if __name__ == "__main__":
    sys.exit(main())
