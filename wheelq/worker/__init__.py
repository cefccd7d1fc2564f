"""The worker: reads ready jobs in a consumer group, runs handlers, settles what came of them.

loop        `Worker`: its life, from start to stop
decorators  how functions become its handlers
following   the shards of its topics, as they come and change
running     one delivery, from its entry to its outcome
wiring      gives each topic that has got its handler the hooks around it and its lane
lanes       the ways from the shards to the handlers: one for single handlers, one for each batch handler
reader      reads new deliveries, as many as could start at once
handlers    which function runs the jobs of a topic, and how it is called
hooks       what runs around handlers, and around a worker's life
threads     runs plain functions, each in a thread that can be abandoned
pool        at most `concurrency` deliveries at a time, with no task of their own unless they wait
batching    gathers deliveries to lists, runs them, and finds the outcome of each
ordering    runs the jobs of a shard or key one at a time: `ordered_shard` holds and reads, `ordered_deliveries`
            starts each in its turn, `sequence` keeps the places
outcome     what a handler's result means: done, again, or buried (pure)
held        the deliveries that Redis has not answered for yet
settling    tells Redis: acks in batches, retries, burials
presence    what the others know of this worker: its heartbeat, and its leave
recovery    renews what runs, takes over what a dead worker left
janitor     removes what dead workers and dead jobs leave behind
"""

from __future__ import annotations

from wheelq.worker.loop import Worker

__all__ = ["Worker"]
