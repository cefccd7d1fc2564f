"""acquire.lua, renew.lua and release.lua: one holder at a time, and an epoch that only grows."""

from __future__ import annotations

import pytest

from tests.lua.shard import HOUR_MS, LEASE_MS, RECORD, TERMS, Ear, Shard
from wheelq.protocol.calls import leader

OTHERS = "other:5:run:9"


def acquire(shard: Shard, node: str = "node", connection: str = "run:1", replaceable: str = "") -> list[object]:
    reply = shard.raw(leader.acquire(shard.keys, node, connection, LEASE_MS, TERMS, replaceable))
    return [part.decode() if isinstance(part, bytes) else part for part in reply]


def left_ms(shard: Shard) -> int:
    return int(shard.redis.pttl(shard.keys.lease))


def give_to_another(shard: Shard, left_ms: int = HOUR_MS) -> None:
    shard.redis.set(shard.keys.lease, OTHERS, px=left_ms)


# acquire


def test_a_free_lease_is_taken(shard: Shard) -> None:
    before = shard.now_ms()
    taken, token, now_us = acquire(shard)
    epoch = shard.snapshot()["epoch"]
    assert (taken, token) == (1, f"node:{epoch}:run:1")
    assert before <= int(str(now_us)) / 1000 <= shard.now_ms() + 1
    assert before <= epoch <= shard.now_ms()
    assert shard.snapshot() == {"lease": token, "epoch": epoch}
    assert LEASE_MS - 20_000 < left_ms(shard) <= LEASE_MS


def test_a_lease_held_by_another_is_left_alone(shard: Shard) -> None:
    give_to_another(shard, 20_000)
    taken, token, _, left = acquire(shard)
    assert (taken, token) == (0, OTHERS)
    assert isinstance(left, int)
    assert 10_000 < left <= 20_000
    assert shard.snapshot() == {"lease": OTHERS}


def test_a_node_whose_name_begins_like_anothers_is_not_that_one(shard: Shard) -> None:
    shard.lead("node-1")
    assert acquire(shard, "node")[0] == 0
    assert acquire(shard, "node-11")[0] == 0


def test_a_node_takes_its_own_lease_again_and_the_older_token_is_dead(shard: Shard) -> None:
    """So it does when the reply to its first call was lost."""
    old = shard.lead()
    taken, token, _ = acquire(shard)
    assert taken == 1
    assert token != old
    assert shard.snapshot()["lease"] == token
    assert shard.raw(leader.renew(shard.keys, old, LEASE_MS)) == [0]


def test_the_lease_of_a_holder_known_to_be_gone_is_replaced(shard: Shard) -> None:
    give_to_another(shard)
    taken, token, _ = acquire(shard, replaceable=OTHERS)
    assert taken == 1
    assert shard.snapshot() == {"lease": token, "epoch": shard.snapshot()["epoch"]}
    assert left_ms(shard) <= LEASE_MS


def test_a_lease_that_has_changed_hands_meanwhile_is_not_replaced(shard: Shard) -> None:
    give_to_another(shard)
    assert acquire(shard, replaceable="other:4:run:9")[:2] == [0, OTHERS]
    assert shard.snapshot() == {"lease": OTHERS}


def test_every_epoch_is_greater_than_the_one_before(shard: Shard) -> None:
    epochs = []
    for _ in range(20):
        acquire(shard)
        epochs.append(shard.snapshot()["epoch"])
    assert sorted(set(epochs)) == epochs


def test_the_epoch_grows_although_the_key_was_lost(shard: Shard) -> None:
    """As after a failover to a replica that had not seen it: the server's clock stands in."""
    acquire(shard)
    before = shard.snapshot()["epoch"]
    shard.redis.delete(shard.keys.epoch)
    shard.wait_until(before + 1)
    acquire(shard)
    assert shard.snapshot()["epoch"] > before


def test_the_epoch_grows_although_the_clock_was_set_back(shard: Shard) -> None:
    ahead = shard.now_ms() + HOUR_MS
    shard.redis.set(shard.keys.epoch, ahead)
    acquire(shard)
    assert shard.snapshot()["epoch"] == ahead + 1


# renew


