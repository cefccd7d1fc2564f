# Generated from wheelq/aio/__init__.py by .ci/unasync.py: edit that file.
"""The producer for blocking programs, made from `wheelq.aio`: the same methods with the same outcomes.

    client      `Client`: schedules jobs and manages them
    dead        `DeadLetters`, as `client.dead`: manages dead jobs
    recurring   `Recurring`, as `client.recurring`: manages recurring jobs

Each method runs an operation of `wheelq.producer`.
"""

from wheelq.client.client import Client
from wheelq.client.dead import DeadLetters
from wheelq.client.recurring import Recurring

__all__ = ["Client", "DeadLetters", "Recurring"]
