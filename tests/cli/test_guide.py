"""wheelq guide: the pages that ship with the package, in the terminal."""

from __future__ import annotations

from tests.cli.commands import wheelq


def test_without_a_name_it_lists_the_pages() -> None:
    answer = wheelq("guide")
    assert answer.code == 0
    assert "getting-started" in answer.out
    assert "production" in answer.out


def test_a_page_is_shown_for_reading() -> None:
    answer = wheelq("guide", "testing")
    assert answer.code == 0
    assert "wheelq.advance(minutes=29)" in answer.out
    assert "```" not in answer.out


def test_a_missing_page_is_refused_with_a_list_of_pages() -> None:
    answer = wheelq("guide", "../README")
    assert answer.code == 2
    assert "not a page of the guide" in answer.err
    assert "getting-started" in answer.err


def test_a_page_through_a_pipe_is_not_too_wide_to_read() -> None:
    lines = wheelq("guide", "promises").out.splitlines()
    assert 80 < max(map(len, lines)) <= 100
