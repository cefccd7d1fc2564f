"""ack.lua, retry.lua and bury.lua: what comes of a delivery, in one step, and only by the word of its owner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Ear, Shard, entry
from tests.records import OTHER, SECOND_ATTEMPT, unstamped
from wheelq.protocol.calls import bulk, leader, order, producer, state, worker
from wheelq.protocol.calls.worker import Burial, Entry
from wheelq.protocol.codec import LAST_MS
from wheelq.protocol.keys import MEMBER_SEPARATOR
from wheelq.settings import TopicSettings


def rob(shard: Shard, *entries: Entry, group: str = "g", robber: str = "w2") -> None:
    """Let another consumer claim deliveries, as one does that takes their owner for dead."""
    shard.redis.xclaim(shard.keys.ready, group, robber, 0, [e.entry_id for e in entries], justid=True)


# ack, with one group


def test_ack_finishes_a_job_and_leaves_nothing_of_it(shard: Shard, a: Entry) -> None:
    assert shard.snapshot() == {
        "jobs": {"a": "e1"},
        "ready": {"e1": entry("a", a.due_ms)},
        "groups": {"g": {"read": "e1", "pending": {"e1": ("w1", 1)}}},
    }
    assert shard.ack([a]) == 1
    assert shard.snapshot() == {"ready": {}, "groups": {"g": {"read": "e1", "pending": {}}}}


def test_ack_leaves_the_others_alone(shard: Shard) -> None:
    a, b, c = shard.deliver("a", "b", "c")
    assert shard.ack([b]) == 1
    assert shard.snapshot() == {
        "jobs": {"a": "e1", "c": "e3"},
        "ready": {f"e{n}": entry(e.id, e.due_ms) for n, e in enumerate((a, b, c), 1)},
        "groups": {"g": {"read": "e3", "pending": {"e1": ("w1", 1), "e3": ("w1", 1)}}},
    }
    assert shard.ack([a]) == 1
    assert list(shard.snapshot()["ready"]) == ["e3"], "what the first held up is trimmed with it"


def test_ack_takes_five_hundred(shard: Shard) -> None:
    entries = shard.deliver(*(f"job-{n}" for n in range(100)))
    for start in range(100, 500, 100):
        entries += shard.deliver(*(f"job-{start + n}" for n in range(100)))
    assert shard.ack(entries) == 500
    assert shard.snapshot() == {"ready": {}, "groups": {"g": {"read": "e500", "pending": {}}}}


@pytest.mark.parametrize("safe_ms", [0, HOUR_MS], ids=["owner looked at", "owner taken for granted"])
def test_ack_again_changes_nothing(shard: Shard, safe_ms: int) -> None:
    [a, _] = shard.deliver("a", "b")
    safe_until_ms = shard.now_ms() + safe_ms if safe_ms else 0
    assert shard.ack([a], safe_until_ms=safe_until_ms) == 1
    before = shard.snapshot()
    assert shard.ack([a], safe_until_ms=safe_until_ms) == 0
    assert shard.snapshot() == before


def test_ack_of_a_delivery_that_was_given_to_another_changes_nothing(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    rob(shard, a)
    assert shard.ack([a, b]) == 1
    after = shard.snapshot()
    assert after["jobs"] == {"a": "e1"}
    assert after["groups"]["g"]["pending"] == {"e1": ("w2", 1)}
    assert shard.ack([a]) == 0
    assert shard.snapshot() == after


def test_ack_does_not_look_at_owners_before_the_named_moment(shard: Shard, a: Entry) -> None:
    """Up to then nobody can have claimed the delivery; what the script does then is only to ack."""
    rob(shard, a)
    assert shard.ack([a], safe_until_ms=shard.now_ms() - 1) == 0
    assert shard.ack([a], safe_until_ms=shard.now_ms() + HOUR_MS) == 1
    assert "jobs" not in shard.snapshot()


def test_a_late_ack_does_not_forget_a_newer_job_with_the_same_id(shard: Shard) -> None:
    [old] = shard.deliver("a")
    shard.redis.hdel(shard.keys.jobs, "a")  # as if its end had been recorded, and the reply lost
    shard.schedule(("a", shard.now_ms() + HOUR_MS))
    before = shard.snapshot()
    assert shard.ack([old]) == 1
    after = shard.snapshot()
    assert after["jobs"] == before["jobs"] == {"a": RECORD}
    assert after["delayed"] == before["delayed"]


def test_an_id_can_be_used_again_when_its_job_is_finished(shard: Shard) -> None:
    shard.ack(shard.deliver("a"))
    [again] = shard.deliver("a")
    assert shard.snapshot()["jobs"] == {"a": "e2"}
    assert shard.ack([again]) == 1
    assert "jobs" not in shard.snapshot()


# ack, and what stays in the stream


def test_retention_keeps_what_is_acked(shard: Shard, a: Entry) -> None:
    assert shard.ack([a], retention_ms=HOUR_MS) == 1
    assert shard.snapshot() == {
        "ready": {"e1": entry("a", a.due_ms)},
        "groups": {"g": {"read": "e1", "pending": {}}},
    }


@pytest.mark.parametrize("settle", ["ack", "bury"])
def test_entries_stay_for_a_minute_after_the_first_group_was_made(shard: Shard, settle: str, a: Entry) -> None:
    """So a group that is made a little later gets them, too. A clock that was set back makes no shard young again."""
    for born_ms, left in ((-30_000, 1), (60_000, 0), (-60_000, 0)):
        shard.redis.hset(shard.keys.counts, "born", f"{shard.now_ms() + born_ms} ms")
        assert shard.ack([a]) == 1 if settle == "ack" else shard.bury(a)
        assert shard.redis.xlen(shard.keys.ready) == left
        assert "jobs" not in shard.snapshot()
        [a] = shard.deliver("a")


def test_retention_keeps_no_longer_than_it_says(shard: Shard, a: Entry) -> None:
    shard.ack([a], retention_ms=HOUR_MS)
    shard.wait_until(int(a.entry_id.partition("-")[0]) + 3)
    [b] = shard.deliver("b")
    shard.ack([b], retention_ms=1)
    assert "e1" not in shard.snapshot()["ready"]


def test_trimming_never_takes_what_is_not_read(shard: Shard, a: Entry) -> None:
    shard.schedule(("b", "+0"), ("c", "+0"))
    shard.ack([a])
    assert [e["id"] for e in shard.snapshot()["ready"].values()] == ["b", "c"]
    assert [e.id for e in shard.read("g", "w1")] == ["b", "c"]


def test_trimming_never_takes_what_is_not_acked(shard: Shard) -> None:
    a, b, c = shard.deliver("a", "b", "c")
    shard.ack([a, c])
    assert [e["id"] for e in shard.snapshot()["ready"].values()] == ["b", "c"]
    shard.ack([b])
    assert shard.snapshot()["ready"] == {}


def test_trimming_never_takes_what_another_group_has_not_read(shard: Shard) -> None:
    shard.make_group("h")
    a, b = shard.deliver("a", "b")
    shard.ack([a, b])
    assert [e["id"] for e in shard.snapshot()["ready"].values()] == ["a", "b"]
    [also_a] = shard.read("h", "w2", count=1)
    shard.ack([also_a], group="h", consumer="w2")
    assert [e["id"] for e in shard.snapshot()["ready"].values()] == ["b"]


def test_trimming_never_takes_what_another_group_has_not_acked(shard: Shard) -> None:
    shard.make_group("h")
    a, b = shard.deliver("a", "b")
    _, also_b = shard.read("h", "w2")
    shard.ack([a, b])
    shard.ack([also_b], group="h", consumer="w2")
    assert [e["id"] for e in shard.snapshot()["ready"].values()] == ["a", "b"]


def test_one_ack_trims_no_more_than_the_server_does_in_a_few_milliseconds(shard: Shard, a: Entry) -> None:
    """The first entry held up all that came behind it: 100,000 entries. The rest is trimmed as acks go on."""
    fill = (
        "for n = 1, 100000 do redis.call('XADD', KEYS[1], '*', 'id', 'x', 'due', '1', 'attempt', '1', 'record', '') end"
        " redis.call('XGROUP', 'SETID', KEYS[1], 'g', '$')"
    )
    shard.redis.eval(fill, 1, shard.keys.ready)
    shard.ack([a])
    assert 60_000 < shard.redis.xlen(shard.keys.ready) < 100_000
    for n in range(10):
        [b] = shard.deliver(f"b{n}")
        shard.ack([b])
    assert shard.redis.xlen(shard.keys.ready) == 0


# ack, with several groups


@pytest.mark.parametrize("first", ["g", "h"])
def test_a_job_is_finished_when_every_group_has_acked_it(shard: Shard, first: str) -> None:
    shard.make_group("h")
    [a] = shard.deliver("a")
    shard.read("h", "w1")
    shard.ack([a], group=first)
    assert shard.snapshot()["jobs"] == {"a": "e1"}
    shard.ack([a], group="h" if first == "g" else "g")
    after = shard.snapshot()
    assert "jobs" not in after
    assert after["ready"] == {}


def test_a_job_is_not_finished_while_another_group_has_not_read_it(shard: Shard) -> None:
    shard.make_group("h")
    shard.ack(shard.deliver("a"))
    assert shard.snapshot()["jobs"] == {"a": "e1"}


def test_a_job_is_not_finished_while_it_waits_for_a_retry_in_another_group(shard: Shard) -> None:
    shard.make_group("h")
    [a] = shard.deliver("a")
    shard.read("h", "w1")
    shard.retry(a, HOUR_MS, group="h")
    shard.ack([a])
    assert shard.snapshot()["jobs"] == {"a": "e1", f"a{MEMBER_SEPARATOR}h": SECOND_ATTEMPT}


def test_a_job_is_finished_when_its_retry_is_acked_and_the_other_groups_are_done(shard: Shard) -> None:
    shard.make_group("h")
    [a] = shard.deliver("a")
    shard.read("h", "w1")
    shard.retry(a, 0, group="h")
    shard.ack([a])
    shard.sweep()
    [again] = shard.read("h", "w1")
    assert (again.attempt, again.group) == (2, "h")
    shard.ack([again], group="h")
    after = shard.snapshot()
    assert "jobs" not in after
    assert [e["id"] for e in after["ready"].values()] == ["a"], "group g has not read the retry yet"
    [not_mine] = shard.read("g", "w1")
    shard.ack([not_mine])
    assert shard.snapshot()["ready"] == {}


def test_the_retry_of_one_group_is_not_finished_by_another_that_passes_over_it(shard: Shard) -> None:
    """Every group reads every entry; one that a retry does not concern acks it, and the job lives on."""
    shard.make_group("h")
    [a] = shard.deliver("a")
    shard.read("h", "w1")
    shard.retry(a, 0, group="h")
    shard.ack([a])
    shard.sweep()
    [not_mine] = shard.read("g", "w1")
    shard.ack([not_mine])
    assert shard.snapshot()["jobs"] == {"a": "e1", f"a{MEMBER_SEPARATOR}h": "e2"}
    [again] = shard.read("h", "w1")
    assert shard.snapshot()["jobs"] == {"a": "e1", f"a{MEMBER_SEPARATOR}h": "e2"}
    shard.ack([again], group="h")
    after = shard.snapshot()
    assert "jobs" not in after, "the id is free again"
    assert after["ready"] == {}


# retry


def test_retry_moves_a_delivery_back_to_the_waiting_in_one_step(shard: Shard, a: Entry) -> None:
    before = shard.now_ms()
    due = shard.retry(a, 5_000)
    assert before + 5_000 <= due <= shard.now_ms() + 5_001
    member = f"a{MEMBER_SEPARATOR}g"
    assert shard.snapshot() == {
        "delayed": {member: due},
        "jobs": {"a": "e1", member: SECOND_ATTEMPT},
        "ready": {"e1": entry("a", a.due_ms)},
        "groups": {"g": {"read": "e1", "pending": {}}},
        "retries": 1,
    }


def test_a_retry_can_be_retried(shard: Shard, a: Entry) -> None:
    for attempt in range(2, 6):
        shard.retry(a, 0)
        shard.sweep()
        [a] = shard.read("g", "w1")
        assert (a.id, a.group, a.attempt, a.record[7]) == ("a", "g", attempt, attempt)
    shard.ack([a])
    assert "jobs" not in shard.snapshot()


def test_retry_in_two_groups_waits_twice(shard: Shard) -> None:
    shard.make_group("h")
    [a] = shard.deliver("a")
    shard.read("h", "w1")
    first, second = shard.retry(a, 1_000, group="g"), shard.retry(a, 2_000, group="h")
    assert shard.snapshot()["delayed"] == {f"a{MEMBER_SEPARATOR}g": first, f"a{MEMBER_SEPARATOR}h": second}


def two_lives(shard: Shard) -> tuple[Entry, Entry]:
    """Deliveries of a job that is fired again, and of a new one that got its id meanwhile."""
    shard.ack(shard.deliver("a"), retention_ms=HOUR_MS)
    shard.send(bulk.rerun(shard.keys, "r", "g", 0, None, 100))
    shard.schedule(("a", "+0"), record=OTHER)
    first, second = shard.read("g", "w1")
    assert (unstamped(first.record), first.group, unstamped(second.record), second.group) == (RECORD, "g", OTHER, None)
    return first, second


def test_two_lives_of_one_id_that_are_retried_at_once_both_run(shard: Shard) -> None:
    """The one from the rerun waits under a member of its own."""
    lives = two_lives(shard)
    dues = [shard.retry(life) for life in lives]
    own = f"a{MEMBER_SEPARATOR}g{MEMBER_SEPARATOR}{lives[0].entry_id}"
    assert shard.snapshot()["delayed"] == {own: dues[0], f"a{MEMBER_SEPARATOR}g": dues[1]}
    shard.sweep()
    again = shard.read("g", "w1")
    assert sorted((e.id, e.group, e.attempt, e.record[8:]) for e in again) == [
        ("a", "g", 2, RECORD[8:]),
        ("a", "g", 2, OTHER[8:]),
    ]
    assert shard.ack(again) == 2
    assert shard.snapshot() == {"ready": {}, "groups": shard.snapshot()["groups"], "replays": ["r"]}


def test_a_retry_from_a_rerun_keeps_no_id_taken(shard: Shard) -> None:
    """Its job lives on in another group, and ends there while the rerun waits; the next job has the id at once."""
    for group in ("g", "h"):
        shard.make_group(group)
    shard.schedule(("a", "+0"))
    shard.ack(shard.read("g", "w1"), retention_ms=HOUR_MS)
    [of_h] = shard.read("h", "w2")
    shard.send(bulk.rerun(shard.keys, "r", "g", 0, None, 100))
    [again] = shard.read("g", "w1")
    shard.retry(again, 60_000)
    shard.ack([of_h], group="h", consumer="w2", retention_ms=HOUR_MS)
    assert "a" not in shard.snapshot()["jobs"]
    assert shard.schedule(("a", "+0"), record=OTHER)[0][0] == 1


def test_a_retry_of_a_rerun_that_waits_as_an_earlier_release_wrote_it_is_not_lost(shard: Shard) -> None:
    """It waits under the member of the group; the live job, which fails meanwhile, takes one of its own."""
    _, live = two_lives(shard)
    member = f"a{MEMBER_SEPARATOR}g"
    shard.redis.zadd(shard.keys.delayed, {member: shard.now_ms() + 60_000})
    shard.redis.hset(shard.keys.jobs, member, RECORD)
    shard.retry(live, 60_000)
    waiting = shard.snapshot()["jobs"]
    assert unstamped(waiting[member]) == RECORD
    assert unstamped(waiting[f"{member}{MEMBER_SEPARATOR}{live.entry_id}"])[8:] == OTHER[8:]


def test_two_lives_can_be_retried_again_and_again_in_any_order(shard: Shard) -> None:
    """Also by their members, as a leader's wheel has them."""
    lives = list(two_lives(shard))
    for attempt in range(2, 6):
        for life in lives if attempt % 2 else reversed(lives):
            shard.retry(life)
        shard.wait_until(shard.now_ms() + 1)
        waiting = list(shard.snapshot()["delayed"])
        shard.send(leader.promote(shard.keys, shard.lead(), 30_000, waiting))
        lives = shard.read("g", "w1")
        assert sorted((e.group, e.attempt, e.record[8:]) for e in lives) == [
            ("g", attempt, RECORD[8:]),
            ("g", attempt, OTHER[8:]),
        ]
    shard.bury(lives[0])
    shard.ack(lives[1:])
    assert "jobs" not in shard.snapshot()
    assert "delayed" not in shard.snapshot()


