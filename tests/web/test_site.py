"""The static site: its links lead somewhere, it loads nothing from elsewhere, and a browser can search it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / ".ci" / "site.py", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    answer = build(made)
    assert answer.returncode == 0, answer.stderr
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A server of files, which has the site under a path of its own."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder.parent))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/{folder.name}"
    server.shutdown()
    serving.join()
    server.server_close()


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(folder: Path) -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in folder.rglob("*.html")}
    assert len(texts) > 30
    for page, text in texts.items():
        assert not re.search(r'(?:src|rel="stylesheet" href)="(?:https?:)?//', text), page
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            path, _, part = link.partition("#")
            if link.startswith("http"):
                continue
            there = (page.parent / path).resolve() if path else page
            assert there.is_file(), f"{page}: {link}"
            assert not part or part == "main" or f'id="{part}"' in texts[there], f"{page}: {link}"


def test_the_first_page_says_how_to_install_and_leaves_out_what_only_contributors_need(folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert "pip install 'wheelq[all]'" in text
    assert "own tests" not in text


def test_asked_for_help_it_builds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / ".ci" / "site.py", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert answer.returncode == 0
    assert "static pages" in answer.stdout
    assert not list(tmp_path.iterdir())


def test_the_search_knows_every_page(folder: Path) -> None:
    found = json.loads((folder / "static" / "search.json").read_text(encoding="utf-8"))
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.html")}
    assert {section["href"].partition("#")[0] for section in found} == pages


def test_the_index_for_language_models_names_every_page(folder: Path) -> None:
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\): .", (folder / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {str(page.relative_to(folder)) for page in (folder / "guide").glob("*.html")}
    assert set(links) == pages - {"guide/index.html"}


def test_it_replaces_an_earlier_site_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    assert build(folder).returncode == 0
    (tmp_path / "precious.txt").touch()
    answer = build(tmp_path)
    assert answer.returncode == 1
    assert "holds something else than a site" in answer.stderr
    assert (tmp_path / "precious.txt").exists()


def test_it_is_searched_in_the_browser(address: str, new_page: Callable[..., Any]) -> None:
    page = new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{address}/guide/concepts.html")
    page.get_by_label("Search the guide").fill("dead letters replay")
    link = page.locator("#found a").first
    link.wait_for()
    link.click()
    page.wait_for_url("**/guide/*.html#*")
    assert "dead" in page.locator("article").inner_text().lower()
    page.get_by_label("Search the guide").fill("xyzzy")
    page.get_by_text("Nothing found").wait_for()
    assert errors == []


@pytest.mark.parametrize("path", ["index.html", "guide/index.html", "guide/promises.html", "guide/reference-cli.html"])
def test_a_page_fits_a_phone(address: str, new_page: Callable[..., Any], path: str) -> None:
    page = new_page(viewport={"width": 360, "height": 740})
    page.goto(f"{address}/{path}")
    page.locator("article h1").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_names_in_tables_are_not_broken_on_a_wide_screen(address: str, new_page: Callable[..., Any]) -> None:
    page = new_page(viewport={"width": 1200, "height": 740})
    for path, name in (("production", "compose.yaml"), ("reference-cli", "--metrics-port")):
        page.goto(f"{address}/guide/{path}.html")
        code = page.locator("article td:first-child code", has_text=name).first
        assert code.evaluate("one => one.getClientRects().length") == 1, name
