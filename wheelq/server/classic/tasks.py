"""Tasks of the classic API: jobs with numeric ids, pulled one by one, whose content is kept for a while after that.

A pull leases a job, stores its content, and acknowledges it. This order makes a server's death in between harmless: the
lease ends, and the job is pulled again. A task may be pulled by id before its turn; the queue then skips it.

If this server has a register of receivers, a task that asks for a callback (v2) is a job with a target; its content can
be looked up too, but the queue skips it. On such a server a task that is only kept (v1) needs its group before it is
due. Otherwise the callbacks' group could be the topic's only one, which ignores the task, and the task would be lost.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, NamedTuple

from wheelq.aio import AsyncClient
from wheelq.base.as_json import as_json
from wheelq.base.clock import Clock
from wheelq.callbacks.target import HEADER
from wheelq.errors import AWAY
from wheelq.model.checks import check_topic, to_ms
from wheelq.model.job import JobSpec
from wheelq.model.state import JobState
from wheelq.protocol.calls import notes
from wheelq.protocol.keys import Keys
from wheelq.server.classic import request
from wheelq.server.classic.envelope import NO_TASK, NOT_DUE, NOTHING_DUE
from wheelq.server.coalescing import Coalescing
from wheelq.server.intake import Intake
from wheelq.server.leases import PREFIX, Leases
from wheelq.server.problems import Problem
from wheelq.transport import AsyncTransport

GROUP = "classic"
LEASE_MS = 30_000
_BY_ID, _IN_LINE = b"i", b"l"  # the origin of a note: the queue skips tasks that were pulled by id
_PASSED_OVER = 1_000


class TaskIds:
    """Assigns numeric ids: unix seconds × 10000 + counter, unique over all processes.

    A process takes a hundred at a time and uses them within a second. It drops the rest, so that an id still tells the
    second in which it was assigned.
    """

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._left = range(0)
        self._stale_at = 0.0
        self._taking = asyncio.Lock()

    async def next(self) -> int:
        """Returns a new id. Raises: ServerError."""
        while not self._left or self._clock.monotonic() >= self._stale_at:
            async with self._taking:
                if not self._left or self._clock.monotonic() >= self._stale_at:  # no other task did meanwhile
                    stale_at = self._clock.monotonic() + IDS_FRESH_S
                    first = await self._transport.send(notes.take_ids(self._keys, IDS))
                    self._left, self._stale_at = range(first, first + IDS), stale_at
        id, self._left = self._left[0], self._left[1:]
        return id


IDS = 100
"""How many ids a process takes at a time, with one trip to Redis."""
IDS_FRESH_S = 1.0


class PulledTask(NamedTuple):
    """The result of a pull."""

    id: str
    content: str


class Tasks:
    """Adds and pulls tasks."""

    def __init__(
        self,
        client: AsyncClient,
        coalescing: Coalescing,
        leases: Leases,
        intake: Intake,
        transport: AsyncTransport,
        keys: Keys,
        kept_ms: int,
        clock: Clock,
    ) -> None:
        self._client = client
        self._coalescing = coalescing
        self._leases = leases
        self._intake = intake
        self._clock = clock
        self._ids = TaskIds(transport, keys, clock)
        self._transport = transport
        self._keys = keys
        self._kept_ms = kept_ms

    async def add(self, topic: str, said: dict[str, Any]) -> int:
        """Create a task; returns its id. With an earlier attempt's `task_id`, only if needed. Raises: WheelqError."""
        at, content = request.moment_of(said), request.content_of(said)
        callback, target = request.callback_of(content), None
        if not self._intake.is_open:
            callback = None  # the task is kept, and can be pulled
        if callback is not None:
            target = self._intake.check({"service": callback.service, "path": callback.path})
            await self._intake.prepare(check_topic(topic))
        else:
            await self._intake.keep_apart(check_topic(topic), PREFIX + GROUP)
        task_id = request.task_id_of(said)
        if task_id is None:
            task_id = await self._ids.next()
        elif callback is None and await self._was_pulled(topic, str(task_id)):
            return task_id
        spec = JobSpec(content, at=at, key=str(task_id))
        if callback is not None and target is not None:
            kept_ms = max(0, to_ms(at) - self._clock.wall_ms()) + self._kept_ms
            note = notes.remember(self._note(topic, str(task_id)), _BY_ID + content.encode(), kept_ms)
            await self._transport.send(note)  # it is not pulled, so store its content now
            spec = JobSpec(dict(callback.body), at=at, key=str(task_id), headers={HEADER: target.header()})
        await self._coalescing.schedule(topic, spec, "keep")
        return task_id

    async def _was_pulled(self, topic: str, id: str) -> bool:
        """Whether a task with this id is known to have been created and pulled within the last days."""
        try:
            return await self._transport.send(notes.recall(self._note(topic, id))) is not None
        except AWAY:
            return False

    async def pull(self, topic: str) -> PulledTask:
        """Returns the next due task. Raises: Problem, WheelqError."""
        for _ in range(_PASSED_OVER):
            leased = await self._leases.lease(topic, GROUP, 1, LEASE_MS, 0)
            if not leased:
                break
            job = leased[0]
            task = PulledTask(job.entry.id, _text(job.record.payload))
            note = await self._transport.send(
                notes.remember(self._note(topic, task.id), _IN_LINE + task.content.encode(), self._kept_ms)
            )
            await self._leases.ack(topic, GROUP, [job.handle])
            if note is None or note[:1] == _IN_LINE:
                return task
        raise Problem(NOTHING_DUE)

    async def pull_one(self, topic: str, id: str) -> PulledTask:
        """Returns the task with this id, if it is due or was pulled in the last days. Raises: Problem, WheelqError."""
        info = await self._client.get(topic, id)
        if info is not None and info.state is JobState.WAITING:
            raise Problem(NOT_DUE)
        key = self._note(topic, id)
        if info is None:
            note = await self._transport.send(notes.recall(key))
            if note is None:
                raise Problem(NO_TASK)
            return PulledTask(id, note[1:].decode())
        content = _text(info.payload)
        note = await self._transport.send(notes.remember(key, _BY_ID + content.encode(), self._kept_ms))
        await self._leases.take(topic, GROUP, id, info.shard)
        return PulledTask(id, content if note is None else note[1:].decode())

    def _note(self, topic: str, id: str) -> str:
        return self._keys.note("task", f"{topic}\n{id}")


def _text(payload: Any) -> str:
    """Returns the content of a task; for a job made in another way, its payload as JSON."""
    if isinstance(payload, bytes):
        payload = base64.b64encode(payload).decode()  # as in payload_base64; as_json has the URL-safe alphabet
        return f'"{payload}"'
    return payload if isinstance(payload, str) else as_json(payload).decode()