def test_a_page_of_waiting_jobs_names_id_and_group_of_both_lives(shard: Shard) -> None:
    for life in two_lives(shard):
        shard.retry(life, 5_000)
    found = shard.send(producer.waiting(shard.keys, 0, 1e15, b"", 10))
    assert [(one.id, one.group) for one in found] == [("a", "g")] * 2


def test_retry_rings_the_leader_if_the_next_attempt_is_due_before_the_horizon(shard: Shard, ear: Ear) -> None:
    a, b = shard.deliver("a", "b")
    shard.retry(a, 5_000)
    [message] = ear.heard()  # to look again: there is no horizon yet
    assert leader.read_near(message)[0][1] == LAST_MS
    shard.send(leader.open_window(shard.keys, shard.lead(), 30_000, None, HOUR_MS, 100, HOUR_MS))
    due = shard.retry(b, 5_000)
    assert ear.heard() == [f"{due} b{MEMBER_SEPARATOR}g".encode()]
    assert leader.read_near(f"{due} b{MEMBER_SEPARATOR}g".encode()) == [(f"b{MEMBER_SEPARATOR}g", due)]


# bury


def dead(e: Entry, group: str = "g", record: bytes = RECORD, attempt: int = 1) -> dict[str, object]:
    told = {"group": group, "reason": "failed", "error": "it broke", "traceback": "Traceback", "entry": "e1"}
    return {"id": e.id, "due": e.due_ms, "first_due": e.due_ms, "attempt": attempt, "record": record} | told


