"""Checks and packs the jobs of a schedule call before it is sent, and checks their receipts after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wheelq.base.ids import make_id
from wheelq.errors import DuplicateJob, InvalidInput
from wheelq.model.checks import (
    check_id,
    check_new_id,
    check_on_dead,
    check_spread,
    due_argument,
    expiry,
    limits,
    most_wait,
    shifted,
)
from wheelq.model.job import JobSpec, OnDuplicate, Receipt
from wheelq.model.task import TaskJob
from wheelq.protocol import codec
from wheelq.protocol.calls.producer import NewJob
from wheelq.settings import ClientSettings
from wheelq.telemetry import api


@dataclass(slots=True)
class IdempotentSpec(JobSpec):
    """A job of a service that repeats a call on behalf of its caller.

    A repeated call with the same `key` and life counts as the first one, not as another call with the same id.
    """

    life: bytes | None = None


def carrying(spec: JobSpec) -> JobSpec:
    """Returns the job with the context of the current trace in its headers, while a tracer provider is set."""
    if api._TRACER_PROVIDER is None:
        return spec
    from wheelq.producer import tracing  # imports OpenTelemetry

    return tracing.carrying(spec)


NO_PARTS_WANTED = (None, None, None, None, None)


def check_specs(specs: object) -> None:
    """Check that the jobs of a call are an iterable. Raises: InvalidInput."""
    if not isinstance(specs, Iterable):
        raise InvalidInput("jobs", f"must be JobSpecs in a list or another iterable, not {type(specs).__name__}")


class Preparation:
    """Checks and packs the jobs of one call."""

    def __init__(
        self,
        topic: str,
        settings: ClientSettings,
        now_ms: int,
        on_duplicate: OnDuplicate = "keep",
        bundle: str | None = None,
    ) -> None:
        """`now_ms` is this machine's clock, used only to refuse absurd due times. `bundle`: the jobs join it."""
        self._topic = topic
        self._max_delay_ms = settings.max_delay_ms
        self._payload_max_bytes = settings.payload_max_bytes
        self._now_ms = now_ms
        self._on_duplicate = on_duplicate
        self._bundle = bundle
        self._usual_parts = codec.NO_PARTS if bundle is None else codec.Parts(bundle=bundle)
        self._pack = codec.packer()
        self._last_delay: object = None
        self._last_due = ""

    def job(self, spec: JobSpec) -> NewJob:
        """Checks and packs one job. Raises: InvalidInput."""
        life = None if type(spec) is JobSpec else _life_of(spec)  # nearly always
        key, delay = spec.key, spec.delay
        id = make_id() if key is None else check_new_id(key)
        # Jobs scheduled together often have the same delay.
        if delay is None or delay is not self._last_delay or spec.at is not None:
            self._last_due = due_argument(delay, spec.at, self._now_ms, self._max_delay_ms)
            self._last_delay = delay
        wanted = spec.partition_key, spec.attempts, spec.timeout, spec.on_dead, spec.max_wait
        parts = self._usual_parts if wanted == NO_PARTS_WANTED else self._parts(spec)
        expires = None if spec.expires is None else expiry(spec.expires, self._max_delay_ms)
        payload = spec.payload
        record = codec.encode(
            payload.payload_for(self._topic) if type(payload) is TaskJob else payload,
            spec.headers,
            self._payload_max_bytes,
            parts,
            expires,
            life,
            self._pack,
        )
        if spec.spread is None and spec.priority == "normal":
            return id, self._last_due, record
        if spec.spread is not None:
            check_spread(self._last_due, spec.spread, self._now_ms, self._max_delay_ms)
        return id, shifted(self._last_due, id, spec.priority, spec.spread, self._max_delay_ms), record

    def _parts(self, spec: JobSpec) -> codec.Parts:
        wait_ms = None
        if spec.max_wait is not None:
            wait_ms = most_wait(spec.max_wait, spec.key, self._on_duplicate, self._last_due, self._max_delay_ms)
        key_of_shard = None if spec.partition_key is None else check_id(spec.partition_key, "partition_key")
        on_dead = None if spec.on_dead is None else check_on_dead(spec.on_dead)
        return codec.Parts(key_of_shard, wait_ms, *limits(spec.attempts, spec.timeout), self._bundle, on_dead)


def _life_of(spec: object) -> bytes | None:
    """Returns the life that a spec asks for. Raises: InvalidInput, if it is not a spec at all."""
    if not isinstance(spec, JobSpec):
        raise InvalidInput("spec", f"must be a JobSpec(payload, delay=…), not {type(spec).__name__}")
    life = spec.life if isinstance(spec, IdempotentSpec) else None
    if life is not None and (type(life) is not bytes or len(life) != codec.LIFE_BYTES):
        raise InvalidInput("life", f"must be {codec.LIFE_BYTES} bytes")
    return life


def accepted(topic: str, receipts: Iterable[Receipt | None], on_duplicate: OnDuplicate) -> list[Receipt]:
    """Returns the receipts, all present. Raises: DuplicateJob, if `on_duplicate` is "raise" and an id was taken."""
    found = [receipt for receipt in receipts if receipt is not None]
    if on_duplicate == "raise" and (duplicates := [receipt.id for receipt in found if not receipt.created]):
        made = {place: receipt for place, receipt in enumerate(found) if receipt.created}
        raise DuplicateJob(topic, duplicates, made)
    return found
