"""The comparison with other queues, in small: wheelq's own adapter, and what is said of a queue that is not here."""

from __future__ import annotations

import shutil
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
    assert shown.figures["paced, processor time, µs a job"] > 0


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


def test_a_package_that_a_queue_in_node_needs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    package = tmp_path / "node_modules" / "bullmq" / "package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"version": "1.0"}')
    with pytest.raises(Absent, match=r"ioredis is not installed in .*: run `npm install bullmq ioredis`"):
        find("bullmq", node_modules=tmp_path)


ALL_FAIL = "raise SystemExit(3)"
WORKER_FAILS = "import sys; sys.exit(3) if sys.argv[1] == 'work' else print(1.0, 0)"


def compare_failing(monkeypatch: pytest.MonkeyPatch, directory: Path, name: str, program: str) -> int:
    """Compares one queue, whose program fails."""
    peer = Peer(name, "1.0", (sys.executable, "-c", program), directory)
    monkeypatch.setattr(command, "find", lambda *_: peer)
    monkeypatch.setattr(sys, "argv", ["compare", "--peer", name, "--scenario", "drain", "--quick"])
    return command.main()


@pytest.mark.parametrize("program", [ALL_FAIL, WORKER_FAILS])
def test_another_queue_that_fails_has_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, program: str
) -> None:
    assert compare_failing(monkeypatch, tmp_path, "streaq", program) == 0
    shown = capsys.readouterr()
    assert "drain streaq failed: " in shown.err
    assert [line.split() for line in shown.out.splitlines()[1:]] == [["lost", "–"], ["early", "–"], ["doubled", "–"]]


@pytest.mark.parametrize(("program", "error"), [(ALL_FAIL, CalledProcessError), (WORKER_FAILS, RuntimeError)])
def test_the_comparison_ends_if_wheelq_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        compare_failing(monkeypatch, tmp_path, "wheelq", program)


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
