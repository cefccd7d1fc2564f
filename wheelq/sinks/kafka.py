"""`KafkaSink`: a handler that sends jobs to Kafka as messages, each at least once.

    worker ──jobs──▶ KafkaSink ──▶ librdkafka ──▶ brokers ──confirmed by all in-sync replicas──▶ acked
                               ├─ refused: sent again by itself, and buried if it is refused again
                               └─ not confirmed in time: handed back, and uses up no attempt

A worker that dies before the confirmation may have sent the message: consumers deduplicate by the job's id, a header.

Brokers refuse all messages of a request because of one of them. So what was refused is sent again by a second producer,
which puts a single message in each request: only what is refused there is at fault.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from wheelq import reminders
from wheelq.base.as_json import as_json, as_text
from wheelq.base.clock import SystemClock
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.job import Job
from wheelq.model.retry import Bury, Postponed

logger = logging.getLogger("wheelq.sinks")

SLOW_S = 5.0
"""Confirmations that take longer than this are logged: once, and as a reminder each minute."""
POLL_S = 0.5
SETTINGS: Mapping[str, Any] = {
    "linger.ms": 2,
    "log_level": 2,  # librdkafka would print a line for each failed connection
    "reconnect.backoff.max.ms": 1_000,
}
"""Settings of librdkafka that a caller may override."""
GUARANTEES: Mapping[str, Any] = {"acks": "all", "enable.idempotence": True}
FIXED = (
    *GUARANTEES,
    "bootstrap.servers",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "error_cb",
    "delivery.report.only.error",
    "transactional.id",
)
"""Settings that the sink decides: by its guarantees, or from `servers` and `timeout`."""
ALONE: Mapping[str, Any] = {"batch.num.messages": 1, "linger.ms": 0}
"""One message in each request."""
REFUSALS = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
)
"""The errors by which a broker refuses a message for good. After any other, the same message may succeed later."""

Message = dict[str, Any]
"""Arguments of `Producer.produce`."""


class KafkaAway(Exception):
    """The brokers do not confirm messages now."""


class KafkaSink:
    """Sends jobs to Kafka as messages, each at least once.

        sink = KafkaSink("kafka-1:9092,kafka-2:9092", "orders-due")
        worker.batch_handler("orders", max_size=500)(sink)
        worker.handler("payments", ordered="key")(sink)     one message in flight for each partition key

    The headers of a message are those of its job, and `wheelq-topic`, `wheelq-job` (the job's id), `wheelq-due` (when
    it was first due, in milliseconds since the Unix epoch) and `wheelq-attempt`. Its key is the job's partition key.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        envelope: bool = False,
        timeout: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`servers` are brokers of the cluster: `host:port`, separated by commas. `topic` is the Kafka topic.

        A value is the job's payload as JSON, or the payload itself if that is bytes; with `envelope` it is
        `{"topic": …, "content": …}`, with the job's topic and the payload as text, as the classic API returns it.

        A job whose message is not confirmed within `timeout` seconds is handed back, and uses up no attempt. `config`
        has further settings of librdkafka, such as `security.protocol`; `acks` and `enable.idempotence` are fixed.

        Raises: InvalidInput, ConfigurationError.
        """
        if not re.fullmatch(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}", topic):
            raise InvalidInput(
                "topic", f"must be 1 to 249 of the characters a-z A-Z 0-9 . _ - for Kafka, not {topic!r}"
            )
        if not 1 <= timeout <= 3_600:
            raise InvalidInput("timeout", f"must be 1 to 3,600 seconds, not {timeout!r}")
        self._servers = servers
        self._topic = topic
        self._envelope = envelope
        self._timeout = timeout
        self._config = _checked(config or {})
        self._config |= {"bootstrap.servers": servers, "message.timeout.ms": round(timeout * 1000)}
        self._producers: dict[bool, _Producing] = {}
        self._away_since: float | None = None

    async def __call__(self, work: Job | Sequence[Job]) -> list[Exception | None] | None:
        """Send a job, or all jobs of a batch, and wait until they are confirmed. Returns each job's error, or None.

        Raises: the error of a single job: Bury, if it is refused; Postponed, if it was not confirmed in time.
        """
        messages = [self._message(job) for job in ([work] if isinstance(work, Job) else work)]
        errors = await self._send(messages)
        if refused := [place for place, error in enumerate(errors) if _is_refusal(error)]:
            again = await self._send([messages[place] for place in refused], alone=True)
            for place, error in zip(refused, again, strict=True):
                errors[place] = error
        outcomes = [None if error is None else self._outcome(error) for error in errors]
        if not isinstance(work, Job):
            return outcomes
        if outcomes[0] is not None:
            raise outcomes[0]
        return None

    async def _send(self, messages: Sequence[Message], *, alone: bool = False) -> list[KafkaError | None]:
        """Returns for each message its error, or None if it was confirmed."""
        producing = self._producers.get(alone)
        if producing is None or producing.is_dead:
            producing = self._producers[alone] = _Producing({**self._config, **ALONE} if alone else self._config)
        errors = await producing.send(messages, self._tell_slow)
        if not all(errors):  # one is None, which `in` could not tell: a KafkaError cannot be compared with it
            self._away_since = None
        return errors

    def _outcome(self, error: KafkaError) -> Exception:
        if _is_refusal(error):
            return Bury(f"Kafka refuses the message: {error.str()}")
        now = SystemClock().monotonic()
        if self._away_since is None:
            self._away_since = now
        self._tell_slow(error.str())
        return Postponed(f"not confirmed by Kafka: {error.str()}", 1 + int((now - self._away_since) / self._timeout))

    def _tell_slow(self, why: str) -> None:
        error = KafkaAway(f"messages are not confirmed ({why or 'no error is known'})")  # one kind of error, any reason
        reminders.warn(logger, f"jobs wait for Kafka at {self._servers}", error)

    def _message(self, job: Job) -> Message:
        about = {
            "wheelq-topic": job.topic,
            "wheelq-job": job.id,
            "wheelq-due": str(job.first_due_ms or job.due_ms),
            "wheelq-attempt": str(job.attempt),
        }
        if self._envelope:
            value = as_json({"topic": job.topic, "content": as_text(job.payload)})
        else:
            value = job.payload if isinstance(job.payload, bytes) else as_json(job.payload)
        return {"topic": self._topic, "value": value, "key": job.partition_key, "headers": {**job.headers, **about}}


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of librdkafka. Raises: InvalidInput, ConfigurationError, if it refuses them."""
    if wrong := next((name for name in FIXED if name in config), None):
        raise InvalidInput("config", f"must not have {wrong!r}: the sink sets it itself")
    made = {**SETTINGS, **config, **GUARANTEES}
    try:
        Producer({**made, "log_level": 0})  # has no servers, and connects to nothing
    except (KafkaException, TypeError, ValueError) as error:
        why = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigurationError(f"librdkafka refuses the settings of the Kafka sink: {why}") from error
    return made


