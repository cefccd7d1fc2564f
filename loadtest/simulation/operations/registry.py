"""The registry of operations. An operation draws its arguments, and carries them out with a client.

@operation("cancel", weight=8)
class Cancel:
    def draw(draft): ...            returns the arguments; None if there is nothing to do it to
    async def do(actor, step): ...  calls the client; `actor.tells` records the outcome for the oracle
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step

Args = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of step."""

    name: str
    weight: float
    draw: Callable[[Draft], Args | None]
    do: Callable[[Actor, Step], Coroutine[Any, Any, None]]
    trait: str
    """Only seeds with this trait have the operation. It is drawn separately, and does not change other steps."""
    who: str
    """The part that carries it out; "" for one of the producers."""


OPERATIONS: dict[str, Operation] = {}


def operation(name: str, weight: float, *, trait: str = "", who: str = "") -> Callable[[Any], Any]:
    """Register an operation. With a `trait` of `plan.APART`, the weight is its number in a seed."""

    def register(what: Any) -> Any:
        OPERATIONS[name] = Operation(name, weight, what.draw, what.do, trait, who)
        return what

    return register
