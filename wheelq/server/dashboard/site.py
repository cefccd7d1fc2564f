"""The dashboard's routes, and what surrounds each page: the viewer, the audit log, safe headers, errors as pages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from wheelq.server import problems
from wheelq.server.dashboard import manual
from wheelq.server.dashboard.entering import NO_ONE, TOKEN, enter, sign_in, sign_out, token_of, visit_of
from wheelq.server.dashboard.pages import dead, future, jobs, overview, recurring, topics
from wheelq.server.dashboard.rendering import static
from wheelq.server.dashboard.visit import PagePlace, set_cookie
from wheelq.server.problems import Problem, problem_in
from wheelq.server.service import Service, address_of

logger = logging.getLogger("wheelq.server")

SAFE = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "referrer-policy": "same-origin",  # browsers send no Origin with forms under "no-referrer"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
YEAR_S = 31_536_000
PLACES = (
    *overview.PLACES,
    *future.PLACES,
    *topics.PLACES,
    *jobs.PLACES,
    *dead.PLACES,
    *recurring.PLACES,
)
"""Every place of the dashboard."""
Endpoint = Callable[[Request], Awaitable[Response]]


def install(app: FastAPI, service: Service) -> None:
    """Serve the dashboard."""
    for place in PLACES:
        _add(app, place.path, _endpoint(service, place), "POST" if place.is_action else "GET")
    _add(app, "/sign-in", _surrounded(service, sign_in), "GET", "POST")
    _add(app, "/sign-out", _surrounded(service, sign_out), "POST")
    _add(app, "/guide", _surrounded(service, manual.page), "GET")
    _add(app, "/guide/{page}", _surrounded(service, manual.page), "GET")
    _add(app, "/guide/images/{name}", _surrounded(service, manual.picture), "GET")
    _add(app, "/static/{version}/{name}", _static, "GET")


class BasePath:
    """Removes the base path from requests, if a proxy has passed it on."""

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(self._base_path)
            if path != scope["path"] and (not path or path.startswith("/")):
                scope = {**scope, "path": path or "/", "raw_path": (path or "/").encode()}
        await self._app(scope, receive, send)


def _add(app: FastAPI, path: str, endpoint: Endpoint, *methods: str) -> None:
    app.router.routes.append(Route(path, endpoint, methods=list(methods), include_in_schema=False))


def _endpoint(service: Service, place: PagePlace) -> Endpoint:
    """Returns the function that answers each request to a place."""

    async def answer(service: Service, request: Request) -> Response:
        with service.audit.of(request, place.verb, address_of(request)) as entry:
            visit = await enter(service, request, place)
            entry.caller, entry.topic = visit.caller, visit.form.get("topic")
            response = await place.handle(visit)
            entry.status = response.status_code
            return response

    return _surrounded(service, answer)


def _surrounded(service: Service, handle: Callable[[Service, Request], Awaitable[Response]]) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            response = await handle(service, request)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001  # every error becomes a page
            response = _error_page(service, request, error)
        for name, value in SAFE.items():
            response.headers.setdefault(name, value)
        if request.cookies.get(TOKEN) != token_of(request):
            set_cookie(service, response, TOKEN, token_of(request))
        return response

    return answer


def _error_page(service: Service, request: Request, error: Exception) -> Response:
    """Returns the page that shows an error, or a redirect to the sign-in for a viewer who has not signed in."""
    problem = problem_in(request.method, error)
    if problem.kind is problems.BROKEN:
        logger.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    visit = visit_of(service, request, NO_ONE)
    if problem.kind is problems.NO_KEY and service.needs_key and request.scope["path"] != "/events":
        asked = urlencode({"next": _asked(request)})
        response: Response = RedirectResponse(f"{visit.url('/sign-in')}?{asked}", 303)
    else:
        body = problem.body()
        response = visit.page("problem.html", problem.kind.status, title=body["title"], detail=body["detail"])
        for name, value in problem.response().headers.items():
            if name not in ("content-length", "content-type"):
                response.headers[name] = value
    return response


def _asked(request: Request) -> str:
    path: str = request.scope["path"]
    if request.method != "GET":
        return "/"
    return f"{path}?{request.url.query}" if request.url.query else path


async def _static(request: Request) -> Response:
    found = static(request.path_params["name"])
    if found is None:
        raise Problem(problems.NOT_FOUND)
    headers = {**SAFE, "cache-control": f"public, max-age={YEAR_S}, immutable"}
    return Response(found.body, media_type=found.media_type, headers=headers)
