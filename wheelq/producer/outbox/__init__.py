"""The outbox: a file in which a producer keeps jobs while the server is away, and from which it delivers them later.

    client.schedule ──▶ server                         as long as the server answers
          │ it is away, or jobs already wait here
          ▼
        store (SQLite, on disk before the caller is told) ──courier, in order──▶ server

    kept      the values that these parts pass to each other
    store     the kept jobs, in order, and the rejected ones
    courier   delivers in the background: a thread for the blocking client, a task for the asyncio one

**Kept** means on disk: the jobs survive a restart of the producer, of the server, and of the machine. **In order**:
while a job waits here, later jobs of the same file queue behind it. **Once**: a job is deleted after the server has it,
even if others of its parcel were refused. While the file cannot be written, the producer remembers the delivered jobs.
If it dies then, they are delivered again with the same ids and bytes, and the server answers that it has them. (A job
that ran meanwhile and was forgotten runs again: set `keep_done_ms` to the longest outage to expect.) **Due time**: a
delay counts from the call, by the server's clock, estimated from its last answer (up to 0.02 % of the time since too
late, because clocks drift). Without any answer so far, this machine's clock is used, and the file remembers its uptime
at the call: whoever delivers the job in the same boot of the machine asks for the server's time and corrects the due
time. After a reboot, and where boots have no id (not Linux), it stays as it is. Jobs that are past due at delivery run
at once.

A job with `on_duplicate="raise"` whose id is taken at delivery is set aside and shown by `wheelq outbox`, because its
caller no longer waits for the error.
"""
