"""Problems as problem+json (RFC 9457): every error of wheelq in one table.

It keeps the difference that matters most to a caller: after `refused` and `unavailable` nothing was done; after
`outcome-unknown` it may have been done, so repeat the request with the same id, which the problem names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from wheelq import errors

MEDIA_TYPE = "application/problem+json"
CLOSE = {"connection": "close"}
"""For answers to a request whose rest would have to be read and dropped."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem."""

    status: int
    name: str
    """Its name for programs: the end of its `type`."""
    title: str
    remedy: str = ""
    retry_after_s: int | None = None
    """The seconds after which a caller may try again."""


BAD_REQUEST = Kind(400, "bad-request", "The request cannot be read")
NO_KEY = Kind(401, "no-key", "An API key is needed", "Send Authorization: Bearer wq_…; wheelq keys create makes one.")
NOT_ALLOWED = Kind(403, "not-allowed", "The API key may not do this")
FOREIGN_ORIGIN = Kind(403, "foreign-origin", "Pages of other web sites may not call this server")
NOT_FOUND = Kind(404, "not-found", "There is nothing here")
JOB_NOT_FOUND = Kind(
    404, "job-not-found", "No live job has this id", "It was never scheduled, has finished or was cancelled."
)
DEAD_NOT_FOUND = Kind(404, "dead-not-found", "No dead job has this id", "It was replayed, purged or trimmed.")
RECURRING_NOT_FOUND = Kind(404, "recurring-not-found", "The topic has no recurring job with this name")
BUNDLE_NOT_FOUND = Kind(
    404, "bundle-not-found", "No bundle has this id", "It never was, or it ended longer ago than is kept."
)
GROUP_NOT_FOUND = Kind(404, "group-not-found", "The topic has no group with this name")
TOPIC_NOT_FOUND = Kind(404, "topic-not-found", "There is no such topic", "A PATCH of its settings creates it, too.")
METHOD_NOT_ALLOWED = Kind(405, "method-not-allowed", "This path does not take this method")
TOO_SLOW = Kind(408, "too-slow", "The request did not come in time")
TOO_LATE = Kind(409, "too-late", "The job is ready for its consumers, with them already, or waits for a retry")
PAUSED = Kind(409, "paused", "The topic is paused", "The job is due now, and runs when the topic is resumed.")
HELD_BACK = Kind(
    409, "held-back", "The job's key is at its limit", "The job is due now, and goes before the others of its key."
)
DUPLICATE = Kind(409, "duplicate", "A live job has this id", 'Leave on_duplicate out to keep it, or say "replace".')
IN_USE = Kind(409, "in-use", "It is in use: nothing was removed", "Stop its workers first, or add ?force=true.")
BEING_REMOVED = Kind(409, "being-removed", "The topic or group is just being removed", "Try again.", 5)
BUNDLE_CLOSED = Kind(409, "bundle-closed", "The bundle takes no more members")
CHANGED = Kind(412, "changed", "The job has another due time by now", "Look it up, and decide again.")
OUTDATED = Kind(412, "outdated", "Somebody has changed this since the page was shown", "Look again, and decide then.")
TOO_LARGE = Kind(413, "too-large", "The request is too large")
UNSUPPORTED = Kind(415, "unsupported", "The body's media type is not known here", "Send application/json.")
INVALID = Kind(422, "invalid-input", "The request is not acceptable")
KEY_REUSED = Kind(409, "key-reused", "This Idempotency-Key belongs to another request", "Use a new one.")
HEAD_TOO_LARGE = Kind(431, "head-too-large", "The request's line and headers are too large together")
TOO_MANY = Kind(429, "too-many", "Too many requests", "Wait as long as Retry-After says.")
TOPIC_FULL = Kind(429, "topic-full", "As many jobs wait in the topic as it allows", "Try again when some have run.", 5)
BROKEN = Kind(500, "broken", "wheelq is at fault", "See the server's log; repeating with the same id is safe.")
TOPIC_UNREADABLE = Kind(
    500,
    "topic-unreadable",
    "The topic's settings cannot be read here: nothing was done",
    "A newer release or another program wrote them: upgrade this server, or mend them.",
)
RECURRING_UNREADABLE = Kind(
    500,
    "recurring-unreadable",
    "The recurring job cannot be read here: nothing was done",
    "A newer release or another program wrote it: upgrade this server, or mend it.",
)
REFUSED = Kind(502, "refused", "Redis refused it: nothing was done")
OVERLOADED = Kind(503, "overloaded", "The server is overloaded: nothing was done", "Try again.", 1)
UNAVAILABLE = Kind(503, "unavailable", "Redis cannot be used now: nothing was done", "Try again.", 2)
STOPPING = Kind(503, "stopping", "The server stops: nothing was done", "Try again.", 1)
NOT_READY = Kind(503, "not-ready", "This server should get no requests now", "", 2)
OUTCOME_UNKNOWN = Kind(
    504,
    "outcome-unknown",
    "It may or may not have happened",
    "Repeat the request with the same id (see ids), which is safe, or look the job up.",
    1,
)
NOT_CONFIRMED = Kind(
    504,
    "not-confirmed",
    "It is done, but too few replicas have confirmed it in time",
    "Repeat the request with the same ids, which is safe, to wait again.",
    1,
)

