"""A program for each queue, which schedules and runs jobs as the queue's documentation advises.

    PROGRAM produce URL FIRST COUNT AHEAD_MS EVERY_MS    schedules; prints seconds, first due time
    PROGRAM work URL LOG SECONDS                         runs jobs until SIGTERM, 100 at a time
    PROGRAM schedule URL                                 wheelq alone has a scheduler process

A job's payload is its number and padding, 64 characters. A handler writes a line to LOG when it starts; if SECONDS is
not 0, it sleeps for this time and writes another line. Adapters in Python share `common`, which does not need wheelq:
a peer may have an interpreter of its own.

wheelq      schedule_many, a scheduler and a worker
streaq      enqueue_many, a worker
bullmq.mjs  addBulk in calls of 1,000, a worker
common      arguments, payloads and the handler
"""
