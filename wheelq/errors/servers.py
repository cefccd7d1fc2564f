"""Errors of the server: it is away, its answer did not come, or it has refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wheelq.errors.jobs import WheelqError


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

    `ids` are the job ids concerned: give them as `key` when you repeat a schedule call that had no keys.
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
    with the receipts' ids as keys is safe: it finds the jobs and waits for the confirmation again. A change of a topic
    has no receipts; it is made, and can be repeated.
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


class ServerFull(Refused):
    """The server is out of memory: new jobs are refused, due jobs still run."""


class ServerBusy(Refused):
    """The server is loading its data or runs a long script: try again shortly."""


class NotPrimary(Refused):
    """The address leads to a replica or to another cluster node: connect to the primary."""


class ServerTooOld(Refused):
    """The server lacks a command that wheelq needs: Redis 6.2.2 or Valkey is the minimum."""


AWAY = (Unavailable, OutcomeUnknown, BeingRemoved, ServerBusy, NotPrimary)
"""Errors of a server that cannot be used now, but may be usable soon."""


def is_away(error: BaseException) -> bool:
    """Whether an error means that the server cannot be used now. Refusing some of many jobs does not count."""
    reason = error.__cause__ or error if isinstance(error, PartlyScheduled) else error
    return isinstance(reason, AWAY)


def is_wrong_setup(error: BaseException) -> bool:
    """Whether login, TLS, database number, kind or version of the server is wrong: repeating the call is useless.

    A process may end because of such an error, but only at its start; it waits until any other error is over.
    """
    wrong = (AuthenticationFailed, TlsFailed, WrongDatabase, WrongServerKind, ServerTooOld)
    return isinstance(error, wrong) and not isinstance(error, NotPermitted)
