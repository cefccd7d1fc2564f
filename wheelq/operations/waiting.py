"""Waiting for the end of a job: by the shard's news, not by asking again and again.

    look ──not finished──▶ read the news, waiting in the server ──its id is among them──▶ look …
                             └── nothing for `LOOK_AGAIN` seconds ──▶ look …

The news are a short stream, written only while somebody has asked for them lately. What was missed there, because many
ended at once or a connection broke, costs a few seconds: then the job is looked up all the same.
"""

from __future__ import annotations

from wheelq.clock import Clock
from wheelq.errors import InvalidInput, JobFailed, JobNotFound, NotFinished, ServerError
from wheelq.job import Payload
from wheelq.operations.operation import Operation, ask, wait
from wheelq.operations.topics import Topics
from wheelq.protocol.calls import state
from wheelq.protocol.keys import ShardKeys
from wheelq.state import GroupInfo, JobInfo, JobState

LOOK_AGAIN = 3.0
"""Seconds after which a job that is waited for is looked up without any news of it."""


def wait_for(
    topics: Topics,
    clock: Clock,
    topic: str,
    id: str,
    timeout: float | None,
    group: str | None,
    partition_key: str | None,
) -> Operation[Payload]:
    """What the job's handler returned. Raises: JobFailed, JobNotFound, NotFinished, TopicNotFound, InvalidInput."""
    ends_at = None if timeout is None else clock.monotonic() + timeout
    if not (yield from topics.read_existing(topic)).keep_done_ms:
        raise InvalidInput("topic", f"{topic!r} forgets finished jobs at once: set its keep_done_ms to wait for them")
    info = yield from topics.find(topic, id, partition_key, lambda keys: state.get(keys, id), None)
    if info is None:
        raise JobNotFound(topic, id, "is not known: never scheduled, cancelled, or no longer kept")
    keys = topics.shard(topic, info.shard)
    cursor = None
    while True:
        latest = yield from ask(state.listen(keys))
        info = yield from ask(state.get(keys, id))
        if info is None:
            raise JobNotFound(topic, id, "is gone: cancelled, or done by a worker that keeps nothing of it")
        one = _end_in(info, group)
        if one is not None:
            return one.result
        left = LOOK_AGAIN if ends_at is None else min(LOOK_AGAIN, ends_at - clock.monotonic())
        if left <= 0 and timeout is not None:
            raise NotFinished(topic, id, info.state.value, timeout)
        cursor = yield from _news_of(keys, id, cursor or latest, clock, left)


def _end_in(info: JobInfo, group: str | None) -> GroupInfo | None:
    """How the job ended, in one group or in all; None while it has not. Raises: JobFailed."""
    ended = {name: one for name, one in info.groups.items() if one.is_finished and group in (None, name)}
    for name, one in ended.items():
        if one.state is JobState.DEAD:
            raise JobFailed(info.topic, info.id, name, one.reason or "", one.last_error or "", one.attempt or 0)
    if group is not None:
        return ended.get(group)
    return max(ended.values(), key=lambda one: one.finished_ms or 0) if info.is_finished else None


def _news_of(keys: ShardKeys, id: str, cursor: str, clock: Clock, seconds: float) -> Operation[str]:
    """Read the news until the job is among them, or the time is over; the cursor to go on from."""
    ends_at = clock.monotonic() + seconds
    while (left := ends_at - clock.monotonic()) > 0:
        try:
            cursor, ended = yield from ask(state.news_since(keys, cursor, max(1, int(left * 1000))))
        except ServerError:
            yield from wait(left)
            break
        if id in ended:
            break
    return cursor
