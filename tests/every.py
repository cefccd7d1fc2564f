"""One test for a rule that many files keep: it looks at all of them, and lists each that breaks the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import TypeVar

import pytest

T = TypeVar("T")


def for_every(things: Iterable[T], name: Callable[[T], str] = str) -> Callable[[Callable[[T], None]], object]:
    """Makes a test of a check of one thing. The test fails after the last thing, with all that it has found."""

    def make(check: Callable[[T], None]) -> object:
        def test() -> None:
            broken = []
            for thing in things:
                try:
                    check(thing)
                except AssertionError as error:
                    broken.append(f"{name(thing)}: {error}")
            if broken:
                pytest.fail("\n".join(broken), pytrace=False)

        update_wrapper(test, check)
        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would look there for the names of fixtures
        return test

    return make
