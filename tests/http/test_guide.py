"""The guide on the HTTP server: every page is there, its links lead on, and nothing comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.http.conftest import Http
from wheelq import guide
from wheelq.server.dashboard.leaves import anchor

PATHS = ("/guide", *(f"/guide/{name}" for name in guide.names()))


async def test_every_page_is_there_as_html_with_strict_headers(http: Http) -> None:
    for path in PATHS:
        answer = await http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        assert answer.headers.get_list("content-security-policy") == [
            "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        ]
        for unwanted in (" style=", "<script>", "&lt;!--", "```"):
            assert unwanted not in answer.text, path
        assert re.findall(r'src="(\w+:)', answer.text) == [], "nothing is loaded from elsewhere"


async def test_links_between_pages_and_to_their_parts_lead_somewhere(http: Http) -> None:
    texts = {path: (await http.get(path)).text for path in PATHS}
    for path, text in texts.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text[text.index("<article") : text.index("</article")]):
            there, _, part = link.partition("#")
            if there.startswith("http"):
                continue
            assert (there or path) in texts or (await http.get(there)).status_code == 200, f"{path}: {link}"
            if part:
                assert f'id="{part}"' in texts[there or path], f"{path}: {link}"


async def test_the_protocol_page_is_part_of_it(http: Http) -> None:
    assert 'href="/guide/protocol"' in (await http.get("/guide/other-languages")).text
    assert "SCRIPT LOAD" in (await http.get("/guide/protocol")).text


async def test_a_page_names_the_file_of_a_program(http: Http) -> None:
    assert "<em>shop.py</em>" in (await http.get("/guide/getting-started")).text


async def test_a_missing_page_is_not_found(http: Http) -> None:
    for path in (
        "/guide/nothing",
        "/guide/..%2f__init__",
        "/guide/images/nothing.png",
        "/guide/images/..%2fREADME.md",
        f"/guide/images/{'a' * 5_000}.png",
    ):
        assert (await http.get(path)).status_code == 404, path


async def test_behind_a_proxy_links_begin_with_the_base_path(serve: Callable[..., Any]) -> None:
    http = await serve(base_path="/queue")
    text = (await http.get("/guide/concepts")).text
    assert 'href="/queue/guide/promises"' in text


def test_headings_have_the_anchors_of_github() -> None:
    assert anchor("When a call returns") == "when-a-call-returns"
    assert anchor("Retries: how, and `why`?") == "retries-how-and-why"
