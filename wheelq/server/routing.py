"""`Route`: wraps every handler: checks the API key, reads JSON strictly, and logs changes for the audit.

A route names the right that its caller needs (`needs(Verb.READ)`), or is open to all (`ANYONE`). A route without either
cannot be created, so none is open by oversight.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from wheelq.base.as_json import as_json
from wheelq.errors import InvalidInput
from wheelq.server import problems
from wheelq.server.access import Caller, Verb
from wheelq.server.problems import Problem
from wheelq.server.schemas.reading import BodyLimits, body_of, charset_of, is_json, read
from wheelq.server.service import Service, address_of

_NEEDS = "x-wheelq-needs"
M = TypeVar("M", bound=BaseModel)
H = TypeVar("H", bound=Callable[..., Any])
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def needs(verb: Verb) -> dict[str, Any]:
    """For `openapi_extra`: the caller's key must have this verb, on the topic in the path."""
    return {_NEEDS: str(verb), "security": [{"key": []}]}


ANYONE: dict[str, Any] = {_NEEDS: ""}
"""For `openapi_extra`: no key is needed."""

READS_ITSELF: dict[str, Any] = {"x-wheelq-reads-itself": True}
"""For `openapi_extra` of a handler that takes the request alone."""

_TAKES_MANY = "x-wheelq-takes-many"
TAKES_MANY: dict[str, Any] = {_TAKES_MANY: True}
"""For `openapi_extra`: the body may be as large as any; elsewhere it is as large as that of one job."""

TAKEN: dict[str, type[BaseModel]] = {}
"""The models named in `takes`, for the document."""


def takes(model: type[BaseModel], *parameters: dict[str, Any]) -> dict[str, Any]:
    """For `openapi_extra` of a handler that reads the request itself: documents its input, which FastAPI cannot
    know.
    """
    TAKEN[model.__name__] = model
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "parameters": list(parameters),
        **READS_ITSELF,
    }


class StrictRequest(Request):
    """A request with strict JSON: no NaN, no lone surrogates, limited size and depth."""

    limits: BodyLimits

    async def body(self) -> bytes:
        """Returns the body. Raises: Problem."""
        if not hasattr(self, "_body"):
            self._body = await body_of(self, self.limits.size)
        return self._body

    async def json(self) -> Any:
        """Returns the parsed body. Raises: Problem."""
        kind = self.headers.get("content-type", "")
        if kind != "application/json":
            if not is_json(kind):
                raise Problem(problems.UNSUPPORTED, field="Content-Type")
            if charset_of(kind) not in ("utf-8", "ascii"):
                what = f"JSON is sent in UTF-8; the charset of this body is given in its type, {kind[:100]!r}."
                raise Problem(problems.UNSUPPORTED, what, "Content-Type")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(problems.UNSUPPORTED, field="Content-Encoding")
        try:
            return self.limits.parse(await self.body())
        except ValueError as error:
            raise Problem(problems.BAD_REQUEST, f"The body is not JSON: {error}.") from error

    async def read(self, model: type[M]) -> M:
        """Returns the body as a model. Raises: Problem, InvalidInput."""
        return read(model, await self.json())

    async def gone(self) -> None:
        """Returns when the caller has left, or has its answer. Call it after reading the body."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class Route(APIRoute):
    """A route whose caller is known.

    FastAPI's parsing of a handler's arguments is slow: three arguments take as long as all the rest. So the handlers
    that are called most take only the request, and read it themselves (see `takes`).
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **told: Any) -> None:
        super().__init__(path, endpoint, **told)
        if self.methods is not None and "GET" in self.methods:
            self.methods.add("HEAD")  # uvicorn leaves the body out

    def get_route_handler(self) -> Handler:
        """Returns the function that is called for each request."""
        told = self.openapi_extra or {}
        verb = told.get(_NEEDS)
        assert verb is not None, f"{self.path} must say whom it lets in: openapi_extra=needs(…) or ANYONE"
        handle: Handler = self.endpoint if told.keys() >= READS_ITSELF.keys() else super().get_route_handler()
        if not verb:
            return handle
        needed = Verb(verb)
        takes_many = told.get(_TAKES_MANY, False)
        takes_json = self.body_field is not None
        known = {field.alias for field in get_flat_params(self.dependant)}

        async def guarded(request: Request) -> Response:
            service = service_of(request)
            address = address_of(request)
            with service.audit.of(request, needed, address) as entry:
                entry.caller = caller = await service.caller_of(request)
                service.admit(caller, address, needed, request.path_params.get("topic"))
                if request.scope["query_string"] and self.path.startswith("/v1/"):
                    for name in sorted(request.query_params.keys() - known):
                        raise InvalidInput(name[:100], "is not known here")
                if takes_json and not is_json(request.headers.get("content-type", "")):  # FastAPI would say 422
                    raise Problem(problems.UNSUPPORTED, field="Content-Type")
                request.scope["wheelq.caller"], request.scope["wheelq.audit"] = caller, entry
                strict = StrictRequest(request.scope, request.receive)
                limits = service.job_limits
                strict.limits = limits.of_many(service.settings.server.body_max_bytes) if takes_many else limits
                response = await handle(strict)
                entry.status = response.status_code
                return response

        return guarded


