"""Wrong on every line marked so: arguments of jobs, results, and calls that nobody awaits."""

from __future__ import annotations

from dataclasses import dataclass

from wheelq import AsyncClient, Client, Job, JobSpec, Worker

worker = Worker.connect("redis://127.0.0.1:1", group="shop")


@dataclass
class Order:
    id: int


@worker.task("orders")
async def close_order(order_id: int, reason: str = "unpaid") -> bool:
    return order_id > 0 and reason != ""


@worker.task()
def remind(who: str, *, urgent: bool = False) -> None:
    print(who, urgent)


@worker.task()
async def ship(job: Job, order: Order) -> Order:
    return order if job.attempt else Order(0)


@worker.task()
def price(job: Job[object], sku: str) -> float:
    return float(len(sku) + job.attempt)


close_order.job("42")  # error
close_order.job()  # error
close_order.job(42, raeson="late")  # error
close_order.job(42, "late", 3)  # error
close_order.job(42, reason=None)  # error
remind.job("ann", True)  # error
remind.job(who=7)  # error
ship.job({"id": 42})  # error
ship.job(Job("a", "ship", {}, 0, 1, "1-0", 0), Order(1))  # error
price.job(7)  # error
worker.task(retry=5)  # error
worker.task(ordered="shard")  # error


@worker.task  # error
def without_parentheses(who: str) -> None:
    print(who)


def blocking(client: Client) -> None:
    client.schedule(close_order.job(42), delay="soon")  # error
    client.schedule(close_order.job(42), {"order_id": 42}, delay=1)  # error
    client.schedule(close_order, delay=1)  # error
    number: int = client.wait(client.schedule(price.job("a"), delay=1))  # error
    text: str = client.wait(client.schedule(close_order.job(42), delay=1))  # error
    client.wait("orders")  # error
    client.schedule_many(close_order, [close_order.job(42)])  # error
    client.schedule_many(close_order, [JobSpec(remind.job("ann"), delay=1)])  # error
    client.schedule_many(remind, (JobSpec(close_order.job(n), delay=n) for n in range(3)))  # error
    client.recurring.put(remind.job(42), "morning", cron="@daily")  # error
    client.recurring.put(remind.job("ann"), "morning", corn="@daily")  # error
    client.recurring.put("reminders", cron="@daily")  # error
    print(number, text)


async def on_asyncio(client: AsyncClient) -> None:
    client.schedule(close_order.job(42), delay=1)  # error
    client.schedule("orders", {"id": 42}, delay=1)  # error
    client.schedule_many(close_order, [JobSpec(close_order.job(42), delay=1)])  # error
    close_order(42)  # error
    receipt = client.schedule(close_order.job(42), delay=1)
    await client.wait(receipt)  # error
    text: str = await client.wait(await client.schedule(ship.job(Order(1)), delay=1))  # error
    await close_order("42")  # error
    remind(who=42)  # error
    print(text)
