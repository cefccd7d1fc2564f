"""Is it alive, is it ready, what is it: for load balancers and people. No key is needed, and nothing secret is told."""

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
    """What this is."""

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
    """Whether this process answers; asks nobody else. For the decision to restart it."""
    return answer({"status": "alive"})


@routes.get(
    "/readyz",
    summary="Ready?",
    response_class=Response,
    responses={200: {"model": Readiness}, 503: {"model": Readiness}},
    openapi_extra=ANYONE,
)
async def is_ready(request: Request) -> Response:
    """Whether requests should come here. Asks Redis, and looks whether schedulers live and keep up."""
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
    """The version of this server."""
    body: dict[str, Any] = {"name": "wheelq", "version": __version__}
    return answer(body)
