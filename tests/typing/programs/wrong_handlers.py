"""Wrong on every line marked so: fields that payloads do not have, and functions that take no job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pydantic

from wheelq import Job, Worker

worker = Worker.connect("redis://127.0.0.1:1", group="shop")


@dataclass
class Order:
    id: int


class Notice(TypedDict):
    to: str


class Parcel(msgspec.Struct):
    grams: int


class Customer(pydantic.BaseModel):
    email: str


@worker.handler("orders")
async def close(job: Job[Order]) -> None:
    print(job.payload.number)  # error
    print(job.payload["id"])  # error
    text: str = job.payload.id  # error
    job.progress("half")  # error
    print(text)


@worker.handler("notices")
def notify(job: Job[Notice]) -> str:
    print(job.payload["two"])  # error
    return job.payload.to  # error


@worker.handler("parcels")
async def weigh(job: Job[Parcel]) -> str:
    return job.payload.grams  # error


@worker.batch_handler("customers")
async def greet(jobs: list[Job[Customer]]) -> None:
    print([job.payload.mail for job in jobs])  # error


@worker.handler("orders")  # error
async def takes_an_order(order: Order) -> None:
    print(order)


@worker.handler("orders")  # error
async def takes_two(job: Job, order: Order) -> None:
    print(job, order)


@worker.batch_handler("orders")  # error
async def takes_one(job: Job) -> None:
    print(job)
