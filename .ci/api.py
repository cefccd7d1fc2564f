"""The reference of the Python API, from the docstrings and signatures in the source (read by griffe; nothing is run).

A class is shown with its signature, its docstring, its fields or members, and its public methods; what it takes over
from a base class of wheelq is shown with it. A function is shown with its signature and docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import griffe

import wheelq
from wheelq.settings import Settings, TopicSettings, components
from wheelq.settings.declaration import declarations

PACKAGE = griffe.load("wheelq", search_paths=[wheelq.__path__[0].removesuffix("/wheelq")])
WIDTH = 100

CLIENT = ["wheelq.Client", "wheelq.client.dead.DeadLetters", "wheelq.client.recurring.Recurring", "wheelq.AsyncClient"]
WORKER = ["Worker", "Router", "Job", "Retry", "RetryAfter", "Bury", "Task", "TaskJob", "TaskDecorator", "Scheduler"]
OTHERS = [
    "wheelq.testing.WheelqTest",
    "wheelq.testing.AsyncWheelqTest",
    "wheelq.testing.Waiting",
    "wheelq.testing.Run",
    "wheelq.embedded.EmbeddedServer",
    "wheelq.sinks.SqlSink",
    "wheelq.sinks.KafkaSink",
    "wheelq.sql.SqlOutbox",
    "wheelq.logs.set_up",
    "wheelq.logs.JobFilter",
    "wheelq.logs.JsonFormatter",
    "wheelq.logs.TextFormatter",
]
SAME = {
    "wheelq.AsyncClient": ("wheelq.Client", "Its methods are those of `Client`; on asyncio each call is awaited."),
    "wheelq.Router": ("wheelq.Worker", "Its decorators are those of `Worker`."),
}
"""Classes whose members are described with another, and what is said instead."""
WORDS = {
    "attempt": "The number of the attempt; the first is 1.",
    "due_ms": "When it is due, in milliseconds since the Unix epoch.",
    "group": "The group.",
    "headers": "Texts that travel beside the payload.",
    "id": "The job's id.",
    "job": "The job.",
    "jobs": "The number of jobs.",
    "last_error": "The last error in one line; None if no attempt has failed.",
    "name": "Its name.",
    "payload": "The payload.",
    "priority": "As in `JobSpec`.",
    "progress": "What the handler reported last, if anything.",
    "result": "What the handler returned, if the topic keeps it.",
    "started_ms": "When the handler started, in milliseconds since the Unix epoch.",
    "state": "The state.",
    "topic": "The topic.",
    "worker": "The name of the worker.",
}
"""The meanings of fields that say no more than their names, each once for all classes."""
TAKEN = [*CLIENT, *(f"wheelq.{name}" for name in WORKER)]


def _values() -> list[str]:
    """Returns the public names of the package that stand on no other page; errors have a page of their own."""
    errors = set(wheelq._NAMES["wheelq.errors"].split())
    return [path for name in wheelq.__all__ if name not in errors and (path := f"wheelq.{name}") not in TAKEN]


def client_page() -> list[str]:
    about = "`Client` blocks; `AsyncClient` has the same methods for asyncio. The guide: [scheduling](scheduling.md)."
    return _page("the client", about, CLIENT)


def worker_page() -> list[str]:
    about = "What runs jobs, and what handlers get and may raise. The guide: [getting started](getting-started.md)."
    return _page("workers, handlers and schedulers", about, [f"wheelq.{name}" for name in WORKER])


def values_page() -> list[str]:
    about = (
        "What calls take and return. Import each from `wheelq`. Errors are on [their own page](reference-errors.md)."
    )
    return _page("values", about, _values())


def others_page() -> list[str]:
    about = (
        "The testing kit ([testing](testing.md)), an embedded server, the sinks for [SQL](batches.md) and "
        "[Kafka](kafka.md), the SQL outbox ([transactions](transactions.md)), logs."
    )
    return _page("testing and the other modules", about, OTHERS)


def _page(title: str, about: str, paths: list[str]) -> list[str]:
    lines = [f"# Reference: {title}", "", "<!-- Made by .ci/reference.py: edit what it describes. -->", "", about]
    for path in paths:
        lines += ["", f"## `{path.removeprefix('wheelq.') if path.count('.') == 1 else path}`", "", *_entry(path)]
    return lines


def _entry(path: str) -> Iterator[str]:
    found = _object(path)
    if isinstance(found, griffe.Class):
        yield from _class(path, found)
    elif isinstance(found, griffe.Function):
        yield from (*_signature(found, found.name), "", *_doc(found))
    else:
        yield from _doc(found)


def _object(path: str) -> griffe.Object:
    found = PACKAGE[path.removeprefix("wheelq.")] if path.count(".") > 1 else PACKAGE[_where(path)]
    return found.final_target if isinstance(found, griffe.Alias) else found


def _where(path: str) -> str:
    """Returns the module in which a name of the package is defined, and the name."""
    name = path.rpartition(".")[2]
    return f"{wheelq._WHERE[name]}.{name}".removeprefix("wheelq.")


def _class(path: str, found: griffe.Class) -> Iterator[str]:
    made = found.members.get("__init__")
    if isinstance(made, griffe.Function) and made.overloads:
        made = made.overloads[-1]  # the general one
    is_made_by_users = isinstance(made, griffe.Function) and not _is_internal(made) and not _is_an_answer(found)
    if isinstance(made, griffe.Function) and is_made_by_users:
        yield from (*_signature(made, found.name), "")
    yield from _doc(found)
    if path in SAME:
        yield from ("", SAME[path][1])
        return
    if isinstance(made, griffe.Function) and is_made_by_users and made.docstring:
        yield from ("", *_doc(made))
    about = " ".join(_doc(found))
    fields = [one for one in _members(found) if isinstance(one, griffe.Attribute)]
    rows = [row for one in fields if (row := _row(one, f"`{one.name}`" in about))]
    if rows:
        yield from ("", "| name | type | value | meaning |", "|---|---|---|---|", *rows)
    for method in _members(found):
        if isinstance(method, griffe.Function):
            yield from (
                "",
                f"### `{found.name}.{method.name}`",
                "",
                *_signature(method, method.name),
                "",
                *_doc(method),
            )


def _is_an_answer(found: griffe.Class) -> bool:
    """Whether it is a dataclass that calls return: one that a user makes has a default for every field."""
    fields = [one for one in found.members.values() if isinstance(one, griffe.Attribute) and one.annotation]
    return "dataclass" in found.labels and any(one.value is None for one in fields)


def _row(one: griffe.Attribute, is_explained: bool) -> str:
    """Returns a line of the table; none for a field that the signature shows and the docstring explains."""
    meaning = " ".join(_doc(one)) or _of_setting(one) or WORDS.get(one.name, "")
    if not meaning and is_explained:
        return ""
    kind = f"`{one.annotation}`".replace("|", "\\|") if one.annotation else ""
    return f"| `{one.name}` | {kind} | {_default(one)} | {meaning} |"


def _of_setting(one: griffe.Attribute) -> str:
    """Returns the text of a setting's declaration; of a table of settings, where to find them."""
    name = str(one.parent.name if one.parent else "")
    owner = {"TopicChanges": TopicSettings, "Settings": Settings}.get(name) or getattr(components, name, None)
    if owner is None or (name == "Settings" and not str(one.value).startswith("setting(")):
        return ""
    declared = declarations(owner).get(one.name)
    return declared.full if declared else ""


