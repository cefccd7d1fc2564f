"""The Lua scripts: one file per operation under `lua/`, what several share under `lua/lib/`.

A script that says `-- uses: leader, emit` in its header has these library files put in front of it. The digest is that
of the whole text, constant for a release, so the server's script cache is filled once (SCRIPT LOAD: scripts loaded so
are not evicted).
"""

from __future__ import annotations

import hashlib
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
    own = (_LUA / f"{name}.lua").read_text()
    uses = _USES.search(own)
    parts = [(_LUA / "lib" / f"{part.strip()}.lua").read_text() for part in uses[1].split(",")] if uses else []
    text = "\n".join([*parts, own])
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_names() -> list[str]:
    """The name of every script."""
    return sorted(item.name.removesuffix(".lua") for item in _LUA.iterdir() if item.name.endswith(".lua"))
