"""The highest rate that one worker process holds: p99 of the lateness below 100 ms, for some seconds.

A trial is a constant stream of due times, all scheduled before the first is due, on a topic of its own. The search
doubles the rate, roughly, until a trial fails, then halves the gap until it is a twentieth. The floor is the bare chain
(d), measured before each round.
"""

from collections import Counter
from collections.abc import Callable
from itertools import count

from loadtest.bench import floor
from loadtest.bench.figures import Figure, Outcome, Target, percentile
from loadtest.bench.rate import AHEAD_MS, SCHEDULED_PER_MS
from loadtest.bench.stage import Play, Stage, due_apart

MOST_MS = 100.0
FIRST_SHARE = 0.4
"""The first trial's rate, as a share of the floor."""
STEP = 1.5
NARROW = 1.05
LOWEST = 50
"""Jobs a second: a search ends below it."""


def highest(stage: Stage) -> Outcome:
    """A search for each round; every trial's jobs are followed by their ids."""
    pairs: list[tuple[float, float]] = []
    points: list[dict[str, float]] = []
    wrong, numbers = Counter[str](), count()

    def holds(per_s: int) -> bool:
        p99_ms = p99_at(stage, f"highest-{next(numbers)}", per_s, wrong)
        points.append({"round": len(pairs), "per_s": per_s, "p99_ms": p99_ms})
        return p99_ms < MOST_MS

    for _ in range(stage.sizes.rounds):
        bare = floor.chain_rate(stage.url)
        pairs.append((search(holds, pairs[-1][0] if pairs else FIRST_SHARE * bare), bare))
    figure = Figure.beside("one worker process, p99 < 100 ms (d)", pairs, "jobs/s", Target(share=0.64))
    jobs = sum(int(point["per_s"]) for point in points) * stage.sizes.highest_s
    return Outcome("highest", [figure], jobs, wrong, points)


def search(holds: Callable[[int], bool], first: float) -> int:
    """The highest rate that holds, to a twentieth; 0 when none does.

    `holds` must be true up to some rate, and false above it.
    """
    good, bad, rate = 0, 0, int(first)
    while not (good and bad):
        if holds(rate):
            good, rate = rate, int(rate * STEP)
        else:
            bad, rate = rate, int(rate / STEP)
            if rate < LOWEST:
                return good
    while bad > good * NARROW:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def p99_at(stage: Stage, topic: str, per_s: int, wrong: Counter[str]) -> float:
    """The p99 of the lateness at this rate, in ms; counts in `wrong` what went wrong."""
    with Play(stage, topic) as play:
        play.warm_up()
        jobs = per_s * stage.sizes.highest_s
        first_ms = play.now_ms() + AHEAD_MS + jobs // SCHEDULED_PER_MS
        ids = play.schedule(due_apart(first_ms, jobs, 1000 / per_s))
        runs = play.finish()
        wrong.update(play.wrong(runs))
        return percentile(runs.lateness_ms(ids), 0.99)
