"""The workflows and pages of `.github` say what is true of this checkout. Nobody can run a workflow here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HERE = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (HERE / "workflows").glob("*.yml")}


TOP = {"CHANGELOG.md", "LICENSE", "README.md", "config", "loadtest", "pyproject.toml", "tests", "wheelq"}
"""The top level of the repository, apart from dotfiles."""


def test_the_top_level_holds_what_the_layout_names_and_no_file_is_a_link() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this copy of the repository does not say which files it tracks")
    found = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = dict(reversed(line.split("\t")) for line in found.splitlines())
    assert {file.split("/")[0] for file in files if not file.startswith(".")} == TOP
    assert [file for file, facts in files.items() if facts.startswith("120000")] == []


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{name}: {job}", body) for name, flow in WORKFLOWS.items() for job, body in flow["jobs"].items()]


def commands() -> list[str]:
    return [step["run"] for _, job in jobs() for step in job["steps"] if "run" in step]


def test_every_job_has_a_time_limit_and_only_the_rights_that_it_needs() -> None:
    assert not [name for name, job in jobs() if not job.get("timeout-minutes")]
    assert {tuple(flow["permissions"].items()) for flow in WORKFLOWS.values()} == {(("contents", "read"),)}


def test_the_checks_run_what_the_readme_says() -> None:
    [readme] = re.findall(r"<!-- tests -->\n```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert readme in commands()
    assert ".ci/run" in commands()


def test_the_checks_cover_the_pythons_that_the_package_names() -> None:
    named = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))
    assert {"3.11", *WORKFLOWS["checks"]["jobs"]["python"]["strategy"]["matrix"]["python"]} == named


@pytest.mark.long
@pytest.mark.parametrize("command", WORKFLOWS["nightly"]["jobs"]["proof"]["strategy"]["matrix"]["command"])
def test_each_nightly_proof_takes_the_options_that_it_is_given(command: str) -> None:
    """`--help` after them shows that a command knows its options: argparse reads them first."""
    words = re.sub(r"\$\(\(.*?\)\)|\$\w+", "1", command).split()
    shown = subprocess.run([sys.executable, *words, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert not [word for word in words if word.startswith("--") and word not in shown.stdout]


def test_every_link_of_the_pages_leads_somewhere() -> None:
    for page in HERE.glob("*.md"):
        for target in re.findall(r"\]\((?!http)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), target


def test_issue_forms_ask_for_what_the_doctor_says() -> None:
    form = yaml.safe_load((HERE / "ISSUE_TEMPLATE" / "defect.yml").read_text())
    assert any("wheelq doctor --json" in part["attributes"]["label"] for part in form["body"])
