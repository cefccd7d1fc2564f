"""wheelq init: writes a starter that runs as written: tasks, their test, and a compose file if asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wheelq.cli.options import UP_PORT
from wheelq.cli.output import say
from wheelq.cli.shipped import starter_files, write_new

NEXT = (
    "wheelq up shop:worker",
    f"""wheelq schedule orders '{{"order_id": 42}}' --delay 2s --url redis://127.0.0.1:{UP_PORT}""",
    "pytest -q test_shop.py",
)


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write; made if it does not exist.")] = Path("."),
    compose: Annotated[bool, typer.Option("--compose", help="Write a compose.yaml, too, with every process.")] = False,
) -> None:
    """Write a starter: shop.py with two tasks, and test_shop.py. Nothing is overwritten."""
    names = ["shop.py", "test_shop.py", *(["compose.yaml"] if compose else [])]
    starter = starter_files()
    for path in write_new(directory, {name: starter[name] for name in names}):
        say(f"wrote {path}")
    if directory != Path("."):
        say(f"next: cd {directory}")
    for command in NEXT:
        say(f"next: {command}")
