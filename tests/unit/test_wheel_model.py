"""The wheel against an oracle: whatever is done to both, a plain sorted list and the wheel tell the same story."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wheelq.scheduler.wheel import Wheel

ids = st.sampled_from([f"job-{n}" for n in range(12)])  # few, so that moves and cancels often hit
distances = st.one_of(
    st.integers(-100, 300),  # overdue, at once, and the lowest levels
    st.integers(0, 34).flatmap(lambda bits: st.integers(2**bits - 2, 2**bits + 2)),  # the edges of all levels
    st.integers(0, 2**34),
)


class Oracle:
    """Does what the wheel does in the plainest way: looks through everything, each time."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.due_of: dict[str, int] = {}  # in insertion order

    def insert(self, id: str, due: int) -> None:
        self.due_of.pop(id, None)
        self.due_of[id] = due

    def cancel(self, id: str) -> bool:
        return self.due_of.pop(id, None) is not None

    def advance(self, now: int) -> list[tuple[str, int]]:
        self.now = max(now, self.now)
        expired = sorted(((id, due) for id, due in self.due_of.items() if due <= now), key=lambda pair: pair[1])
        for id, _ in expired:
            del self.due_of[id]
        return expired


class WheelAndOracle(RuleBasedStateMachine):
    @initialize(now=st.one_of(st.integers(0, 5000), st.integers(0, 2**42)), slots=st.sampled_from([2, 4, 16, 64]))
    def start(self, now: int, slots: int) -> None:
        self.wheel = Wheel(now, slots=slots)
        self.oracle = Oracle(now)

    def advance_both(self, now: int) -> list[tuple[str, int]]:
        expired = self.wheel.advance(now)
        assert expired == self.oracle.advance(now)
        return expired

    @rule(id=ids, distance=distances)
    def insert_or_move(self, id: str, distance: int) -> None:
        due = self.wheel.now + distance
        self.wheel.insert(id, due)
        self.oracle.insert(id, due)

    @precondition(lambda self: self.oracle.due_of)
    @rule(id=ids, data=st.data())
    def insert_or_move_to_where_one_is(self, id: str, data: st.DataObject) -> None:
        other = data.draw(st.sampled_from(sorted(self.oracle.due_of)))
        self.insert_or_move(id, self.oracle.due_of[other] - self.wheel.now)

    @rule(id=ids)
    def cancel(self, id: str) -> None:
        assert self.wheel.cancel(id) == self.oracle.cancel(id)

    @rule(distance=distances)
    def advance_somewhere(self, distance: int) -> None:
        self.advance_both(self.wheel.now + distance)

    @precondition(lambda self: self.oracle.due_of)
    @rule(offset=st.sampled_from([-1, 0, 1]))
    def advance_around_the_earliest_due(self, offset: int) -> None:
        self.advance_both(min(self.oracle.due_of.values()) + offset)

    @precondition(lambda self: self.oracle.due_of)
    @rule()
    def advance_to_next_tick(self) -> None:
        tick = self.wheel.next_tick()
        assert tick is not None
        was_overdue = {id for id, due in self.oracle.due_of.items() if due <= self.wheel.now}
        expired = self.advance_both(tick)
        assert all(due == tick for id, due in expired if id not in was_overdue)
        following = self.wheel.next_tick()
        assert expired or (following is not None and following > tick)

    @invariant()
    def the_wheel_is_well_formed(self) -> None:
        self.wheel.check()

    @invariant()
    def both_hold_the_same(self) -> None:
        assert self.wheel.now == self.oracle.now
        assert len(self.wheel) == len(self.oracle.due_of)
        for id, due in self.oracle.due_of.items():
            assert id in self.wheel
            assert self.wheel.due_of(id) == due

    @invariant()
    def next_tick_is_never_later_than_the_earliest_due(self) -> None:
        tick = self.wheel.next_tick()
        assert (tick is None) == (not self.oracle.due_of)
        if tick is not None:
            assert tick <= min(self.oracle.due_of.values())

    def teardown(self) -> None:
        while hasattr(self, "wheel") and len(self.wheel):
            self.advance_to_next_tick()


TestWheelAndOracle = WheelAndOracle.TestCase
