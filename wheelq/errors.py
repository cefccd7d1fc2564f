"""Every error wheelq raises, one class per thing a caller would do differently.

    WheelqError
    ├── InvalidInput            the call is wrong: mend the named field; nothing was sent
    │   ├── PayloadTooLarge
    │   └── InvalidJob          one of many; tells what was scheduled before it
    ├── DuplicateJob            a live job has this id, and the caller asked to be told
    ├── TopicFull               as many jobs wait as the topic's max_pending allows; tells which were refused
    ├── BatchFailed             raised *by* a batch handler: names the jobs that failed
    ├── JobNotFound             nothing is known of a job with this id
    ├── JobFailed               the job that was waited for was given up
    ├── NotFinished             the job that was waited for has not finished in time
    ├── TopicNotFound           no such topic has ever been used
    ├── ConfigurationError      a setting, URL, binary or handler module is wrong: nothing was started
    │   └── InvalidSetting      tells which setting
    ├── NotLeader               another node leads the shard (schedulers only)
    └── ServerError
        ├── NotReplicated       it is done, but too few replicas (or disks) have confirmed it in time
        ├── Unavailable         could not connect: nothing was done; try again later
        │   ├── CircuitOpen     not even tried, because the server has been away; tells when the next try is made
        │   └── OutboxFull      the server is away, and the outbox takes no more
        ├── OutcomeUnknown      sent, but no reply came: it may or may not have happened; repeating is safe
        │   └── PartlyScheduled many jobs: tells which are scheduled, and which perhaps
        └── Refused             the server answered with an error: nothing was done
            ├── AuthenticationFailed
            ├── ServerFull      out of memory: due jobs still run, new ones are refused
            ├── ServerBusy      loading its data, or a long script runs: try again shortly
            ├── NotPrimary      the address leads to a replica, or a cluster slot lives elsewhere
            └── ServerTooOld    the server lacks a command that wheelq needs

*Refused* and *outcome unknown* are never the same class: after the first a caller may give up, after the second it
must repeat the call (every wheelq call may be repeated with the same job id) or look the job up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wheelq.words import counted


class WheelqError(Exception):
    """Something went wrong in wheelq."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


class InvalidInput(WheelqError, ValueError):
    """An argument is not acceptable; `field` names it and the message says how to mend it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class PayloadTooLarge(InvalidInput):
    """The packed payload exceeds the limit; `payload_bytes` and `limit_bytes` tell by how much."""

    def __init__(self, payload_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            "payload",
            f"{payload_bytes:,} bytes packed, the limit is {limit_bytes:,}; store the data elsewhere and schedule "
            "a reference to it, or raise payload_max_bytes",
        )
        self.payload_bytes = payload_bytes
        self.limit_bytes = limit_bytes


class InvalidJob(InvalidInput):
    """One of many jobs is not acceptable. `place` is its index, `receipts` (index → receipt) is what was scheduled.

    Mend the job and schedule from there: jobs whose index is missing in `receipts` were not sent.
    """

    def __init__(self, place: int, error: InvalidInput, receipts: Mapping[int, Any]) -> None:
        super().__init__(f"jobs[{place}].{error.field}", error.problem)
        self.place = place
        self.receipts = receipts


class DuplicateJob(WheelqError):
    """A live job has this id and `on_duplicate="raise"` was asked for; the live job was not changed."""

    def __init__(self, topic: str, ids: list[str]) -> None:
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        super().__init__(f"topic {topic!r} already has a live job with id {shown}")
        self.topic = topic
        self.ids = ids


class BatchFailed(WheelqError):
    """For a batch handler to raise when only some of its jobs failed: `failures` is job id → error.

    Those named are tried again or buried, each as if its handler had raised that error; the others are done. Were an
    id named that is none of the batch's, all jobs would count as failed.
    """

    def __init__(self, failures: Mapping[str, BaseException]) -> None:
        super().__init__(f"{counted(len(failures), 'job')} of a batch failed: {', '.join(list(failures)[:5])}")
        self.failures = failures


class TopicFull(WheelqError):
    """As many jobs wait as the topic's `max_pending` allows. Try again when some have run.

    `refused` (index → id) are the jobs that were not scheduled, `receipts` (index → receipt) those that were.
    """

    def __init__(self, topic: str, refused: Mapping[int, str], receipts: Mapping[int, Any]) -> None:
        jobs = "a job was refused" if len(refused) == 1 else f"{len(refused):,} jobs were refused"
        super().__init__(f"topic {topic!r} is full: {jobs}, because as many wait as its max_pending allows")
        self.topic = topic
        self.refused = refused
        self.receipts = receipts


class TopicNotFound(WheelqError):
    """No job was ever scheduled to this topic; `topic` is the name asked for."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist: a topic comes into being with its first job")
        self.topic = topic


