"""`/v1/destinations`: the receivers of callbacks and their health."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from wheelq.callbacks.destination import DestinationInfo
from wheelq.producer.breaker import BreakerState
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.problems import Problem
from wheelq.server.routing import answer, caller_of, documented, router, service_of
from wheelq.server.schemas.model import Answer

routes = router("callbacks")


class DestinationView(Answer):
    """A receiver of callbacks, as this server process sees it."""

    name: str
    state: BreakerState
    """closed: it is called. open: it has failed repeatedly, and is not called. half_open: it is tried."""
    in_flight: int
    deferred: int
    succeeded: int
    failed: int
    last_error: str | None


class DestinationList(Answer):
    """The receivers that this process has called so far, by name."""

    destinations: list[DestinationView]


def destination_view(info: DestinationInfo) -> dict[str, Any]:
    """A receiver as an answer: see `DestinationView`."""
    return {name: getattr(info, name) for name in DestinationView.model_fields}


@routes.get("/destinations", **documented("See the health of receivers", Verb.READ, DestinationList))
async def destinations(request: Request) -> Response:
    """Returns the receivers that this process has called: whether they answer, and the state of their circuit breakers.

    Receivers belong to no topic, so an API key needs the scope `read:*`.
    """
    if not caller_of(request).reads_all:
        raise Problem(problems.NOT_ALLOWED, "Receivers belong to no topic: the key needs the scope read:*.")
    calling = service_of(request).calling
    infos = calling.destinations() if calling is not None else ()
    return answer({"destinations": [destination_view(info) for info in infos]})
