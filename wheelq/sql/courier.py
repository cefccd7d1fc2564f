"""`SqlCourier`: delivers the calls of a SQL outbox to Redis.

    claim   say in the table which rows one call takes to which shard, under which tag ─ COMMIT
    deliver make that call
    delete  the rows that Redis has taken, in the transaction that claims the next ─ COMMIT

A courier that dies leaves its claims in the table. The next one makes the very same calls, and Redis gives its first
answers to those that it knows, although the jobs may have run since. An answer is kept for half a day at least: rows
that were claimed longer ago may have been delivered, so they are put aside, and a person decides. One courier delivers,
because its name is in the table's lease; others stand by.

A cancel or reschedule call has no tag. It names the life and the due time of the job that waits under the id, so when
it arrives late or twice it changes no later job.

**Due**: Redis's time, less the age of the call by the database's clock, plus the delay. No other clock counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from wheelq import reminders
from wheelq.base.clock import Clock, SystemClock
from wheelq.base.version import __version__
from wheelq.errors import (
    AuthenticationFailed,
    ConfigurationError,
    NotLeader,
    NotReplicated,
    OutcomeUnknown,
    Refused,
    ServerBusy,
    ServerFull,
    TopicFull,
    TopicUnreadable,
    Unavailable,
    WheelqError,
    holds_up_all,
    is_away,
    is_wrong_setup,
)
from wheelq.following.carrier import NO_BREAKER
from wheelq.model.job import SECOND, CancelOutcome, RescheduleOutcome
from wheelq.model.topic import Topic
from wheelq.producer.confirmation import Confirmer
from wheelq.producer.driver import AsyncDriver
from wheelq.producer.operation import Operation, ask, ask_all
from wheelq.producer.outbox.kept import Kept, Parcel, Sending, answered, due_at
from wheelq.producer.scheduling import Scheduling
from wheelq.producer.topics import Topics
from wheelq.protocol import codec
from wheelq.protocol.calls import heartbeats, producer
from wheelq.protocol.calls.outgoing import LIFE_MS
from wheelq.protocol.calls.producer import Placed, StillWaiting, Tagging
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.reminders import Backoff, Loop
from wheelq.settings import Settings, settings_in_force
from wheelq.sql.rows import MOST_ROWS, Claim, Row, Rows, Settlement, Turn, Wanted, seqs_of
from wheelq.sql.table import NAME, Listener, Tables, check_database, place_of, read_any_text
from wheelq.transport import AsyncTransport, server_address
from wheelq.transport.slots import Node

T = TypeVar("T")

logger = logging.getLogger("wheelq.courier")

LEASE_S = 2.0
"""How long a courier that has died, or cannot reach the database, keeps others from delivering."""
MOST_TRIES = 10
"""After this many refusals a row is put aside; it takes about half a minute."""
FIRST_S, LONGEST_S = 0.01, 1.0
"""The pauses between two looks at the table, while it is empty."""
GRACE_S = 2.0
"""How long a courier that has to end waits for answers."""
REPORT_S = 5.0
MEASUREMENTS = 3
DRIFT_US_A_S = 100
"""How fast two clocks may drift apart."""
LOOKS = 5
"""How often a change is tried again because its job has changed meanwhile."""
NOBODY = b"\0" * 8
NOT_PLACED = Topic()
TOO_OLD = "it was sent too long ago: it may have been delivered. Schedule it again if it was not"
"""Why a row is put aside whose tag may be forgotten."""


class SqlCourier:
    """Delivers the calls of one outbox, for one event loop; stands by while another courier does."""

    def __init__(
        self,
        engine: Engine,
        transport: AsyncTransport,
        settings: Settings,
        *,
        table: str = NAME,
        clock: Clock | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        """Raises: ConfigurationError."""
        check_database(engine.dialect)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.delivered = 0
        """Calls that have come to an end here."""
        self.place = place_of(engine.url, table)
        """What it delivers from."""
        self._engine, self._lease_s = engine, lease_s
        self._rows = Rows(engine, tables := Tables(table), self.name, lease_s)
        self._listener = Listener(engine, tables.channel)
        self._clock = clock = clock or SystemClock()
        self._keys = keys = Keys(settings.prefix)
        self._topics = Topics(keys, settings.topic, settings.client.topics_ttl_ms, clock)
        tagging = Tagging.of(settings.client, transport.reply_timeout_ms)
        self._scheduling = Scheduling(self._topics, keys, settings.client, clock, tagging)
        self._confirmer = Confirmer(settings.client)
        self._transport = transport
        self._driver = AsyncDriver(transport, NO_BREAKER, clock)
        self._idle = Backoff(FIRST_S, LONGEST_S)
        self._outcome = Settlement()
        self._claims: list[Claim] = []  # without an answer
        self._blocked: dict[str, tuple[Backoff, float]] = {}  # by topic: its pauses, and when the current one ends
        self._not_here: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)  # by seq: terms and shards asked
        self._done: defaultdict[tuple[str, int], deque[bytes]] = defaultdict(lambda: deque(maxlen=1_000))
        self._offsets: dict[Node | None, tuple[int, float]] = {}  # by server, with the time of the last measurement
        self._failure: WheelqError | None = None
        self._is_checked = False
        self._is_away = False
        self._began = 0.0
        self._report_at = self._look_at = 0.0
        self._is_stopping = False
        self._ends_at: float | None = None  # when calls that have no answer are given up
        self._limits = set[asyncio.Timeout]()  # those of the calls under way

    @classmethod
    def connect(cls, url: str | None, engine: Engine, settings: Settings | None = None, *, table: str = NAME) -> Self:
        """Returns a courier between a database and a Redis (else WHEELQ_URL). Raises: ConfigurationError."""
        given, settings = settings, settings or settings_in_force()
        return cls(engine, AsyncTransport(server_address(url, given)), settings, table=table)

    def stop(self) -> None:
        """Make `run` end after the current step, and leave the delivery to others. A silent server holds nothing up."""
        self._is_stopping = True
        self._ends_at = asyncio.get_running_loop().time() + GRACE_S
        for limit in self._limits:
            limit.reschedule(self._ends_at)
        self._listener.heard.set()

    async def run(self) -> None:
        """Deliver until stopped. Waits for servers that are away, and for the tables."""
        with reminders.kept(self._clock):
            loop = Loop(
                self._clock, logger, f"the rows of {self.place} wait", 0.05, LONGEST_S, unexpected="not delivered"
            )
            try:
                await loop.run(self.step, self._listener.heard, lambda: self._is_stopping)
            finally:
                await self._close()

    async def step(self) -> float:
        """Make one turn; returns the seconds until the next. Raises: ServerError."""
        if not self._is_checked:
            await asyncio.to_thread(self._rows.check)
            self._is_checked = True
        await self._listener.listen()
        self._began = self._clock.uptime()
        turn = await self._turn()
        if not turn.leads:
            return self._lease_s / 4
        await self._report()
        if self._is_away:
            await self._ask(ask(server_time_us()))
            self._is_away = False
        for topic, rows in turn.unknown.items():
            if (error := await self._attempt(topic, self._scheduling.placement(topic))) is not None:
                self._refused(None, rows, error)
        if turn.claims and not self._offsets:
            await self._compare_clocks(turn.claims[0])
        work = self._due_work(turn)
        await asyncio.gather(*(self._deliver(topic, *some, turn.now_us) for topic, some in work.items()))
        if self._failure is not None:
            failure, self._failure, self._is_away = self._failure, None, True
            raise failure
        if work or turn.unknown:
            self._idle.failures = 0
            return 0.0
        if self._blocked:
            first = min(until for _, until in self._blocked.values())
            return min(max(first - self._clock.monotonic(), 0.0), LONGEST_S)
        return LONGEST_S if self._listener.listens else self._idle.pause()

    async def _turn(self) -> Turn:
        outcome, now = self._outcome, self._clock.monotonic()
        waiting = {topic for topic, (_, until) in self._blocked.items() if until > now}
        skip = waiting | {claim.topic for claim in self._claims}
        full = self._blocked.keys() - waiting if now >= self._look_at else ()
        most = 0 if self._is_away else MOST_ROWS
        wanted = Wanted(self._known, dict(self._not_here), skip, full, most)
        turn = await asyncio.to_thread(self._rows.turn, outcome, wanted)
        if full:  # a look reads all their rows, and the other topics wait for it
            self._look_at = 10 * self._clock.monotonic() - 9 * now
        self._outcome = Settlement()
        for seq in (*(seq for _, seqs in outcome.taken for seq in seqs), *(seq for seq, _ in outcome.aside)):
            self._not_here.pop(seq, None)
        if turn.is_new or not turn.leads:
            self._claims, self._done = [], defaultdict(self._done.default_factory)
        for claim in turn.forgettable:
            self._done[claim.topic, claim.place.shard].append(claim.place.tag)
        self._claims += turn.claims
        return turn

    def _known(self, topic: str) -> Any:
        found = self._topics.known(topic)
        return None if found is None else found.topic

    def _due_work(self, turn: Turn) -> dict[str, tuple[list[Claim], list[Row]]]:
        """Returns by topic what to send now; puts aside what was sent too long ago."""
        work: defaultdict[str, tuple[list[Claim], list[Row]]] = defaultdict(lambda: ([], []))
        now = self._clock.monotonic()
        for claim in list(self._claims):
            if turn.now_us - claim.claimed_us > LIFE_MS * 1000 and claim.is_repeated:
                self._claims.remove(claim)
                self._outcome.aside += [(row.seq, TOO_OLD) for row in claim.rows]
            elif self._blocked.get(claim.topic, (None, 0.0))[1] <= now:
                work[claim.topic][0].append(claim)
        for row in turn.changes:
            work[row.topic][1].append(row)
        return work

    # --- one topic -------------------------------------------------------------------------------------------------

    async def _deliver(self, topic: str, claims: Sequence[Claim], changes: Sequence[Row], now_us: int) -> None:
        """Delivers rows of one topic, no two of them of one id, at the same time."""
        each = (self._deliver_change(topic, row, now_us) for row in changes)
        errors = await asyncio.gather(self._deliver_claims(topic, claims, now_us), *each)
        if not any(errors):
            self._blocked.pop(topic, None)

    async def _deliver_claims(self, topic: str, claims: Sequence[Claim], now_us: int) -> WheelqError | None:
        if not claims:
            return None
        sending = Sending(NOT_PLACED, [])
        error = await self._attempt(topic, self._send(topic, claims, now_us, sending))
        answers = [*sending.answers, *[None] * len(claims)]
        is_full = None
        for n, claim in enumerate(claims):
            if (answer := answers[n]) is None or isinstance(error, NotReplicated):
                is_sure = error is not None and _did_nothing(error, sending, n)
                self._unanswered(claim, error, is_sure=is_sure)
            else:
                is_full = self._answered(claim, sending, n, answer) or is_full
        return error or is_full

    async def _deliver_change(self, topic: str, row: Row, now_us: int) -> WheelqError | None:
        error = await self._attempt(topic, self._change(row, now_us))
        if error is None:
            self._outcome.changed.append(row.seq)
            self.delivered += 1
        else:
            self._refused(None, [row], error)
        return error

    async def _ask(self, operation: Operation[T]) -> T:
        """Runs an operation; returns its result. Raises: its errors, and OutcomeUnknown when this courier ends."""
        limit = asyncio.timeout_at(self._ends_at)
        self._limits.add(limit)
        try:
            async with limit:
                return await self._driver.run(operation)
        except TimeoutError as error:
            raise OutcomeUnknown("the server did not answer before the end") from error
        finally:
            self._limits.discard(limit)

    async def _attempt(self, topic: str, operation: Operation[Any]) -> WheelqError | None:
        """Runs an operation; returns its error, which ends the step, or blocks the topic for a while."""
        try:
            await self._ask(operation)
        except WheelqError as error:
            if holds_up_all(error):
                self._failure = error
            elif not isinstance(error, NotLeader):  # the next turn tells whether it still delivers
                self._block(topic, error)
            return error
        return None

    def _block(self, topic: str, error: WheelqError) -> None:
        reminders.warn(logger, f"rows for topic {topic} wait", error)
        now = self._clock.monotonic()
        backoff, until = self._blocked.get(topic, (Backoff(0.1, LONGEST_S), 0.0))
        if until <= now:
            self._blocked[topic] = backoff, now + backoff.pause()

    def _send(self, topic: str, claims: Sequence[Claim], now_us: int, sending: Sending) -> Operation[None]:
        """Sends claims; `sending` gets their answers."""
        sending.placed = yield from self._scheduling.placement(topic)
        keys = {claim.place.shard: self._keys.shard(topic, claim.place.shard).jobs for claim in claims}
        servers = {shard: self._transport.server_of(key) for shard, key in keys.items()}
        asked = {server: keys[shard] for shard, server in servers.items()}
        times = yield from ask_all(map(server_time_us, asked.values()))
        self._check_lease()
        ahead = {
            server: self._offset(server, us - now_us, self._began) for server, us in zip(asked, times, strict=True)
        }
        sending.parcels = [self._parcel(claim, now_us + ahead[servers[claim.place.shard]], now_us) for claim in claims]
        yield from self._scheduling.parcels(sending)

    async def _compare_clocks(self, claim: Claim) -> None:
        """Measures the offset of the claim's server before anything is delivered. Raises: ServerError."""
        key = self._keys.shard(claim.topic, claim.place.shard).jobs
        for _ in range(MEASUREMENTS):
            began, now_us = self._clock.uptime(), await asyncio.to_thread(self._rows.now_us)
            redis_us = await self._ask(ask(server_time_us(key)))
            self._offset(self._transport.server_of(key), redis_us - now_us, began)

    def _offset(self, server: Node | None, measured_us: int, began: float) -> int:
        """Returns how far a Redis server's clock is ahead of the database's: the same as before, if that can be.

        A measurement is too large by the time between its two readings, which is at most the time since `began`. If the
        offset changed from turn to turn, later calls could be due before earlier ones.
        """
        now = self._clock.uptime()
        before_us, at = self._offsets.get(server, (measured_us, now))
        least_us = max(before_us + int(DRIFT_US_A_S * (now - at)), measured_us - int(1e6 * (now - began)))
        self._offsets[server] = offset = min(least_us, measured_us), now
        return offset[0]

    def _parcel(self, claim: Claim, redis_us: int, now_us: int) -> Parcel:
        jobs = []
        for row in claim.rows:
            asked_ms = _asked_ms(row, redis_us, now_us)
            due_ms, priority = due_at(row.due, asked_ms)
            record = codec.asked_at(bytes(row.record), max(0, asked_ms))
            job = (row.topic, row.job_id, max(0, due_ms), priority, record, row.partition_key)
            jobs.append(Kept(row.seq, *job, row.on_duplicate))
        done = self._done[claim.topic, claim.place.shard]
        forget = done.popleft() if done else b""
        return Parcel(claim.topic, claim.on_duplicate, jobs, claim.place, claim.is_repeated, forget)

    def _answered(self, claim: Claim, sending: Sending, n: int, answer: Placed) -> WheelqError | None:
        """Notes what the answer to a claim says; returns an error if some of its rows have to wait."""
        self._claims.remove(claim)
        found, outcome = answered(sending.parcels[n], answer), self._outcome
        outcome.aside += found.refused.items()
        outcome.taken.append((claim, [job.seq for job, _ in found.taken if job.seq not in found.refused]))
        self.delivered += len(found.taken)
        again = seqs_of([*found.full, *found.elsewhere])
        if again:
            outcome.released.append((claim.place.tag, again, 0))
        if answer.terms_in_force is None and not claim.is_repeated:  # else other terms may have been asked
            for job in found.elsewhere:
                self._not_here[job.seq].add((sending.placed.known_terms, claim.place.shard))
        if not found.full:
            return None
        error = TopicFull(claim.topic, {job.seq: job.id for job in found.full}, {})
        self._block(claim.topic, error)
        return error

    def _unanswered(self, claim: Claim, error: WheelqError | None, *, is_sure: bool) -> None:
        """Keeps a claim, to be sent again as it is; releases its rows if it certainly did nothing."""
        if claim.is_repeated or not is_sure:
            claim.is_repeated = True
            claim.refusals += error is not None and _counts(error)
            if claim.refusals >= MOST_TRIES:
                self._claims.remove(claim)
                self._outcome.aside += [(row.seq, str(error)) for row in claim.rows]
            return
        self._claims.remove(claim)
        if error is not None:
            self._refused(claim.place.tag, claim.rows, error)

    def _refused(self, tag: bytes | None, rows: Iterable[Row], error: WheelqError) -> None:
        """Releases rows that were not taken, or puts them aside after too many tries."""
        tries = int(_counts(error))
        again = [row.seq for row in rows if row.tries + tries < MOST_TRIES]
        self._outcome.released.append((tag, again, tries))
        self._outcome.aside += [(row.seq, str(error)) for row in rows if row.tries + tries >= MOST_TRIES]

    def _change(self, row: Row, now_us: int) -> Operation[None]:
        """Cancels or reschedules the job that waits. One that does not wait any more stays as it is."""
        yield from self._change_one(row, row.job_id, row.partition_key, now_us)
        if row.kind == "cancel":  # and the second of a debounced key
            yield from self._change_one(row, row.job_id + SECOND, row.partition_key or row.job_id, now_us)

    def _change_one(self, row: Row, id: str, partition_key: str | None, now_us: int) -> Operation[None]:
        find = partial(producer.still_waiting, id=id)
        for _ in range(LOOKS):
            found = yield from self._topics.find(row.topic, id, partition_key, find, None, changes=False)
            self._check_lease()
            shard = self._keys.shard(row.topic, 0 if found is None else found.shard)
            if found is None:  # perhaps this was done before, and is not confirmed yet
                yield from self._confirmer.changing(ask(producer.cancel(shard, id, NOBODY)))
                return
            if id != row.job_id and not codec.is_debounced(found.record):  # another key that ends so
                return
            if (yield from self._confirmer.changing(self._changed(row, id, shard, found, now_us))):
                return
        raise ServerBusy(f"job {id!r} of {row.topic!r} is being changed by others all the time")

    def _changed(self, row: Row, id: str, shard: ShardKeys, found: StillWaiting, now_us: int) -> Operation[bool]:
        """Makes the change; returns False if another job has the id by now, or another due time."""
        if row.kind == "cancel":
            cancelled = yield from ask(producer.cancel(shard, id, found.life))
            return cancelled is not CancelOutcome.NOT_FOUND
        redis_us = yield from ask(server_time_us(shard.jobs))
        until_ms = redis_us // 1000 + int(1000 * self._check_lease())
        due_ms, _ = due_at(row.due, _asked_ms(row, redis_us, now_us))
        moved = yield from ask(producer.reschedule(shard, id, str(max(0, due_ms)), found.due_ms, found.life, until_ms))
        return moved not in (RescheduleOutcome.NOT_FOUND, RescheduleOutcome.CHANGED)

    def _check_lease(self) -> float:
        """Returns for how many seconds no other courier can have taken over. Raises: NotLeader, if one may have."""
        left = self._lease_s / 2 - (self._clock.uptime() - self._began)
        if left < 0:
            raise NotLeader("this courier was held up, and another may deliver by now")
        return left

    # --- reports ---------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Tell the fleet now and then how much waits. Nothing depends on it."""
        if self._is_away or self._clock.monotonic() < self._report_at:
            return
        self._report_at = self._clock.monotonic() + REPORT_S
        info = await asyncio.to_thread(self._rows.info)
        report = {**info._asdict(), "courier": self.name, "delivered": self.delivered, "version": __version__}
        with suppress(WheelqError):
            await self._ask(self._tell(report))

    def _tell(self, report: Mapping[str, Any]) -> Operation[None]:
        seen_ms = (yield from ask(server_time_us())) // 1000
        yield from ask(heartbeats.beat_courier(self._keys, self.place, {**report, "seen_ms": seen_ms}))

    async def _close(self) -> None:
        """Write down what was delivered, and leave the rest to others."""
        with suppress(WheelqError, SQLAlchemyError):
            self._is_away = True  # claim nothing more
            if (await self._turn()).leads:
                await asyncio.to_thread(self._rows.resign)
                await self._ask(ask(heartbeats.gone(self._keys.couriers, self.place)))
        self._listener.close()
        await asyncio.to_thread(self._engine.dispose)
        await self._driver.close()


