"""Tasks of the classic API: jobs with numeric ids, pulled one by one, whose content is kept for a while after that.

A pull leases a job, writes its content down, and acknowledges it; in this order, so that a server that dies in between
costs nothing: the lease ends, and the job is pulled again. A pull by id may come before the line has reached the task;
then the line passes it over.

A task that asks to be called back (v2) is a job with a target, where this server has a register of receivers; its
content can be looked up as well, but the line passes it over. There a task that is only kept (v1) needs its group
before it is due: else the callbacks' group, to which it is nothing to do, could be the only one, and the task gone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from wheelq.aio import AsyncClient
from wheelq.arguments import check_topic
from wheelq.clock import Clock
from wheelq.errors import AWAY
from wheelq.job import JobSpec
from wheelq.protocol.calls import notes
from wheelq.protocol.keys import Keys
from wheelq.server.callbacks.desk import Desk
from wheelq.server.callbacks.target import HEADER
from wheelq.server.classic import request
from wheelq.server.classic.envelope import NO_TASK, NOT_DUE, NOTHING_DUE
from wheelq.server.classic.ids import TaskIds
from wheelq.server.gathering import Gathering
from wheelq.server.jsontext import as_json
from wheelq.server.leases import PREFIX, Leases
from wheelq.server.problems import Problem
from wheelq.state import JobState
from wheelq.transport import AsyncTransport

GROUP = "classic"
LEASE_MS = 30_000
_BY_ID, _IN_LINE = b"i", b"l"  # how a note came to be: what was pulled by id is passed over in the line
_PASSED_OVER = 1_000


class Task(NamedTuple):
    """What a pull finds."""

    id: str
    content: str


class Tasks:
    """Adds and pulls tasks."""

    def __init__(
        self,
        client: AsyncClient,
        gathering: Gathering,
        leases: Leases,
        desk: Desk,
        transport: AsyncTransport,
        keys: Keys,
        kept_ms: int,
        clock: Clock,
    ) -> None:
        self._client = client
        self._gathering = gathering
        self._leases = leases
        self._desk = desk
        self._clock = clock
        self._ids = TaskIds(transport, keys, clock)
        self._transport = transport
        self._keys = keys
        self._kept_ms = kept_ms

    async def add(self, topic: str, said: dict[str, Any]) -> int:
        """Make a task; its id. With the `task_id` of an earlier attempt it is made once. Raises: WheelqError."""
        at, content = request.moment_of(said), request.content_of(said)
        callback = request.callback_of(content) if self._desk.is_open else None
        target = None
        if callback is not None:
            target = self._desk.check({"service": callback.service, "path": callback.path})
            await self._desk.prepare(check_topic(topic))
        else:
            await self._desk.keep_apart(check_topic(topic), PREFIX + GROUP)
        task_id = request.task_id_of(said)
        if task_id is None:
            task_id = await self._ids.next()
        elif callback is None and await self._was_pulled(topic, str(task_id)):
            return task_id
        spec = JobSpec(content, at=at, key=str(task_id))
        if callback is not None and target is not None:
            kept_ms = max(0, int(at.timestamp() * 1000) - self._clock.wall_ms()) + self._kept_ms
            note = notes.remember(self._note(topic, str(task_id)), _BY_ID + content.encode(), kept_ms)
            await self._transport.send(note)  # nobody pulls it, who could write it down
            spec = JobSpec(dict(callback.body), at=at, key=str(task_id), headers={HEADER: target.header()})
        await self._gathering.schedule(topic, spec, "keep")
        return task_id

    async def _was_pulled(self, topic: str, id: str) -> bool:
        """Whether a task of this id was made and pulled within the last days, as far as can be told now."""
        try:
            return await self._transport.send(notes.recall(self._note(topic, id))) is not None
        except AWAY:
            return False

    async def pull(self, topic: str) -> Task:
        """The next task that is due. Raises: Problem, WheelqError."""
        for _ in range(_PASSED_OVER):
            leased = await self._leases.lease(topic, GROUP, 1, LEASE_MS, 0)
            if not leased:
                break
            job = leased[0]
            task = Task(job.entry.id, _text(job.record.payload))
            note = await self._transport.send(
                notes.remember(self._note(topic, task.id), _IN_LINE + task.content.encode(), self._kept_ms)
            )
            await self._leases.ack(topic, GROUP, [job.handle])
            if note is None or note[:1] == _IN_LINE:
                return task
        raise Problem(NOTHING_DUE)

    async def pull_one(self, topic: str, id: str) -> Task:
        """The task of this id, if it is due, or was pulled within the last days. Raises: Problem, WheelqError."""
        info = await self._client.get(topic, id)
        if info is not None and info.state is JobState.DELAYED:
            raise Problem(NOT_DUE)
        key = self._note(topic, id)
        if info is None:
            note = await self._transport.send(notes.recall(key))
            if note is None:
                raise Problem(NO_TASK)
            return Task(id, note[1:].decode())
        content = _text(info.payload)
        note = await self._transport.send(notes.remember(key, _BY_ID + content.encode(), self._kept_ms))
        await self._leases.take(topic, GROUP, id, info.shard)
        return Task(id, content if note is None else note[1:].decode())

    def _note(self, topic: str, id: str) -> str:
        return self._keys.note("task", f"{topic}\n{id}")


def _text(payload: Any) -> str:
    """The content of a task; of a job that was made in another way, its payload as JSON."""
    return payload if isinstance(payload, str) else as_json(payload).decode()
