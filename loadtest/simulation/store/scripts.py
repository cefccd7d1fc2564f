"""`Scripts`: runs Lua scripts as Redis does, with `redis.call`, `redis.pcall`, KEYS and ARGV.

Lua 5.1 by lupa; each script is compiled once. Values are converted as in Redis: nil becomes false in Lua, a table is an
array up to its first nil, and a number loses its fraction.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lupa import lua51

from loadtest.simulation import reached
from loadtest.simulation.store.database import Refusal, Status, Words

Do = Callable[[Words], Any]
"""Runs one command. Raises: Refusal."""


class Scripts:
    """The scripts of a server."""

    def __init__(self, do: Do) -> None:
        self._do = do
        self._lua: Any = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False, register_eval=False)
        self._known: dict[bytes, Any] = {}
        self._names: dict[bytes, bytes] = {}
        self.changes: Sequence[tuple[bytes, bytes]] = ()
        """Texts that are replaced in every script, under its own digest."""
        self._runs: Counter[bytes] = Counter()
        globals_ = self._lua.globals()
        self._globals = globals_
        self._table = self._lua.table_from
        for name in (b"python", b"io", b"os", b"require", b"package", b"dofile", b"loadfile"):
            globals_[name] = None
        self._lua.execute(b"collectgarbage('setpause', 1000)")  # the heap is small; collecting less often saves time
        globals_[b"REACHED"] = self._branches = self._table({})
        globals_[b"redis"] = self._table(
            {b"call": self._call, b"pcall": self._pcall, b"error_reply": self._error, b"status_reply": self._status}
        )

    def load(self, text: bytes) -> bytes:
        """Compile a script, and return its digest. Raises: Refusal."""
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        if sha not in self._known:
            known = reached.scripts().get(sha)
            text = text if known is None else reached.probed(known)
            for old, new in self.changes:
                text = text.replace(old, new)
            try:
                self._known[sha] = self._lua.compile(text)
            except lua51.LuaError as error:
                raise Refusal(f"ERR Error compiling script (new function): {error}") from None
        return sha

    def forget(self) -> None:
        """Forgets every script, as a restarted server does; compiled scripts stay cached."""
        self._names.clear()

    def knows(self, sha: bytes) -> bool:
        """Whether a script was loaded since the server's start."""
        return sha in self._names

    def remember(self, sha: bytes) -> None:
        """Note that a script was loaded."""
        self._names[sha] = b""

    def reached(self) -> Iterator[str]:
        """Yields the scripts that ran, and the branches that they took."""
        scripts, branches = reached.scripts(), reached.branches()
        yield from {f"script {scripts[sha].name}" for sha in self._runs if sha in scripts}
        yield from (branches[n - 1] for n in self._branches)

    def run(self, sha: bytes, keys: Words, args: Words) -> Any:
        """Run a script, and return its reply. Raises: Refusal."""
        self._runs[sha] += 1
        globals_ = self._globals
        globals_[b"KEYS"] = self._table(keys)
        globals_[b"ARGV"] = self._table(args)
        try:
            return self._from_lua(self._known[sha]())
        except Refusal as error:
            raise Refusal(f"{error} script: {sha.decode()}, on @user_script:1.") from None
        except lua51.LuaError as error:
            raise Refusal(f"ERR {error} script: {sha.decode()}, on @user_script:1.") from None

    def _call(self, *words: Any) -> Any:
        return self._to_lua(self._do([word if type(word) is bytes else _word(word) for word in words]))

    def _pcall(self, *words: Any) -> Any:
        try:
            return self._call(*words)
        except Refusal as error:
            return self._table({b"err": str(error).encode()})

    def _error(self, text: bytes) -> Any:
        return self._table({b"err": text})

    def _status(self, text: bytes) -> Any:
        return self._table({b"ok": text})

    def _to_lua(self, reply: Any) -> Any:
        if reply is None:
            return False
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if kind is list:
            return self._table([self._to_lua(one) for one in reply])
        return self._table({b"ok": bytes(reply)})  # a status

    def _from_lua(self, value: Any) -> Any:
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, (bytes, int)):
            return value
        if isinstance(value, float):
            return int(value)
        if (error := value[b"err"]) is not None:
            raise Refusal(error.decode())
        if (status := value[b"ok"]) is not None:
            return Status(status)
        found = []
        for n in range(1, len(value) + 1):
            if (one := value[n]) is None:
                break
            found.append(self._from_lua(one))
        return found


def _word(value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refusal("ERR Lua redis lib command arguments must be strings or integers")
    return b"%d" % value if isinstance(value, int) else b"%.17g" % value


def flat(values: Sequence[Any]) -> list[Any]:
    """Returns nested replies as one list, to compare them."""
    return [one for value in values for one in (flat(value) if isinstance(value, list) else [value])]
