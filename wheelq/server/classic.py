"""The classic delay-task API, for callers of the service that wheelq replaces: they change only the host.

  POST /delay/task/add    topic, timing_moment (unix seconds), content →  {"dm_error": 0, …, "task_id": 17950000000001}
  POST /delay/task/pull   topic, perhaps task_id                       →  {"dm_error": 0, …, "content": "…"}

First the requests: bodies are JSON or forms; numbers may be text, as they always are in forms. If a form has a field
twice, the last one counts. A body that begins with `{` is JSON, whatever its type says, because `curl -d` calls
everything a form. Text is UTF-8 unless the type names another charset. A content that begins with `{` must be JSON. If
it names a service (`sn`) or a path (`url`), it must name both (v2), so that a callback with a mistake is not silently
kept. Any other text is kept (v1).

Then `Tasks`: jobs with numeric ids, pulled one by one. Every answer is `{"dm_error": 0, "error_msg": "操作成功", …}`:

| dm_error | means                                                     | HTTP |
|----------|-----------------------------------------------------------|------|
| 0        | done                                                      | 200  |
| 1001     | a parameter is missing or wrong                           | 200  |
| 1002     | the body cannot be read                                   | 200  |
| 1003     | the body is too large                                     | 200  |
| 1101     | an API key is needed                                      | 200  |
| 1102     | the API key may not do this                               | 200  |
| 1201     | no task of the topic is due                               | 200  |
| 1202     | the task is not due yet                                   | 200  |
| 1203     | there is no such task, or it was pulled long ago          | 200  |
| 1301     | too many requests: wait as long as Retry-After says       | 429  |
| 1302     | overloaded, or Redis is away: nothing was done            | 503  |
| 1303     | unknown outcome: repeat with the task_id in the answer    | 504  |
| 1500     | the server is at fault                                    | 500  |

Mistakes of the caller get status 200, because callers look only at dm_error. Temporary failures get the status that
proxies and retrying clients know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from pydantic_core import to_json
from starlette.responses import Response

from wheelq.aio import AsyncClient
from wheelq.base.as_json import as_text
from wheelq.base.as_json import parse as parse_json
from wheelq.base.clock import Clock
from wheelq.callbacks.target import HEADER
from wheelq.errors import AWAY, InvalidInput, ServerError
from wheelq.model.checks import LAST_MS, to_ms
from wheelq.model.job import JobSpec, from_ms
from wheelq.model.state import JobState
from wheelq.protocol.calls import notes
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.server import problems
from wheelq.server.coalescing import Coalescing
from wheelq.server.idempotency import NOTHING_MADE
from wheelq.server.intake import Intake
from wheelq.server.leases import PREFIX, Leases
from wheelq.server.problems import Kind, Problem
from wheelq.server.schemas.reading import BodyLimits, charset_of, is_form
from wheelq.transport import AsyncTransport

PATH = "/delay/task/"
NOTHING_DUE = Kind(200, "nothing-due", "No task of this topic is due")
NOT_DUE = Kind(200, "not-due", "The task is not due yet")
NO_TASK = Kind(200, "no-task", "There is no such task, or it was pulled long ago")

_AWAY = 1302
_CODES: dict[Kind, tuple[int, str]] = {
    problems.INVALID: (1001, "参数错误"),
    problems.BAD_REQUEST: (1002, "请求体无法解析"),
    problems.UNSUPPORTED: (1002, "请求体无法解析"),
    problems.TOO_SLOW: (1002, "请求体无法解析"),
    problems.TOO_LARGE: (1003, "请求体过大"),
    problems.NO_KEY: (1101, "需要密钥"),
    problems.NOT_ALLOWED: (1102, "没有权限"),
    problems.FOREIGN_ORIGIN: (1102, "没有权限"),
    NOTHING_DUE: (1201, "没有到期的任务"),
    problems.TOPIC_NOT_FOUND: (1201, "没有到期的任务"),
    NOT_DUE: (1202, "任务未到期"),
    NO_TASK: (1203, "任务不存在"),
    problems.TOO_MANY: (1301, "请求过于频繁"),
    problems.TOPIC_FULL: (1301, "主题已满"),
    problems.OVERLOADED: (_AWAY, "服务繁忙"),
    problems.UNAVAILABLE: (_AWAY, "服务不可用"),
    problems.REFUSED: (_AWAY, "服务不可用"),
    problems.BEING_REMOVED: (_AWAY, "主题正在删除"),
    problems.OUTCOME_UNKNOWN: (1303, "结果未知"),
    problems.NOT_CONFIRMED: (1303, "结果未知"),
}
_FAULT = (1500, "服务内部错误")
_PASSES = 1300
"""Codes from here on are not mistakes of the caller."""


def success(**more: Any) -> Response:
    return Response(to_json({"dm_error": 0, "error_msg": "操作成功", **more}), media_type="application/json")


def failure(problem: Problem) -> Response:
    """Returns the answer for a problem; 404 and 405 of the path itself count as wrong parameters."""
    is_path = problem.kind in (problems.NOT_FOUND, problems.METHOD_NOT_ALLOWED)
    code, words = _CODES[problems.INVALID] if is_path else _CODES.get(problem.kind, _FAULT)
    body: dict[str, Any] = {"dm_error": code, "error_msg": f"{words}: {problem.body()['detail']}"}
    if problem.ids and problem.ids[0].isdecimal():
        body["task_id"] = int(problem.ids[0])
    told = problem.response()
    headers = {name: told.headers[name] for name in ("retry-after", "allow", "connection") if name in told.headers}
    status = problem.kind.status if code >= _PASSES or is_path else 200
    if code == _AWAY:
        status = problems.UNAVAILABLE.status
    return Response(to_json(body), status, headers, "application/json")


FIELDS = 50
LATEST_S = LAST_MS // 1000
TASK_IDS = 10**18
CHARSETS = frozenset({"utf-8", "ascii", "iso8859-1", "cp1252", "gb2312", "gbk", "gb18030", "big5"})
"""The charsets that a request may be in. Python knows more, some of which take very long to decode."""


@dataclass(frozen=True, slots=True)
class Callback:
    """The callback that a v2 content asks for, with its other fields as payload."""

    service: str
    path: str
    body: Mapping[str, Any]


def parse(kind: str, body: bytes, limits: BodyLimits) -> dict[str, Any]:
    """Returns the parameters of a request. Raises: Problem."""
    charset = charset_of(kind)
    if charset not in CHARSETS:
        raise Problem(problems.UNSUPPORTED, f"Its charset is not known here: {kind[:100]!r}.")
    try:
        text = body.decode(charset)
        if is_form(kind) and not text.lstrip().startswith("{"):
            return dict(
                parse_qsl(text, keep_blank_values=True, encoding=charset, max_num_fields=FIELDS, errors="strict")
            )
        found = limits.parse(text.encode())
    except ValueError as error:
        raise Problem(problems.BAD_REQUEST, f"It is neither JSON nor a form: {error}.") from error
    if not isinstance(found, dict):
        raise Problem(problems.BAD_REQUEST, "It must be an object.")
    return found


def topic_of(said: Mapping[str, Any]) -> str:
    """Returns the topic. Raises: InvalidInput."""
    topic = said.get("topic")
    if not isinstance(topic, str) or not topic:
        raise InvalidInput("topic", "missing: a text")
    return topic


def moment_of(said: Mapping[str, Any]) -> datetime:
    """Returns when the task is due. Raises: InvalidInput."""
    seconds = _whole(said, "timing_moment", LATEST_S)
    if seconds is None:
        raise InvalidInput("timing_moment", "missing: unix seconds")
    return from_ms(seconds * 1000)


def task_id_of(said: Mapping[str, Any]) -> int | None:
    """Returns the task's id, if given. Raises: InvalidInput."""
    return _whole(said, "task_id", TASK_IDS)


