"""Entering a page: finds the viewer, checks that an action comes from a page of this server, signs viewers in and out.

viewer    the session's cookie, or an API key as in the API; neither if the service needs no key
action    the Origin must be this server, and the token of the form must be that of the browser's cookie

    session   KEY_ID.EXPIRES_MS.MAC      MAC = HMAC-SHA256(stored digest of the key's secret, KEY_ID.EXPIRES_MS)
    token     32 random hexadecimal digits, in a cookie of its own and in each form; both must be the same

The server stores nothing. Every process that knows the key can check the session, and a revoked, rotated or expired key
ends its sessions, because its digest is gone. The cookie never holds the secret or its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wheelq.server import problems
from wheelq.server.access import NOBODY, ApiKey, Caller, Verb, parse_token
from wheelq.server.dashboard.visit import Form, PagePlace, Visit, cookie_path, set_cookie
from wheelq.server.problems import TOO_MANY, Problem
from wheelq.server.schemas.reading import FORM, body_of, is_form
from wheelq.server.service import Service, address_of

SESSION, TOKEN = "wheelq_session", "wheelq_token"
VIEWER = "wheelq.viewer"
"""The key of the request's scope for its viewer and whether a session identifies it, once that is known."""
NO_ONE = Caller("", ())
"""The viewer who has not signed in."""
SESSION_MS = 12 * 3_600_000
"""How long a sign-in lasts."""
ENTRY_BYTES = 16_384
"""The largest form of a viewer who may not have signed in."""
_SESSION = re.compile(r"([A-Za-z0-9-]{1,64})\.([0-9]{1,15})\.([0-9a-f]{64})")
_TOKEN = re.compile(r"[0-9a-f]{32}")


async def enter(service: Service, request: Request, place: PagePlace) -> Visit:
    """Returns the visit. Raises: Problem, InvalidInput, ServerError."""
    caller, is_signed_in = request.scope[VIEWER] = await viewer_of(service, request)
    service.admit(caller, address_of(request), place.verb, request.path_params.get("topic"))
    visit = visit_of(service, request, caller, is_signed_in)
    if place.is_action:
        visit.form = await checked_form(request, service.job_limits.size)
    return visit


def visit_of(service: Service, request: Request, caller: Caller, is_signed_in: bool = False) -> Visit:
    """Returns the visit of this caller, with the browser's token or a new one."""
    return Visit(request, service, caller, is_signed_in, token_of(request))


def token_of(request: Request) -> str:
    """Returns the browser's token, or one that it is given with the answer."""
    token: str = request.scope.get(TOKEN) or request.cookies.get(TOKEN, "")
    request.scope[TOKEN] = token = token if _TOKEN.fullmatch(token) else secrets.token_hex(16)
    return token


async def checked_form(request: Request, most_bytes: int) -> Form:
    """Returns the fields of a form that a page of this server has sent. Raises: Problem, InvalidInput."""
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    if not host or origin.partition("://")[2] != host:
        what = "A form must come from a page of this server; behind a proxy, pass the Host header on."
        raise Problem(problems.FOREIGN_ORIGIN, what)
    if not is_form(request.headers.get("content-type", "")):
        raise Problem(problems.UNSUPPORTED, f"Forms are sent as {FORM}.")
    form = Form.parse((await body_of(request, most_bytes)).decode(errors="replace"))
    token, sent = request.cookies.get(TOKEN, ""), form.text("token").encode(errors="replace")
    if not _TOKEN.fullmatch(token) or not hmac.compare_digest(token.encode(), sent):
        raise Problem(problems.NOT_ALLOWED, "The form's token is missing or too old: load the page again.")
    return form


