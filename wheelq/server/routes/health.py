"""Liveness, readiness and version, for load balancers and people. They need no key, and reveal no secrets."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from wheelq import __version__
from wheelq.server import problems
from wheelq.server.readiness import Readiness
from wheelq.server.routing import ANYONE, answer, problems_of, router, service_of
from wheelq.server.schemas.model import Answer

routes = router("health", prefix="")


class Alive(Answer):
    """The process answers."""

    status: str


class Version(Answer):
    """The version of this server."""

    name: str
    version: str


@routes.get(
    "/healthz",
    summary="Alive?",
    response_class=Response,
    responses={200: {"model": Alive}, **problems_of()},
    openapi_extra=ANYONE,
)
async def is_alive() -> Response:
    """Tells whether this process answers, without asking Redis. Use it to decide on a restart."""
    return answer({"status": "alive"})


@routes.get(
    "/readyz",
    summary="Ready?",
    response_class=Response,
    responses={200: {"model": Readiness}, 503: {"model": Readiness}},
    openapi_extra=ANYONE,
)
async def is_ready(request: Request) -> Response:
    """Tells whether requests should come here: checks Redis, and whether schedulers are alive and keep up."""
    found = await service_of(request).readiness()
    headers = None if found.ready else {"retry-after": "2"}
    return answer(found.model_dump(), 200 if found.ready else problems.NOT_READY.status, headers)


@routes.get(
    "/version",
    summary="Which version?",
    response_class=Response,
    responses={200: {"model": Version}, **problems_of()},
    openapi_extra=ANYONE,
)
async def version() -> Response:
    """Returns the version of this server."""
    body: dict[str, Any] = {"name": "wheelq", "version": __version__}
    return answer(body)


for _path, _handler in (("/healthz", is_alive), ("/readyz", is_ready), ("/version", version)):
    routes.head(_path, include_in_schema=False, response_class=Response, openapi_extra=ANYONE)(_handler)
