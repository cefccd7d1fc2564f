"""The jobs, and who looks after them."""

from __future__ import annotations

from collections.abc import Iterator

from wheelq.diagnosis.facts import Finding, JobFacts, ok, problem, warning
from wheelq.words import counted

OVERDUE_MS = 2_000  # a few beats of the sweep: whoever is later than this is not just busy


def job_findings(jobs: JobFacts) -> Iterator[Finding]:
    """Schedulers, then workers."""
    yield from _schedulers(jobs)
    yield from _workers(jobs)


def _schedulers(jobs: JobFacts) -> Iterator[Finding]:
    late = {topic: ms for topic, ms in jobs.overdue_ms.items() if ms > OVERDUE_MS}
    shown = ", ".join(f"{topic} for {ms / 1000:,.0f} s" for topic, ms in sorted(late.items()))
    if jobs.schedulers and late:
        yield problem(
            f"Jobs are overdue: {shown}",
            "A scheduler runs and does not keep up or cannot reach this server: see its log.",
        )
    elif jobs.schedulers:
        yield ok(f"{counted(jobs.schedulers, 'scheduler runs', 'schedulers run')}, nothing is overdue")
    elif late:
        yield problem(f"No scheduler runs, and jobs are overdue: {shown}", "Start one: wheelq scheduler.")
    else:
        waiting = f"Jobs ({counted(jobs.waiting, 'waits', 'wait')} now) will not start when they are due."
        yield warning("No scheduler runs", f"{waiting} Start one: wheelq scheduler.")


def _workers(jobs: JobFacts) -> Iterator[Finding]:
    for topic, unread in sorted(jobs.unread.items()):
        if unread and topic not in jobs.served:
            ready = counted(unread, f"job of {topic} is ready", f"jobs of {topic} are ready")
            yield warning(
                f"{ready} and no live worker handles that topic",
                "They are kept until one does. Start one: wheelq worker MODULE:NAME, with a handler for it.",
            )
    if jobs.served:
        yield ok(f"Workers handle {', '.join(sorted(jobs.served))}")
