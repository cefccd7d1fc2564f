"""The demo's jobs: about 3,000 orders of four kinds, read from `orders.csv` beside this module.

The file holds real delays ("close it in 30 minutes"). Nobody waits that long for a demo, so each topic has its time
shortened by a factor of its own, and all of them fall due 2 to 18 seconds after the import. One row in four belongs to
a flash sale: placed at one instant, and so due at one instant.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import islice

ORDERS_FILE = "orders.csv"

QUICK_SHARE = 3
"""`--quick` takes every third row, and lets time pass three times as fast again."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One topic of the demo, and the story it tells."""

    topic: str
    usual_delay: str
    """The delay that is typical of it, as people say it."""
    usual_delay_s: int
    demo_delay_s: int
    """What that becomes in the demo."""
    cancel_reason: str
    """What became of it when somebody cancels such a job."""


KINDS: Mapping[str, Kind] = {
    kind.topic: kind
    for kind in (
        Kind("orders.close", "30 min", 1_800, 10, "paid"),
        Kind("red-packets.return", "24 h", 86_400, 18, "opened"),
        Kind("reminders", "10 min", 600, 8, "called off"),
        Kind("callbacks.retry", "1 min", 60, 4, "answered"),
    )
}


@dataclass(frozen=True, slots=True)
class Order:
    """One row: a job to schedule."""

    topic: str
    key: str
    delay_ms: int
    """From the import to its due time, shortened."""
    payload: Mapping[str, str]


def read_orders(*, quick: bool = False) -> list[Order]:
    """The orders of the shipped file, or for a quick demo a third of them."""
    share = QUICK_SHARE if quick else 1
    return list(_rows(share))


def shown_delay(kind: Kind, *, quick: bool = False) -> str:
    """How far a topic's time is shortened, in words: "30 min → 10 s"."""
    return f"{kind.usual_delay} → {kind.demo_delay_s / (QUICK_SHARE if quick else 1):.3g} s"


def _rows(share: int) -> Iterator[Order]:
    text = resources.files("wheelq.cli.demo").joinpath(ORDERS_FILE).read_text(encoding="utf-8")
    for row in islice(csv.DictReader(text.splitlines()), 0, None, share):
        topic, key, delay_s = row.pop("topic"), row.pop("key"), float(row.pop("delay_s"))
        kind = KINDS[topic]
        delay_ms = round(1000 * delay_s * kind.demo_delay_s / kind.usual_delay_s / share)
        yield Order(topic, key, delay_ms, {name: value for name, value in row.items() if value})
