"""The worker: reads ready jobs in a consumer group, runs handlers, and settles the outcomes.

loop        `Worker`: its life, from start to stop
decorators  the decorators that register handlers and hooks
shards      the shards of its topics, read again whenever they may have changed
running     one delivery, from its entry to its outcome
hints       listens for changes of topics and for requests to cancel a job
lanes       the ways from shards to handlers: one for single handlers, one for each batch or ordered handler
reader      reads new deliveries, as many as could start at once
places      how the readers of a lane share its free places
backlog     which of many shards may hold unread entries (pure)
handlers    the function that runs the jobs of a topic, and how it is called
typed       converts payloads to the types of a function's signature
hooks       middleware around handlers, and lifespans of a worker
threads     runs plain functions, each in a thread that can be abandoned
daemons     the threads themselves
ending      whether a cancelled handler was cancelled because its worker ends
pool        at most `concurrency` deliveries at a time, without a task for those that never wait
batching    gathers deliveries in lists, runs them, and finds the outcome of each
ordering    runs the jobs of a shard or key one at a time: `ordered_shard` holds and reads, `ordered_deliveries`
            starts each in its turn, `sequence` keeps the places
parts       the objects that all parts of a worker share
outcome     whether a job is too late to start, and its outcome after the run (pure)
run_log     log lines about runs, and about handlers that block the event loop
tracing     the span around each run, while a tracer provider is set
progress    stores the progress and the results of handlers
held        the deliveries that Redis has not confirmed as settled
settling    reports outcomes to Redis: acks in batches, retries, burials
heartbeat   this worker's heartbeat, and its farewell
peers       which other workers are alive, by their heartbeats (pure)
recovery    renews running deliveries, takes over those of dead workers
overdue     warns that due jobs wait because no scheduler runs
janitor     removes leftovers of dead workers, and old dead jobs
"""

from __future__ import annotations

from wheelq.worker.loop import Worker

__all__ = ["Worker"]
