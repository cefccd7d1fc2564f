"""`/guide`: the pages of the guide as HTML, for anyone who reaches the server. They need no Redis and no internet.

Links between pages lead to `/guide/NAME`. Other links into the repository lose their target, because the package does
not hold it; links to the web stay.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from wheelq import guide
from wheelq.server import problems
from wheelq.server.dashboard.entering import NO_ONE, viewer_of, visit_of
from wheelq.server.problems import Problem
from wheelq.server.service import Service

_TYPES = {"png": "image/png", "svg": "image/svg+xml"}
_FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
_COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)


class Leaf(NamedTuple):
    """One page: its name in URLs, its title, and what it says."""

    name: str
    title: str
    body: Markup


async def page(service: Service, request: Request) -> Response:
    """Answer with a page of the guide, or its index."""
    name = request.path_params.get("page", guide.INDEX)
    base_path = service.settings.server.base_path
    try:
        leaf = _leaf(name, base_path)
    except KeyError:
        raise Problem(problems.NOT_FOUND, f"The guide has no page {name!r:.60}.") from None
    try:
        visit = visit_of(service, request, *await viewer_of(service, request))
    except Problem:  # the guide needs no sign-in
        visit = visit_of(service, request, NO_ONE)
    leaves = [_leaf(one, base_path) for one in guide.names()]
    place = next((place for place, one in enumerate(leaves) if one.name == name), -1)
    return visit.page(
        "guide.html",
        leaf=leaf,
        leaves=leaves,
        before=leaves[place - 1] if place > 0 else None,
        after=leaves[place + 1] if place + 1 < len(leaves) else None,
        language="zh-CN" if name == "zh" else "en",
    )


async def picture(service: Service, request: Request) -> Response:
    """Answer with a picture that a page shows."""
    name = request.path_params["name"]
    try:
        return Response(guide.image(name), media_type=_TYPES[name.rpartition(".")[2]])
    except KeyError:
        raise Problem(problems.NOT_FOUND) from None


@cache
def _leaf(name: str, base_path: str) -> Leaf:
    source = _COMMENT.sub("", _FILE.sub(r"*\1*\n", guide.source(name)))
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(source)
    _lead(tokens, name, base_path)
    title = next(token.content for token in tokens if token.type == "inline")
    return Leaf(name, title, Markup(markdown.renderer.render(tokens, markdown.options, {})))  # our own text


def _lead(tokens: list[Token], name: str, base_path: str) -> None:
    """Give headings their anchors, and lead links and pictures to where the server has them."""
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            token.attrSet("id", anchor(following.content))
    for token in _all(tokens):
        if token.type == "link_open":
            there = _target(str(token.attrGet("href")), name, base_path)
            token.attrs = {"href": there} if there else {}
        elif token.type == "image":
            token.attrSet("src", f"{base_path}/guide/images/{posixpath.basename(str(token.attrGet('src')))}")


def _all(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or [])


def anchor(heading: str) -> str:
    """Returns the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _target(href: str, name: str, base_path: str) -> str:
    """Returns where a link of a page leads on the server; empty if what it names is not there."""
    if href.startswith(("https://", "http://", "#")):
        return href
    path, hash, part = href.partition("#")
    here = name if name == "zh" else ""  # the folder of the page
    there = posixpath.normpath(posixpath.join(here, path)).removesuffix(".md").removesuffix(f"/{guide.INDEX}")
    if there == guide.INDEX:
        return f"{base_path}/guide{hash}{part}"
    return f"{base_path}/guide/{there}{hash}{part}" if there in guide.names() else ""
