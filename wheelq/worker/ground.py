"""What the lanes of a worker stand on."""

from __future__ import annotations

from dataclasses import dataclass

from wheelq.clock import Clock, ServerClock
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.held import Held
from wheelq.worker.recovery import Recovery
from wheelq.worker.settling import Settler


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """The parts of a worker that every lane uses."""

    transport: AsyncTransport
    group: str
    consumer: str
    settings: WorkerSettings
    held: Held
    settler: Settler
    recovery: Recovery
    clock: Clock
    server: ServerClock
