"""Puts the server together: routes, what stands before them, and what an error looks like."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from wheelq.errors import WheelqError
from wheelq.server import document, problems
from wheelq.server.classic.envelope import PATH as CLASSIC
from wheelq.server.classic.envelope import failure
from wheelq.server.gate import Gate
from wheelq.server.problems import Problem, problem_of
from wheelq.server.routes import callbacks, classic, dead, health, jobs, leases, metrics, recurring, topics
from wheelq.server.schemas import reading
from wheelq.server.service import Service

logger = logging.getLogger("wheelq.server")


def make_app(service: Service) -> FastAPI:
    """The ASGI application around a service that is `running`."""

    # The document and its page are our own: FastAPI's pages load their scripts from the internet.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    app.state.methods = []
    for resource in (jobs, callbacks, classic, leases, topics, dead, recurring, health, metrics):
        # Not include_router, which would let every request be matched twice: by router, then by route.
        app.router.routes += resource.routes.routes
        app.state.methods += [(r.path_regex, r.methods) for r in resource.routes.routes if isinstance(r, APIRoute)]
    document.install(app, service.needs_key, service.desk.is_open)
    settings = service.settings.server
    app.add_middleware(
        Gate,
        tell=_response,
        answered=service.answered,
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
    for kind in (WheelqError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _tell)
    return app


async def _tell(request: Request, error: Exception) -> Response:
    """The one place where an error becomes an answer."""
    problem = _problem(request, error)
    if problem.kind is problems.BROKEN:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _response(request.url.path, problem)


def _response(path: str, problem: Problem) -> Response:
    return failure(problem) if path.startswith(CLASSIC) else problem.response()


def _methods(request: Request) -> str:
    """All that the path takes; the router knows those of the first route that it found."""
    path = request.url.path
    return ", ".join(
        sorted({name for regex, names in request.app.state.methods if regex.match(path) for name in names})
    )


def _problem(request: Request, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return problem_of(reading.invalid(error.errors()))
        case WheelqError():
            return problem_of(error)
        case HTTPException(status_code=405):
            return Problem(problems.METHOD_NOT_ALLOWED, more={"allow": _methods(request)})
        case HTTPException():
            headers: Mapping[str, str] | None = error.headers
            return Problem(problems.BY_STATUS.get(error.status_code, problems.BAD_REQUEST), error.detail, more=headers)
    return Problem(problems.BROKEN)
