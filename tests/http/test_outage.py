"""Redis is away for a while under a delay service that people go on asking (`loadtest.outage`, in small)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.outage import How, Play, outage
from loadtest.servers.nodes import free_port
from tests.http.conftest import calling
from tests.transports import ALWAYS, Unreachable
from wheelq import Settings
from wheelq.server.service import Service

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("outbox", [pytest.param(True, marks=pytest.mark.long), False], ids=["outbox", "no outbox"])
@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_what_was_accepted_is_promoted_exactly_once_and_what_was_refused_is_not_done(
    server_binary: Path, tmp_path: Path, how: How, outbox: bool
) -> None:
    with Play(tmp_path, server_binary, outbox=outbox) as play:
        told = await outage(play, how, seconds=4, rate=40)
        verdict = play.verdict(told, patience_s=90)
        assert verdict.is_clean, verdict
        assert told.statuses[201] > 0 or outbox
        assert (told.statuses[202] > 0) == outbox, "with an outbox, some were kept while Redis was away"


async def test_a_server_that_is_away_is_logged_once_and_not_at_every_request(
    serve: Callable[..., Any], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    http = await serve(Unreachable(times=ALWAYS))
    for _ in range(20):
        assert (await http.post(f"/v1/topics/{topic}/jobs", json={"delay": 60})).status_code == 503
    said = [record.getMessage() for record in caplog.records if record.name == "wheelq.server"]
    assert len(said) == 1
    assert said[0].startswith("requests cannot be served: ")


async def test_callers_are_not_told_the_address_of_redis_and_the_log_is(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    service = Service.connect(f"redis://127.0.0.1:{port}", Settings())
    async with calling(service) as http:
        answers = [await http.get(path) for path in ("/v1/topics/orders/jobs/a", "/topics/orders", "/", "/readyz")]
    assert [answer.status_code for answer in answers] == [503] * 4
    assert not [answer.text for answer in answers if str(port) in answer.text]
    assert f"requests cannot be served: no connection to redis://127.0.0.1:{port}" in caplog.text