async def viewer_of(service: Service, request: Request) -> tuple[Caller, bool]:
    """Returns the viewer, and whether a session of this browser identifies it. Raises: Problem."""
    if not service.needs_key or request.headers.get("authorization"):
        return await service.caller_of(request), False
    cookie = request.cookies.get(SESSION, "")
    now_ms = service.clock.wall_ms()
    key = await service.keyring.find(key_id_of(cookie), lambda key: is_valid_session(cookie, key, now_ms))
    if not cookie or not is_valid_session(cookie, key, now_ms):
        raise Problem(problems.NO_KEY)
    return Caller(key.id, key.scopes), True


async def sign_in(service: Service, request: Request) -> Response:
    """Show the form, or take it and redirect to the page that the viewer wanted."""
    visit, is_answer = visit_of(service, request, NO_ONE), request.method == "POST"
    if is_answer:
        wait_s = service.rates.wait_s(address_of(request), service.clock.monotonic())
        if wait_s:
            raise Problem(TOO_MANY, retry_after_s=wait_s)
    asked = await checked_form(request, ENTRY_BYTES) if is_answer else visit.query
    following = _local(asked.text("next"))
    if not service.needs_key:
        return RedirectResponse(visit.url(following), 303)
    if not is_answer:
        return visit.page("sign_in.html", following=following, problem="")
    id, secret = parse_token(asked.typed("key") or "") or ("", "")
    now_ms = service.clock.wall_ms()
    key = await service.keyring.find(id, lambda key: key.is_opened_by(secret, now_ms))
    if not key.is_opened_by(secret, now_ms) or key is NOBODY:
        problem = "The API key is not known, has expired or was revoked."
        service.audit.tell_entry(request, "sign-in", key.id, address_of(request), 401)
        return visit.page("sign_in.html", 401, following=following, problem=problem)
    service.audit.tell_entry(request, "sign-in", key.id, address_of(request), 303)
    if following == "/" and not Caller(key.id, key.scopes).may(Verb.READ, None):
        following = "/schedule"
    response = RedirectResponse(visit.url(following), 303)
    set_cookie(service, request, response, SESSION, new_session(key, now_ms), max_age=SESSION_MS // 1000)
    return response


async def sign_out(service: Service, request: Request) -> Response:
    """End the session in this browser."""
    await checked_form(request, ENTRY_BYTES)
    service.audit.tell_entry(request, "sign-out", key_id_of(request.cookies.get(SESSION, "")), address_of(request), 303)
    response = RedirectResponse(visit_of(service, request, NO_ONE).url("/sign-in"), 303)
    response.delete_cookie(SESSION, path=cookie_path(service), httponly=True, samesite="strict")
    return response


def _local(path: str) -> str:
    """Returns the path if it is on this server, else "/": a sign-in must not redirect to another site."""
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_local else "/"


def new_session(key: ApiKey, now_ms: int) -> str:
    """Returns the cookie of a new session with this key."""
    expires_ms = now_ms + SESSION_MS
    if key.expires_ms:
        expires_ms = min(expires_ms, key.expires_ms)
    latest = next(digest for digest, until_ms in key.digests if not until_ms)
    return f"{key.id}.{expires_ms}.{_mac(latest, key.id, expires_ms)}"


def key_id_of(cookie: str) -> str:
    """Returns the id of the key that a cookie names; "" if the cookie is not that of a session."""
    found = _SESSION.fullmatch(cookie)
    return found[1] if found else ""


def is_valid_session(cookie: str, key: ApiKey, now_ms: int) -> bool:
    """Whether this key issued the cookie, and neither of them has ended."""
    found = _SESSION.fullmatch(cookie)
    if found is None or found[1] != key.id:
        return False
    expires_ms, valid = int(found[2]), False
    for digest, until_ms in key.digests:
        is_in_force = not until_ms or now_ms < until_ms
        valid |= hmac.compare_digest(_mac(digest, key.id, expires_ms), found[3]) and is_in_force
    return valid and now_ms < expires_ms and key.is_alive(now_ms)


def _mac(digest: bytes, id: str, expires_ms: int) -> str:
    return hmac.new(digest, f"wheelq dashboard {id}.{expires_ms}".encode(), hashlib.sha256).hexdigest()
