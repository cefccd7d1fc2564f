"""The OpenAPI document: what it shows as defaults and examples is what it says is accepted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest

from tests.http.conftest import Http


def schemas(document: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything in it that could be a schema, and where it is."""
    if isinstance(document, dict):
        yield place, document
        for name, inner in document.items():
            yield from schemas(inner, f"{place}/{name}")
    elif isinstance(document, list):
        for number, inner in enumerate(document):
            yield from schemas(inner, f"{place}/{number}")


async def test_every_default_and_example_is_accepted_by_its_schema(http: Http) -> None:
    document = (await http.get("/openapi.json")).json()
    checked = 0
    for place, schema in schemas(document):
        shown = schema.get("examples", []) if isinstance(schema.get("examples"), list) else []
        for value in [*([schema["default"]] if "default" in schema else []), *shown]:
            whole = {**schema, "components": document["components"]}
            assert jsonschema_rs.validator_for(whole).is_valid(value), (place, value)
            checked += 1
    assert checked > 20


@pytest.mark.parametrize("base_path", ["", "/tools/wheelq"])
async def test_paths_are_under_the_base_path(serve: Callable[..., Any], base_path: str) -> None:
    http = await serve(base_path=base_path)
    document = (await http.get(f"{base_path}/openapi.json")).json()
    assert document.get("servers") == ([{"url": base_path}] if base_path else None)
    assert "/v1/topics/{topic}/jobs" in document["paths"]


async def test_head_is_taken_where_get_is_and_not_documented(http: Http) -> None:
    """RFC 9110: every server takes it."""
    document = (await http.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        assert "head" not in operations
        if "get" in operations:
            concrete = re.sub(r"{\w+}", "x", path)
            get, head = await http.get(concrete), await http.head(concrete)
            assert head.status_code == get.status_code, path
            assert head.headers["content-type"] == get.headers["content-type"], path


async def test_an_answer_to_head_has_the_headers_of_get_and_no_body(listen: Callable[..., Any]) -> None:
    listening = await listen()
    for path in (b"/v1/topics", b"/v1/topics/x/jobs/x", b"/readyz"):
        request = b"%b " + path + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        (head, body), (got_head, got_body) = [
            (await listening.said(request % method)).split(b"\r\n\r\n", 1) for method in (b"HEAD", b"GET")
        ]
        assert (body, len(got_body) > 0) == (b"", True)
        assert [line for line in head.splitlines() if b"date:" not in line] == [
            line for line in got_head.splitlines() if b"date:" not in line
        ]
