"""With the client that openapi-python-client makes: schedule, lease, progress, ack with a result, wait.

scenario.py URL
"""

import asyncio
import sys

from wheelq_client import Client
from wheelq_client.api.jobs import get_job, make_job, make_jobs
from wheelq_client.api.leases import ack, lease, progress
from wheelq_client.api.topics import change_settings
from wheelq_client.models import (
    AckRequest,
    JobState,
    LeaseRequest,
    ManyJobs,
    NewJob,
    ProgressRequest,
    TopicSettingsChange,
)


async def main(url: str) -> None:
    async with Client(url, raise_on_unexpected_status=True) as client:
        many = ManyJobs([NewJob(id="py-1", delay=3600), NewJob(id="py-2", at="2030-01-31T09:00:00Z")])
        assert (await make_jobs.asyncio("later", client=client, body=many)).made == 2
        await make_job.asyncio("python", client=client, body=NewJob(id="py", payload={"to": "ada"}, delay=0))
        await change_settings.asyncio("python", client=client, body=TopicSettingsChange(keep_done_ms=60_000))
        waiting = asyncio.create_task(get_job.asyncio("python", "py", client=client, wait=20))
        leased = await lease.asyncio("python", "billing", client=client, body=LeaseRequest(wait=20))
        (job,) = leased.jobs
        assert (job.id, job.payload) == ("py", {"to": "ada"})
        half = ProgressRequest([job.handle], 0.5, text="half")
        assert (await progress.asyncio("python", "billing", client=client, body=half)).done == [True]
        assert (await get_job.asyncio("python", "py", client=client)).progress.fraction == 0.5
        done = AckRequest([job.handle], result={"sent": True})
        assert (await ack.asyncio("python", "billing", client=client, body=done)).done == [True]
        view = await waiting
        assert (view.state, view.result) == (JobState.DONE, {"sent": True})


asyncio.run(main(sys.argv[1]))
