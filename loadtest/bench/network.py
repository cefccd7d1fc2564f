"""1,300 jobs a second over a network: scheduler, worker and producer reach the server through a proxy that delays.

    scheduler, worker ──▶ proxy, 1 ms each way ──▶ server

The floor is the same stream through the same proxy without the delay, so that the proxy's own cost is on both sides.
The proxy runs in a thread of the measuring process.
"""

from collections import Counter
from dataclasses import replace

from loadtest.bench.figures import Figure, Outcome, Target, percentile
from loadtest.bench.running import AHEAD_MS, STEADY_RATE
from loadtest.bench.stage import CLOCK_ERROR_MS, Play, Stage, due_apart
from loadtest.servers.proxy import Proxy

DELAY_MS = 1.0
"""Each way."""
DOOR = "bench"


def network(stage: Stage) -> Outcome:
    """Rounds with and without the delay, in turns."""
    found: list[list[float]] = []
    jobs, wrong = 0, Counter[str]()
    with Proxy(stage.url) as proxy:
        there = replace(stage, url=proxy.url(DOOR), clock_error_ms=CLOCK_ERROR_MS + 2 * DELAY_MS)
        for number in range(stage.sizes.rounds):
            row: list[float] = []
            for delay_ms in (DELAY_MS, 0.0):
                proxy.delay(delay_ms / 1000)
                lateness_ms = _stream(there, f"network-{delay_ms:g}-{number}", wrong)
                row += percentile(lateness_ms, 0.5), percentile(lateness_ms, 0.99)
                jobs += len(lateness_ms)
            found.append(row)
    figures = [
        Figure.beside("1 ms each way: lateness, p50", [(row[0], row[2]) for row in found], "ms"),
        Figure.beside("1 ms each way: lateness, p99", [(row[1], row[3]) for row in found], "ms", Target(at_most=15)),
    ]
    return Outcome("network", figures, jobs, wrong)


def _stream(stage: Stage, topic: str, wrong: Counter[str]) -> list[float]:
    with Play(stage, topic) as play:
        play.warm_up()
        count = STEADY_RATE * stage.sizes.steady_s
        ids = play.schedule(due_apart(play.now_ms() + AHEAD_MS, count, 1000 / STEADY_RATE))
        runs = play.finish()
        wrong.update(play.wrong(runs))
        return runs.lateness_ms(ids)
