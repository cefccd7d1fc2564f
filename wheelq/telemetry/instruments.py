"""The four metrics of the messaging conventions, through the program's meter provider.

| metric                              | unit      | counted                                              |
|-------------------------------------|-----------|------------------------------------------------------|
| `messaging.client.sent.messages`     | {message} | jobs of schedule calls                               |
| `messaging.client.consumed.messages` | {message} | jobs given to a handler, or leased over HTTP         |
| `messaging.client.operation.duration` | s        | calls to the server: schedule, cancel, lease …       |
| `messaging.process.duration`         | s         | from the start of a handler to its outcome           |

Attributes name the operation, the topic, the group, the server and the kind of an error; never an id.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from opentelemetry.metrics import Counter, Histogram, MeterProvider, get_meter_provider

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The bounds of durations that the conventions advise."""


class Instruments(NamedTuple):
    """The metrics of one meter provider."""

    sent: Counter
    consumed: Counter
    operation_s: Histogram
    process_s: Histogram


def instruments() -> Instruments:
    """Returns the metrics of the meter provider that is set; without one they record nothing."""
    return _of(get_meter_provider())


@lru_cache(maxsize=4)
def _of(provider: MeterProvider) -> Instruments:
    meter = provider.get_meter("wheelq")
    return Instruments(
        meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that a producer scheduled."),
        meter.create_counter("messaging.client.consumed.messages", "{message}", "Jobs that were given to a consumer."),
        meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of an operation of a client.",
            explicit_bucket_boundaries_advisory=SECONDS,
        ),
        meter.create_histogram(
            "messaging.process.duration",
            "s",
            "From the start of a handler to its outcome.",
            explicit_bucket_boundaries_advisory=SECONDS,
        ),
    )
