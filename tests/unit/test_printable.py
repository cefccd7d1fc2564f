"""Text from elsewhere reaches no terminal and no log unescaped if it could steer it."""

from __future__ import annotations

import json
import unicodedata

import pytest

from wheelq.base.printable import json_line, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x9b2J\x85\x7f\x00", r"\x9b2J\x85\x7f\x00"),
        ("50 €\rfree", r"50 €\rfree"),
        ("\u202efdp.exe\u2066\u2028", r"\u202efdp.exe\u2066\u2028"),
        ("a lone \udc80", r"a lone \udc80"),
        ("Grüße, 世界, 🎉", "Grüße, 世界, 🎉"),
        ("two\n\tlines", "two\n\tlines"),
    ],
)
def test_control_characters_become_escapes_and_all_else_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_control_character_is_left_in_one_line() -> None:
    everything = one_line("".join(map(chr, range(0x3000))))
    assert [char for char in everything if unicodedata.category(char) in ("Cc", "Zl", "Zp")] == []


def test_json_stays_json_of_the_same_value() -> None:
    value = {"h\x1b[1m": "\x9b31m\x7f\u2028\u202e\n\ud800", "ä": ["世界"]}
    line = json_line(value, str)
    assert json.loads(line) == value
    assert line == one_line(line)
    assert "世界" in line
