"""Jobs that a test expects to be there."""

from __future__ import annotations

from wheelq import AsyncClient, Client, JobInfo


def job_of(client: Client, topic: str, id: str) -> JobInfo:
    """A job that must be known."""
    found = client.get(topic, id)
    assert found is not None, f"there is no job {id} of {topic}"
    return found


async def ajob_of(client: AsyncClient, topic: str, id: str) -> JobInfo:
    """The same with a client on asyncio."""
    found = await client.get(topic, id)
    assert found is not None, f"there is no job {id} of {topic}"
    return found
