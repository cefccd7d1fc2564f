"""Turns job specs into schedule calls: places each job in its shard, makes batches, and collects the receipts.

**A repeated call is the same call**: the same jobs, with the same tag and the same terms, to the same shard. The shard
gives the first answer again, or says that other terms are in force and that nothing was done. It keeps an answer only
if a job is due soon or has a given id. Any other job is still waiting when the call is repeated: it is found by its id,
even where a former number of shards placed it.

Jobs are prepared while the server works on the previous batch. So a bad job is found only when its batch is prepared.
Then the batches already sent are settled first, and the error names the jobs that were scheduled.

**While a topic changes its number of shards**, a job with a given key may be alive where a former number placed it.
That shard is asked first ("write only if a live job has the id"); only if it has none is the job created in its new
shard. No shard accepts new jobs placed by a former number. A producer that does not know of the change yet is refused
in the same way, learns the new number, and places the refused jobs again.

A batch is what one script call takes: up to 500 jobs of one shard. The first two have 250 jobs, so the server starts
early, and works on the first half of 500 jobs while the second is packed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from typing import NamedTuple, cast

from wheelq.base.clock import ServerClock
from wheelq.errors import (
    InvalidInput,
    InvalidJob,
    OutcomeUnknown,
    PartlyScheduled,
    ServerError,
    TopicFull,
)
from wheelq.model.job import JobSpec, OnDuplicate, Receipt
from wheelq.model.topic import Topic
from wheelq.producer.preparation import Preparation, check_specs
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.producer import Fixed, NewJob, Placed, Tag, Tagging
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings

ONLY_SHARD = (0,)


class Submission:
    """One schedule call: its jobs, the batches in flight, and the receipts received.

    `unanswered()` yields the calls that lack an answer, making batches as it goes; `settle` takes the answers, in the
    order of the calls, and `refused` stands in for an answer. Iterate over `unanswered()` again until it `is_complete`,
    and after a lost reply: sent calls then come again, with the same ids. If it `is_stale`, pass it the current topic
    (`place_by`).
    """

    def __init__(
        self,
        keys: Keys,
        name: str,
        specs: Iterable[JobSpec],
        on_duplicate: OnDuplicate,
        settings: ClientSettings,
        now_ms: int,
        tagging: Tagging,
        server_clock: ServerClock | None = None,
        bundle: str | None = None,
    ) -> None:
        """`server_clock` takes a sample from each answer. `bundle`: the jobs are its members."""
        self.topic_name = name
        self.bundle = bundle
        self.on_duplicate = on_duplicate
        self._keys = keys
        self._topic = Topic()
        check_specs(specs)
        self._specs = enumerate(specs)
        self._prepare = Preparation(name, settings, now_ms, on_duplicate, bundle)
        self._server_clock = server_clock
        self._tagging = tagging
        self._has_one_shard = True
        self._again: deque[Item] = deque()
        self._filling = Filling(producer.BATCH if bundle is None else producer.MEMBERS)
        self._under_way: deque[Batch] = deque()
        self._refused: list[Batch] = []  # by the server: nothing was done
        self._receipts: dict[int, Receipt] = {}
        self._full: dict[int, str] = {}
        self._are_all_made = False
        self._bad: InvalidJob | None = None
        self.was_sent = False
        """Whether its first call was sent before, with an unknown outcome."""
        self.terms_in_force: str | None = None
        """The topic's new terms, if the submission is stale."""
        self.refused_by = 0
        """The shard that returned them."""
        self.may_be_lost = False
        """Whether the server may have lost the topic, so that it must be registered again: see `Topics.restore`."""
        self.is_heard = True
        """False: the user may not publish, so leaders were not told of jobs that are due soon."""

    def put(self, job: NewJob, spec: JobSpec, *, place: int = 0) -> None:
        """Take a prepared job."""
        spec = replace(spec, key=job[0])
        self._again.append(Item(place, spec, job, self._shards_of(spec, job)))

    def put_sent(self, job: NewJob, spec: JobSpec, shard: int, tag: Tag) -> None:
        """Take a prepared job that was sent to a shard, with an unknown outcome."""
        batch = Batch((shard,), [0], [spec], [job], self._topic.known_terms, tag, is_repeated=True)
        self._under_way.append(batch)
        self.was_sent = self.may_be_lost = True

    @property
    def is_complete(self) -> bool:
        """Whether every job has its receipt."""
        return self._are_all_made and not (self._again or self._under_way or self._filling.not_empty())

    @property
    def is_stale(self) -> bool:
        """Whether the topic's terms have changed since the submission was made."""
        return self.terms_in_force is not None

    def unanswered(self) -> Iterator[Call[Placed]]:
        """Yields the calls without an answer. Raises: InvalidJob at a bad job."""
        for batch in list(self._under_way):
            yield self._call(batch)
        while self._again and not self.is_stale:
            item = self._again.popleft()
            if self._filling.is_full_with(item):
                yield self._send(item.shards)
        if self._bad is not None:  # found before, but then a reply was lost
            raise self._bad
        while not (self._are_all_made or self.is_stale):
            yield from self._make_batch() if self._has_one_shard else self._make_batches()
        for shards in self._filling.not_empty():
            if not self.is_stale:
                yield self._send(shards)

    def settle(self, answer: Placed) -> None:
        """Take the answer to the first call without one."""
        batch = self._under_way[0]
        if answer.terms_in_force is not None:
            self.terms_in_force, self.refused_by = answer.terms_in_force, batch.shards[0]
            self.was_sent |= batch.is_repeated
            if batch.is_repeated:  # its jobs may wait where the former terms placed them: their ids are asked for
                batch.specs = [replace(spec, key=job[0]) for spec, job in zip(batch.specs, batch.jobs, strict=True)]
            self._again.extend(batch.items())
        elif self._server_clock is not None:
            self._server_clock.observe(batch.sent_at, answer.server_us)
        self.is_heard &= answer.is_heard
        self.may_be_lost |= answer.is_first
        if answer.are_all_here:
            receipts = cast(list[Receipt], answer.receipts)
            self._receipts.update(zip(batch.places, receipts, strict=True))
        else:
            self._settle_each(batch.items(), answer)
        self._under_way.popleft()

    def _settle_each(self, items: Iterator[Item], answer: Placed) -> None:
        for n, (item, receipt) in enumerate(zip(items, answer.receipts, strict=False)):  # none at all, if stale
            if n in answer.full:
                self._full[item.place] = item.job[0]
            elif receipt is not None:
                self._receipts[item.place] = receipt
            else:
                self._again.append(item._replace(shards=item.shards[1:]))

    def refused(self) -> None:
        """Take that the first call without an answer was refused."""
        self._refused.append(self._under_way.popleft())

    def settle_all(self, answers: Iterable[Placed | ServerError]) -> None:
        """Take the answers to several calls. Raises an error in place of an answer."""
        for answer in answers:
            if isinstance(answer, ServerError):
                raise answer
            self.settle(answer)

    @property
    def placed_by(self) -> Topic:
        """The topic that places its jobs."""
        return self._topic

    def place_by(self, topic: Topic) -> None:
        """Place the jobs by the current topic. Call it first, and whenever the submission is stale."""
        self._topic = topic
        self._has_one_shard = topic.all_shards == 1
        self.terms_in_force = None
        unsent = [*self._again, *self._filling.items()]
        self._filling.clear()
        self._again = deque(item._replace(shards=self._shards_of(item.spec, item.job)) for item in unsent)

    def lost(self) -> None:
        """Record a lost reply: calls without an answer may have been done, and are made again, as refused ones are."""
        self.may_be_lost = True
        for batch in self._under_way:
            batch.is_repeated = True
        self._under_way.extend(self._refused)
        self._refused.clear()

    def failed(self, error: ServerError) -> ServerError:
        """Returns the error for the caller when `error` ends the submission: nothing was done, or which jobs were.

        A call that was refused or not sent did nothing, unless it repeats one whose reply was lost. Calls before it
        were done, and calls in flight may have been.
        """
        unsure = [*self._under_way, *(batch for batch in self._refused if batch.is_repeated)]
        was_lost = isinstance(error, OutcomeUnknown) or any(batch.is_repeated for batch in unsure)
        if not (self._receipts or was_lost or self.was_sent or len(self._under_way) > 1):
            return error
        unsure_items = [item for batch in unsure for item in batch.items()] + list(self._again)
        unknown = {item.place: item.job[0] for item in unsure_items}
        message = str(error)
        if (was_lost or self.was_sent) and not isinstance(error, OutcomeUnknown):
            message = f"a call was sent and no reply came, and repeating it failed: {message}"
        return PartlyScheduled(message, unknown, self._receipts)

    def remaining(self) -> tuple[dict[int, tuple[NewJob, str | None]], InvalidJob | None]:
        """Returns the jobs without a receipt, by place, with their partition keys; up to a bad job, with its error.

        A job that was sent keeps its id and its bytes, so that sending it again is safe. Jobs are prepared once: the
        submission can still be sent.
        """
        sent = [item for batch in (*self._refused, *self._under_way) for item in batch.items()]
        items = [*sent, *self._filling.items(), *self._again]
        found = {item.place: (item.job, item.spec.partition_key) for item in items if item.place not in self._receipts}
        if self._bad is not None:
            return found, self._bad
        for place, spec in self._specs:
            try:
                job = self._prepare.job(spec)
            except InvalidInput as error:
                return found, self._found_bad(place, error)
            found[place] = job, spec.partition_key
            self._again.append(Item(place, spec, job, self._shards_of(spec, job)))
        self._are_all_made = True
        return found, None

    def sent(self) -> dict[int, Fixed]:
        """Returns the calls whose outcome is unknown, by the places of their jobs."""
        repeated = (batch for batch in self._refused if batch.is_repeated)
        return {
            place: Fixed(batch.tag.name, batch.shards[0], batch.terms or "", batch.tag.turn_ms)
            for batch in (*repeated, *self._under_way)
            if batch.tag is not None
            for place in batch.places
        }

    def receipts_so_far(self) -> dict[int, Receipt]:
        """Returns the receipts received so far, by place."""
        return dict(self._receipts)

    def receipts(self) -> list[Receipt]:
        """Returns one receipt per job, in order. Raises: TopicFull, if the topic was too full for some."""
        if self._full:
            raise TopicFull(self.topic_name, self._full, self._receipts)
        return [self._receipts[place] for place in range(len(self._receipts))]

    def _make_batch(self) -> Iterator[Call[Placed]]:
        """Prepare a batch of jobs for the only shard. Nearly all jobs come this way, so it is written for speed."""
        batch, size, prepare = self._filling.batch(ONLY_SHARD), self._filling.size, self._prepare.job
        add_place, add_spec, add_job = batch.places.append, batch.specs.append, batch.jobs.append
        for place, spec in islice(self._specs, size - len(batch.jobs)):
            try:
                add_job(prepare(spec))
            except InvalidInput as error:
                raise self._found_bad(place, error) from error
            add_place(place)
            add_spec(spec)
        if len(batch.jobs) == size:
            yield self._send(ONLY_SHARD)
        else:
            self._are_all_made = True

    def _make_batches(self) -> Iterator[Call[Placed]]:
        """Prepare jobs for several shards, until the submission is stale."""
        for place, spec in self._specs:
            try:
                job = self._prepare.job(spec)
            except InvalidInput as error:
                raise self._found_bad(place, error) from error
            item = Item(place, spec, job, self._shards_of(spec, job))
            if self._filling.is_full_with(item):
                yield self._send(item.shards)
                if self.is_stale:  # before the next is taken
                    return
        self._are_all_made = True

    def _found_bad(self, place: int, error: InvalidInput) -> InvalidJob:
        self._bad = InvalidJob(place, error, self._receipts)
        return self._bad

    def _shards_of(self, spec: JobSpec, job: NewJob) -> tuple[int, ...]:
        places = self._topic.places(spec.partition_key or job[0])
        return tuple(places[::-1] if spec.key is not None else places[:1])

    def _send(self, shards: tuple[int, ...]) -> Call[Placed]:
        batch = self._filling.take(shards)
        batch.terms = self._topic.known_terms if len(shards) == 1 else None
        batch.tag = self._tagging.tag(has_key=any(spec.key is not None for spec in batch.specs))
        self._under_way.append(batch)
        return self._call(batch)

    def _call(self, batch: Batch) -> Call[Placed]:
        shard = self._keys.shard(self.topic_name, batch.shards[0])
        if self._server_clock is not None:
            batch.sent_at = self._server_clock.instant()
        return producer.schedule(shard, batch.jobs, self.on_duplicate, batch.terms, batch.tag)


