"""`Rows`: what a courier does with the tables, each in one short transaction; none is open over a call to Redis.

turn     hold or take the lease ─ delete and release what was answered ─ fix the next rows' calls ─ COMMIT
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Update,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from wheelq.base.ids import make_tag
from wheelq.errors import ConfigurationError, Unavailable
from wheelq.model.checks import check_on_duplicate
from wheelq.model.topic import Topic
from wheelq.producer.outbox.kept import PARCELS_MS, due_at, next_place
from wheelq.protocol import codec
from wheelq.protocol.calls.producer import BATCH, Fixed
from wheelq.sql.table import Tables, begin_turn, database_us

MOST_ROWS = 2_000
"""The most rows that one turn takes up."""
LEAST_ROWS = 16
"""The fewest that it reads; otherwise four times as many as the last turn took up."""
MOST_BYTES = 4_000_000
"""About how many bytes of records one turn takes up."""
KINDS = ("schedule", "cancel", "reschedule")
SHARDS = re.compile(r"(\d{1,9}( |\Z)|\Z)")
"""How terms begin: with the number of shards."""
COUNTED = 100_000
"""Rows beyond this number are not counted."""
MOST_CLAIMS = 8
"""The most claims that one statement writes down."""
LOOKS_PAST = 16
"""After so many turns a courier looks past the rows of topics that wait for the answer about an id."""
SHOWN = 10


class Row(NamedTuple):
    """One call that waits."""

    seq: int
    kind: str
    topic: str
    job_id: str
    partition_key: str | None
    due: str
    on_duplicate: Any
    record: bytes
    asked_us: int
    tries: int


@dataclass(slots=True, eq=False)
class Claim:
    """The rows that one call takes to one shard; the table says which."""

    topic: str
    on_duplicate: Any
    place: Fixed
    claimed_us: int
    is_repeated: bool = False
    """Whether it may have been sent before."""
    rows: list[Row] = field(default_factory=list)
    refusals: int = 0
    """How often it was refused after that."""


@dataclass(slots=True)
class Settlement:
    """What became of rows; the next turn writes it down. Tags are those with which they were sent, or None."""

    taken: list[tuple[Claim, list[int]]] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    """Cancel and reschedule calls that were made."""
    released: list[tuple[bytes | None, list[int], int]] = field(default_factory=list)
    """To be placed again; and how many more tries that makes."""
    aside: list[tuple[int, str]] = field(default_factory=list)
    """Put aside, and why."""


@dataclass(slots=True)
class Turn:
    """What a turn found."""

    leads: bool
    is_new: bool = False
    """Whether the lease was taken just now, or the last turn failed: then these are all claims there are."""
    now_us: int = 0
    """The database's time, when the rows were read."""
    claims: list[Claim] = field(default_factory=list)
    changes: list[Row] = field(default_factory=list)
    unknown: dict[str, list[Row]] = field(default_factory=dict)
    """Rows that could not be placed, by topic."""
    forgettable: list[Claim] = field(default_factory=list)
    """Claims whose tags will not be sent again."""


class Wanted(NamedTuple):
    """What a turn may take up."""

    known: Callable[[str], Topic | None]
    """Returns a topic, unless it is unknown: then its rows cannot be placed."""
    not_here: Mapping[int, Collection[tuple[str, int]]]
    """By seq: terms and shards that were asked, and do not take the row."""
    skip: Collection[str]
    """Topics that wait."""
    full: Collection[str]
    """Topics of which the changes behind rows of other ids are taken up, too."""
    most: int = MOST_ROWS


class Info(NamedTuple):
    """How much an outbox holds."""

    waiting: int
    """At most `COUNTED`."""
    oldest_s: float
    """How long the first has waited."""
    aside: int


