"""Every error wheelq raises, one class per thing a caller would do differently.

    WheelqError
    ├── InvalidInput            the call is wrong: correct the named field; nothing was sent
    │   ├── PayloadTooLarge
    │   └── InvalidJob          one of many jobs is wrong; tells which were scheduled before it
    ├── DuplicateJob            a live job has this id, and the caller asked for an error
    ├── TopicFull               as many jobs wait as the topic's max_pending allows; tells which were refused
    ├── PayloadMismatch         a payload does not fit its type: names the field
    │   └── ResultMismatch      so with the result of a job that was waited for
    ├── BatchFailed             raised *by* a batch handler: names the jobs that failed
    ├── JobNotFound             nothing is known of a job with this id
    ├── JobFailed               the awaited job was given up
    ├── NotFinished             the awaited job has not finished in time
    ├── TopicNotFound           no such topic has ever been used
    ├── BundleNotFound          no bundle has this id, or it ended longer ago than is kept
    ├── InUse                   a group or topic was not removed, because it still has workers or jobs
    ├── TopicUnreadable         the topic's settings were written by a newer release, or by another program
    ├── RecurringUnreadable     the same of a recurring job's definition
    ├── ConfigurationError      a setting, URL, binary or handler module is wrong: nothing was started
    │   └── InvalidSetting      tells which setting
    ├── NotLeader               another node leads the shard (schedulers only)
    └── ServerError
        ├── NotReplicated       the change is made, but too few replicas (or disks) confirmed it in time
        ├── Unavailable         could not connect: nothing was done; try again later
        │   ├── TlsFailed       the server's certificate is not trusted, or the two sides agree on no TLS
        │   ├── CircuitOpen     not even tried, because the server is away; tells when the next try is made
        │   └── OutboxFull      the server takes no jobs for now, and the outbox is full
        ├── OutcomeUnknown      sent, but no reply came: it may or may not have happened; repeating is safe
        │   └── PartlyScheduled many jobs: tells which are scheduled, and which may be
        └── Refused             the server answered with an error: nothing was done
            ├── AuthenticationFailed   user name or password is wrong
            │   └── NotPermitted       the user lacks a right: a command, a key or a channel
            ├── GroupNotFound   the server does not have the consumer group: it was removed, or lost with the data
            ├── WrongDatabase   the server has no database with the URL's number
            ├── WrongServerKind the URL names sentinels or a cluster, and there is a single server, or the reverse
            ├── ServerFull      out of memory: due jobs still run, new ones are refused
            ├── BeingRemoved    the topic or group is just being removed: try again shortly
            ├── BundleClosed    the bundle takes no more members
            ├── ServerBusy      loading its data, or a long script runs: try again shortly
            ├── NotPrimary      the address leads to a replica, or a cluster slot lives elsewhere
            └── ServerTooOld    the server lacks a command that wheelq needs

*Refused* and *outcome unknown* are never the same class: after a refusal a caller may give up; after an unknown outcome
it must repeat the call (every wheelq call may be repeated with the same job id) or look the job up.

All errors stand in this one module, however long it is: tracebacks, logs and spans show `wheelq.errors.X` as their full
names, and users compare these names. Beside the classes there are only groups of them that several callers need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wheelq.base.plural import counted

LONGEST_PROBLEM = 600
"""Characters after which the text of InvalidInput is cut in the middle: it may show an argument of any length."""


class WheelqError(Exception):
    """Something went wrong in wheelq."""

    bundle: str | None = None
    """The bundle to which jobs were being added, which is open still: add the others, and close it, or cancel it."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


