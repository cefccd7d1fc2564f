"""What carries out the work of the two clients, each in its own way: `blocking.Carrier`, `aio.AsyncCarrier`.

    run             an operation, written once for both (see `operations`)
    schedule        one job, in one round trip
    schedule_many   an order of many jobs, streamed
    deliver         what an outbox kept

A lost reply is forgiven, and the call repeated with the same ids; while the server is away, calls fail at once.
"""

from __future__ import annotations

from wheelq.carriers.aio import AsyncCarrier
from wheelq.carriers.blocking import Carrier

__all__ = ["AsyncCarrier", "Carrier"]
