"""From job specs to schedule calls: check and pack each job, give it its shard, send it in batches of 500.

Jobs are prepared while the server works on the batch before, which is why a bad job among many is found only when its
batch is prepared: then what was sent is settled first, and the error tells what has been scheduled.

**While a topic changes its number of shards** a job with a given key may be alive where a former number placed it. It
is asked for there first ("write only where a live job has the id"), and made at its new place only if it is not; by a
former number no new job can be made any more, because the shards refuse it. A producer that does not know of the
change yet is refused in the same way, learns the number in force, and places what was refused anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from wheelq.arguments import check_id, due_argument, expiry, shifted
from wheelq.errors import (
    DuplicateJob,
    InvalidInput,
    InvalidJob,
    OutcomeUnknown,
    PartlyScheduled,
    ServerError,
    TopicFull,
)
from wheelq.ids import make_id
from wheelq.job import JobSpec, OnDuplicate, Receipt
from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.producer import NewJob, Placed
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings
from wheelq.topics import Topic

ONLY_SHARD = (0,)


class _Item(NamedTuple):
    """One job on its way."""

    place: int
    spec: JobSpec
    job: NewJob
    shards: tuple[int, ...]
    """Still to be asked; at the last of them it is made."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Up to 500 jobs with the same shards before them."""

    items: list[_Item] = field(default_factory=list)
    terms: str | None = None
    """Of the topic, by which they were placed; None: only where a live job has the id."""
    is_repeated: bool = False
    """It was sent before, and what came of that is not known."""


