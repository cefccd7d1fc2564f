"""The only place that talks to Redis, and the only one that imports the redis package.

    blocking   `Transport`: for the blocking client         aio   `AsyncTransport`: for everything on asyncio
    server     a pool of connections to one server          pipe  one connection to one server, shared by many calls

    routes     in a cluster or behind sentinels: sends each call to the server that serves its key
    redirects  decides where a redirected call goes next (pure)
    topology   reads which server serves which keys
    slots      holds which server serves which keys (pure)
    together   several calls sent as one, of which some were not done (pure)
    streams    `CallStream`: makes the calls of a stream one after another

    subscription   listens to channels
    address        from a URL to connections; the URL is an argument, a setting or in the environment
    startup        waits for a server that cannot be used yet, and checks that it is new enough
    memory         `memory://name`: a server in this process, for tests
    failures       what a redis error means: refused, unavailable, or outcome unknown
    advice         what to write instead of the URL (pure)
    probing        finds out whether a port speaks TLS, after a connection to it has failed

No call is silently sent twice. redis-py's own retries are off, because they could repeat a call that was done.
Connections are used directly, because only then is it known whether a request was sent before an error. A call that a
cluster redirected was not done, and is sent again.
"""

from wheelq.transport.address import Address, server_address
from wheelq.transport.aio import AsyncTransport
from wheelq.transport.blocking import Transport
from wheelq.transport.subscription import Subscription

__all__ = ["Address", "AsyncTransport", "Subscription", "Transport", "server_address"]