class JobNotFound(WheelqError):
    """Nothing is known of this job: never scheduled, cancelled, or finished longer ago than its topic keeps."""

    def __init__(self, topic: str, id: str, what: str) -> None:
        super().__init__(f"job {id} of {topic!r} {what}")
        self.topic = topic
        self.id = id


class JobFailed(WheelqError):
    """The job was given up in `group` and is kept among the dead; `reason` says why, `error` is its last traceback."""

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
    """The job has not finished within the time that was to be waited; it goes on. `state` is where it stands."""

    def __init__(self, topic: str, id: str, state: str, timeout: float) -> None:
        super().__init__(f"job {id} of {topic!r} is {state} after {timeout:g} s of waiting")
        self.topic = topic
        self.id = id
        self.state = state


class ConfigurationError(WheelqError):
    """A setting, URL, binary or module is wrong; nothing was started."""


class InvalidSetting(ConfigurationError):
    """A setting cannot be so: `setting` names it, `problem` says what it must be, and the message whose it is."""

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


class CircuitOpen(Unavailable):
    """The server has been away and was not asked: nothing was done. In `retry_after` seconds it is asked again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the server is away, and will be tried again in {retry_after:.1f} s")
        self.retry_after = retry_after


class OutboxFull(Unavailable):
    """The server is away and the outbox has reached a limit: nothing was done."""


class OutcomeUnknown(ServerError):
    """The request was sent and no reply came: it may or may not have happened. Repeating the call is safe.

    `ids` are the job ids concerned: give them as `key` when you repeat a schedule call that made its ids itself.
    """

    def __init__(self, message: str = "", ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.ids = ids


class PartlyScheduled(OutcomeUnknown):
    """Of many jobs some were scheduled, some perhaps, and the rest not.

    `receipts` (index → receipt) are of those scheduled, `unknown` (index → id) those without an answer. Repeat with
    the jobs that have no receipt, giving those in `unknown` their id as `key`. With a `durability` other than "server"
    a receipt here says that the job is in the server, not that it was confirmed.
    """

    def __init__(self, message: str, unknown: Mapping[int, str], receipts: Mapping[int, Any]) -> None:
        super().__init__(message, tuple(unknown.values()))
        self.unknown = unknown
        self.receipts = receipts


class NotReplicated(ServerError):
    """The jobs are scheduled, but not confirmed in time by as many replicas (or disks) as `durability` asked for.

    `receipts` has one per job, in order; `confirmed` of `wanted` have confirmed. Repeating the call is safe with the
    receipts' ids as keys: it finds the jobs there, and waits for the confirmation again. A change of a topic has no
    receipts; it is made, and can be repeated.
    """

    def __init__(self, receipts: Sequence[Any], confirmed: int, wanted: int, reason: str) -> None:
        numbers = {0: "it is done", 1: "the job is scheduled"}
        scheduled = numbers.get(len(receipts), f"{len(receipts):,} jobs are scheduled")
        super().__init__(f"{scheduled}, but only {confirmed} of {wanted} confirmed it: {reason}")
        self.receipts = receipts
        self.confirmed = confirmed
        self.wanted = wanted


class Refused(ServerError):
    """The server answered with an error: nothing was done."""


class AuthenticationFailed(Refused):
    """The server did not accept the user name or password, or the user may not do this."""


class ServerFull(Refused):
    """The server is out of memory: new jobs are refused, due jobs still run."""


class ServerBusy(Refused):
    """The server is loading its data or runs a long script: try again shortly."""


class NotPrimary(Refused):
    """The address leads to a replica or to another cluster node: connect to the primary."""


class ServerTooOld(Refused):
    """The server lacks a command that wheelq needs: Redis 6.2.2 or Valkey is the minimum."""


AWAY = (Unavailable, OutcomeUnknown, ServerBusy, NotPrimary)
"""Errors of a server that cannot be used now, and perhaps soon can."""