def test_bury_puts_a_job_among_the_dead_and_finishes_it(shard: Shard, a: Entry) -> None:
    assert shard.bury(a)
    assert shard.snapshot() == {
        "ready": {},
        "groups": {"g": {"read": "e1", "pending": {}}},
        "dead": [dead(a)],
        "buried": ["a\x1fg"],
    }


@pytest.mark.parametrize("keep_done_ms", [0, HOUR_MS])
def test_what_has_the_entry_id_of_a_lost_delivery_is_not_settled_by_that_one(
    shard: Shard, a: Entry, keep_done_ms: int
) -> None:
    """The server has lost its last writes, and as its clock was set back, the next job has the entry id of the last."""
    keys = shard.keys
    shard.redis.delete(keys.ready, keys.jobs)
    shard.make_group("g")
    shard.redis.xadd(keys.ready, {"id": "b", "due": a.due_ms, "attempt": 1, "record": RECORD}, id=a.entry_id)
    shard.redis.hset(keys.jobs, "b", a.entry_id)
    [b] = shard.read("g", "w1")
    before = shard.snapshot()
    done = state.Concluded(a.entry_id, a.member, 1, b"")
    assert shard.ack([a]) == 0
    assert shard.send(state.conclude(keys, "g", "w1", 0, keep_done_ms, [done])).acknowledged == 0
    assert shard.retry(a) == 0
    assert shard.bury(a) == b""
    assert shard.send(order.put_off(keys, "g", "w1", a, 0, SECOND_ATTEMPT)) == 0
    assert shard.snapshot() == before
    assert shard.ack([b]) == 1


