"""What scripts count, and the history that leaders make of it: see protocol/calls/counts.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lua.shard import HOUR_MS, KEEPS_NOTHING, LEASE_MS, RECORD, TERMS, Shard
from tests.records import OTHER
from wheelq import Client, InvalidInput, Settings, TopicMinute, TopicNotFound
from wheelq.model.topic import Topic
from wheelq.protocol.call import command
from wheelq.protocol.calls import counts, leader, leases, order, producer, removal, state, worker
from wheelq.protocol.calls.leases import LeaseId
from wheelq.protocol.calls.worker import Burial
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings

MINUTE_MS = counts.MINUTE_MS


def counted(shard: Shard) -> dict[str, int]:
    """What the shard has counted; a group's field as "outcome group"."""
    found = shard.send(command("HGETALL", shard.keys.counts, read=counts.read_counted))
    return {f"{outcome} {group}".rstrip(): number for (outcome, group), number in found.items()}


# What is counted


def test_schedule_counts_by_outcome(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("a", due), ("b", due), ("c", due))
    shard.schedule(("a", due), record=OTHER)
    shard.schedule(("b", due + 1), record=OTHER, on_duplicate="replace")
    assert counted(shard) == {"created": 3, "kept": 1, "replaced": 1}


def test_a_repeated_schedule_call_counts_nothing(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    for _ in range(3):
        shard.schedule(("a", due))
    assert counted(shard) == {"created": 1}


def test_a_job_of_a_full_topic_counts_as_refused(shard: Shard) -> None:
    due = str(shard.now_ms() + HOUR_MS)
    jobs = [(name, due, RECORD) for name in "abc"]
    shard.send(producer.schedule(shard.keys, jobs, "keep", Topic(max_pending=2).terms))
    found = counted(shard)
    assert found == {"created": 2, "refused": 1}


def test_a_job_that_is_due_at_once_counts_as_promoted_too(shard: Shard) -> None:
    shard.schedule(("a", "+0"), ("b", f"+{HOUR_MS}"))
    assert counted(shard) == {"created": 2, "promoted": 1}


def test_promotions_sweeps_and_late_jobs_count(shard: Shard) -> None:
    now = shard.now_ms()
    shard.schedule(*((name, now + HOUR_MS) for name in "abc"))
    token = shard.lead()
    shard.redis.zadd(shard.keys.delayed, {"a": shard.now_ms()})
    shard.send(leader.promote(shard.keys, token, LEASE_MS, ["a"]))
    for due in (shard.now_ms(), now - 5_000):
        shard.redis.zadd(shard.keys.delayed, {"b" if due >= now else "c": due})
        shard.send(leader.sweep(shard.keys, token, LEASE_MS, 500))
    assert counted(shard) == {"created": 3, "led": 1, "promoted": 3, "swept": 2, "late": 1}


def test_only_another_node_counts_as_a_change_of_the_leader(shard: Shard) -> None:
    for node in ("one", "one", "two", "one"):
        shard.lead(node)
        shard.redis.delete(shard.keys.lease)
    assert counted(shard) == {"led": 3}


def test_acks_count_as_done_or_as_dropped_by_group(shard: Shard) -> None:
    entries = shard.deliver("a", "b", "c")
    deliveries = [(entry.entry_id, entry.member) for entry in entries]
    assert shard.send(worker.ack(shard.keys, "g", "w1", 0, 0, deliveries, dropped=1)) == 3
    assert counted(shard) == {"created": 3, "promoted": 3, "done g": 2, "expired g": 1}
    assert shard.send(worker.ack(shard.keys, "g", "w1", 0, 0, deliveries, dropped=1)) == 0
    assert counted(shard) == {"created": 3, "promoted": 3, "done g": 2, "expired g": 1}


@pytest.mark.parametrize("keep_ms", [0, HOUR_MS])
def test_acks_that_keep_something_count_the_same(shard: Shard, keep_ms: int) -> None:
    entries = shard.deliver("a", "b", "c")
    concluded = [state.Concluded(entry.entry_id, entry.member, 0, b"", b"", b"") for entry in entries]
    assert shard.send(state.conclude(shard.keys, "g", "w1", 0, keep_ms, concluded, dropped=2)).acknowledged == 3
    assert counted(shard) == {"created": 3, "promoted": 3, "done g": 1, "expired g": 2}


def test_a_retry_that_concerns_another_group_is_not_done_by_this_one(shard: Shard) -> None:
    shard.make_group("other")
    [entry] = shard.deliver("a")
    [others] = shard.read("other", "w2")
    shard.retry(entry)
    shard.wait_until(shard.now_ms() + 1)
    shard.sweep()
    [passed_over] = [one for one in shard.read("other", "w2") if one.group == "g"]
    shard.ack([others, passed_over], "other", "w2")
    assert counted(shard)["done other"] == 1


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("failed", "buried g"),
        ("given_up", "buried g"),
        ("deliveries", "buried g"),
        ("expired", "expired g"),
        ("misfired", "expired g"),
        ("cancelled", "cancelled g"),
    ],
)
def test_burials_count_by_their_reason(shard: Shard, reason: str, outcome: str) -> None:
    [entry] = shard.deliver("a")
    shard.send(worker.bury(shard.keys, "g", "w1", entry, Burial(reason, "", "", 1, entry.due_ms), KEEPS_NOTHING))
    assert counted(shard) == {"created": 1, "promoted": 1, outcome: 1}


