"""Jobs scheduled in the transactions of a database, while couriers are killed and Redis is away and then full.

    python -m loadtest.outbox --database postgresql+psycopg://postgres@127.0.0.1/test [--transactions 20000]
    python -m loadtest.outbox --database … --measure [--transactions 10000] [--backlog 200000]

Threads make transactions, of which some deadlock, a third of which is rolled back. Each schedules one job, due at
once or in an hour, and later transactions cancel some of the latter. Three couriers run, of which one is killed with
-9 every 200 ms. Redis is killed, away and then full. At the end exactly the jobs of committed transactions must have
become ready, once each, and exactly those must wait that were not cancelled.

With --measure nothing is killed: the time from commit to Redis, the speed with a backlog, and the price of the call.
The tables are new, have unique names, and are dropped at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import select as polling
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, func, insert, select, update
from sqlalchemy.exc import DBAPIError

from loadtest.command import parser
from wheelq import Client, JobSpec, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings
from wheelq.sinks.sql import Trouble, trouble_of
from wheelq.sql import SqlOutbox
from wheelq.sql.courier import SqlCourier, engine_of
from wheelq.transport import Address, AsyncTransport, Transport

TOPIC = "orders"
SHARDS = 4
COURIERS, WRITERS, ACCOUNTS = 3, 4, 12
KILL_S = 0.2
LEASE_S = 0.5
"""Less than usual, because the courier that delivers is killed all the time."""
HOUR_S = 3_600
PATIENCE_S = 1_800.0


@dataclass(slots=True)
class Books:
    """What committed transactions have asked for."""

    now: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    conflicts: int = 0


@contextmanager
def placed(database: str) -> Iterator[tuple[Engine, SqlOutbox, Table, str]]:
    """A new outbox, and a table whose rows the transactions lock in any order."""
    engine, name = engine_of(database), f"outbox_{secrets.token_hex(4)}"
    outbox = SqlOutbox(engine, table=name)
    outbox.create()
    accounts = Table(
        f"{name}_accounts",
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("n", Integer),
    )
    accounts.create(engine)
    try:
        with engine.begin() as connection:
            connection.execute(insert(accounts), [{"id": n, "n": 0} for n in range(ACCOUNTS)])
        yield engine, outbox, accounts, name
    finally:
        accounts.drop(engine)
        outbox._tables.rows.metadata.drop_all(engine)
        engine.dispose()


def courier(url: str, database: str, table: str) -> None:
    """A courier's process."""
    settings, transport = Settings(topic=TopicSettings(shards=SHARDS)), AsyncTransport(Address(url))
    asyncio.run(SqlCourier(engine_of(database), transport, settings, table=table, lease_s=LEASE_S).run())


class Couriers:
    """Some couriers, each in a process. They are forks of a process that has imported everything and has no threads."""

    def __init__(self, database: str, table: str, number: int, kill_s: float | None = None) -> None:
        """Every `kill_s`, one of them is killed with -9, and replaced."""
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._writing)
            _keep(reading, lambda url: courier(url, database, table), number, kill_s)

    def start(self, url: str) -> None:
        os.write(self._writing, f"{url}\n".encode())

    def stop(self) -> None:
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _keep(reading: int, run: Callable[[str], None], number: int, kill_s: float | None) -> NoReturn:
    """Keep couriers running from the line with the URL until the end of the pipe."""
    url, running = os.read(reading, 1_000).decode().strip(), list[int]()
    while url:
        while len(running) < number:
            running.append(os.fork())
            if not running[-1]:
                run(url)
                os._exit(0)
        if polling.select([reading], [], [], kill_s)[0]:
            break
        _kill(running.pop(random.randrange(number)))
    for pid in running:
        _kill(pid)
    os._exit(0)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def write(engine: Engine, outbox: SqlOutbox, accounts: Table, number: int, count: int, books: Books) -> None:
    """Make transactions; a third is rolled back."""
    dice = random.Random(number)
    mine: list[str] = []
    for n in range(count):
        id, is_now, is_kept = f"{number}-{n}", dice.random() < 0.5, dice.random() >= 1 / 3
        victim = mine.pop(dice.randrange(len(mine))) if mine and dice.random() < 0.3 else None
        first, second = dice.sample(range(ACCOUNTS), 2)

        def transact(connection: Connection) -> None:
            connection.execute(update(accounts).where(accounts.c.id == first).values(n=accounts.c.n + 1))  # noqa: B023
            outbox.schedule(connection, TOPIC, {"n": n}, delay=0 if is_now else HOUR_S, key=id)  # noqa: B023
            connection.execute(update(accounts).where(accounts.c.id == second).values(n=accounts.c.n - 1))  # noqa: B023
            if victim is not None:  # noqa: B023
                outbox.cancel(connection, TOPIC, victim)  # noqa: B023

        repeated(engine, transact, books, is_kept)
        if is_kept:
            (books.now if is_now else books.later).add(id)
            if not is_now:
                mine.append(id)
        if victim is not None and is_kept:
            books.cancelled.add(victim)