@pytest.mark.parametrize("is_robbed", [False, True], ids=["settled already", "given to another"])
@pytest.mark.parametrize(("settle", "refusal"), [(Shard.retry, 0), (Shard.bury, b"")], ids=["retry", "bury"])
def test_a_delivery_that_is_not_the_callers_any_more_is_left_alone(
    shard: Shard, a: Entry, settle: Callable[[Shard, Entry], object], refusal: object, is_robbed: bool
) -> None:
    if is_robbed:
        rob(shard, a)
    else:
        settle(shard, a)
    before = shard.snapshot()
    assert settle(shard, a) == refusal
    assert shard.snapshot() == before


def test_bury_of_a_retry_forgets_the_retry_and_the_job(shard: Shard, a: Entry) -> None:
    shard.retry(a, 0)
    shard.sweep()
    [again] = shard.read("g", "w1")
    shard.bury(again)
    assert shard.snapshot() == {
        "ready": {},
        "groups": {"g": {"read": "e2", "pending": {}}},
        "dead": [dead(again, record=SECOND_ATTEMPT, attempt=2)],
        "buried": ["a\x1fg"],
    }


def test_a_job_buried_in_one_group_still_runs_in_the_other(shard: Shard) -> None:
    shard.make_group("h")
    [a] = shard.deliver("a")
    shard.bury(a)
    after = shard.snapshot()
    assert after["jobs"] == {"a": "e1"}
    assert after["dead"] == [dead(a)]
    assert [e.id for e in shard.read("h", "w2")] == ["a"]