def engine_of(database: str) -> Engine:
    """Returns the engine of a courier for SQLAlchemy's URL. Raises: ConfigurationError."""
    try:
        url = make_url(database)
        is_sqlite = url.get_backend_name() == "sqlite"
        if is_sqlite and url.database in (None, "", ":memory:"):
            raise ConfigurationError(
                "--database: a database in memory ends with its process: sqlite:////PATH names a file"
            )
        options = {"connect_args": {"timeout": 30}} if is_sqlite else {"isolation_level": "READ COMMITTED"}
        engine = create_engine(url, **options)
    except (ArgumentError, ModuleNotFoundError) as error:
        remedy = (
            "URLs such as postgresql+psycopg://…, mysql+pymysql://… and sqlite:///… name a driver that is installed"
        )
        raise ConfigurationError(f"--database: {error}; {remedy}") from error
    if is_sqlite:
        event.listen(engine, "connect", read_any_text)
    if engine.dialect.is_async:
        raise ConfigurationError(f"--database: {url.drivername} is for asyncio; name another driver of this database")
    return engine


def _asked_ms(row: Row, redis_us: int, now_us: int) -> int:
    """Returns when a call was made, by Redis's clock, rounded up."""
    age_ms = max(0, now_us - row.asked_us) // 1000
    return -(-redis_us // 1000) - age_ms


def _did_nothing(error: WheelqError, sending: Sending, n: int) -> bool:
    """Whether the call for the parcel at this index, which has no answer, certainly did nothing."""
    if not sending.parcels:
        return True
    if isinstance(error, Refused):
        return n < len(sending.answers)
    return isinstance(error, Unavailable) and not sending.is_answered and len(sending.parcels) == 1


def _counts(error: WheelqError) -> bool:
    """Whether an error may be the row's own fault, and not that of the servers or of their settings."""
    waits = (AuthenticationFailed, ConfigurationError, NotLeader, NotReplicated, ServerFull, TopicUnreadable, TopicFull)
    return not (isinstance(error, waits) or is_away(error) or is_wrong_setup(error))
