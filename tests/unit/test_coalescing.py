"""Jobs that are made at the same time, while Redis does not answer: nobody waits behind a call that has no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from wheelq import JobSpec, Settings
from wheelq.base.clock import SystemClock
from wheelq.errors import InvalidInput, OutcomeUnknown, Unavailable
from wheelq.model.job import Receipt
from wheelq.producer.outbox import Outbox
from wheelq.server import coalescing
from wheelq.server.client import ServerClient
from wheelq.server.coalescing import Coalescing
from wheelq.settings import OutboxSettings


class Frozen(ServerClient):
    """Its calls have no answer until it is thawed, or are given up."""

    thawed: asyncio.Event
    given_up: bool = False

    async def schedule_spec(self, topic: str, spec: JobSpec, *_: Any) -> Receipt:
        await self.thawed.wait()
        if self.given_up:
            raise OutcomeUnknown("no reply")
        return Receipt(spec.key or "", 1, created=True)

    async def schedule_many(self, topic: str, jobs: Any, **_: Any) -> list[Receipt]:
        await self.thawed.wait()
        return [Receipt(job.key or "", 1, created=True) for job in jobs]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "STALLED_S", 0.05)
    monkeypatch.setattr(coalescing, "LOOK_S", 0.01)


def frozen(outbox: Path | None = None) -> tuple[Frozen, Coalescing]:
    settings = Settings(outbox=OutboxSettings(path=str(outbox or ""), retry_ms=60_000))
    client = Frozen.connect("unix:///nowhere.sock", settings)
    client.thawed = asyncio.Event()
    return client, Coalescing(client, settings.client, SystemClock())


async def make(coalescing: Coalescing, keys: Sequence[str], delay: float = 60) -> list[asyncio.Task[Receipt]]:
    specs = [JobSpec(key=key, delay=delay) for key in keys]
    tasks = [asyncio.create_task(coalescing.schedule("orders", spec, "keep")) for spec in specs]
    await asyncio.sleep(0)
    return tasks


async def test_those_behind_a_call_without_an_answer_are_soon_told_that_nothing_was_done() -> None:
    client, coalescing = frozen()
    first = await make(coalescing, ["first"])
    behind = await make(coalescing, ["a", "b"])
    for answer in behind:
        with pytest.raises(Unavailable, match="nothing was done"):
            await answer
    later = await make(coalescing, ["c"])
    with pytest.raises(Unavailable):
        await later[0]
    client.thawed.set()
    assert (await first[0]).id == "first", "its own outcome is waited for"
    assert (await (await make(coalescing, ["d"]))[0]).id == "d"


async def test_after_a_call_that_failed_those_behind_the_next_are_let_go_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, coalescing = frozen()
    first = await make(coalescing, ["first"])
    client.given_up = True
    client.thawed.set()
    with pytest.raises(OutcomeUnknown):
        await first[0]
    client.thawed.clear()
    monkeypatch.setattr("wheelq.server.coalescing.STALLED_S", 60.0)
    probe, behind = await make(coalescing, ["probe"]), await make(coalescing, ["behind"])
    with pytest.raises(Unavailable):
        await behind[0]
    client.given_up = False
    client.thawed.set()
    assert (await probe[0]).id == "probe"


async def test_with_an_outbox_they_are_kept_and_a_bad_one_among_them_is_told(tmp_path: Path) -> None:
    client, coalescing = frozen(tmp_path / "outbox.db")
    first = await make(coalescing, ["first"])
    good, bad = await make(coalescing, ["good"]), await make(coalescing, ["bad"], delay=-1)
    assert (await good[0]).in_outbox
    with pytest.raises(InvalidInput) as caught:
        await bad[0]
    assert caught.value.field == "delay"
    assert Outbox(OutboxSettings(path=str(tmp_path / "outbox.db"))).info().jobs == 1
    client.thawed.set()
    await first[0]
    await client.close()
