"""`/topics/{topic}/dead`: shows the dead jobs, grouped by error; replays and purges them.

An action concerns one of these, from the smallest to the largest:

    chosen      the jobs that are ticked on the page, or the one that is shown; a purge is confirmed on a page
    alike       those of the newest `NEWEST` whose error is like this one, as far as the page has counted them
    matching    everything that matches a group and a reason, or everything; confirmed on a page that shows the number
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from starlette.responses import Response

from wheelq.base.plural import counted
from wheelq.errors import InvalidInput
from wheelq.model.checks import LAST_MS
from wheelq.model.dead import ReplayOutcome
from wheelq.model.job import from_ms
from wheelq.protocol.calls.dead import DeadSummary
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.dashboard.visit import Visit, does, shows
from wheelq.server.problems import Problem

T = TypeVar("T")
NEWEST = 2_000
PER_PAGE = 50
STEP = 5_000
"""The most jobs that one step of a replay runs again; the next step continues."""
ACTIONS = ("replay", "purge")
AT_ONCE = 20
"""How many calls for single jobs are under way together."""


_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+(?:[.,:]\d+)*")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True, slots=True)
class Alike:
    """Dead jobs whose errors are alike."""

    key: str
    """What the group is called in links and forms."""
    error: str
    """The newest of the errors."""
    reason: str
    jobs: Sequence[DeadSummary]
    """The newest first."""

    @property
    def until_ms(self) -> int:
        """When the newest of them was buried: a question about them is about no later ones."""
        return self.jobs[0].buried_ms

    @property
    def groups(self) -> list[str]:
        """The consumer groups that gave them up."""
        return sorted({job.group for job in self.jobs})


class ActedOn(NamedTuple):
    """How many jobs an action has changed, and how many it has left as they were."""

    done: int
    kept: int


async def topics(visit: Visit) -> Response:
    seen = await visit.service.snapshot.now()
    found = sorted((info for info in visit.readable(seen) if info.dead), key=lambda info: -info.dead)
    return visit.page("dead_topics.html", seen=seen, topics=found)


async def dead(visit: Visit) -> Response:
    """The errors of the newest dead jobs, and a page of them."""
    query, name = visit.query, visit.topic
    total = await _total(visit)
    newest = await visit.service.client.newest_dead(name, NEWEST)
    group, reason, chosen = query.get("group"), query.get("reason"), query.get("alike")
    matching = [job for job in newest if _matches(job, group, reason, chosen)]
    first = min(query.whole("first") or 0, NEWEST)
    return visit.page(
        "dead.html",
        topic=name,
        total=total,
        looked_at=len(newest),
        newest=NEWEST,
        errors=alike(newest)[:30],
        jobs=matching[first : first + PER_PAGE],
        matching=len(matching),
        more=first + PER_PAGE if len(matching) > first + PER_PAGE else None,
        group=group or "",
        reason=reason or "",
        chosen=chosen or "",
        groups=sorted({job.group for job in newest}),
        reasons=sorted({job.reason for job in newest}),
        now_ms=await visit.now_ms(),
    )


async def one(visit: Visit) -> Response:
    """One dead job, with its traceback and payload."""
    found = await visit.service.client.dead.show(visit.topic, visit.query.needed("dead_id"))
    if found is None:
        raise Problem(problems.DEAD_NOT_FOUND)
    now_ms = await visit.now_ms()
    return visit.page("dead_job.html", topic=visit.topic, job=found, shows_payloads=visit.shows_payloads, now_ms=now_ms)


async def act(visit: Visit) -> Response:
    """Replay or purge the chosen jobs, or those whose error is alike."""
    action, kind = visit.form.one_of("action", *ACTIONS), visit.form.get("alike")
    if kind is None:
        ids = visit.form.all("dead_id")
    else:
        until_ms = visit.form.whole("until_ms") or 0
        newest = await visit.service.client.newest_dead(visit.topic, NEWEST)
        ids = [job.dead_id for job in newest if job.buried_ms <= until_ms and _matches(job, None, None, kind)]
    if not ids:
        return visit.back(f"/topics/{visit.topic}/dead", "No job was chosen.")
    if action == "purge" and visit.form.get("asks"):
        return visit.ask(f"Purge {counted(len(ids), 'job')} for good?", "asks")
    dead = visit.service.client.dead
    if action == "replay":
        outcomes = await _each(ids, partial(dead.replay_one, visit.topic))
        replayed = outcomes.count(ReplayOutcome.REPLAYED)
        done = ActedOn(replayed, len(outcomes) - replayed - outcomes.count(ReplayOutcome.NOT_FOUND))
    else:
        done = ActedOn(sum(await _each(ids, partial(dead.purge_one, visit.topic))), 0)
    return visit.back(f"/topics/{visit.topic}/dead", _summary(action, done))


async def confirm(visit: Visit) -> Response:
    """Ask whether everything that matches is meant, and say how many that is."""
    query = visit.query
    action = query.one_of("action", *ACTIONS)
    group, reason = query.get("group"), query.get("reason")
    until_ms = await visit.now_ms()  # before they are counted: no more than these are meant
    total = await _total(visit)
    newest = await visit.service.client.newest_dead(visit.topic, NEWEST)
    matching = sum(_matches(job, group, reason, None) for job in newest)
    is_exact = not (group or reason) or total <= len(newest)
    return visit.page(
        "dead_confirm.html",
        topic=visit.topic,
        action=action,
        group=group or "",
        reason=reason or "",
        count=total if not (group or reason) else matching,
        is_exact=is_exact,
        newest=len(newest),
        total=total,
        until_ms=until_ms,
    )


async def act_on_matching(visit: Visit) -> Response:
    """Replay or purge everything that matches and was dead when the viewer was asked; a replay goes in steps."""
    form, client = visit.form, visit.service.client
    action, until_ms = visit.form.one_of("action", *ACTIONS), form.whole("until_ms", 1, LAST_MS)
    if until_ms is None:
        raise InvalidInput("until_ms", "is missing")
    until, group, reason = from_ms(until_ms), form.get("group"), form.get("reason")
    if action == "purge":
        purged = await client.dead.purge(visit.topic, group=group, reason=reason, until=until)
        return visit.back(f"/topics/{visit.topic}/dead", _summary(action, ActedOn(purged, 0)))
    rate = form.number("rate")
    limit = STEP if rate is None else None  # with a rate, one call gives all of them their due times
    found = await client.dead.replay(visit.topic, group=group, reason=reason, until=until, rate=rate, limit=limit)
    so_far = ActedOn(found.replayed + (form.whole("done") or 0), found.kept)
    if rate is None and found.replayed == STEP:
        return visit.page(
            "dead_step.html",
            topic=visit.topic,
            done=so_far.done,
            total=await _total(visit),
            form_values=form.some("action", "group", "reason", "until_ms"),
        )
    return visit.back(f"/topics/{visit.topic}/dead", _summary(action, so_far))


def pattern(reason: str, error: str) -> str:
    """Returns what errors that are alike have in common: they differ only in numbers, ids and quoted values."""
    line = error.strip().partition("\n")[0]
    return f"{reason}: {_VARIABLE.sub('…', _QUOTED.sub('…', line))}"


def key_of(reason: str, error: str) -> str:
    """Returns the short name of an error's group."""
    return hashlib.sha256(pattern(reason, error).encode(errors="replace")).hexdigest()[:16]