class Resource(APIRouter):
    """The routes of one resource."""

    def __init__(self, tag: str, prefix: str = "/v1") -> None:
        super().__init__(
            prefix=prefix,
            tags=[tag],
            route_class=Route,
            redirect_slashes=False,
            generate_unique_id_function=lambda route: route.name,
        )

    def on(
        self,
        method: str,
        path: str,
        summary: str,
        verb: Verb | None,
        answers: type[BaseModel] | Mapping[int, type[BaseModel] | tuple[type[BaseModel], str] | str],
        *kinds: problems.Kind,
        **extra: Any,
    ) -> Callable[[H], H]:
        """Makes a function the handler of a route, with what the document tells of it and the right its caller needs.

        `answers` is the model of its answer, or by status a model, a model with a description or a description, the
        usual status first; `kinds` are the problems it may end in, besides those that every route may. Without `verb`
        it is open to all. `extra` comes from `takes`.
        """
        responses: dict[int | str, dict[str, Any]] = {}
        for status, given in ({200: answers} if isinstance(answers, type) else answers).items():
            match given:
                case str():
                    responses[status] = {"description": given}
                case (model, description):
                    responses[status] = {"model": model, "description": description}
                case _:
                    responses[status] = {"model": given}
            if status == 201:
                responses[status]["headers"] = {"Location": _LOCATION}
        return self.api_route(
            path,
            methods=[method],
            summary=summary,
            status_code=next(iter(responses)),
            response_class=Response,
            responses={**responses, **problems_of(*kinds)},
            openapi_extra={**(ANYONE if verb is None else needs(verb)), **extra},
        )


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["wheelq.caller"]
    return caller


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns an answer in JSON."""
    return Response(as_json(body), status, headers, "application/json")


def location(request: Request, kind: str, topic: str, name: str, partition_key: str | None = None) -> dict[str, str]:
    """Returns the header of an answer that says where what was made can be looked up."""
    base_path = service_of(request).settings.server.base_path
    query = "" if partition_key is None else f"?partition_key={quote(partition_key, safe='')}"
    return {"location": f"{base_path}/v1/topics/{topic}/{kind}/{quote(name)}{query}"}


_LOCATION = {"description": "Where it can be looked up.", "schema": {"type": "string"}}


def problems_of(*kinds: problems.Kind) -> dict[int | str, dict[str, Any]]:
    """For `responses`: the problems a route may end in, besides those that every route may."""
    found: dict[int | str, dict[str, Any]] = {}
    for kind in (*kinds, *_OF_EVERY_ROUTE):
        known = found.get(kind.status)
        description = f"{known['description']}; or {kind.name}: {kind.title}" if known else f"{kind.name}: {kind.title}"
        found[kind.status] = {
            "description": description,
            "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found


_OF_EVERY_ROUTE = (
    problems.BAD_REQUEST,
    problems.NO_KEY,
    problems.NOT_ALLOWED,
    problems.TOO_SLOW,
    problems.TOO_LARGE,
    problems.UNSUPPORTED,
    problems.INVALID,
    problems.TOO_MANY,
    problems.BROKEN,
    problems.REFUSED,
    problems.OVERLOADED,
    problems.UNAVAILABLE,
    problems.OUTCOME_UNKNOWN,
)
