"""The demo's jobs: 3,000 orders of four kinds, drawn from a seed that is always the same.

Each topic stands for a real delay ("close it in 30 minutes"). Each topic shortens its time by its own factor, so that
all orders fall due 2 to 18 seconds after the import. Nearly one in four belongs to a flash sale: placed at one instant,
and so due at one instant.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

SEED = 42
FLASH_SALE = 700
"""How many orders were placed at one instant, to be closed 30 minutes later unless they are paid."""
NEAREST_S, FURTHEST_S = 2.0, 18.0
"""The range of due times after the import."""
QUICK_SHARE = 3
"""`--quick` takes every third order, and lets time pass three times as fast again."""

GOODS = ("espresso machine", "trail shoes", "desk lamp", "winter coat", "headphones", "tea set", "bike lock")
CALLS = ("your driver is 10 minutes away", "your table is ready soon", "the meeting starts in 5 minutes")
STATUSES = ("503", "504", "timeout", "connection reset")


@dataclass(frozen=True, slots=True)
class OrderKind:
    """One topic of the demo, and the story it tells."""

    topic: str
    usual_delay: str
    """Its typical delay, as text."""
    demo_delay_s: int
    """The same delay in the demo, as text."""
    orders: int
    """How many fall due at separate times."""
    cancel_reason: str
    """The word for a cancelled order of this topic."""


KINDS: Mapping[str, OrderKind] = {
    kind.topic: kind
    for kind in (
        OrderKind("orders.close", "30 min", 10, 700, "paid"),
        OrderKind("red-packets.return", "24 h", 18, 600, "opened"),
        OrderKind("reminders", "10 min", 8, 500, "called off"),
        OrderKind("callbacks.retry", "1 min", 4, 500, "answered"),
    )
}


@dataclass(frozen=True, slots=True)
class Order:
    """A job to schedule."""

    topic: str
    key: str
    delay_ms: int
    """From the import to its due time, shortened."""
    payload: Mapping[str, str]


def draw_orders(*, quick: bool = False) -> list[Order]:
    """Returns the orders, the same at every call; for a quick demo a third of them."""
    draw = random.Random(SEED)
    share, sale = QUICK_SHARE if quick else 1, KINDS["orders.close"]
    placed = [(kind, draw.uniform(NEAREST_S, FURTHEST_S)) for kind in KINDS.values() for _ in range(kind.orders)]
    placed += [(sale, float(sale.demo_delay_s))] * FLASH_SALE
    draw.shuffle(placed)
    orders = []
    for number, (kind, delay_s) in enumerate(placed, start=10_001):
        what, payload = _contents(kind.topic, draw)
        payload["customer"] = f"customer-{draw.randrange(1_000, 10_000)}"
        orders.append(Order(kind.topic, f"{what}-{number}", round(1000 * delay_s / share), payload))
    return orders[::share]


def shown_delay(kind: OrderKind, *, quick: bool = False) -> str:
    """How far a topic's time is shortened, in words: "30 min → 10 s"."""
    return f"{kind.usual_delay} → {kind.demo_delay_s / (QUICK_SHARE if quick else 1):.3g} s"


def _contents(topic: str, draw: random.Random) -> tuple[str, dict[str, str]]:
    """The word that keys of this topic begin with, and a payload."""
    match topic:
        case "orders.close":
            return "order", {"amount": f"{draw.uniform(9, 400):.2f}", "message": draw.choice(GOODS)}
        case "red-packets.return":
            return "packet", {"amount": draw.choice(("6.66", "8.88", "18.88", "88.00"))}
        case "reminders":
            return "reminder", {"message": draw.choice(CALLS)}
        case _:
            url = f"https://shop-{draw.randrange(1, 60)}.example/paid"
            return "callback", {"message": draw.choice(STATUSES), "url": url}
