"""Torture: everything breaks, again and again, while jobs are scheduled, moved, cancelled and run. Nothing may be lost.

Producers, schedulers and workers, each with a door of its own in a proxy, work on real servers (see `arena`), while a
seeded plan of faults is carried out (see `faults`). At the end everything is repaired, the remaining jobs run, and the
judge (`loadtest.judge`) compares the producers' log, the workers' logs and the server's own streams.

    seed ──▶ plan of faults ──▶ scene ──▶ parts, proxy, server
    producers' log ──▶ promises ─┐
    ready streams ──▶ promotions ┼──▶ verdict        exit code 1 unless it is clean
    workers' logs ──▶ runs ──────┘

The same ten minutes as a test: `python -m pytest -m soak tests/faults/test_torture.py`. The same seed makes the same
plan and the same calls of producers; their timing depends on the machine. `--former 3d1cd8c` runs a mixed fleet: in
the first third of the time every second part runs the code of that commit, then all parts are upgraded one by one, and
for the last third all are rolled back. `--plant` starts the parts with a defect on
purpose (see `planted`): then the verdict must not be clean. `--only kill-worker,cut` limits the faults, `--keep DIR`
keeps all logs.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, cycle
from pathlib import Path
from random import Random

from loadtest.judge import Disruption, Promise, judge, lost
from loadtest.torture.arena import ARENAS, Arena
from loadtest.torture.bundles import AFTER, wrong
from loadtest.torture.chains import CHAINED, TOLD, came_again, with_followers
from loadtest.torture.chains import wrong as wrong_deaths
from loadtest.torture.faults import FAULTS, MOST_SHARDS, Steps
from loadtest.torture.fleet import ROOT, Fleet, former_release
from loadtest.torture.producers import Producer
from loadtest.torture.promises import Call, promises
from loadtest.torture.remains import Remains
from loadtest.torture.report import Report
from loadtest.torture.scene import Planned, Scene, plan
from loadtest.torture.shares import SHARED, Limits, Watcher, too_fast
from wheelq import Client, Settings
from wheelq.errors import ServerError
from wheelq.protocol.calls import heartbeats, registry
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, ConnectionSettings, TopicSettings

GROUP = "torture"
HOLD_MS = 60
"""Handlers take up to this long, so that a killed worker holds some deliveries."""
DAY_MS = 86_400_000
START_S = 90.0
QUIET_END_S = 3.0
"""Seconds before the end in which no new fault begins."""
LAST_ACKS_S = 70.0
"""Seconds that the last acknowledgements may take. A failover can undo the ack of a live worker: then the worker's next
look finds the delivery, within a minute."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    seed: int = 1
    duration: float = 60.0
    """Seconds of faults."""
    least_jobs: int = 0
    """After the faults, producers continue until this many jobs are promised: a busy machine takes longer."""
    faults_per_minute: float = 12.0
    rate: float = 200.0
    """Jobs a second, of all producers together."""
    shards: tuple[int, ...] = (1, 2, 4)
    """For each topic."""
    producers: int = 2
    schedulers: int = 3
    workers: int = 3
    lease_ms: int = 2_000
    reply_timeout_ms: int = 1_500
    patience: float = 40.0
    """Seconds after the last due time until a job that has not run counts as lost."""
    longest_delay: float = 15.0
    """The longest delay of a job, in seconds."""
    only: tuple[str, ...] = ()
    """The faults to choose from; empty: all."""
    planted: str | None = None
    former: str | None = None
    """The commit of an earlier release for a mixed fleet, an upgrade and a roll-back."""


