"""A schedule call is short to read: `wheelq/__init__.py` names its way."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import wheelq
from wheelq import Client

ROOT = Path(wheelq.__file__).parent
MOST_FILES = 10


def test_a_warm_schedule_call_passes_few_files(url: str, topic: str) -> None:
    """Clocks, ids and the checks of arguments do not count: a reader can take them on trust."""
    passed: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            passed.add(str(path.relative_to(ROOT)))

    with Client.connect(url) as client:
        for _ in range(2):  # after a shard's first job, the topic is registered once more
            client.schedule(topic, {"id": 41}, delay=1800)
        sys.setprofile(note)
        try:
            client.schedule(topic, {"id": 42}, delay=1800)
        finally:
            sys.setprofile(None)
    read = {name for name in passed if not name.startswith("base/") and name != "model/checks.py"}
    assert "client/client.py" in read
    assert len(read) <= MOST_FILES, sorted(read)