def alike(jobs: Iterable[DeadSummary]) -> list[Alike]:
    """Returns the groups, the largest first; `jobs` are the newest first."""
    found: dict[str, list[DeadSummary]] = {}
    for job in jobs:
        found.setdefault(key_of(job.reason, job.error), []).append(job)
    groups = [Alike(key, members[0].error, members[0].reason, members) for key, members in found.items()]
    return sorted(groups, key=lambda group: -len(group.jobs))


def _matches(job: DeadSummary, group: str | None, reason: str | None, kind: str | None) -> bool:
    is_kind = kind is None or key_of(job.reason, job.error) == kind
    return is_kind and group in (None, job.group) and reason in (None, job.reason)


async def _total(visit: Visit) -> int:
    """How many dead jobs the topic has. Raises: TopicNotFound."""
    return (await visit.service.client.topic(visit.topic)).dead


async def _each(ids: list[str], act: Callable[[str], Awaitable[T]]) -> list[T]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(dead_id: str) -> T:
        async with places:
            return await act(dead_id)

    return await asyncio.gather(*map(one, ids))


def _summary(action: str, done: ActedOn) -> str:
    jobs = counted(done.done, "job")
    if action == "purge":
        return f"{jobs} purged for good."
    kept = f" {counted(done.kept, 'job stays', 'jobs stay')} dead: a live job has the id, or there is no record."
    return f"{jobs} replayed.{kept if done.kept else ''}"


PLACES = (
    shows("/dead", topics),
    shows("/topics/{topic}/dead", dead),
    shows("/topics/{topic}/dead/one", one),
    shows("/topics/{topic}/dead/confirm", confirm, Verb.MANAGE),
    does("/topics/{topic}/dead/act", act, Verb.MANAGE),
    does("/topics/{topic}/dead/matching", act_on_matching, Verb.MANAGE),
)