class Torture:
    """One run."""

    def __init__(self, arena: Arena, directory: Path, options: Options, tell: Callable[[str], None]) -> None:
        """`tell` gets a line of progress several times a second."""
        self._arena = arena
        self._directory = directory
        self._options = options
        self._tell = tell
        self._topics = {f"torture-{n}": shards for n, shards in enumerate(options.shards)}
        if options.former is None:  # a former release knows no limits per key
            self._topics[SHARED] = 2
        has_chains = options.former is None  # a former release knows no followers
        self._all_topics = {**self._topics, AFTER: 2, **({CHAINED: 2, TOLD: 2} if has_chains else {})}
        """The topics of all jobs, with their shards."""
        most = max(*options.shards, MOST_SHARDS)
        self._remains = Remains(
            arena, [Keys().shard(topic, n) for topic in self._all_topics for n in range(most)], GROUP
        )
        durability = arena.durability
        self._shared = [Keys().shard(SHARED, n) for n in range(most)]
        self._limits = Limits(Client(arena.control, settings=ClientSettings(durability=durability)))
        self._watcher = Watcher(arena, self._limits, self._shared)
        timeout_ms = options.reply_timeout_ms
        self._fleet = Fleet(arena.url, directory, options.lease_ms, timeout_ms, HOLD_MS, options.planted, durability)
        settings = Settings(
            connection=ConnectionSettings(reply_timeout_ms=timeout_ms),
            client=ClientSettings(replicated_timeout_ms=timeout_ms // 2, durability=arena.durability),
        )
        self._producers = [
            Producer(
                name := f"producer-{n}",
                arena.url(name),
                settings,
                tuple(self._topics),
                f"{options.seed}-{n}",
                options.rate / options.producers,
                options.longest_delay,
                makes_bundles=options.former is None,  # a former worker counts nothing
            )
            for n in range(options.producers)
        ]
        self._scene = Scene(arena, self._fleet, self._producers, self._start_part, options.lease_ms, list(self._topics))
        former = options.former and former_release(options.former, directory / "former")
        self._releases = cycle((former, ROOT) if former else (ROOT,))
        """The releases of the next parts to start."""
        self._upgrades = [(1 / 3, "upgrade", ROOT), (2 / 3, "roll-back", former)] if former else []
        """When, as a share of the duration, all parts are replaced by those of a release."""
        self._strikes: list[Disruption] = []
        self._fallen: list[str] = []
        self._began = 0.0

    def run(self) -> Report:
        """Start everything, carry out the faults, wait for the remaining jobs, and judge."""
        for topic, shards in self._all_topics.items():
            settings = TopicSettings(shards=shards, retention_ms=DAY_MS, keep_done_ms=DAY_MS if topic == AFTER else 0)
            if topic == CHAINED:
                settings = replace(settings, on_dead=TOLD)
            if topic == SHARED:
                settings = Limits.at_first(settings)
            self._arena.control.send(registry.register_topic(Keys(), topic, settings))
        with self._fleet:
            for _ in range(self._options.schedulers):
                self._start_part("scheduler")
            for _ in range(self._options.workers):
                self._start_part("worker")
            self._wait_for_schedulers()
            self._watcher.start()
            if SHARED in self._topics:
                self._limits.start()
            for producer in self._producers:
                producer.start()
            self._suffer()
            self._reach_least_jobs()
            for producer in self._producers:
                producer.finish()
            for producer in self._producers:
                producer.join()
            self._limits.finish()
            self._work_off()
            self._watcher.finish()
            return self._report()

    def _wait_for_schedulers(self) -> None:
        """Wait until all schedulers have joined, so that their start does not count as lateness."""
        deadline = time.monotonic() + START_S
        while len(self._arena.control.send(heartbeats.alive(Keys().nodes))) < self._options.schedulers:
            if time.monotonic() > deadline:
                raise RuntimeError(f"schedulers do not start:\n{self._fleet.output()}")
            time.sleep(0.05)
        time.sleep(0.5)

    def _start_part(self, kind: str) -> str:
        arguments = (",".join(self._all_topics), GROUP) if kind == "worker" else ()
        return self._fleet.start(kind, *arguments, release=next(self._releases))

    def _replacements(self, kind: str, release: Path) -> Steps:
        """The steps of a rolling upgrade to a release, or of its roll-back: one part after the other is replaced."""
        self._releases = cycle((release,))
        for part in ("scheduler", "worker"):
            for name in self._fleet.names(part):
                while name in self._scene.busy:
                    yield 0.1
                if self._fleet.release(name) != release and self._fleet.is_running(name):
                    with self._scene.disrupting(kind, name):
                        self._start_part(part)
                        self._fleet.ask_to_stop(name)
                        while self._fleet.is_running(name):
                            yield 0.1

    # --- the faults ------------------------------------------------------------------------------------------------

    def _suffer(self) -> None:
        """Carry out the plan. An error of a fault ends the run: faults must work."""
        self._began = time.monotonic()
        # When, a number that orders ties, the fault, its steps, and when it began by the wall clock.
        agenda: list[tuple[float, int, str, Steps, float]] = [
            (self._began + one.at_s, n, one.kind, FAULTS[one.kind](self._scene, Random(one.seed)), 0.0)
            for n, one in enumerate(self._plan())
        ]
        for n, (share, kind, release) in enumerate(self._upgrades, len(agenda)):
            at = self._began + share * self._options.duration
            agenda.append((at, n, kind, self._replacements(kind, release), 0.0))
        heapq.heapify(agenda)
        while agenda:
            at, n, kind, steps, begun_ms = heapq.heappop(agenda)
            self._wait_until(at)
            now_ms = time.time() * 1000
            try:
                pause = next(steps)
            except StopIteration:
                self._strikes.append(Disruption(kind, "", begun_ms or now_ms, time.time() * 1000))
            else:
                begun_ms = 0.0 if pause is None else begun_ms or now_ms
                heapq.heappush(agenda, (time.monotonic() + (0.1 if pause is None else pause), n, kind, steps, begun_ms))
        self._wait_until(self._began + self._options.duration)

    def _reach_least_jobs(self) -> None:
        while any(producer.is_alive() for producer in self._producers):
            if sum(promise.must_run for promise in promises(self._log()).values()) >= self._options.least_jobs:
                return
            self._wait_until(time.monotonic() + 0.5)

    def _plan(self) -> list[Planned]:
        options = self._options
        kinds = set(options.only or FAULTS) - self._arena.spared
        in_order = [kind for kind in FAULTS if kind in kinds]
        return plan(options.seed, options.duration - QUIET_END_S, options.faults_per_minute, in_order)

    def _wait_until(self, at: float) -> None:
        while (left := at - time.monotonic()) > 0:
            self._look_around()
            time.sleep(min(left, 0.2))

    def _look_around(self) -> None:
        """Report progress, and restart parts that ended: a part may end if the server cannot be used at its start."""
        for name in self._fleet.fallen():
            self._fallen.append(f"{name}: {self._fleet.last_words(name)}")
            self._start_part(name.partition("-")[0])
        answers = sum(len(producer.log) for producer in self._producers)
        gone_s = time.monotonic() - self._began
        last = self._scene.disruptions[-1].kind if self._scene.disruptions else "none yet"
        self._tell(
            f"{gone_s:5.0f} s of {self._options.duration:.0f}   {len(self._strikes)} faults (last {last})   "
            f"{answers} answers   {len(self._fallen)} fallen"
        )

    # --- the end ---------------------------------------------------------------------------------------------------

    def _log(self) -> list[Call]:
        return [call for producer in self._producers for call in producer.log]

    def _promised(self, again: Mapping[str, int]) -> dict[str, Promise]:
        found = promises(self._log())
        return with_followers(found, again) if CHAINED in self._all_topics else found

    def _work_off(self) -> None:
        """Wait until all jobs are done, or the time is up."""
        promised = self._promised({})
        last_due_ms = max((promise.earliest_ms for promise in promised.values()), default=0)
        patience = max(0.0, last_due_ms / 1000 - time.time()) + self._options.patience
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            self._wait_until(time.monotonic() + 0.5)
            with suppress(ServerError):
                if not self._remains.waiting() and not lost(promised, self._fleet.runs()):
                    break
        deadline = min(deadline, time.monotonic() + LAST_ACKS_S)
        while any(self._remains.left().values()) and time.monotonic() < deadline:
            self._wait_until(time.monotonic() + 0.2)

    def _report(self) -> Report:
        found = list(self._remains.promotions())
        log = self._log()
        (self._directory / "producers.log").write_text("".join(f"{call}\n" for call in log))
        clock_error_ms = self._arena.clock.error_ms if self._arena.clock else 0
        runs = list(self._fleet.runs())
        again = came_again(found, runs, self._scene.disruptions)
        promised = self._promised(again)
        verdict = judge(promised, found, runs, self._scene.disruptions, clock_error_ms=clock_error_ms)
        made, find = chain(*(producer.bundles for producer in self._producers)), Client(self._arena.control).bundle
        of_bundles = list(wrong(made, find, found, runs, self._scene.disruptions, clock_error_ms))
        failures = [f"{producer.name}: {producer.failure!r}" for producer in self._producers if producer.failure]
        left, of_keys = self._remains.left(), sorted(self._watcher.wrong)
        if not any(strike.kind == "step-clock" for strike in self._strikes):
            of_keys += [
                line for shard in self._shared for line in too_fast(shard, self._remains.entries(shard), self._limits)
            ]
        deaths = list(wrong_deaths(promised, self._remains.dead(), again))
        others = {"bundles": of_bundles, "limits per key": of_keys, "deaths": deaths}
        return Report(verdict, log, found, self._strikes, left, self._fallen, failures, others)


def torture(on: str, options: Options, directory: Path, tell: Callable[[str], None] = lambda line: None) -> Report:
    """Run torture on an arena; logs go to `directory`."""
    with ARENAS[on]() as arena:
        return Torture(arena, directory, options, tell).run()
