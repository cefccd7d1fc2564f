"""What the timing wheel promises: every id at its tick, never early, never late, at a cost that ignores empty ticks."""

import doctest
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from wheelq.scheduler import wheel as wheel_module
from wheelq.scheduler.wheel import Wheel

DAY = 86_400_000
LEVELS = range(1, 6)
STARTS = {
    "zero": 0,
    "one": 1,
    "last tick of a level-0 turn": 63,
    "aligned to every level": 64**6,
    "one short of every level": 64**6 - 1,
    "a date of today": 1_763_000_000_123,
}

from_every_start = pytest.mark.parametrize("now", STARTS.values(), ids=STARTS.keys())
at_every_level = pytest.mark.parametrize("level", LEVELS)
one_tick_around = pytest.mark.parametrize("offset", [-1, 0, 1])


def expiries_by_next_tick(wheel: Wheel) -> list[tuple[int, str, int]]:
    """Run the wheel dry as a driver would, from one `next_tick` to the next: (tick it came out at, id, due)."""
    expiries = []
    while (tick := wheel.next_tick()) is not None:
        expired = wheel.advance(tick)
        wheel.check()
        following = wheel.next_tick()
        assert expired or (following is not None and following > tick), "advance at next_tick makes progress"
        expiries += [(tick, id, due) for id, due in expired]
    return expiries


