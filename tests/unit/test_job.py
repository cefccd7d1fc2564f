"""Ids are unique and sort by time; due times are never rounded to before what was asked for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.base.clock import wall_ms
from wheelq.base.ids import make_id
from wheelq.errors import InvalidInput
from wheelq.model.checks import check_id, check_topic, due_argument

TEN_YEARS_MS = 3_660 * 86_400_000
NOW_MS = 1_750_000_000_000

# Ids


def test_an_id_is_26_characters_of_crockfords_base32() -> None:
    id = make_id()
    assert len(id) == 26
    assert set(id) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def test_ids_are_unique_and_sorted_by_the_time_they_were_made() -> None:
    ids = [make_id() for _ in range(100_000)]
    assert len(set(ids)) == 100_000
    assert ids == sorted(ids)


def test_an_id_begins_with_the_time_in_milliseconds() -> None:
    before = wall_ms()
    stem = make_id()[:10]
    ms = 0
    for character in stem:
        ms = ms * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(character)
    assert before <= ms <= wall_ms()


def test_ids_are_unique_over_threads() -> None:
    made: list[list[str]] = [[] for _ in range(8)]
    together = threading.Barrier(8)

    def make(mine: list[str]) -> None:
        together.wait()
        mine.extend(make_id() for _ in range(5_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id for mine in made for id in mine}) == 40_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_ids_are_unique_over_forks() -> None:
    """Also if they are made in the same millisecond, by processes that were copies of one another."""
    make_id()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=lambda: queue.put([make_id() for _ in range(200)])) for _ in range(4)]
    for child in children:
        child.start()
    made = [queue.get() for _ in children] + [[make_id() for _ in range(200)]]
    for child in children:
        child.join()
    assert len({id for mine in made for id in mine}) == 1_000
    assert len({mine[0][10:20] for mine in made}) == 5, "each process has a part of its own"


@given(st.text(max_size=300))
def test_an_id_is_accepted_or_refused_and_never_changed(id: str) -> None:
    if 0 < len(id.encode()) <= 256 and not any(ord(c) < 32 or ord(c) == 127 for c in id):
        assert check_id(id) is id
    else:
        with pytest.raises(InvalidInput, match="key"):
            check_id(id)


@given(st.text(max_size=110) | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True))
def test_a_topic_that_is_accepted_is_safe_in_a_key(topic: str) -> None:
    try:
        check_topic(topic)
    except InvalidInput:
        return
    assert topic.isascii()
    assert not set(topic) & set("{}: \n*?[]")
    assert len(topic) <= 100


# Delays


def delay_ms(delay: float | timedelta) -> int:
    argument = due_argument(delay, None, NOW_MS, TEN_YEARS_MS)
    assert argument.startswith("+")
    return int(argument)


@given(st.floats(0, TEN_YEARS_MS / 1000))
def test_a_delay_is_never_cut_short(delay: float) -> None:
    """By no more than the billionth part of a second that a float cannot tell; nor made longer by more than 1 ms."""
    ms = delay_ms(delay)
    assert ms >= Fraction(delay) * 1000 - Fraction(1, 10**6)
    assert ms - Fraction(delay) * 1000 < Fraction(1001, 1000)


@given(st.integers(0, 10_000_000))
def test_a_whole_number_of_milliseconds_stays_what_it_is(ms: int) -> None:
    """Also where the float is a hair more: 0.29 s is 290.00000000000006 ms when multiplied."""
    assert delay_ms(ms / 1000) == ms


@given(st.timedeltas(timedelta(0), timedelta(days=3_660)))
def test_a_timedelta_is_never_cut_short(delay: timedelta) -> None:
    exact = Fraction(delay // timedelta(microseconds=1), 1000)
    assert exact <= delay_ms(delay) < exact + Fraction(1001, 1000)


@pytest.mark.parametrize(("delay", "ms"), [(0, 0), (1, 1_000), (0.001, 1), (0.000_1, 1), (0.001_000_1, 2), (0.29, 290)])
def test_fractions_of_a_millisecond_are_rounded_up(delay: float, ms: int) -> None:
    assert delay_ms(delay) == ms


def test_the_limit_itself_is_accepted() -> None:
    assert delay_ms(TEN_YEARS_MS / 1000) == TEN_YEARS_MS


# Moments


def due_ms(at: datetime) -> int:
    return int(due_argument(None, at, NOW_MS, TEN_YEARS_MS))


zones = st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))


@given(st.datetimes(datetime(1970, 1, 3), datetime(2034, 1, 1), timezones=zones))  # noqa: DTZ001
def test_a_moment_is_never_brought_forward(at: datetime) -> None:
    exact = Fraction((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1), 1000)
    assert exact <= due_ms(at) < exact + 1


def test_a_moment_that_has_passed_is_accepted() -> None:
    assert due_ms(datetime(1970, 1, 1, tzinfo=UTC)) == 0
