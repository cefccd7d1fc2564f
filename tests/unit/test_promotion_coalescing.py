"""`PromotionCoalescing`: when a node may promote again."""

from __future__ import annotations

from wheelq.base.clock import ManualClock, ServerClock
from wheelq.scheduler.promoter import PromotionCoalescing
from wheelq.settings import SchedulerSettings


def coalescing(gather_ms: int, hedge_ms: int = 1_000) -> PromotionCoalescing:
    return PromotionCoalescing(SchedulerSettings(gather_ms=gather_ms, hedge_ms=hedge_ms))


def test_a_job_after_a_quiet_moment_waits_for_nothing() -> None:
    node = coalescing(2)
    assert node.until <= 0.0
    node.promoted(100.0)
    assert node.until <= 100.003


def test_all_shards_of_a_node_wait_for_the_same_moment() -> None:
    node = coalescing(2)
    node.promoted(100.0)
    node.promoted(100.001)
    assert node.until == 100.002
    node.promoted(100.004)
    assert node.until == 100.006


def test_the_pause_ends_with_a_millisecond_of_the_server_so_that_its_jobs_go_in_this_call() -> None:
    clock = ManualClock(monotonic=100.0)
    server = ServerClock(clock)
    server.observe(100.0, 5_000_000_400)
    node = coalescing(2)
    node.promoted(100.0)
    assert node.ends_ms(server) == 5_000_003, "2 ms later it is 5,000,002.4"


def test_with_zero_each_promotion_is_for_itself() -> None:
    node = coalescing(0)
    node.promoted(100.0)
    assert node.until <= 100.0


def test_it_ends_long_before_a_standby_takes_over() -> None:
    node = coalescing(1_000, hedge_ms=100)
    node.promoted(100.0)
    assert node.until == 100.025
