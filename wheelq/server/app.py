"""Puts the server together: routes, the gate before them, the answers for errors, and the OpenAPI document.

The page that shows the document needs no internet.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cache, partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from wheelq import __version__
from wheelq.base.as_json import as_json
from wheelq.errors import WheelqError
from wheelq.server import problems
from wheelq.server.audit import GONE
from wheelq.server.classic import PATH as CLASSIC
from wheelq.server.classic import failure
from wheelq.server.dashboard import site
from wheelq.server.gate import Gate
from wheelq.server.problems import Kind, Problem, problem_in, problem_of
from wheelq.server.routes import callbacks, classic, dead, health, jobs, leases, recurring, topics
from wheelq.server.routing import TAKEN, answer
from wheelq.server.schemas import reading
from wheelq.server.schemas.jobs import ANY_JSON, JSON_VALUE
from wheelq.server.schemas.model import without_null
from wheelq.server.service import Service
from wheelq.telemetry import is_traced


def make_app(service: Service) -> FastAPI:
    """The ASGI application around a service that is `running`."""

    # Document and page are our own, because FastAPI's pages load scripts from the internet.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    for resource in (jobs, callbacks, classic, leases, topics, dead, recurring, health):
        # Not include_router, which would match every request twice: by router, then by route.
        app.router.routes += resource.routes.routes
    app.router.routes += [*topics.group_routes.routes, *jobs.bundle_routes.routes]
    site.install(app, service)
    settings = service.settings.server
    _install_document(app, service.needs_key, service.intake.is_open, settings.base_path)
    app.state.methods = [(r.path_regex, r.methods) for r in app.router.routes if isinstance(r, Route)]
    app.add_middleware(
        Gate,
        tell=partial(_response, settings.base_path),
        answered=service.answered,
        waiting=lambda: service.leases.waiting + service.stream.open,
        settings=settings,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins.split(),
            allow_methods=["GET", "POST", "PATCH", "PUT", "DELETE"],
            allow_headers=["authorization", "content-type", "idempotency-key", "if-match"],
            expose_headers=["etag", "location", "retry-after"],
        )
    if is_traced():
        from wheelq.telemetry.http import instrument

        instrument(app, partial(_route_of, app))
    if settings.base_path:
        app.add_middleware(site.BasePath, base_path=settings.base_path)
    app.add_exception_handler(ClientDisconnect, _gone)
    for kind in (WheelqError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _tell)
    return app


async def _tell(request: Request, error: Exception) -> Response:
    """Turns an error into an answer; the only place that does."""
    problem = _problem(request, error)
    service: Service = request.app.state.service
    service.log_failure(request, problem, error)
    return _response(service.settings.server.base_path, request.scope["path"], problem)


async def _gone(request: Request, error: Exception) -> Response:
    """Answer nothing, because the caller left before its request was complete. This is not an error."""
    return Response(status_code=GONE)


def _route_of(app: FastAPI, scope: Mapping[str, Any]) -> str | None:
    """Returns the path template of the route for a request; None if there is none."""
    path, method = scope["path"], scope["method"]
    found = [one for one in app.router.routes if isinstance(one, APIRoute) and one.path_regex.match(path)]
    return max(found, key=lambda route: method in (route.methods or ())).path if found else None


def _response(base_path: str, path: str, problem: Problem) -> Response:
    return failure(problem) if path.startswith(CLASSIC) else problem.response(base_path)


def _methods(request: Request) -> str:
    """Returns all methods of the path; the router knows only those of the first matching route.

    A path like `jobs/cancel` could also name a job, but has only the methods of its own route, as documented.
    """
    found = [(regex.groups, names) for regex, names in request.app.state.methods if regex.match(request.scope["path"])]
    fewest = min((groups for groups, _ in found), default=0)
    return ", ".join(sorted({name for groups, names in found if groups == fewest for name in names}))


def _problem(request: Request, error: Exception) -> Problem:
    if isinstance(error, RequestValidationError):
        return problem_of(reading.invalid(error.errors()))
    problem = problem_in(request.method, error)
    if problem.kind is problems.METHOD_NOT_ALLOWED:
        return Problem(problem.kind, more={"allow": _methods(request)})
    return problem


_STATIC = files("wheelq.server") / "static"
_EXAMPLES = files("wheelq.server") / "schemas/examples.json"
"""By model, the examples of the document."""
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


def _install_document(app: FastAPI, needs_key: bool, has_receivers: bool, base_path: str) -> None:
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
        servers=[{"url": base_path or "/", "description": "This server."}],
    )
    components = found.setdefault("components", {})
    _complete(components.setdefault("schemas", {}), has_receivers)
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: wheelq keys create."}
    }
    found["x-problems"] = [
        {"name": kind.name, "status": kind.status, "title": kind.title, "remedy": kind.remedy} for kind in kinds()
    ]
    found["security"] = [{"key": []}] if needs_key else [{}, {"key": []}]
    for path in found["paths"].values():
        for operation in path.values():
            if needs_key and "security" not in operation:  # open to all
                operation["security"] = []
            for parameter in operation.get("parameters", ()):
                without_null(parameter["schema"])
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
        for told in schema["properties"].values():  # generators take a field that has a default for one that is there
            if (default := told.pop("default", None)) is not None:
                told["description"] = f"{told.get('description', '')} Default: {as_json(default).decode()}.".lstrip()
    for schema in schemas.values():
        for told in schema.get("properties", {}).values():
            if told.get("default", ...) is None:  # it may be left out, and is not null then
                del told["default"]
            if told.pop(ANY_JSON, False):
                told["$ref"] = "#/components/schemas/JsonValue"
    for name, examples in from_json(_EXAMPLES.read_bytes()).items():
        schemas[name]["examples"] = examples
    schemas["JsonValue"] = JSON_VALUE
    schemas["ManyJobs"]["properties"]["jobs"]["items"] = {"$ref": "#/components/schemas/NewJob"}
    if not has_receivers:
        for name in ("NewJob", "FollowingJob"):
            del schemas[name]["properties"]["target"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
