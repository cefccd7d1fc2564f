"""The manual at /docs, in a real browser: all that the document tells is shown, by this server alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.waiting import PATIENCE


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Iterator[Any]:
    """A page that may say nothing on the console, and fail in nothing."""
    page, said = new_page(viewport={"width": 1200, "height": 900}), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    assert said == []


def open_manual(page: Any, site: str, place: str = "") -> None:
    page.goto(f"{site}/docs{place}")
    page.wait_for_selector("#problems article")


def test_every_route_and_every_problem_is_shown_without_the_internet(page: Any, site: str) -> None:
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    open_manual(page, site)
    told = httpx.get(f"{site}/openapi.json", timeout=PATIENCE).json()
    routes = {(path, method.upper()) for path, methods in told["paths"].items() for method in methods}
    shown = {tuple(reversed(text.split(maxsplit=1))) for text in page.locator("#routes article h3").all_inner_texts()}
    assert shown == routes
    assert page.locator("#problems article").count() == len(told["x-problems"])
    assert hosts == {urlsplit(site).netloc}
    assert "`" not in page.inner_text("main"), "what is code is shown as code"


def test_the_type_of_a_problem_leads_to_its_place(page: Any, site: str) -> None:
    problem = httpx.get(f"{site}/v1/topics/orders/jobs/none", timeout=PATIENCE).json()
    open_manual(page, site, problem["type"].removeprefix("/docs"))
    place = page.locator(":target")
    assert place.locator("h3").inner_text() == "404 job-not-found"
    assert 0 <= place.bounding_box()["y"] < 900, "it is in sight"


def test_an_example_can_be_copied_and_works(page: Any, site: str) -> None:
    open_manual(page, site)
    example = page.locator("article", has=page.get_by_text("Schedule a job", exact=True)).locator("pre").inner_text()
    done = subprocess.run(["bash", "-c", example], capture_output=True, text=True, check=True)
    assert '"created":true' in done.stdout


def test_on_a_narrow_screen_nothing_is_wider_than_it(new_page: Callable[..., Any], site: str) -> None:
    page = new_page(viewport={"width": 400, "height": 800})
    open_manual(page, site)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
