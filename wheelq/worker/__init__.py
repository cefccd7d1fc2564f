"""The worker: reads ready jobs in a consumer group, runs handlers, settles what came of them.

loop        `Worker`: topics, one delivery, stopping
reader      reads new deliveries, as many as could start at once
handlers    which function runs the jobs of a topic, and how it is called
pool        at most `concurrency` deliveries at a time, with no task of their own unless they wait
outcome     what a handler's result means: done, again, or buried (pure)
settling    tells Redis: acks in batches, retries, burials
recovery    renews what runs, takes over what a dead worker left
"""

from __future__ import annotations

from wheelq.worker.loop import Worker

__all__ = ["Worker"]
