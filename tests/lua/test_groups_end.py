"""The steps of protocol/calls/removal.py, make_group.lua and watch_groups.lua: a group ends, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lua.shard import HOUR_MS, Shard
from tests.lua.test_state import members
from tests.records import OTHER
from wheelq.errors import BeingRemoved
from wheelq.protocol.call import Call
from wheelq.protocol.calls import bundles, removal, state, worker


def carry_out(shard: Shard, steps: removal.Steps, between: Callable[[Call[Any]], object] = lambda call: None) -> bool:
    """Every call of a removal, and something between each two of them."""
    answer: Any = None
    while True:
        try:
            call = steps.send(answer)
        except StopIteration as end:
            return bool(end.value)
        answer = shard.send(call)
        between(call)


def remove(shard: Shard, group: str = "g", retention_ms: int = 0, **between: Any) -> bool:
    return carry_out(shard, removal.group_removed(shard.keys, group, retention_ms), **between)


def left(shard: Shard) -> dict[str, Any]:
    """The whole keyspace of the shard, in which nothing names the group."""
    assert b"g" not in shard.redis.hgetall(shard.keys.groups)
    return shard.snapshot()


def everything(shard: Shard, group: str) -> None:
    """Brings about everything that a group can leave."""
    entries = shard.deliver(*(f"{group}-{n}" for n in range(9)), group=group)
    shard.retry(entries[0], HOUR_MS, group=group)
    shard.retry(entries[1], 0, group=group)
    shard.bury(entries[2], group=group)
    note = state.pack_note(0.5, "half", 1, 1)
    shard.send(state.note(shard.keys, group, "w1", [(entries[3].entry_id, entries[3].id, note)]))
    done = [state.Concluded(entries[4].entry_id, entries[4].member, 1, b"")]
    shard.send(state.conclude(shard.keys, group, "w1", HOUR_MS, HOUR_MS, done))
    shard.redis.hset(shard.keys.order(group), mapping={"owner": "w1", "until": 1})
    shard.wait_until(shard.now_ms() + 1)
    shard.sweep()
    [again] = shard.read(group, "w1")
    shard.retry(again, 0, group=group)
    shard.wait_until(shard.now_ms() + 1)
    shard.sweep()
    shard.schedule((f"{group}-unread", "+0"))


def test_the_only_group_leaves_nothing_behind(shard: Shard) -> None:
    shard.schedule(("waits", f"+{HOUR_MS}"))
    before = shard.snapshot()
    everything(shard, "g")
    assert {"dead", "done", "ended", "order", "progress", "retries", "buried"} <= set(shard.snapshot())
    assert remove(shard)
    assert left(shard) == before


def test_one_of_two_groups_leaves_nothing_and_the_other_keeps_everything(shard: Shard) -> None:
    """Beside a twin in which the group never was: the other group's part is the same."""
    shard.make_group("h")
    everything(shard, "g")
    mine = shard.read("h", "w2")
    first = [entry for entry in mine if entry.group is None]
    before = shard.snapshot()
    assert remove(shard)
    after = left(shard)
    assert set(after["groups"]) == {"h"}
    assert after["groups"]["h"] == before["groups"]["h"]
    assert set(after["jobs"]) == {entry.id for entry in first}
    assert all("group" not in fields for fields in after["ready"].values())
    assert not {"delayed", "retries", "progress", "buried", "done", "ended", "order", "dead"} & set(after)
    assert shard.ack(mine, group="h", consumer="w2") == len(mine)
    assert left(shard) == {"ready": {}, "groups": {"h": {"read": after["groups"]["h"]["read"], "pending": {}}}}


def test_ids_whose_entries_were_trimmed_are_free_too(shard: Shard) -> None:
    [entry] = shard.deliver("a")
    shard.retry(entry, HOUR_MS)
    shard.redis.xtrim(shard.keys.ready, maxlen=0, approximate=False)
    remove(shard)
    assert left(shard) == {}


