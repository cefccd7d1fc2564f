"""Defects planted on purpose, to prove that the torture test can find defects.

A child process of `fleet` that is started with the environment variable `LOADTEST_PLANT` runs with one of them.

| name           | the defect                                                   | the verdict        |
|----------------|--------------------------------------------------------------|--------------------|
| `no-removal`   | promotion leaves the job in the sorted set                   | doubled            |
| `no-due-check` | `promote` believes the wheel and does not ask the sorted set | early              |
| `early-sweep`  | `sweep` takes what is due within two seconds                 | early              |
| `removed-first`| promotion removes first, and then one XADD in ten fails      | lost               |
| `ack-first`    | a worker acknowledges before it runs the handler             | lost               |
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from wheelq.protocol import call
from wheelq.protocol.scripts import Script, script, script_names
from wheelq.worker.delivery.held import Delivery
from wheelq.worker.delivery.running import Running

VARIABLE = "LOADTEST_PLANT"

_REMOVE = "if removed > 0 then redis.call('ZREM', delayed, unpack(gone)) end"
_EMIT = "local entry = emit(ready, member, due, record)"
_FAILING_EMIT = "local entry = due % 10 > 0 and emit(ready, member, due, record)"
_ASK = "if due <= last then\n        seen[member] = true"
_RANGE = "'-inf', by(now_ms()), 'WITHSCORES'"

BROKEN_SCRIPTS: Mapping[str, Mapping[str, str]] = {
    "no-removal": {_REMOVE: ""},
    "no-due-check": {_ASK: "if true then\n        seen[member] = true"},
    "early-sweep": {_RANGE: "'-inf', by(now_ms() + 2000), 'WITHSCORES'"},
    "removed-first": {
        _EMIT: f"redis.call('ZREM', delayed, member)\n      {_FAILING_EMIT}",
    },
}
"""Old text → new text, in every script that contains the old text."""


PLANTS = (*BROKEN_SCRIPTS, "ack-first")


def plant(name: str) -> None:
    """Plant a defect in this process. Raises: KeyError, if there is no such defect."""
    if name == "ack-first":
        _patch(Running, "handle", _acknowledged_first(Running.handle))
    else:
        changes = BROKEN_SCRIPTS[name]
        assert any(old in script(one).text for old in changes for one in script_names()), f"{name} breaks nothing"
        _patch(call, "script", _with(changes, script))


def _patch(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


def _with(changes: Mapping[str, str], sound: Callable[..., Script]) -> Callable[..., Script]:
    def broken(name: str, **form: Any) -> Script:
        text = sound(name, **form).text
        for old, new in changes.items():
            text = text.replace(old, new)
        return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    return broken


def _acknowledged_first(handle: Callable[..., Any]) -> Callable[..., Any]:
    async def acknowledge_and_handle(running: Running, delivery: Delivery, task: asyncio.Task[None]) -> None:
        running._settler.done(delivery)
        await asyncio.sleep(0.3)  # the acknowledgement is on its way, and the worker may be killed
        await handle(running, delivery, task)

    return acknowledge_and_handle
