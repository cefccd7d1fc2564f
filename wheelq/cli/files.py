"""Finds the files of `config/`: in the installed package, or beside it in a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from wheelq.errors import ConfigurationError, InvalidInput


def config_files() -> dict[str, bytes]:
    """Returns the content of every file of `config/` by its path there, such as "acl/worker.acl"."""
    package = files("wheelq")
    folders: tuple[Traversable, ...] = (package / "config", Path(str(package)).parent / "config")
    for folder in folders:
        if folder.joinpath("wheelq.toml").is_file():
            return {path: entry.read_bytes() for path, entry in _entries(folder, "")}
    raise ConfigurationError("this installation of wheelq lacks its config files: install it again")


def _entries(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "__")):
            continue
        if entry.is_dir():
            yield from _entries(entry, f"{path}{entry.name}/")
        else:
            yield f"{path}{entry.name}", entry


def write_new(directory: Path, contents: dict[str, bytes]) -> list[Path]:
    """Write files below a directory; returns their paths. Raises: InvalidInput, if one exists; then none is written."""
    paths = {directory / name: content for name, content in contents.items()}
    if there := [str(path) for path in paths if path.exists()]:
        raise InvalidInput("directory", f"{', '.join(there)} exists already: remove it, or name another directory")
    for path, content in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return list(paths)
