"""One run: a minute of load and faults, the time until everything is at rest, and the verdict."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.simulation import faults, knobs, promises, reached  # noqa: F401  # each promise registers itself
from loadtest.simulation.faults import FAULTS, Stage
from loadtest.simulation.fleet import Fleet
from loadtest.simulation.ledger import Ledger
from loadtest.simulation.operations.bundles import look_at_all
from loadtest.simulation.oracle import Excuse, examine
from loadtest.simulation.plan import LOAD_S, Plan, Step
from loadtest.simulation.process import Process, current
from loadtest.simulation.rest import LOOK_S, Calm, forgotten_dead, holds, is_quiet, leftovers, shards
from loadtest.simulation.seams import in_place
from loadtest.simulation.story import Story
from loadtest.simulation.world import TooMuch, World

SETTLE_S = 120.0
"""The longest time from the end of the load until all jobs are done."""
STOP_S = 15.0
KEPT_S = 180.0
"""The longest time until finished jobs and other temporary data are forgotten."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    seed: int
    problems: tuple[str, ...]
    story: Story
    simulated_s: float
    jobs: int
    commands: int
    excuses: tuple[Excuse, ...] = ()
    """The excuses that the oracle has accepted."""
    reached: frozenset[str] = frozenset()
    """What it reached: see `reached`."""


def run(plan: Plan, without: frozenset[int] = frozenset()) -> Result:
    """Run a plan, without the steps of these numbers."""
    plan = replace(plan, steps=tuple(step for step in plan.steps if step.number not in without))
    world, counts = World(plan.seed), reached.Reached()
    with (
        _own_directory(),
        in_place(world),
        _telling(world, counts),
        knobs.turned(plan.knobs),
        reached.counting(counts),
        _no_garbage_collection(),
    ):
        ledger = Ledger(world)
        ledger.limited = frozenset(one.name for one in plan.topics if "key_concurrency" in one.settings)
        if plan.knobs:
            world.story.tell("seed", f"turns {dict(plan.knobs)}")
        fleet = Fleet(world, plan, ledger)
        fleet.start()
        stage = Stage(world, fleet, ledger)
        for step in plan.steps:
            _plan_step(stage, step)
        try:
            world.run(LOAD_S + 5.0)
            problems = list(_settle(fleet))
        except TooMuch as error:
            problems = [str(error)]
        broken, excuses = examine(ledger, plan)
        world.story.is_over = True
        fleet.end()
    everything = frozenset([*counts, *(name for server in fleet.servers for name in server.scripts.reached())])
    jobs, commands = len(ledger.runs), fleet.primary.commands
    all_problems = (*problems, *broken)
    return Result(plan.seed, all_problems, world.story, world.now, jobs, commands, tuple(excuses), everything)


def _plan_step(stage: Stage, step: Step) -> None:
    if step.kind in FAULTS:
        stage.world.at(step.at, lambda: faults.begin(stage, step))
    else:
        stage.world.at(step.at, lambda: stage.fleet.do(step))


def _settle(fleet: Fleet) -> Iterator[str]:
    """Wait until all jobs are done, check what is left, and stop everything. Yields problems."""
    set_back_s = max(0.0, -fleet.primary.clock_offset)  # what was due then is due as much later
    world, deadline = fleet.world, fleet.world.now + SETTLE_S + set_back_s
    while not is_quiet(fleet) and world.now < deadline:
        world.run(world.now + 1.0)
    if not is_quiet(fleet):
        yield "not everything is done, long after the end"
    fleet.ledger.is_loaded = False
    world.run(world.now + 10.0)
    _look_at_bundles(fleet)
    forgotten = world.now + KEPT_S
    while any(leftovers(fleet)) and world.now < forgotten:  # a resting shard looks once a minute
        world.run(world.now + 15.0)
    calm = Calm(fleet)
    world.run(world.now + LOOK_S)
    yield from calm.broken()
    yield from (f"held: {what}" for what in holds(fleet))
    fleet.ledger.shards = shards(fleet)
    yield from (f"left: {what}" for what in leftovers(fleet) if what)
    yield from (f"unlisted: {what}" for what in forgotten_dead(fleet))
    yield from _ended_too_soon(fleet)
    yield from _stop(fleet)


def _look_at_bundles(fleet: Fleet) -> None:
    looking = next((part for part in fleet.producers if part.actor is not None), None)
    if fleet.ledger.bundles and looking is not None and (actor := looking.actor) is not None:
        process = looking.process
        process.deliver(lambda: process.loop.create_task(look_at_all(actor), name="looks at bundles"))
        fleet.world.run(fleet.world.now + 5.0)


def _ended_too_soon(fleet: Fleet) -> Iterator[str]:
    for part in fleet.parts.values():
        main = part.process.main
        if part.process.is_alive and main is not None and main.done():
            error = None if main.cancelled() else main.exception()
            yield f"died: {part.name} has ended by itself: {type(error).__name__ if error else 'no error'}: {error}"
        yield from (f"died: {part.name}: {what}" for what in part.process.complaints)
        for former in part.former:
            yield from (f"died: {former.name}: {what}" for what in former.complaints)


def _stop(fleet: Fleet) -> Iterator[str]:
    for part in fleet.parts.values():
        part.process.deliver(part.stop)
    deadline = fleet.world.now + STOP_S
    while fleet.world.now < deadline and not all(_has_ended(part.process) for part in fleet.parts.values()):
        fleet.world.run(fleet.world.now + 0.5)
    for part in fleet.parts.values():
        if not _has_ended(part.process):
            yield f"{part.name} does not stop within {STOP_S:.0f} s"


def _has_ended(process: Process) -> bool:
    return not process.is_alive or process.main is None or process.main.done()


@contextmanager
def _own_directory() -> Iterator[None]:
    """Runs the block in a new directory, so that outboxes have the same paths in every run."""
    before = os.getcwd()
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory:
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(before)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Finalizers would run at a time that no seed decides."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Teller(logging.Handler):
    def __init__(self, world: World, counts: reached.Reached) -> None:
        super().__init__(logging.INFO)
        self._world, self._counts = world, counts

    def emit(self, record: logging.LogRecord) -> None:
        who = current[-1].name if current else "?"
        self._counts[f"log: {record.msg}"] += 1
        self._world.story.tell(who, f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def _telling(world: World, counts: reached.Reached) -> Iterator[None]:
    logger, teller = logging.getLogger("wheelq"), _Teller(world, counts)
    before = logger.level, logger.propagate
    logger.addHandler(teller)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(teller)
        logger.level, logger.propagate = before
