"""Jobs as callers and handlers see them.

    JobSpec ──schedule──▶ Receipt           producer: payload and time → id, due time, whether it is new
    Job                                     handler: one delivery of one job
    state.JobInfo                           anyone: where a job stands

A *job id* is either given (`key="order-42"`, unique in its topic while the job is alive) or made by the client (`ids`),
so a call with the same id makes no second job while the first is alive. A *life* tells jobs of one id from each other.
`checks` checks the arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, TypedDict, overload

from wheelq.errors import InvalidInput
from wheelq.settings import Durability

Payload = Any
"""None, bool, int (64 bit), float, str, bytes, and lists and string-keyed dicts of these.

Producers may also give dataclasses, models, UUIDs, dates and more; `convert` lists them and how they are sent.
"""

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # `typing` has defaults from Python 3.13

    from wheelq.model.task import TaskJob

    # The default is not written as `Any`: mypy could not tell by `Job` alone which overload of a decorator is meant.
    M = TypeVar("M", default=Payload)
    S = TypeVar("S", default=Payload)
    J = TypeVar("J", bound=TaskJob[Any])
    R = TypeVar("R", default=Payload, covariant=True)
else:
    from typing import TypeVar

    M = TypeVar("M")
    S = TypeVar("S")
    R = TypeVar("R", covariant=True)

OnDuplicate = Literal["keep", "replace", "raise"]

Priority = Literal["high", "normal", "low"]
"""Orders the jobs that are due in the same millisecond. A job that is due earlier is always promoted earlier."""


SECOND = "~second"
"""What the second id of a debounced key ends with."""


@dataclass(slots=True)  # not frozen: bulk producers make one for every job, and a frozen one takes five times as long
class JobSpec(Generic[S]):
    """One job to schedule: `payload` and either `delay` (seconds or timedelta) or `at` (aware datetime).

        client.schedule_many("orders", [JobSpec({"id": n}, delay=1800, key=f"order-{n}") for n in range(1_000)])

    `key` is the job's id; without it, the client makes one. `headers` travel beside the payload. `partition_key`
    chooses the shard instead of the id: jobs with the same partition key share a shard. Among jobs due in the same
    millisecond, those of high `priority` are promoted first. `spread` (seconds or timedelta) delays the due time by up
    to this much: evenly over all ids, and always the same for one id. A job that cannot start by `expires` never runs;
    `expires` is a time after the due time (seconds or timedelta), or an aware datetime. The job gets `attempts` runs,
    the first included, and each may take `timeout` (seconds or timedelta); a limit that its handler states itself caps
    both. If it dies, a job in the topic `on_dead` tells of it, or the receiver "service:/path" is called; this wins
    over the topic's setting.

    `max_wait` (seconds or timedelta; with `key` and `on_duplicate="replace"`) debounces: each call gives the waiting
    job the new payload and moves it to the new due time, but never beyond `max_wait` after the call that made it. If
    the job is promoted or running already, the call makes one more under the id KEY~second, which later calls replace
    and which may run beside the first; the receipt has its id. If that one is promoted, too, the call changes nothing
    until one of the two is done, and its receipt says so: `created` and `replaced` are false.
    """

    payload: Payload = None
    delay: float | timedelta | None = None
    at: datetime | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    partition_key: str | None = None
    priority: Priority = "normal"
    spread: float | timedelta | None = None
    expires: float | timedelta | datetime | None = None
    attempts: int | None = None
    timeout: float | timedelta | None = None
    on_dead: str | None = None
    max_wait: float | timedelta | None = None

    if TYPE_CHECKING:  # of which task its job is, so that `schedule_many` refuses another's; other payloads say nothing

        @overload
        def __init__(
            self: JobSpec[J],
            payload: J,
            delay: float | timedelta | None = None,
            at: datetime | None = None,
            key: str | None = None,
            headers: Mapping[str, str] | None = None,
            partition_key: str | None = None,
            priority: Priority = "normal",
            spread: float | timedelta | None = None,
            expires: float | timedelta | datetime | None = None,
            attempts: int | None = None,
            timeout: float | timedelta | None = None,
            on_dead: str | None = None,
            max_wait: float | timedelta | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: JobSpec[Any],
            payload: Payload = None,
            delay: float | timedelta | None = None,
            at: datetime | None = None,
            key: str | None = None,
            headers: Mapping[str, str] | None = None,
            partition_key: str | None = None,
            priority: Priority = "normal",
            spread: float | timedelta | None = None,
            expires: float | timedelta | datetime | None = None,
            attempts: int | None = None,
            timeout: float | timedelta | None = None,
            on_dead: str | None = None,
            max_wait: float | timedelta | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **options: Any) -> None: ...


class OutboxOptions(TypedDict, total=False):
    """The arguments of `SqlOutbox.schedule` besides the job itself."""

    delay: float | timedelta | None
    at: datetime | None
    key: str | None
    headers: Mapping[str, str] | None
    partition_key: str | None
    priority: Priority
    spread: float | timedelta | None
    expires: float | timedelta | datetime | None
    attempts: int | None
    timeout: float | timedelta | None
    on_dead: str | None
    max_wait: float | timedelta | None
    on_duplicate: OnDuplicate


class ScheduleOptions(OutboxOptions, total=False):
    """The arguments of `client.schedule` besides the job itself."""

    durability: Durability | None


class WaitOptions(TypedDict, total=False):
    """The arguments of `client.wait` besides the job."""

    timeout: float | None
    group: str | None
    partition_key: str | None


class Receipt(NamedTuple, Generic[R]):
    """The answer to a schedule call for one job. For a task's job, `R` is the type of its result."""

    id: str
    """The job's id, unique in its shard while the job is alive."""
    due_ms: int
    """When the job is due, in milliseconds since the Unix epoch; if a live job had this id, when that one is due.

    A past time stays as it is: the job is that late from the start.
    """
    created: bool
    """False: a live job has this id, and nothing was changed."""
    replaced: bool = False
    """True: a waiting job had this id and took the new payload and time (`on_duplicate="replace"`)."""
    in_outbox: bool = False
    """True: the server is away. The job is kept in the outbox, on this machine's disk, and will be delivered."""
    topic: str = ""
    """The job's topic."""
    read_result: Callable[[Payload], R] | None = None
    """Converts the stored result of a task's job to what its function returned; None for other jobs."""
    life: bytes = b""
    """Tells this job from every other with its id; `wait` and `get` take the receipt, and answer for this job alone."""
    bundle: str | None = None
    """The bundle of which it is a member; None: of none, also because a live job with its id was kept."""

    @property
    def due(self) -> datetime:
        """`due_ms` as an aware datetime in UTC."""
        return from_ms(self.due_ms)


