"""The cost of larger payloads: bulk, drain and lateness by size of the payload, beside a floor of the same size."""

import time
from collections import Counter

from loadtest.bench import floor
from loadtest.bench.figures import Figure, Outcome, percentile
from loadtest.bench.running import AHEAD_MS, SHORT_DELAY_S, drain_once
from loadtest.bench.stage import Play, Stage, due_apart, waiting

MOST_BYTES = 100_000_000
"""The most bytes of payloads in the server at a time: of large payloads there are fewer."""
PER_S = 500
STREAM_S = 3


def payload(stage: Stage) -> Outcome:
    """Each size in rounds."""
    figures: list[Figure] = []
    jobs, wrong = 0, Counter[str]()
    for size in stage.sizes.payload_bytes:
        count = min(stage.sizes.drain, MOST_BYTES // size)
        streamed = min(PER_S * STREAM_S, count)
        enqueued, drained, p99s = [], [], []
        for number in range(stage.sizes.rounds):
            bare = (floor.enqueue_rate(stage.url, count, size), floor.read_rate(stage.url, count, size))
            with Play(stage, f"payload-{size}-{number}") as play:
                specs, start = waiting(count, SHORT_DELAY_S, size), time.perf_counter()
                ids = play.schedule(specs)
                enqueued.append((count / (time.perf_counter() - start), bare[0]))
                drained.append((drain_once(play, ids, bare[1], wrong).rate, bare[1]))
            p99s.append(_p99_ms(stage, f"stream-{size}-{number}", streamed, size, wrong))
            jobs += count + streamed
        name = f"{size:,} bytes"
        figures += [
            Figure.beside(f"{name}: schedule_many (a)", enqueued, "jobs/s"),
            Figure.beside(f"{name}: drain (c)", drained, "jobs/s"),
            Figure.of(f"{name}: lateness at {PER_S}/s, p99", p99s, "ms"),
        ]
    return Outcome("payload", figures, jobs, wrong)


def _p99_ms(stage: Stage, topic: str, count: int, size: int, wrong: Counter[str]) -> float:
    with Play(stage, topic) as play:
        play.warm_up()
        ids = play.schedule(due_apart(play.now_ms() + AHEAD_MS, count, 1000 / PER_S, size))
        runs = play.finish()
        wrong.update(play.wrong(runs))
        return percentile(runs.lateness_ms(ids), 0.99)
