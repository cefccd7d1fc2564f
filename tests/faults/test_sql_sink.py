"""Jobs are stored in a database exactly once, while workers are killed. 50,000 of them with `-m soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.sinks import Show
from tests.databases import DATABASES, database_url
from wheelq.embedded import EmbeddedServer


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "has_ledger"), [("sqlite", True), ("mysql", False), ("postgres", True)])
def test_workers_killed_while_they_store_leave_each_row_once_and_bury_the_bad_ones(
    tmp_path: Path, kind: str, has_ledger: bool
) -> None:
    """4,000 jobs, 4 of which the table refuses, two workers, two kills."""
    with EmbeddedServer() as server:
        show = Show(database_url(kind, tmp_path), server.url, tmp_path, has_ledger=has_ledger)
        stored = show.run(4_000, poisoned=4, kills=2, patience=100)
    assert stored.is_exact, f"{stored}\n{show.fleet.output()}"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("has_ledger", [False, True])
@pytest.mark.parametrize("kind", DATABASES)
def test_fifty_thousand_jobs_and_six_kills_leave_fifty_thousand_rows(
    tmp_path: Path, kind: str, has_ledger: bool
) -> None:
    with EmbeddedServer() as server:
        show = Show(database_url(kind, tmp_path), server.url, tmp_path, has_ledger=has_ledger)
        stored = show.run(50_000, kills=6, patience=500)
    assert stored.is_exact, f"{stored}\n{show.fleet.output()}"
