"""`Standby` and `WatchedLease`: when a standby looks, and when it takes over."""

from __future__ import annotations

from wheelq.protocol.calls.leader import KEY_MARK, Looked, read_near
from wheelq.scheduler.lease import WatchedLease
from wheelq.scheduler.standby import Advice, StandbyRules
from wheelq.settings import SchedulerSettings

SETTINGS = SchedulerSettings()
NOW_MS = 1_750_000_000_000
HEDGE_MS, LEASE_MS, IDLE_MS = SETTINGS.hedge_ms, SETTINGS.lease_ms, SETTINGS.idle_ms


def looked(
    first_in: int | None = None, *, token: str = "", left_ms: int = -2, horizon_in: int | None = IDLE_MS
) -> tuple[Advice, float]:
    """What it advises, and in how many ms it looks again; the first job is due, and the horizon ends, in so many ms."""
    standby = StandbyRules(SETTINGS)
    first = None if first_in is None else NOW_MS + first_in
    horizon = None if horizon_in is None else NOW_MS + horizon_in
    advice = standby.looked(Looked(NOW_MS * 1000, first, token, left_ms, horizon))
    return advice, standby.look_at - NOW_MS


def test_it_rests_until_the_first_job_should_have_been_promoted() -> None:
    assert looked(5_000) == (Advice.REST, 5_000 + HEDGE_MS)
    assert looked(0) == (Advice.REST, HEDGE_MS)
    assert looked(10 * IDLE_MS) == (Advice.REST, IDLE_MS)


def test_it_rests_no_longer_than_the_horizon_because_later_jobs_send_no_hint() -> None:
    assert looked(None, horizon_in=20_000) == (Advice.REST, 20_000 + HEDGE_MS)
    assert looked(10 * IDLE_MS, horizon_in=20_000) == (Advice.REST, 20_000 + HEDGE_MS)
    assert looked(5_000, horizon_in=20_000) == (Advice.REST, 5_000 + HEDGE_MS)


def test_a_hint_that_comes_during_a_look_is_not_lost() -> None:
    standby = StandbyRules(SETTINGS)
    standby.hint([("before", NOW_MS + 100)], NOW_MS)
    standby.looking()
    standby.hint([("during", NOW_MS + 500)], NOW_MS)
    standby.looked(Looked(NOW_MS * 1000, None, "n:1", LEASE_MS, NOW_MS + IDLE_MS))
    assert standby.look_at == NOW_MS + 500 + HEDGE_MS
    standby.looking()
    standby.looked(Looked(NOW_MS * 1000, None, "n:1", LEASE_MS, NOW_MS + IDLE_MS))
    assert standby.look_at == NOW_MS + IDLE_MS


def test_it_looks_a_beat_after_a_key_may_have_room_for_what_its_leader_may_not_promote() -> None:
    standby = StandbyRules(SETTINGS)
    standby.looked(Looked(NOW_MS * 1000, None, "n:1", LEASE_MS, NOW_MS + IDLE_MS))
    assert standby.hint([(f"{KEY_MARK}ann", 0)], NOW_MS + 10)
    assert standby.look_at == NOW_MS + 10 + SETTINGS.sweep_ms + HEDGE_MS
    assert not standby.hint([(f"{KEY_MARK}ann", 0), ("later", NOW_MS + IDLE_MS)], NOW_MS + 20)


def test_it_looks_soon_at_a_job_in_a_shard_that_nobody_leads() -> None:
    """The hint names no job, because no horizon tells what the leader knows. It waited for the look after a second."""
    standby = StandbyRules(SETTINGS)
    standby.looked(Looked(NOW_MS * 1000, None, "", -2, None))
    assert standby.hint(read_near(b"9007199254740992 -"), NOW_MS + 10)
    assert standby.look_at == NOW_MS + 10 + HEDGE_MS
    standby.looking()
    assert standby.looked(Looked((NOW_MS + 110) * 1000, NOW_MS + 10, "", -2, None)) == Advice.TAKE


def test_it_takes_the_lease_when_nobody_has_moved_the_horizon_on() -> None:
    assert looked(None, horizon_in=-HEDGE_MS) == (Advice.TAKE, HEDGE_MS)
    assert looked(None, horizon_in=-HEDGE_MS + 1) == (Advice.REST, 1)
    assert looked(None, horizon_in=-HEDGE_MS, token="n:1", left_ms=LEASE_MS) == (Advice.REST, HEDGE_MS)


def test_a_shard_that_had_no_leader_yet_is_looked_at_again_soon() -> None:
    assert looked(None, horizon_in=None) == (Advice.REST, 1_000)


def test_an_overdue_job_lets_it_take_a_lease_that_nobody_has_and_suspect_a_leader_that_is_quiet() -> None:
    assert looked(-HEDGE_MS) == (Advice.TAKE, HEDGE_MS)
    assert looked(-HEDGE_MS, token="n:1", left_ms=LEASE_MS) == (Advice.REST, HEDGE_MS)
    assert looked(-HEDGE_MS, token="n:1", left_ms=LEASE_MS - HEDGE_MS) == (Advice.SUSPECT, HEDGE_MS / 4)


def test_a_lease_with_an_impossible_end_predates_a_step_of_the_clock() -> None:
    assert looked(-HEDGE_MS, token="n:1", left_ms=3_600_000) == (Advice.SUSPECT, HEDGE_MS / 4)


def test_a_lease_ends_when_it_is_not_prolonged_for_its_whole_life() -> None:
    held = WatchedLease(LEASE_MS)
    ends_ms = NOW_MS + 3_600_000.0
    assert not held.is_over(100.0, "n:1", ends_ms)
    assert not held.is_over(109.0, "n:1", ends_ms + 3)
    assert held.is_over(109.1, "n:1", ends_ms - 3)
    assert not held.is_over(109.2, "n:2", ends_ms), "another token"
    assert not held.is_over(118.3, "n:2", ends_ms - 3_500_000), "it was prolonged"
    assert not held.is_over(127.0, "n:2", ends_ms - 3_500_000)
    assert held.is_over(127.4, "n:2", ends_ms - 3_500_000)
    assert not held.is_over(200.0, "", 0.0)
    assert not held.is_over(300.0, "", 0.0), "nobody holds it"
