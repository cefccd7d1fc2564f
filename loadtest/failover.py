"""How late jobs are when a leader is killed or stopped while another node stands by.

    python -m loadtest.failover --how kill --times 20 --rate 1000 [--lease-ms 10000] [--json FILE]

One server, two scheduler nodes, one worker; jobs fall due at an even rate. Every few seconds the node that leads is
killed (or stopped, or frozen for three lease times and woken) and replaced by a new one. At the end the judge checks
every job (see `loadtest.judge`), and the worst lateness of promotion after each fault is printed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.bench.figures import percentile
from loadtest.command import parser
from loadtest.judge import Promise, Promotion, Verdict, judge
from loadtest.torture.fleet import Fleet, read_promotions
from wheelq import Client, JobSpec, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.call import command
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport

TOPIC = "failover"
WARM_UP_S = 4.0
PAUSE_S = 3.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run of faults."""

    how: str
    times: int
    rate: int
    lease_ms: int
    worst_ms: list[int]
    """Worst lateness of promotion within two seconds after each fault."""
    p99_ms: float
    """Over all jobs, including those between the faults."""
    verdict: str
    is_clean: bool


def run(how: str, times: int, rate: int, lease_ms: int) -> Result:
    """Hurt the leader `times` times while `rate` jobs a second fall due."""
    keys = Keys()
    with (
        EmbeddedServer(appendonly=False) as server,
        tempfile.TemporaryDirectory() as logs,
        Fleet(server.url, Path(logs), lease_ms) as fleet,
        Client.connect(server.url, Settings(topic=TopicSettings(retention_ms=3_600_000))) as client,
    ):
        transport = Transport(Address(server.url))
        client.schedule(TOPIC, delay=0, key="first")
        fleet.start("worker", TOPIC, "g")
        nodes = [fleet.start("scheduler"), fleet.start("scheduler")]
        pause_s = PAUSE_S + (3 * lease_ms / 1000 if how == "freeze" else 0)
        duration = WARM_UP_S + times * pause_s + 2.0
        jobs = [JobSpec(delay=WARM_UP_S / 2 + n / rate) for n in range(int(rate * duration))]
        receipts = client.schedule_many(TOPIC, jobs)
        promises = {receipt.id: Promise(receipt.due_ms, must_run=True) for receipt in receipts}
        time.sleep(WARM_UP_S)
        faults_ms = []
        for _ in range(times):
            leader = _leading(transport, keys, fleet, nodes)
            faults_ms.append(transport.send(server_time_us()) // 1000)
            _hurt(fleet, leader, how, lease_ms)
            if how != "freeze":
                nodes.remove(leader)
                nodes.append(fleet.start("scheduler"))
            time.sleep(PAUSE_S)
        while client.topics()[0].waiting:
            time.sleep(0.1)
        time.sleep(1.0)
        entries = transport.send(command("XRANGE", keys.shard(TOPIC, 0).ready, "-", "+", read=list))
        promotions = [one for one in read_promotions(entries) if one.id != "first"]
        runs = [one for one in fleet.runs() if one.id != "first"]
        return _result(how, rate, lease_ms, faults_ms, promotions, judge(promises, promotions, runs))


def _hurt(fleet: Fleet, leader: str, how: str, lease_ms: int) -> None:
    if how == "kill":
        fleet.kill(leader)
    elif how == "stop":
        fleet.stop(leader)
    else:
        fleet.freeze(leader)
        time.sleep(3 * lease_ms / 1000)
        fleet.wake(leader)


def _leading(transport: Transport, keys: Keys, fleet: Fleet, nodes: list[str]) -> str:
    """The name of the child that holds the lease; its token holds its process id."""
    for _ in range(200):
        token = transport.send(command("GET", keys.shard(TOPIC, 0).lease, read=lambda token: (token or b"").decode()))
        for name in nodes:
            if f"-{fleet.pid(name)}-" in token:
                return name
        time.sleep(0.05)
    raise RuntimeError(f"nobody leads (token {token!r})")


def _result(
    how: str, rate: int, lease_ms: int, faults_ms: list[int], promotions: list[Promotion], verdict: Verdict
) -> Result:
    def worst(after_ms: int) -> int:
        near = [one.promoted_ms - one.due_ms for one in promotions if after_ms <= one.promoted_ms < after_ms + 2_000]
        return max(near, default=0)

    return Result(
        how,
        len(faults_ms),
        rate,
        lease_ms,
        [worst(after_ms) for after_ms in faults_ms],
        percentile(verdict.lateness_ms, 0.99),
        str(verdict),
        verdict.is_clean,
    )


def main() -> int:
    """Run as asked; exit code 1 when anything was lost, early or doubled."""
    options = parser("failover", __doc__)
    options.add_argument("--how", choices=["kill", "stop", "freeze"], default="kill")
    options.add_argument("--times", type=int, default=20)
    options.add_argument("--rate", type=int, default=1_000, help="jobs a second")
    options.add_argument("--lease-ms", type=int, default=9_000)
    options.add_argument("--json", type=Path, help="write the result here")
    arguments = options.parse_args()
    result = run(arguments.how, arguments.times, arguments.rate, arguments.lease_ms)
    print(f"{result.how} × {result.times} at {result.rate}/s, lease {result.lease_ms} ms")
    print(f"worst lateness after each, ms: {sorted(result.worst_ms)}")
    print(f"p99 of all: {result.p99_ms:g} ms")
    print(result.verdict)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(result), indent=2))
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
