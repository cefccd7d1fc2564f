"""The library's loops over stored bytes: they end whatever another program has written, and keep what can be read.

They run in a Lua of this process, which stops them after a number of steps: a script without an end stops a server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lua.shard import RECORD, Shard
from tests.lua.test_state import conclude, look
from wheelq.protocol import scripts
from wheelq.protocol.calls import bundles, state

lupa = pytest.importorskip("lupa.lua51", reason="lupa is not installed")

STEPS = 1_000_000
NOW_MS = 1_763_000_000_000
HOUR = (NOW_MS // 60_000 - 1) // 60
NUMBERS = st.one_of(
    st.integers().map(str),
    st.sampled_from(("-3", "-0", "+5", "0x10", "1e9", "1e999", "inf", "-inf", "nan", "1.5", " 7", "9" * 400, "")),
).map(str.encode)
BYTES = st.lists(
    st.one_of(
        st.binary(max_size=5),
        st.binary(max_size=20).map(lambda one: b"%d:%b" % (len(one), one)),
        NUMBERS.map(lambda number: number + b":"),
    ),
    max_size=20,
).map(b"".join)


def lua(name: str, *parts: str, call: str = "function() return false end") -> Callable[..., Any]:
    """Returns a function of the library, with the parts that it needs. A call raises an error after `STEPS` steps.

    `call` is Lua that answers in place of the server; `name` may be an expression.
    """
    library = "\n".join(scripts.library()[part] for part in parts)
    make = lupa.LuaRuntime(encoding=None, unpack_returned_tuples=True).execute(f"""
        return function(steps)
            redis = {{}}
            redis.call = {call}
            redis.pcall = redis.call
            {library}
            local function stop() error("it does not end") end
            return function(...)
                debug.sethook(stop, "", steps)
                return {name}(...)
            end
        end""")
    function: Callable[..., Any] = make(STEPS)
    return function


FIELD = lua("field", "field")
WITHOUT = lua("without", "field", "without")
COMES_AFTER = lua("comes_after", "place")
COUNT_LATE = lua(
    "(function(score) local told, count_late = late_counter(); count_late(due_of(score)); return unpack(told) end)",
    "clock",
    "score",
    "lateness",
    call=f"function() return {{'{NOW_MS // 1000}', '0'}} end",
)
RECORD_ROW = lua(
    f"(function(row, ...) seen = {{row = row, page = {{...}}}}; record('counts', 'history', {HOUR}, {NOW_MS}) end)",
    "record",
    call="function(command) return command == 'HGET' and seen.row or {'0', seen.page} end",
)
COUNTERS = (b"created", b"promoted", b"done\x1fg", b"retried\x1fg", b"buried\x1fg", b"late")


def whole(packed: bytes) -> list[bytes]:
    """The fields of a record, up to the first that is not whole."""
    fields, at = [], 1
    while (found := FIELD(packed, at)) is not None:
        assert found[1] > at, "the next field is behind this one"
        fields.append(found[0])
        at = found[1]
    return fields


def packed(*fields: bytes) -> bytes:
    return b"".join(b"%d:%b" % (len(field), field) for field in fields)


@given(BYTES)
def test_the_fields_of_any_bytes_come_to_an_end(stored: bytes) -> None:
    """In Lua, and in Python, which finds the same ones."""
    assert whole(stored) == bundles.unpacked(stored)


@given(st.lists(st.binary(max_size=20)))
def test_fields_hold_any_bytes(fields: list[bytes]) -> None:
    assert whole(packed(*fields)) == fields


@given(BYTES)
def test_without_of_any_bytes_comes_to_an_end_and_leaves_whole_groups(stored: bytes) -> None:
    found = WITHOUT(stored, b"g")
    fields = whole(stored)
    if len(fields) < 3:
        assert found is None
        return
    rest, groups = found
    assert len(whole(rest)) == 3 + 6 * groups
    assert b"g" not in whole(rest)[3::6]
    assert WITHOUT(rest, b"g") == (rest, groups)


@given(st.lists(st.sampled_from((b"g", b"h", b"i")), unique=True), BYTES)
def test_without_takes_one_group_away_and_what_is_no_group(names: list[bytes], behind: bytes) -> None:
    job = packed(b"1-0", b"5", RECORD)
    groups = {name: packed(name, b"1", b"2", b"1", b"w", b"") for name in names}
    others = [group for name, group in groups.items() if name != b"g"]
    stored = b"".join((job, *groups.values()))
    assert WITHOUT(stored, b"g") == (b"".join((job, *others)), len(others))
    if len(whole(behind)) < 6:
        assert WITHOUT(stored + behind, b"g") == WITHOUT(stored, b"g")


@given(st.lists(NUMBERS, min_size=6, max_size=6), NUMBERS)
def test_a_row_of_any_counters_comes_to_an_end(values: list[bytes], row: bytes) -> None:
    """The counters are a hash, in which another program may have put anything."""
    RECORD_ROW(b"1 " + row, *(part for pair in zip(COUNTERS, values, strict=True) for part in pair))


@given(st.floats(allow_nan=False))
def test_any_score_has_a_lateness(score: float) -> None:
    assert sum(COUNT_LATE(b"%r" % score)[1:]) == 1


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_members_are_compared_byte_by_byte(one: bytes, other: bytes) -> None:
    assert COMES_AFTER(one, other) == (one > other)


# On a server


@pytest.mark.parametrize("behind", [b"-3:", b"7:", b"1:h1:1", b"x"])
def test_foreign_bytes_behind_a_finished_job_go_when_the_job_ends_again(shard: Shard, behind: bytes) -> None:
    shard.make_group("h")
    conclude(shard, shard.deliver("a"))
    shard.redis.hset(shard.keys.done, "a", shard.redis.hget(shard.keys.done, "a") + behind)
    assert look(shard, "a").groups["g"].finished_ms
    conclude(shard, shard.read("h", "w2"), group="h", consumer="w2")
    info = look(shard, "a")
    assert {name: group.worker for name, group in info.groups.items()} == {"g": "w1", "h": "w2"}


@pytest.mark.parametrize("stored", [b"", b"-3:", b"3:1-0", b"no job", packed(b"x", b"y", b"z")])
def test_a_foreign_record_is_not_found_and_gives_way_to_a_finished_job(shard: Shard, stored: bytes) -> None:
    shard.redis.hset(shard.keys.done, "a", stored)
    assert shard.send(state.get(shard.keys, "a")) is None
    conclude(shard, shard.deliver("a"))
    assert list(look(shard, "a").groups) == ["g"]
