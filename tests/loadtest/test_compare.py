"""The comparison with other queues, in small: wheelq's own adapter, and what is said of a queue that is not here."""

from __future__ import annotations

import sys
from collections import Counter
from math import inf
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from loadtest.compare import __main__ as command
from loadtest.compare.peers import Absent, Peer, find
from loadtest.compare.play import Play
from loadtest.compare.scenarios import Sizes, kill, paced

SMALL = Sizes(rounds=1, paced_s=1, kill=20)


def test_wheelqs_adapter_schedules_and_runs_each_job_once_and_not_early(server_binary: Path) -> None:
    with Play.of(find("wheelq"), server_binary) as play:
        shown = paced(play, SMALL)
    assert shown.wrong == {"lost": 0, "early": 0, "doubled": 0}
    assert 0 <= shown.figures["paced, p50 ms"] <= shown.figures["paced, p99 ms"] < inf


@pytest.mark.soak
def test_the_jobs_of_a_killed_worker_are_done_by_the_next(server_binary: Path) -> None:
    with Play.of(find("wheelq"), server_binary) as play:
        shown = kill(play, SMALL)
    assert shown.wrong == {"lost": 0}
    assert shown.figures["kill, s until all are done"] < inf


def test_a_queue_in_python_that_is_not_installed_is_told_with_what_to_install() -> None:
    with pytest.raises(Absent, match=r"streaq is not installed for .*: run `.* -m pip install streaq uvloop`"):
        find("streaq", sys.executable)


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(Absent, match="/nowhere/python cannot be started: No such file"):
        find("streaq", "/nowhere/python")


def test_a_queue_in_node_needs_node_or_a_directory_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(Absent, match=r"npm install bullmq|needs node"):
        find("bullmq", node_modules=tmp_path)


def test_a_package_that_a_queue_in_node_needs_is_named(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "bullmq" / "package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"version": "1.0"}')
    with pytest.raises(Absent, match=r"ioredis is not installed in .*: run `npm install bullmq ioredis`|needs node"):
        find("bullmq", node_modules=tmp_path)


@pytest.mark.parametrize("failing", ["other", "wheelq"])
def test_a_queue_that_fails_does_not_end_the_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, failing: str
) -> None:
    """Unless it is wheelq."""
    peer = Peer(failing, "1.0", (sys.executable, "-c", "raise SystemExit(3)"), tmp_path)
    monkeypatch.setattr(command, "find", lambda *_: peer)
    monkeypatch.setattr(sys, "argv", ["compare", "--peer", "streaq", "--scenario", "bulk", "--quick"])
    if failing == "wheelq":
        with pytest.raises(CalledProcessError):
            command.main()
    else:
        assert command.main() == 0
        assert "bulk other failed" in capsys.readouterr().err


def test_the_command_leaves_out_what_is_absent_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", "--peer", "bullmq", "--node-modules", str(tmp_path), "--quick"])
    assert command.main() == 0
    assert "left out: bullmq" in capsys.readouterr().err


def test_the_table_has_a_column_for_each_queue_and_says_never(tmp_path: Path) -> None:
    peers = [Peer(name, "1.0", (), tmp_path) for name in ("wheelq", "other")]
    results = {"kill, s": {"wheelq": [4.0, 5.0, 6.0], "other": [inf]}}
    table = command.as_table(peers, results, {"wheelq": Counter(), "other": Counter(lost=7)})
    header, kill_row, lost_row, *_ = table.splitlines()
    assert header.split() == ["wheelq", "1.0", "other", "1.0"]
    assert "5.0 (4.0 – 6.0)" in kill_row
    assert kill_row.endswith("never")
    assert lost_row.split() == ["lost", "0", "7"]
