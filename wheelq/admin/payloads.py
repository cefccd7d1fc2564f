"""Finds the jobs whose payloads do not fit the types of a worker's handlers, before a deploy: `wheelq check`.

    waiting and retrying jobs    pages of the sorted set, then their records
    ready jobs                   what the worker's group has not been given yet

It changes nothing, and a page has 500 jobs, so that no call takes long and the memory does not grow with the jobs.
Running jobs are left out, and so are those that an ordered lane holds for their next attempt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wheelq.errors import PayloadMismatch
from wheelq.model.convert import Convert
from wheelq.producer.operation import Operation, ask, ask_all
from wheelq.protocol import codec
from wheelq.protocol.call import command
from wheelq.protocol.calls import producer, registry, worker
from wheelq.protocol.calls.bulk import DueRange, count
from wheelq.protocol.keys import Keys, ShardKeys, raw_member
from wheelq.worker.handlers.handler import Handlers

PAGE = 500
IDS = 2
"""How many jobs of a kind are named."""
KINDS = 100
"""How many fields, of all topics, are told apart; further ones count as one for each topic."""
_EVERYTHING = DueRange.of(None, None)
_INDEX = re.compile(r"\[\d+\]")
_Row = tuple[str, bytes]
"""A job's id and its record."""


@dataclass(slots=True)
class MisfitKind:
    """The jobs of one topic in which the same field does not fit."""

    topic: str
    field: str
    """Where in the payload; `[]` is any place of a list."""
    error: str
    """What is wrong with the first of them."""
    jobs: int
    ids: list[str]
    """Some of them."""


@dataclass(slots=True)
class PayloadCheck:
    """What the check found."""

    untyped: list[str]
    """The topics whose handlers take any payload."""
    jobs: int = 0
    """How many jobs it looked at."""
    misfits: dict[tuple[str, str], MisfitKind] = field(default_factory=dict)

    def look(self, topic: str, reads: Convert, most: int | None, rows: Sequence[_Row]) -> bool:
        """Look at some jobs, as long as `most` are not reached in all. Returns whether to go on."""
        for id, packed in rows if most is None else rows[: most - self.jobs]:
            self.jobs += 1
            try:
                reads(codec.decode(packed).payload)
            except PayloadMismatch as error:
                self._add(topic, _INDEX.sub("[]", error.field), error.problem, id)
            except codec.UnreadableRecord as error:
                self._add(topic, "record", str(error), id)
        return self.jobs != most

    def _add(self, topic: str, where: str, error: str, id: str) -> None:
        if (topic, where) not in self.misfits and len(self.misfits) >= KINDS:
            where = "other fields"
        found = self.misfits.setdefault((topic, where), MisfitKind(topic, where, error, 0, []))
        found.jobs += 1
        found.ids += [id] * (len(found.ids) < IDS)


def check(
    keys: Keys, handlers: Handlers, group: str, sample: int | None, report: Callable[[int, int], object]
) -> Operation[PayloadCheck]:
    """Looks at the jobs of all topics that have a typed handler; of each only at the first `sample` due, if given.

    Calls `report` with how many jobs it has looked at and how many wait.
    """
    found = PayloadCheck([name for name in handlers.topics if handlers[name].reads is None])
    known = (yield from ask(registry.topics(keys))).settings
    shards = {
        name: [keys.shard(name, shard) for shard in range(known[name].all_shards)]
        for name in handlers.topics
        if name in known and name not in found.untyped
    }
    total = sum((yield from ask_all(count(one, _EVERYTHING) for some in shards.values() for one in some)))
    for name, some in shards.items():
        reads, most = handlers[name].reads, None if sample is None else found.jobs + sample
        assert reads is not None

        def look(rows: Sequence[_Row], name: str = name, reads: Convert = reads, most: int | None = most) -> bool:
            report(found.jobs, total)
            return found.look(name, reads, most, rows)

        for one in some:
            if (yield from _waiting(one, group, look)):
                yield from _ready(one, group, look)
    return found


def _waiting(keys: ShardKeys, group: str, look: Callable[[Sequence[_Row]], bool]) -> Operation[bool]:
    """Looks at the waiting and retrying jobs of a shard. Returns whether to go on."""
    (score, end), member = _EVERYTHING, b""
    while True:
        page = yield from ask(producer.waiting(keys, score, end, member, PAGE))
        wanted = [one for one in page if one.group in (None, group)]
        packed = (yield from ask(producer.records(keys, [one.member for one in wanted]))) if wanted else []
        rows = [(one.id, record) for one, record in zip(wanted, packed, strict=True) if record is not None]
        if not look(rows):
            return False
        if len(page) < PAGE:
            return True
        score, member = page[-1].score, raw_member(page[-1].member)


def _ready(keys: ShardKeys, group: str, look: Callable[[Sequence[_Row]], bool]) -> Operation[None]:
    """Looks at the ready jobs of a shard that the group has not been given yet."""
    if not (yield from ask(command("EXISTS", keys.ready, read=bool, key=keys.ready))):
        return
    after = yield from ask(worker.read_to(keys, group))
    while True:
        entries = yield from ask(worker.entries_after(keys, after, PAGE))
        if not look([(one.id, one.record) for one in entries if one.group in (None, group)]) or len(entries) < PAGE:
            return
        after = entries[-1].entry_id
