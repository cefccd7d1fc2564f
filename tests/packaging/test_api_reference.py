"""The reference of the Python API names everything that is public, explains it, and its examples run."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import wheelq
from wheelq.testing import WheelqTest

GUIDE = Path(wheelq.__file__).parent / "guide"
PAGES = sorted(GUIDE.glob("reference-api-*.md"))
ENTRIES = {
    title: text
    for page in PAGES
    for title, text in re.findall(r"^## `([^`]+)`\n\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
}
EXAMPLES = ["Client", "Worker", "Job", "Retry", "JobSpec", "Topic", "wheelq.testing.WheelqTest"]


def test_every_public_name_has_an_entry() -> None:
    errors = (GUIDE / "reference-errors.md").read_text()
    missing = [name for name in wheelq.__all__ if name not in ENTRIES and f"`{name}`" not in errors]
    assert not missing


def test_every_entry_method_and_field_is_explained() -> None:
    """A method whose signature is followed by the next title has no docstring."""
    empty = [
        row for page in PAGES for row in page.read_text().splitlines() if row.startswith("|") and row.endswith("|  |")
    ]
    bare = [
        title for page in PAGES for title in re.findall(r"^(#+ .+)\n(?:\n|    .*\n)*(?=#|\Z)", page.read_text(), re.M)
    ]
    assert not empty
    assert not bare


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_class_runs(name: str, wheelq: WheelqTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the lines take for granted: imports, a client and a worker. `worker.run()` is made, and not awaited."""
    monkeypatch.setattr("asyncio.run", lambda coroutine: coroutine.close())
    about = ENTRIES[name].partition("\n### ")[0]
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", about, re.MULTILINE)]
    example = next(block for block in blocks if not block.startswith(f"{name.rpartition('.')[2]}("))  # the signature
    wheelq.client.schedule("orders", delay=0)
    names = {"client": wheelq.client, "worker": wheelq.worker}
    program = "import asyncio\nfrom wheelq import *\nfrom wheelq.testing import *\n" + example
    exec(program.replace("redis://localhost:6379", wheelq.url), names)
