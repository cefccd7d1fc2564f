"""`/v1/destinations`: the receivers of callbacks and their health."""

from __future__ import annotations

from fastapi import Request, Response
from pydantic import Field

from wheelq.callbacks.destination import DestinationInfo
from wheelq.producer.breaker import BreakerState
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.problems import Problem
from wheelq.server.routing import Resource, answer, caller_of, service_of
from wheelq.server.schemas.model import Answer, mirrors

routes = Resource("callbacks")


@mirrors(DestinationInfo)
class DestinationView(Answer):
    """A receiver of callbacks, as this server process sees it."""

    state: BreakerState = Field(
        description="closed: it is called. open: it has failed repeatedly, and is not called. half_open: it is tried."
    )


class DestinationList(Answer):
    """The receivers that this process has called so far, by name."""

    destinations: list[DestinationView]


@routes.on("GET", "/destinations", "See the health of receivers", Verb.READ, DestinationList)
async def destinations(request: Request) -> Response:
    """Returns the receivers that this process has called: whether they answer, and the state of their circuit breakers.

    Receivers belong to no topic, so an API key needs the scope `read:*`.
    """
    if not caller_of(request).reads_all:
        raise Problem(problems.NOT_ALLOWED, "Receivers belong to no topic: the key needs the scope read:*.")
    calling = service_of(request).calling
    infos = calling.destinations() if calling is not None else ()
    return answer({"destinations": [DestinationView.shows(info) for info in infos]})