class InvalidInput(WheelqError, ValueError):
    """An argument is not acceptable; `field` names it and the message says how to correct it."""

    def __init__(self, field: str, problem: str) -> None:
        if len(problem) > LONGEST_PROBLEM:
            problem = f"{problem[: LONGEST_PROBLEM // 2]} … {problem[-LONGEST_PROBLEM // 2 :]}"
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class PayloadTooLarge(InvalidInput):
    """The packed payload exceeds the limit; `payload_bytes` and `limit_bytes` tell by how much."""

    def __init__(self, payload_bytes: int, limit_bytes: int, setting: str = "payload_max_bytes") -> None:
        super().__init__(
            "payload",
            f"{payload_bytes:,} bytes packed, the limit is {limit_bytes:,}; store the data elsewhere and send "
            f"a reference to it, or raise {setting}",
        )
        self.payload_bytes = payload_bytes
        self.limit_bytes = limit_bytes


class InvalidJob(InvalidInput):
    """One of many jobs is not acceptable. `place` is its index, `receipts` (index → receipt) are the jobs scheduled.

    Correct the job and schedule those whose index is missing in `receipts`: they were not sent.
    """

    def __init__(self, place: int, error: InvalidInput, receipts: Mapping[int, Any]) -> None:
        super().__init__(f"jobs[{place}].{error.field}", error.problem)
        self.place = place
        self.receipts = receipts


class PayloadMismatch(WheelqError):
    """A payload or argument does not fit its type; `field` names it. Handlers may raise it, too: see `on_mismatch`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ResultMismatch(PayloadMismatch):
    """The result of a job does not fit the type that its task returns. In a handler it is a failure like any other."""


class DuplicateJob(WheelqError):
    """A live job has this id and `on_duplicate="raise"` was asked for; the live job was not changed.

    `ids` are the jobs that were not scheduled, `receipts` (index → receipt) the jobs that were.
    """

    def __init__(self, topic: str, ids: list[str], receipts: Mapping[int, Any]) -> None:
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        super().__init__(f"topic {topic!r} already has a live job with id {shown}")
        self.topic = topic
        self.ids = ids
        self.receipts = receipts


class BatchFailed(WheelqError):
    """For a batch handler to raise when only some of its jobs failed: `failures` is job id → error.

    The named jobs are retried or buried, each as if its handler had raised that error; the others are done. If an id
    is not one of the batch, all jobs count as failed.
    """

    def __init__(self, failures: Mapping[str, BaseException | str]) -> None:
        """A text in place of an error stands for a RuntimeError with this message."""
        super().__init__(f"{counted(len(failures), 'job')} of a batch failed: {', '.join(list(failures)[:5])}")
        self.failures: Mapping[str, BaseException] = {
            id: error if isinstance(error, BaseException) else RuntimeError(str(error))
            for id, error in failures.items()
        }


class TopicFull(WheelqError):
    """As many jobs wait as the topic's `max_pending` allows. Try again when some have run.

    `refused` (index → id) are the jobs that were not scheduled, `receipts` (index → receipt) the jobs that were.
    """

    def __init__(self, topic: str, refused: Mapping[int, str], receipts: Mapping[int, Any]) -> None:
        jobs = "a job was refused" if len(refused) == 1 else f"{len(refused):,} jobs were refused"
        super().__init__(f"topic {topic!r} is full: {jobs}, because as many wait as its max_pending allows")
        self.topic = topic
        self.refused = refused
        self.receipts = receipts


class TopicNotFound(WheelqError):
    """No job was ever scheduled to this topic; `topic` is the name in the call."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist: the first job of a topic creates it")
        self.topic = topic


class BundleNotFound(WheelqError):
    """No bundle has this id, or it ended longer ago than its topic keeps finished jobs (`keep_done_ms`)."""

    def __init__(self, bundle: str) -> None:
        super().__init__(f"bundle {bundle!r} is not known: it never was, or it ended longer ago than is kept")


class TopicUnreadable(WheelqError):
    """A topic's settings cannot be read here: a newer release or another program wrote them; nothing was done.

    `topic` names it. Upgrade this program, or correct the settings with the program that wrote them.
    """

    def __init__(self, topic: str, problem: str) -> None:
        super().__init__(f"the settings of topic {topic!r} cannot be read: {problem}")
        self.topic = topic
        self.problem = problem