class Order:
    """One schedule call: its jobs, the batches under way, and the receipts that have come in.

    `unanswered()` gives the calls that lack an answer, making batches as it goes; `settle` takes the answers, in the
    order of the calls. Go through `unanswered()` again until the order `is_complete`, and after a lost reply: what was
    sent comes again, with the same ids. When it `is_stale`, give it the topic as it stands now (`place_by`).
    """

    def __init__(
        self,
        keys: Keys,
        name: str,
        specs: Iterable[JobSpec],
        on_duplicate: OnDuplicate,
        settings: ClientSettings,
        now_ms: int,
    ) -> None:
        self._keys = keys
        self._name = name
        self._topic = Topic()
        self._on_duplicate = on_duplicate
        self._specs = enumerate(specs)
        self._prepare = Preparation(settings, now_ms)
        self._has_one_shard = True
        self._again: deque[_Item] = deque()
        self._filling: dict[tuple[int, ...], _Batch] = {}
        self._under_way: deque[_Batch] = deque()
        self._receipts: dict[int, Receipt] = {}
        self._full: dict[int, str] = {}
        self._are_all_made = False
        self._bad: InvalidJob | None = None
        self.was_sent = False
        """Whether the first call about it has been sent before, with an unknown outcome."""
        self.terms_in_force: str | None = None
        """Set when the order is stale: the topic has these terms now."""
        self.refused_by = 0
        """The shard that said so."""

    def put(self, job: NewJob, spec: JobSpec, *, place: int = 0, was_sent: bool = False) -> None:
        """Take a job that is prepared already; `was_sent`: perhaps it has been accepted before."""
        spec = replace(spec, key=job[0])
        self._again.append(_Item(place, spec, job, self._shards_of(spec, job)))
        self.was_sent |= was_sent

    @property
    def is_complete(self) -> bool:
        """Whether every job has its receipt."""
        return self._are_all_made and not (self._again or self._filling or self._under_way)

    @property
    def is_stale(self) -> bool:
        """Whether the topic has other terms than the order was made for."""
        return self.terms_in_force is not None

    def unanswered(self) -> Iterator[Call[Placed]]:
        """The calls without an answer. Raises: InvalidJob at a bad job."""
        for batch in list(self._under_way):
            yield self._call(batch)
        filling = self._filling
        for item in self._items():
            batch = filling.get(item.shards) or filling.setdefault(item.shards, _Batch(is_repeated=self.was_sent))
            batch.items.append(item)
            if len(batch.items) == producer.BATCH:
                yield self._send(item.shards)
        while filling and not self.is_stale:
            yield self._send(next(iter(filling)))

    def settle(self, answer: Placed) -> None:
        """Take the answer to the first call without one. Raises: OutcomeUnknown, if it cannot be known any more."""
        batch = self._under_way[0]
        if answer.terms_in_force is not None:
            shards = int(answer.terms_in_force.partition(" ")[0])
            if batch.is_repeated and shards != self._topic.shards:  # perhaps accepted before, and placed by the former
                raise OutcomeUnknown("the topic's number of shards was changed while a reply was lost")
            self.terms_in_force, self.refused_by = answer.terms_in_force, batch.items[0].shards[0]
            self.was_sent |= batch.is_repeated
            self._again.extend(batch.items)
        for n, (item, receipt) in enumerate(zip(batch.items, answer.receipts, strict=False)):  # none at all, if stale
            if n in answer.full:
                self._full[item.place] = item.job[0]
            elif receipt is not None:
                self._receipts[item.place] = receipt
            else:
                self._again.append(item._replace(shards=item.shards[1:]))
        self._under_way.popleft()

    def settle_all(self, answers: Iterable[Placed | ServerError]) -> None:
        """Take the answers to several calls. Raises as `settle`, and an error that stands in the place of an answer."""
        for answer in answers:
            if isinstance(answer, ServerError):
                raise answer
            self.settle(answer)

    def place_by(self, topic: Topic) -> None:
        """Place the jobs by the topic as it stands now. To be called before anything else, and when it is stale."""
        self._topic = topic
        self._has_one_shard = topic.all_shards == 1
        self.terms_in_force = None
        unsent = [*self._again, *(item for batch in self._filling.values() for item in batch.items)]
        self._filling.clear()
        self._again = deque(item._replace(shards=self._shards_of(item.spec, item.job)) for item in unsent)

    def lost(self) -> None:
        """A reply was lost, and the calls without an answer are to be made again: they may have happened."""
        for batch in self._under_way:
            batch.is_repeated = True

    def failed(self, error: ServerError) -> ServerError:
        """What to tell the caller about an error that ends the order: nothing was done, or what is known and what not.

        A call that was refused or could not be sent did nothing, but others may have: those before it, and those under
        way behind it, whose answers nobody waits for any more.
        """
        was_lost = isinstance(error, OutcomeUnknown) or any(batch.is_repeated for batch in self._under_way)
        if not (self._receipts or was_lost or self.was_sent or len(self._under_way) > 1):
            return error
        under_way = [item for batch in self._under_way for item in batch.items] + list(self._again)
        unknown = {item.place: item.job[0] for item in under_way}
        return PartlyScheduled(str(error), unknown, self._receipts)

    def remaining(self) -> tuple[dict[int, tuple[NewJob, str | None]], InvalidJob | None]:
        """What has no receipt: jobs by place, each with its partition key; up to a bad one, whose error comes too.

        For an order that is given up. What was sent keeps its id and its bytes, so that sending it again is safe.
        """
        batches = [*self._under_way, *self._filling.values()]
        items = [item for batch in batches for item in batch.items] + list(self._again)
        found = {item.place: (item.job, item.spec.partition_key) for item in items if item.place not in self._receipts}
        if self._bad is not None:
            return found, self._bad
        for place, spec in self._specs:
            try:
                job = self._prepare.job(spec)
                found[place] = job, spec.partition_key
            except InvalidInput as error:
                return found, InvalidJob(place, error, {})
        return found, None

    def receipts_so_far(self) -> dict[int, Receipt]:
        """The receipts that have come in, by place."""
        return dict(self._receipts)

    def receipts(self) -> list[Receipt]:
        """One receipt per job, in order. Raises: TopicFull, if some were refused for that."""
        if self._full:
            raise TopicFull(self._name, self._full, self._receipts)
        return [self._receipts[place] for place in range(len(self._receipts))]

    def _items(self) -> Iterator[_Item]:
        """The jobs that are in no batch yet, while the order is not stale."""
        while self._again and not self.is_stale:
            yield self._again.popleft()
        if self._bad is not None:  # found before, but then a reply was lost
            raise self._bad
        prepare = self._prepare.job
        while not self.is_stale:
            following = next(self._specs, None)
            if following is None:
                self._are_all_made = True
                return
            place, spec = following
            try:
                job = prepare(spec)
            except InvalidInput as error:
                self._bad = InvalidJob(place, error, self._receipts)
                raise self._bad from error
            yield _Item(place, spec, job, ONLY_SHARD if self._has_one_shard else self._shards_of(spec, job))

    def _shards_of(self, spec: JobSpec, job: NewJob) -> tuple[int, ...]:
        places = self._topic.places(spec.partition_key or job[0])
        return tuple(places[::-1] if spec.key is not None else places[:1])

    def _send(self, shards: tuple[int, ...]) -> Call[Placed]:
        batch = self._filling.pop(shards)
        batch.terms = self._topic.terms if len(shards) == 1 else None
        self._under_way.append(batch)
        return self._call(batch)

    def _call(self, batch: _Batch) -> Call[Placed]:
        shard = self._keys.shard(self._name, batch.items[0].shards[0])
        return producer.schedule(shard, [item.job for item in batch.items], self._on_duplicate, batch.terms)


