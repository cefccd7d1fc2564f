"""The outbox: a file in which a producer keeps jobs while the server is away, and from which it delivers them later.

    client.schedule ──▶ server                         as long as the server answers
          │ it is away, or jobs already wait here
          ▼
        store (SQLite, on disk before the caller is told) ──courier, in order──▶ server

    kept      the values that these parts pass to each other
    file      the SQLite file, and who owns it
    store     the kept jobs, in order, and the rejected ones
    courier   delivers in the background: a thread for the blocking client, a task for the asyncio one

**Kept** means on disk: the jobs survive a restart of the producer, of the server, and of the machine. **In order**:
while a job waits here, later jobs of the same file queue behind it.

**Exactly once**, while the file is intact and can be written: the file says which jobs a call takes to which shard, and
under which tag, before the call is made. If its reply is lost, or the producer dies, the very same call is made again,
and the server gives its first answer, although the jobs may have run meanwhile. After the answer, one transaction
deletes the jobs that the server has, and releases the others for later calls.

    fix ──▶ send ──▶ take the answers ──▶ fix …      a crash at any arrow repeats the call with its tag

The server keeps an answer until the next call to its shard says that it may be forgotten, and for a day at most; for 12
hours at least, if the call was repeated. **At least once**, with the same ids and bytes, therefore holds

- after the restore of the outbox's file from a backup: the answers to its calls may be forgotten
- if a producer dies, or is closed, while the file cannot be written: until then it remembers what it has sent
- if more than 12 hours pass between a lost reply and the repeat
- for a job that a client sent itself before it put it here, because the replies were lost, if it is delivered after the
  time for which answers to clients are kept (`Tagging`)

In these cases a job that is still alive, or is kept as finished (`keep_done_ms`), is found by its id and not made
again.

**Due time**: a delay counts from the call, by the server's clock, estimated from its last answer (up to 0.02 % of the
time since too late, because clocks drift). If all answers so far took so long that this estimate is rough, or if there
was none and this machine's clock is used, the file remembers its uptime at the call: whoever delivers the job in the
same boot of the machine asks for the server's time and corrects the due time. After a reboot, and where boots have no
id (not Linux), it stays as it is. Jobs that are past due at delivery run at once.

A job with `on_duplicate="raise"` whose id is taken at delivery is set aside and shown by `wheelq outbox`, because its
caller no longer waits for the error.
"""
