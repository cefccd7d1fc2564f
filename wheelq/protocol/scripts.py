"""The Lua scripts: one file per operation under `lua/`, what several share under `lua/lib/`.

A script that says `-- uses: leader, emit` in its header has these library files put in front of it. The digest is that
of the whole text, constant for a release, so the server's script cache is filled once (SCRIPT LOAD: scripts loaded so
are not evicted).
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_LUA = files("wheelq.protocol") / "lua"
_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest by which EVALSHA calls it."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script in `lua/{name}.lua`."""
    own = _own_text(name)
    uses = _USES.search(own)
    parts = [(_LUA / "lib" / f"{part.strip()}.lua").read_text() for part in uses[1].split(",")] if uses else []
    text = "\n".join([*parts, own])
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_names() -> list[str]:
    """The name of every script."""
    return sorted(item.name.removesuffix(".lua") for item in _LUA.iterdir() if item.name.endswith(".lua"))


def purpose(name: str) -> str:
    """What the script is for: the first sentence of its header."""
    comment = " ".join(line.removeprefix("-- ") for line in header(name))
    return re.split(r"(?<=\.) ", comment, maxsplit=1)[0]


def header(name: str) -> list[str]:
    """The comment that the script's own file begins with, without what it uses: how it is called."""
    lines = itertools.takewhile(lambda line: line.startswith("--"), _own_text(name).splitlines())
    return [line for line in lines if not line.startswith("-- uses:")]


def _own_text(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text()
