"""The outbox: a file in which a producer keeps jobs while the server is away, and from which it delivers them later.

    client.schedule ──▶ server                         as long as the server answers
          │ it is away, or jobs wait here already
          ▼
        store (SQLite, on disk before the caller is told) ──courier, in order──▶ server

    store     what is kept, in which order, what was rejected
    file      where: an SQLite file, shared by processes, safe over forks
    courier   delivers in the background: a thread for the blocking client, a task for the asyncio one

**Kept** means on disk: the jobs survive a restart of the producer, of the server, and of the machine. **In order**:
while anything waits here, later jobs of the same file queue behind it. **Once**: a job is deleted after the server has
it; should the producer die in between, it is delivered again with the same id and the same bytes, and the server
answers that it has it. (A job that ran meanwhile and is forgotten would run again: let finished jobs be kept,
`keep_done`, for as long as an outage may last.) **Due time**: a delay counts from when the caller asked, by this
machine's clock corrected by the server's as last seen; what is past due at delivery runs at once.

A job that was to be refused if its id is taken (`on_duplicate="raise"`) and finds it taken is put aside, and shown by
`wheelq outbox`: nobody waits for that answer any more.
"""

from __future__ import annotations

from wheelq.outbox.courier import AsyncCourier, Courier
from wheelq.outbox.store import Kept, Outbox, OutboxInfo, Parcel, Rejected

__all__ = ["AsyncCourier", "Courier", "Kept", "Outbox", "OutboxInfo", "Parcel", "Rejected"]
