"""Puts the server together: routes, the gate before them, and the answers for errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from wheelq.errors import ServerError, WheelqError
from wheelq.server import document, problems
from wheelq.server.audit import GONE
from wheelq.server.classic import PATH as CLASSIC
from wheelq.server.classic import failure
from wheelq.server.dashboard import site
from wheelq.server.gate import Gate
from wheelq.server.problems import Problem, problem_in, problem_of
from wheelq.server.routes import (
    callbacks,
    classic,
    dead,
    health,
    jobs,
    leases,
    recurring,
    topics,
)
from wheelq.server.schemas import reading
from wheelq.server.service import Service
from wheelq.telemetry import is_traced

logger = logging.getLogger("wheelq.server")


def make_app(service: Service) -> FastAPI:
    """The ASGI application around a service that is `running`."""

    # Document and page are our own, because FastAPI's pages load scripts from the internet.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    for resource in (jobs, callbacks, classic, leases, topics, dead, recurring, health):
        # Not include_router, which would match every request twice: by router, then by route.
        app.router.routes += resource.routes.routes
    app.router.routes += topics.group_routes.routes
    site.install(app, service)
    settings = service.settings.server
    document.install(app, service.needs_key, service.intake.is_open, settings.base_path)
    app.state.methods = [(r.path_regex, r.methods) for r in app.router.routes if isinstance(r, Route)]
    app.add_middleware(
        Gate,
        tell=_response,
        answered=service.answered,
        waiting=lambda: service.leases.waiting + service.stream.open,
        body_max_bytes=settings.body_max_bytes,
        max_in_flight=settings.max_in_flight,
        is_tls=bool(settings.tls_cert),
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins.split(),
            allow_methods=["GET", "POST", "PATCH", "PUT", "DELETE"],
            allow_headers=["authorization", "content-type", "idempotency-key", "if-match"],
            expose_headers=["etag", "retry-after"],
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
    if problem.kind is problems.BROKEN:
        logger.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    if isinstance(error, ServerError):
        service: Service = request.app.state.service
        service.reminders.warn(logger, "requests cannot be served", error)
    return _response(request.scope["path"], problem)


async def _gone(request: Request, error: Exception) -> Response:
    """Answer nothing, because the caller left before its request was complete. This is not an error."""
    return Response(status_code=GONE)


def _route_of(app: FastAPI, scope: Mapping[str, Any]) -> str | None:
    """Returns the path template of the route for a request; None if there is none."""
    path = scope["path"]
    return next((r.path for r in app.router.routes if isinstance(r, APIRoute) and r.path_regex.match(path)), None)


def _response(path: str, problem: Problem) -> Response:
    return failure(problem) if path.startswith(CLASSIC) else problem.response()


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
