"""Defects planted on purpose, to see that the simulator finds them: a simulator that finds nothing must be able to.

Five are those of torture (`loadtest.planted`). The others are lines of Lua or Python in place of others; nine of them
put back the kind of defect that was mended before (A5, A8, A11, A12, A13, A17, A23, B1 and B2; see README.md). A plant
that no longer fits fails loudly: then the code has changed, and the plant is to be brought up to date or replaced.

`first` and `within` say in which seeds a plant is found: one of so many, from the first on.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.torture import planted
from wheelq.protocol import call
from wheelq.protocol.scripts import script, script_names


@dataclass(frozen=True, slots=True)
class Line:
    """A line of Python, and what stands in its place."""

    module: str
    name: str
    """Of the function or method, such as `Worker.run`."""
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Plant:
    """One defect."""

    what: str
    found: str
    """What the simulator must say of it: a pattern."""
    lua: Mapping[str, str] = field(default_factory=dict)
    """What is put in place of what, in every script that holds it."""
    lines: tuple[Line, ...] = ()
    torture: str = ""
    """Its name among the defects of torture."""
    first: int = 1
    within: int = 3
    needs: str = ""
    """The kind of a step without which no seed can show it."""


_DUE = "math.ceil(tonumber(time[2]) / 1000) + ms"
_CANCELLED = "if redis.call('ZREM', delayed, id) == 1 then\n  redis.call('HDEL', jobs, id)"
_CANCELLED_DUE = "if #ids > 0 then\n  redis.call('ZREM', delayed, unpack(ids))\n  redis.call('HDEL', jobs, unpack(ids))"

PLANTS: Mapping[str, Plant] = {
    "no-removal": Plant("promotion leaves the job where it waits", "doubled|left", torture="no-removal"),
    "early-sweep": Plant("a sweep takes what is due within half a second", "early", torture="early-sweep"),
    "removed-first": Plant("promotion removes first, and one XADD in ten fails", "lost", torture="removed-first"),
    "ack-first": Plant("a worker acknowledges before it runs the handler", "lost", torture="ack-first"),
    "short-delay": Plant(
        "a delay is 20 ms shorter than asked for",
        "early.*promised",
        {f"{_DUE}, fraction": f"{_DUE} - 20, fraction"},
    ),
    "retry-lost": Plant(
        "a retry is recorded, and waits nowhere", "lost|left", {"redis.call('ZADD', delayed, due, member)": ""}
    ),
    "cancel-lies": Plant(
        "a job that is cancelled runs",
        "untrue",
        {_CANCELLED: "if redis.call('ZSCORE', delayed, id) then"},
    ),
    "reschedule-lies": Plant(
        "a new due time is accepted, and not kept",
        "early",
        {"redis.call('ZADD', delayed, score_of(due, score - stands), id)": ""},
    ),
    "remembers-all": Plant(
        "what is finished is not forgotten",
        "left",
        {"if #done > 0 then redis.call('HDEL', jobs, unpack(done)) end": ""},
    ),
    "no-hints": Plant(
        "no leader hears of a job that is due soon",
        "late",
        {"return type(redis.pcall('PUBLISH', channel, message)) == 'number'": "return true"},
    ),
    "no-trim": Plant(
        "acknowledged entries stay in the stream",
        "left.*entries",
        {"return redis.call('XTRIM', ready, 'MINID', least), false end": "return 0, false end"},
    ),
    "short-record": Plant(
        "a record of one byte blocks every sweep (A17)",
        "late|lost",
        {"string.byte(record, 2) or 0": "string.byte(record, 2)"},
        first=140,
        within=1,
        needs="foreign-record",
    ),
    "early-retry": Plant(
        "a retry in order starts by the worker's estimate of the clock (A23)",
        "early: order",
        lines=(
            Line(
                "wheelq.worker.ordered_deliveries",
                "OrderedDeliveries.until_due",
                "while entry.entry_id in self._put_off:",
                "while False:",
            ),
        ),
    ),
    "unsettled-error": Plant(
        "what is no Exception leaves its job running for ever (A11)",
        "left|lost|died",
        lines=(
            Line(
                "wheelq.worker.handlers",
                "surviving",
                'raise RuntimeError(f"the handler raised {type(error).__name__}: {error}") from error',
                "raise",
            ),
        ),
        first=301,
    ),
    "kept-for-ever": Plant(
        "finished jobs stay when the topic keeps none any more (A12)",
        "left.*finished",
        lines=(
            Line(
                "wheelq.scheduler.leader",
                "Leader.act",
                "if has_kept and now_ms >= self._tidy_at:",
                "if now_ms >= self._tidy_at and (self._parts.topic.retention_ms or self._parts.topic.keep_done_ms):",
            ),
        ),
        first=302,
        needs="configure",
    ),
    "deaf-worker-ends": Plant(
        "a worker that may not listen ends with exit code 0 (B1)",
        "died",
        lines=(
            Line(
                "wheelq.worker.hints",
                "HintListener.run",
                "self.is_listening = False\n",
                "self.is_listening = False\n                if type(error).__name__ == 'NotPermitted': return\n",
            ),
        ),
        first=310,
        within=1,
        needs="no-channels",
    ),
    "one-bad-topic": Plant(
        "settings that cannot be read end every node (A5)",
        "late|lost|died",
        lines=(
            Line(
                "wheelq.protocol.calls.registry",
                "_each",
                "topics.unreadable[name] = error.problem",
                "raise ValueError(error.problem) from error",
            ),
        ),
        first=460,
        within=1,
        needs="foreign-settings",
    ),
    "group-stays": Plant(
        "a group that is removed keeps its jobs (B2)",
        "left",
        lines=(
            Line(
                "wheelq.aio.topics",
                "AsyncTopicMethods.remove_group",
                "return await self._change(lambda confirming: self._groups.remove(topic, group, force, confirming))",
                "return True",
            ),
        ),
        first=309,
        needs="group",
    ),
    "order-grows": Plant(
        "the next runs of ordered jobs stay when these have ended (A13)",
        "left.*next runs",
        lines=(
            Line("wheelq.worker.ordered_deliveries", "OrderedDeliveries.end", "self.finished.append(entry_id)", "pass"),
        ),
    ),
    "dead-worker-lives": Plant(
        "a dead worker's jobs are not taken over, like those that hid behind living ones (A8)",
        "left|lost|abandoned|late",
        lines=(
            Line(
                "wheelq.worker.peers",
                "Peers.standing",
                "is_silent = self._watch.silent(consumer) >= self._abandoned - NEARLY",
                "is_silent = False",
            ),
        ),
        first=86,
        within=1,
        needs="kill-worker",
    ),
    "lease-to-two": Plant(
        "a lease over HTTP ends three seconds before its time",
        "leased: ",
        {"'IDLE', idle_ms, '-', '+', left)": "'IDLE', math.max(1, idle_ms - 3000), '-', '+', left)"},
        first=4,
        within=1,
        needs="http-schedule",
    ),
    "cancel-due-lies": Plant(
        "jobs that are cancelled by their due time run",
        "untrue",
        {_CANCELLED_DUE: "if #ids > 0 then"},
        first=57,
        within=1,
        needs="due-range",
    ),
    "callback-forgets": Plant(
        "a callback that its receiver refused counts as made",
        "lost: called",
        lines=(
            Line(
                "wheelq.callbacks.caller",
                "CallbackCaller._again",
                'raise RetryAfter(max(pause_ms / 1000, after or 0.0), f"{place.shown} {why}", counts=True)',
                "return",
            ),
        ),
        first=4,
        within=1,
        needs="http-schedule",
    ),
}


def plant(name: str) -> None:
    """Break this process. Raises: KeyError when there is no such defect, AssertionError when it no longer fits."""
    found = PLANTS[name]
    if found.torture:
        planted.plant(found.torture)
    for old in found.lua:
        assert any(old in script(one).text for one in script_names()), f"{name} no longer fits: {old}"
    if found.lua:
        planted._patch(call, "script", planted._with(found.lua, script))
    for line in found.lines:
        _replace(name, line)


def _replace(name: str, line: Line) -> None:
    module: Any = __import__(line.module, fromlist=["_"])
    *owners, function = line.name.split(".")
    owner = getattr(module, owners[0]) if owners else module
    text = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    assert text.count(line.old) == 1, f"{name} no longer fits {line.module}.{line.name}: {line.old}"
    there: dict[str, Any] = {}
    exec(compile(text.replace(line.old, line.new), f"<plant {name}>", "exec"), vars(module), there)
    before = getattr(owner, function)
    setattr(owner, function, there[function])
    for other in list(sys.modules.values()):  # modules that have imported the function by its name
        if getattr(other, function, None) is before and other is not module:
            setattr(other, function, there[function])
