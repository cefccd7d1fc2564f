"""Reads the Content-Type of a body: whether it is JSON or a form, and its charset. Pure."""

from __future__ import annotations

import codecs

FORM = "application/x-www-form-urlencoded"


def is_json(kind: str) -> bool:
    """Whether a media type is JSON, or a kind of JSON."""
    kind = _essence(kind)
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def is_form(kind: str) -> bool:
    """Whether a media type is a URL-encoded form."""
    return _essence(kind) == FORM


def charset_of(kind: str) -> str:
    """Returns the charset of a media type under Python's name for it; "utf-8" if it names none, "" if unknown."""
    for parameter in kind.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            try:
                return codecs.lookup(value.strip().strip("\"'")).name
            except (LookupError, ValueError):
                return ""
    return "utf-8"


def _essence(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()
