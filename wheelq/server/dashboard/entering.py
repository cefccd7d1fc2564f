"""Entering a page: finds the viewer, and checks that an action comes from a page of this server.

viewer    the session's cookie, or an API key as in the API; neither if the service needs no key
action    the Origin is this server, and the token of the form is that of the browser's cookie
"""

from __future__ import annotations

from starlette.requests import Request

from wheelq.server import problems
from wheelq.server.access.keyring import Caller
from wheelq.server.dashboard import session
from wheelq.server.dashboard.visit import Form, PagePlace, Visit
from wheelq.server.problems import Problem
from wheelq.server.service import Service, address_of

SESSION, TOKEN = "wheelq_session", "wheelq_token"
FORM = "application/x-www-form-urlencoded"


async def enter(service: Service, request: Request, place: PagePlace) -> Visit:
    """Returns the visit. Raises: Problem, InvalidInput, ServerError."""
    caller, is_signed_in = await viewer_of(service, request)
    service.admit(caller, address_of(request), place.verb, request.path_params.get("topic"))
    visit = visit_of(service, request, caller, is_signed_in)
    if place.is_action:
        visit.form = await checked_form(request)
    return visit


def visit_of(service: Service, request: Request, caller: Caller, is_signed_in: bool = False) -> Visit:
    """Returns the visit of this caller, with the browser's token or a new one."""
    return Visit(request, service, caller, is_signed_in, token_of(request))


def token_of(request: Request) -> str:
    """Returns the browser's token, or one that it is given with the answer."""
    token: str = request.scope.get(TOKEN) or request.cookies.get(TOKEN, "")
    request.scope[TOKEN] = token = token if session.is_token(token) else session.new_token()
    return token


async def checked_form(request: Request) -> Form:
    """Returns the fields of a form that a page of this server has sent. Raises: Problem, InvalidInput."""
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    if not host or origin.partition("://")[2] != host:
        what = "A form must come from a page of this server; behind a proxy, pass the Host header on."
        raise Problem(problems.FOREIGN_ORIGIN, what)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Problem(problems.UNSUPPORTED, f"Forms are sent as {FORM}.")
    form = Form.parse((await request.body()).decode(errors="replace"))
    if not session.is_same(request.cookies.get(TOKEN, ""), form.text("token")):
        raise Problem(problems.NOT_ALLOWED, "The form's token is missing or too old: load the page again.")
    return form


async def viewer_of(service: Service, request: Request) -> tuple[Caller, bool]:
    """Returns the viewer, and whether a session of this browser identifies it. Raises: Problem."""
    if not service.needs_key or request.headers.get("authorization"):
        return await service.caller_of(request), False
    cookie = request.cookies.get(SESSION, "")
    key = await service.keyring.find(session.key_id_of(cookie))
    if not cookie or not session.is_valid(cookie, key, service.clock.wall_ms()):
        raise Problem(problems.NO_KEY)
    return Caller(key.id, key.scopes), True
