"""The changes to the orders while they wait: drawn from a seed before anything starts, so that they can be repeated.

5 % of all orders are cancelled and another 5 % moved, half of them to later and half to sooner. Every tenth change is
at the last moment, within 20 ms of the due time: then "too late" is as good an answer as "done", and the verdict holds
wheelq to the answer it gave. 15 % of the callbacks fail at their first attempt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from wheelq.cli.demo.orders import Order

CANCELLED_SHARE = MOVED_SHARE = 0.05
LAST_MOMENT_SHARE = 0.1
LAST_MOMENT_MS = 20
FAILING_TOPIC = "callbacks.retry"
FAILING_SHARE = 0.15
FAILS_FIRST = "demo-fails-first"
"""The header that marks a job whose first attempt must fail."""


@dataclass(frozen=True, slots=True)
class Change:
    """One order to cancel or to move. Times are milliseconds after the import."""

    order: Order
    when_ms: int
    to_ms: int | None
    """Its new due time; None: it is cancelled."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """All random decisions of the demo."""

    changes: tuple[Change, ...]
    """All changes, in the order in which they are made; an order has at most one."""
    failing: frozenset[str]
    """Keys of the callbacks that fail at their first attempt."""
    last_due_ms: int
    """When the last order falls due, before or after its move."""


def draw_plan(orders: Sequence[Order], seed: int) -> DemoPlan:
    """Returns the plan for this seed."""
    draw = random.Random(seed)
    last_ms = max(order.delay_ms for order in orders)
    cancelled, moved = round(len(orders) * CANCELLED_SHARE), round(len(orders) * MOVED_SHARE)
    chosen = draw.sample(orders, cancelled + moved)
    changes = [Change(order, _moment(draw, order), None) for order in chosen[:cancelled]]
    changes += [_move(draw, order, last_ms) for order in chosen[cancelled:]]
    callbacks = [order.key for order in orders if order.topic == FAILING_TOPIC]
    return DemoPlan(
        tuple(sorted(changes, key=lambda change: change.when_ms)),
        frozenset(draw.sample(callbacks, round(len(callbacks) * FAILING_SHARE))),
        max(last_ms, *(change.to_ms for change in changes if change.to_ms is not None)),
    )


def _moment(draw: random.Random, order: Order) -> int:
    """Returns when to change an order: while it waits, sometimes at the last moment."""
    if draw.random() < LAST_MOMENT_SHARE:
        return order.delay_ms + draw.randint(-LAST_MOMENT_MS, LAST_MOMENT_MS)
    return round(order.delay_ms * draw.uniform(0.1, 0.95))


def _move(draw: random.Random, order: Order, last_ms: int) -> Change:
    when_ms = _moment(draw, order)
    if draw.random() < 0.5:
        return Change(order, when_ms, order.delay_ms + round(last_ms * draw.uniform(0.03, 0.12)))
    return Change(order, when_ms, when_ms + round(abs(order.delay_ms - when_ms) * draw.uniform(0.3, 0.9)))
