"""Make the reference pages of the guide from what they describe.

python .ci/reference.py            writes the pages
python .ci/reference.py --check    exit code 1, and the difference, if one is not what would be written

reference-settings.md   from config/wheelq.toml
reference-cli.md        from the commands and their options
reference-errors.md     from the classes of wheelq.errors
reference-metrics.md    from what `/metrics` answers about a fleet that has one of everything
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from wheelq import __version__, errors
from wheelq.admin.figures import Fleet, RecurringTimes
from wheelq.admin.metrics import FINISHED, SCHEDULED, expose
from wheelq.base.metrics import BOUNDS, Measured
from wheelq.callbacks.destination import DestinationInfo
from wheelq.cli.app import COMMANDS, load_command
from wheelq.model.topic import Topic
from wheelq.producer.breaker import BreakerState
from wheelq.producer.outbox.store import OutboxInfo
from wheelq.protocol.calls.registry import RegisteredTopics
from wheelq.protocol.calls.shard_counts import GroupCounts, Measure, ShardCounts
from wheelq.server.routes.health import metrics_text

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "wheelq" / "guide"
MADE = "<!-- Made by .ci/reference.py: edit what it describes. -->"


class Setting(NamedTuple):
    """One setting: its table ("" for the top), name, default as written, and what is said of it."""

    table: str
    name: str
    default: str
    says: str

    @property
    def variable(self) -> str:
        return "_".join(["WHEELQ", *([self.table] if self.table else []), self.name]).upper()


def settings(source: str) -> Iterator[Setting]:
    """Every setting of the commented file, in its order."""
    table, said = "", list[str]()
    for line in source.splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            table, said = found[1], []
        elif found := re.fullmatch(r"(?:# )?([a-z_]+) = (.+)", line):
            yield Setting(table, found[1], found[2], " ".join(said))
            said = []
        elif line.startswith("#"):
            said.append(line.removeprefix("#").strip())
        else:
            said = []


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
    table: str | None = None
    for setting in settings((ROOT / "config" / "wheelq.toml").read_text()):
        if setting.table != table:
            table = setting.table
            title = f"## `[{table}]`" if table else "## At the top of the file"
            lines += ["", title, "", "| setting | default | environment | meaning |", "|---|---|---|---|"]
        says = setting.says.replace("|", "\\|")
        lines.append(f"| `{setting.name}` | `{setting.default}` | `{setting.variable}` | {says} |")
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
    for family in sorted(text_string_to_metric_families(text.decode()), key=lambda one: one.name):
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
    return Fleet(
        now_ms=1,
        read=RegisteredTopics(1, topics, {}),
        topics=topics,
        shards={"orders": [Measure(counts, [1, 1, 1, 1], True, counted, 1)]},
        histograms={(kind, "orders", "shop"): [1] * (len(BOUNDS[kind]) + 2) for kind in Measured},
        workers={("orders", "shop"): 1},
        recurring={("orders", "nightly"): RecurringTimes(1, 2)},
        info={"used_memory": "1", "maxmemory": "2", "maxmemory_policy": "noeviction", "redis_version": "7.0"},
    )


def _receiver() -> DestinationInfo:
    return DestinationInfo("billing", BreakerState.CLOSED, 1, 0, 1, 1, None)


def _outbox() -> OutboxInfo:
    return OutboxInfo(1, 1, 1, 1, {})


def _joined(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


PAGES = {
    "reference-settings.md": settings_page,
    "reference-cli.md": cli_page,
    "reference-errors.md": errors_page,
    "reference-metrics.md": metrics_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the reference pages of the guide.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    check = parser.parse_args().check
    stale = 0
    for name, make in PAGES.items():
        path, wanted = GUIDE / name, make()
        there = path.read_text() if path.exists() else ""
        if there == wanted:
            continue
        if check:
            stale += 1
            sys.stdout.writelines(difflib.unified_diff(there.splitlines(True), wanted.splitlines(True), name, "made"))
        else:
            path.write_text(wanted)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