def test_bury_keeps_what_retention_says(shard: Shard, a: Entry) -> None:
    shard.bury(a, settings=TopicSettings(retention_ms=HOUR_MS))
    assert shard.snapshot()["ready"] == {"e1": entry("a", a.due_ms)}


@pytest.mark.parametrize("settle", ["retry", "bury"])
def test_a_delivery_whose_entry_was_deleted_can_still_be_settled(shard: Shard, settle: str, a: Entry) -> None:
    """Somebody ran XDEL: the worker must get rid of the delivery, and not try for ever."""
    shard.redis.xdel(shard.keys.ready, a.entry_id)
    shard.retry(a) if settle == "retry" else shard.bury(a)
    assert shard.snapshot()["groups"]["g"]["pending"] == {}


@pytest.mark.parametrize("fields", [{"hello": "world"}, {"id": "x"}])
def test_an_entry_that_is_no_job_can_be_buried(shard: Shard, fields: dict[str, str]) -> None:
    """Somebody ran XADD."""
    shard.make_group("g")
    shard.redis.xadd(shard.keys.ready, dict(fields))  # type: ignore[arg-type]
    [found] = shard.read("g", "w1")
    assert shard.bury(found)
    after = shard.snapshot()
    assert (after["ready"], after["groups"]["g"]["pending"]) == ({}, {})
    [buried] = after["dead"]
    assert (buried["id"], buried["reason"]) == (found.member, "failed")


def test_the_calls_say_whether_the_delivery_was_the_callers(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    burial = Burial("failed", "", "", 1, 0)
    assert shard.send(worker.retry(shard.keys, "g", "w1", a, 5, RECORD)) is True
    assert shard.send(worker.retry(shard.keys, "g", "w1", a, 5, RECORD)) is False
    assert shard.send(worker.bury(shard.keys, "g", "w1", b, burial, TopicSettings())) is True
    assert shard.send(worker.bury(shard.keys, "g", "w1", b, burial, TopicSettings())) is False
