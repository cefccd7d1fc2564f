"""`/recurring`: jobs that occur again and again: their last and next occurrences; run now, pause, edit, remove."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from starlette.responses import Response

from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.durations import parse_duration, span
from wheelq.model.job import from_ms
from wheelq.model.recurring import RecurringInfo, RecurringOutcome, Rule
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.dashboard.visit import Form, Visit, does, mark_of, moment_of, payload_of, shows
from wheelq.server.dashboard.words import exact, in_words, whole
from wheelq.server.problems import Problem

PER_PAGE = 100
COMING = 5
"""How many next runs of one job are shown."""
MISSED = ("coalesce", "skip", "all")
FIELDS = ("topic", "name", "cron", "every", "tz", "start", "end", "jitter", "missed", "grace", "payload")


@dataclass(frozen=True, slots=True)
class RecurringRow:
    """A recurring job as the page shows it."""

    info: RecurringInfo
    words: str
    """Its rule in words."""
    next_there: str
    """Its next run, on the clocks of its time zone."""
    last_there: str


async def recurring(visit: Visit) -> Response:
    """Every recurring job that the viewer may read."""
    topic = visit.query.get("topic")
    if topic is not None and not visit.may(Verb.READ, topic):
        raise Problem(problems.NOT_ALLOWED)
    found = await visit.service.client.recurring.list(topic)
    found = [info for info in found if visit.may(Verb.READ, info.topic)]
    first = visit.query.whole("first") or 0
    return visit.page(
        "recurring.html",
        rows=[_row(info) for info in found[first : first + PER_PAGE]],
        found=len(found),
        more=first + PER_PAGE if len(found) > first + PER_PAGE else None,
        topic=topic or "",
        now_ms=await visit.now_ms(),
        can_manage={info.topic for info in found if visit.may(Verb.MANAGE, info.topic)},
    )


async def edit(visit: Visit) -> Response:
    """The form of a recurring job, or of a new one."""
    topic, name = visit.query.get("topic"), visit.query.get("name")
    if topic is None or name is None:
        return await _form(visit, None, {"topic": topic or "", "tz": "UTC", "missed": "coalesce"})
    info = await _get(visit, topic, name)
    return await _form(visit, info, _values(visit, info))


async def put(visit: Visit) -> Response:
    """Make a recurring job, or change one; a form with a mistake is shown again, with an explanation."""
    form, client = visit.form, visit.service.client
    topic, name = form.needed("topic"), form.needed("name")
    is_new = form.get("is_new") is not None
    if is_new:  # they were typed
        topic, name = topic.strip(), name.strip()
    visit.caller.check_may(Verb.MANAGE, topic)
    info = None if is_new else await _existing(visit, topic, name)
    if info is not None:
        visit.check_still(_shown(visit, info))
    try:
        rule = Rule.of(**_arguments(form))
        payload: dict[str, Any] = {}
        if info is None or _has_new_payload(visit, info):
            payload = {"payload": payload_of(form)}
        if is_new and await client.recurring.get(topic, name) is not None:
            raise InvalidInput("name", "the topic already has a recurring job with this name")
        if is_new:
            await client.recurring.put(topic, name, payload["payload"], **_arguments(form))
            note = f"{name} is made."
        else:
            outcome = await client.revise_recurring(topic, name, rule, **payload)
            if outcome is RecurringOutcome.NOT_FOUND:
                raise Problem(problems.RECURRING_NOT_FOUND)
            note = "Nothing was changed." if outcome is RecurringOutcome.UNCHANGED else f"{name} is changed."
    except (InvalidInput, ConfigurationError) as error:
        said = f"{error.field}: {error.problem}" if isinstance(error, InvalidInput) else str(error)
        info = None if is_new else await _get(visit, topic, name)
        return await _form(visit, info, {field: form.text(field) for field in FIELDS}, said, 422)
    return visit.back("/recurring", note, topic=form.get("only"))


async def act(visit: Visit) -> Response:
    """Run one now, pause, resume or remove it."""
    form, client = visit.form, visit.service.client.recurring
    topic, name, action = form.needed("topic"), form.needed("name"), form.needed("action")
    visit.caller.check_may(Verb.MANAGE, topic)
    if action == "run":
        receipt = await client.trigger(topic, name)
        if receipt is None:
            raise Problem(problems.RECURRING_NOT_FOUND)
        return visit.back(f"/topics/{topic}/job", f"{name} runs now, besides its occurrences.", id=receipt.id)
    actions = {"pause": client.pause, "resume": client.resume, "remove": client.remove}
    if action not in actions:
        raise InvalidInput("action", "must be run, pause, resume or remove")
    outcome = await actions[action](topic, name)
    if outcome is RecurringOutcome.NOT_FOUND:
        raise Problem(problems.RECURRING_NOT_FOUND)
    return visit.back("/recurring", f"{name}: {outcome}.", topic=form.get("only"))


async def _get(visit: Visit, topic: str, name: str) -> RecurringInfo:
    if not visit.may(Verb.READ, topic):
        raise Problem(problems.NOT_ALLOWED)
    return await _existing(visit, topic, name)


async def _existing(visit: Visit, topic: str, name: str) -> RecurringInfo:
    info = await visit.service.client.recurring.get(topic, name)
    if info is None:
        raise Problem(problems.RECURRING_NOT_FOUND)
    return info


def _shown(visit: Visit, info: RecurringInfo) -> tuple[Rule, Any]:
    return info.rule, info.payload if visit.shows_payloads else None


def _has_new_payload(visit: Visit, info: RecurringInfo) -> bool:
    """Whether the form's payload is not the text that it showed, which may say less than the payload itself."""
    sent = visit.form.typed("payload")
    return sent is not None and sent.replace("\r\n", "\n") != _values(visit, info).get("payload")


