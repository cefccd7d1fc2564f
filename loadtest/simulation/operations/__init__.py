"""What producers do. Each module registers its operations; their order decides what a seed draws.

registry     what an operation is, and all of them by name
jobs         schedule, change and read single jobs
topics       change a topic
debounce     jobs of a few keys that calls put off
crons        recurring jobs by cron expressions, in time zones whose clocks change
chains       jobs that are followed by others
bundles      jobs that are followed by one when all have ended
due_ranges   change all jobs that are due in a range
http         callers over HTTP
callers      callers that repeat requests under a key, look for results, and have API keys
visits       people who look at pages and lists over HTTP
dead         list, replay and purge dead jobs
lives        wait for jobs, cancel running ones, run jobs again
looks        lists and counts of jobs
terms        expiry, priority and misfires
removal      remove groups and topics
rivals       several producers with the same job
beside       the load beside combined faults
outages      producers that talk about a few jobs around outages
bursts       short jobs, many of which end at the same moment
lent         jobs for lessees that settle them late
aside        producers that have jobs for a topic which is being removed
fickle       a topic whose settings change, and jobs that end while somebody begins to wait for them
alters       changes beside jobs that are dead, wait for a retry, or have a priority
dates        single occurrences of recurring jobs
rolling      ordered jobs that fail while their workers are restarted in turn
"""

from __future__ import annotations

from loadtest.simulation.operations import (
    alters,
    aside,
    beside,
    bundles,
    bursts,
    callers,
    chains,
    crons,
    dates,
    dead,
    debounce,
    due_ranges,
    fickle,
    http,
    jobs,
    lent,
    lives,
    looks,
    outages,
    removal,
    rivals,
    rolling,
    shares,
    terms,
    topics,
    visits,
)
from loadtest.simulation.operations.registry import OPERATIONS, Operation, operation

__all__ = [
    "OPERATIONS",
    "Operation",
    "alters",
    "aside",
    "beside",
    "bundles",
    "bursts",
    "callers",
    "chains",
    "crons",
    "dates",
    "dead",
    "debounce",
    "due_ranges",
    "fickle",
    "http",
    "jobs",
    "lent",
    "lives",
    "looks",
    "operation",
    "outages",
    "removal",
    "rivals",
    "rolling",
    "shares",
    "terms",
    "topics",
    "visits",
]
