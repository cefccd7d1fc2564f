"""The producer on asyncio; from it `.ci/unasync.py` makes `wheelq.client`, the same for blocking programs.

    client      `AsyncClient`: schedules jobs and manages them
    dead        `AsyncDeadLetters`, as `client.dead`: manages dead jobs
    recurring   `AsyncRecurring`, as `client.recurring`: manages recurring jobs

Each method runs an operation of `wheelq.producer`.
"""

from wheelq.aio.client import AsyncClient
from wheelq.aio.dead import AsyncDeadLetters
from wheelq.aio.recurring import AsyncRecurring

__all__ = ["AsyncClient", "AsyncDeadLetters", "AsyncRecurring"]
