"""script: what programs without the library load into Redis."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands import wheelq
from wheelq.protocol.scripts import script, script_names


def test_a_script_is_printed_whole_with_what_it_uses() -> None:
    """Byte for byte, so that its digest is the one that the library calls."""
    printed = wheelq("script", "schedule").out
    assert printed == script("schedule").text
    assert "local function now_ms()" in printed


def test_all_are_listed_with_their_purpose() -> None:
    listed = wheelq("script", "--list").out
    assert all(name in listed for name in script_names())
    assert "Schedule up to 500 jobs of one shard." in listed


def test_all_are_written_into_a_directory(tmp_path: Path) -> None:
    assert wheelq("script", "--into", tmp_path / "lua").code == 0
    written = {path.stem: path.read_text() for path in (tmp_path / "lua").iterdir()}
    assert written == {name: script(name).text for name in script_names()}


def test_a_name_that_is_no_script_is_told_so() -> None:
    answer = wheelq("script", "shedule")
    assert answer.code == 2
    assert "no script 'shedule'; these are: ack," in answer.err