async def _form(
    visit: Visit, info: RecurringInfo | None, values: dict[str, str], problem: str = "", status: int = 200
) -> Response:
    now_ms = await visit.now_ms()
    return visit.page(
        "recurring_form.html",
        status,
        row=None if info is None else _row(info),
        shown="" if info is None else mark_of(_shown(visit, info)),
        values={field: values.get(field, "") for field in FIELDS},
        coming=[] if info is None else _coming(info, now_ms),
        missed=MISSED,
        problem=problem,
        shows_payloads=visit.shows_payloads,
        can_manage=visit.may(Verb.MANAGE, info.topic if info else None),
        now_ms=now_ms,
    )


def _arguments(form: Form) -> dict[str, Any]:
    every, jitter, grace = form.typed("every"), form.typed("jitter"), form.typed("grace")
    return {
        "cron": form.typed("cron"),
        "every": None if every is None else parse_duration(every, "every"),
        "tz": form.typed("tz") or "UTC",
        "start": moment_of(form, "start"),
        "end": moment_of(form, "end"),
        "jitter": 0 if jitter is None else parse_duration(jitter, "jitter"),
        "missed": form.text("missed", "coalesce"),
        "grace": None if grace is None else parse_duration(grace, "grace"),
    }


def _values(visit: Visit, info: RecurringInfo) -> dict[str, str]:
    """The fields of the form, as the job has them; a payload that JSON cannot hold is left out, and kept."""
    rule = info.rule
    values = {
        "topic": info.topic,
        "name": info.name,
        "cron": rule.cron or "",
        "every": "" if rule.every_ms is None else exact(rule.every_ms / 1000),
        "tz": rule.tz,
        "start": _date(rule.start_ms),
        "end": _date(rule.end_ms),
        "jitter": exact(rule.jitter_ms / 1000) if rule.jitter_ms else "",
        "missed": rule.missed,
        "grace": "" if rule.grace_ms is None else exact(rule.grace_ms / 1000),
    }
    if visit.shows_payloads and info.payload is not None and not _has_bytes(info.payload):
        values["payload"] = whole(info.payload)
    return values


def _date(ms: int | None) -> str:
    return "" if ms is None else from_ms(ms).isoformat()


def _has_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_bytes, value.values()))
    return any(map(_has_bytes, value)) if isinstance(value, list) else isinstance(value, bytes)


def _coming(info: RecurringInfo, now_ms: int) -> list[tuple[int, str]]:
    """Its next runs: when, and on the clocks of its zone."""
    found: list[tuple[int, str]] = []
    following = None if info.is_paused else info.rule.next(now_ms)
    while following is not None and len(found) < COMING:
        found.append((following, _there(following, info.rule.tz)))
        following = info.rule.next(following)
    return found


def _row(info: RecurringInfo) -> RecurringRow:
    rule = info.rule
    words = in_words(rule.cron) if rule.cron is not None else f"every {span(rule.every_ms or 0)}"
    return RecurringRow(info, words, _there(info.next_ms, rule.tz), _there(info.last_ms, rule.tz))


def _there(ms: int | None, tz: str) -> str:
    if ms is None:
        return "–"
    try:
        zone: Any = ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        zone = UTC
    return datetime.fromtimestamp(ms / 1000, zone).strftime("%a %Y-%m-%d %H:%M:%S")


PLACES = (
    shows("/recurring", recurring),
    shows("/recurring/edit", edit),
    does("/recurring/put", put, Verb.MANAGE),
    does("/recurring/act", act, Verb.MANAGE),
)
