"""The worker that compose runs until you name yours."""

from wheelq import Job, Worker

worker = Worker.connect()


@worker.handler("orders")
async def close(job: Job) -> None:
    print(f"order {job.id} is {job.lateness * 1000:.1f} ms late: {job.payload}", flush=True)