def repeated(engine: Engine, transact: Callable[[Connection], None], books: Books, is_kept: bool) -> None:
    """Make a transaction until it is not in conflict with another."""
    while True:
        try:
            with engine.connect() as connection:
                transact(connection)
                connection.commit() if is_kept else connection.rollback()
                return
        except DBAPIError as error:
            if trouble_of(error) is not Trouble.CONFLICT:
                raise
            books.conflicts += 1


def entries(transport: Transport, shard: ShardKeys) -> list[str]:
    """The ids of the jobs that have become ready."""
    found: list[str] = []
    after = "-"
    while page := transport.send(command("XRANGE", shard.ready, after, "+", "COUNT", 5_000, read=list)):
        found += [fields[1].decode() for _, fields in page]
        after = f"({page[-1][0].decode()}"
    return found


def torture(database: str, transactions: int, away_s: float, full_s: float) -> bool:
    """One run; returns whether every promise was kept."""
    books = Books()
    shards = [Keys().shard(TOPIC, n) for n in range(SHARDS)]
    with tempfile.TemporaryDirectory() as directory, placed(database) as (engine, outbox, accounts, name):
        couriers = Couriers(database, name, COURIERS, KILL_S)
        server = EmbeddedServer(Path(directory), fsync="always")
        server.start()
        couriers.start(server.url)
        count = transactions // WRITERS
        writers = [
            threading.Thread(target=write, args=(engine, outbox, accounts, n, count, books)) for n in range(WRITERS)
        ]
        began = time.monotonic()
        for writer in writers:
            writer.start()
        trouble = threading.Thread(target=_trouble, args=(server, away_s, full_s))
        trouble.start()
        left = 1
        while left or trouble.is_alive() or any(writer.is_alive() for writer in writers):
            time.sleep(0.1)
            with engine.connect() as connection:
                left = connection.scalar(select(func.count()).select_from(outbox._tables.rows)) or 0
            if time.monotonic() - began > PATIENCE_S:
                break
        took = time.monotonic() - began
        couriers.stop()
        transport = Transport(Address(server.url))
        ready = Counter(id for shard in shards for id in entries(transport, shard))
        waits = {
            id.decode() for shard in shards for id in transport.send(command("ZRANGE", shard.delayed, 0, -1, read=list))
        }
        transport.close()
        server.stop()
    wanted = books.later - books.cancelled
    wrong = {
        "lost": len(books.now - ready.keys()) + len(wanted - waits),
        "doubled": sum(n - 1 for n in ready.values()),
        "of rolled-back transactions": len(ready.keys() - books.now) + len(waits - books.later),
        "cancelled, and still there": len(waits & books.cancelled),
        "left in the table": left,
    }
    print(
        f"{transactions:,} transactions in {took:.0f} s, {books.conflicts:,} conflicts: "
        f"{len(books.now):,} ready, {len(wanted):,} wait, {len(books.cancelled):,} cancelled"
    )
    print(", ".join(f"{what}: {n}" for what, n in wrong.items()))
    return not any(wrong.values())


def _trouble(server: EmbeddedServer, away_s: float, full_s: float) -> None:
    """Redis is killed and away for some seconds, and then full for some."""
    time.sleep(5)
    server.kill()
    time.sleep(away_s)
    server.start()
    transport = Transport(Address(server.url))
    transport.send(command("CONFIG SET", "maxmemory", "1", read=bool))
    time.sleep(full_s)
    transport.send(command("CONFIG SET", "maxmemory", "0", read=bool))
    transport.close()


