"""The OpenAPI document: what it shows as defaults and examples is what it says is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

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


async def test_every_default_and_example_is_one_that_its_schema_accepts(http: Http) -> None:
    document = (await http.get("/openapi.json")).json()
    checked = 0
    for place, schema in schemas(document):
        shown = schema.get("examples", []) if isinstance(schema.get("examples"), list) else []
        for value in [*([schema["default"]] if "default" in schema else []), *shown]:
            whole = {**schema, "components": document["components"]}
            assert jsonschema_rs.validator_for(whole).is_valid(value), (place, value)
            checked += 1
    assert checked > 20
