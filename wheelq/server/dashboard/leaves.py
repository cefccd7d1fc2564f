"""The pages of the guide as HTML, for the server's `/guide` and for the static site that `.ci/site.py` builds.

Links between pages lead to where the pages are. Other links into the repository lose their target, because the package
does not hold it; links to the web stay.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from wheelq import guide

_FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
_COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)


class Leaf(NamedTuple):
    """One page: its name in URLs, its title, and what it says."""

    name: str
    title: str
    body: Markup


@dataclass(frozen=True, slots=True)
class Places:
    """Where the index, the pages and the pictures are; `{}` stands for the name of a page or a picture."""

    index: str
    page: str
    image: str


@cache
def leaf(name: str, places: Places) -> Leaf:
    """Returns a page of the guide, with links to where the others are. Raises: KeyError if there is none."""
    return leaf_of(name, guide.source(name), places)


def leaf_of(name: str, text: str, places: Places) -> Leaf:
    """Returns Markdown as a page."""
    source = _COMMENT.sub("", _FILE.sub(r"*\1*\n", text))
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(source)
    _lead(tokens, name, places)
    title = next(token.content for token in tokens if token.type == "inline")
    return Leaf(name, title, Markup(markdown.renderer.render(tokens, markdown.options, {})))  # our own text


def _lead(tokens: list[Token], name: str, places: Places) -> None:
    """Give headings their anchors, and lead links and pictures to their places."""
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            token.attrSet("id", anchor(following.content))
    for token in _all(tokens):
        if token.type == "link_open":
            there = _target(str(token.attrGet("href")), name, places)
            token.attrs = {"href": there} if there else {}
        elif token.type == "image":
            token.attrSet("src", places.image.format(posixpath.basename(str(token.attrGet("src")))))


def _all(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or [])


def anchor(heading: str) -> str:
    """Returns the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _target(href: str, name: str, places: Places) -> str:
    """Returns where a link of a page leads; empty if what it names is not there."""
    if href.startswith(("https://", "http://", "#")):
        return href
    path, hash, part = href.partition("#")
    here = posixpath.dirname(guide.paths().get(name, ""))
    there = posixpath.normpath(posixpath.join(here, path)).removesuffix(".md")
    if there == guide.INDEX:
        return f"{places.index}{hash}{part}"
    found = next((page for page, at in guide.paths().items() if at == there), None)
    return f"{places.page.format(found)}{hash}{part}" if found else ""
