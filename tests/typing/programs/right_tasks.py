"""Right: tasks, their jobs and their results, on both clients."""
# pyright: strict

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import assert_type
from uuid import UUID

from wheelq import AsyncClient, CancelOutcome, Client, Job, JobSpec, Receipt, Receipts, Retry, TaskJob, Worker

worker = Worker.connect("redis://127.0.0.1:1", group="shop")


@dataclass
class Order:
    id: UUID
    due: date | None = None


@worker.task("orders", retry=Retry(max_attempts=5), timeout=30)
async def close_order(order_id: int, reason: str = "unpaid") -> bool:
    return order_id > 0 and reason != ""


@worker.task()
def remind(who: str, *, when: datetime | None = None) -> None:
    print(who, when)


@worker.task(ordered="key")
async def ship(job: Job, order: Order, weight: float) -> Order:
    await job.progress(0.5)
    return order if weight and job.attempt else Order(order.id)


@worker.task("prices")
def price(job: Job[object], sku: str) -> float:
    return float(len(sku) + job.attempt)


@worker.task()
def log(message: object, level: int = 0) -> None:
    print(message, level)


@worker.task()
async def tick() -> int:
    return 1


def blocking(client: Client) -> None:
    receipt = client.schedule(close_order.job(42, reason="late"), delay=1800, key="order-42")
    assert_type(receipt, Receipt[bool])
    assert_type(client.wait(receipt, timeout=5), bool)
    print(client.wait(receipt))
    any_receipt: Receipt[object] = receipt
    print(any_receipt.id)
    client.schedule(remind.job("ann"), at=datetime.now().astimezone())
    client.schedule(
        remind.job(who="ann", when=datetime.now().astimezone()), delay=timedelta(minutes=1), priority="high"
    )
    shipping: TaskJob[Order] = ship.job(Order(UUID(int=1)), weight=1)
    assert_type(client.wait(client.schedule(shipping, delay=0)), Order)
    assert_type(client.wait(client.schedule(price.job(sku="a"), delay=0)), float)
    client.schedule(log.job(message="a"), delay=0)
    client.schedule(log.job("a", level=2), delay=0)
    many = client.schedule_many(close_order, [JobSpec(close_order.job(n), delay=n) for n in range(3)])
    assert_type(many, Receipts[bool])
    specs = [JobSpec(remind.job("ann"), delay=1), JobSpec(payload=remind.job("bob"), priority="low")]
    assert_type(client.schedule_many(remind, specs)[0], Receipt[None])
    any_specs: list[JobSpec] = [JobSpec(remind.job("ann"), delay=1)]
    client.schedule_many(remind, any_specs)
    print(client.cancel("orders", "order-42") is CancelOutcome.CANCELLED)
    client.recurring.put(tick.job(), "tick", every=60)
    assert_type(remind("ann"), None)
    assert price(Job("a", "prices", None, 0, 1, "1-0", 0), sku="a") > 0


async def on_asyncio(client: AsyncClient) -> None:
    receipt = await client.schedule(close_order.job(42), delay=1800)
    assert_type(await client.wait(receipt), bool)
    assert_type(await client.wait(await client.schedule(ship.job(Order(UUID(int=1)), 2.0), delay=0)), Order)
    receipts = await client.schedule_many(tick, [JobSpec(tick.job(), delay=0)])
    assert_type(await client.wait(receipts[0]), int)
    await client.recurring.put(remind.job("ann"), "morning", cron="0 9 * * *")
    assert await close_order(42)
    assert_type(await tick(), int)


def untyped(client: Client) -> None:
    receipt = client.schedule("orders", {"id": 42}, delay=1800, key="order-42", on_duplicate="replace")
    print(client.wait("orders", receipt.id), client.wait(receipt), receipt.topic)
    many: list[Receipt] = client.schedule_many("orders", [JobSpec({"id": n}, delay=n) for n in range(3)])
    specs = [JobSpec({"id": 42}, delay=1)]
    specs += [JobSpec("any", 2.5, priority="low"), JobSpec(delay=3)]
    client.schedule_many("orders", specs)
    print(many[0].due, client.recurring.put("orders", "nightly", {"all": True}, cron="@daily").next)
