"""Text from elsewhere, made safe to print: characters that steer a terminal or a reader become visible escapes.

U+001B ]0;owned   an escape sequence      → \\x1b]0;owned     a terminal would change its title
U+009B, U+0085    C1 controls             → \\x9b, \\x85      the same in one character
U+202E            a change of direction   → \\u202e          the text after it would be shown backwards
U+2028            a line separator        → \\u2028          many readers end the line here
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_BUT_LINES = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_STEERS = re.compile(f"[{_BUT_LINES}]")
_STEERS_OR_BREAKS = re.compile(f"[\t\n{_BUT_LINES}]")


def printable(text: str) -> str:
    """Returns text of one or several lines without any control character but newlines and tabs."""
    return _STEERS.sub(_escape, text)


def one_line(text: str) -> str:
    """Returns text without any control character: one line, whatever it holds."""
    return _STEERS_OR_BREAKS.sub(_escape, text)


def json_line(value: object, default: Callable[[Any], Any]) -> str:
    """Returns a value as one line of JSON, with text readable and control characters escaped; see `json.dumps`."""
    return _STEERS.sub(_escape_json, json.dumps(value, default=default, ensure_ascii=False))


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def _escape_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