class WaitingJob(NamedTuple):
    """A waiting job on a page; `get` returns its details."""

    id: str
    due_ms: int
    group: str | None = None
    """The group in which it waits for its next attempt; None: it has not run yet."""


class WaitingPage(NamedTuple):
    """One page of waiting jobs, and the cursor of the next."""

    jobs: list[WaitingJob]
    cursor: str | None
    """The argument for the next page; None after the last."""


class Outcome(StrEnum):
    """The outcome of a call that changes one job: a text, which is neither true nor false."""

    def __bool__(self) -> NoReturn:
        """Raises: TypeError. Each outcome would be true, also one that changed nothing."""
        kind = type(self)
        remedy = f"compare it, as in `outcome is {kind.__name__}.{next(iter(kind)).name}`"
        raise TypeError(f"{kind.__name__}.{self.name} is neither true nor false: {remedy}")


class CancelOutcome(Outcome):
    """The outcome of `cancel`."""

    CANCELLED = "cancelled"
    """It was waiting and will never run."""
    CANCELLING = "cancelling"
    """A worker runs it and was asked to cancel it (only with `running=True`)."""
    RUNNING = "running"
    """Too late: it is ready, running or waiting for a retry."""
    NOT_FOUND = "not_found"
    """No live job has this id: never scheduled, already finished or already cancelled."""


class RescheduleOutcome(Outcome):
    """The outcome of `reschedule`."""

    RESCHEDULED = "rescheduled"
    """It was waiting and has the new due time."""
    RUNNING = "running"
    """Too late: it was promoted."""
    CHANGED = "changed"
    """It is due at another time than the caller expected (`if_due_ms`): nothing was changed."""
    NOT_FOUND = "not_found"
    """No live job has this id."""


class RunNowOutcome(Outcome):
    """The outcome of `run_now`."""

    PROMOTED = "promoted"
    """It was waiting and is now ready for the workers."""
    PAUSED = "paused"
    """It keeps waiting, because its topic is paused. It is due now, and runs after `resume`, in order of due times."""
    HELD_BACK = "held_back"
    """It keeps waiting, because its key is at its limit. It is due now, and goes before the others of the key."""
    RUNNING = "running"
    """It had already been promoted."""
    NOT_FOUND = "not_found"
    """No live job has this id."""


class BulkProgress(NamedTuple):
    """How far `cancel_due` or `reschedule_due` has come."""

    jobs: int
    """Jobs changed so far; calls with the same name add up."""
    is_done: bool
    """Whether the end of the range was reached."""
    name: str
    """Repeat the call with this name to continue it."""


