"""What runs reach: scripts, branches of scripts, rare functions and log messages. A test says what must be reached.

    script replay                                the script ran
    lua promote: if due <= last then             this branch of a script or of a part of the library was taken
    log: %s:%d: the leader is gone, taking over  this message was logged
    wheelq.worker.delivery.recovery:Rec…         this function was called

Nothing of this stands in the product. The simulated server compiles each script with a counter behind each `then` and
`else` (`probed`), messages are counted where the story hears them, and functions are wrapped for the length of a run.
`must_reach.txt` names what a number of seeds must reach.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import wheelq
from wheelq.protocol.calls.producer import FOR_MEMBERS_AND_REPLACED
from wheelq.protocol.calls.state import FOR_RESULTS, FOR_WHAT_FOLLOWS
from wheelq.protocol.scripts import Script, library, script, script_names

WITH_MESSAGES = ("scheduler", "worker", "producer", "callbacks", "transport")
"""The parts of the product whose log messages are branches."""
_BRANCH = re.compile(r"\b(?:then|else)\b")
_NOT_CODE = re.compile(r"--.*|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")

FUNCTIONS: tuple[str, ...] = (
    "wheelq.scheduler.standby:Standby._hedge",
    "wheelq.scheduler.shard:Shard.hand_over",
    "wheelq.scheduler.shard:Shard._give_back",
    "wheelq.scheduler.shard:Shard.assume",
    "wheelq.scheduler.draining:Draining._misplaced",
    "wheelq.scheduler.draining:EndedGroups._carry_out",
    "wheelq.scheduler.topics:LostTopics._register",
    "wheelq.scheduler.topics:LostTopics._add_former",
    "wheelq.scheduler.topics:LostTopics._make_groups",
    "wheelq.scheduler.candidate:Candidate._denied",
    "wheelq.scheduler.candidate:Candidate._catch_up",
    "wheelq.scheduler.membership:Membership.report_gone",
    "wheelq.worker.delivery.recovery:Recovery.adopt",
    "wheelq.worker.delivery.recovery:Recovery._look_for_lost",
    "wheelq.worker.delivery.recovery:Recovery._one_suspect",
    "wheelq.worker.delivery.recovery:Recovery._take_over",
    "wheelq.worker.delivery.settling:Settler._put_off",
    "wheelq.worker.delivery.settling:Settler._insist",
    "wheelq.worker.delivery.settling:Settler.hand_back",
    "wheelq.worker.delivery.running:Running.handed_back",
    "wheelq.worker.delivery.running:Running.settle_not_run",
    "wheelq.worker.delivery.running:Running.cancel",
    "wheelq.worker.ordered.ordering:OrderedShard._take_over",
    "wheelq.worker.ordered.ordering:OrderedShard._lose",
    "wheelq.worker.ordered.ordering:OrderedShard._pass_on",
    "wheelq.worker.ordered.ordering:OrderedShard._drop_what_was_given_up",
    "wheelq.worker.upkeep.shards:ServedShards._leave",
    "wheelq.worker.upkeep.shards:ServedShards._returned",
    "wheelq.worker.upkeep.overdue:OverdueWarning._warn",
    "wheelq.worker.lanes.reader:Reader._listen_or_read",
    "wheelq.worker.lanes.reader:Reader._mend",
    "wheelq.worker.lanes.reader:Backlog.doubt",
    "wheelq.producer.submission:Submission.lost",
    "wheelq.producer.submission:Submission.place_by",
    "wheelq.producer.submission:Submission._settle_each",
    "wheelq.producer.fallback:Fallback._pass_by",
    "wheelq.producer.fallback:Fallback._keep",
    "wheelq.producer.outbox.store:Outbox._forget",
    "wheelq.producer.confirmation:Confirmation._what_is_missing",
    "wheelq.producer.scheduling:Scheduling._ask_for_the_time",
    "wheelq.producer.scheduling:Scheduling._warn_of_channels",
)
"""Rare functions of the product, which are counted."""

Reached = Counter[str]
"""How often each thing was reached; of many runs, in how many of them."""


# --- scripts ----------------------------------------------------------------------------------------------------------


@cache
def scripts() -> dict[bytes, Script]:
    """Returns each script by its digest, in all forms."""
    forms = [script("schedule", without=FOR_MEMBERS_AND_REPLACED)]
    forms += (
        script("conclude", without=one) for one in (FOR_WHAT_FOLLOWS, FOR_RESULTS, FOR_WHAT_FOLLOWS + FOR_RESULTS)
    )
    forms += (script(name, for_many=for_many) for name in script_names() for for_many in (False, True))
    return {one.sha.encode(): one for one in forms}


@cache
def branches() -> tuple[str, ...]:
    """Returns all branches of all scripts; their numbers are their places here."""
    found = dict.fromkeys(name for one in scripts().values() for name, _ in _branches(one))
    return tuple(found)


@cache
def probed(one: Script) -> bytes:
    """Returns the text of a script in which each branch notes its number in the table REACHED."""
    lines, numbers = one.text.split("\n"), {branch: n for n, branch in enumerate(branches(), start=1)}
    for branch, (line, column) in reversed(list(_branches(one))):
        before, after = lines[line][:column], lines[line][column:]
        lines[line] = f"{before} REACHED[{numbers[branch]}]=1;{after}"
    return "\n".join(lines).encode()


def _branches(one: Script) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields the branches of a script, each with the line and column where its code begins."""
    for number, (owner, line) in enumerate(_lines(one)):
        code = _NOT_CODE.sub(lambda found: " " * len(found[0]), line)
        ends = [found.end() for found in _BRANCH.finditer(code)]
        for n, end in enumerate(ends):
            nth = f" ({n + 1})" if n else ""
            yield f"lua {owner}: {' '.join(line.split())}{nth}", (number, end)


