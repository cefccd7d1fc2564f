"""Puts operations within spans; used while a tracer provider is set.

    one, many     `schedule {topic}`: the jobs carry its context in their headers; many can make a span for each job
    about         `cancel {topic}` and others, with the outcome

A job with a life from its caller carries no context: a repeated call must make the same record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TypeVar

from wheelq.model.dead import Replayed
from wheelq.model.job import JobSpec, Receipt
from wheelq.producer.operation import Operation, Whereabouts
from wheelq.telemetry import context, spans

T = TypeVar("T")


def one(
    topic: str, spec: JobSpec, make: Callable[[JobSpec], Operation[Receipt]], shard_of: Callable[[str], int | None]
) -> Operation[Receipt]:
    """Schedule one job within a span; `shard_of` returns the shard of a partition key, if known."""
    server: spans.Where = yield Whereabouts()
    known = {} if spec.key is None else {spans.ID: spec.key}
    with spans.scheduling(topic, server, _given([spec]), known) as span:
        receipt = yield from make(carrying(spec))
        span.sent(1)
        note(span, receipt, shard_of(spec.partition_key or receipt.id))
    return receipt


def many(
    topic: str,
    specs: Iterable[JobSpec],
    make: Callable[[Iterable[JobSpec]], Operation[list[Receipt]]],
    creates: bool,
) -> Operation[list[Receipt]]:
    """Schedule many jobs within one span; if it `creates`, each job also has a span of its own, which it carries."""
    server: spans.Where = yield Whereabouts()
    is_whole = isinstance(specs, Collection)
    count = {spans.BATCH: len(specs)} if isinstance(specs, Collection) else {}
    with spans.scheduling(topic, server, _given(specs if is_whole else ()), count) as span:
        carriers = map(partial(_created, topic, server) if creates else carrying, specs)
        receipts = yield from make(list(carriers) if is_whole else carriers)  # an iterator stays an iterator
        span.set({spans.BATCH: len(receipts)})
        span.sent(len(receipts))
    return receipts


def about(name: str, topic: str, id: str | None, operation: Operation[T]) -> Operation[T]:
    """Runs an operation on one or many scheduled jobs within a span named after it."""
    server: spans.Where = yield Whereabouts()
    with spans.changing(name, topic, server, {} if id is None else {spans.ID: id}) as span:
        outcome = yield from operation
        match outcome:
            case Replayed():
                span.set({spans.BATCH: outcome.replayed})
            case StrEnum():
                span.set({spans.OUTCOME: outcome.value})
    return outcome


def _created(topic: str, server: spans.Where, spec: JobSpec) -> JobSpec:
    """Returns the job with the context of a span of its own in its headers; an invalid job is returned unchanged."""
    if not _can_carry(spec):
        return spec
    known = {} if spec.key is None else {spans.ID: spec.key}
    with spans.creating(topic, server, _given([spec]), known):
        return carrying(spec)


def carrying(spec: JobSpec) -> JobSpec:
    """Returns the job with the current context in its headers; an invalid job is returned unchanged."""
    if not _can_carry(spec):
        return spec
    return replace(spec, headers=context.with_current(spec.headers))


def note(span: spans.Observed, receipt: Receipt, shard: int | None) -> None:
    """Record the outcome for a scheduled job in its span."""
    span.set({spans.ID: receipt.id, spans.DUE: receipt.due_ms, spans.OUTCOME: _outcome(receipt)})
    if shard is not None and not receipt.in_outbox:
        span.set({spans.SHARD: str(shard)})


def _can_carry(spec: object) -> bool:
    if not isinstance(spec, JobSpec) or getattr(spec, "life", None) is not None:
        return False
    return not spec.headers or (isinstance(spec.headers, Mapping) and all(map(_is_text, spec.headers.items())))


def _is_text(header: tuple[object, object]) -> bool:
    return isinstance(header[0], str) and isinstance(header[1], str)


def _given(specs: Iterable[JobSpec]) -> list[Mapping[str, str]]:
    """Returns the caller's headers."""
    return [spec.headers for spec in specs if _can_carry(spec) and spec.headers]


def _outcome(receipt: Receipt) -> str:
    if receipt.in_outbox:
        return "in_outbox"
    if receipt.replaced:
        return "replaced"
    return "created" if receipt.created else "kept"
