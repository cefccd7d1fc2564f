"""Redis is away for a while under a delay service that people go on asking (`loadtest.outage`, in small)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.outage import How, Play, outage
from tests.transports import ALWAYS, Unreachable

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_through_an_outbox_every_job_that_was_answered_for_is_promoted_exactly_once(
    server_binary: Path, tmp_path: Path, how: How
) -> None:
    with Play(tmp_path, server_binary, outbox=True) as play:
        told = await outage(play, how, seconds=4, rate=40)
        verdict = play.verdict(told, patience_s=90)
        assert verdict.is_clean, verdict
        assert told.statuses[202] > 0, "some were kept while Redis was away"


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_without_an_outbox_nothing_is_lost_that_was_accepted_and_nothing_done_that_was_refused(
    server_binary: Path, tmp_path: Path, how: How
) -> None:
    with Play(tmp_path, server_binary, outbox=False) as play:
        told = await outage(play, how, seconds=4, rate=40)
        verdict = play.verdict(told, patience_s=90)
        assert verdict.is_clean, verdict
        assert told.statuses[201] > 0
        assert told.statuses[202] == 0


async def test_a_server_that_is_away_is_logged_once_and_not_at_every_request(
    serve: Callable[..., Any], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    http = await serve(Unreachable(times=ALWAYS))
    for _ in range(20):
        assert (await http.post(f"/v1/topics/{topic}/jobs", json={"delay": 60})).status_code == 503
    said = [record.getMessage() for record in caplog.records if record.name == "wheelq.server"]
    assert len(said) == 1
    assert said[0].startswith("requests cannot be served: ")
