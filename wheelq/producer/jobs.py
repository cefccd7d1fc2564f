"""`Jobs`: operations on one scheduled job; and `wait_for`, which waits for its end by reading the shard's news.

    look ──not finished──▶ read the news, waiting in the server ──its id is among them──▶ look …
                             └── nothing for `LOOK_AGAIN` seconds ──▶ look …

The news is a short stream, written only if a caller asked for it lately. A job's end may be missing there, because many
jobs ended at once or a connection broke. So the job is looked up again after a few seconds without news of it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from wheelq.base.clock import Clock, SystemClock
from wheelq.errors import InvalidInput, JobFailed, JobNotFound, NotFinished, ServerError
from wheelq.model.checks import LAST_MS, check_flag, check_id, check_topic, due_argument, shown
from wheelq.model.job import CancelOutcome, Payload, Receipt, RescheduleOutcome, RunNowOutcome
from wheelq.model.state import GroupInfo, JobInfo, JobState, least_far
from wheelq.producer.operation import Operation, Poll, ask, wait
from wheelq.producer.topics import Topics
from wheelq.protocol.calls import producer, state
from wheelq.protocol.keys import ShardKeys


class Jobs:
    """Operations on a job by topic and id. With the `partition_key` that it was scheduled with, it is found at once."""

    def __init__(self, topics: Topics, max_delay_ms: int, clock: Clock) -> None:
        self._topics = topics
        self._max_delay_ms = max_delay_ms
        self._clock = clock

    def reschedule(
        self,
        topic: str,
        id: str,
        delay: float | timedelta | None,
        at: datetime | None,
        partition_key: str | None,
        if_due_ms: int | None,
    ) -> Operation[RescheduleOutcome]:
        """RESCHEDULED, RUNNING, CHANGED or NOT_FOUND."""
        due = due_argument(delay, at, self._clock.wall_ms(), self._max_delay_ms)
        if if_due_ms is not None and (type(if_due_ms) is not int or not 0 <= if_due_ms <= LAST_MS):
            raise InvalidInput("if_due_ms", f"must be whole milliseconds since 1970, not {shown(if_due_ms)}")
        call = partial(producer.reschedule, id=id, due=due, if_due_ms=if_due_ms)
        return self._topics.find(topic, id, partition_key, call, RescheduleOutcome.NOT_FOUND)

    def cancel(self, topic: str, id: str, partition_key: str | None, running: bool) -> Operation[CancelOutcome]:
        """CANCELLED, CANCELLING, RUNNING or NOT_FOUND."""
        check_flag(running, "running")
        call = partial(producer.cancel, id=id)
        outcome = yield from self._topics.find(topic, id, partition_key, call, CancelOutcome.NOT_FOUND)
        if running and outcome is not CancelOutcome.NOT_FOUND:
            is_done = outcome is CancelOutcome.CANCELLED  # the second job of a debounced key may run
            ask = partial(producer.ask_to_cancel, channels=self._topics.asks, id=id, only_second=is_done)
            if (yield from self._topics.find(topic, id, partition_key, ask, 0)) and not is_done:
                return CancelOutcome.CANCELLING
        return outcome

    def run_now(self, topic: str, id: str, partition_key: str | None) -> Operation[RunNowOutcome]:
        """PROMOTED, RUNNING, PAUSED, HELD_BACK or NOT_FOUND."""
        known = self._topics.known(check_topic(topic))
        found = (yield from self._topics.read(topic)) if known is None else known.topic
        call = partial(producer.run_now, id=id, terms=found.terms if found else "")
        return (yield from self._topics.find(topic, id, partition_key, call, RunNowOutcome.NOT_FOUND))

    def get(self, job: Receipt[Any], partition_key: str | None) -> Operation[JobInfo | None]:
        """Returns the state of a job; None if it is not known."""
        return _state_of(self._topics, job, partition_key)


def _state_of(topics: Topics, job: Receipt[Any], partition_key: str | None) -> Operation[JobInfo | None]:
    """Returns the state of a job; without its life, that of the latest with its id."""

    def ended_ms(info: JobInfo | None) -> int | None:
        return None if info is None or job.life or not info.is_finished else info.finished_ms or 0

    call = partial(state.get, id=job.id, life=job.life)

    def is_keyed(info: JobInfo | None) -> bool:
        return info is not None and info.partition_key is not None

    return topics.find(
        job.topic, job.id, partition_key, call, None, changes=False, ended_ms=ended_ms, is_keyed=is_keyed
    )


_TOO_LATE = "dropped because it was too late (expires, misfire)"
UNKNOWN = f"is not known: never scheduled, cancelled, {_TOO_LATE}, or no longer kept"
GONE = f"is gone: cancelled, {_TOO_LATE}, or done by a worker that keeps no results"
UNKEPT = "is done in this group, which keeps its result no longer"
LONGEST_WAIT = 1e9
"""Seconds, beyond which any timeout is the same."""
LOOK_AGAIN = 3.0
"""Seconds after which an awaited job is looked up without any news of it."""


def meant(topic: str | Receipt[Any], id: str | None) -> Receipt[Any]:
    """Returns the receipt of the job, or one that means the latest job of the id. Raises: InvalidInput."""
    if isinstance(topic, Receipt):
        if id is not None:
            raise InvalidInput("id", "leave it out: the receipt has it")
        return topic
    if id is None:
        raise InvalidInput("id", "missing: give topic and id, or the job's receipt")
    return Receipt(id, 0, True, topic=topic)


def wait_for(
    topics: Topics,
    job: Receipt[Any],
    timeout: float | None,
    group: str | None,
    partition_key: str | None,
) -> Operation[Payload]:
    """Returns what the handler returned. Raises: JobFailed, JobNotFound, NotFinished, TopicNotFound, InvalidInput.

    It waits by this machine's clock, also in a test whose own clock stands still.
    """
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout != timeout
    ):
        raise InvalidInput("timeout", f"must be seconds (a number), or None, not {shown(timeout)}")
    if group is not None:
        check_id(group, "group")
    topic, id, life = job.topic, job.id, job.life
    clock = SystemClock()
    ends_at = None if timeout is None else clock.monotonic() + min(timeout, LONGEST_WAIT)
    if not (yield from topics.read_existing(topic)).keep_done_ms:
        how = f"to wait for them, set its keep_done_ms (wheelq configure {topic} --keep-done 1h)"
        raise InvalidInput("topic", f"{topic!r} forgets finished jobs at once: {how}")
    info = yield from _state_of(topics, job, partition_key)
    if info is None:
        raise JobNotFound(topic, id, UNKNOWN)
    keys, id = topics.shard(topic, info.shard), info.id  # perhaps the second one of a debounced key
    cursor = None
    while True:
        latest = yield from ask(state.listen(keys))
        info = yield from ask(state.get(keys, id, life))
        if info is None:
            raise JobNotFound(topic, id, GONE)
        one = _end_in(info, group)
        if one is not None:
            if group is not None and one.finished_ms is None:
                raise JobNotFound(topic, id, UNKEPT)
            return one.result
        left = LOOK_AGAIN if ends_at is None else min(LOOK_AGAIN, ends_at - clock.monotonic())
        if left <= 0 and timeout is not None:
            its = info.groups.get(group or "")
            stranger = group if its is None and info.groups else None
            raise NotFinished(topic, id, (its or info).state.value, timeout, stranger)
        cursor = yield from _news_of(keys, id, cursor or latest, clock, left)


def _end_in(info: JobInfo, group: str | None) -> GroupInfo | None:
    """Returns the end of the job in one group or in all; None until then. Raises: JobFailed."""
    ended = {name: one for name, one in info.groups.items() if one.is_finished and group in (None, name)}
    for name, one in ended.items():
        if one.state is JobState.DEAD:
            raise JobFailed(info.topic, info.id, name, one.reason or "", one.last_error or "", one.attempt or 0)
    if group is not None:
        return ended.get(group)
    return least_far(ended) if info.is_finished else None


def _news_of(keys: ShardKeys, id: str, cursor: str, clock: Clock, seconds: float) -> Operation[str]:
    """Reads the news until the job is in it or the time is over. Returns the next cursor."""
    ends_at = clock.monotonic() + seconds
    while (left := ends_at - clock.monotonic()) > 0:
        try:
            news = yield Poll(partial(state.news_since, keys, cursor), left)
        except ServerError:
            yield from wait(left)
            break
        if news is not None:
            cursor, ended = news
            if id in ended:
                break
    return cursor