def accepted(topic: str, receipts: Iterable[Receipt | None], on_duplicate: OnDuplicate) -> list[Receipt]:
    """The receipts, of which none is missing. Raises: DuplicateJob where a job was there and that was asked for."""
    found = [receipt for receipt in receipts if receipt is not None]
    if on_duplicate == "raise" and (duplicates := [receipt.id for receipt in found if not receipt.created]):
        raise DuplicateJob(topic, duplicates)
    return found


class Preparation:
    """Checks and packs the jobs of one call."""

    def __init__(self, settings: ClientSettings, now_ms: int) -> None:
        """`now_ms` is this machine's clock; it serves only to refuse absurd due times."""
        self._max_delay_ms = settings.max_delay_ms
        self._payload_max_bytes = settings.payload_max_bytes
        self._now_ms = now_ms
        self._last_delay: object = None
        self._last_due = ""

    def job(self, spec: JobSpec) -> NewJob:
        """One job, checked and packed. Raises: InvalidInput."""
        if not isinstance(spec, JobSpec):
            raise InvalidInput("spec", f"must be a JobSpec(payload, delay=…), not {type(spec).__name__}")
        key, delay = spec.key, spec.delay
        id = make_id() if key is None else check_id(key)
        if spec.partition_key is not None:
            check_id(spec.partition_key, "partition_key")
        if spec.nonce is not None and (type(spec.nonce) is not bytes or len(spec.nonce) != codec.NONCE_BYTES):
            raise InvalidInput("nonce", f"must be {codec.NONCE_BYTES} bytes")
        # Jobs scheduled together often have the very same delay.
        if delay is None or delay is not self._last_delay or spec.at is not None:
            self._last_due = due_argument(delay, spec.at, self._now_ms, self._max_delay_ms)
            self._last_delay = delay
        # An id made here is unique; one that was given needs a nonce, to tell a repeated call from another's call.
        expires = None if spec.expires is None else expiry(spec.expires, self._max_delay_ms)
        record = codec.encode(
            spec.payload,
            spec.headers,
            self._payload_max_bytes,
            key is not None,
            spec.partition_key,
            expires,
            spec.nonce,
        )
        if spec.spread is None and spec.priority == "normal":
            return id, self._last_due, record
        return id, shifted(self._last_due, id, spec.priority, spec.spread, self._max_delay_ms), record
