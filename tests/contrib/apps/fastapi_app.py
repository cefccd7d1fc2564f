"""A small service: every process takes requests, and runs a scheduler and a worker beside them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from wheelq import AsyncClient, Job, Scheduler, Worker

worker = Worker.connect()
scheduler = Scheduler.connect()
client = AsyncClient.connect()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with client, asyncio.TaskGroup() as running:
        running.create_task(scheduler.run(patiently=True))
        running.create_task(worker.run(patiently=True))
        yield
        worker.stop()
        scheduler.stop()


app = FastAPI(lifespan=lifespan)


@worker.handler("orders")
def close_order(job: Job) -> None:
    with Path(os.environ["TEST_LOG"]).open("a") as log:
        print(job.payload, file=log)


@app.post("/orders/{order}")
async def order(order: int) -> dict[str, object]:
    receipt = await client.schedule("orders", order, delay=0.2, key=f"order-{order}")
    return {"id": receipt.id, "pid": os.getpid()}
