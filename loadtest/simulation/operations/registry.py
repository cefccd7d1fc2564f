"""The registry of operations. An operation draws its arguments, and carries them out with a client.

@operation("cancel", weight=8, draw=draw_job)     `draw_job(draft)` returns the arguments; None: there is nothing to do
async def cancel(actor, step): ...                calls the client; `actor.recording` records the outcome for the oracle
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step

Args = Mapping[str, Any]
Draw = Callable[[Draft], Args | None]
Do = Callable[[Actor, Step], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of step."""

    name: str
    weight: float
    draw: Draw
    do: Do
    trait: str
    """Only seeds with this trait have the operation. It is drawn separately, and does not change other steps."""
    who: str
    """The part that carries it out; "" for one of the producers."""


OPERATIONS: dict[str, Operation] = {}


def operation(name: str, weight: float, *, draw: Draw, trait: str = "", who: str = "") -> Callable[[Do], Do]:
    """Register an operation. With a `trait` of `plan.APART`, the weight is its number in a seed."""

    def register(do: Do) -> Do:
        OPERATIONS[name] = Operation(name, weight, draw, do, trait, who)
        return do

    return register
