"""A worker with many topics is killed while it runs a job of a hundred of them: when another runs them again.

The first worker fills up with jobs that do not end. Then the second starts and runs others, and the first is killed.
"""

from loadtest.bench.figures import Figure, Outcome, Target
from loadtest.bench.parts import Part, run_stuck_worker, run_worker
from loadtest.bench.stage import PATIENCE_S, Play, Stage, waiting
from wheelq import Settings

SOON = Target(at_most=5_000)


def many_killed(stage: Stage) -> Outcome:
    """Kill a worker in each round."""
    sizes, held = stage.sizes, Settings().worker.concurrency
    topics = [f"killed-{n}" for n in range(sizes.growth_topics[-1])]
    firsts: list[float] = []
    lasts: list[float] = []
    jobs, wrong = 0, {"lost": 0, "early": 0, "doubled": 0, "unknown": 0, "left behind": 0}
    for _ in range(sizes.rounds):
        with Stage.on(stage.url, sizes, stage.loop) as own, Play(own, topics[0], topics[1:], workers=0) as play:
            play.schedule(waiting(len(topics), 0.0))
            play.start()
            with Part(run_worker, own.url, own.settings, topics, own.loop) as other:
                _until(other, len(topics))  # it knows all topics, and has run a job in each
                other.stop()  # without it, some would not be acknowledged
            with Part(run_stuck_worker, own.url, own.settings, topics, own.loop) as stuck:
                ids = play.schedule(waiting(held, 0.0))
                _until(stuck, held)
                with Part(run_worker, own.url, own.settings, topics, own.loop) as heir:
                    others = play.schedule(waiting(held, 0.0))
                    _until(heir, len(others))
                    stuck.kill()
                    killed_ms = play.now_ms()
                    _until(heir, len(others) + held)
                    runs = heir.stop()
                    play.scheduler.stop()
            for id in play.promised.keys() - ids - others:  # the first worker ran these
                del play.promised[id]
            starts_ms = runs.starts_ms(ids)
            firsts.append(starts_ms[0] - killed_ms)
            lasts.append(starts_ms[-1] - killed_ms)
            its = play.wrong(runs)
            jobs += len(play.promised)
            wrong = {name: number + its[name] for name, number in wrong.items()}
    name = f"{len(topics):,} topics, worker killed"
    figures = [
        Figure.of(f"{name}: its first job runs again after", firsts, "ms"),
        Figure.of(f"{name}: its last job runs again after", lasts, "ms", SOON),
    ]
    return Outcome("many-killed", figures, jobs, wrong)


def _until(worker: Part, starts: int) -> None:
    if not worker.wait_for(starts, PATIENCE_S):
        raise TimeoutError(f"{worker.started()} of {starts} jobs have started")