def test_renewing_prolongs_the_lease_and_shows_that_nothing_waits(shard: Shard) -> None:
    token = shard.lead(lease_ms=20_000)
    before = shard.snapshot()
    held, now_us, first_due = shard.raw(leader.renew(shard.keys, token, LEASE_MS))
    assert (held, first_due) == (1, b"")
    assert abs(int(now_us) // 1000 - shard.now_ms()) < 60_000
    assert left_ms(shard) > 20_000
    assert shard.snapshot() == before


def test_renewing_shows_when_the_first_waiting_job_is_due(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("late", due + 1), ("early", due))
    token = shard.lead()
    assert shard.raw(leader.renew(shard.keys, token, LEASE_MS))[2] == str(due).encode()


def test_renewing_a_lease_of_another_changes_nothing(shard: Shard) -> None:
    give_to_another(shard, 10_000)
    assert shard.raw(leader.renew(shard.keys, "node:1:run:1", HOUR_MS)) == [0]
    assert left_ms(shard) <= 10_000
    assert shard.snapshot() == {"lease": OTHERS}


def test_a_lapsed_lease_is_not_renewed(shard: Shard, token: str) -> None:
    shard.redis.delete(shard.keys.lease)
    assert shard.raw(leader.renew(shard.keys, token, LEASE_MS)) == [0]
    assert "lease" not in shard.snapshot()


# release


def test_releasing_frees_the_lease_and_rings_those_who_wait_for_it(shard: Shard, ear: Ear) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    token = shard.lead()
    before = shard.snapshot()
    ear.heard()
    assert shard.raw(leader.release(shard.keys, token)) == 1
    del before["lease"]
    assert shard.snapshot() == before
    assert before["jobs"] == {"a": RECORD}
    assert ear.heard() == [b""]
    assert leader.read_near(b"") == []


def test_a_node_that_goes_says_so_when_it_releases(shard: Shard, ear: Ear, token: str) -> None:
    assert shard.raw(leader.release(shard.keys, token, is_going=True)) == 1
    assert ear.heard() == [b"going"]
    assert leader.read_near(b"going") == []


def test_releasing_the_lease_of_another_changes_nothing(shard: Shard, ear: Ear) -> None:
    give_to_another(shard)
    assert shard.raw(leader.release(shard.keys, "node:1:run:1")) == 0
    assert shard.snapshot() == {"lease": OTHERS}
    assert ear.heard() == []


# look


def test_a_standby_sees_that_nobody_leads_and_nothing_waits(shard: Shard) -> None:
    server_us, first_due_ms, token, _, horizon_ms, *_ = shard.send(leader.look(shard.keys))
    assert (first_due_ms, token, horizon_ms) == (None, "", None)
    assert abs(server_us // 1000 - shard.now_ms()) < 60_000
    assert shard.snapshot() == {}


def test_a_standby_sees_who_leads_and_what_is_due_first(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("late", due + 1), ("early", due))
    held = shard.lead()
    before = shard.snapshot()
    _, first_due_ms, token, left, *_ = shard.send(leader.look(shard.keys))
    assert (first_due_ms, token) == (due, held)
    assert LEASE_MS - 20_000 < left <= LEASE_MS
    assert shard.snapshot() == before


# rest

IDLE_MS, WINDOW_MS = 60_000, 2_000


def rest(shard: Shard, terms: str = TERMS) -> int | None:
    return shard.send(leader.rest(shard.keys, terms, WINDOW_MS, IDLE_MS)).horizon_ms


def test_a_shard_in_which_nothing_is_near_rests_without_a_lease(shard: Shard) -> None:
    horizon = rest(shard)
    assert horizon is not None
    assert shard.now_ms() < horizon <= shard.now_ms() + IDLE_MS
    assert shard.send(leader.look(shard.keys)).horizon_ms == horizon
    due = shard.now_ms() + IDLE_MS // 2
    shard.schedule(("a", due))
    assert rest(shard) == due - 1, "a job that is scheduled before the next one sends a hint"
    shard.schedule(("b", due + HOUR_MS))
    assert rest(shard) == due - 1


@pytest.mark.parametrize("what", ["near", "overdue", "led", "ready", "kept", "other terms"])
def test_a_shard_in_which_there_is_something_to_do_does_not_rest(shard: Shard, what: str) -> None:
    match what:
        case "near":
            shard.schedule(("a", shard.now_ms() + WINDOW_MS - 500))
        case "overdue":
            shard.schedule(("a", shard.now_ms() + HOUR_MS))
            shard.redis.zadd(shard.keys.delayed, {"a": shard.now_ms() - 1})
        case "led":
            shard.lead()
        case "ready":
            shard.schedule(("a", "+0"))
        case "kept":
            shard.redis.zadd(shard.keys.ended, {"a": 1})
        case "other terms":
            shard.redis.set(shard.keys.shards, "7")
    before = shard.snapshot()
    assert rest(shard) is None
    assert shard.snapshot() == before
