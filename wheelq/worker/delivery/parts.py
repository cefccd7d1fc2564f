"""`WorkerParts`: the objects that all parts of a worker share."""

from __future__ import annotations

from wheelq.worker.delivery.consumer import Consumer
from wheelq.worker.delivery.ending import Ending
from wheelq.worker.delivery.recovery import Recovery
from wheelq.worker.delivery.settling import Settler


class WorkerParts(Consumer):
    """The shared parts of one worker: itself as a consumer, and the settling and recovery of its deliveries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ending = Ending()
        self.settler = Settler(self)
        self.recovery = Recovery(self, self.settler)
