"""`Wiring`: gives each topic that has got its handler what runs it: the hooks around it, and the lane it is on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from wheelq.settings import WorkerSettings
from wheelq.worker.batching import Batcher, BatchTerms, Steps, run_batch
from wheelq.worker.ground import Ground
from wheelq.worker.handlers import Handlers, Run
from wheelq.worker.lanes import Lanes, ReadingLane, Runs
from wheelq.worker.ordering import OrderedLane
from wheelq.worker.reader import Reading
from wheelq.worker.running import Running
from wheelq.worker.threads import Threads


class Wiring:
    """From handlers to lanes."""

    def __init__(self, ground: Ground, handlers: Handlers, running: Running, runs: Runs) -> None:
        """`runs` runs the deliveries of topics that have no lane of their own."""
        self._ground = ground
        self._handlers = handlers
        self._running = running
        self.lanes = Lanes(self._reading_lane(runs, ground.settings))

    def bind(self, threads: Threads, around: Callable[[Run], Run]) -> None:
        """Make ready what runs the topics that have got their handler since; `around` puts the hooks around it."""
        for topic in set(self._handlers.topics) - set(self._running.runs):
            handler = self._handlers[topic]
            run = self._running.runs[topic] = around(handler.bind(threads))
            if handler.batch is not None:
                self.lanes.add(topic, self._batch_lane(handler.batch, run))
            elif handler.ordered:
                is_by_key = handler.ordered == "key"
                self.lanes.add(topic, OrderedLane(self._ground, self._running.handle, is_by_key=is_by_key))

    def _batch_lane(self, terms: BatchTerms, run: Run) -> ReadingLane:
        steps = Steps(self._running.prepare, run, self._running.succeed, self._running.fail)
        batcher = Batcher(terms, partial(run_batch, steps), self._ground.clock)
        return self._reading_lane(batcher, replace(self._ground.settings, concurrency=terms.max_size))

    def _reading_lane(self, runs: Runs, settings: WorkerSettings) -> ReadingLane:
        ground = self._ground
        reading = Reading(ground.transport, ground.group, ground.consumer, settings, runs, ground.clock, ground.server)
        return ReadingLane(reading, runs, ground.held)
