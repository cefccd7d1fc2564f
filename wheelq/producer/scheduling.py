"""`Scheduling`: schedules new jobs on the server.

    one      one job, in one round trip
    many     many jobs, streamed in batches
    parcels  jobs that an outbox kept
    change   a change of a topic, confirmed as the settings require

After a lost reply the call is repeated with the same ids (`ClientSettings.repeats`). If the topic has changed since,
its shards refuse the jobs; the client then reads the topic again, and places them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from wheelq.base.clock import Clock, ServerClock
from wheelq.errors import (
    BundleClosed,
    OutcomeUnknown,
    PartlyScheduled,
    ServerError,
    TopicFull,
    Unavailable,
    WheelqError,
)
from wheelq.model.checks import check_on_duplicate, check_topic
from wheelq.model.job import JobSpec, OnDuplicate, Receipt
from wheelq.model.topic import Topic, shards_in
from wheelq.producer.confirmation import Confirmation, Confirmer
from wheelq.producer.operation import Operation, Stream, ask, ask_all, ask_all_until_known, ask_until_known
from wheelq.producer.outbox.kept import Asked, Parcel, Sending
from wheelq.producer.preparation import Preparation, accepted
from wheelq.producer.submission import Submission
from wheelq.producer.topics import Topics
from wheelq.protocol.call import Call, for_many
from wheelq.protocol.calls import bundles, producer
from wheelq.protocol.calls.producer import NewJob, Placed, Tag, Tagging
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.codec import LAST_MS
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, Durability
from wheelq.telemetry import api

T = TypeVar("T")

logger = logging.getLogger("wheelq.client")

WARN_EVERY_S = 60.0
MOST_IN_A_CALL = 50
"""The most parcels in one call, which keeps the server busy for about two milliseconds."""
SMALL_BYTES = 8_192
"""The largest job that shares a call with others."""


class Scheduling:
    """Schedules jobs on the server."""

    def __init__(
        self,
        topics: Topics,
        keys: Keys,
        settings: ClientSettings,
        clock: Clock,
        tagging: Tagging,
        server_clock: ServerClock | None = None,
    ) -> None:
        """`server_clock` takes a sample from each answer."""
        self._topics = topics
        self._keys = keys
        self._settings = settings
        self._clock = clock
        self._server_clock = server_clock
        self._tagging = tagging
        self._confirming = Confirmer(settings).confirming
        self._warn_of_channels_at = 0.0

    def _prepare(self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate) -> NewJob:
        """Check a call for one job, and pack the job. Raises: InvalidInput."""
        check_on_duplicate(on_duplicate)
        check_topic(topic)
        return Preparation(topic, self._settings, self._clock.wall_ms(), on_duplicate).job(spec)

    def _checked(self, topic: str, specs: Iterable[JobSpec], on_duplicate: OnDuplicate) -> Submission:
        """Check a call for many jobs; each job is checked and packed in its turn. Raises: InvalidInput."""
        check_on_duplicate(on_duplicate)
        check_topic(topic)
        return self._submission(topic, specs, on_duplicate)

    def one(
        self,
        topic: str,
        spec: JobSpec,
        on_duplicate: OnDuplicate,
        durability: Durability | None,
        has_span: bool = False,
    ) -> Operation[Receipt]:
        """Schedule one job, within a span unless it `has_span`.

        Raises: InvalidInput, DuplicateJob, TopicFull, NotReplicated; with an outbox also OutboxFull.
        """
        if has_span or api._TRACER_PROVIDER is None:
            return self._one(topic, spec, on_duplicate, durability)
        from wheelq.producer import tracing  # imports OpenTelemetry

        make = partial(self._one, topic, on_duplicate=on_duplicate, durability=durability)
        return tracing.one(topic, spec, make, partial(self.shard_of, topic))

    def _one(
        self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate, durability: Durability | None
    ) -> Operation[Receipt]:
        return self._prepared(topic, spec, self._prepare(topic, spec, on_duplicate), on_duplicate, durability)

    def many(
        self,
        topic: str,
        specs: Iterable[JobSpec],
        on_duplicate: OnDuplicate,
        durability: Durability | None,
        has_span: bool = False,
    ) -> Operation[list[Receipt]]:
        """Schedule many jobs, within one span unless they have one; one receipt each, in order.

        Raises as `one`, and InvalidJob, PartlyScheduled.
        """
        make = partial(self._many, topic, on_duplicate=on_duplicate, durability=durability)
        return make(specs) if has_span else self._in_span(topic, specs, make)

    def members(
        self,
        topic: str,
        specs: Iterable[JobSpec],
        bundle: str,
        on_duplicate: OnDuplicate,
        durability: Durability | None,
    ) -> Operation[list[Receipt]]:
        """Schedule many jobs as members of a bundle; no outbox keeps them. Raises as `many`; BundleClosed."""
        check_on_duplicate(on_duplicate)
        check_topic(topic)

        def make(specs: Iterable[JobSpec]) -> Operation[list[Receipt]]:
            return self._submitted(self._submission(topic, specs, on_duplicate, bundle=bundle), durability)

        return self._in_span(topic, specs, make)

    def _in_span(
        self, topic: str, specs: Iterable[JobSpec], make: Callable[[Iterable[JobSpec]], Operation[list[Receipt]]]
    ) -> Operation[list[Receipt]]:
        if api._TRACER_PROVIDER is None:
            return make(specs)
        from wheelq.producer import tracing  # imports OpenTelemetry

        return tracing.many(topic, specs, make, self._settings.trace_jobs)

    def _many(
        self, topic: str, specs: Iterable[JobSpec], on_duplicate: OnDuplicate, durability: Durability | None
    ) -> Operation[list[Receipt]]:
        return self._submitted(self._checked(topic, specs, on_duplicate), durability)

    def aside(
        self, topic: str, specs: Iterable[JobSpec], on_duplicate: OnDuplicate, asked: Asked
    ) -> Operation[list[Receipt]]:
        """Keep jobs in the outbox without asking the server; `asked` is when they were scheduled.

        Raises: InvalidJob (none is kept), Unavailable.
        """
        raise Unavailable("the server does not answer, and there is no outbox: nothing was done")

    def about(self, topic: str, id: str, operation: Operation[T]) -> Operation[T]:
        """Runs an operation on one job; if the job is in an outbox, it is delivered first. Raises also: Unavailable."""
        return operation

    def shard_of(self, topic: str, partition_key: str) -> int | None:
        """Returns the shard of new jobs with this partition key (else id); None if that is not certain."""
        known = self._topics.known(topic)
        return None if known is None or known.topic.draining else known.shard(partition_key).shard

    def placement(self, topic: str) -> Operation[Topic]:
        """Returns the topic that places new jobs. Raises: BeingRemoved."""
        confirming = yield from self._confirming(None)
        return (yield from self._topics.register(topic, confirming)).topic

    def parcels(self, sending: Sending) -> Operation[None]:
        """Sends parcels of an outbox, and puts the answers into `sending`.

        Raises the error of a parcel without one; NotReplicated.
        """
        confirming = yield from self._confirming(None)
        yield from self._ask_for_the_time(sending)
        answers, topic, failure = sending.answers, sending.parcels[0].topic, None
        try:
            if confirming is None:
                yield from self._send(sending)
            else:
                calls = map(self._carry, sending.parcels)
                yield Stream(confirming.behind(calls), partial(_take_all, answers), holds_up=True)
        except ServerError as error:
            failure = error
            if isinstance(error, OutcomeUnknown):
                self._topics.forget(topic)
        answered = [
            (parcel, answer) for parcel, answer in zip(sending.parcels, answers, strict=False) if answer is not None
        ]
        sending.is_answered = bool(answered)
        try:
            for parcel, answer in answered:
                if answer.terms_in_force is not None:
                    yield from self._topics.catch_up(topic, answer.terms_in_force, parcel.place.shard, confirming)
                    break
            made = [one for one, answer in answered if answer.is_first or (one.is_repeated and answer.receipts)]
            if made:  # the server may have lost the topic, or it was removed: then their shards may be unknown
                yield from self._topics.restore(topic, _placed_by(sending.placed, made), confirming)
        except WheelqError:
            answers.clear()  # so that they are repeated, and this too
            raise
        if failure is not None:
            raise failure
        if not all(answer.is_heard for _, answer in answered):
            self._warn_of_channels()
        if confirming is not None:
            confirming.check([receipt for _, answer in answered for receipt in answer.receipts if receipt is not None])

    def _send(self, sending: Sending) -> Operation[None]:
        """Sends parcels, and puts the answers into `sending`. Raises the error of a parcel without one."""
        calls, answers, errors = _in_calls(sending.parcels), sending.answers, list[Exception]()
        under_way = iter(calls)

        def take(found: Placed | list[Placed | Exception]) -> None:
            next(under_way)
            for one in found if isinstance(found, list) else [found]:
                if isinstance(one, Exception):
                    errors.append(one)
                    answers.append(None)
                else:
                    answers.append(one)

        yield Stream(map(self._carry_some, calls), take, lambda: answers.extend([None] * len(next(under_way))))
        if errors:
            raise errors[0]

    def _carry_some(self, parcels: Sequence[Parcel]) -> Call[Any]:
        calls = [self._carry(parcel) for parcel in parcels]
        return for_many(calls) if len(calls) > 1 else calls[0]

    def _carry(self, parcel: Parcel) -> Call[Placed]:
        on_duplicate = "keep" if parcel.on_duplicate == "raise" else parcel.on_duplicate
        server, place = self._server_clock, parcel.place
        jobs = [job if server is None else job.dated_by(server) for job in parcel.jobs]
        tag = Tag(place.tag, place.turn_ms, LAST_MS, parcel.done)
        shard = self._keys.shard(parcel.topic, place.shard)
        packed = [(job.id, job.due, job.record) for job in jobs]
        return producer.schedule(shard, packed, on_duplicate, place.terms or None, tag)

    def _ask_for_the_time(self, sending: Sending) -> Operation[None]:
        """Asks for the server's time if jobs have to be dated by it and it is not well known yet."""
        server, jobs = self._server_clock, (job for one in sending.parcels for job in one.jobs)
        if server is not None and not server.is_well_known and any(job.asked for job in jobs):
            sent_at = server.instant()
            shard = self._keys.shard(sending.parcels[0].topic, 0)
            server.observe(sent_at, (yield from ask(server_time_us(shard.jobs))))

    def change(self, make: Callable[[Confirmation[Any] | None], Operation[T]]) -> Operation[T]:
        """Makes a change, confirmed as the settings require. Raises also: NotReplicated (then it was made)."""
        confirming = yield from self._confirming(None)
        outcome = yield from make(confirming)
        if confirming is not None:
            confirming.check(())
        return outcome

    def _prepared(
        self,
        topic: str,
        spec: JobSpec,
        job: NewJob,
        on_duplicate: OnDuplicate,
        durability: Durability | None,
        tried: list[Submission] | None = None,
    ) -> Operation[Receipt]:
        """Schedule one packed job. Raises as `one`; then `tried` has its submission, if it was sent."""
        confirming = None
        if (durability or self._settings.durability) != "server":
            confirming = yield from self._confirming(durability)
        known = self._topics.known(topic) if confirming is None else None
        if known is None:
            known = yield from self._topics.register(topic, confirming)
        submission = None
        if confirming is None and not known.topic.draining:  # the short path, nearly always
            shard = known.shard(spec.partition_key or job[0])
            tag = self._tagging.tag(spec.key is not None)
            sent_at = 0.0 if self._server_clock is None else self._server_clock.instant()
            try:
                answer: Placed = yield producer.schedule(shard, (job,), on_duplicate, known.known_terms, tag)
                if answer.full or answer.is_first:
                    yield from self._full_or_first(topic, job[0], known.topic, answer)
            except OutcomeUnknown as error:
                self._topics.forget(topic)  # a repeated call would not tell that the server has lost it
                submission = self._submission(topic, (), on_duplicate, tried)
                submission.place_by(known.topic)
                submission.put_sent(job, spec, shard.shard, tag)
                if not self._settings.repeats:
                    raise OutcomeUnknown(str(error), (job[0],)) from error
            else:
                if answer.terms_in_force is None:
                    if self._server_clock is not None:
                        self._server_clock.observe(sent_at, answer.server_us)
                    if not answer.is_heard:
                        self._warn_of_channels()
                    return accepted(topic, answer.receipts, on_duplicate)[0]
        if submission is None:
            submission = self._submission(topic, (), on_duplicate, tried)
            submission.place_by(known.topic)
            submission.put(job, spec)
        return (yield from self._only(submission, confirming))

    def _only(self, submission: Submission, confirming: Confirmation[Placed] | None) -> Operation[Receipt]:
        """Send the only job of a submission."""
        try:
            return (yield from self._complete(submission, confirming))[0]
        except PartlyScheduled as error:
            raise OutcomeUnknown(str(error), error.ids) from error

    def _submitted(self, submission: Submission, durability: Durability | None) -> Operation[list[Receipt]]:
        """Schedule the jobs of a submission. Raises as `many`."""
        confirming = yield from self._confirming(durability)
        yield from self._place(submission, confirming)
        return (yield from self._complete(submission, confirming))

    def _place(self, submission: Submission, confirming: Confirmation[Placed] | None) -> Operation[None]:
        found = yield from self._topics.register(submission.topic_name, confirming)
        yield from _confirmed(self._place_by(submission, found.topic), confirming)

    def _place_by(self, submission: Submission, topic: Topic) -> Operation[None]:
        """Places the jobs of a submission by a topic, whose shards take members of its bundle from then on."""
        submission.place_by(topic)
        if (bundle := submission.bundle) is not None:
            shards = [self._keys.shard(submission.topic_name, number) for number in range(topic.all_shards)]
            names = [bundles.name_of(shard) for shard in shards]
            noting = bundles.open(bundles.keeping(self._keys, bundle), bundle, None, None, names)
            entering: list[Call[Any]] = [bundles.enter(shard, bundle) for shard in shards]
            try:
                yield from ask_all_until_known(entering)  # before the bundle may ask these shards whether they have any
                yield from ask_until_known(noting)
            except BundleClosed:
                yield from ask_all(
                    bundles.forget(shard, bundle, bundles.report(shard, bundles.NONE), "", False) for shard in shards
                )
                raise

    def _submission(
        self,
        topic: str,
        specs: Iterable[JobSpec],
        on_duplicate: OnDuplicate,
        made: list[Submission] | None = None,
        bundle: str | None = None,
    ) -> Submission:
        """Returns a submission, and adds it to those `made`."""
        now_ms, server = self._clock.wall_ms(), self._server_clock
        terms = (self._settings, now_ms, self._tagging, server, bundle)
        found = Submission(self._keys, topic, specs, on_duplicate, *terms)
        if made is not None:
            made.append(found)
        return found

    def _complete(self, submission: Submission, confirming: Confirmation[Placed] | None) -> Operation[list[Receipt]]:
        """Send until every job has its receipt."""
        repeats = self._settings.repeats - submission.was_sent  # how many more lost replies are repeated
        while submission.may_be_lost or not submission.is_complete:
            try:
                if submission.may_be_lost:
                    found = yield from self._topics.restore(submission.topic_name, submission.placed_by, confirming)
                    submission.may_be_lost = False
                    yield from _confirmed(self._place_by(submission, found.topic), confirming)
                    continue
                if confirming is None:
                    yield Stream(submission.unanswered(), submission.settle, submission.refused)
                else:
                    yield Stream(confirming.behind(submission.unanswered()), submission.settle_all, holds_up=True)
                if submission.terms_in_force is not None:
                    terms, shard = submission.terms_in_force, submission.refused_by
                    found = yield from self._topics.catch_up(submission.topic_name, terms, shard, confirming)
                    yield from _confirmed(self._place_by(submission, found.topic), confirming)
            except OutcomeUnknown as error:
                self._topics.forget(submission.topic_name)
                if not repeats:
                    raise submission.failed(error) from error
                submission.lost()
                repeats -= 1
            except ServerError as error:
                raise submission.failed(error) from error
        if not submission.is_heard:
            self._warn_of_channels()
        if confirming is not None:
            confirming.check(submission.receipts())
        return accepted(submission.topic_name, submission.receipts(), submission.on_duplicate)

    def _full_or_first(self, topic: str, id: str, placed_by: Topic, answer: Placed) -> Operation[None]:
        """Registers the topic again if the job is its shard's first: the server may have lost it, perhaps just now."""
        if answer.full:
            raise TopicFull(topic, {0: id}, {})
        try:
            yield from self._topics.restore(topic, placed_by)
        except ServerError as error:
            message = f"the job was stored, but its topic could not be registered: {error}"
            raise OutcomeUnknown(message, (id,)) from error

    def _warn_of_channels(self) -> None:
        now = self._clock.monotonic()
        if now >= self._warn_of_channels_at:
            self._warn_of_channels_at = now + WARN_EVERY_S
            logger.warning(
                "the server forbids this user to publish: jobs that are due soon may start a minute late; "
                "give the user wheelq's channels (config/acl shows how)"
            )


