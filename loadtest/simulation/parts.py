"""The parts of a fleet, and the clients with which they carry out operations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from loadtest.simulation.ledger import Call, Ledger
from loadtest.simulation.plan import Step
from loadtest.simulation.process import Process
from wheelq import AsyncClient
from wheelq.errors import NotReplicated, OutcomeUnknown, WheelqError


@dataclass(slots=True)
class Actor:
    """A producer's process."""

    name: str
    client: AsyncClient
    ledger: Ledger

    @asynccontextmanager
    async def recording(self, step: Step, topic: str, id: str) -> Any:
        """Records the answer to a call about a job; the body sets `call.outcome`."""
        world = self.ledger.world
        call = Call(step, topic, id, world.now, self.ledger.server.clock_us())
        self.ledger.calls.append(call)
        try:
            yield call
        except (OutcomeUnknown, NotReplicated):
            call.outcome = "unknown"
        except WheelqError as error:
            call.outcome = f"refused: {type(error).__name__}"
        call.answered = world.now
        world.story.tell(self.name, f"#{step.number} {topic}/{id}: {call.outcome}")


@dataclass(slots=True, eq=False)
class Part:
    """A node, worker, producer or service: its current process, and a function that starts one."""

    name: str
    start: Callable[[Process], None]
    process: Process
    stop: Callable[[], None] = lambda: None
    actor: Actor | None = None
    former: list[Process] = field(default_factory=list)
