"""The guide: Markdown pages that ship with the package. `wheelq guide` and the server's `/guide` read them here.

A page is named by its file: `testing` is `testing.md`. `zh` is the page in Chinese, `zh/README.md`, and `README` the
index. The index names every page, also `protocol`, which is `wheelq/protocol/PROTOCOL.md`; its order is the order of
reading.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from importlib.resources import files

__all__ = ["INDEX", "image", "names", "paths", "source"]

INDEX = "README"
_FOLDER = files("wheelq.guide")
_ROW = re.compile(r"^\| \[[^]]+\]\(([\w/.-]+)\.md\)", re.MULTILINE)


@cache
def paths() -> dict[str, str]:
    """Returns where each page but the index is, from this folder and without `.md`, in the order of the index."""
    return {posixpath.basename(path.removesuffix(f"/{INDEX}")).lower(): path for path in _ROW.findall(source(INDEX))}


def names() -> tuple[str, ...]:
    """Returns the names of all pages but the index, in the order of the index."""
    return tuple(paths())


def source(name: str) -> str:
    """Returns the Markdown of a page. Raises: KeyError if there is none of this name."""
    path = INDEX if name == INDEX else paths()[name]
    return (_FOLDER / f"{path}.md").read_text(encoding="utf-8")


def image(name: str) -> bytes:
    """Returns a picture that a page shows. Raises: KeyError if there is none of this name."""
    picture = _FOLDER / "images" / name
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}\.(png|svg)", name) or not picture.is_file():
        raise KeyError(name)
    return picture.read_bytes()
