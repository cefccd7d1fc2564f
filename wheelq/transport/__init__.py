"""The only place that talks to Redis, and the only one that imports the redis package.

    blocking   `Transport`: for the blocking client         aio   `AsyncTransport`: for everything on asyncio
    server     a pool of connections to one server          pipe  one connection to one server, shared by many calls

    routes     in a cluster or behind sentinels: each call to the server that serves its key
    journey    where a call goes next when it was turned away (pure)
    chart      reads which server serves what
    slots      which server serves what (pure)

    subscription   listens to channels
    guard          a transport behind a circuit breaker
    siblings       `Siblings`: spare connections on asyncio for calls that hold theirs up
    address        from a URL to connections
    failures       what a redis error means: refused, unavailable, or outcome unknown

A call is never sent twice on the sly. redis-py's own retries are off, because they repeat what has perhaps been done;
connections are used directly, because only so it is known whether a request had left when things broke. What a cluster
turned away was not done, and is sent again.
"""

from __future__ import annotations

from wheelq.transport.address import Address
from wheelq.transport.aio import AsyncTransport
from wheelq.transport.blocking import Transport
from wheelq.transport.guard import AsyncGuarded, Guarded
from wheelq.transport.siblings import Siblings
from wheelq.transport.subscription import Subscription

__all__ = ["Address", "AsyncGuarded", "AsyncTransport", "Guarded", "Siblings", "Subscription", "Transport"]
