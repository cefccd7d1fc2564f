"""From job specs to schedule calls: check and pack each job, give it its shard, send it in batches of 500.

Jobs are prepared while the server works on the batch before, which is why a bad job among many is found only when its
batch is prepared: then what was sent is settled first, and the error tells what has been scheduled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wheelq.errors import DuplicateJob, InvalidInput, InvalidJob, OutcomeUnknown
from wheelq.job import JobSpec, OnDuplicate, Receipt, check_id, due_argument, make_id
from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.producer import NewJob
from wheelq.protocol.keys import Keys, ShardKeys, shard_of
from wheelq.settings import ClientSettings


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Up to 500 jobs of one shard, and where their receipts belong in the answer."""

    shard: ShardKeys
    places: list[int]
    jobs: list[NewJob]


class Order:
    """One schedule call: its jobs, the batches under way, and the receipts that have come in.

    `unanswered()` gives every call that lacks an answer, making batches as it goes; `settle` takes an answer. A lost
    reply is mended by going through `unanswered()` again: the batches that were sent come again with the same ids.
    """

    def __init__(
        self,
        keys: Keys,
        topic: str,
        shards: int,
        specs: Iterable[JobSpec],
        on_duplicate: OnDuplicate,
        settings: ClientSettings,
        now_ms: int,
    ) -> None:
        self._topic = topic
        self._on_duplicate = on_duplicate
        self._specs = enumerate(specs)
        self._settings = settings
        self._now_ms = now_ms
        self._shards = [keys.shard(topic, shard) for shard in range(shards)]
        self._new_batches = self._make_batches()
        self._under_way: deque[Batch] = deque()
        self._receipts: dict[int, Receipt] = {}

    def unanswered(self) -> Iterator[Call[list[Receipt]]]:
        """The calls without an answer, in the order their answers are settled. Raises: InvalidJob at a bad job."""
        for batch in list(self._under_way):
            yield self._call(batch)
        for batch in self._new_batches:
            self._under_way.append(batch)
            yield self._call(batch)

    def settle(self, receipts: list[Receipt]) -> None:
        """Take the answer to the first call without one."""
        self._receipts.update(zip(self._under_way.popleft().places, receipts, strict=True))

    def unknown(self, error: OutcomeUnknown) -> OutcomeUnknown:
        """The same error, with the ids that have no answer."""
        return OutcomeUnknown(str(error), tuple(job.id for batch in self._under_way for job in batch.jobs))

    def receipts(self) -> list[Receipt]:
        """One receipt per job, in order."""
        return [self._receipts[place] for place in range(len(self._receipts))]

    def _call(self, batch: Batch) -> Call[list[Receipt]]:
        return producer.schedule(batch.shard, batch.jobs, self._on_duplicate)

    def _make_batches(self) -> Iterator[Batch]:
        filling = [Batch(shard, [], []) for shard in self._shards]
        for place, spec in self._specs:
            try:
                job = new_job(spec, self._settings, self._now_ms)
            except InvalidInput as error:
                raise InvalidJob(place, error, self._receipts) from error
            number = shard_of(spec.partition_key or job.id, len(filling))
            batch = filling[number]
            batch.places.append(place)
            batch.jobs.append(job)
            if len(batch.jobs) == producer.BATCH:
                yield batch
                filling[number] = Batch(batch.shard, [], [])
        yield from (batch for batch in filling if batch.jobs)


def accepted(topic: str, receipts: list[Receipt], on_duplicate: OnDuplicate) -> list[Receipt]:
    """The receipts. Raises: DuplicateJob where a job was already there and that was asked for."""
    if on_duplicate == "raise":
        duplicates = [receipt.id for receipt in receipts if not receipt.created]
        if duplicates:
            raise DuplicateJob(topic, duplicates)
    return receipts


def new_job(spec: JobSpec, settings: ClientSettings, now_ms: int) -> NewJob:
    """One job, checked and packed. Raises: InvalidInput."""
    key = spec.key
    id = make_id() if key is None else check_id(key)
    due = due_argument(spec.delay, spec.at, now_ms, settings.max_delay_ms)
    # An id made here is unique; one that was given needs a nonce, to tell a repeated call from another's call.
    record = codec.encode(spec.payload, spec.headers, nonce=key is not None, limit_bytes=settings.payload_max_bytes)
    return NewJob(id, due, record)
