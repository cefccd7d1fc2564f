"""The OpenAPI document, and a page that shows it without the internet."""

from __future__ import annotations

from copy import copy
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from wheelq import __version__
from wheelq.server import problems
from wheelq.server.problems import Kind
from wheelq.server.routing import TAKEN, answer
from wheelq.server.schemas.jobs import ANY_JSON, JSON_VALUE
from wheelq.server.schemas.views import GroupView, JobView

_STATIC = files("wheelq.server") / "static"
_PAGES = {
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/docs/docs.css": ("docs.css", "text/css; charset=utf-8"),
}
_DESCRIPTION = """Run a job at the moment it is due: post it with a time, lease it when it is ready.

Times are seconds from now (`delay`), RFC 3339 (`at`) or milliseconds since the epoch (`due_ms`), by the server's clock;
no job is ever early. Every error is problem+json and says what to do; after `outcome-unknown` repeat the request with
the same job id: while the job is alive, no other is made."""


class ProblemDetails(BaseModel):
    """A problem, and what to do about it."""

    type: str = Field(examples=["/docs#invalid-input"], description="Names the kind of problem, and leads to its page.")
    title: str = Field(examples=["The request is not acceptable"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["delay: must not be negative."], description="What is wrong here, and the remedy.")
    field: str | None = Field(default=None, description="The field that is wrong.")
    ids: list[str] | None = Field(
        default=None, description="The jobs concerned: if the outcome is unknown, repeat the request with these ids."
    )


def install(app: FastAPI, needs_key: bool, has_receivers: bool, base_path: str) -> None:
    """Serve the document at /openapi.json and its page at /docs."""
    found: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        if not found:
            found.update(_document(app, needs_key, has_receivers, base_path))
        return found

    async def page(request: Request) -> Response:
        name, kind = _PAGES[request.scope["path"]]
        return Response(_static(name), media_type=kind)

    async def openapi(request: Request) -> Response:
        return answer(document())

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way
    app.add_route("/openapi.json", openapi, include_in_schema=False)
    for path in _PAGES:
        app.add_route(path, page, include_in_schema=False)


@cache
def _static(name: str) -> bytes:
    return (_STATIC / name).read_bytes()


def kinds() -> list[Kind]:
    """Every kind of problem, for the page."""
    return [value for value in vars(problems).values() if isinstance(value, Kind)]


def _document(app: FastAPI, needs_key: bool, has_receivers: bool, base_path: str) -> dict[str, Any]:
    found = get_openapi(
        title="wheelq",
        version=__version__,
        description=_DESCRIPTION,
        routes=[_without_head(route) for route in app.routes],
        servers=[{"url": base_path}] if base_path else None,
    )
    components = found.setdefault("components", {})
    _complete(components.setdefault("schemas", {}), has_receivers)
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: wheelq keys create."}
    }
    found["x-problems"] = [
        {"name": kind.name, "status": kind.status, "title": kind.title, "remedy": kind.remedy} for kind in kinds()
    ]
    for path in found["paths"].values():
        for operation in path.values():
            if not needs_key:
                operation.pop("security", None)
            for ours in [name for name in operation if name.startswith("x-wheelq-")]:
                del operation[ours]
    return found


def _without_head(route: BaseRoute) -> BaseRoute:
    """Returns the route as documented: HEAD goes without saying where there is GET."""
    if not isinstance(route, APIRoute):
        return route
    shown = copy(route)
    shown.methods = (route.methods or set()) - {"HEAD"}
    return shown


def _complete(schemas: dict[str, Any], has_receivers: bool) -> None:
    """Add what FastAPI does not know, and take away what it says wrongly."""
    models: dict[str, type[BaseModel]] = {**TAKEN, "Problem": ProblemDetails}
    for name, model in models.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
    for schema in schemas.values():
        for told in schema.get("properties", {}).values():
            if told.get("default", ...) is None:  # it may be left out, and is not null then
                del told["default"]
            if told.pop(ANY_JSON, False):
                told["$ref"] = "#/components/schemas/JsonValue"
    for answer_model in (GroupView, JobView):  # what is null in an example is left out of it
        schemas[answer_model.__name__]["examples"] = answer_model.model_json_schema()["examples"]
    schemas["JsonValue"] = JSON_VALUE
    if not has_receivers:
        del schemas["NewJob"]["properties"]["target"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
