"""`/v1/topics/{topic}/groups`: lists the groups of a topic; removes groups and topics."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request, Response

from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.leases import PREFIX
from wheelq.server.problems import Problem
from wheelq.server.routing import answer, documented, router, service_of
from wheelq.server.schemas.model import Topic
from wheelq.server.schemas.topics import Force, TopicGroup, TopicGroups

routes = router("groups")
Group = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,255}$",
        description="The name in the list. Groups of leases may be named without their `http.`, if no other group "
        "has the name.",
        examples=["billing"],
    ),
]


@routes.get(
    "/topics/{topic}/groups", **documented("List a topic's groups", Verb.READ, TopicGroups, problems.TOPIC_NOT_FOUND)
)
async def list_groups(request: Request, topic: Topic) -> Response:
    """Returns the lag of each group, and its workers."""
    return answer({"groups": [TopicGroup.shows(group) for group in await service_of(request).client.groups(topic)]})


@routes.delete(
    "/topics/{topic}/groups/{group}",
    **documented(
        "Remove a group",
        Verb.MANAGE,
        {204: "Nothing of it is left."},
        problems.TOPIC_NOT_FOUND,
        problems.GROUP_NOT_FOUND,
        problems.IN_USE,
    ),
)
async def remove_group(request: Request, topic: Topic, group: Group, force: Force = None) -> Response:
    """Also removes the group's unread, running, retrying and dead jobs. Other groups keep theirs. May be repeated."""
    client = service_of(request).client
    names = {found.name for found in await client.groups(topic)}
    name = PREFIX + group if group not in names and PREFIX + group in names else group
    if not await client.remove_group(topic, name, force=force == "true"):
        raise Problem(problems.GROUP_NOT_FOUND)
    return Response(status_code=204)


@routes.delete(
    "/topics/{topic}",
    **documented(
        "Remove a topic", Verb.MANAGE, {204: "Nothing of it is left."}, problems.TOPIC_NOT_FOUND, problems.IN_USE
    ),
)
async def remove_topic(request: Request, topic: Topic, force: Force = None) -> Response:
    """Removes the topic with everything in it. Takes 10 seconds, until all producers' caches have expired. May be
    repeated.
    """
    await service_of(request).client.remove_topic(topic, force=force == "true")
    return Response(status_code=204)
