"""`/v1/topics`: the counts and settings of topics, pause and resume; their groups; the removal of groups and topics."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request, Response

from wheelq.errors import InvalidInput
from wheelq.model.topic import KEPT_HOURS
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.leases import PREFIX
from wheelq.server.problems import Problem
from wheelq.server.routing import Resource, answer, caller_of, service_of
from wheelq.server.schemas.model import Topic
from wheelq.server.schemas.topics import (
    Force,
    Forecast,
    History,
    MinuteView,
    SpanView,
    TopicCounts,
    TopicCountsList,
    TopicGroup,
    TopicGroups,
    TopicSettingsChange,
    TopicStanding,
    standing,
)

routes = Resource("topics", "/v1/topics")


@routes.on("GET", "", "List topics", Verb.READ, TopicCountsList)
async def list_topics(request: Request) -> Response:
    """Returns the topics that the key may read, with their job counts."""
    found = await service_of(request).client.topics()
    caller = caller_of(request)
    return answer({"topics": [TopicCounts.shows(info) for info in found if caller.may(Verb.READ, info.name)]})


@routes.on("GET", "/{topic}", "Count a topic's jobs", Verb.READ, TopicCounts, problems.TOPIC_NOT_FOUND)
async def get_topic(request: Request, topic: Topic) -> Response:
    """Returns the topic's job counts now."""
    return answer(TopicCounts.shows(await service_of(request).client.topic(topic)))


@routes.on("GET", "/{topic}/forecast", "See when jobs are due", Verb.READ, Forecast, problems.TOPIC_NOT_FOUND)
async def forecast(request: Request, topic: Topic) -> Response:
    """Returns how many waiting jobs are due already, within a second, ten, a minute … a week, and later."""
    spans = await service_of(request).client.forecast(topic)
    return answer({"spans": [SpanView.shows(span) for span in spans]})


@routes.on("GET", "/{topic}/history", "See what happened", Verb.READ, History, problems.TOPIC_NOT_FOUND)
async def history(
    request: Request,
    topic: Topic,
    hours: Annotated[int, Query(ge=1, le=KEPT_HOURS, description="Hours to go back.")] = 24,
) -> Response:
    """Returns the counts of each minute of the last hours, without the current minute."""
    minutes = await service_of(request).client.history(topic, hours)
    return answer({"minutes": [MinuteView.shows(minute) for minute in minutes]})


@routes.on("GET", "/{topic}/settings", "Look a topic's settings up", Verb.READ, TopicStanding, problems.TOPIC_NOT_FOUND)
async def get_settings(request: Request, topic: Topic) -> Response:
    """Returns the topic's settings."""
    return answer(standing(topic, await service_of(request).client.settings_of(topic)))


@routes.on(
    "PATCH", "/{topic}/settings", "Change a topic's settings", Verb.MANAGE, TopicStanding, problems.TOPIC_NOT_FOUND
)
async def change_settings(request: Request, topic: Topic, change: TopicSettingsChange) -> Response:
    """Changes a live topic, or creates a new one with these settings."""
    asked: dict[str, Any] = change.model_dump(exclude_unset=True)
    if not asked:
        raise InvalidInput("body", "names no setting")
    if "max_rate" in asked:
        asked["max_rate"] = float(asked["max_rate"])
    service = service_of(request)
    service.intake.check_on_dead(change.on_dead, caller_of(request))
    return answer(standing(topic, await service.client.configure(topic, **asked)))


@routes.on("POST", "/{topic}/pause", "Pause a topic", Verb.MANAGE, TopicStanding, problems.TOPIC_NOT_FOUND)
async def pause(request: Request, topic: Topic) -> Response:
    """Nothing is promoted until the topic is resumed; jobs can be scheduled, and wait."""
    return answer(standing(topic, await service_of(request).client.pause(topic)))


@routes.on("POST", "/{topic}/resume", "Resume a topic", Verb.MANAGE, TopicStanding, problems.TOPIC_NOT_FOUND)
async def resume(request: Request, topic: Topic) -> Response:
    """Jobs that fell due meanwhile are promoted at once, earliest first."""
    return answer(standing(topic, await service_of(request).client.resume(topic)))


group_routes = Resource("groups", "/v1/topics")
Group = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,255}$",
        description="The name in the list. Groups of leases may be named without their `http.`, if no other group "
        "has the name.",
        examples=["billing"],
    ),
]


@group_routes.on("GET", "/{topic}/groups", "List a topic's groups", Verb.READ, TopicGroups, problems.TOPIC_NOT_FOUND)
async def list_groups(request: Request, topic: Topic) -> Response:
    """Returns the lag of each group, and its workers."""
    return answer({"groups": [TopicGroup.shows(group) for group in await service_of(request).client.groups(topic)]})


_GONE = {204: "Nothing of it is left."}
_KEPT = (problems.TOPIC_NOT_FOUND, problems.IN_USE)


@group_routes.on(
    "DELETE", "/{topic}/groups/{group}", "Remove a group", Verb.MANAGE, _GONE, *_KEPT, problems.GROUP_NOT_FOUND
)
async def remove_group(request: Request, topic: Topic, group: Group, force: Force = None) -> Response:
    """Also removes the group's unread, running, retrying and dead jobs. Other groups keep theirs. May be repeated."""
    client = service_of(request).client
    names = {found.name for found in await client.groups(topic)}
    name = PREFIX + group if group not in names and PREFIX + group in names else group
    if not await client.remove_group(topic, name, force=force == "true"):
        raise Problem(problems.GROUP_NOT_FOUND)
    return Response(status_code=204)


@group_routes.on("DELETE", "/{topic}", "Remove a topic", Verb.MANAGE, _GONE, *_KEPT)
async def remove_topic(request: Request, topic: Topic, force: Force = None) -> Response:
    """Removes the topic with everything in it. Takes 10 seconds, until all producers' caches have expired. May be
    repeated.
    """
    await service_of(request).client.remove_topic(topic, force=force == "true")
    return Response(status_code=204)