# Measuring


def measure(database: str, transactions: int, backlog: int, rate: int) -> None:
    """Print the figures."""
    with placed(database) as (engine, outbox, accounts, name), EmbeddedServer(appendonly=False) as server:
        couriers = Couriers(database, name, 1)
        _price(engine, outbox, accounts)
        with engine.begin() as connection:
            for n in range(0, backlog, 10_000):
                specs = [JobSpec({"n": n + m}, delay=HOUR_S) for m in range(min(10_000, backlog - n))]
                outbox.schedule_many(connection, "backlog", specs)
        couriers.start(server.url)
        with Client.connect(server.url) as client:
            waiting, first, begun = 0, 0.0, 0
            while waiting < backlog:
                time.sleep(0.05)
                with suppress(Exception):
                    waiting = client.topic("backlog").waiting
                if waiting and not first:
                    first, begun = time.monotonic(), waiting
        print(f"backlog of {backlog:,}: {(backlog - begun) / (time.monotonic() - first):,.0f} jobs/s")
        _latency(engine, outbox, server.url, transactions, rate)
        couriers.stop()


def _price(engine: Engine, outbox: SqlOutbox, accounts: Table) -> None:
    """What a call costs beside a bare INSERT in the same transaction."""
    rounds = 1_000
    with engine.connect() as connection:
        for what, act in (
            ("bare INSERT", lambda n: connection.execute(insert(accounts), {"id": 1_000 + n, "n": 0})),
            ("outbox.schedule", lambda n: outbox.schedule(connection, TOPIC, {"n": n}, delay=HOUR_S)),
        ):
            began = time.perf_counter()
            for n in range(rounds):
                act(n)
            print(f"{what}: {(time.perf_counter() - began) / rounds * 1e6:.0f} µs")
        connection.rollback()


def _latency(engine: Engine, outbox: SqlOutbox, url: str, transactions: int, rate: int) -> None:
    """From the end of a commit to the moment when Redis has stored the job, at a rate of transactions."""
    committed: dict[str, float] = {}
    clock = threading.Lock()
    began, numbers = time.monotonic(), iter(range(transactions))

    def work() -> None:
        while True:
            with clock:
                n = next(numbers, None)
            if n is None:
                return
            time.sleep(max(0.0, began + n / rate - time.monotonic()))
            with engine.begin() as connection:
                outbox.schedule(connection, "timed", {"n": n}, delay=HOUR_S, key=str(n))
            committed[str(n)] = time.time() * 1000

    threads = [threading.Thread(target=work) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    transport, late = Transport(Address(url)), list[float]()
    while len(late) < transactions:
        time.sleep(0.2)
        late = []
        for n in range(SHARDS):
            late += _late(transport.send(command("HGETALL", Keys().shard("timed", n).jobs, read=list)), committed)
    transport.close()
    late.sort()
    p50, p99 = (late[len(late) * share // 100] for share in (50, 99))
    print(f"{transactions / took:,.0f} transactions/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms, at most {late[-1]:.1f} ms")


def _late(found: list[bytes], committed: dict[str, float]) -> list[float]:
    pairs = zip(found[::2], found[1::2], strict=True)
    return [int.from_bytes(record[1:7], "big") - committed[id.decode()] for id, record in pairs]


def options_of() -> argparse.ArgumentParser:
    options = parser("outbox", __doc__)
    options.add_argument("--database", required=True, help="SQLAlchemy's URL")
    options.add_argument("--transactions", type=int, default=20_000)
    options.add_argument("--away", type=float, default=20.0, help="seconds for which Redis is away")
    options.add_argument("--full", type=float, default=10.0, help="seconds for which it is full")
    options.add_argument("--measure", action="store_true")
    options.add_argument("--backlog", type=int, default=200_000)
    options.add_argument("--rate", type=int, default=500, help="transactions per second")
    return options


def main() -> int:
    chosen = options_of().parse_args()
    if chosen.measure:
        measure(chosen.database, chosen.transactions, chosen.backlog, chosen.rate)
        return 0
    return 0 if torture(chosen.database, chosen.transactions, chosen.away, chosen.full) else 1


if __name__ == "__main__":
    sys.exit(main())