def content_of(said: Mapping[str, Any]) -> str:
    """Returns the content as text; an object is converted to JSON text. Raises: InvalidInput."""
    content = said.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, (dict, list)):
        return to_json(content).decode()
    raise InvalidInput("content", "missing: a text that holds JSON")


def callback_of(content: str) -> Callback | None:
    """Returns the callback of a content; None: it is only kept (v1). Raises: InvalidInput, if it is a malformed v2."""
    if not content.lstrip().startswith("{"):
        return None
    try:
        found = parse_json(content.encode())
    except ValueError as error:
        raise InvalidInput("content", f"begins with {{ but is not JSON: {error}") from error
    if "sn" not in found and "url" not in found:
        return None
    service, path = found.pop("sn", None), found.pop("url", None)
    for name, value in (("sn", service), ("url", path)):
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"content.{name}", "must be non-empty text, because sn or url is given")
    return Callback(service, path, found)


def _whole(said: Mapping[str, Any], field: str, most: int) -> int | None:
    value = said.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidInput(field, f"must be a whole number from 0 to {most}")
    return value


GROUP = "classic"
LEASE_MS = 30_000
_BY_ID, _IN_LINE = b"i", b"l"  # the origin of a note: the queue skips tasks that were pulled by id
_PASSED_OVER = 1_000
IDS = 100
"""How many ids a process takes at a time, with one trip to Redis."""
IDS_FRESH_S = 1.0


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
        async with self._taking:
            while not self._left or self._clock.monotonic() >= self._stale_at:
                stale_at = self._clock.monotonic() + IDS_FRESH_S
                first = await self._transport.send(notes.take_ids(self._keys, IDS))
                self._left, self._stale_at = range(first, first + IDS), stale_at
            id, self._left = self._left[0], self._left[1:]
        return id