def test_a_job_whose_record_is_missing_counts_as_buried(shard: Shard) -> None:
    shard.redis.zadd(shard.keys.delayed, {"stranger": 1})
    shard.sweep()
    assert counted(shard) == {"led": 1, "buried": 1}


def test_retries_count_also_in_order(shard: Shard) -> None:
    first, second = shard.deliver("a", "b")
    shard.retry(first)
    shard.send(order.hold(shard.keys, "g", "w1", 60_000, 0, tell_own=False))
    shard.send(order.put_off(shard.keys, "g", "w1", second, 10, RECORD))
    assert counted(shard)["retried g"] == 2


def test_payloads_that_do_not_fit_count_apart_from_retries_also_in_order(shard: Shard) -> None:
    first, second = shard.deliver("a", "b")
    shard.send(worker.retry(shard.keys, "g", "w1", first, 10, RECORD, counted="mismatched"))
    shard.send(order.hold(shard.keys, "g", "w1", 60_000, 0, tell_own=False))
    shard.send(order.put_off(shard.keys, "g", "w1", second, 10, RECORD, counted="mismatched"))
    assert (counted(shard)["mismatched g"], "retried g" in counted(shard)) == (2, False)


def test_a_cancelled_job_counts_without_a_group(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    shard.send(producer.cancel(shard.keys, "a"))
    shard.send(producer.cancel(shard.keys, "a"))
    assert counted(shard) == {"created": 1, "cancelled": 1}


def test_deliveries_that_are_taken_over_count_as_recovered(shard: Shard) -> None:
    shard.deliver("a", "b")
    assert len(shard.send(worker.take_over(shard.keys, "g", "w2", 10, 3_500, ["w1"], []))) == 2
    assert counted(shard)["recovered g"] == 2


def test_leases_count_what_became_of_them(shard: Shard) -> None:
    shard.deliver("a", "b", "c", group="h", consumer=leases.CONSUMER)
    pending = [one["message_id"].decode() for one in shard.redis.xpending_range(shard.keys.ready, "h", "-", "+", 9)]
    done, dropped, back = [LeaseId(entry, id, 1) for entry, id in zip(pending, (b"a", b"b", b"c"), strict=True)]
    shard.send(leases.ack(shard.keys, "h", KEEPS_NOTHING, [done, dropped], dropped=1))
    shard.send(leases.release(shard.keys, "h", 0, [back]))
    found = counted(shard)
    assert (found["done h"], found["expired h"], found["retried h"]) == (1, 1, 1)


def test_a_group_that_is_removed_leaves_no_count(shard: Shard) -> None:
    done, waiting = shard.deliver("a", "b")
    shard.ack([done])
    shard.send(worker.retry(shard.keys, "g", "w1", waiting, 10, RECORD, counted="mismatched"))
    steps = removal.group_removed(shard.keys, "g", 0)
    answer = None
    try:
        while True:
            answer = shard.send(steps.send(answer))
    except StopIteration:
        pass
    assert counted(shard) == {"created": 2, "promoted": 2}


# What counting must not do


def test_calls_go_on_where_another_program_has_the_key_of_the_counts(shard: Shard) -> None:
    shard.redis.set(shard.keys.counts, "mine")
    entries = shard.deliver("a", "b")
    shard.retry(entries[1])
    assert shard.ack(entries[:1]) == 1
    token = shard.lead()
    now = shard.now_ms()
    shard.send(leader.renew(shard.keys, token, LEASE_MS, now))
    shard.send(leader.open_window(shard.keys, token, LEASE_MS, None, 2_000, 10, 2_000, now))
    assert shard.redis.get(shard.keys.counts) == b"mine"


def test_programs_that_do_not_know_of_counts_may_leave_the_key_out(shard: Shard) -> None:
    """Programs that follow the protocol page, and were written before scripts counted."""

    def older(call):  # type: ignore[no-untyped-def]
        return replace(call, keys=[key for key in call.keys if key != shard.keys.counts])

    shard.make_group("g")
    shard.send(older(producer.schedule(shard.keys, [(name, "+0", RECORD) for name in "abc"], "keep", TERMS)))
    first, second, third = shard.read("g", "w1")
    shard.send(older(worker.ack(shard.keys, "g", "w1", 0, 0, [(first.entry_id, first.member)])))
    shard.send(older(worker.retry(shard.keys, "g", "w1", second, HOUR_MS, RECORD)))
    shard.send(older(worker.bury(shard.keys, "g", "w1", third, Burial("failed", "", "", 1, 1), KEEPS_NOTHING)))
    shard.send(older(producer.cancel(shard.keys, "b")))
    assert counted(shard) == {}


# The history


def look(shard: Shard, token: str, minutes_ahead: int = 1) -> int:
    """Let a leader look as it does every few seconds; as if it had looked last `minutes_ahead` minutes ago."""
    shard.send(leader.renew(shard.keys, token, LEASE_MS, shard.now_ms()))
    if minutes_ahead and (row := shard.redis.hget(shard.keys.counts, "row")):
        minute, _, totals = row.decode().partition(" ")
        shard.redis.hset(shard.keys.counts, "row", f"{int(minute) - minutes_ahead} {totals}")
    now_ms = shard.now_ms()
    shard.send(leader.renew(shard.keys, token, LEASE_MS, now_ms))
    return now_ms // MINUTE_MS


def history(shard: Shard) -> list[TopicMinute]:
    hour = shard.now_ms() // HOUR_MS
    return [one for n in (hour - 1, hour) for one in shard.send(counts.minutes(shard.keys, n))]


@pytest.fixture
def within_a_minute(shard: Shard) -> None:
    """Begins early in a minute of the server, so that none begins meanwhile."""
    while shard.now_ms() % MINUTE_MS > 45_000:
        shard.wait_until(shard.now_ms() // MINUTE_MS * MINUTE_MS + MINUTE_MS)


@pytest.mark.usefixtures("within_a_minute")
def test_a_leader_adds_a_row_for_the_last_minute(shard: Shard, token: str) -> None:
    shard.schedule(("a", "+0"), ("b", "+0"), ("c", f"+{HOUR_MS}"))
    minute = look(shard, token)
    first = TopicMinute((minute - 1) * MINUTE_MS, scheduled=3, promoted=2)
    assert history(shard) == [first]
    shard.make_group("g")
    entries = shard.read("g", "w1")
    shard.ack(entries[:1])
    shard.retry(entries[1])
    look(shard, token, minutes_ahead=0)
    assert history(shard) == [first], "one row a minute"
    hour, number = divmod(minute - 1, 60)
    shard.redis.hdel(shard.keys.history(hour), str(number))
    look(shard, token)
    assert history(shard) == [TopicMinute((minute - 1) * MINUTE_MS, done=1, retried=1)]


@pytest.mark.usefixtures("within_a_minute")
def test_a_quiet_shard_gets_no_row(shard: Shard, token: str) -> None:
    shard.schedule(("a", "+0"))
    look(shard, token)
    hour = shard.now_ms() // HOUR_MS
    for n in (hour - 1, hour):
        shard.redis.delete(shard.keys.history(n))
    look(shard, token)
    assert history(shard) == []
    assert not any(shard.redis.exists(shard.keys.history(n)) for n in (hour - 1, hour))


def test_a_shard_that_was_never_used_has_nothing_but_its_leader(shard: Shard) -> None:
    look(shard, shard.lead())
    assert set(shard.redis.hkeys(shard.keys.counts)) == {b"leader", b"led"}


def test_rows_last_three_days(shard: Shard, token: str) -> None:
    shard.schedule(("a", "+0"))
    minute = look(shard, token)
    left_ms = shard.redis.pttl(shard.keys.history((minute - 1) // 60))
    assert 71 * HOUR_MS < left_ms <= 72 * HOUR_MS


def test_large_figures_come_back_as_they_went(shard: Shard, token: str) -> None:
    figures = {
        "created": 0,
        "promoted": 127,
        "done\x1fg": 128,
        "retried\x1fg": 2**31,
        "buried\x1fg": 16_383,
        "late": 16_384,
    }
    shard.redis.hset(shard.keys.counts, mapping=figures)
    look(shard, token)
    [minute] = history(shard)
    assert (minute.scheduled, minute.promoted, minute.done) == (0, 127, 128)
    assert (minute.retried, minute.buried, minute.late) == (2**31, 16_383, 16_384)


def test_three_days_of_an_always_busy_shard_fit_into_100_kb(shard: Shard, token: str) -> None:
    """1,300 jobs a second, some of which fail, minute after minute."""
    for n, (busy, name) in enumerate(((78_000, "created"), (77_900, "promoted"), (77_800, "done\x1fg"))):
        shard.redis.hset(shard.keys.counts, name, busy + n)
    shard.redis.hset(shard.keys.counts, mapping={"retried\x1fg": 700, "buried\x1fg": 9, "late": 120})
    look(shard, token)
    minute = shard.now_ms() // MINUTE_MS - 1
    packed = shard.redis.hget(shard.keys.history(minute // 60), str(minute % 60))
    assert packed is not None
    hours = range(1, 73)
    for hour in hours:
        for n in range(60):
            shard.redis.hset(shard.keys.history(hour), str(n), packed)
        shard.redis.pexpire(shard.keys.history(hour), HOUR_MS)
    used = sum(shard.redis.memory_usage(shard.keys.history(hour)) or 0 for hour in hours)
    shard.redis.delete(*map(shard.keys.history, hours))
    assert used <= 100_000


def test_a_client_reads_the_minutes_of_all_shards(url: str, shard: Shard) -> None:
    topic = shard.keys.topic
    with Client.connect(url, Settings(client=ClientSettings(topics_ttl_ms=200))) as client:
        with pytest.raises(TopicNotFound):
            client.history(topic)
        client.schedule(topic, 1, delay=HOUR_MS)
        client.set_shards(topic, 2)
        now_ms = shard.now_ms() // MINUTE_MS * MINUTE_MS
        for n, (ago, packed) in enumerate(((2, b"\x01\x02"), (2, b"\x03"), (90, b"\x00\x00\x07"))):
            minute = now_ms // MINUTE_MS - ago
            shard.redis.hset(Keys().shard(topic, n % 2).history(minute // 60), minute % 60, packed)
        recent = TopicMinute(now_ms - 2 * MINUTE_MS, scheduled=4, promoted=2)
        assert client.history(topic, hours=1) == [recent]
        assert client.history(topic) == [TopicMinute(now_ms - 90 * MINUTE_MS, done=7), recent]
        assert recent.at.timestamp() * 1000 == recent.at_ms
        for hours in (0, 73, 1.5):
            with pytest.raises(InvalidInput):
                client.history(topic, hours=hours)  # type: ignore[arg-type]
        client.remove_topic(topic, force=True)
        assert not list(shard.redis.scan_iter(f"*{{{topic}:*"))
