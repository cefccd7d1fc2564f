"""Typed handlers: converts each payload to the types in the function's signature, which is analysed once, at
decoration.

    def close(order: Order, note: str = "")     a task: the payload is the arguments by name
    def close(job: Job[Order])                  the payload is an Order
    def close(jobs: list[Job[Order]])           the same for each job of a batch
    def close(job: Job)                         untyped: the function is used as it is, at no cost

A payload that does not fit raises `PayloadMismatch`, and the job waits for another worker (`outcome.of_mismatch`). In a
batch that job is left out, and the others run.
"""

from __future__ import annotations

import inspect
import re
from collections import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, get_args, get_origin

from wheelq.errors import InvalidInput, PayloadMismatch
from wheelq.model.checks import check_runs
from wheelq.model.convert import Convert, converter
from wheelq.model.job import Job
from wheelq.model.task import Task, is_job
from wheelq.worker.handlers.batch import outcomes, outcomes_of_failure, results_of
from wheelq.worker.handlers.handler import BatchFunction, Function, is_async

F = TypeVar("F", bound=Callable[..., Any])
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection)
_TYPED = re.compile(r"\bJob\[")


def run_task(task: Task[..., Any, ..., Any]) -> Function:
    """Returns a handler that calls the task's function with the arguments of each job."""
    read, takes_job = task.read_arguments, task.takes_job
    return _noted(_adapted(task.function, lambda job: ((job,) if takes_job else (), read(job.payload))), read)


def typed(function: Function) -> Function:
    """Returns the handler with its payloads converted; the function itself, if it asks for no type.

    Raises: InvalidInput, if it cannot take a job, or payloads cannot hold the type.
    """
    read = _reader(_first_hint(function, "a job"))
    if read is None:
        return function
    return _noted(_adapted(function, lambda job: ((replace(job, payload=read(job.payload)),), {})), read)


def _noted(function: F, read: Convert) -> F:
    """Notes the converter of a handler's payloads on it: see `Handler.reads`."""
    vars(function)["_wheelq_reads"] = read
    return function


def _adapted(function: Callable[..., Any], given: Callable[[Job], tuple[tuple[Job, ...], dict[str, Any]]]) -> Function:
    """Returns a handler that calls the function with what is `given` to it for each job."""
    if is_async(function):

        @wraps(function)
        async def run_async(job: Job) -> Any:
            args, kwargs = given(job)
            return await function(*args, **kwargs)

        return run_async

    @wraps(function)
    def run(job: Job) -> Any:
        args, kwargs = given(job)
        return function(*args, **kwargs)

    return run


def typed_batch(function: BatchFunction) -> BatchFunction:
    """Returns the batch handler with its payloads converted; the function itself, if it asks for no type.

    Raises: InvalidInput, as `typed`.
    """
    hint = _first_hint(function, "a list of jobs")
    read = _reader(get_args(hint)[0]) if get_origin(hint) in _LISTS and get_args(hint) else None
    if read is None:
        return function

    if is_async(function):

        @wraps(function)
        async def run_async(jobs: list[Job]) -> Any:
            fitting, misfits = _sorted(jobs, read)
            if misfits and fitting:
                return await _awaited(function(fitting), fitting, misfits)
            return _in_places((), misfits) if misfits else await function(fitting)

        return _noted(run_async, read)

    @wraps(function)
    def run(jobs: list[Job]) -> Any:
        fitting, misfits = _sorted(jobs, read)
        if not misfits:
            return function(fitting)
        try:
            result = function(fitting) if fitting else None
            if inspect.isawaitable(result):  # it is a plain function around an async one
                return _awaited(result, fitting, misfits)
            found = _each(result, fitting)
        except Exception as error:  # noqa: BLE001  # it is the outcome of the jobs that fit
            found = outcomes_of_failure(error, fitting)
        return _in_places(found, misfits)

    return _noted(run, read)


def _first_hint(function: Callable[..., Any], given: str) -> Any:
    """The annotation of the parameter that takes the job; Any, if there is none. Raises: InvalidInput."""
    check_runs(function)
    name = getattr(function, "__name__", type(function).__name__)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError):  # a builtin, or names that exist only for type checkers
        return Any
    try:
        signature.bind(None)
    except TypeError as error:
        problem = f"{name}{signature} cannot be called with {given} alone ({error})"
        problem += "; a function with arguments of its own is a task: @worker.task()"
        raise InvalidInput("function", problem) from error
    first = next(iter(signature.parameters.values())).name
    try:
        return inspect.signature(function, eval_str=True).parameters[first].annotation
    except Exception as error:  # names that exist only for type checkers
        written = signature.parameters[first].annotation
        if not _TYPED.search(str(written)):
            return Any
        problem = f"the annotations of {name} cannot be read ({error}); import and define their types at the top of the"
        raise InvalidInput("function", f"{problem} module, and not under TYPE_CHECKING") from error


def _reader(hint: Any) -> Convert | None:
    """Returns the converter of payloads for a parameter `Job[…]`; None if it names no type."""
    model = get_args(hint)[0] if is_job(hint) and get_args(hint) else Any
    return None if model is Any or model is object else converter(model, "payload")


def _sorted(jobs: Sequence[Job], read: Convert) -> tuple[list[Job], Mapping[int, PayloadMismatch]]:
    """Returns the jobs whose payloads fit, converted, and the errors of the others by index."""
    fitting: list[Job] = []
    misfits: dict[int, PayloadMismatch] = {}
    for place, job in enumerate(jobs):
        try:
            fitting.append(replace(job, payload=read(job.payload)))
        except PayloadMismatch as error:
            misfits[place] = error
    return fitting, misfits


async def _awaited(result: Awaitable[object], jobs: Sequence[Job], misfits: Mapping[int, PayloadMismatch]) -> Any:
    """Returns the outcomes of a batch from what the function returns for the jobs that fit, once it does."""
    try:
        found = _each(await result, jobs)
    except Exception as error:  # noqa: BLE001  # it is the outcome of the jobs that fit
        found = outcomes_of_failure(error, jobs)
    return _in_places(found, misfits)


def _each(result: object, jobs: Sequence[Job]) -> Sequence[object]:
    """Returns for each job its error or its result."""
    errors = outcomes(result, jobs)
    return [own if error is None else error for error, own in zip(errors, results_of(result, jobs), strict=True)]


def _in_places(found: Sequence[object], misfits: Mapping[int, PayloadMismatch]) -> list[object]:
    """Returns the outcomes in the order of the batch: those found for jobs that fit, and the errors of the others."""
    fitting = iter(found)
    return [misfits.get(place) or next(fitting) for place in range(len(found) + len(misfits))]
