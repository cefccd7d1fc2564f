"""Jobs that are made at the same time: nobody waits behind a call that has no answer, and each has its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from wheelq import JobSpec, Settings
from wheelq.base.clock import SystemClock, wall_ms
from wheelq.errors import (
    InvalidInput,
    NotReplicated,
    OutcomeUnknown,
    PartlyScheduled,
    ServerFull,
    TopicFull,
    Unavailable,
    WheelqError,
)
from wheelq.model.job import Receipt
from wheelq.producer.outbox.store import Outbox
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


async def test_calls_behind_one_without_an_answer_soon_learn_that_nothing_was_done() -> None:
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


async def test_calls_behind_the_next_one_are_released_sooner_after_a_failure(
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


async def test_the_delay_of_one_that_is_kept_counts_from_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted from when the job was kept, up to seconds later."""
    monkeypatch.setattr(coalescing, "STALLED_S", 0.4)
    client, sender = frozen(tmp_path / "outbox.db")
    first, early = await make(sender, ["first"]), await make(sender, ["early"])
    came_ms = wall_ms()
    await asyncio.sleep(0.2)
    later = await make(sender, ["later"])
    late_ms = (await later[0]).due_ms - (await early[0]).due_ms
    assert late_ms >= 200
    assert (await early[0]).due_ms <= came_ms + 60_000
    client.thawed.set()
    await first[0]
    await client.close()


# Of an error about many jobs, each gets what concerns it


SPECS = [JobSpec(key="a", delay=60), JobSpec(delay=60), JobSpec(key="c", delay=60)]
A = Receipt("a", 1, created=True)


class Failing(ServerClient):
    """Its calls end in this error."""

    error: WheelqError

    async def schedule_specs(self, topic: str, specs: Sequence[JobSpec], *_: Any) -> list[Receipt]:
        raise self.error


async def outcomes(error: WheelqError) -> list[coalescing.Outcome]:
    """Those of three jobs, of which the second has no key of its own, after a call that ended in `error`."""
    client = Failing.connect("unix:///nowhere.sock", Settings())
    client.error = error
    return await Coalescing(client, Settings().client, SystemClock()).schedule_each("orders", SPECS, "keep")


async def test_only_the_jobs_that_the_full_topic_refused_fail() -> None:
    first, second, third = await outcomes(TopicFull("orders", {1: "made-up", 2: "c"}, {0: A}))
    assert first == A
    for outcome, id in ((second, "made-up"), (third, "c")):
        assert isinstance(outcome, TopicFull)
        assert (outcome.refused, outcome.receipts) == ({0: id}, {})
        assert "a job was refused" in str(outcome)


async def test_each_job_of_a_broken_call_learns_its_own_outcome() -> None:
    """One that was not sent is not told that it may have happened."""
    lost = "schedule was sent, and no reply came: it may or may not have happened"
    first, second, third = await outcomes(PartlyScheduled(lost, {1: "made-up"}, {0: A}))
    assert first == A
    assert isinstance(second, OutcomeUnknown)
    assert (second.ids, str(second)) == (("made-up",), lost)
    assert isinstance(third, Unavailable)
    assert "nothing was done" in str(third)
    assert "may" not in str(third)


async def test_a_job_that_was_refused_half_way_is_told_why() -> None:
    partly = PartlyScheduled("full", {}, {0: A})
    partly.__cause__ = ServerFull("full")
    first, *others = await outcomes(partly)
    assert first == A
    assert others == [partly.__cause__] * 2


@pytest.mark.parametrize(
    ("ids", "told"), [((), [("a",), (), ("c",)]), (("a", "made-up", "c"), [("a",), ("made-up",), ("c",)])]
)
async def test_an_unknown_outcome_names_no_job_of_another_caller(
    ids: tuple[str, ...], told: list[tuple[str, ...]]
) -> None:
    found = await outcomes(OutcomeUnknown("no reply", ids))
    assert [outcome.ids for outcome in found if isinstance(outcome, OutcomeUnknown)] == told


async def test_a_missing_confirmation_is_told_of_one_job() -> None:
    receipts = [Receipt(id, 1, created=True) for id in ("a", "made-up", "c")]
    for outcome, receipt in zip(await outcomes(NotReplicated(receipts, 0, 1, "no replica")), receipts, strict=True):
        assert isinstance(outcome, NotReplicated)
        assert outcome.receipts == [receipt]
        assert str(outcome) == "the job is scheduled, but only 0 of 1 confirmed it: no replica"