def lines_run(action: Callable[[], object]) -> int:
    """How many lines of Python `action` runs, in all functions it calls: work, counted without a clock."""
    lines = 0

    def count(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


class TestAnIdExpiresAtItsDueTick:
    @from_every_start
    @at_every_level
    @one_tick_around
    def test_when_it_is_as_far_away_as_a_level_reaches(self, now: int, level: int, offset: int) -> None:
        due = now + 64**level + offset
        wheel = Wheel(now)
        wheel.insert("a", due)
        wheel.check()
        assert wheel.advance(due - 1) == []
        wheel.check()
        assert wheel.next_tick() == due
        assert wheel.advance(due) == [("a", due)]
        assert wheel.next_tick() is None

    @from_every_start
    @at_every_level
    @one_tick_around
    def test_when_it_is_next_to_the_boundary_where_a_level_turns(self, now: int, level: int, offset: int) -> None:
        due = (now // 64**level + 2) * 64**level + offset
        wheel = Wheel(now)
        wheel.insert("a", due)
        assert expiries_by_next_tick(wheel) == [(due, "a", due)]

    @from_every_start
    def test_when_it_is_the_very_next_tick(self, now: int) -> None:
        wheel = Wheel(now)
        wheel.insert("a", now + 1)
        assert wheel.next_tick() == now + 1
        assert wheel.advance(now + 1) == [("a", now + 1)]

    def test_when_it_is_further_away_than_any_date(self) -> None:
        wheel = Wheel(0)
        wheel.insert("a", 2**80 + 1)
        assert wheel.advance(2**80) == []
        assert wheel.advance(2**80 + 1) == [("a", 2**80 + 1)]

    @from_every_start
    def test_with_many_others_over_all_levels(self, now: int) -> None:
        rng = random.Random(now)
        dues = {str(n): now + rng.randint(1, 2 ** rng.randint(1, 36)) for n in range(500)}
        wheel = Wheel(now)
        for id, due in dues.items():
            wheel.insert(id, due)
        expiries = expiries_by_next_tick(wheel)
        assert {id: tick for tick, id, _ in expiries} == dues
        assert all(tick == due for tick, _, due in expiries)


class TestOrder:
    def test_ids_of_all_levels_come_out_in_due_order(self) -> None:
        wheel = Wheel(0)
        dues = [64**3 + 5, 3, 64**2, 64**2 - 1, 70, 64, 63, 64**3]
        for due in dues:
            wheel.insert(f"at {due}", due)
        assert wheel.advance(64**4) == [(f"at {due}", due) for due in sorted(dues)]

    @pytest.mark.parametrize("step", [1, 63, 64, 1000, 5000])
    def test_ids_due_at_the_same_tick_come_out_in_insertion_order_also_after_cascades(self, step: int) -> None:
        wheel, due = Wheel(7), 5000
        ids = []
        for now in range(7, due, step):
            wheel.advance(now)
            ids.append(f"from {now}")
            wheel.insert(ids[-1], due)
        assert wheel.advance(due) == [(id, due) for id in ids]

    def test_an_overdue_id_comes_out_before_those_due_later(self) -> None:
        wheel = Wheel(100)
        wheel.insert("due now", 100)
        wheel.insert("overdue", 40)
        wheel.insert("next", 101)
        assert wheel.advance(101) == [("overdue", 40), ("due now", 100), ("next", 101)]


class TestOverdue:
    @pytest.mark.parametrize("due", [100, 99, 0, -5])
    def test_an_id_due_now_or_before_expires_at_the_next_advance_to_the_same_tick(self, due: int) -> None:
        wheel = Wheel(100)
        wheel.insert("a", due)
        wheel.check()
        assert wheel.next_tick() == due
        assert wheel.advance(100) == [("a", due)]

    def test_an_id_that_fell_overdue_can_be_cancelled_or_moved(self) -> None:
        wheel = Wheel(100)
        wheel.insert("cancelled", 50)
        wheel.insert("moved", 50)
        assert wheel.cancel("cancelled")
        wheel.insert("moved", 200)
        assert wheel.advance(100) == []
        assert wheel.advance(200) == [("moved", 200)]


class TestTimeNeverGoesBack:
    def test_a_smaller_now_advances_nothing(self) -> None:
        wheel = Wheel(1000)
        wheel.insert("a", 1001)
        assert wheel.advance(10) == []
        assert wheel.now == 1000
        assert wheel.next_tick() == 1001
        wheel.check()

    def test_a_smaller_now_hands_out_only_what_is_overdue_at_that_tick_too(self) -> None:
        wheel = Wheel(1000)
        wheel.insert("due at 900", 900)
        wheel.insert("due at 990", 990)
        assert wheel.advance(950) == [("due at 900", 900)]
        assert wheel.advance(1000) == [("due at 990", 990)]
        assert wheel.now == 1000


class TestMovingAndCancelling:
    @at_every_level
    def test_a_known_id_moves_later_and_earlier(self, level: int) -> None:
        wheel = Wheel(17)
        wheel.insert("a", 17 + 64**level)
        wheel.insert("a", 17 + 64**level * 3)
        wheel.check()
        assert len(wheel) == 1
        assert wheel.advance(17 + 64**level) == []
        wheel.insert("a", 18 + 64**level)
        wheel.check()
        assert expiries_by_next_tick(wheel) == [(18 + 64**level, "a", 18 + 64**level)]

    def test_a_moved_id_counts_as_inserted_last_also_when_its_tick_stays_the_same(self) -> None:
        wheel = Wheel(0)
        for id in ("a", "b", "a"):
            wheel.insert(id, 500)
        assert wheel.advance(500) == [("b", 500), ("a", 500)]

    @at_every_level
    def test_a_cancelled_id_leaves_nothing_behind(self, level: int) -> None:
        wheel = Wheel(17)
        wheel.insert("a", 17 + 64**level)
        assert wheel.cancel("a") is True
        wheel.check()
        assert (len(wheel), "a" in wheel, wheel.due_of("a"), wheel.next_tick()) == (0, False, None, None)
        assert wheel.advance(64**6) == []

    def test_cancelling_works_after_a_cascade_has_moved_the_id(self) -> None:
        wheel = Wheel(0)
        wheel.insert("a", 64**2 + 70)
        wheel.insert("b", 64**2 + 71)
        wheel.advance(64**2)
        assert wheel.cancel("a")
        wheel.check()
        assert wheel.advance(64**3) == [("b", 64**2 + 71)]

    def test_cancelling_an_id_that_is_not_there_says_so(self) -> None:
        wheel = Wheel(0)
        assert wheel.cancel("never seen") is False
        wheel.insert("a", 1)
        wheel.advance(1)
        assert wheel.cancel("a") is False

    def test_an_id_can_come_back_after_it_was_cancelled_or_has_expired(self) -> None:
        wheel = Wheel(0)
        wheel.insert("a", 5)
        wheel.cancel("a")
        wheel.insert("a", 6)
        assert wheel.advance(6) == [("a", 6)]
        wheel.insert("a", 7)
        assert wheel.advance(7) == [("a", 7)]


class TestLookingInside:
    def test_an_empty_wheel_has_nothing_to_do(self) -> None:
        wheel = Wheel(5)
        wheel.check()
        assert (len(wheel), wheel.next_tick(), wheel.advance(10**12), wheel.now) == (0, None, [], 10**12)

    def test_the_wheel_tells_what_it_holds(self) -> None:
        wheel = Wheel(0)
        wheel.insert("a", 64**3)
        assert (len(wheel), "a" in wheel, "b" in wheel) == (1, True, False)
        assert (wheel.due_of("a"), wheel.due_of("b")) == (64**3, None)

    def test_next_tick_may_be_a_cascade_before_the_earliest_due_tick(self) -> None:
        wheel = Wheel(0)
        wheel.insert("a", 64**2 + 65)
        assert wheel.next_tick() == 64**2
        assert wheel.advance(64**2) == []
        assert wheel.next_tick() == 64**2 + 64

    @pytest.mark.parametrize("slots", [-64, 0, 1, 3, 60])
    def test_the_number_of_slots_is_a_power_of_two(self, slots: int) -> None:
        with pytest.raises(ValueError, match="power of two"):
            Wheel(0, slots=slots)

    def test_time_begins_at_zero(self) -> None:
        with pytest.raises(ValueError, match="negative"):
            Wheel(-1)

    def test_the_tutorial_in_the_docstring_is_true(self) -> None:
        assert doctest.testmod(wheel_module) == doctest.TestResults(failed=0, attempted=5)


class TestEmptyTicksCostNothing:
    """Work is counted in lines of Python run, so that the tests say the same on a slow machine."""

    @staticmethod
    def filled(ids: int, span: int) -> Wheel:
        wheel = Wheel(1_763_000_000_123)
        for n in range(1, ids + 1):
            wheel.insert(str(n), wheel.now + n * span // ids)
        return wheel

    def test_a_jump_of_thirty_days_costs_by_the_ids_and_not_by_the_ticks(self) -> None:
        day, month = self.filled(20, DAY), self.filled(20, 30 * DAY)
        work = lines_run(lambda: month.advance(month.now + 30 * DAY))
        assert len(month) == 0
        assert work < 20 * 50
        assert work == pytest.approx(lines_run(lambda: day.advance(day.now + DAY)), rel=0.5)

    def test_a_jump_over_nothing_costs_the_same_at_any_length(self) -> None:
        def work(ticks: int) -> int:
            wheel = self.filled(20, 365 * DAY)
            wheel.insert("keeps the wheel from being empty", wheel.now + 9_999 * DAY)
            for n in range(1, 21):
                wheel.cancel(str(n))
            return lines_run(lambda: wheel.advance(wheel.now + ticks))

        assert work(30 * DAY) <= work(1) + 50  # one cascade at most

    def test_a_driver_wakes_at_most_once_a_level_for_each_id(self) -> None:
        wheel, wakes = self.filled(20, 30 * DAY), 0
        while (tick := wheel.next_tick()) is not None:
            wheel.advance(tick)
            wakes += 1
        assert wakes <= 20 * 6  # 30 days are less than 64**6 ms; each wake expires an id or brings one a level lower

    def test_adding_and_cancelling_cost_the_same_in_a_full_wheel(self) -> None:
        def work(ids: int) -> int:
            wheel = self.filled(ids, DAY)
            adding = lines_run(lambda: wheel.insert("one more", wheel.now + DAY // 3))
            return adding + lines_run(lambda: wheel.cancel("one more"))

        assert work(10_000) <= work(10) + 50  # a slot that comes and goes, or one that is there already
