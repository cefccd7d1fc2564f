"""Log lines that say to which job they belong.

    handler = logging.StreamHandler()
    handler.addFilter(JobFilter())           records get topic, job_id, attempt, group, worker and job
    handler.setFormatter(JsonFormatter())    one JSON object per line

Whatever logs while a job runs is covered, in a handler's thread too: the job is a context variable, set by the worker.
`wheelq worker --log-format json` does the above.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import NamedTuple

from wheelq.job import Job


class _Serving(NamedTuple):
    group: str
    worker: str


_serving: ContextVar[_Serving | None] = ContextVar("wheelq serving", default=None)
_jobs: ContextVar[Sequence[Job]] = ContextVar("wheelq jobs", default=())

FIELDS = ("topic", "job_id", "attempt", "group", "worker")
TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s%(job)s"
_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "job", *FIELDS}


def set_up(level: int, format: str) -> None:
    """Log to stderr, as `text` or as `json`, with the job."""
    handler = logging.StreamHandler()
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonFormatter() if format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level, handlers=[handler])


@contextmanager
def serving(group: str, worker: str) -> Iterator[None]:
    """What is logged within, and in tasks made within, is said by this worker."""
    token = _serving.set(_Serving(group, worker))
    try:
        yield
    finally:
        _serving.reset(token)


running = _jobs.set
"""Call with the jobs that run from now on in this context."""


def current_jobs() -> Sequence[Job]:
    """The jobs that are running here: one, all those of a batch, or none outside of handlers."""
    return _jobs.get()


class JobFilter(logging.Filter):
    """Adds `topic, job_id, attempt, group, worker` to records (None where they do not apply), and lets all pass.

    `job` is the same as text, for plain formats: " [orders order-42 #1]", or nothing outside of a job.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        jobs, by = _jobs.get(), _serving.get()
        fields: dict[str, object] = {**dict.fromkeys(FIELDS), "job": ""}
        if jobs:
            topic, attempt = jobs[0].topic, max(job.attempt for job in jobs)
            job_id = jobs[0].id if len(jobs) == 1 else [job.id for job in jobs]
            which = job_id if len(jobs) == 1 else f"{len(jobs)} jobs"
            fields |= {"topic": topic, "job_id": job_id, "attempt": attempt, "job": f" [{topic} {which} #{attempt}]"}
        if by is not None:
            fields |= by._asdict()
        vars(record).update(fields)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message; the job's fields; `extra`; error with traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = vars(record)
        line |= {name: given[name] for name in FIELDS if given.get(name) is not None}
        line |= {name: value for name, value in given.items() if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)
