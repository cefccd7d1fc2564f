"""Make the reference pages of the guide, and the settings file with every default, from what they describe.

python .ci/reference.py            writes the pages
python .ci/reference.py --check    exit code 1, and the difference, if one is not what would be written

config/wheelq.toml      from the declarations of the settings
reference-settings.md   from the same
reference-cli.md        from the commands and their options
reference-errors.md     from the classes of wheelq.errors
reference-metrics.md    from what `/metrics` answers about a fleet that has one of everything
reference-api-*.md      from the signatures and docstrings of the public classes (`api`)
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import api
from prometheus_client.parser import text_string_to_metric_families

from wheelq import __version__, errors
from wheelq.admin.figures import CourierInfo, Fleet, Processes, RecurringTimes, WorkerInfo
from wheelq.admin.metrics import FINISHED, SCHEDULED, expose
from wheelq.base.metrics import BOUNDS, Measured
from wheelq.callbacks.destination import DestinationInfo
from wheelq.cli.app import COMMANDS, load_command
from wheelq.model.topic import Topic
from wheelq.producer.breaker import BreakerState
from wheelq.producer.outbox.store import OutboxInfo
from wheelq.protocol.calls.registry import RegisteredTopics
from wheelq.protocol.calls.shard_counts import GroupCounts, Measure, ShardCounts
from wheelq.protocol.keys import Keys
from wheelq.server.routes.health import metrics_text
from wheelq.settings.declaration import Declaration, declarations
from wheelq.settings.environment import variable_of
from wheelq.settings.whole import Settings, tables

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "wheelq" / "guide"
CONFIG = ROOT / "config" / "wheelq.toml"
MADE = "<!-- Made by .ci/reference.py: edit what it describes. -->"
SETTINGS_HEAD = """\
# Every setting of wheelq, with its default: change what you need and leave out the rest.
# Commands read this file with --config wheelq.toml; commands and programs read the file that WHEELQ_CONFIG names.
# Every setting has an environment variable that overrides this file: WHEELQ_PREFIX, or with the name of its table
# WHEELQ_WORKER_CONCURRENCY=20. A program that passes settings= to connect() uses only those.
# Names that end in _ms are milliseconds. A misspelt name is an error, in this file and in the environment.
"""
URL = '"redis://localhost:6379/0"'
"""The example of the one setting without a default."""


def settings_file() -> str:
    """The settings file with every setting, its meaning and its default."""
    lines, meanings = [SETTINGS_HEAD], declarations(Settings)
    for table, found in tables(Settings()).items():
        if table:
            lines += ["", *_comment(meanings[table].text), f"[{table}]"]
        for one in found:
            lines += [*_comment(one.full), f"{one.name} = {_in_toml(one)}" if one.name != "url" else f"# url = {URL}"]
    return _joined(lines)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 120, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _in_toml(one: Declaration) -> str:
    """The default as a settings file has it, with thousands apart but in a port."""
    is_quantity = type(one.default) is int and one.name != "port"
    return f"{one.default:_}" if is_quantity else json.dumps(one.default)


def settings_page() -> str:
    lines = [
        "# Reference: settings",
        "",
        MADE,
        "",
        "Set them in the TOML file that `--config` or `WHEELQ_CONFIG` names, or by environment variables, which win.",
        "`wheelq config` prints what is in force and from where. Names that end in `_ms` are milliseconds.",
        "",
    ]
    meanings = declarations(Settings)
    for table, found in tables(Settings()).items():
        lines += ["", f"## `[{table}]`", "", meanings[table].text] if table else ["", "## At the top of the file"]
        lines += ["", "| setting | default | environment | meaning |", "|---|---|---|---|"]
        for one in found:
            default = f"none; for example `{URL}`" if one.name == "url" else f"`{_in_toml(one)}`"
            lines.append(f"| `{one.name}` | {default} | `{variable_of(table, one.name)}` | {one.full} |")
    return _joined(lines)


def cli_page() -> str:
    lines = [
        "# Reference: commands",
        "",
        MADE,
        "",
        "Exit codes: 0 done · 1 failed, may succeed next time · 2 the command as given cannot work · 3 no such job ·",
        "4 too late, the job is with the workers. `wheelq COMMAND --help` shows the same in a terminal.",
    ]
    found = {name: load_command(name, lazy) for name, lazy in sorted(COMMANDS.items())}
    for path, command in (each for name, one in found.items() for each in _commands(one, f"wheelq {name}")):
        arguments = [_argument(one) for one in command.params if one.param_type_name == "argument"]
        options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
        usage = " ".join([path, *arguments, "[OPTIONS]"])
        lines += ["", f"## `{path}`", "", inspect.cleandoc(command.help or ""), "", f"`{usage}`"]
        if shown := [_option(option) for option in options if option.name != "help"]:
            lines += ["", "| option | default | meaning |", "|---|---|---|", *shown]
    return _joined(lines)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command below this one that is not hidden, with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in sorted(command.commands.items()):
        if not child.hidden:
            yield from _commands(child, f"{path} {name}")


def _argument(argument: Any) -> str:
    shown = argument.metavar or argument.name.upper()
    return shown if argument.required or shown.startswith("[") else f"[{shown}]"


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = option.default
    is_shown = not callable(default) and default not in (None, False, (), [])
    shown = f"`{getattr(default, 'value', default)}`" if is_shown else ""
    variable = f" (`{option.envvar}`)" if isinstance(option.envvar, str) else ""
    return f"| {names} | {shown} | {' '.join((option.help or '').split())}{variable} |"


def errors_page() -> str:
    lines = [
        "# Reference: errors",
        "",
        MADE,
        "",
        "Every error that wheelq raises; import it from `wheelq`. An indented error is a kind of the one above it.",
        "",
        "| error | meaning |",
        "|---|---|",
    ]
    for depth, kind in _tree(errors.WheelqError, 0):
        says = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| {'&nbsp;' * 4 * depth}`{kind.__name__}` | {says} |")
    return _joined(lines)


def _tree(kind: type[BaseException], depth: int) -> Iterator[tuple[int, type[BaseException]]]:
    yield depth, kind
    children = [child for child in kind.__subclasses__() if child.__module__.startswith("wheelq.errors")]
    for child in children:
        yield from _tree(child, depth + 1)


def metrics_page() -> str:
    lines = [
        "# Reference: metrics",
        "",
        MADE,
        "",
        "`GET /metrics` of the HTTP server. [Metrics and alerts](metrics.md) says what to watch.",
        "Metrics that end in `_seconds` are in seconds. A histogram has the series `_bucket`, `_sum` and `_count`.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    text = metrics_text({200: 1}, [_receiver()], expose(_fleet(), __version__), _outbox(), now_ms=2)
    for family in sorted(text_string_to_metric_families(text), key=lambda one: one.name):
        if not family.name.startswith("wheelq_") or family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        shown = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return _joined(lines)


def _fleet() -> Fleet:
    """One of everything that a fleet can have, so that every metric has a sample."""
    counts = ShardCounts(1, 1, 1, 1, 1, 1, 2, (GroupCounts("shop", 1, False, 1, 1),))
    counted = {(outcome, ""): 1 for outcome in (*SCHEDULED, "promoted", "swept", "led")}
    counted |= {(outcome, "shop"): 1 for outcome in (*FINISHED, "recovered")}
    topics = {"orders": Topic()}
    worker = WorkerInfo("worker", 1, "shop", ("orders",), 0, 0, 0, 0, 0)
    return Fleet(
        RegisteredTopics(1, topics, {}),
        {Keys().shard("orders", 0): Measure(counts, [1, 1, 1, 1], True, counted, 1)},
        Processes(1, [], [worker], couriers=(CourierInfo("db/shop/wheelq_outbox", 1, "c", 1, 1.0, 0, 1, "-", True),)),
        histograms={(kind, "orders", "shop"): [1] * (len(BOUNDS[kind]) + 2) for kind in Measured},
        recurring={("orders", "nightly"): RecurringTimes(1, 2)},
        info={"used_memory": "1", "maxmemory": "2", "maxmemory_policy": "noeviction", "redis_version": "7.0"},
    )


def _receiver() -> DestinationInfo:
    return DestinationInfo("billing", BreakerState.CLOSED, 1, 0, 1, 1, None)


def _outbox() -> OutboxInfo:
    return OutboxInfo(1, 1, 1, 1, {})


def api_page(make: Callable[[], list[str]]) -> str:
    return _joined(make())


def _joined(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


PAGES = {
    CONFIG: settings_file,
    GUIDE / "reference-settings.md": settings_page,
    GUIDE / "reference-cli.md": cli_page,
    GUIDE / "reference-errors.md": errors_page,
    GUIDE / "reference-metrics.md": metrics_page,
    **{GUIDE / f"reference-api-{name}.md": partial(api_page, make) for name, make in api.PAGES.items()},
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the reference pages of the guide.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    check = parser.parse_args().check
    stale = 0
    for path, make in PAGES.items():
        wanted, there = make(), path.read_text() if path.exists() else ""
        if there == wanted:
            continue
        if check:
            stale += 1
            sys.stdout.writelines(
                difflib.unified_diff(there.splitlines(True), wanted.splitlines(True), path.name, "made")
            )
        else:
            path.write_text(wanted)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
