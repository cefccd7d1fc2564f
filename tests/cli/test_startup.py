"""The command starts fast: what a command does not need is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.commands import wheelq
from tests.every import for_every
from wheelq.cli.app import COMMANDS, load_command

HEAVY = (
    "redis",
    "httpx",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "locust",
    "opentelemetry",
    "msgpack",
    "hiredis",
    "confluent_kafka",
)
"""Packages that `--help` does not need."""


def imported(arguments: str) -> set[str]:
    """The modules that `wheelq <arguments>` imports."""
    program = (
        "import sys; sys.argv = ['wheelq', *sys.argv[1:]]\n"
        "from wheelq.cli import main\n"
        "try: main()\n"
        "finally: print('\\nIMPORTED', *sys.modules)"
    )
    command = [sys.executable, "-c", program, *arguments.split()]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(out.rpartition("IMPORTED")[2].split())


@pytest.mark.parametrize("arguments", ["--help", "--version", "schedule --help", "jobs --help"])
def test_help_imports_nothing_that_it_does_not_need(arguments: str) -> None:
    found = imported(arguments)
    assert "typer" in found
    assert {name for name in HEAVY if name in found} == set()


def test_the_list_of_commands_imports_none_of_them() -> None:
    found = {name for name in imported("--help") if name.startswith("wheelq.")}
    of_commands = {name for name in found if name.startswith("wheelq.cli")}
    assert of_commands == {"wheelq.cli", "wheelq.cli.app"}
    assert {name.split(".")[1] for name in found} == {"base", "cli", "errors"}


def test_a_worker_process_imports_neither_the_scheduler_nor_what_looks_at_a_fleet() -> None:
    program = "import sys, wheelq.cli.process, wheelq.worker; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "wheelq.worker.loop" in out.split()
    rooms = {".".join(name.split(".")[:2]) for name in out.split() if name.startswith("wheelq.")}
    assert rooms & {"wheelq.admin", "wheelq.scheduler", "wheelq.producer", "wheelq.server"} == set()


def test_import_wheelq_alone_imports_nothing_else() -> None:
    command = [sys.executable, "-c", "import sys, wheelq; print('redis' in sys.modules, wheelq.Client.__name__)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False Client\n"


@for_every(COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_begins_with(name: str) -> None:
    command = load_command(name, COMMANDS[name])
    first = command.help.split("\n\n")[0].replace("\n", " ")
    assert COMMANDS[name].help == first
    assert command.name == name


def test_a_command_that_does_not_exist_is_told_with_the_near_one() -> None:
    answer = wheelq("shedule")
    assert answer.code == 2
    assert "No such command 'shedule'" in answer.err
    assert "schedule" in answer.err


def test_every_public_name_is_found_on_demand() -> None:
    program = "import wheelq\nfor name in wheelq.__all__: getattr(wheelq, name)\nprint(wheelq.errors.__name__)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out == "wheelq.errors\n"
