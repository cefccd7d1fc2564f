"""wheelq init: writes a starter that runs as written: tasks, their test, and a compose file if asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wheelq.cli.options import UP_PORT
from wheelq.cli.output import say
from wheelq.cli.shipped import write_new

SHOP = '''\
"""A shop: an order that nobody pays is closed after half an hour."""

from wheelq import Client, Retry, Worker

worker = Worker.connect()
client = Client.connect()


@worker.task("orders", retry=Retry(max_attempts=5), timeout=30)  # its parameters are the payload of its jobs
async def close_order(order_id: int, reason: str = "unpaid") -> None:
    print(f"order {order_id} is closed: {reason}", flush=True)


@worker.task("reminders")  # a plain function runs in a thread
def remind(customer: str) -> None:
    print(f"{customer} is reminded", flush=True)


def place_order(order_id: int, customer: str) -> None:
    """Close the order in half an hour, unless it is paid; remind the customer before that."""
    client.schedule(close_order.job(order_id), delay=1800, key=f"order-{order_id}")
    client.schedule(remind.job(customer), delay=1200, key=f"remind-{order_id}")


def pay_order(order_id: int) -> None:
    """Cancel what `place_order` scheduled."""
    client.cancel("orders", f"order-{order_id}")
    client.cancel("reminders", f"remind-{order_id}")
'''

TEST = '''\
"""Tests of the shop, in memory: time stands still until a test moves it."""

import shop


def test_an_order_is_closed_after_half_an_hour(wheelq):
    wheelq.add(shop.worker)
    wheelq.client.schedule(shop.close_order.job(42), delay=1800, key="order-42")
    wheelq.advance(minutes=29)
    wheelq.assert_not_ran("orders")
    wheelq.advance(minutes=1)
    wheelq.assert_ran("orders", "order-42", times=1)


def test_a_paid_order_is_not_closed(wheelq):
    wheelq.add(shop.worker)
    wheelq.client.schedule(shop.close_order.job(42), delay=1800, key="order-42")
    wheelq.client.cancel("orders", "order-42")
    wheelq.advance(hours=1)
    wheelq.assert_not_ran("orders")


def test_a_task_is_a_function(capsys):
    shop.remind("Ada")
    assert capsys.readouterr().out == "Ada is reminded\\n"
'''

COMPOSE = """\
# A server, two schedulers (a leader and its standby), a worker and the HTTP service: docker compose up
x-wheelq: &wheelq
  image: python:3.13-slim
  working_dir: /shop
  volumes: [".:/shop"]
  environment: { WHEELQ_URL: "redis://valkey:6379/0" }
  depends_on: [valkey]
  restart: unless-stopped

services:
  valkey:
    image: valkey/valkey:9
    command: valkey-server --appendonly yes --appendfsync everysec --maxmemory-policy noeviction
    volumes: ["valkey:/data"]
    ports: ["127.0.0.1:6379:6379"]
  scheduler:
    <<: *wheelq
    command: sh -c "pip install -q 'wheelq[all]' && exec wheelq scheduler"
    deploy: { replicas: 2 }
  worker:
    <<: *wheelq
    command: sh -c "pip install -q 'wheelq[all]' && exec wheelq worker shop:worker"
  http:
    <<: *wheelq
    command: sh -c "pip install -q 'wheelq[all]' && exec wheelq server --host 0.0.0.0"
    ports: ["127.0.0.1:7380:7380"]

volumes: { valkey: {} }
"""

NEXT = (
    "wheelq up shop:worker",
    f"""wheelq schedule orders '{{"order_id": 42}}' --delay 2s --url redis://127.0.0.1:{UP_PORT}""",
    "pytest -q test_shop.py",
)


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write; made if it does not exist.")] = Path("."),
    compose: Annotated[bool, typer.Option("--compose", help="Write a compose.yaml, too, with every process.")] = False,
) -> None:
    """Write a starter: shop.py with two tasks, and test_shop.py. Nothing is overwritten."""
    files = {"shop.py": SHOP, "test_shop.py": TEST} | ({"compose.yaml": COMPOSE} if compose else {})
    for path in write_new(directory, {name: text.encode() for name, text in files.items()}):
        say(f"wrote {path}")
    if directory != Path("."):
        say(f"next: cd {directory}")
    for command in NEXT:
        say(f"next: {command}")
