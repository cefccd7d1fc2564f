"""Findings about jobs, schedulers, workers and API keys."""

from __future__ import annotations

from collections.abc import Iterator

from wheelq.admin.diagnosis.facts import Finding, JobFacts, ok, problem, warning
from wheelq.base.plural import counted

OVERDUE_MS = 2_000  # a few sweeps: a scheduler that is later than this is not just busy


def job_findings(jobs: JobFacts) -> Iterator[Finding]:
    """Yields findings about topics, schedulers, recurring jobs, workers and API keys."""
    yield from _topics(jobs)
    yield from _schedulers(jobs)
    yield from _prefixes(jobs)
    yield from _planned(jobs)
    yield from _workers(jobs)
    yield from _api_keys(jobs)


def _topics(jobs: JobFacts) -> Iterator[Finding]:
    for topic, what in sorted(jobs.unreadable.items()):
        yield problem(
            f"The settings of topic {topic} cannot be read: {what}",
            "A newer release of wheelq or another program wrote them. Programs of this release that did not know the "
            "topic before do not serve it: upgrade them, or correct the settings.",
        )


def _schedulers(jobs: JobFacts) -> Iterator[Finding]:
    late = {topic: ms for topic, ms in jobs.overdue_ms.items() if ms > OVERDUE_MS}
    shown = ", ".join(f"{topic} for {ms / 1000:,.0f} s" for topic, ms in sorted(late.items()))
    if jobs.schedulers and late:
        yield problem(
            f"Jobs are overdue: {shown}",
            "A scheduler runs and does not keep up or cannot reach this server: see its log.",
        )
    elif jobs.schedulers:
        running = counted(jobs.schedulers, "scheduler runs", "schedulers run")
        yield ok(running if jobs.leaderless else f"{running}, nothing is overdue")
    elif late:
        yield problem(f"No scheduler runs, and jobs are overdue: {shown}", "Start one: wheelq scheduler.")
    else:
        waiting = f"Jobs ({counted(jobs.waiting, 'waits', 'wait')} now) will not start when they are due."
        yield warning("No scheduler runs", f"{waiting} Start one: wheelq scheduler.")


def _prefixes(jobs: JobFacts) -> Iterator[Finding]:
    if not jobs.other_prefixes:
        return
    others = ", ".join(jobs.other_prefixes)
    if jobs.schedulers and jobs.overdue_ms and (jobs.served or not any(jobs.unread.values())):
        yield ok(f"Other prefixes on this server: {others}", "Programs with different prefixes do not see each other.")
        return
    missing = "scheduler" if not jobs.schedulers else "topic" if not jobs.overdue_ms else "worker"
    yield warning(
        f"No {missing} has the prefix {jobs.prefix}; other prefixes on this server: {others}",
        "Programs with different prefixes do not see each other. If these belong together, give all of them the same: "
        "prefix in the settings file, or WHEELQ_PREFIX.",
    )


def _planned(jobs: JobFacts) -> Iterator[Finding]:
    """Yields findings about leaders, paused topics, recurring jobs and receivers."""
    for topic, shards in sorted(jobs.leaderless.items()):
        yield problem(
            f"{counted(shards, 'shard')} of {topic} with jobs that are due has no leader",
            "Look for a scheduler that runs and reaches this server; start one: wheelq scheduler.",
        )
    for topic, ms in sorted(jobs.paused.items()):
        since = f", and jobs have been due for {ms / 1000:,.0f} s" if ms else ""
        yield warning(f"Topic {topic} is paused{since}", f"None of its jobs run. Resume it: wheelq resume {topic}.")
    for (topic, name), ms in sorted(jobs.missed.items()):
        yield problem(
            f"Recurring job {name} of {topic} was due {ms / 1000:,.0f} s ago and is not scheduled",
            "Start a scheduler, or upgrade those that run: a newer release may have written its rule.",
        )
    for name in jobs.open_destinations:
        yield warning(f"Receiver {name} is not called", "It failed too often. It will be tried again; check its state.")
    if jobs.lost_workers:
        yield warning(
            f"{counted(jobs.lost_workers, 'worker')} ended without a word in the last ten minutes",
            "Look for processes that were killed or ran out of memory. Other workers have taken over their jobs.",
        )


def _workers(jobs: JobFacts) -> Iterator[Finding]:
    for topic, unread in sorted(jobs.unread.items()):
        if unread and topic not in jobs.served:
            ready = counted(unread, f"job of {topic} is ready", f"jobs of {topic} are ready")
            yield warning(
                f"{ready} and no live worker handles that topic",
                "They are kept until one does. Start one: wheelq worker MODULE:NAME, with a handler for it.",
            )
    for (topic, group), left in sorted(jobs.unserved.items()):
        has = f", which has {counted(left, 'job')} to do" if left else ""
        yield warning(
            f"No live worker serves group {group} of {topic}{has}",
            "The group gets every job of the topic, and keeps each job and its id until one of its workers has run it. "
            f"Start a worker, or remove the group: wheelq group remove {topic} {group}.",
        )
    for topic in jobs.leaving:
        yield problem(
            f"Topic {topic} is half removed",
            f"It takes no jobs. Unless its removal still runs, complete it: wheelq topic remove {topic} --force.",
        )
    if jobs.served:
        yield ok(f"Workers handle {', '.join(sorted(jobs.served))}")


def _api_keys(jobs: JobFacts) -> Iterator[Finding]:
    for id, what in sorted(jobs.unreadable_keys.items()):
        if id:
            yield problem(
                f"API key {id} cannot be read: {what}",
                f"No HTTP server accepts it. Replace it: wheelq keys revoke {id}, wheelq keys create.",
            )
        else:
            yield problem(
                f"The API keys cannot be read: {what}",
                "HTTP servers keep using the keys that they have read, even revoked ones, and cannot be restarted.",
            )
