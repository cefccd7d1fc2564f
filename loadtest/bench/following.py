"""What follows jobs: how soon a follower starts, and what a bundle costs its members. One topic of four shards.

    chains    1,000 chains a second, each of three jobs without delays, made by the handler of the one before
    bundle    100,000 members of one bundle beside 100,000 jobs of none: from the first call until all have run

A handler does nothing but ask for the next job, so the start of a follower is measured from the start of the job before
it. The members are due at one instant, after all of them are scheduled. Every script call above a millisecond is in the
server's slow log: the longest one is that of any part.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import redis

from loadtest.bench.bare import connect
from loadtest.bench.figures import Figure, Outcome, Target, percentile
from loadtest.bench.parts import Part, Runs, run_chaining_worker
from loadtest.bench.stage import PATIENCE_S, Play, Stage, due_apart
from loadtest.judge import Promise
from wheelq import Continuation, JobSpec
from wheelq.protocol.keys import Keys

SHARDS = 4
LINKS, CHAINS_PER_S = 3, 1_000
AHEAD_MS = 1_000
SCHEDULED_PER_MS = 10
"""How many members can be scheduled in a millisecond, even on a slow machine."""
SLOW_US, MOST_SLOW = 1_000, 10_000
P50, P99 = Target(at_most=6.0), Target(at_most=20.0)


@dataclass(frozen=True, slots=True)
class Bundle:
    """One round of 100,000 jobs, as members of a bundle or not."""

    all_s: float
    """From the call that makes them until the last has started, without the time in which none was due."""
    longest_ms: float
    """The longest script call."""
    bytes_a_member: float


def following(stage: Stage) -> Outcome:
    """Chains, then jobs without and with a bundle, each in rounds."""
    sizes = stage.sizes
    jobs, wrong = 0, {"lost": 0, "early": 0, "doubled": 0, "unknown": 0, "left behind": 0}
    pauses: list[Sequence[float]] = []
    without: list[Bundle] = []
    members: list[Bundle] = []
    for number in range(sizes.rounds):
        for name in ("chains", "jobs", "members"):
            topic = f"{name}-{number}"
            with Stage.on(stage.url, sizes, stage.loop, SHARDS) as own, Play(own, topic, workers=0) as play:
                play.start()
                with Part(run_chaining_worker, own.url, own.settings, play.topics, own.loop) as worker:
                    if name == "chains":
                        runs, found = _chains(play, worker, sizes.rate_s)
                        pauses.append(found)
                    else:
                        runs, bundle = _bundle(own, play, worker, is_bundle=name == "members")
                        (members if name == "members" else without).append(bundle)
                    play.scheduler.stop()
                its = play.wrong(runs)
                jobs += len(play.promised)
                wrong = {name: count + its[name] for name, count in wrong.items()}
    chains = f"{CHAINS_PER_S:,} chains/s: start after the job before"
    figures = [
        Figure.of(f"{chains}, p50", [percentile(found, 0.5) for found in pauses], "ms", P50),
        Figure.of(f"{chains}, p99", [percentile(found, 0.99) for found in pauses], "ms", P99),
        Figure.beside(
            "one bundle: until all members have run",
            [(one.all_s, other.all_s) for one, other in zip(members, without, strict=True)],
            "s",
            Target(times=1.15),
        ),
        Figure.of("one bundle: longest script call", [one.longest_ms for one in members], "ms", Target(at_most=5.0)),
        Figure.of("no bundle: longest script call", [one.longest_ms for one in without], "ms"),
        Figure.of("one bundle: memory of a million members", [one.bytes_a_member for one in members], "MB"),
    ]
    return Outcome("following", figures, jobs, wrong)


def _chains(play: Play, worker: Part, seconds: int) -> tuple[Runs, Sequence[float]]:
    """Run chains at their rate. Returns all starts, and the pauses before followers in ms, sorted."""
    _run_chains(play, worker, CHAINS_PER_S // 2, 1.0)  # so that all parts work
    firsts = _run_chains(play, worker, CHAINS_PER_S * seconds, 1000 / CHAINS_PER_S)
    runs = worker.stop()
    starts = dict(zip(runs.ids, runs.started_ms, strict=True))
    chains = [[starts[id + "+" * link] for link in range(LINKS)] for id in firsts]
    return runs, sorted(after - before for chain in chains for before, after in pairwise(chain))


def _run_chains(play: Play, worker: Part, count: int, every_ms: float) -> set[str]:
    first_ms = play.now_ms() + AHEAD_MS + count // SCHEDULED_PER_MS
    specs = [JobSpec(LINKS - 1, at=spec.at) for spec in due_apart(first_ms, count, every_ms)]
    firsts = play.schedule(specs)
    for id in firsts:
        play.promised |= {id + "+" * link: play.promised[id] for link in range(1, LINKS)}
    _wait(play, worker)
    return firsts


def _bundle(stage: Stage, play: Play, worker: Part, *, is_bundle: bool) -> tuple[Runs, Bundle]:
    """Run jobs that are due at one instant, perhaps as members of a bundle."""
    count = stage.sizes.drain
    with connect(stage.url) as client:
        client.config_set("slowlog-log-slower-than", SLOW_US)
        client.config_set("slowlog-max-len", MOST_SLOW)
        client.slowlog_reset()
        first_ms = play.now_ms() + AHEAD_MS + count // SCHEDULED_PER_MS
        then = Continuation(play.topic, key="at the end") if is_bundle else None
        began = time.monotonic()
        ids = play.promise(play.client.schedule_many(play.topic, due_apart(first_ms, count, 0), then=then))
        scheduled_s = time.monotonic() - began
        if is_bundle:
            play.promised["at the end"] = Promise(first_ms, must_run=True)
        size = sum(client.memory_usage(key, samples=0) or 0 for key in _bundles(stage, play.topic))
        _wait(play, worker)
        runs = worker.stop()
        return runs, Bundle(
            scheduled_s + (runs.starts_ms(ids)[-1] - first_ms) / 1000, _longest_ms(client), size / count
        )


def _bundles(stage: Stage, topic: str) -> list[str]:
    return [Keys(stage.settings.prefix).shard(topic, n).bundles for n in range(SHARDS)]


def _longest_ms(client: redis.Redis) -> float:
    slow = [one["duration"] for one in client.slowlog_get(MOST_SLOW) if one["command"].upper().startswith(b"EVAL")]
    return max(slow, default=SLOW_US) / 1000


def _wait(play: Play, worker: Part) -> None:
    last_ms = max(promise.earliest_ms for promise in play.promised.values())
    if not worker.wait_for(len(play.promised), max(0, last_ms - play.now_ms()) / 1000 + PATIENCE_S):
        raise TimeoutError(f"{worker.started()} of {len(play.promised)} jobs have started")
