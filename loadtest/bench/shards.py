"""One topic of many shards beside the same topic of one, at 1,300 jobs a second: lateness, and what a job costs.

The figures of many shards stand beside those of one, which is their floor here.
"""

from concurrent.futures import ProcessPoolExecutor

from loadtest.bench.bare import connect
from loadtest.bench.figures import Figure, Outcome, Target
from loadtest.bench.parts import SPAWN
from loadtest.bench.rate import Cost, bare_us_at, one_round
from loadtest.bench.running import STEADY_RATE
from loadtest.bench.stage import Play, Stage

TIMES = Target(times=1.5)


def shards(stage: Stage) -> Outcome:
    """Rounds in turns: one shard, then many."""
    sizes = stage.sizes
    found: dict[int, list[Cost]] = {1: [], sizes.shards: []}
    jobs, wrong = 0, {"lost": 0, "early": 0, "doubled": 0, "unknown": 0, "left behind": 0}
    with connect(stage.url) as client, ProcessPoolExecutor(1, mp_context=SPAWN) as bare:
        for _ in range(sizes.rounds):
            for count, costs in found.items():
                with Stage.on(stage.url, sizes, stage.loop, count) as own, Play(own, f"shards-{count}") as play:
                    play.warm_up()
                    bare_us = bare_us_at(client, bare, stage.url, sizes.growth_s, STEADY_RATE)
                    costs.append(one_round(play, sizes.growth_s, STEADY_RATE, bare_us))
                    its = play.wrong(play.finish())
                    jobs += len(play.promised)
                    wrong = {name: number + its[name] for name, number in wrong.items()}
    one, many = found.values()
    pairs = list(zip(many, one, strict=True))
    figures = [
        Figure.beside(f"{sizes.shards} shards: processor time", [(a.all_us, b.all_us) for a, b in pairs], "µs", TIMES),
        Figure.beside(f"{sizes.shards} shards: calls a job", [(a.calls, b.calls) for a, b in pairs], "×"),
        Figure.beside(f"{sizes.shards} shards: start, p50", [(a.p50_ms, b.p50_ms) for a, b in pairs], "ms", TIMES),
        Figure.beside(f"{sizes.shards} shards: start, p99", [(a.p99_ms, b.p99_ms) for a, b in pairs], "ms", TIMES),
    ]
    return Outcome("shards", figures, jobs, wrong)
