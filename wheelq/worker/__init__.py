"""The worker: reads ready jobs in a consumer group, runs handlers, and settles the outcomes.

loop      `Worker`: its life, from start to stop
upkeep    its shards, hints, heartbeat and cleaning
lanes     the ways from shards to handlers: one for single handlers, one for each batch or ordered handler
ordered   the lane of handlers that run jobs one at a time
delivery  one delivery, from its entry to its outcome: held, run, settled, recovered
handlers  the functions that run jobs: registration, types, hooks, threads
outcome   whether a job is too late to start, and its outcome after the run (pure)
"""

from wheelq.worker.handlers.decorators import Router
from wheelq.worker.loop import Worker

__all__ = ["Router", "Worker"]
