"""Redis is away for a while under a delay service that people go on asking (`loadtest.outage`, in small)."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.outage import How, Play, outage

pytestmark = pytest.mark.timeout(300)


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