class RecurringUnreadable(WheelqError):
    """A recurring job cannot be read here: a newer release or another program wrote it; nothing was done.

    `topic` and `name` name it. Upgrade this program, or correct the definition with the program that wrote it.
    """

    def __init__(self, topic: str, name: str, problem: str) -> None:
        super().__init__(f"recurring job {name!r} of topic {topic!r} cannot be read: {problem}")
        self.topic = topic
        self.name = name
        self.problem = problem


class InUse(WheelqError):
    """A group or topic was not removed, because it is in use. Nothing was changed; `workers` are its live workers.

    Stop the workers, wait until the jobs have run, or remove it with `force=True`.
    """

    def __init__(self, what: str, why: str, workers: Sequence[str] = ()) -> None:
        super().__init__(f"{what} is in use: {why}")
        self.workers = tuple(workers)


class JobNotFound(WheelqError):
    """Nothing is known of this job: never scheduled, cancelled, too late to run, or done longer ago than is kept."""

    def __init__(self, topic: str, id: str, what: str) -> None:
        super().__init__(f"job {id} of {topic!r} {what}")
        self.topic = topic
        self.id = id


class JobFailed(WheelqError):
    """A group gave the job up and buried it. `reason` says why; `error` is its last traceback."""

    def __init__(self, topic: str, id: str, group: str, reason: str, error: str, attempt: int) -> None:
        last_line = error.strip().rpartition("\n")[2]
        super().__init__(f"job {id} of {topic!r} was given up by group {group!r} at attempt {attempt}: {last_line}")
        self.topic = topic
        self.id = id
        self.group = group
        self.reason = reason
        self.error = error
        self.attempt = attempt


class NotFinished(WheelqError, TimeoutError):
    """The job did not finish within the timeout, and keeps running. `state` is its current state."""

    def __init__(self, topic: str, id: str, state: str, timeout: float, stranger: str | None = None) -> None:
        """`stranger` is the group that was waited for, if others have got the job and it has not."""
        why = "" if stranger is None else f"; group {stranger!r} has not got it: is it a group of the topic?"
        super().__init__(f"job {id} of {topic!r} is {state} after {timeout:g} s of waiting{why}")
        self.topic = topic
        self.id = id
        self.state = state


class ConfigurationError(WheelqError):
    """A setting, URL, binary or module is wrong; nothing was started."""


class InvalidSetting(ConfigurationError):
    """A setting has a value it cannot have. `setting` names it, `problem` says what it must be."""

    def __init__(self, setting: str, problem: str, where: str = "") -> None:
        super().__init__(f"{where}{setting} {problem}")
        self.setting = setting
        self.problem = problem


class NotLeader(WheelqError):
    """This node does not hold the shard's lease; the call changed nothing."""


class ServerError(WheelqError):
    """The server could not be used."""


class Unavailable(ServerError):
    """No connection to the server could be made: nothing was done."""


class TlsFailed(Unavailable):
    """The server's certificate is not trusted, or the two sides agree on no TLS: nothing was done."""


