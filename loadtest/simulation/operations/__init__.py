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
"""

from __future__ import annotations

from loadtest.simulation.operations import (
    beside,
    bundles,
    callers,
    chains,
    crons,
    dead,
    debounce,
    due_ranges,
    http,
    jobs,
    lives,
    looks,
    removal,
    rivals,
    shares,
    terms,
    topics,
    visits,
)
from loadtest.simulation.operations.registry import OPERATIONS, Operation, operation

__all__ = [
    "OPERATIONS",
    "Operation",
    "beside",
    "bundles",
    "callers",
    "chains",
    "crons",
    "dead",
    "debounce",
    "due_ranges",
    "http",
    "jobs",
    "lives",
    "looks",
    "operation",
    "removal",
    "rivals",
    "shares",
    "terms",
    "topics",
    "visits",
]
