"""The progress of an import: a small file beside the imported one, from which an interrupted import continues.

    orders.csv.wheelq-progress      {"file": [size, mtime_ns], "options": […], "records": 15000, "broken": 2}

The file is replaced by a rename after every batch that the server has answered, and removed at the end. So it is at
most one batch behind, and the ids of that batch's rows prevent a second scheduling while its jobs are alive. A journal
of a different version of the file, or of other options, is ignored.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

logger = logging.getLogger("wheelq.import")

SUFFIX = ".wheelq-progress"


@dataclass(slots=True)
class Tally:
    """The counts of an import so far."""

    records: int = 0
    """Lines read and answered, broken ones included."""
    broken: int = 0
    created: int = 0
    kept: int = 0
    """Jobs that were there already."""


class Journal:
    """The journal of one file. Without a file (stdin) it remembers nothing."""

    def __init__(self, path: Path | None, options: list[str | None]) -> None:
        self._path = path.with_name(path.name + SUFFIX) if path else None
        self._of: dict[str, object] = {}
        if path:
            found = path.stat()
            self._of = {"file": [found.st_size, found.st_mtime_ns], "options": options}

    @classmethod
    def of(cls, path: Path | None, options: list[str | None], *, restart: bool) -> Self:
        """Returns the journal of `path`; with `restart`, an existing one is removed first."""
        journal = cls(path, options)
        if restart:
            journal.remove()
        return journal

    def read(self) -> Tally:
        """Returns the counts of an interrupted import, or zeros."""
        try:
            stored = json.loads(self._path.read_bytes()) if self._path else {}
        except (OSError, ValueError):
            return Tally()
        if any(stored.get(name) != value for name, value in self._of.items()):
            return Tally()
        return Tally(stored.get("records", 0), stored.get("broken", 0), stored.get("created", 0), stored.get("kept", 0))

    def write(self, tally: Tally) -> None:
        """Write the counts; they are on disk when the call returns. If that is impossible, warns once."""
        if self._path is None:
            return
        figures = {"records": tally.records, "broken": tally.broken, "created": tally.created, "kept": tally.kept}
        new = self._path.with_name(self._path.name + ".new")
        try:
            with new.open("w") as file:
                json.dump(self._of | figures, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            logger.warning("cannot write %s (%s): an interrupted import will start over", self._path, error.strerror)
            self._path = None

    def remove(self) -> None:
        """Remove the journal, because the import is complete."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
