"""What a client does, written once for both of its twins.

An operation is a generator: it yields what is to be sent, is given the answer (or the error) and returns the outcome.
It does no I/O itself; `client.Client` carries it out blocking and `aio.AsyncClient` on asyncio, in a dozen lines each.

    def cancel_everywhere(shards, id):
        for shard in shards:
            outcome = yield from ask(producer.cancel(shard, id))
            if outcome is not CancelOutcome.NOT_FOUND:
                return outcome
        return CancelOutcome.NOT_FOUND

    operation   the steps: ask one, ask many, wait, do
    fallback    new jobs, where there is an outbox: to the server, else kept
    jobs        one job: cancel, reschedule, run now, look up
    browse      the jobs that wait, page by page
    recurring   recurring jobs: put, list, pause, resume, trigger, remove
    dead        the jobs that were given up: list, show, replay, purge
    replaying   what was fired between two times, once more in one group
    waiting     waiting for the end of a job
    topics      what a client knows of topics; where a job may be; changing a topic, pausing it

Only how jobs are sent is written out in the twins (`carriers`): it is the hot path, and streams.
"""

from __future__ import annotations

from wheelq.operations.browse import Browse
from wheelq.operations.dead import Dead
from wheelq.operations.fallback import Fallback
from wheelq.operations.jobs import Jobs
from wheelq.operations.operation import Do, Many, Operation, Step, Wait, ask, ask_all, wait
from wheelq.operations.recurring import Recurrences
from wheelq.operations.replaying import Replayed, replay
from wheelq.operations.topics import Topics
from wheelq.operations.waiting import wait_for

__all__ = [
    "Browse",
    "Dead",
    "Do",
    "Fallback",
    "Jobs",
    "Many",
    "Operation",
    "Recurrences",
    "Replayed",
    "Step",
    "Topics",
    "Wait",
    "ask",
    "ask_all",
    "replay",
    "wait",
    "wait_for",
]
