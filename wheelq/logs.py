"""Adds the running job to log lines.

    handler = logging.StreamHandler()
    handler.addFilter(JobFilter())           records get topic, job_id, attempt, group, worker, job and more
    handler.setFormatter(JsonFormatter())    one JSON object per line
    handler.setFormatter(TextFormatter())    or text; only the first line of a record begins at the margin

This covers every line logged while a job runs, also in a handler's thread: the worker sets the job as a context
variable. `wheelq worker --log-format json` does the above. Within a span of OpenTelemetry, records get trace_id and
span_id too.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import NamedTuple

from wheelq.base.printable import json_line, printable
from wheelq.model.job import Job
from wheelq.telemetry import ids


class _Serving(NamedTuple):
    group: str
    worker: str


_serving: ContextVar[_Serving | None] = ContextVar("wheelq serving", default=None)
_jobs: ContextVar[Sequence[Job]] = ContextVar("wheelq jobs", default=())

FIELDS = ("process_name", "topic", "job_id", "attempt", "group", "worker", "trace_id", "span_id")
COLOURS = (36, 33, 32, 35, 34, 31)
"""Terminal colours of the names of processes: cyan, yellow, green, magenta, blue, red."""
INDENT = "    "
_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "job", "span", "speaker", *FIELDS}


def set_up(level: int, format: str, process_name: str | None = None) -> None:
    """Log to stderr, as `text` or as `json`, with the job's fields, and with the name of this process if it has one."""
    handler = logging.StreamHandler()
    handler.addFilter(JobFilter(process_name))
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it names whole addresses; a query may hold credentials


@contextmanager
def serving(group: str, worker: str) -> Iterator[None]:
    """Mark log lines within this context, and within tasks created there, as this worker's."""
    token = _serving.set(_Serving(group, worker))
    try:
        yield
    finally:
        _serving.reset(token)


running = _jobs.set
"""Set the jobs that run from now on in this context."""


def current_jobs() -> Sequence[Job]:
    """The jobs that run in this context: one, all jobs of a batch, or none outside of handlers."""
    return _jobs.get()


class JobFilter(logging.Filter):
    """Adds `topic, job_id, attempt, group, worker, trace_id, span_id` to every record (None where they do not apply).

    Drops none. `job` and `span` are the same as text, for plain formats: " [orders order-42 #1]" and
    " trace_id=4bf9… span_id=00f0…", or empty outside of a job or a span.
    """

    def __init__(self, process_name: str | None = None) -> None:
        """`process_name` tells one of several processes from the others, as in `wheelq up`."""
        super().__init__()
        has_colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        speaker = prefix_of(process_name, is_terminal=has_colours) if process_name else ""
        self._speaker = {"process_name": process_name, "speaker": speaker}

    def filter(self, record: logging.LogRecord) -> bool:
        jobs, by, within = _jobs.get(), _serving.get(), ids()
        fields: dict[str, object] = {**dict.fromkeys(FIELDS), "job": "", "span": "", **self._speaker}
        if within is not None:
            trace_id, span_id = within
            fields |= {"trace_id": trace_id, "span_id": span_id, "span": f" trace_id={trace_id} span_id={span_id}"}
        if jobs:
            topic, attempt = jobs[0].topic, max(job.attempt for job in jobs)
            job_id = jobs[0].id if len(jobs) == 1 else [job.id for job in jobs]
            which = job_id if len(jobs) == 1 else f"{len(jobs)} jobs"
            fields |= {"topic": topic, "job_id": job_id, "attempt": attempt, "job": f" [{topic} {which} #{attempt}]"}
        if by is not None:
            fields |= by._asdict()
        vars(record).update(fields)
        return True


def prefix_of(process_name: str, *, is_terminal: bool) -> str:
    """Returns the prefix of a process's log lines; on a terminal the name has a colour."""
    plain = f"{process_name} | "
    colour = COLOURS[sum(process_name.encode()) % len(COLOURS)]
    return f"\x1b[{colour}m{plain}\x1b[0m" if is_terminal else plain


class TextFormatter(logging.Formatter):
    """Time, level, process, logger, message, job and span; then the traceback. Takes records of a `JobFilter`.

    Messages hold text of others, such as a job's error. So that none looks like a record of its own, or steers the
    terminal, all lines after the first are indented, and control characters become escapes.
    """

    def format(self, record: logging.LogRecord) -> str:
        given = vars(record)
        parts = [f"{record.name}: {record.getMessage()}{given['job']}{given['span']}"]
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        text = printable("\n".join(parts)).replace("\n", f"\n{INDENT}")
        return f"{self.formatTime(record)} {record.levelname:<7} {given['speaker']}{text}"


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
        return json_line(line, str)
