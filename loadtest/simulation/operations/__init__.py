"""What producers do. Each module registers its operations; their order decides what a seed draws.

registry     what an operation is, and all of them by name
jobs         schedule, change and read single jobs
topics       change a topic
due_ranges   change all jobs that are due in a range
http         callers over HTTP
"""

from __future__ import annotations

from loadtest.simulation.operations import due_ranges, http, jobs, topics
from loadtest.simulation.operations.registry import OPERATIONS, Operation, operation

__all__ = ["OPERATIONS", "Operation", "due_ranges", "http", "jobs", "operation", "topics"]