class Rows:
    """The rows of one outbox, for one courier. Every method raises Unavailable while the database cannot be used."""

    def __init__(self, engine: Engine, tables: Tables, holder: str = "", lease_s: float = 2.0) -> None:
        self._engine = engine
        self._tables, self._rows, self._courier = tables, tables.rows, tables.courier
        self._holder = holder
        self._lease_us = int(lease_s * 1_000_000)
        self._reads_all = True
        self._most = MOST_ROWS // 10
        self._turns = 0
        # Made once, because making a statement takes as long as the database does to run it.
        c = self._rows.c
        self._hold, self._seize = self._taking(self._courier.c.holder == holder), self._taking(self._is_free())
        self._drop = delete(self._rows).where(c.seq.in_(_some("seqs")), c.tag.in_(_some("tags")))
        unclaimed = self._reading(database_us()).where(c.tag.is_(None), c.topic.not_in(_some("skip")))
        self._unclaimed = unclaimed.limit(bindparam("most", type_=Integer))
        self._claiming = cache(self._claiming_statement)

    def check(self) -> None:
        """Raises: Unavailable, also if there are no tables, or the database is too old."""
        with self._transaction() as connection:
            self._tables.check(connection)

    def turn(self, outcome: Settlement, wanted: Wanted) -> Turn:
        """Write down an outcome, and claim the next rows."""
        try:
            with self._transaction() as connection:
                begin_turn(connection, self._lease_us / 1e6)  # others wait for its locks
                found = self._turn(connection, outcome, wanted)
        except Unavailable:
            self._reads_all = True  # the commit may have been made
            raise
        self._reads_all = not found.leads
        return found

    def _turn(self, connection: Connection, outcome: Settlement, wanted: Wanted) -> Turn:
        held = connection.execute(self._hold).rowcount > 0
        deleted = self._delete(connection, outcome)
        if held:  # else another courier may be sending these rows
            self._release(connection, outcome)
        elif not connection.execute(self._seize).rowcount:
            self._tables.make_lease(connection)  # for the next turn, if it is missing
            return Turn(False)
        turn = Turn(True, not held or self._reads_all)
        if turn.is_new:
            turn.claims = self._claimed(connection)
        else:
            turn.forgettable = [claim for claim in deleted if not claim.is_repeated]
        self._claim(connection, turn, wanted)
        return turn

    def _is_free(self) -> ColumnElement[bool]:
        """Whether the lease is over; also if it would last longer than any does: the database's clock was set back."""
        until_us, now_us = self._courier.c.until_us, database_us()
        return (until_us < now_us) | (until_us > now_us + 10 * self._lease_us)

    def _taking(self, condition: ColumnElement[bool]) -> Update:
        values = {"holder": self._holder, "until_us": database_us() + self._lease_us}
        return update(self._courier).where(condition).values(values)

    def _delete(self, connection: Connection, outcome: Settlement) -> list[Claim]:
        """Delete what Redis has taken; returns the claims of which no row is left."""
        c, deleted = self._rows.c, []
        if outcome.taken:
            seqs = [seq for _, some in outcome.taken for seq in some]
            tags = [claim.place.tag for claim, _ in outcome.taken]
            gone = connection.execute(self._drop, {"seqs": seqs, "tags": tags})
            if gone.rowcount == len(seqs):
                deleted = [claim for claim, some in outcome.taken if len(some) == len(claim.rows)]
        if outcome.changed:
            connection.execute(delete(self._rows).where(c.seq.in_(outcome.changed)))
        return deleted

    def _release(self, connection: Connection, outcome: Settlement) -> None:
        c = self._rows.c
        for tag, seqs, tries in outcome.released:
            there = c.seq.in_(seqs), c.tag.is_(None) if tag is None else c.tag == tag
            connection.execute(update(self._rows).where(*there).values(tag=None, tries=c.tries + tries))
        self._put_aside(connection, outcome.aside)

    def _put_aside(self, connection: Connection, rows: Iterable[tuple[int, str]]) -> None:
        for seq, error in rows:
            connection.execute(update(self._rows).where(self._rows.c.seq == seq).values(tag=None, error=error))

    def _claimed(self, connection: Connection) -> list[Claim]:
        """Returns the claims of former couriers: each was, or may have been, sent as it is."""
        c, found = self._rows.c, dict[Any, Claim]()  # by tag
        query = self._reading(c.tag, c.shard, c.terms, c.turn_ms, c.claimed_us).where(c.tag.is_not(None))
        damaged = dict[object, str]()  # by tag: why
        for *values, tag, shard, terms, turn_ms, claimed_us in connection.execute(query):
            row = Row(*values)
            if problem := _damage(row) or _damage_of_claim(tag, shard, terms, turn_ms, claimed_us):
                damaged.setdefault(tag, problem)
            claim = Claim(row.topic, row.on_duplicate, Fixed(tag, shard, terms, turn_ms), claimed_us, True)
            found.setdefault(tag, claim).rows.append(row)
        for tag, problem in damaged.items():
            why = f"it, or a row that was sent with it, {problem}; it may have been delivered"
            self._put_aside(connection, [(row.seq, why) for row in found.pop(tag).rows])
        return list(found.values())

    def _claim(self, connection: Connection, turn: Turn, wanted: Wanted) -> None:
        """Take up the next rows. The second row of an id waits until the first is delivered, and its topic with it.

        Debounced rows of an id go together, so that they make one job.
        """
        seen, found, used, size = dict[tuple[str, str], bool](), 0, 0, 0
        damaged: list[tuple[int, str]] = []
        claims: dict[tuple[str, int], tuple[object, Claim]] = {}  # by topic and shard: the last, which may take more
        for row in self._next(connection, turn, wanted, seen):
            found += 1
            if problem := _damage(row):
                damaged.append((row.seq, f"it {problem}"))
                continue
            record = bytes(row.record) if row.kind == "schedule" else b""
            size += len(record)
            is_debounced = bool(record) and codec.is_debounced(record)
            may_join = is_debounced and seen.get((row.topic, row.job_id), True)
            if (row.topic, "") in seen or ((row.topic, row.job_id) in seen and not may_join):
                seen[row.topic, ""] = False
                continue
            is_first = (row.topic, row.job_id) not in seen
            seen[row.topic, row.job_id] = is_debounced
            used += 1
            if row.kind != "schedule":
                turn.changes.append(row)
            elif (topic := wanted.known(row.topic)) is None:
                turn.unknown.setdefault(row.topic, []).append(row)
            else:
                shard, terms = next_place(row.partition_key or row.job_id, topic, wanted.not_here.get(row.seq, ()))
                alone = row.seq if row.tries else None  # others shall not be refused with it again
                key = (terms, row.on_duplicate, alone)
                last_key, claim = claims.get((row.topic, shard), (None, None))
                if claim is None or last_key != key or len(claim.rows) == BATCH:
                    if not is_first:
                        seen[row.topic, ""] = False
                        continue
                    place = Fixed(make_tag(), shard, terms, PARCELS_MS)
                    claim = Claim(row.topic, row.on_duplicate, place, turn.now_us)
                    claims[row.topic, shard] = key, claim
                    turn.claims.append(claim)
                claim.rows.append(row)
        self._put_aside(connection, damaged)
        if wanted.full and wanted.most:
            turn.changes += [row for row in self._passing(connection, wanted) if (row.topic, row.job_id) not in seen]
        made = [claim for claim in turn.claims if not claim.is_repeated]
        few = len(made) <= MOST_CLAIMS and sum(len(claim.rows) for claim in made) <= BATCH
        for together in [made] if made and few else ([claim] for claim in made):
            self._write(connection, together)
        if found:
            self._most = max(1, min(MOST_ROWS, MOST_BYTES // (size // found + 1), max(4 * used, LEAST_ROWS)))

    def _next(
        self, connection: Connection, turn: Turn, wanted: Wanted, seen: Mapping[tuple[str, str], bool]
    ) -> Iterator[Row]:
        """Yields the next rows in order; now and then also those behind rows of topics that wait, as `seen` says.

        Notes the time in the turn first.
        """
        self._turns += 1
        skip, most = {*wanted.skip, *(claim.topic for claim in turn.claims)}, min(wanted.most, self._most)

        def page() -> Sequence[Any]:
            return connection.execute(self._unclaimed, {"skip": list(skip), "most": most}).all() if most else ()

        rows = page()
        turn.now_us = rows[0][-1] if rows else connection.scalar(select(database_us())) or 0
        while rows:
            yield from (Row(*values) for *values, _ in rows)
            skip |= {topic for topic, _ in seen}
            if len(rows) < most or self._turns % LOOKS_PAST or all(id for _, id in seen):
                return
            rows = page()

    def _passing(self, connection: Connection, wanted: Wanted) -> Iterator[Row]:
        """Yields the next changes of full topics that are the first rows of their ids."""
        c = self._rows.c
        there = select(func.min(c.seq)).where(c.topic.in_(wanted.full), c.error.is_(None)).group_by(c.topic, c.job_id)
        query = self._reading().where(c.seq.in_(there), c.kind != "schedule").limit(wanted.most)
        return (row for values in connection.execute(query) if _damage(row := Row(*values)) is None)

    def _write(self, connection: Connection, claims: Sequence[Claim]) -> None:
        """Write down these claims, in one statement."""
        values: dict[str, Any] = {"since_us": claims[0].claimed_us}
        for n, claim in enumerate(claims):
            place = claim.place
            values |= {f"seqs_{n}": seqs_of(claim.rows), f"tag_{n}": place.tag}
            values |= {f"shard_{n}": place.shard, f"terms_{n}": place.terms}
        found = connection.execute(self._claiming(len(claims)), values)
        if found.rowcount != sum(len(claim.rows) for claim in claims):
            raise SQLAlchemyError("rows of the outbox were changed by another program meanwhile")

    def _claiming_statement(self, number: int) -> Update:
        """Returns the statement that writes down this number of claims."""
        c = self._rows.c
        theirs = [c.seq.in_(_some(f"seqs_{n}")) for n in range(number)]

        def each(name: str) -> Any:
            first, *others = (bindparam(f"{name}_{n}", type_=c[name].type) for n in range(number))
            return case(*zip(theirs[1:], others, strict=True), else_=first) if others else first

        values = {name: each(name) for name in ("tag", "shard", "terms")}
        values |= {"turn_ms": PARCELS_MS, "claimed_us": bindparam("since_us")}
        return update(self._rows).where(or_(*theirs), c.tag.is_(None)).values(values)

    def _reading(self, *more: ColumnElement[Any]) -> Any:
        """Returns the query for rows that were not put aside, in order; their columns, and these."""
        c = self._rows.c
        return select(*(c[name] for name in Row._fields), *more).where(c.error.is_(None)).order_by(c.seq)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, ConfigurationError) as error:
            raise Unavailable(f"the database cannot be used: {_first_line(error)}") from error

    def now_us(self) -> int:
        """Returns the database's time."""
        with self._transaction() as connection:
            return connection.scalar(select(database_us()))  # type: ignore[return-value]

    def retry(self) -> None:
        """Let all rows that were put aside be delivered again, as new calls."""
        with self._transaction() as connection:
            there = self._rows.c.error.is_not(None)
            connection.execute(update(self._rows).where(there).values(error=None, tries=0))

    def resign(self) -> None:
        """Give the lease back."""
        with self._transaction() as connection:
            c = self._courier.c
            connection.execute(update(self._courier).where(c.holder == self._holder).values(until_us=0))

    def info(self) -> Info:
        """Returns how much the outbox holds."""
        c = self._rows.c
        with self._transaction() as connection:

            def count(condition: ColumnElement[bool]) -> int:
                some = select(c.seq).where(condition).limit(COUNTED).subquery()
                return connection.scalar(select(func.count()).select_from(some)) or 0

            waits = c.error.is_(None)
            first = connection.execute(select(database_us(), c.asked_us).where(waits).order_by(c.seq).limit(1)).first()
            oldest_us = 0 if first is None else max(0, first[0] - first[1])
            return Info(count(waits), oldest_us / 1e6, count(c.error.is_not(None)))

    def shown(self, *, aside: bool) -> Sequence[Mapping[str, Any]]:
        """Returns the first rows that wait, or that were put aside, as the table has them, without their records."""
        c = self._rows.c
        names = ("seq", "kind", "topic", "job_id", "due", "asked_us", "tries", "error")
        condition = c.error.is_not(None) if aside else c.error.is_(None)
        with self._transaction() as connection:
            found = connection.execute(
                select(*(c[name] for name in names)).where(condition).order_by(c.seq).limit(SHOWN)
            )
            return [dict(row._mapping) for row in found]


def _damage(row: Row) -> str | None:
    """Returns why a row can never be delivered: not everything that writes to a table is an outbox of this release."""
    if row.kind not in KINDS:
        return f"is of kind {row.kind!r}, which this release does not know"
    if not _are(str, row.topic, row.job_id, row.due, row.partition_key or "") or not _are(int, row.asked_us, row.tries):
        return "has a value of another type"  # as SQLite allows
    try:
        "".join((row.topic, row.job_id, row.partition_key or "")).encode()
        if row.kind != "cancel":
            due_at(row.due, 0)
        if row.kind == "schedule":
            check_on_duplicate(row.on_duplicate)
            codec.asked_at(memoryview(row.record).tobytes(), 0)
    except (codec.UnreadableRecord, ValueError, TypeError, LookupError) as error:
        return f"cannot be read: {error}"
    return None


def _damage_of_claim(tag: object, shard: object, terms: object, turn_ms: object, claimed_us: object) -> str | None:
    """Returns why nobody can tell where a claimed row was sent."""
    is_place = isinstance(tag, bytes) and _are(int, shard, turn_ms, claimed_us) and isinstance(terms, str)
    return None if is_place and SHARDS.match(str(terms)) else "is claimed by what cannot be read"


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]


def seqs_of(rows: Iterable[Any]) -> list[int]:
    """Returns the numbers of rows or kept jobs."""
    return [row.seq for row in rows]


def _some(name: str) -> BindParameter[Any]:
    """Returns a parameter for a list of values."""
    return bindparam(name, expanding=True)
