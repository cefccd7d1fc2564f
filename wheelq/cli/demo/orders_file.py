"""Makes `orders.csv`: `python -m wheelq.cli.demo.orders_file > wheelq/cli/demo/orders.csv`.

The file is shipped, so that a newcomer can open it and sees what is imported; this is how it came about. Drawn from a
fixed seed: the same on every machine (a test compares).
"""

from __future__ import annotations

import csv
import io
import random
import sys

from wheelq.cli.demo.orders import KINDS, Kind

COLUMNS = ("topic", "key", "delay_s", "customer", "amount", "message", "url")

SHARES = {"orders.close": 700, "red-packets.return": 600, "reminders": 500, "callbacks.retry": 500}
"""How many rows of each topic fall due at a time of their own."""
FLASH_SALE = 700
"""How many orders were placed at one instant, and are to be closed 30 minutes later if nobody pays."""
NEAREST_S, FURTHEST_S = 2.0, 18.0
"""The range of due times in the demo's own seconds; the file holds what they stand for."""
GOODS = ("espresso machine", "trail shoes", "desk lamp", "winter coat", "headphones", "tea set", "bike lock")
CALLS = ("your driver is 10 minutes away", "your table is ready soon", "the meeting starts in 5 minutes")
STATUSES = ("503", "504", "timeout", "connection reset")


def make_file(seed: int = 42) -> str:
    """The whole file as text."""
    draw = random.Random(seed)
    rows = [_row(draw, kind, draw.uniform(NEAREST_S, FURTHEST_S)) for kind in _kinds()]
    rows += [_row(draw, KINDS["orders.close"], KINDS["orders.close"].demo_delay_s) for _ in range(FLASH_SALE)]
    draw.shuffle(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate(rows, start=10_001):
        writer.writerow(row | {"key": f"{row['key']}-{number}"})
    return text.getvalue()


def _kinds() -> list[Kind]:
    return [KINDS[topic] for topic, rows in SHARES.items() for _ in range(rows)]


def _row(draw: random.Random, kind: Kind, demo_delay_s: float) -> dict[str, str]:
    delay_s = demo_delay_s * kind.usual_delay_s / kind.demo_delay_s
    customer = f"customer-{draw.randrange(1_000, 10_000)}"
    row = {"topic": kind.topic, "delay_s": f"{delay_s:.2f}", "customer": customer}
    match kind.topic:
        case "orders.close":
            return row | {"key": "order", "amount": f"{draw.uniform(9, 400):.2f}", "message": draw.choice(GOODS)}
        case "red-packets.return":
            return row | {"key": "packet", "amount": draw.choice(("6.66", "8.88", "18.88", "88.00"))}
        case "reminders":
            return row | {"key": "reminder", "message": draw.choice(CALLS)}
        case _:
            url = f"https://shop-{draw.randrange(1, 60)}.example/paid"
            return row | {"key": "callback", "message": draw.choice(STATUSES), "url": url}


if __name__ == "__main__":
    sys.stdout.write(make_file())