@dataclass(slots=True, eq=False)  # not frozen: one is made for every delivery, and frozen ones cost three times as much
class Job(Generic[M]):
    """One delivery of a job to a handler.

        @worker.handler("orders")
        async def close_order(job: Job) -> None:
            print(job.id, job.payload, f"attempt {job.attempt}, {job.lateness:.3f} s late")

    A handler whose parameter is annotated `Job[Order]` gets an `Order` as `job.payload`; a job whose payload does not
    fit waits for a worker that it fits. With `Job` alone, the payload is what the producer sent.
    """

    id: str
    topic: str
    payload: M
    due_ms: int
    attempt: int
    """1 for the first run. Only failed runs add to it: not a redelivery after a crash, and not `RetryAfter`."""
    entry_id: str
    """The id of the delivered ready entry, for logs."""
    started_ms: float
    """When this delivery was handed to the handler, by the server's clock."""
    headers: Mapping[str, str] = field(default_factory=dict)
    redelivered: bool = False
    """True when another worker had this delivery and died, or handed it back."""
    last_error: str | None = None
    """The error of the last failed attempt, at most 500 characters; None at the first attempt."""
    first_due_ms: int = 0
    """When the job was first due; `due_ms` is when this attempt was."""
    replays: int = 0
    """How often it was replayed after its death; each replay starts again at attempt 1."""
    scheduled_ms: int = 0
    """When it was scheduled, by the server's clock."""
    max_attempts: int | None = None
    """The `attempts` with which it was scheduled; None: its handler decides alone."""
    timeout: float | None = None
    """The `timeout` with which it was scheduled, in seconds; None: its handler decides alone."""
    partition_key: str | None = None
    """The `partition_key` with which it was scheduled; None: its id chose the shard."""
    _tell: Callable[[float, str], None] | None = None
    _follow: Callable[[str | TaskJob[Any], JobSpec, OnDuplicate], str] | None = None

    def progress(self, fraction: float, text: str = "") -> Awaitable[None]:
        """Report how far this run is, 0 to 1: `client.get(...).progress` shows it within half a second.

            await job.progress(0.4, "rendering")     in a plain function, without `await`

        Call it as often as you like: at most five reports a second are sent, the latest of each job. Raises:
        InvalidInput.
        """
        if not 0 <= fraction <= 1:
            raise InvalidInput("fraction", f"must be 0 to 1, not {fraction!r}")
        if self._tell is not None:
            self._tell(fraction, text)
        return _SAID

    def then(
        self,
        topic: str | TaskJob[Any],
        payload: Payload = None,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        priority: Priority = "normal",
        spread: float | timedelta | None = None,
        expires: float | timedelta | datetime | None = None,
        attempts: int | None = None,
        timeout: float | timedelta | None = None,
        on_dead: str | None = None,
        max_wait: float | timedelta | None = None,
        on_duplicate: OnDuplicate = "keep",
    ) -> Following:
        """Note a job that follows this one: it is made if and only if this very run is acknowledged as done.

            job.then("emails", {"to": order.email}, delay=60)       in an async handler, with or without `await`

        The acknowledgement and the follower are written in one step. A run that fails, is cancelled, takes too long or
        loses its job to another worker makes nothing. The arguments are those of `schedule`, and are checked now.
        A delay counts from the acknowledgement; without `delay` and `at` it is 0. Without `key`, the id is derived from
        this delivery, and no other job has it. Up to 100 for one run, with 1 MiB together. Raises: InvalidInput.
        """
        places = (key, headers, partition_key, priority, spread, expires, attempts, timeout, on_dead, max_wait)
        spec = JobSpec(payload, delay, at, *places)
        if self._follow is None:  # no worker runs it
            return Following(key or "")
        return Following(self._follow(topic, spec, on_duplicate))

    @property
    def due(self) -> datetime:
        """`due_ms` as an aware datetime in UTC."""
        return from_ms(self.due_ms)

    @property
    def promoted_ms(self) -> int:
        """When the scheduler promoted the job, by the server's clock."""
        return int(self.entry_id.partition("-")[0])

    @property
    def lateness(self) -> float:
        """Seconds from the due time to the start of the handler."""
        return (self.started_ms - self.due_ms) / 1000


class _Said:
    """The return value of `progress`. Awaiting it returns at once, so plain functions may omit the `await`."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_SAID = _Said()


class Following(NamedTuple):
    """A job that was noted with `job.then`. It may be awaited, which returns its id at once."""

    id: str
    """Its id, if this run is acknowledged."""

    def __await__(self) -> Generator[None, None, str]:
        yield from ()
        return self.id


def from_ms(ms: float) -> datetime:
    """Milliseconds since the Unix epoch as an aware datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC)
