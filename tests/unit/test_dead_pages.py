"""Pages over many shards: what all of them have looked at, in order, and nothing twice. A plain sort is the oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelq.errors import InvalidInput
from wheelq.model.dead import DeadFilter, DeadJob, Position
from wheelq.producer.dead import page, rest
from wheelq.protocol.calls.dead import DeadRange, FoundDead

ANY = DeadFilter()
LAST = 2**64 - 1
"""The greatest number in an entry's id."""
shards = st.lists(st.sets(st.tuples(st.integers(1, 6), st.integers(0, 2)), max_size=12), min_size=1, max_size=4)


def look(
    shard: int, entries: set[tuple[int, int]], span: DeadRange, limit: int, most: int, newest_first: bool
) -> FoundDead:
    """What find_dead.lua answers, with every entry of an even ms matching."""

    def lies_within(entry: tuple[int, int]) -> bool:
        first, last = (_bound(text) for text in (span.first, span.last))
        return (first is None or (entry > first[0] if first[1] else entry >= first[0])) and (
            last is None or (entry < last[0] if last[1] else entry <= last[0])
        )

    within = sorted((entry for entry in entries if lies_within(entry)), reverse=newest_first)
    seen = within[:most]
    looked_to = seen[-1] if len(seen) == most else None
    found: list[tuple[int, int]] = []
    for n, entry in enumerate(seen):
        if entry[0] % 2 == 0:
            found.append(entry)
            if len(found) == limit:
                if n < len(seen) - 1:
                    looked_to = entry
                break
    position = None if looked_to is None else Position(*looked_to, shard)
    return FoundDead([(job(Position(*entry, shard)), b"") for entry in found], 0, position)


@pytest.mark.parametrize("text", ["0-0:0", f"{LAST + 1}-0:0", f"1-{LAST + 1}:0", f"{LAST}-{LAST}:0", "٣-٣:٣", 7, None])
def test_a_position_is_one_that_an_entry_can_have_and_others_lie_on_both_sides_of(text: object) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        Position.parse(text, "cursor")  # type: ignore[arg-type]


def _bound(text: str) -> tuple[tuple[int, int], bool] | None:
    if text in "-+":
        return None
    ms, _, number = text.removeprefix("(").partition("-")
    return (int(ms), int(number)), text.startswith("(")


def job(position: Position) -> DeadJob:
    return DeadJob(str(position), "t", "", "", "", "", "", 1, 0, 0, position.ms, None, {})


@settings(deadline=None)  # a loaded machine is slow, and that is no failure
@given(shards, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_pages_show_everything_once_and_in_order(
    shards: list[set[tuple[int, int]]], limit: int, most: int, newest_first: bool
) -> None:
    told: list[str] = []
    cursor: Position | None = None
    for _ in range(200):
        parts = [
            look(n, entries, rest(ANY, cursor, n, newest_first), limit, most, newest_first)
            for n, entries in enumerate(shards)
        ]
        found = page(parts, limit, newest_first)
        assert len(found.jobs) <= limit
        told += [job.dead_id for job in found.jobs]
        if found.cursor is None:
            break
        cursor = Position.parse(found.cursor)
    everything = [Position(*entry, n) for n, entries in enumerate(shards) for entry in entries if entry[0] % 2 == 0]
    assert told == [str(position) for position in sorted(everything, reverse=newest_first)]