FIRST_ONES = 2


class Item(NamedTuple):
    """One job of a submission."""

    place: int
    spec: JobSpec
    job: NewJob
    shards: tuple[int, ...]
    """The shards still to ask; the last one creates the job."""


@dataclass(slots=True, eq=False)
class Batch:
    """Up to 500 jobs with the same remaining shards, in columns, which are made faster than a tuple for each job."""

    shards: tuple[int, ...]
    places: list[int] = field(default_factory=list)
    specs: list[JobSpec] = field(default_factory=list)
    jobs: list[NewJob] = field(default_factory=list)
    terms: str | None = None
    """The topic's terms that placed them; None: write only if a live job has the id."""
    tag: Tag | None = None
    sent_at: float = 0.0
    """When its call was last made, as an instant of the server clock."""
    is_repeated: bool = False
    """Whether it was sent before, with an unknown outcome."""

    def add(self, item: Item) -> None:
        """Take a job."""
        self.places.append(item.place)
        self.specs.append(item.spec)
        self.jobs.append(item.job)

    def items(self) -> Iterator[Item]:
        """Yields its jobs."""
        return map(Item, self.places, self.specs, self.jobs, repeat(self.shards))


class Filling:
    """The batches that are being filled, one for each set of shards still to ask."""

    def __init__(self, most: int) -> None:
        """`most`: how many jobs a full batch has."""
        self._most = most
        self._batches: dict[tuple[int, ...], Batch] = {}
        self._taken = 0

    @property
    def size(self) -> int:
        """How many jobs the next full batch has."""
        return (self._most + 1) // 2 if self._taken < FIRST_ONES else self._most

    def batch(self, shards: tuple[int, ...]) -> Batch:
        """Returns the batch for these shards; a new one, if there is none."""
        return self._batches.get(shards) or self._batches.setdefault(shards, Batch(shards))

    def is_full_with(self, item: Item) -> bool:
        """Put a job in its batch; returns whether that is full now."""
        batch = self.batch(item.shards)
        batch.add(item)
        return len(batch.jobs) >= self.size

    def take(self, shards: tuple[int, ...]) -> Batch:
        """Returns a batch to send, which is not filled any more."""
        self._taken += 1
        return self._batches.pop(shards)

    def not_empty(self) -> list[tuple[int, ...]]:
        """Returns the shards for which there are jobs."""
        return [shards for shards, batch in self._batches.items() if batch.jobs]

    def items(self) -> Iterator[Item]:
        """Yields all jobs."""
        return (item for batch in self._batches.values() for item in batch.items())

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()