_BY_ERROR: tuple[tuple[type[errors.WheelqError], Kind], ...] = (  # the first that fits: children before their parents
    (errors.PayloadTooLarge, TOO_LARGE),
    (errors.InvalidInput, INVALID),
    (errors.DuplicateJob, DUPLICATE),
    (errors.TopicNotFound, TOPIC_NOT_FOUND),
    (errors.BundleNotFound, BUNDLE_NOT_FOUND),
    (errors.TopicUnreadable, TOPIC_UNREADABLE),
    (errors.RecurringUnreadable, RECURRING_UNREADABLE),
    (errors.TopicFull, TOPIC_FULL),
    (errors.InUse, IN_USE),
    (errors.BeingRemoved, BEING_REMOVED),
    (errors.BundleClosed, BUNDLE_CLOSED),
    (errors.NotReplicated, NOT_CONFIRMED),
    (errors.OutcomeUnknown, OUTCOME_UNKNOWN),
    (errors.Unavailable, UNAVAILABLE),
    (errors.ServerFull, UNAVAILABLE),
    (errors.ServerBusy, UNAVAILABLE),
    (errors.WritesRefused, UNAVAILABLE),
    (errors.NotPrimary, UNAVAILABLE),
    (errors.Refused, REFUSED),
)

READS = frozenset({"GET", "HEAD"})
"""Methods that change nothing: if the reply to one is lost, it is certain that nothing has happened."""
BY_STATUS = {400: BAD_REQUEST, 404: NOT_FOUND, 405: METHOD_NOT_ALLOWED, 413: TOO_LARGE, 415: UNSUPPORTED}


@dataclass(eq=False)
class Problem(HTTPException):
    """Ends a request with this problem."""

    kind: Kind
    what: str = ""
    """What is wrong, in a sentence."""
    field: str | None = None
    """The field that is wrong."""
    ids: tuple[str, ...] = ()
    """The jobs concerned, so that a repeated request can name them."""
    retry_after_s: float | None = None
    more: Mapping[str, str] | None = None
    """Headers of the answer."""

    def __post_init__(self) -> None:
        super().__init__(self.kind.status, self.what or self.kind.title)

    def body(self, base_path: str = "") -> dict[str, Any]:
        """Returns it as JSON; its type leads to the page of a server that browsers reach under the base path."""
        kind = self.kind
        sentences = [self.what, kind.remedy] if self.what else [kind.remedy or kind.title]
        body: dict[str, Any] = {
            "type": f"{base_path}/docs#{kind.name}",
            "title": kind.title,
            "status": kind.status,
            "detail": " ".join(filter(None, sentences)),
        }
        if self.field is not None:
            body["field"] = self.field
        if self.ids:
            body["ids"] = list(self.ids)
        return body

    def response(self, base_path: str = "") -> Response:
        wait = self.retry_after_s if self.retry_after_s is not None else self.kind.retry_after_s
        headers = {**(self.more or {}), **({} if wait is None else {"retry-after": str(max(1, math.ceil(wait)))})}
        return Response(to_json(self.body(base_path)), self.kind.status, headers, MEDIA_TYPE)


def too_large(most_bytes: int) -> Problem:
    """Returns the problem of a body longer than this. The connection ends, so that nobody reads the rest."""
    return Problem(TOO_LARGE, f"The body has more than {most_bytes:,} bytes.", "body", more=CLOSE)


def problem_in(method: str, error: Exception) -> Problem:
    """Returns the problem for an error that a request of this method has ended in; pages and routes share this rule."""
    match error:
        case Problem():
            return error
        case errors.OutcomeUnknown() if method in READS:
            return Problem(UNAVAILABLE, f"{words_of(error)}.")
        case errors.WheelqError():
            return problem_of(error)
        case HTTPException():
            return Problem(BY_STATUS.get(error.status_code, BAD_REQUEST), error.detail, more=error.headers)
    return Problem(BROKEN)


def problem_of(error: errors.WheelqError) -> Problem:
    kind = next((kind for cls, kind in _BY_ERROR if isinstance(error, cls)), BROKEN)
    if isinstance(error, errors.InvalidInput):
        return Problem(kind, f"{error.field}: {error.problem}.", error.field)
    if isinstance(error, errors.CircuitOpen):
        return Problem(kind, f"{error}.", retry_after_s=error.retry_after)
    ids: tuple[str, ...] = ()
    if isinstance(error, errors.OutcomeUnknown):
        ids = error.ids
    elif isinstance(error, errors.NotReplicated):
        ids = tuple(receipt.id for receipt in error.receipts)
    elif isinstance(error, errors.DuplicateJob):
        ids = tuple(error.ids)
    return Problem(kind, f"{words_of(error)}.", ids=ids)


def words_of(error: errors.WheelqError) -> str:
    """Returns what a caller is told of an error: Redis's address is for the log alone."""
    match error:
        case errors.CircuitOpen() | errors.OutboxFull():
            return str(error)
        case errors.Unavailable():
            return "Redis cannot be reached; this server's log says why"
        case errors.OutcomeUnknown():
            return "Redis has not answered; this server's log says why"
        case errors.NotPrimary():
            return "The Redis server is not the primary, or the cluster is moving its keys"
    return str(error)
