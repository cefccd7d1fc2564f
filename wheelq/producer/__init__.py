"""The operations of a client, written once for both clients.

An operation is a generator: it yields what to send, receives the answer (or the error) and returns the outcome. It does
no I/O itself. A driver runs it, blocking or on asyncio.

    def cancel_everywhere(shards, id):
        for shard in shards:
            outcome = yield from ask(producer.cancel(shard, id))
            if outcome is not CancelOutcome.NOT_FOUND:
                return outcome
        return CancelOutcome.NOT_FOUND

    operation     the steps: a call, a stream of calls, wait, do
    driver        runs operations: `Driver`, `AsyncDriver`
    tracing       puts operations within spans, while a tracer provider is set
    breaker       lets calls fail at once while the server is away

    scheduling    new jobs: one, many, or those of an outbox
    preparation   one job: checks and packs its spec, checks its receipt
    submission    jobs as schedule calls: placed in shards, sent in batches
    confirmation  waits for replicas or disks after a schedule call (`durability`)
    fallback      new jobs of a client with an outbox: sent to the server, or kept while it is away
    outbox        the file that keeps jobs, and its delivery

    bundles       jobs that are counted, and the job that follows them: schedule, close, look up, cancel
    jobs          one job: cancel, reschedule, run now, look up, wait for its end
    listing       the waiting jobs, or those in another state, page by page
    bulk          the jobs that are due in a range: count, cancel, move
    recurring     recurring jobs: put, list, pause, resume, trigger, remove
    dead          dead jobs: list, show, replay, purge
    history       the counts of each recent minute; runs promoted jobs again in one group (`rerun`)
    topics        a client's cache of topics, which finds the shard of a job; changes and pauses topics
    groups        consumer groups: list, remove; removes topics
"""