class CircuitOpen(Unavailable):
    """The server is away, so the call was not sent. The next call after `retry_after` seconds is."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the server is away, and will be tried again in {retry_after:.1f} s")
        self.retry_after = retry_after


class OutboxFull(Unavailable):
    """The outbox has reached a limit, and the job could not go to the server: nothing was done."""


class OutcomeUnknown(ServerError):
    """The request was sent and no reply came: it may or may not have happened. Repeating the call is safe.

    `ids` are the job ids concerned: give them as `key` when you repeat a schedule call that had no keys. Then it makes
    no second job while the first is alive.
    """

    def __init__(self, message: str = "", ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.ids = ids


class PartlyScheduled(OutcomeUnknown):
    """Some jobs of a call were scheduled, some may have been, and the rest were not.

    `receipts` (index → receipt) are the scheduled jobs, `unknown` (index → id) the jobs without a reply. Repeat the
    call with the jobs that have no receipt, and give those in `unknown` their id as `key`. With a `durability` other
    than "server", a receipt here says that the job is in the server, not that it was confirmed.
    """

    def __init__(self, message: str, unknown: Mapping[int, str], receipts: Mapping[int, Any]) -> None:
        super().__init__(message, tuple(unknown.values()))
        self.unknown = unknown
        self.receipts = receipts


class NotReplicated(ServerError):
    """The jobs are scheduled, but fewer replicas (or disks) than `durability` requires confirmed them in time.

    `receipts` has one per job, in order; `confirmed` of `wanted` have confirmed; `reason` says why. Repeating the call
    with the receipts' ids as keys is safe: it finds the jobs and waits for the confirmation again. A change of jobs
    or of a topic has no receipts; it is made, and can be repeated.
    """

    def __init__(self, receipts: Sequence[Any], confirmed: int, wanted: int, reason: str) -> None:
        numbers = {0: "it is done", 1: "the job is scheduled"}
        scheduled = numbers.get(len(receipts), f"{len(receipts):,} jobs are scheduled")
        super().__init__(f"{scheduled}, but only {confirmed} of {wanted} confirmed it: {reason}")
        self.receipts = receipts
        self.confirmed = confirmed
        self.wanted = wanted
        self.reason = reason


class Refused(ServerError):
    """The server answered with an error: nothing was done."""


class AuthenticationFailed(Refused):
    """The server did not accept the user name or password, or the user may not do this."""


class NotPermitted(AuthenticationFailed):
    """The user may not do this: its ACL lacks the command, the key or the channel."""


class GroupNotFound(Refused):
    """The server does not have this consumer group of a stream: it was removed, or lost with the server's data."""


class WrongDatabase(Refused):
    """The server has no database with the number in the URL."""


class WrongServerKind(Refused):
    """The server is of another kind than the URL says: a single server, a node of a cluster or a sentinel."""


class BeingRemoved(Refused):
    """The topic or group is just being removed: nothing was done; try again shortly."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is just being removed: nothing was done")


class BundleClosed(Refused):
    """The bundle was closed or cancelled, so it takes no more members: nothing was done."""

    def __init__(self, bundle: str) -> None:
        super().__init__(f"bundle {bundle!r} takes no more members: it was closed or cancelled")


class ServerFull(Refused):
    """The server is out of memory: new jobs are refused, due jobs still run."""


class ServerBusy(Refused):
    """The server is loading its data or runs a long script: try again shortly."""


class WritesRefused(Refused):
    """The server refuses all writes for now: it cannot save its data (MISCONF), or lacks replicas (NOREPLICAS)."""


class NotPrimary(Refused):
    """The address leads to a replica or to another cluster node: connect to the primary."""


class ServerTooOld(Refused):
    """The server lacks a command that wheelq needs: Redis 6.2.2 or Valkey is the minimum."""


AWAY = (Unavailable, OutcomeUnknown, BeingRemoved, ServerBusy, WritesRefused, NotPrimary)
"""Errors of a server that cannot be used now, but may be usable soon."""


def is_away(error: BaseException) -> bool:
    """Whether an error means that the server cannot be used now. Refusing some of many jobs does not count."""
    reason = error.__cause__ or error if isinstance(error, PartlyScheduled) else error
    return isinstance(reason, AWAY)


def holds_up_all(error: BaseException) -> bool:
    """Whether an error means that nothing can be done for any topic now."""
    return is_away(error) and not isinstance(error, BeingRemoved)


def is_wrong_setup(error: BaseException) -> bool:
    """Whether login, TLS, database number, kind or version of the server is wrong: repeating the call is useless.

    A process may end because of such an error, but only at its start; it waits until any other error is over.
    """
    wrong = (AuthenticationFailed, TlsFailed, WrongDatabase, WrongServerKind, ServerTooOld)
    return isinstance(error, wrong) and not isinstance(error, NotPermitted)
