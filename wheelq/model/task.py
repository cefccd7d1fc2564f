"""Tasks: functions whose signature is the payload of their jobs.

    @worker.task("orders")
    async def close_order(order_id: int, reason: str = "unpaid") -> bool: ...

    close_order.job(42)            TaskJob: topic "orders", payload {"order_id": 42}      on the producer's side
    client.schedule(that, delay=1800)    ──▶  Receipt[bool]  ──▶  client.wait(receipt)  ──▶  bool
    close_order(42)                just calls the function                                in a unit test

The payload holds the arguments by name, and only those that were given: the worker fills in the defaults of its own
release of the function. Type checkers check the arguments of `.job(…)` as they check those of the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import cached_property, update_wrapper
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Protocol, TypeVar, final, get_args, get_origin, overload

from wheelq.errors import InvalidInput, PayloadMismatch, ResultMismatch
from wheelq.model import job
from wheelq.model.checks import check_runs, check_topic
from wheelq.model.convert import Convert, arguments_converter, converter
from wheelq.model.job import Job, Payload

if TYPE_CHECKING:
    from typing_extensions import ParamSpec  # `typing` has defaults from Python 3.13

    A = ParamSpec("A", default=...)
else:
    from typing import ParamSpec

    A = ParamSpec("A")
P = ParamSpec("P")
"""The parameters of `.job(…)`; so is `A`, which a type `TaskJob[bool]` may leave out."""
C = ParamSpec("C")
"""The parameters of the function: perhaps a job, then those of `.job(…)`."""
R_co = TypeVar("R_co", covariant=True)
"""What the function returns, after its `await`."""
T_co = TypeVar("T_co", covariant=True)
"""What a call of the function returns: a coroutine, if it is `async`."""
T = TypeVar("T")

_NOT_BY_NAME = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
_AWAITED = (Coroutine, Awaitable, Generator)


class TaskJob(Generic[R_co, A]):
    """A job of a task, made by `task.job(…)`: give it to `schedule` in place of topic and payload."""

    __slots__ = ("arguments", "task")
    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # `Generic` insists on both parameters before Python 3.13

    def __init__(self, task: Task[A, R_co, ..., Any], arguments: dict[str, Any]) -> None:
        self.task = task
        """The task whose job this is."""
        self.arguments = arguments
        """By name; those that were given."""

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.task.__name__}.job({given})"

    def payload_for(self, topic: str) -> dict[str, Any]:
        """Returns the job's payload. Raises: InvalidInput, if `topic` is not that of its task."""
        if topic != self.task.topic:
            raise InvalidInput("topic", f"must be {self.task.topic!r}, that of {self!r}, not {topic!r}")
        return self.arguments

    def without(self, payload: Payload) -> str:
        """Returns the task's topic. Raises: InvalidInput, if a payload was given besides the job."""
        if payload is not None:
            raise InvalidInput("payload", f"leave it out: it is the arguments of {self!r}")
        return self.task.topic


vars(job)["TaskJob"] = TaskJob
"""The annotations of `Job.then` name it; that module cannot import it from here, because this one imports that."""


class Task(Generic[P, R_co, C, T_co]):
    """A function whose jobs have its arguments as their payload. `@worker.task()` makes it.

    Calling it calls the function. `task.job(…)` takes the arguments of the function, without the job if its first
    parameter is annotated `Job`, and returns what `client.schedule` takes.
    """

    __name__: str
    __qualname__: str

    def __init__(self, topic: str | None, function: Callable[C, T_co]) -> None:
        """Analyse the function; its name is the topic if `topic` is None. Raises: InvalidInput."""
        self.function = function
        """The decorated function."""
        check_runs(function)
        update_wrapper(self, function)
        if not hasattr(function, "__name__"):
            if topic is None:
                raise InvalidInput("topic", f"give the topic of {function!r}, which has no name")
            self.__name__ = self.__qualname__ = type(function).__name__
        signature = _signature(function)
        parameters = list(signature.parameters.values())
        self.takes_job = bool(parameters) and is_job(parameters[0].annotation)
        """Whether the first parameter gets the job."""
        own = parameters[self.takes_job :]
        _check(self.__name__, own)
        self.topic = check_topic(self.__name__ if topic is None else topic)
        """The topic of its jobs."""
        hints = {one.name: Any if one.annotation is one.empty else one.annotation for one in own}
        required = {one.name for one in own if one.default is one.empty}
        self.read_arguments: Convert = arguments_converter(hints, required, self.__name__)
        """Converts a payload to the function's arguments by name. Raises: PayloadMismatch."""
        self._job_signature = signature.replace(parameters=own)
        self._returns = signature.return_annotation

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> T_co:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> TaskJob[R_co, P]:
        """Returns a job with these arguments, for `schedule`, `schedule_many` and `recurring.put`.

            client.schedule(close_order.job(42, reason="late"), delay=1800, key="order-42")

        Raises: TypeError, if the function has other parameters.
        """
        return TaskJob(self, dict(self._job_signature.bind(*args, **kwargs).arguments))

    def read_result(self, stored: Payload) -> R_co:
        """Converts a stored result to the type that the function returns.

        Raises: ResultMismatch; InvalidInput, if no payload can hold that type.
        """
        try:
            result: R_co = self._read_result(stored)
        except PayloadMismatch as error:
            raise ResultMismatch(error.field, error.problem) from error.__cause__
        return result

    @cached_property
    def _read_result(self) -> Convert:
        hint = self._returns
        if get_origin(hint) in _AWAITED:  # a plain function that returns a coroutine
            hint = get_args(hint)[-1]
        return converter(Any if hint is inspect.Signature.empty else hint, "result")

    def __repr__(self) -> str:
        return f"<task {self.__name__} of topic {self.topic!r}>"

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled by its name, like a function


@final
class Other:
    """Stands for any type that is not `Job`: see `TaskDecorator`."""


class TaskDecorator(Protocol):
    """Makes a task of a function: what `worker.task(…)` returns.

    The last four overloads tell whether the function takes a job first, and whether it is `async`. A first parameter
    that takes anything, `object` or one without annotation, would take a job too: the first two keep these apart, and
    the arguments of such a task are not checked.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[Other, P], Coroutine[Any, Any, T]], /
    ) -> Task[..., T, ..., Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Other, P], T], /) -> Task[..., T, ..., T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Job, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, T, Concatenate[Job, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], T], /) -> Task[P, T, Concatenate[Job, P], T]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, T, P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, P, T]: ...


def is_job(hint: Any) -> bool:
    """Whether a type hint is `Job` or `Job[…]`."""
    return hint is Job or get_origin(hint) is Job


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    name = getattr(function, "__name__", repr(function))
    try:
        return inspect.signature(function, eval_str=True)
    except (TypeError, ValueError) as error:
        raise InvalidInput("function", f"{name} has no signature that could be read ({error})") from error
    except Exception as error:
        problem = f"the annotations of {name} cannot be read ({error}); import and define their types at the top of "
        raise InvalidInput("function", problem + "the module, and not under TYPE_CHECKING") from error


def _check(name: str, parameters: list[inspect.Parameter]) -> None:
    for one in parameters:
        if one.kind in _NOT_BY_NAME:
            problem = f"{name} has the parameter {one}: arguments are sent by name, so name each parameter"
            raise InvalidInput("function", f"{problem}, without *, ** and /")
        if is_job(one.annotation):
            raise InvalidInput("function", f"{name} takes the job as {one.name!r}: it must be the first parameter")
