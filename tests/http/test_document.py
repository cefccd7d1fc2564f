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
    assert [server["url"] for server in document["servers"]] == [base_path or "/"]
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


async def test_generators_find_short_names_optional_fields_and_named_objects(http: Http) -> None:
    document = (await http.get("/openapi.json")).json()
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names) > 30
    assert {"make_job", "make_jobs", "get_job", "lease", "ack", "progress", "put_recurring"} < set(names)
    models = document["components"]["schemas"]
    assert models["ManyJobs"]["properties"]["jobs"]["items"] == {"$ref": "#/components/schemas/NewJob"}
    assert "default" not in models["NewJob"]["properties"]["on_duplicate"]
    assert models["NewJob"]["properties"]["on_duplicate"]["description"].endswith('Default: "keep".')
    unnamed = [
        place
        for place, schema in schemas(models)
        if schema.get("type") == "object" and not {"properties", "additionalProperties"} & schema.keys()
    ]
    assert unnamed == []


@pytest.mark.parametrize("access", ["open", "keys"])
async def test_the_key_is_declared_for_what_needs_it(serve: Callable[..., Any], access: str) -> None:
    """Where none is needed it may be sent all the same, so one client fits both."""
    document = (await (await serve(access=access)).get("/openapi.json")).json()
    assert document["security"] == ([{"key": []}] if access == "keys" else [{}, {"key": []}])
    health = document["paths"]["/healthz"]["get"]
    assert health.get("security") == ([] if access == "keys" else None)


async def test_what_was_made_is_found_at_its_location(http: Http) -> None:
    job = {"delay": 60, "id": "a/b c", "partition_key": "k&1"}
    made = await http.post("/v1/topics/orders/jobs", json=job)
    assert made.headers["location"] == "/v1/topics/orders/jobs/a/b%20c?partition_key=k%261"
    assert (await http.get(made.headers["location"])).json()["id"] == "a/b c"
    assert "location" not in (await http.post("/v1/topics/orders/jobs", json=job)).headers
    rule = await http.put("/v1/topics/orders/recurring/every night", json={"cron": "0 3 * * *"})
    assert (await http.get(rule.headers["location"])).json()["name"] == "every night"
    run = await http.post("/v1/topics/orders/recurring/every night/trigger")
    assert (run.status_code, (await http.get(run.headers["location"])).status_code) == (201, 200)