class PulledTask(NamedTuple):
    """The result of a pull."""

    id: str
    content: str


@dataclass(frozen=True)
class Tasks:
    """Adds and pulls tasks, whose content is kept for a while after the pull.

    A pull leases a job, stores its content, and acknowledges it. This order makes a server's death in between harmless:
    the lease ends, and the job is pulled again. A task may be pulled by id before its turn; the queue then skips it.

    If this server has a register of receivers, a task that asks for a callback (v2) is a job with a target; its content
    can be looked up too, but the queue skips it. On such a server a task that is only kept (v1) needs its group before
    it is due. Otherwise the callbacks' group could be the topic's only one, which ignores the task, and the task would
    be lost.
    """

    _client: AsyncClient
    _coalescing: Coalescing
    _leases: Leases
    _intake: Intake
    _transport: AsyncTransport
    _keys: Keys
    _kept_ms: int
    _clock: Clock
    _ids: TaskIds

    async def add(self, topic: str, said: dict[str, Any]) -> int:
        """Create a task; returns its id. With an earlier attempt's `task_id`, only if needed. Raises: WheelqError."""
        at, content, task_id = moment_of(said), content_of(said), task_id_of(said)
        callback = callback_of(content)
        if not self._intake.is_open:
            callback = None  # the task is kept, and can be pulled
        spec = JobSpec(content, at=at)
        if callback is not None:
            target = self._intake.check({"service": callback.service, "path": callback.path})
            spec = JobSpec(dict(callback.body), at=at, headers={HEADER: target.header()})
        self._intake.check_job(topic, spec, "keep")
        if callback is not None:
            await self._intake.prepare(topic, spec, "keep")
        else:
            await self._intake.keep_apart(topic, PREFIX + GROUP)
        if task_id is None:
            task_id = await self._ids.next()
        elif callback is None and await self._was_pulled(topic, str(task_id)):
            return task_id
        key, there = self._note(topic, str(task_id)), None
        if callback is not None:
            kept_ms = max(0, to_ms(at) - self._clock.wall_ms()) + self._kept_ms
            note = notes.remember(key, _BY_ID + content.encode(), kept_ms)
            there = await self._transport.send(note)  # it is not pulled, so store its content now
        try:
            await self._coalescing.schedule(topic, replace(spec, key=str(task_id)), "keep")
        except NOTHING_MADE:
            if callback is not None and there is None:
                with suppress(ServerError):
                    await self._transport.send(notes.forget(key))
            raise
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
            task = PulledTask(job.entry.id, as_text(job.record.payload))
            try:
                note = await self._transport.send(
                    notes.remember(self._note(topic, task.id), _IN_LINE + task.content.encode(), self._kept_ms)
                )
            except ServerError:
                with suppress(ServerError):  # it was not pulled
                    await self._leases.hand_back(topic, GROUP, leased)
                raise
            [is_ours] = await self._leases.ack(topic, GROUP, [job.handle])  # False: its lease has ended
            if is_ours and (note is None or note[:1] == _IN_LINE):
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
        if info.is_finished and PREFIX + GROUP not in info.groups:
            raise Problem(NO_TASK)  # other groups had it, and to look at their jobs is another right
        if not info.is_finished and await self._transport.send(notes.recall(key)) is None:  # else it has been pulled
            await self._check_start(topic, info.due_ms)
        content = as_text(info.payload)
        note = await self._transport.send(notes.remember(key, _BY_ID + content.encode(), self._kept_ms))
        await self._leases.take(topic, GROUP, id, info.shard)
        return PulledTask(id, content if note is None else note[1:].decode())

    async def _check_start(self, topic: str, due_ms: int) -> None:
        """Raises: Problem, if the topic is paused, or the task is later than its `grace`: the queue drops it then."""
        terms = await self._leases.topic(topic)
        if terms.paused:
            raise Problem(NOT_DUE)
        if terms.misfire != "run":
            now_us = await self._transport.send(server_time_us(self._keys.shard(topic, 0).ready))
            if now_us // 1000 > due_ms + terms.grace_ms:
                raise Problem(NO_TASK)

    def _note(self, topic: str, id: str) -> str:
        return self._keys.note("task", f"{topic}\n{id}")
