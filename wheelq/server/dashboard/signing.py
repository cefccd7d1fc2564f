"""Signing in with an API key, and out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wheelq.server.access.keyring import NOBODY, Caller
from wheelq.server.access.keys import parse_token
from wheelq.server.dashboard import session
from wheelq.server.dashboard.entering import SESSION, checked_form, visit_of
from wheelq.server.dashboard.visit import cookie_path, set_cookie
from wheelq.server.problems import TOO_MANY, Problem
from wheelq.server.service import Service, address_of

NOBODY_YET = Caller("", ())


async def sign_in(service: Service, request: Request) -> Response:
    """Show the form; take it, and lead on to where the viewer wanted to go."""
    visit = visit_of(service, request, NOBODY_YET)
    asked = visit.query if request.method == "GET" else await checked_form(request)
    following = _local(asked.text("next"))
    if not service.needs_key:
        return RedirectResponse(visit.url(following), 303)
    if request.method == "GET":
        return visit.page("sign_in.html", following=following, problem="")
    wait_s = service.rates.wait_s(address_of(request), service.clock.monotonic())
    if wait_s:
        raise Problem(TOO_MANY, retry_after_s=wait_s)
    id, secret = parse_token(asked.text("key")) or ("", "")
    key = await service.keyring.find(id)
    now_ms = service.clock.wall_ms()
    if not key.is_opened_by(secret, now_ms) or key is NOBODY:
        problem = "The API key is not known, has expired or was revoked."
        return visit.page("sign_in.html", 401, following=following, problem=problem)
    response = RedirectResponse(visit.url(following), 303)
    set_cookie(service, response, SESSION, session.issue(key, now_ms), max_age=session.SESSION_MS // 1000)
    return response


async def sign_out(service: Service, request: Request) -> Response:
    """End the session in this browser."""
    await checked_form(request)
    response = RedirectResponse(visit_of(service, request, NOBODY_YET).url("/sign-in"), 303)
    response.delete_cookie(SESSION, path=cookie_path(service), httponly=True, samesite="strict")
    return response


def _local(path: str) -> str:
    """Returns the path if it is on this server, else "/": a sign-in must not redirect to another site."""
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_local else "/"
