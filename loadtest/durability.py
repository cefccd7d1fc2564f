"""The cost of durability for a producer: AOF off, everysec and always, and waiting for a replica, as shares of AOF off.

    python -m loadtest.durability                       # about half a minute, a private Valkey
    python -m loadtest.durability --server redis62 --rounds 9

    one by one      one job a call, each call awaited: every job pays for its own fsync or confirmation
    by 500          `schedule_many` with 500 jobs a call: 500 jobs share one
    20,000          `schedule_many` with all jobs: sends the next 500 while the server works on the last

So `appendfsync always` is too expensive for single calls and affordable for batches, on any disk that really syncs.
TMPDIR chooses the disk. The variants are measured in turns, and the table shows the median of the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from loadtest.bench.stage import payloads
from loadtest.command import parser
from loadtest.servers.measured import binary_of
from wheelq import Client, JobSpec, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.settings import ClientSettings

ROUNDS = 5
SECONDS = 0.4
"""For how many seconds calls of one kind are made in a round."""
DELAY_S = 3_600
BULK = 20_000
BASE = "AOF off"
PATIENT_MS = 9_000
"""A replica that was just attached confirms nothing for a second or more."""


@contextmanager
def setups(binary: Path) -> Iterator[Mapping[str, Client]]:
    """A client for each kind of durability, to a server of its own on loopback."""
    with ExitStack() as running:

        def server(**options: object) -> EmbeddedServer:
            return running.enter_context(EmbeddedServer(port=0, binary=binary, **options))  # type: ignore[arg-type]

        def client(server: EmbeddedServer, settings: ClientSettings | None = None) -> Client:
            found = Client.connect(server.url, Settings(client=settings or ClientSettings()))
            return running.enter_context(found)

        primary = server(appendonly=False, options={"repl-diskless-sync-delay": "0"})
        replica = server(appendonly=False, options={"replicaof": f"127.0.0.1 {primary.url.rpartition(':')[2]}"})
        replicated = client(primary, ClientSettings(durability="replicated", replicated_timeout_ms=PATIENT_MS))
        replicated.schedule("warm-up", delay=DELAY_S)
        yield {
            BASE: client(server(appendonly=False)),
            "AOF everysec": client(server(fsync="everysec")),
            "AOF always": client(server(fsync="always")),
            "AOF off, replicated": replicated,
        }
        replica.kill()


def one_by_one(client: Client, topic: str) -> float:
    """Jobs a second."""
    give_up, jobs = time.perf_counter() + SECONDS, 0
    start = time.perf_counter()
    for payload in payloads(BULK):
        client.schedule(topic, payload, delay=DELAY_S)
        jobs += 1
        if time.perf_counter() > give_up:
            break
    return jobs / (time.perf_counter() - start)


def by_500(client: Client, topic: str) -> float:
    """Jobs a second."""
    specs = [JobSpec(payload, DELAY_S) for payload in payloads(500)]
    give_up, jobs = time.perf_counter() + SECONDS, 0
    start = time.perf_counter()
    while time.perf_counter() < give_up:
        jobs += len(client.schedule_many(topic, specs))
    return jobs / (time.perf_counter() - start)


def bulk(client: Client, topic: str) -> float:
    """Jobs a second."""
    specs = [JobSpec(payload, DELAY_S) for payload in payloads(BULK)]
    start = time.perf_counter()
    client.schedule_many(topic, specs)
    return BULK / (time.perf_counter() - start)


WAYS: Mapping[str, Callable[[Client, str], float]] = {"one by one": one_by_one, "by 500": by_500, f"{BULK:,}": bulk}


def measure(clients: Mapping[str, Client], rounds: int) -> dict[tuple[str, str], tuple[float, float]]:
    """For each set-up and way, jobs a second and the share of AOF off in the same round; the medians of both."""
    rates: dict[tuple[str, str], list[float]] = {(setup, way): [] for setup in clients for way in WAYS}
    for number in range(rounds):
        for way, run in WAYS.items():
            for setup, client in clients.items():
                rates[setup, way].append(run(client, f"durability-{number}"))
    return {
        (setup, way): (median(found), median(a / b for a, b in zip(found, rates[BASE, way], strict=True)))
        for (setup, way), found in rates.items()
    }


def table(found: Mapping[tuple[str, str], tuple[float, float]]) -> str:
    """Aligned text, a line for each set-up."""
    lines = [f"{'jobs/s (× AOF off)':<22}" + "".join(f"{way:>20}" for way in WAYS)]
    for setup in dict.fromkeys(setup for setup, _ in found):
        cells = [f"{found[setup, way][0]:,.0f} ({found[setup, way][1]:.2f})" for way in WAYS]
        lines.append(f"{setup:<22}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    arguments = parser("durability", __doc__)
    arguments.add_argument("--server", default="valkey", metavar="valkey|redis62|PATH", help="what the servers run")
    arguments.add_argument("--rounds", type=int, default=ROUNDS, choices=range(1, 100), metavar="N")
    options = arguments.parse_args()
    with setups(binary_of(options.server)) as clients:
        print(table(measure(clients, options.rounds)))


if __name__ == "__main__":
    main()
