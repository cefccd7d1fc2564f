"""The Lua scripts: one file per operation under `lua/`, and shared parts under `lua/lib/`, one file per noun.

A file of the library has parts, each after a line like `-- part: emit`. A script with `-- uses: leader, emit` in its
header gets exactly these parts put in front of it. The digest covers the whole text and is constant for a release, so
the server's script cache is filled once (by SCRIPT LOAD, whose scripts are not evicted).
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
_PART = re.compile(r"^-- part: (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest by which EVALSHA calls it."""

    name: str
    text: str
    sha: str


@cache
def script(name: str, *, without: tuple[str, ...] = (), for_many: bool = False) -> Script:
    """The script in `lua/{name}.lua`.

    `without` names parts of its `uses` that this call does not need. Each call makes the functions of all parts anew,
    so a text with fewer parts runs faster. `for_many`: for many shards in one call, see `lua/lib/many.lua`.
    """
    own = _own_text(name)
    uses = _USES.search(own)
    parts = [library()[part] for part in uses[1].split(", ") if part not in without] if uses else []
    texts = [f"local function one(KEYS, ARGV)\n{own}end\n", library()["many"]] if for_many else [own]
    text = "\n".join([*parts, *texts])
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@cache
def library() -> dict[str, str]:
    """Every part of the library, by name."""
    parts: dict[str, str] = {}
    for item in (_LUA / "lib").iterdir():
        _, *found = _PART.split(item.read_text("utf-8"))
        parts |= {name: text.strip("\n") + "\n" for name, text in zip(found[::2], found[1::2], strict=True)}
    return parts


def script_names() -> list[str]:
    """The name of every script."""
    return sorted(item.name.removesuffix(".lua") for item in _LUA.iterdir() if item.name.endswith(".lua"))


def purpose(name: str) -> str:
    """The purpose of the script: the first sentence of its header."""
    comment = " ".join(line.removeprefix("-- ") for line in header(name))
    return re.split(r"(?<=\.) ", comment, maxsplit=1)[0]


def header(name: str) -> list[str]:
    """The comment at the start of the script's file, without the line of parts it uses: how to call it."""
    lines = itertools.takewhile(lambda line: line.startswith("--"), _own_text(name).splitlines())
    return [line for line in lines if not line.startswith("-- uses:")]


def _own_text(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text("utf-8")