def test_members_that_wait_for_a_retry_are_cancelled_with_their_only_group(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their first entries are trimmed, and few fields are looked at in a step: an id may be there without its retry."""
    monkeypatch.setattr(removal, "AT_ONCE", 1)
    bundle, entries = members(shard, *(f"job-{n}" for n in range(50)), bundle="b" * 60)  # small hashes are one page
    for entry in entries:
        shard.retry(entry, HOUR_MS)
    shard.redis.xtrim(shard.keys.ready, maxlen=0, approximate=False)
    remove(shard)
    totals = shard.send(bundles.totals(shard.keys, bundle))
    assert totals is not None
    assert (totals.members, totals.done, totals.cancelled, totals.left) == (50, 0, 50, 0)


def test_an_id_that_only_the_group_kept_taken_is_free(shard: Shard) -> None:
    shard.make_group("gone")
    entries = shard.deliver("a", "b", group="h")
    shard.ack(entries, group="h")
    assert shard.schedule(("a", "+0"), record=OTHER)[0][0] == 3, "kept: it is promoted"
    remove(shard, "gone")
    assert shard.schedule(("a", "+0"), record=OTHER)[0][0] == 1


def test_the_state_of_a_job_that_other_groups_finished_stays(shard: Shard) -> None:
    shard.make_group("h")
    entries = shard.deliver("a")
    for group, consumer, found in (("g", "w1", entries), ("h", "w2", shard.read("h", "w2"))):
        done = [state.Concluded(found[0].entry_id, "a", 1, b"\x07")]
        shard.send(state.conclude(shard.keys, group, consumer, 0, HOUR_MS, done))
    remove(shard)
    info = shard.send(state.get(shard.keys, "a"))
    assert info is not None
    assert set(info.groups) == {"h"}
    assert info.groups["h"].result == 7


def test_retention_goes_on_keeping(shard: Shard) -> None:
    shard.ack(shard.deliver("a"), retention_ms=HOUR_MS)
    remove(shard, retention_ms=HOUR_MS)
    assert len(shard.snapshot()["ready"]) == 1
    shard.make_group("h")
    assert [entry.id for entry in shard.read("h", "w")] == ["a"]


def test_jobs_promoted_after_the_last_group_was_destroyed_wait_for_the_next_one(shard: Shard) -> None:
    shard.deliver("old")
    is_new = iter([True])

    def promote_one(call: Call[Any]) -> None:
        if call.name == "remove_group" and next(is_new, False):
            shard.schedule(("new", "+0"))

    remove(shard, between=promote_one)
    assert list(shard.snapshot()["jobs"]) == ["new"]
    shard.make_group("h")
    assert [entry.id for entry in shard.read("h", "w")] == ["new"]


def test_a_removal_can_be_broken_off_anywhere_and_repeated(shard: Shard) -> None:
    """And whoever finds it half done can go on with it, without having begun it."""
    steps = 0
    while True:
        everything(shard, "g")
        removing, answer = removal.group_removed(shard.keys, "g", 0), None
        try:
            for _ in range(steps):
                answer = shard.send(removing.send(answer))
        except StopIteration:
            break
        begins = steps % 2 == 0 or steps == 0
        carry_out(shard, removal.group_removed(shard.keys, "g", 0, begins=removal.BEGIN if begins else removal.GO_ON))
        assert left(shard) == {}, steps
        steps += 1
    assert steps > 6


def test_two_remove_it_at_once(shard: Shard) -> None:
    everything(shard, "g")
    both: list[tuple[removal.Steps, Any]] = [(removal.group_removed(shard.keys, "g", 0), None) for _ in range(2)]
    while both:
        steps, answer = both.pop(0)
        try:
            both.append((steps, shard.send(steps.send(answer))))
        except StopIteration:
            continue
    assert left(shard) == {}


def test_a_repeated_removal_finds_nothing(shard: Shard) -> None:
    everything(shard, "g")
    assert remove(shard) is True
    assert remove(shard) is False
    assert carry_out(shard, removal.group_removed(shard.keys, "g", 0, begins=removal.GO_ON)) is False


def test_nobody_makes_it_again_while_it_is_removed(shard: Shard) -> None:
    everything(shard, "g")
    refused = []

    def make(call: Call[Any]) -> None:
        if call.name != "end_removal":
            with pytest.raises(BeingRemoved):
                shard.make_group("g")
            refused.append(call.name)

    remove(shard, between=make)
    steps = {"remove_group", "purge", "release_ids", "check_members", "drop_entries", "forget_group"}
    assert steps == set(refused)
    shard.make_group("g")
    assert shard.snapshot()["groups"]["g"]["pending"] == {}


def test_only_a_group_that_is_gone_is_cleaned_up_by_itself(shard: Shard) -> None:
    everything(shard, "g")
    before = shard.snapshot()
    assert carry_out(shard, removal.group_removed(shard.keys, "g", 0, begins=removal.IF_GONE)) is False
    assert shard.snapshot() == before
    shard.redis.xgroup_destroy(shard.keys.ready, "g")
    assert carry_out(shard, removal.group_removed(shard.keys, "g", 0, begins=removal.IF_GONE)) is True
    assert set(left(shard)) <= {"ready", "jobs"}, "without a group what was promoted waits for the first one"


def test_a_group_that_an_old_worker_makes_again_is_removed_once_more(shard: Shard) -> None:
    everything(shard, "g")
    made = []

    def make(call: Call[Any]) -> None:
        if call.name == "drop_entries" and not made:
            shard.redis.xgroup_create(shard.keys.ready, "g", "0", mkstream=True)
            made.append(shard.read("g", "old"))

    remove(shard, between=make)
    assert made
    assert left(shard) == {}


def test_a_slow_remover_leaves_a_group_alone_that_was_made_since(shard: Shard) -> None:
    shard.deliver("a")
    slow = removal.group_removed(shard.keys, "g", 0)
    answer = shard.send(slow.send(None))
    remove(shard)
    [entry] = shard.deliver("b")
    shard.retry(entry, HOUR_MS)
    before = shard.snapshot()
    while True:
        try:
            answer = shard.send(slow.send(answer))
        except StopIteration:
            break
    assert shard.snapshot() == before


def test_much_is_removed_in_steps_that_are_short(shard: Shard) -> None:
    shard.make_group("g")
    shard.make_group("h")
    for first in range(0, 3_000, 500):
        shard.schedule(*((f"job-{n}", "+0") for n in range(first, first + 500)))
    shard.read("g", "w1", 2_000)
    entries = shard.read("h", "w2", 3_000)
    for first in range(0, 3_000, 500):
        shard.ack(entries[first : first + 500], group="h", consumer="w2")
    calls: list[str] = []
    remove(shard, between=lambda call: calls.append(call.name))
    assert calls.count("remove_group") == 4
    assert calls.count("release_ids") >= 4
    assert shard.snapshot() == {"ready": {}, "groups": {"h": {"read": "e3000", "pending": {}}}}


# make_group, watch_groups


def test_make_group_remembers_the_name_and_may_be_called_without_the_key(shard: Shard) -> None:
    shard.make_group("g")
    assert shard.redis.hgetall(shard.keys.groups) == {b"g": b""}
    call = worker.make_group(shard.keys, "h")
    sha = shard.redis.script_load(call.what.text)  # type: ignore[union-attr]
    assert shard.redis.evalsha(sha, 1, shard.keys.ready, "h", "beginning") == 1
    assert shard.redis.hgetall(shard.keys.groups) == {b"g": b""}


def test_a_group_that_was_destroyed_is_told(shard: Shard) -> None:
    shard.make_group("g")
    shard.redis.xgroup_create(shard.keys.ready, "old", "0")  # by a worker that does not write it down
    assert shard.send(removal.watch_groups(shard.keys)) == []
    shard.redis.xgroup_destroy(shard.keys.ready, "old")
    assert shard.send(removal.watch_groups(shard.keys)) == ["old"]
