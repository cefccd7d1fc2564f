"""Plots of the bench's figures as SVG: lateness, cost by rate, growth. Drawn by matplotlib from the bench's JSON.

    lateness.svg   which share of the jobs has started, by lateness in ms: burst, steady and short
    cost.svg       processor time of a job by rate, of each process, beside one bare call
    growth.svg     lateness, cost and memory by the number of waiting jobs, and by the number of topics

A plot is left out if its scenarios were not run. Each of several runs (kinds of server, append-only file) has lines of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LINES = ("-", "--", ":", "-.")
"""By run."""
OF_LATENESS = {"steady": "tab:blue", "short": "tab:green", "burst": "tab:red"}
OF_COST = {
    "all_us": ("all three", "black"),
    "server_us": ("server", "tab:red"),
    "scheduler_us": ("scheduler", "tab:blue"),
    "worker_us": ("worker", "tab:green"),
    "bare_us": ("one bare call", "tab:gray"),
}
OF_GROWTH = {
    "p50_ms": "start, p50 (ms)",
    "p99_ms": "start, p99 (ms)",
    "us": "processor time a job (µs)",
    "peak_mb": "scheduler's memory (MB)",
}
LEAST_MS = 0.1
"""Jobs that started earlier than this are drawn here, because the axis is logarithmic."""

Run = tuple[str, Sequence[Mapping[str, float]]]
"""A server's name, and a scenario's points on it."""


def write(report: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write the plots that this report has points for; returns their paths.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("plots need matplotlib: pip install matplotlib") from None
    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "wheelq", "font.size": 9, "legend.frameon": False}
    directory.mkdir(parents=True, exist_ok=True)
    made = {"lateness": _lateness(report), "cost": _cost(report), "growth": _growth(report)}
    paths = []
    for name, figure in made.items():
        if figure is not None:
            paths.append(directory / f"{name}.svg")
            figure.savefig(paths[-1], metadata={"Date": None})
    return paths


def _points(report: Mapping[str, Any], scenario: str) -> list[Run]:
    """The points of a scenario, run by run."""
    return [
        (run["server"], one["points"])
        for run in report["runs"]
        if run["on"] == "server"
        for one in run["scenarios"]
        if one["scenario"] == scenario and one["points"]
    ]


def _axes(columns: int, title: str) -> tuple[Any, list[Any]]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, columns, figsize=(max(7, 3.2 * columns), 3.8), layout="constrained", squeeze=False
    )
    figure.suptitle(title)
    for axis in axes[0]:
        axis.grid(color="0.9")
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def _logarithmic(axis: Any, *names: str) -> None:
    """Make these axes ("x", "y") logarithmic, with plain numbers at 1, 10, 100 …: at 1, 2 and 5 of each when narrow."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in names:
        axis.set(**{f"{name}scale": "log"})
        lowest, highest = getattr(axis, f"get_{name}lim")()
        scale = getattr(axis, f"{name}axis")
        scale.set_major_locator(LogLocator(subs=(1.0,) if highest > 30 * lowest else (1.0, 2.0, 5.0)))
        scale.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
        scale.set_minor_formatter(NullFormatter())


def _number(value: float) -> str:
    return f"{value / 1_000_000:g} M" if value >= 1_000_000 else f"{value:,g}"


def _styled(runs: Sequence[Run]) -> Iterator[tuple[str, str, Sequence[Mapping[str, float]]]]:
    """Each run with its style of line, and the suffix of its label: the server, if there are several runs."""
    for number, (server, points) in enumerate(runs):
        yield LINES[number % len(LINES)], f", {server}" if len(runs) > 1 else "", points


def _lateness(report: Mapping[str, Any]) -> Any:
    found = {name: runs for name in OF_LATENESS if (runs := _points(report, name))}
    if not found:
        return None
    figure, (axis,) = _axes(1, "Lateness: from the due time to the start of the handler")
    for name, runs in found.items():
        for style, suffix, points in _styled(runs):
            late_ms = [max(LEAST_MS, point["ms"]) for point in points]
            shares = [100 * point["share"] for point in points]
            axis.plot(late_ms, shares, style, color=OF_LATENESS[name], label=f"{name}{suffix}", drawstyle="steps-post")
    _logarithmic(axis, "x")
    axis.set(xlabel="ms late", ylabel="jobs that have started (%)", ylim=(0, 101))
    axis.legend(loc="lower right")
    return figure


def _cost(report: Mapping[str, Any]) -> Any:
    runs = _points(report, "rate")
    if not runs:
        return None
    figure, (axis,) = _axes(1, "Processor time of a job, by rate")
    for style, suffix, points in _styled(runs):
        rates = [point["per_s"] for point in points]
        for key, (name, colour) in OF_COST.items():
            us = [point[key] for point in points]
            axis.plot(rates, us, style, color=colour, marker=".", label=f"{name}{suffix}")
    _logarithmic(axis, "x", "y")
    axis.set(xlabel="jobs a second", ylabel="µs of processor time a job")
    axis.legend()
    return figure


def _growth(report: Mapping[str, Any]) -> Any:
    runs = _points(report, "growth")
    if not runs:
        return None
    figure, axes = _axes(2, "Growth: 1,300 jobs a second, while others wait")
    for axis, by, xlabel in zip(axes, ("waiting", "topics"), ("waiting jobs, one topic", "topics"), strict=True):
        for style, suffix, points in _styled(runs):
            chosen = _growing(points, by)
            for number, (key, name) in enumerate(OF_GROWTH.items()):
                values = [point[key] for point in chosen]
                xs = [point[by] for point in chosen]
                axis.plot(xs, values, style, color=f"C{number}", marker=".", label=f"{name}{suffix}")
        _logarithmic(axis, "x", "y")
        axis.set(xlabel=xlabel)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _growing(points: Sequence[Mapping[str, float]], by: str) -> list[Mapping[str, float]]:
    """The points in which only `by` grows: waiting jobs of one topic, or topics with equally many waiting jobs."""
    in_topics = points[-1]["waiting"]
    chosen = [point for point in points if point["topics"] == 1] if by == "waiting" else []
    chosen = chosen or [point for point in points if point["waiting"] == in_topics]
    return sorted({point[by]: point for point in chosen}.values(), key=lambda point: point[by])
