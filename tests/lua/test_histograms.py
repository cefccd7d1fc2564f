"""observe.lua: what processes measured is added up in Redis, each increment once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
import redis

from tests.lua.shard import HOUR_MS
from wheelq.base.metrics import (
    BOUNDS,
    HANDLER_BOUNDS,
    LATENESS_BOUNDS,
    MOST_AT_ONCE,
    Lateness,
    Measured,
    Observations,
    Promotions,
)
from wheelq.protocol.calls import counts
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

HANDLER = (Measured.HANDLER, "orders", "g")
START = (Measured.START, "orders", "g")


@pytest.fixture
def transport(url: str) -> Iterator[Transport]:
    transport = Transport(Address(url))
    yield transport
    transport.close()


@pytest.fixture
def keys() -> Keys:
    return Keys(f"histograms-{secrets.token_hex(6)}")


def test_increments_of_several_processes_add_up(transport: Transport, keys: Keys) -> None:
    for process in ("w1", "w2"):
        observations = Observations()
        observations.add(*HANDLER, [0.005])
        observations.add(*HANDLER, [700.0])
        observations.add(*START, [-1.0])
        found = observations.to_send()
        assert found is not None
        assert transport.send(counts.observe(keys, process, *found)) is True
    added = transport.send(counts.histograms(keys))
    assert added == {
        HANDLER: [2 * 700_005_000, 2, *[0] * (len(HANDLER_BOUNDS) - 1), 2],
        START: [0, 2, *[0] * len(LATENESS_BOUNDS)],
    }


def test_increments_whose_reply_was_lost_count_once(transport: Transport, keys: Keys) -> None:
    observations = Observations()
    observations.add(*START, [0.0015])
    first = observations.to_send()
    assert first is not None
    assert transport.send(counts.observe(keys, "w1", *first)) is True  # and the process never hears of it
    observations.add(*START, [0.0015])
    again = observations.to_send()
    assert again == first, "what came meanwhile waits"
    assert transport.send(counts.observe(keys, "w1", *again)) is False
    observations.sent(again[0])
    rest = observations.to_send()
    assert rest is not None
    assert transport.send(counts.observe(keys, "w1", *rest)) is True
    observations.sent(rest[0])
    assert observations.to_send() is None
    assert transport.send(counts.histograms(keys))[START][:3] == [3_000, 0, 2]


def test_figures_without_measurements_for_an_hour_are_forgotten(url: str, transport: Transport, keys: Keys) -> None:
    transport.send(counts.observe(keys, "gone", 1, {HANDLER: [1] * 18}))
    with redis.Redis.from_url(url) as connection:
        for name, seen_ms in connection.zscan_iter(keys.measured):
            connection.zadd(keys.measured, {name: seen_ms - HOUR_MS - 1})
        transport.send(counts.observe(keys, "w1", 1, {START: [1] * 19}))
        assert transport.send(counts.histograms(keys)) == {START: [1] * 19}
        assert (connection.hlen(keys.histograms), connection.zcard(keys.measured)) == (2, 2)


def test_how_late_jobs_were_is_counted_in_all_and_by_topic() -> None:
    promotions = Promotions()
    promotions.add("orders", Lateness(4, (0, 1, 1)))
    promotions.add("orders", Lateness())
    promotions.add("mails", Lateness(10, (0,) * 20 + (4,)))
    promotions.add_held_back("mails", Lateness(7, (0, 0, 0, 1)))
    assert (promotions.lateness.total_ms, promotions.lateness.jobs) == (14, 6)
    found = promotions.observations.to_send()
    assert found is not None
    orders, mails = found[1][Measured.PROMOTION, "orders", ""], found[1][Measured.PROMOTION, "mails", ""]
    assert (orders[0], orders[1:5], orders[-1]) == (4_000, [0, 1, 1, 0], 0)
    assert (mails[0], mails[-1], sum(mails[1:])) == (10_000, 4, 4)
    assert found[1][Measured.HELD_BACK, "mails", ""][:5] == [7_000, 0, 0, 0, 1]


@pytest.mark.parametrize("kind", [Measured.START, Measured.HANDLER])
def test_few_durations_are_counted_as_many_are(kind: Measured) -> None:
    bounds = BOUNDS[kind]
    values = [-1.0, 0.0, *bounds, *(bound * 1.01 for bound in bounds), 1e6]
    together, apart = Observations(), Observations()
    together.add(kind, "orders", "g", values)
    for value in values:
        apart.add(kind, "orders", "g", [value])
    found = [observations.to_send() for observations in (together, apart)]
    assert found[0] is not None
    assert found[1] is not None
    one, other = (figures[1][kind, "orders", "g"] for figures in found if figures is not None)
    assert one[1:] == other[1:]
    assert one[0] == pytest.approx(other[0], abs=len(values))


def test_no_more_than_so_many_series_are_sent_together() -> None:
    observations = Observations()
    for n in range(MOST_AT_ONCE + 1):
        observations.add(Measured.START, f"topic-{n}", "g", [1.0])
    sizes = []
    while (found := observations.to_send()) is not None:
        sizes.append(len(found[1]))
        observations.sent(found[0])
    assert sizes == [MOST_AT_ONCE, 1]