def _is_refusal(error: KafkaError | None) -> bool:
    return error is not None and error.code() in REFUSALS


class _Producing:
    """A producer, and the thread that hears of its confirmations while there are any to come."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.is_dead = False
        """Whether it can send nothing more."""
        self._lock = threading.Lock()
        self._is_polling = False
        self._trouble = ""
        self._producer = Producer({**config, "error_cb": self._failed})

    async def send(self, messages: Sequence[Message], tell_slow: Callable[[str], None]) -> list[KafkaError | None]:
        """Send messages; returns the error of each, or None if it is confirmed.

        `tell_slow(why)` is called every few seconds while it waits. If this is cancelled, what has not left the queue
        is not sent.
        """
        errors: list[KafkaError | None] = [None] * len(messages)
        ended, loop, left = asyncio.Event(), asyncio.get_running_loop(), len(messages)

        def end(place: int, error: KafkaError | None, _: object = None) -> None:  # here, or in the thread
            nonlocal left
            errors[place] = error
            with self._lock:
                left -= 1
            if not left:
                with suppress(RuntimeError):  # the loop is closed: nobody waits
                    loop.call_soon_threadsafe(ended.set)

        for place, message in enumerate(messages):
            try:
                self._producer.produce(**message, on_delivery=partial(end, place))
            except KafkaException as error:
                end(place, error.args[0])
            except BufferError as error:
                end(place, KafkaError(KafkaError._QUEUE_FULL, str(error)))
        self._listen()
        try:
            while left:
                await SystemClock().wait(ended, SLOW_S)
                ended.clear()
                if left:
                    tell_slow(self._trouble)
        except asyncio.CancelledError:
            self._producer.purge(in_flight=False, blocking=False)
            raise
        if not all(errors):
            self._trouble = ""
        return errors

    def _listen(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if not self._is_polling:
                self._is_polling = True
                threading.Thread(target=self._poll, name="wheelq-kafka", daemon=True).start()

    def _poll(self) -> None:
        while self._is_polling:
            try:
                self._producer.poll(POLL_S)
            except KafkaException as error:  # a fatal one
                self._trouble, self.is_dead = error.args[0].str(), True
            with self._lock:
                self._is_polling = len(self._producer) > 0

    def _failed(self, error: KafkaError) -> None:
        self._trouble = error.str()
