"""Mutants: every patch applies, the command says who finds a mistake, and twelve of the planted ones are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.mutants.trial import PATCHES, ROOT, Mutant, all_patches, apply, copied, find_by_tests
from tests.every import for_every
from tests.test_docs import GUIDE, blocks, pattern_of

SURVIVOR = "breaker-counts-calls-in-flight", "--tests-only", "--tests", "tests/unit/test_words.py"
"""A mistake, and tests that have nothing to do with it."""


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest.mutants", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_every_patch_applies_and_names_tests_that_are_there() -> None:
    with copied() as copy:

        @for_every(all_patches(), lambda patch: patch.name)
        def check(patch: Path) -> None:
            mutant = Mutant.read(patch)
            assert all((copy / test).exists() for test in mutant.tests), mutant.tests
            assert mutant.mistake.endswith(".")
            try:
                apply(mutant, copy, check=True)
            except ValueError as error:
                raise AssertionError(str(error)) from error

        check()  # type: ignore[operator]


def test_a_copy_has_the_mistake_and_the_checkout_does_not() -> None:
    mutant = Mutant.read(all_patches()[0])
    [changed] = re.findall(r"^\+\+\+ b/(\S+)", mutant.patch.read_text(), re.MULTILINE)
    before = (ROOT / changed).read_text()
    with copied(mutant) as copy:
        assert (copy / changed).read_text() != before
    assert (ROOT / changed).read_text() == before


def test_a_patch_that_no_longer_applies_fails_by_name(tmp_path: Path) -> None:
    stale = tmp_path / "from-last-year.patch"
    stale.write_text(all_patches()[0].read_text().replace("\n-", "\n-was "))
    done = run(str(stale))
    assert done.returncode == 2
    assert "from-last-year does not apply any more" in done.stderr


def test_a_patch_without_a_header_fails_by_name(tmp_path: Path) -> None:
    bare = tmp_path / "bare.patch"
    bare.write_text("room: worker\n\n--- a/x\n+++ b/x\n")
    done = run(str(bare))
    assert done.returncode == 2
    assert "bare.patch: the header has no line for mistake, tests" in done.stderr


@pytest.mark.long
def test_a_mutant_that_nobody_finds_makes_the_command_fail() -> None:
    done = run(*SURVIVOR)
    assert done.returncode == 1, done.stderr
    assert "breaker-counts-calls-in-flight survived: " in done.stdout
    assert "0 of 1 found" in done.stdout


@pytest.mark.long
def test_a_test_that_fails_without_the_mistake_finds_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("def test_that_never_passes():\n    assert False\n")
    done = run(*SURVIVOR[:-1], str(broken))
    assert done.returncode == 1, done.stderr
    assert "fails without the patch, too" in done.stdout


@pytest.mark.long
def test_tests_that_cannot_be_run_make_the_command_fail() -> None:
    done = run(*SURVIVOR[:-1], "tests/no_such_test.py")
    assert done.returncode == 2
    assert "these tests cannot be run: tests/no_such_test.py" in done.stderr


@pytest.mark.long
def test_the_example_of_the_guide_is_true(tmp_path: Path) -> None:
    patch, command, output = (
        next(block for block in blocks(GUIDE / "contributing.md") if block.note == note)
        for note in ("file: mine.patch", "mutants", "output of the mutants")
    )
    (tmp_path / "mine.patch").write_text(patch.text)
    arguments = command.text.split()[3:]
    assert command.text.split()[:3] == ["python", "-m", "loadtest.mutants"]
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(pattern_of(output.text), done.stdout), done.stdout


FOUND_BY = {
    "claims-without-second-look": "faults/test_lost_replies_to_workers.py -k turns_out_to_live",
    "draining-ends-early": "faults/test_draining.py -k a_job_behind_the_new_number",
    "find-trusts-cache": "faults/test_shards.py -k a_client_that_does_not_know_of_it",
    "frozen-time-counts-as-silence": "unit/test_liveness.py",
    "hedge-without-terms": "lua/test_promotion.py -k while_the_topic_is_paused",
    "hint-while-opening-forgotten": "unit/test_window.py",
    "id-freed-while-a-group-retries": "lua/test_settling.py -k waits_for_a_retry_in_another_group",
    "lease-number-not-checked": "lua/test_leases.py -k a_former_lessee",
    "missed-occurrence-thought-made": "lua/test_recurring.py -k does_not_replace_the_missed_ones",
    "one-topic-stops-the-outbox": "unit/test_outbox.py -k does_not_hold_up_the_others",
    "outbox-without-last-look": "faults/test_outage.py -k does_not_overtake_a_waiting_one",
    "stopping-worker-judges-by-last-shard": "faults/test_liveness.py -k its_last_shard_was_empty",
}
"""Twelve of the mutants, of all rooms, and the cheapest tests that find each."""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_planted_mistake_is_found(name: str) -> None:
    mutant = Mutant.read(PATCHES / f"{name}.patch")
    with copied(mutant) as copy:
        found = find_by_tests(copy, f"tests/{FOUND_BY[name]} --servers valkey".split())
    assert re.match(r"tests/\S+::test_", found.what), found