def _lines(one: Script) -> Iterator[tuple[str, str]]:
    """Yields the lines of a script, each with the part of the library or the script that it is from."""
    text, found = one.text, []
    for part, body in library().items():
        at = text.find(body)
        if at >= 0:
            found.append((text[:at].count("\n"), body.count("\n"), part))
    for number, line in enumerate(text.split("\n")):
        yield next((part for first, length, part in found if first <= number < first + length), one.name), line


# --- messages and functions -------------------------------------------------------------------------------------------


@cache
def messages() -> tuple[str, ...]:
    """Returns every message that the product may log, from level info on."""
    found: list[ast.expr] = []
    root = Path(wheelq.__file__).parent
    for path in sorted(one for part in WITH_MESSAGES for one in (root / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(ast.Name("logger" | "log"), "info" | "warning" | "error" | "exception")):
                    found.append(node.args[0])
                case ast.Call(ast.Attribute(ast.Name("logger" | "log"), "log")):
                    found.append(node.args[1])
    return tuple(f"log: {text.value!s}" for text in found if isinstance(text, ast.Constant))


@contextmanager
def counting(reached: Reached) -> Iterator[None]:
    """Counts calls of `FUNCTIONS` during the block."""
    with ExitStack() as stack:
        for place in FUNCTIONS:
            path, _, name = place.partition(":")
            *owners, function = name.split(".")
            owner: Any = functools.reduce(getattr, owners, import_module(path))
            before = inspect.getattr_static(owner, function)
            counted = _counted(before, reached, place)
            everywhere = [one for one in list(sys.modules.values()) if vars(one).get(function) is before]
            for one in everywhere if not owners else [owner]:
                stack.enter_context(patch.object(one, function, counted))
        yield


def _counted(do: Callable[..., Any], reached: Reached, name: str) -> Callable[..., Any]:
    @functools.wraps(do)
    def call(*args: Any, **options: Any) -> Any:
        reached[name] += 1
        return do(*args, **options)

    return call


# --- what must be reached ---------------------------------------------------------------------------------------------


@cache
def everything() -> frozenset[str]:
    """Returns all that can be reached."""
    return frozenset([*(f"script {name}" for name in script_names()), *branches(), *messages(), *FUNCTIONS])


@cache
def demanded() -> dict[str, int]:
    """Returns how many seeds must be enough to reach a thing; what is not in the list may stay unreached."""
    lines = Path(__file__).with_name("must_reach.txt").read_text().splitlines()
    pairs = (line.split(" ", 1) for line in lines if not line.startswith("#"))
    return {name: int(seeds) for seeds, name in pairs}


def missing(reached: Reached, seeds: int) -> list[str]:
    """Returns what this many seeds must reach, and have not."""
    return sorted(name for name, enough in demanded().items() if enough <= seeds and not reached[name])


def never(reached: Reached) -> list[str]:
    """Returns everything that was not reached."""
    return sorted(everything() - frozenset(reached))
