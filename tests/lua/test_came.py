"""Each script that adds entries to a ready stream tells the workers with many shards, once for all of them."""

from __future__ import annotations

from importlib import resources

import pytest

SCRIPTS = {one.name: one.read_text() for one in resources.files("wheelq.protocol.lua").iterdir() if one.name != "lib"}
ADDS = sorted(name for name, text in SCRIPTS.items() if " emit" in text.splitlines()[1])


@pytest.mark.parametrize("name", ADDS)
def test_a_script_that_adds_entries_tells_of_them(name: str) -> None:
    assert SCRIPTS[name].count("tell_came()\n") == 1
