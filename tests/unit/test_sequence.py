"""`Sequence` against a plain model: one of a key at a time, in order, retries in their places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wheelq.worker.ordered.sequence import Sequence


def lined_up(*items: tuple[str, int]) -> Sequence[str]:
    """`("a1", 5)`: an item of key "a", due at 5."""
    sequence: Sequence[str] = Sequence()
    for n, (item, due_ms) in enumerate(items):
        sequence.add(item, item[0], (due_ms, n, 0))
    return sequence


def test_one_of_each_key_starts_in_due_order() -> None:
    sequence = lined_up(("a1", 3), ("a2", 4), ("b1", 1), ("b2", 2))
    assert sequence.start(0, None, 10) == ["b1", "a1"]
    assert sequence.start(0, None, 10) == []
    sequence.end("a1")
    assert sequence.start(0, None, 10) == ["a2"]


def test_no_more_start_than_there_is_room_for() -> None:
    sequence = lined_up(("a1", 1), ("b1", 2))
    assert sequence.start(0, None, 1) == ["a1"]
    assert sequence.start(0, None, 0) == []
    assert sequence.start(0, None, 1) == ["b1"]


def test_a_job_added_later_takes_the_place_of_its_due_time() -> None:
    sequence = lined_up(("a1", 5), ("a2", 3))
    assert sequence.start(0, None, 10) == ["a2"]


def test_a_failed_job_keeps_its_place_and_holds_back_its_key_until_its_time() -> None:
    sequence = lined_up(("a1", 1), ("a2", 2), ("b1", 3))
    assert sequence.start(0, None, 10) == ["a1", "b1"]
    sequence.again("a1", 100)
    assert sequence.start(99, None, 10) == []
    assert sequence.next_ms(99) == 100
    assert sequence.start(100, None, 10) == ["a1"]
    assert sequence.next_ms(100) is None
    sequence.end("a1")
    assert sequence.start(100, None, 10) == ["a2"]


def test_a_later_job_waits_for_an_overdue_one_that_is_still_to_come() -> None:
    sequence = lined_up(("a1", 10), ("b1", 20))
    assert sequence.start(0, 15, 10) == ["a1"]
    sequence.add("c1", "c", (15, 9, 9))
    assert sequence.start(0, None, 10) == ["c1", "b1"]


def test_giving_up_forgets_what_waits_and_not_what_runs() -> None:
    sequence = lined_up(("a1", 1), ("a2", 2))
    sequence.start(0, None, 10)
    assert sequence.give_up() == ["a2"]
    assert (len(sequence), sequence.is_running) == (1, True)
    sequence.end("a1")
    assert (len(sequence), sequence.is_running) == (0, False)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=40),
    st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.integers(1, 5)), max_size=300),
)
def test_each_key_runs_in_the_order_of_its_ranks(
    items: list[tuple[str, int]], steps: list[tuple[int, bool, int]]
) -> None:
    sequence: Sequence[int] = Sequence()
    ranks = {n: (due_ms, n, 0) for n, (_, due_ms) in enumerate(items)}
    for n, (key, _) in enumerate(items):
        sequence.add(n, key, ranks[n])
    running: list[int] = []
    ended: list[int] = []
    for now, (choice, fails, most) in enumerate(steps):
        started = sequence.start(now, None, most)
        assert len(started) <= most
        running += started
        assert len({items[n][0] for n in running}) == len(running)
        if running:
            one = running.pop(choice % len(running))
            if fails:
                sequence.again(one, now + choice)
            else:
                sequence.end(one)
                ended.append(one)
    for key in "abc":
        mine = [ranks[n] for n in ended if items[n][0] == key]
        assert mine == sorted(ranks[n] for n in ranks if items[n][0] == key)[: len(mine)]
    assert len(sequence) == len(items) - len(ended)
