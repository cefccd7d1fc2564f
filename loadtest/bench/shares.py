"""Several worker processes on one host: whether they share the reads of a topic fairly.

A stream at a constant rate, then thousands of jobs due at one instant, on one topic of one shard. The figures are the
smallest share that a worker had, as a multiple of the fair share: 1 if all workers have run equally many jobs.
"""

from loadtest.bench.figures import Figure, Outcome, Target
from loadtest.bench.running import AHEAD_MS, STEADY_RATE, lateness
from loadtest.bench.stage import Play, Stage, due_apart

FAIR = Target(at_least=0.8)


def shares(stage: Stage) -> Outcome:
    """A stream and a herd, each in rounds."""
    sizes = stage.sizes
    streams: list[set[str]] = []
    of_stream: list[float] = []
    with Play(stage, "shares", workers=sizes.workers) as play:
        play.warm_up()
        for _ in range(sizes.rounds):
            ids, smallest = _run(play, STEADY_RATE * sizes.shares_s, 1000 / STEADY_RATE)
            streams.append(ids)
            of_stream.append(smallest)
        of_herd = [_run(play, sizes.drain, 0)[1] for _ in range(sizes.rounds)]
        runs = play.finish()
        figures = [
            Figure.of(f"{sizes.workers} workers, 1,300/s: smallest share of a worker", of_stream, "×", FAIR),
            Figure.of(f"{sizes.workers} workers, all at one instant: smallest share", of_herd, "×", FAIR),
            *lateness([runs.lateness_ms(ids) for ids in streams], p50_ms=None, p99_ms=15)[:2],
        ]
        return Outcome("shares", figures, len(play.promised), play.wrong(runs))


def _run(play: Play, count: int, every_ms: float) -> tuple[set[str], float]:
    """The ids of these jobs, and the smallest share of a worker, as a multiple of the fair one."""
    before = [worker.started() for worker in play.workers]
    ids = play.schedule(due_apart(play.now_ms() + AHEAD_MS, count, every_ms))
    play.wait()
    ran = [worker.started() - then for worker, then in zip(play.workers, before, strict=True)]
    return ids, min(ran) * len(ran) / count
