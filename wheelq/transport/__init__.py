"""The only place that talks to Redis, and the only one that imports the redis package.

    failures   what a redis error means: refused, unavailable, or outcome unknown
    address    from a URL to connections
    blocking   `Transport`: for the blocking client; a pool, one call at a time per connection
    aio        `AsyncTransport`: for everything on asyncio; many calls share one connection
    siblings   `Siblings`: spare connections on asyncio for calls that hold theirs up

A call is never sent twice on the sly. redis-py's own retries are off, because they repeat what has perhaps been done;
connections are used directly, because only so it is known whether a request had left when things broke.
"""

from __future__ import annotations

from wheelq.transport.address import Address
from wheelq.transport.aio import AsyncTransport, Subscription
from wheelq.transport.blocking import Transport
from wheelq.transport.siblings import Siblings

__all__ = ["Address", "AsyncTransport", "Siblings", "Subscription", "Transport"]
