"""`/groups`: the consumer groups of every topic, those that are furthest behind first."""

from __future__ import annotations

from starlette.responses import Response

from wheelq.server.access.keys import Verb
from wheelq.server.dashboard.visit import Visit, does, shows
from wheelq.server.problems import GROUP_NOT_FOUND, Problem

MOST = 300


async def groups(visit: Visit) -> Response:
    """Every group that the viewer may read, with its lag and oldest job."""
    seen = await visit.service.look.now()
    found = [group for group in seen.groups if visit.may(Verb.READ, group.topic)]
    found.sort(key=lambda group: (-group.lag, -group.pending, group.topic, group.name))
    return visit.page("groups.html", seen=seen, groups=found[:MOST], left_out=max(0, len(found) - MOST))


async def remove(visit: Visit) -> Response:
    """Remove a group without live workers, with all it has yet to do."""
    name = visit.form.needed("group")
    if not await visit.service.client.remove_group(visit.topic, name):
        raise Problem(GROUP_NOT_FOUND)
    visit.changed(visit.topic)
    return visit.back(f"/topics/{visit.topic}", f"Group {name} is removed.")


PLACES = (shows("/groups", groups), does("/topics/{topic}/groups/remove", remove, Verb.MANAGE))
