"""Makes HTML from templates. Jinja2 escapes whatever comes from jobs; nothing marks such text as safe."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from wheelq.base.plural import counted
from wheelq.model.durations import span
from wheelq.server.dashboard import words

_STATIC = files("wheelq.server.dashboard") / "static"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


class Static(NamedTuple):
    """One file that pages load."""

    body: bytes
    media_type: str


@cache
def static(name: str) -> Static | None:
    """Returns a file that pages load; None if there is none of this name."""
    kind = _TYPES.get(name.rpartition(".")[2])
    if kind is None or "/" in name or not (_STATIC / name).is_file():
        return None
    return Static((_STATIC / name).read_bytes(), kind)


@cache
def version_of(name: str) -> str:
    """Returns a short digest of a file, for its URL: a new release is not served from a browser's cache."""
    found = static(name)
    return sha256(found.body).hexdigest()[:12] if found else "0"


@cache
def environment() -> Environment:
    """Returns the templates, with the filters they use."""
    made = Environment(
        loader=PackageLoader("wheelq.server.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "counted": counted,
        "number": words.number,
        "short": words.short,
        "span": span,
        "ms": lambda ms: "–" if ms is None else f"{ms:,} ms",
        "setting": words.setting,
        "relative": words.relative,
        "pretty": words.pretty,
        "one_line": words.one_line,
        "moment": _time,
    }
    made.globals["version_of"] = version_of
    return made


def render(template: str, context: dict[str, Any]) -> str:
    return environment().get_template(template).render(context)


def _time(ms: int | None) -> Markup:
    """A moment as an element that the script shows in the reader's own time zone."""
    if ms is None:
        return Markup("–")
    return Markup('<time datetime="{}">{} UTC</time>').format(escape(words.iso(ms)), escape(words.moment(ms)))
