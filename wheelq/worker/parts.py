"""`WorkerParts`: the objects that all parts of a worker share."""

from __future__ import annotations

from wheelq.base.clock import Clock
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.consumer import Consumer
from wheelq.worker.ending import Ending
from wheelq.worker.recovery import Recovery
from wheelq.worker.settling import Settler


class WorkerParts(Consumer):
    """The shared parts of one worker: itself as a consumer, and the settling and recovery of its deliveries."""

    def __init__(
        self, transport: AsyncTransport, keys: Keys, group: str, name: str, settings: WorkerSettings, clock: Clock
    ) -> None:
        """`name` is the worker's name in the group."""
        super().__init__(transport, keys, group, name, settings, clock)
        self.ending = Ending()
        self.settler = Settler(self)
        self.recovery = Recovery(self, self.settler)
