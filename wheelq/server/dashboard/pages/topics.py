"""`/topics`: every topic; and one topic: what it holds, its settings, groups, workers and shards.

`/groups`: the consumer groups of every topic, those that are furthest behind first.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from starlette.responses import Response

from wheelq.base.plural import counted
from wheelq.errors import InvalidInput
from wheelq.model.durations import parse_duration
from wheelq.model.topic import TopicChanges
from wheelq.protocol.calls import heartbeats, shard_counts
from wheelq.server.access import Verb
from wheelq.server.dashboard.pages.future import chart, colours_in, past
from wheelq.server.dashboard.timeline import ask_all
from wheelq.server.dashboard.visit import Form, Visit, does, mark_of, shows
from wheelq.server.problems import GROUP_NOT_FOUND, Problem
from wheelq.settings import TopicSettings
from wheelq.settings.declaration import declarations

PER_PAGE = 100
MOST_SHARDS = 500
"""The most shards that are shown; all are counted."""
MOST_GROUPS = 300
HOT = 2.0
"""How many times its share of the waiting jobs a shard holds at least to be marked as hot."""
HOT_JOBS = 100
"""The least number of waiting jobs in a shard that is marked as hot."""

SETTINGS = {name: one for name, one in declarations(TopicSettings).items() if name in TopicChanges.__annotations__}
"""The settings that can be changed, in the order in which they are shown."""


class ShardRow(NamedTuple):
    """One shard: who leads it, and what it holds."""

    number: int
    leader: str
    standby: str
    jobs: shard_counts.ShardCounts
    is_hot: bool


async def topics(visit: Visit) -> Response:
    """Every topic that the viewer may read, by name."""
    seen, query = await visit.service.snapshot.now(), visit.query
    asked, first = (query.typed("q") or "").lower(), query.whole("first") or 0
    found = [info for info in visit.readable(seen) if asked in info.name.lower()]
    more = first + PER_PAGE if len(found) > first + PER_PAGE else None
    page = found[first : first + PER_PAGE]
    return visit.page("topics.html", seen=seen, topics=page, found=len(found), asked=query.text("q"), more=more)


async def topic(visit: Visit) -> Response:
    service, name = visit.service, visit.topic
    settings = await service.client.settings_of(name)
    shards = [service.keys.shard(name, n) for n in range(settings.all_shards)]
    counts = await ask_all(service.transport, [shard_counts.counts(shard) for shard in shards])
    [info] = shard_counts.add_up({name: settings}, shards, counts)
    posts, groups, seen = await asyncio.gather(
        service.transport.send(heartbeats.assignment(service.keys)),
        service.client.groups(name),
        service.snapshot.showing(name),
    )
    outlook = await service.due_counts.span("hour", [info])
    return visit.page(
        "topic.html",
        topic=name,
        info=info,
        settings=settings,
        now_ms=counts[0].server_us // 1000,
        groups=groups,
        workers=[worker for worker in seen.processes.workers if name in worker.topics],
        shards=_shard_rows(name, counts, posts)[:MOST_SHARDS],
        shards_left_out=settings.all_shards - MOST_SHARDS,
        declared=SETTINGS.values(),
        shown=mark_of(_shown(settings)),
        upcoming=chart(visit, outlook, name, colours_in(outlook, [*seen.topics, info]), height=180),
        due_in_hour=sum(outlook.bars),
        past=await past(visit, [info], counts[0].server_us // 1000),
    )


async def change(visit: Visit) -> Response:
    """Change settings of the topic: those that differ from what it has."""
    service, name = visit.service, visit.topic
    settings = await service.client.settings_of(name)
    visit.check_still(_shown(settings))
    form = visit.form
    asked = {
        field: _value(form, field)
        for field, one in SETTINGS.items()
        if form.typed(field) is not None or (one.default == "" and field in form.names)
    }
    differs: dict[str, Any] = {field: value for field, value in asked.items() if value != getattr(settings, field)}
    if not differs:
        return visit.back(f"/topics/{name}", "Nothing was changed.")
    service.intake.check_on_dead(differs.get("on_dead"), visit.caller)
    changes: TopicChanges = differs  # type: ignore[assignment]  # the names are those of SETTINGS; values are checked
    await service.client.configure(name, **changes)
    return visit.back(f"/topics/{name}", f"Changed: {', '.join(sorted(differs))}.")


def _shown(settings: TopicSettings) -> list[Any]:
    return [getattr(settings, name) for name in SETTINGS]


async def set_shards(visit: Visit) -> Response:
    """Change the number of shards, while jobs wait and run."""
    number = visit.form.whole("shards", 1, 10_000)
    if number is None:
        raise InvalidInput("shards", "is missing")
    await visit.service.client.set_shards(visit.topic, number)
    return visit.back(
        f"/topics/{visit.topic}", f"The topic has {counted(number, 'shard')} now; old jobs stay where they are."
    )


async def pause(visit: Visit) -> Response:
    """Promote nothing until the topic is resumed."""
    await visit.service.client.pause(visit.topic)
    return visit.back(f"/topics/{visit.topic}", "The topic is paused: jobs wait until it is resumed.")


async def resume(visit: Visit) -> Response:
    """Promote again; what fell due meanwhile is promoted at once."""
    await visit.service.client.resume(visit.topic)
    return visit.back(f"/topics/{visit.topic}", "The topic is resumed.")


async def groups(visit: Visit) -> Response:
    """Every group that the viewer may read, with its lag and oldest job."""
    seen = await visit.service.snapshot.now()
    found = [group for group in seen.groups if visit.may(Verb.READ, group.topic)]
    found.sort(key=lambda group: (-group.lag, -group.pending, group.topic, group.name))
    return visit.page("groups.html", seen=seen, groups=found[:MOST_GROUPS], left_out=max(0, len(found) - MOST_GROUPS))


async def remove_group(visit: Visit) -> Response:
    """Remove a group without live workers, with its unfinished jobs."""
    name = visit.form.needed("group")
    if not await visit.service.client.remove_group(visit.topic, name):
        raise Problem(GROUP_NOT_FOUND)
    return visit.back(f"/topics/{visit.topic}", f"Group {name} is removed.")


def _value(form: Form, field: str) -> Any:
    """The new value of a setting. Raises: InvalidInput."""
    if SETTINGS[field].unit == "ms":
        return _milliseconds(form.typed(field) or "0", field)
    match SETTINGS[field].default:
        case str():
            return form.typed(field) or ""
        case float():
            return form.number(field)
        case _:
            return form.whole(field)


def _milliseconds(text: str, field: str) -> int:
    """Returns a duration in milliseconds; a number without a unit could mean these or seconds. Raises: InvalidInput."""
    seconds = parse_duration(text, field)
    if seconds and text[-1].isdigit():
        raise InvalidInput(field, f"{text!r:.40} has no unit: write 90d, 12h, 30s or 500ms")
    return round(1000 * seconds)


def _shard_rows(
    topic: str, counts: list[shard_counts.ShardCounts], posts: dict[tuple[str, int], tuple[str, str | None]]
) -> list[ShardRow]:
    share = sum(one.waiting for one in counts) / len(counts)
    rows = []
    for number, one in enumerate(counts):
        leader, standby = posts.get((topic, number), ("", None))
        is_hot = len(counts) > 1 and one.waiting >= max(HOT_JOBS, HOT * share)
        rows.append(ShardRow(number, leader, standby or "", one, is_hot))
    return rows


PLACES = (
    shows("/topics", topics),
    shows("/topics/{topic}", topic),
    does("/topics/{topic}/settings", change, Verb.MANAGE),
    does("/topics/{topic}/shards", set_shards, Verb.MANAGE),
    does("/topics/{topic}/pause", pause, Verb.MANAGE),
    does("/topics/{topic}/resume", resume, Verb.MANAGE),
    shows("/groups", groups),
    does("/topics/{topic}/groups/remove", remove_group, Verb.MANAGE),
)
