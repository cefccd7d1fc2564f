"""The demo's jobs, 3,000 orders of four kinds, and the changes to them: drawn from seeds before anything starts.

Each topic stands for a real delay ("close it in 30 minutes"), and shortens it by its own factor, so that all orders
fall due 2 to 18 seconds after they are scheduled. Nearly one in four belongs to a flash sale: placed at one instant,
and so due at one instant.

5 % of all orders are cancelled and another 5 % moved, half of them to later and half to sooner. Every tenth change is
at the last moment, within 20 ms of the due time: then "too late" is as good an answer as "done", and the verdict holds
wheelq to the answer it gave. 15 % of the callbacks fail at their first attempt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SEED = 42
FLASH_SALE = 700
"""How many orders were placed at one instant, to be closed 30 minutes later unless they are paid."""
NEAREST_S, FURTHEST_S = 2.0, 18.0
QUICK_SHARE = 3
"""`--quick` takes every third order, and lets time pass three times as fast again."""
CHANGED_SHARE = 0.05
"""The share of orders that are cancelled, and of those that are moved."""
LAST_MOMENT_SHARE = 0.1
LAST_MOMENT_MS = 20
FAILING_TOPIC = "callbacks.retry"
FAILING_SHARE = 0.15
FAILS_FIRST = "demo-fails-first"
"""The header that marks a job whose first attempt must fail."""


class OrderKind(NamedTuple):
    """One topic of the demo."""

    noun: str
    """Its keys begin with it."""
    usual_delay: str
    demo_delay_s: int
    """The usual delay, shortened."""
    orders: int
    """How many fall due at separate times."""


KINDS = {
    "orders.close": OrderKind("order", "30 min", 10, 700),
    "red-packets.return": OrderKind("packet", "24 h", 18, 600),
    "reminders": OrderKind("reminder", "10 min", 8, 500),
    "callbacks.retry": OrderKind("callback", "1 min", 4, 500),
}
"""By topic."""


class Order(NamedTuple):
    """A job to schedule."""

    topic: str
    key: str
    delay_ms: int
    payload: dict[str, str]


class Change(NamedTuple):
    """One order to cancel or to move. Times are milliseconds after the orders were scheduled."""

    order: Order
    when_ms: int
    to_ms: int | None
    """Its new due time; None: it is cancelled."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """All random decisions of the demo."""

    changes: list[Change]
    """All changes, in the order in which they are made; an order has at most one."""
    failing: set[str]
    """Keys of the callbacks that fail at their first attempt."""
    last_due_ms: int
    """When the last order falls due, before or after its move."""


def draw_orders(*, quick: bool = False) -> list[Order]:
    """Returns the orders, the same at every call; for a quick demo a third of them."""
    draw = random.Random(SEED)
    share = QUICK_SHARE if quick else 1
    placed = [(topic, draw.uniform(NEAREST_S, FURTHEST_S)) for topic, kind in KINDS.items() for _ in range(kind.orders)]
    placed += [("orders.close", float(KINDS["orders.close"].demo_delay_s))] * FLASH_SALE
    draw.shuffle(placed)
    orders = []
    for number, (topic, delay_s) in enumerate(placed, start=10_001):
        payload = {"customer": f"customer-{draw.randrange(1_000, 10_000)}", "amount": f"{draw.uniform(9, 400):.2f}"}
        orders.append(Order(topic, f"{KINDS[topic].noun}-{number}", round(1000 * delay_s / share), payload))
    return orders[::share]


def draw_plan(orders: Sequence[Order], seed: int) -> DemoPlan:
    draw = random.Random(seed)
    last_ms = max(order.delay_ms for order in orders)
    share = round(len(orders) * CHANGED_SHARE)
    chosen = draw.sample(orders, 2 * share)
    changes = [Change(order, _moment(draw, order), None) for order in chosen[:share]]
    changes += [_move(draw, order, last_ms) for order in chosen[share:]]
    callbacks = [order.key for order in orders if order.topic == FAILING_TOPIC]
    return DemoPlan(
        sorted(changes, key=lambda change: change.when_ms),
        set(draw.sample(callbacks, round(len(callbacks) * FAILING_SHARE))),
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
