"""One delivery, from its entry in the stream to its outcome in Redis.

running     runs one delivery
pool        at most `concurrency` deliveries at a time, without a task for those that never wait
limited     the part of a pool that a handler with a limit of its own may fill
places      how readers and ordered lanes share the free places of a pool
held        this worker as one consumer of its group, and the deliveries that Redis has not confirmed as settled
settling    reports outcomes to Redis: acks in batches, retries, burials
recovery    renews running deliveries, and takes over those of dead workers
news        hints of new entries, for readers of many shards
peers       which other workers are alive, by their heartbeats (pure)
parts       the objects that all parts of a worker share; whether it ends, so that its handlers were cancelled
progress    stores the progress of handlers
run_log     log lines about runs, and about handlers that block the event loop
tracing     the span around each run, while a tracer provider is set
"""
