"""One round of delivery, as a generator: it runs in a thread or on an event loop.

    for each topic, the longest waiting first: deliver a parcel of up to 500 jobs, settle those that the server took

A topic whose jobs the server refuses for now (it is full) does not delay the others.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Generator, Mapping
from typing import Any

from wheelq.base.plural import counted
from wheelq.errors import NotReplicated, PartlyScheduled, ServerError, TopicFull, WheelqError, is_away
from wheelq.model.job import Receipt
from wheelq.producer.outbox.kept import Parcel
from wheelq.producer.outbox.store import Outbox

log = logging.getLogger(__name__)

TAKEN = "a live job had this id when it was delivered"


def delivery_round(outbox: Outbox) -> Generator[Parcel, Any, int]:
    """Makes one round: yields parcels, receives their receipts or the error, and returns how many jobs were delivered.

    Raises: an error of `AWAY`, if the server is away.
    """
    outbox.write_settled()
    if outbox.is_empty or not outbox.try_to_deliver():
        return 0
    delivered = 0
    for parcel in outbox.parcels():
        try:
            receipts: list[Receipt] = yield parcel
        except WheelqError as error:
            delivered += _settle(outbox, parcel, _accepted_before(error))
            if is_away(error):
                raise
            if isinstance(error, NotReplicated):  # the callers were told that their jobs are kept here
                log.warning("jobs from the outbox %s: %s", outbox.path, error)
            else:
                level = logging.WARNING if outbox.has_to_say(parcel.topic) else logging.DEBUG
                log.log(level, "jobs for topic %s stay in the outbox %s: %s", parcel.topic, outbox.path, error)
        else:
            delivered += _settle(outbox, parcel, dict(enumerate(receipts)))
            outbox.takes(parcel.topic)
    return delivered


def _accepted_before(error: WheelqError) -> Mapping[int, Receipt]:
    """Returns the receipts of jobs that the server accepted although others failed, by index in the parcel."""
    match error:
        case NotReplicated():
            return dict(enumerate(error.receipts))
        case TopicFull() | PartlyScheduled():
            return error.receipts
        case _:
            return {}


def _settle(outbox: Outbox, parcel: Parcel, receipts: Mapping[int, Receipt]) -> int:
    """Settle the jobs of a parcel that have receipts. Returns how many."""
    refused = {}
    if parcel.on_duplicate == "raise":
        refused = {parcel.jobs[place].seq: TAKEN for place, receipt in receipts.items() if not receipt.created}
    if refused:
        log.warning("%s of topic %s put aside: %s", counted(len(refused), "job"), parcel.topic, TAKEN)
    outbox.settle([parcel.jobs[place] for place in receipts], refused)
    return len(receipts)


def log_failure(outbox: Outbox, error: Exception) -> None:
    """Log why a round ended; the next is made in any case."""
    is_usual = isinstance(error, ServerError | sqlite3.Error)
    level = logging.INFO if is_usual else logging.WARNING
    log.log(level, "the outbox %s keeps its jobs: %s", outbox.path, error or type(error).__name__)


def one_step(go_on: Callable[[Any], Parcel], answer: Any) -> tuple[Parcel | None, int]:
    """Returns the next parcel, or None and the result at the end, because `StopIteration` cannot leave a thread."""
    try:
        return go_on(answer), 0
    except StopIteration as end:
        return None, int(end.value)
