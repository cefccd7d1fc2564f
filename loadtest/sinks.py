"""Jobs stored in a database exactly once, while workers are killed.

    python -m loadtest.sinks --database mysql+pymysql://root@127.0.0.1/test [--jobs 50000] [--kills 6] [--ledger]

There are one wheelq server, one scheduler and two workers with a `SqlSink`. After each further part of the rows, a
worker is killed with -9 and replaced. The table refuses the rows of some jobs: these must end among the dead, and all
others in the table, exactly once. The floor is measured too: the same rows by bare `executemany`, and the sink without
kills.

The table is new, has a unique name, and is dropped at the end.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, func, insert, select

from loadtest.command import parser
from loadtest.torture.fleet import Fleet, run_until_stopped
from wheelq import Client, JobSpec, Retry, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.model.topic import TopicInfo
from wheelq.sinks import SqlSink

TOPIC = "stored"
WORKER = "sink"
"""The first argument of a child process."""
BATCH = 500
NOTE = "an order of three chairs and a table"
RETRY = Retry(max_attempts=2, base=0.1)


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of one run."""

    jobs: int
    poisoned: int
    kills: int
    rows: int
    distinct: int
    dead: int
    left: int
    """Jobs that are neither stored as rows nor dead."""
    rows_per_s: float
    """From the first row to the last."""

    @property
    def is_exact(self) -> bool:
        good = self.jobs - self.poisoned
        return (self.rows, self.distinct, self.dead, self.left) == (good, good, self.poisoned, 0)


def orders_table(name: str) -> Table:
    """The table for the jobs. `n` is not unique, so that a job that is stored twice is visible."""
    return Table(
        name,
        MetaData(),
        Column("row_id", Integer, primary_key=True, autoincrement=True),
        Column("job_id", String(64), unique=True),
        Column("n", Integer, nullable=False),
        Column("note", String(100), nullable=False),
    )


@contextmanager
def made(engine: Engine, table: Table, *others: Table) -> Iterator[None]:
    """Creates the table for the block; the other tables are dropped with it."""
    table.create(engine)
    try:
        yield
    finally:
        for one in (table, *others):
            one.drop(engine, checkfirst=True)


def sink_for(database: str | Engine, table: Table, has_ledger: bool) -> SqlSink:
    """Returns the sink under test. With a ledger, the table itself does not say which jobs are stored."""
    ledger = f"{table.name}_l"
    if has_ledger:
        return SqlSink(database, table, row=lambda job: {"job_id": None, **job.payload}, ledger=ledger)
    return SqlSink(database, table, unique="job_id")


class Show:
    """One server, one fleet, one table."""

    def __init__(self, database: str, server_url: str, directory: Path, *, has_ledger: bool = False) -> None:
        self.fleet = Fleet(server_url, directory)
        self.engine = create_engine(database)
        self.table = orders_table(f"wheelq_show_{secrets.token_hex(4)}")
        self.ledger = Table(f"{self.table.name}_l", MetaData())
        self._database = database
        self._mode = "ledger" if has_ledger else "unique"
        self._client = Client.connect(server_url, Settings())

    def run(self, jobs: int, *, poisoned: int = 0, kills: int = 0, workers: int = 2, patience: float = 300) -> Stored:
        """Schedule, store, kill and count."""
        every = jobs // poisoned if poisoned else 0
        specs = [JobSpec({"n": n, "note": None if every and n % every == 0 else NOTE}, delay=0) for n in range(jobs)]
        with self.fleet, made(self.engine, self.table, self.ledger):
            self._client.schedule_many(TOPIC, specs)
            self.fleet.start("scheduler")
            names = [self._start_worker() for _ in range(workers)]
            deadline = time.monotonic() + patience
            killed, rows, first_rows, first_at, last_at = 0, 0, 0, 0.0, 0.0
            while time.monotonic() < deadline:
                seen, now = self._count(func.count()), time.monotonic()
                if seen and not first_rows:
                    first_rows, first_at = seen, now
                if seen > rows:
                    rows, last_at = seen, now
                if killed < kills and rows >= (killed + 1) * jobs // (kills + 1):
                    self.fleet.kill(names.pop(0))
                    names.append(self._start_worker())
                    killed += 1
                if rows >= jobs - poisoned and killed == kills and self._left(self._info()) == 0:
                    break
                time.sleep(0.02)
            info = self._info()
            return Stored(
                jobs=jobs,
                poisoned=poisoned,
                kills=killed,
                rows=self._count(func.count()),
                distinct=self._count(func.count(self.table.c.n.distinct())),
                dead=info.dead,
                left=self._left(info),
                rows_per_s=(rows - first_rows) / max(last_at - first_at, 0.001),
            )

    def floor(self, rows: int) -> float:
        """Rows per second of a bare executemany in transactions of the same size."""
        many = [{"job_id": f"{n:026}", "n": n, "note": NOTE} for n in range(rows)]
        with made(self.engine, self.table):
            began = time.monotonic()
            for first in range(0, rows, BATCH):
                with self.engine.begin() as connection:
                    connection.execute(insert(self.table), many[first : first + BATCH])
            return rows / (time.monotonic() - began)

    def _start_worker(self) -> str:
        return self.fleet.start(WORKER, self._database, self.table.name, self._mode, module="loadtest.sinks")

    def _count(self, what: Any) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(select(what).select_from(self.table)) or 0)

    def _info(self) -> TopicInfo:
        [info] = [info for info in self._client.topics() if info.name == TOPIC]
        return info

    @staticmethod
    def _left(info: TopicInfo) -> int:
        return info.waiting + info.ready + info.running + info.retrying


def run_worker(url: str, settings_path: str, database: str, table: str, mode: str) -> None:
    """Run a worker: the code of a child process."""
    worker = Worker.connect(url, settings=Settings.load(settings_path))
    sink = sink_for(database, orders_table(table), mode == "ledger")
    worker.batch_handler(TOPIC, max_size=BATCH, max_wait=0.05, retry=RETRY)(sink)
    asyncio.run(run_until_stopped(worker))


def main() -> int:
    """Run with kills, then measure; returns 1 if a row was missing or stored twice."""
    arguments = parser("sinks", __doc__)
    arguments.add_argument("--database", required=True)
    arguments.add_argument("--jobs", type=int, default=50_000)
    arguments.add_argument("--kills", type=int, default=6)
    arguments.add_argument("--poisoned", type=int, default=5)
    arguments.add_argument("--ledger", action="store_true", help="identities in a ledger, not in the table")
    options = arguments.parse_args()

    def run(**how: int) -> tuple[Stored, float]:
        with EmbeddedServer() as server, tempfile.TemporaryDirectory() as directory:
            show = Show(options.database, server.url, Path(directory), has_ledger=options.ledger)
            stored = show.run(options.jobs, **how)
            return stored, show.floor(options.jobs)

    stored, _ = run(kills=options.kills, poisoned=options.poisoned)
    print(stored, "EXACT" if stored.is_exact else "NOT EXACT", flush=True)
    calm, floor = run(workers=1)
    print(f"sink {calm.rows_per_s:,.0f} rows/s, bare executemany {floor:,.0f}: ratio {calm.rows_per_s / floor:.2f}")
    return not (stored.is_exact and calm.is_exact)


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        run_worker(*sys.argv[2:])
    else:
        sys.exit(main())
