"""The scenarios of the bench, in small: each follows its jobs by their ids, and says what it was asked for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.bench import __main__ as bench
from loadtest.bench import following, growth, highest, killed, network, payload, rate, shards, shares, waiting
from loadtest.bench.figures import Outcome
from loadtest.bench.stage import QUICK, Sizes, Stage
from loadtest.bench.stage import waiting as waiting_jobs
from loadtest.servers import measured
from wheelq import Client

SMALL = Sizes(
    rounds=1,
    bulk=2_000,
    steady_s=1,
    drain=2_000,
    rate_s=1,
    payload_bytes=(4_096,),
    growth_waiting=(),
    growth_in_topics=1_000,
    growth_topics=(5,),
    growth_s=1,
    shares_s=1,
    shards=3,
    highest_s=1,
    workers=2,
)


@pytest.fixture
def stage(url: str) -> Iterator[Stage]:
    with Stage.on(url, SMALL, "uvloop") as there:
        yield there


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first job is due soon after the last was scheduled: it may be late here."""
    for module in (following, highest, network, payload, rate, shares):
        monkeypatch.setattr(module, "AHEAD_MS", 200)
    monkeypatch.setattr(growth, "ADDED", 500)


def names(outcome: Outcome) -> str:
    return " | ".join(figure.name for figure in outcome.figures)


def test_highest_tells_the_lateness_at_a_rate(stage: Stage) -> None:
    wrong = Counter[str]()
    assert highest.p99_at(stage, "orders", 300, wrong) > 0
    assert not any(wrong.values())


def test_payloads_of_each_size_stand_beside_a_floor_of_that_size(stage: Stage) -> None:
    outcome = payload.payload(stage)
    assert outcome.is_correct, outcome.verdict()
    assert "4,096 bytes: schedule_many" in names(outcome)
    assert all(figure.floor for figure in outcome.figures if figure.unit == "jobs/s")


@pytest.mark.parametrize("size", sorted({*Sizes().payload_bytes, *QUICK.payload_bytes}))
def test_the_default_settings_accept_payloads_of_each_size(url: str, size: int) -> None:
    with Client.connect(url) as client:
        assert len(client.schedule_many("orders", waiting_jobs(3, 60, size))) == 3


def test_the_other_scenarios_are_measured_when_one_fails(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(stage: Stage) -> Outcome:
        raise RuntimeError("a broken scenario")

    monkeypatch.setattr(bench, "SCENARIOS", {"broken": broken, "fine": lambda stage: Outcome("fine", (), 3)})
    monkeypatch.setattr(bench.floor, "measure", lambda url, rounds: None)
    _, (failed, fine) = bench.run(url, ["broken", "fine"], SMALL, "uvloop")
    assert not failed.is_correct
    assert failed.verdict() == "WRONG: of 0 jobs 1 failed"
    assert fine.is_correct
    assert "a broken scenario" in capsys.readouterr().err


def test_growth_counts_what_waits_and_what_ran_in_all_topics(stage: Stage) -> None:
    outcome = growth.growth(stage)
    assert outcome.is_correct, outcome.verdict()
    (point,) = outcome.points
    assert (point["waiting"], point["topics"]) == (1_000, 5)
    assert point["p99_ms"] >= point["p50_ms"]
    assert point["peak_mb"] > 0


@pytest.mark.long
def test_a_topic_of_many_shards_stands_beside_one_of_a_single_shard(stage: Stage) -> None:
    outcome = shards.shards(stage)
    assert outcome.is_correct, outcome.verdict()
    assert all(figure.value > 0 and figure.floor for figure in outcome.figures)


@pytest.mark.long
def test_followers_start_after_the_job_before_them_and_a_bundle_ends(stage: Stage) -> None:
    outcome = following.following(stage)
    assert outcome.is_correct, outcome.verdict()
    assert outcome.jobs == 3 * (1_000 + 500) + 2 * SMALL.drain + 1
    assert all(figure.value > 0 for figure in outcome.figures)


@pytest.mark.long
def test_jobs_of_a_killed_worker_run_again(stage: Stage) -> None:
    outcome = killed.many_killed(stage)
    assert outcome.is_correct, outcome.verdict()
    first, last = outcome.figures
    assert 0 < first.value <= last.value


def test_a_delay_of_a_millisecond_each_way_makes_jobs_at_least_as_late(stage: Stage) -> None:
    outcome = network.network(stage)
    assert outcome.is_correct, outcome.verdict()
    p50 = outcome.figures[0]
    assert p50.value >= network.DELAY_MS, "a job is promoted, and read, over the delayed connection"
    assert p50.floor is not None


def test_workers_side_by_side_run_every_job_between_them(stage: Stage) -> None:
    outcome = shares.shares(stage)
    assert outcome.is_correct, outcome.verdict()
    assert all(0 <= figure.value <= 1 for figure in outcome.figures if figure.unit == "×")
    assert "2 workers, 1,300/s" in names(outcome)


def test_bulk_is_measured_in_one_call_and_in_calls_of_500(stage: Stage) -> None:
    outcome = waiting.bulk(stage)
    assert outcome.is_correct, outcome.verdict()
    assert outcome.jobs == 2 * SMALL.bulk


def test_an_installed_server_is_found_behind_that_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged, installed = tmp_path / "venv", tmp_path / "usr"
    for folder in (packaged, installed):
        folder.mkdir()
        (folder / "redis-server").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{packaged}{os.pathsep}{installed}")
    monkeypatch.setattr(measured.sysconfig, "get_path", lambda name: str(packaged))
    assert measured.present()["redis-server"] == str(installed / "redis-server")
