"""cancel_due.lua and move_due.lua: all jobs of a range, a part at a time, each once."""

from __future__ import annotations

from tests.lua.shard import HOUR_MS, Ear, Shard
from wheelq.protocol.calls import bulk, leader
from wheelq.protocol.calls.bulk import BulkPart, DueRange

EVERYTHING = DueRange.of(0, None)


def cancel(shard: Shard, name: str = "c", due: DueRange = EVERYTHING) -> BulkPart:
    return shard.send(bulk.cancel(shard.keys, name, due))


def move(shard: Shard, target: str, by_ms: int = 0, name: str = "m", due: DueRange = EVERYTHING) -> BulkPart:
    return shard.send(bulk.move(shard.keys, name, due, target, by_ms))


def scores(shard: Shard) -> dict[bytes, float]:
    return dict(shard.redis.zrange(shard.keys.delayed, 0, -1, withscores=True))


def test_cancel_due_leaves_nothing_of_the_jobs(shard: Shard) -> None:
    now = shard.now_ms()
    shard.schedule(("a", now + HOUR_MS), ("b", now + 2 * HOUR_MS), ("c", now + 3 * HOUR_MS))
    due = DueRange.of(now + HOUR_MS, now + 3 * HOUR_MS)
    assert cancel(shard, due=due) == BulkPart(True, 2)
    assert list(scores(shard)) == shard.redis.hkeys(shard.keys.jobs) == [b"c"]


def test_jobs_of_every_priority_are_in_the_range_of_their_due_time_and_keep_their_priority(shard: Shard) -> None:
    at = shard.now_ms() + HOUR_MS
    for priority in ("h", "", "l"):
        shard.schedule(*((f"{n}{priority}", f"{at + n}{priority}") for n in range(3)))
    assert cancel(shard, due=DueRange.of(at + 1, at + 2)).jobs == 3
    assert {member[:1] for member in scores(shard)} == {b"0", b"2"}
    assert move(shard, "", 5_000).jobs == 6
    moved = scores(shard)
    assert (moved[b"0h"], moved[b"0"], moved[b"0l"]) == (at + 4_999.75, at + 5_000, at + 5_000.25)


def test_a_call_changes_500_and_a_repeated_one_goes_on_behind_them(shard: Shard) -> None:
    at = shard.now_ms() + HOUR_MS
    for first in (0, 400, 800):
        shard.schedule(*((f"j{n}", at) for n in range(first, first + 400)))
    assert [cancel(shard) for _ in range(4)] == [
        BulkPart(False, 500),
        BulkPart(False, 1_000),
        BulkPart(True, 1_200),
        BulkPart(True, 1_200),
    ]
    assert shard.redis.exists(shard.keys.delayed, shard.keys.jobs) == 0
    assert 0 < shard.redis.pttl(shard.keys.replays) <= bulk.REMEMBERED_MS


def test_a_job_scheduled_before_the_reached_position_is_left_alone(shard: Shard) -> None:
    at = shard.now_ms() + HOUR_MS
    shard.schedule(*((f"j{n}", at + n) for n in range(500)))
    shard.schedule(("last", at + 600))
    assert cancel(shard) == BulkPart(False, 500)
    shard.schedule(("early", at), ("later", at + 700))
    assert cancel(shard) == BulkPart(True, 502)
    assert list(scores(shard)) == [b"early"]


def test_a_retry_stays_where_it_is(shard: Shard) -> None:
    [a] = shard.deliver("a")
    shard.retry(a, 60_000)
    before = scores(shard)
    assert cancel(shard) == move(shard, "", 5_000) == BulkPart(True, 0)
    assert scores(shard) == before


def test_a_leader_is_told_of_what_moves_into_its_window(shard: Shard) -> None:
    now = shard.now_ms()
    shard.schedule(("a", now + HOUR_MS), ("b", now + HOUR_MS + 1))
    shard.send(leader.open_window(shard.keys, shard.lead(), 30_000, None, 10_000, 100, 60_000))
    ear = Ear(shard)
    assert move(shard, "+2000").jobs == 2
    [heard] = ear.heard()
    told = dict(reversed(line.split()) for line in heard.splitlines())
    assert {member: int(due) for member, due in told.items()} == scores(shard)
    assert min(scores(shard).values()) >= now + 2_000
    assert move(shard, "", HOUR_MS, name="back").jobs == 2
    assert ear.heard() == [], "what moves out of it is passed over"
    ear.close()


def test_all_jobs_get_the_time_that_the_first_call_took_for_them(shard: Shard) -> None:
    at = shard.now_ms() + HOUR_MS
    for first in (0, 300):
        shard.schedule(*((f"j{n}", at) for n in range(first, first + 300)))
    assert not move(shard, "+60000").is_all
    shard.wait_until(shard.now_ms() + 5)
    assert move(shard, "+60000") == BulkPart(True, 600)
    assert len(set(scores(shard).values())) == 1