def _confirmed(operation: Operation[None], confirming: Confirmation[Any] | None) -> Operation[None]:
    return operation if confirming is None else confirming.each(operation)


def _placed_by(topic: Topic, parcels: Iterable[Parcel]) -> Topic:
    """Returns a topic with the most shards by which any of the parcels was placed, perhaps long ago."""
    return replace(topic, shards=max(topic.shards, *(shards_in(parcel.place.terms) for parcel in parcels)))


def _in_calls(parcels: Iterable[Parcel]) -> list[list[Parcel]]:
    """Divides parcels, in order, into those of one call: small ones of one shard that follow each other share one."""

    def kind(parcel: Parcel) -> tuple[int, str, bool]:
        first = parcel.jobs[0].record
        return parcel.place.shard, parcel.on_duplicate, len(parcel.jobs) == 1 and len(first) <= SMALL_BYTES

    found: list[list[Parcel]] = []
    for (_, _, is_small), group in groupby(parcels, kind):
        alike, most = list(group), MOST_IN_A_CALL if is_small else 1
        found += [alike[at : at + most] for at in range(0, len(alike), most)]
    return found


def _take_all(answers: list[Placed | None], group: Iterable[Placed | ServerError]) -> None:
    """Adds the answers to several calls, up to the first error, which it raises."""
    for answer in group:
        if isinstance(answer, ServerError):
            raise answer
        answers.append(answer)
