"""The fixture `receiver`: a running process that receives callbacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.callbacks.receiving import Receiver


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path)
    receiver.start()
    yield receiver
    receiver.kill()
