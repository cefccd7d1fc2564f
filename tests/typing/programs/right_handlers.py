"""Right: handlers with typed payloads, and without."""
# pyright: strict

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NotRequired, TypedDict, assert_type

import msgspec
import pydantic

from wheelq import Job, Retry, Worker

worker = Worker.connect("redis://127.0.0.1:1", group="shop")


@dataclass
class Order:
    id: int
    total: Decimal


class Notice(TypedDict):
    to: str
    text: NotRequired[str]


class Parcel(msgspec.Struct):
    grams: int


class Customer(pydantic.BaseModel):
    email: str


@worker.handler("orders", retry=Retry(max_attempts=5))
async def close(job: Job[Order]) -> Decimal:
    assert_type(job.payload, Order)
    return job.payload.total * 2


@worker.handler("notices")
def notify(job: Job[Notice]) -> str:
    return job.payload["to"] + job.payload.get("text", "")


@worker.handler("parcels", ordered=True)
async def weigh(job: Job[Parcel]) -> int:
    await job.progress(0.1)
    return job.payload.grams


@worker.batch_handler("customers", max_size=10)
async def greet(jobs: list[Job[Customer]]) -> list[str]:
    return [job.payload.email for job in jobs]


@worker.handler("anything")
async def anything(job: Job) -> None:
    print(job.payload["id"], job.payload.whatever)


@worker.handler("explicit")
async def explicit(job: Job[Any]) -> None:
    print(job.payload["id"])


@worker.batch_handler("many")
def store(jobs: list[Job]) -> None:
    print([job.payload["id"] for job in jobs])


async def test_handlers_are_functions() -> None:
    assert await close(Job("a", "orders", Order(1, Decimal(2)), 0, 1, "1-0", 0)) == 4