def _default(one: griffe.Attribute) -> str:
    """Returns the default of a field, or the value of an enum's member; nothing for what `__init__` sets."""
    is_plain = one.value is not None and "class-attribute" in one.labels and "(" not in str(one.value)
    return f"`{one.value}`".replace("|", "\\|") if is_plain else ""


def _is_internal(function: griffe.Function) -> bool:
    """Whether it takes parts that only `connect()` makes."""
    return any("Transport" in str(one.annotation) or "Driver" in str(one.annotation) for one in function.parameters)


def _members(found: griffe.Class) -> Iterator[griffe.Object]:
    """Yields what is public: the class's own members, and then those of its bases in wheelq."""
    seen: set[str] = set()
    for place in (found, *(base for base in found.mro() if base.path.startswith("wheelq."))):
        for name, member in place.members.items():
            if name.startswith("_") or name in seen or isinstance(member, griffe.Alias) or _is_known(member):
                continue
            seen.add(name)
            yield member


def _is_known(member: griffe.Object) -> bool:
    """Whether it is a method of the standard library's that `logging` calls."""
    return member.path.startswith("wheelq.logs.") and not member.docstring


def _signature(function: griffe.Function, name: str) -> Iterator[str]:
    """Yields the signature as a block of code, one parameter a line if it is long."""
    if "property" in function.labels:
        yield f"    {name}: {function.returns}"
        return
    words = list(_parameters(function))
    returns = f" -> {function.returns}" if function.returns is not None and function.name != "__init__" else ""
    prefix = "async def " if "async" in function.labels else ""
    short = f"    {prefix}{name}({', '.join(words)}){returns}"
    if len(short) <= WIDTH:
        yield short
    else:
        yield from (f"    {prefix}{name}(", *(f"        {word}," for word in words), f"    ){returns}")


def _parameters(function: griffe.Function) -> Iterator[str]:
    kinds = griffe.ParameterKind
    starred = False
    for one in function.parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is kinds.keyword_only and not starred:
            starred = True
            yield "*"
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(one.kind, "") if one.kind else ""
        starred |= one.kind is kinds.var_positional
        typed = f"{stars}{one.name}: {one.annotation}" if one.annotation else f"{stars}{one.name}"
        yield f"{typed} = {one.default}" if one.default is not None and not stars else typed


def _doc(found: griffe.Object) -> list[str]:
    return inspect.cleandoc(found.docstring.value).splitlines() if found.docstring else []


PAGES = {"client": client_page, "worker": worker_page, "values": values_page, "others": others_page}
