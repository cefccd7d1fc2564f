"""The pages, one module for each noun: what it shows, and what a viewer can do there.

overview    the most important figures, and problems
future      how many jobs are due when
topics      all topics; one topic, its settings, pause and resume
jobs        lists of jobs by state
job         one job: its way so far, cancel, reschedule, run now
schedule    schedule a job
bulk        cancel or reschedule the jobs that are due in a range
dead        dead jobs: grouped by error, replayed and purged
recurring   recurring jobs: look, run now, pause, edit
groups      consumer groups of all topics
fleet       schedulers, workers, and who leads which shard
callbacks   receivers of callbacks, and the outbox
history     the charts of the last hour and day, for overview and topics
events      the stream that tells open tabs that there is something new
"""

from __future__ import annotations

from wheelq.server.dashboard.pages import (
    bulk,
    callbacks,
    dead,
    events,
    fleet,
    future,
    groups,
    job,
    jobs,
    overview,
    recurring,
    schedule,
    topics,
)

__all__ = ["PLACES"]

PLACES = (
    *overview.PLACES,
    *future.PLACES,
    *topics.PLACES,
    *jobs.PLACES,
    *job.PLACES,
    *schedule.PLACES,
    *bulk.PLACES,
    *dead.PLACES,
    *recurring.PLACES,
    *groups.PLACES,
    *fleet.PLACES,
    *callbacks.PLACES,
    *events.PLACES,
)
"""Every place of the dashboard."""
