"""22. Typed tasks: a function's signature is the payload of its jobs, and handlers say what their payloads are."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from tests.spec.conftest import Inbox, Run
from tests.waiting import PATIENCE
from wheelq import (
    AsyncClient,
    Client,
    InvalidInput,
    InvalidJob,
    Job,
    JobSpec,
    Receipt,
    ResultMismatch,
    Retry,
    Scheduler,
    Settings,
    TaskJob,
    Worker,
)
from wheelq.settings import TopicSettings
from wheelq.testing import WheelqTest


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: UUID
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    colour: Colour | None = None


class Notice(TypedDict):
    to: str
    on: NotRequired[date]


class Parcel(msgspec.Struct):
    id: UUID
    grams: int
    label: bytes = b""


class Customer(pydantic.BaseModel):
    id: UUID
    email: str
    limit: Decimal = Decimal(0)


ORDER = Order(UUID(int=42), datetime(2030, 1, 1, tzinfo=UTC), [Line("a", Decimal("9.90"), 2)], Colour.RED)
MODELS: dict[Any, Any] = {
    Order: ORDER,
    Notice: {"to": "ann", "on": date(2030, 1, 1)},
    Parcel: Parcel(UUID(int=1), 500, b"\xff\x00"),
    Customer: Customer(id=UUID(int=2), email="ann@example.org", limit=Decimal("1.5")),
    list[Parcel]: [Parcel(UUID(int=1), 500)],
    dict[str, Order]: {"first": ORDER},
    UUID: UUID(int=3),
    Decimal: Decimal("0.1"),
    datetime: datetime(2030, 1, 1, 12, tzinfo=UTC),
    date: date(2030, 1, 1),
    timedelta: timedelta(minutes=1.5),
    Colour: Colour.BLUE,
    bytes: b"\xff\x00",
    tuple[int, str]: (1, "a"),
}


def buried(wheelq: WheelqTest, topic: str) -> tuple[str, str]:
    """Why the topic's one dead job was buried, and at which attempt it was not tried again."""
    [dead] = wheelq.client.dead.list(topic).jobs
    assert dead.attempt == 1
    return str(dead.reason), dead.error


# Tasks


def test_the_arguments_of_a_job_are_those_of_the_function(wheelq: WheelqTest) -> None:
    """The payload is the arguments by name. The worker fills in the defaults of those not given."""
    ran: list[tuple[int, str]] = []

    @wheelq.worker.task("orders")
    async def close_order(order_id: int, reason: str = "unpaid") -> None:
        ran.append((order_id, reason))

    wheelq.client.schedule(close_order.job(42, reason="late"), delay=1800, key="order-42")
    wheelq.client.schedule(close_order.job(43), delay=1801)
    wheelq.assert_scheduled("orders", "order-42", payload={"order_id": 42, "reason": "late"}, due_in=1800)
    wheelq.advance(1800)
    wheelq.assert_ran("orders", payload={"order_id": 42, "reason": "late"})
    wheelq.advance(1)
    wheelq.assert_ran("orders", payload={"order_id": 43})
    assert ran == [(42, "late"), (43, "unpaid")]


def test_the_topic_is_the_name_of_the_function_unless_it_is_given(wheelq: WheelqTest) -> None:
    @wheelq.worker.task()
    def remind(who: str) -> None: ...

    assert remind.topic == "remind"
    assert wheelq.client.schedule(remind.job("ann"), delay=0).topic == "remind"
    assert len(wheelq.advance(0)) == 1


async def test_the_function_can_still_be_called(wheelq: WheelqTest) -> None:
    """As in a unit test, without any queue."""

    @wheelq.worker.task()
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @wheelq.worker.task()
    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    assert await total([1, 2, 3]) == 6
    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")


def test_a_first_parameter_annotated_job_gets_the_job(wheelq: WheelqTest) -> None:
    """It is not part of the payload."""
    seen: list[tuple[str, int, int]] = []

    @wheelq.worker.task("orders")
    async def close_order(job: Job, order_id: int) -> None:
        seen.append((job.id, job.attempt, order_id))

    wheelq.client.schedule(close_order.job(42), delay=0, key="order-42")
    wheelq.advance(0)
    assert seen == [("order-42", 1, 42)]


@pytest.mark.parametrize("hint", MODELS, ids=str)
def test_arguments_arrive_with_the_types_of_the_signature(wheelq: WheelqTest, hint: Any) -> None:
    got: list[object] = []

    async def take(value: Any, many: Any = None) -> None:
        got.extend((value, many))

    take.__annotations__ |= {"value": hint, "many": list[hint] | None}
    task = wheelq.worker.task()(take)
    wheelq.client.schedule(task.job(MODELS[hint], [MODELS[hint]]), delay=0)
    wheelq.advance(0)
    assert got == [MODELS[hint], [MODELS[hint]]]
    assert type(got[0]) is type(MODELS[hint])


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"reason": "late"}, "order_id: is missing; close_order needs it"),
        ({"order_id": "42"}, "order_id: must be int, not '42'"),
        ({"order_id": 42, "raeson": 1}, "raeson: close_order has no such argument; it has: order_id, reason, lines"),
        ({"order_id": 42, "lines": [{"sku": "a"}]}, "lines[0].price: is missing; Line needs it"),
        ({"order_id": 42, "lines": [{"sku": "a", "price": "?"}]}, "lines[0].price: must be Decimal, not '?'"),
        ([42], "payload: must be a map of the arguments of close_order, not [42]"),
    ],
    ids=["missing", "wrong type", "unknown", "missing field", "wrong field", "no map"],
)
def test_arguments_that_do_not_fit_bury_the_job_and_are_named(wheelq: WheelqTest, payload: Any, error: str) -> None:
    """With `on_mismatch="bury"`, at the first attempt; without it they wait first: see chapter 27."""

    @wheelq.worker.task("orders", retry=Retry(max_attempts=5), on_mismatch="bury")
    async def close_order(order_id: int, reason: str = "unpaid", lines: list[Line] = []) -> None:  # noqa: B006
        raise AssertionError("it must not run")

    wheelq.client.schedule("orders", payload, delay=0)
    wheelq.advance(0)
    assert buried(wheelq, "orders") == ("payload-mismatch", error)


def test_assertions_take_the_job_as_it_was_scheduled(wheelq: WheelqTest) -> None:
    """A task's job, or a model; nobody has to know how it is sent."""

    @wheelq.worker.task()
    async def close_order(order: Order) -> None: ...

    @wheelq.worker.handler("orders")
    async def close(job: Job[Order]) -> None: ...

    wheelq.client.schedule(close_order.job(ORDER), delay=60)
    wheelq.client.schedule("orders", ORDER, delay=60)
    wheelq.assert_scheduled("close_order", payload=close_order.job(ORDER))
    wheelq.assert_not_scheduled("orders", payload=replace(ORDER, colour=None))
    wheelq.advance(60)
    wheelq.assert_ran("orders", payload=ORDER, times=1)
    wheelq.assert_ran("close_order", payload={"order": ORDER}, times=1)


def test_a_task_takes_the_options_of_a_handler(wheelq: WheelqTest) -> None:
    attempts: list[int] = []

    @wheelq.worker.task("orders", retry=Retry(delays=[10]), timeout=30, ordered="key")
    async def close_order(job: Job, order_id: int) -> None:
        attempts.append(job.attempt)
        raise RuntimeError("not yet")

    wheelq.client.schedule(close_order.job(1), delay=0, partition_key="ann")
    wheelq.advance(10)
    assert attempts == [1, 2]


def test_many_jobs_of_a_task_are_scheduled_in_one_call(wheelq: WheelqTest) -> None:
    got: list[int] = []

    @wheelq.worker.task()
    def remind(who: int) -> int:
        got.append(who)
        return who

    receipts = wheelq.client.schedule_many(remind, [JobSpec(remind.job(n), delay=n) for n in range(3)])
    wheelq.client.schedule_many("remind", [JobSpec(remind.job(3), delay=3)])
    wheelq.advance(3)
    assert got == [0, 1, 2, 3]
    assert [(one.topic, one.read_result) for one in receipts] == [("remind", remind.read_result)] * 3


def test_a_job_of_another_task_is_refused(wheelq: WheelqTest) -> None:
    @wheelq.worker.task()
    def remind(who: int) -> None: ...

    with pytest.raises(InvalidInput, match=r"topic: must be 'remind', that of remind\.job\(who=1\), not 'orders'"):
        wheelq.client.schedule("orders", remind.job(1), delay=0)
    with pytest.raises(InvalidJob, match="must be 'remind'"):
        wheelq.client.schedule_many("orders", [JobSpec(remind.job(1), delay=0)])
    with pytest.raises(InvalidInput, match=r"payload: leave it out: it is the arguments of remind\.job"):
        wheelq.client.schedule(remind.job(1), {"who": 2}, delay=0)  # type: ignore[call-overload]
    wheelq.assert_nothing_waits()


def test_a_recurring_job_can_be_a_tasks(wheelq: WheelqTest) -> None:
    got: list[date] = []

    @wheelq.worker.task()
    async def report(kind: str, since: date) -> None:
        got.append(since)

    wheelq.client.recurring.put(report.job("sales", date(2030, 1, 1)), "hourly", every=3600)
    again = wheelq.client.recurring.put(report.job("sales", date(2030, 1, 1)), "hourly", every=3600)
    assert again.outcome == "unchanged"
    wheelq.advance(timedelta(hours=2))
    assert got == [date(2030, 1, 1)] * 2


def test_a_job_with_wrong_arguments_cannot_be_made(wheelq: WheelqTest) -> None:
    @wheelq.worker.task()
    def remind(job: Job, who: str) -> None: ...

    for wrong in ({}, {"who": "ann", "when": 1}):
        with pytest.raises(TypeError):
            remind.job(**wrong)


def test_tasks_are_copied_and_pickled_like_functions() -> None:
    assert copy.deepcopy(ping) is ping
    assert pickle.loads(pickle.dumps(ping)) is ping
    receipt = Receipt("a", 1, True, topic="ping", read_result=ping.read_result)
    assert pickle.loads(pickle.dumps(receipt)).read_result("00000000-0000-0000-0000-000000000001") == UUID(int=1)


POSTMAN = Worker.connect("redis://127.0.0.1:1", group="postman")


@POSTMAN.task()
async def ping(id: UUID) -> UUID:
    return id


# What cannot be a task or a handler


def positional(a: int, /, b: int) -> None: ...


def many(*ids: int) -> None: ...


def named(**ids: int) -> None: ...


def job_second(order_id: int, job: Job) -> None: ...


def a_set(ids: set[int]) -> None: ...


def integer_keys(names: dict[int, str]) -> None: ...


def alike(who: UUID | str) -> None: ...


def no_payload(stop: asyncio.Event) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (positional, "positional has the parameter a: 'int'|positional has the parameter a: int"),
        (many, r"many has the parameter \*ids: int: arguments are sent by name, so name each parameter"),
        (named, r"named has the parameter \*\*ids: int"),
        (job_second, "takes the job as 'job': it must be the first parameter"),
        (a_set, "ids: set cannot be sent; use None, bool, int"),
        (integer_keys, "names: the keys of a map in a payload are str, not int"),
        (alike, "who: in a payload the types of uuid.UUID | str cannot be told apart"),
        (no_payload, "stop: Event cannot be sent"),
        (len, "topic|signature|parameter"),
    ],
)
def test_a_function_whose_arguments_cannot_be_sent_by_name_is_refused(
    wheelq: WheelqTest, function: Callable[..., Any], problem: str
) -> None:
    """When it is decorated, and not when its first job is due."""
    with pytest.raises(InvalidInput, match=problem):
        wheelq.worker.task()(function)


@pytest.mark.parametrize("function", [lambda: None, lambda job, order: None, lambda *, job: None])
def test_a_handler_that_cannot_take_a_job_is_refused(wheelq: WheelqTest, function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match=r"function: .* cannot be called with a job alone"):
        wheelq.worker.handler("orders")(function)
    with pytest.raises(InvalidInput, match=r"function: .* cannot be called with a list of jobs alone"):
        wheelq.worker.batch_handler("orders")(function)


def test_a_function_that_yields_is_refused(wheelq: WheelqTest) -> None:
    """A call of it runs nothing, so its jobs would be done without having run."""

    async def each(job: Job) -> Any:
        yield job

    def every(jobs: list[Job]) -> Any:
        yield from jobs

    class Called:
        def __call__(self, job: Job) -> Any:
            yield from each(job)

    worker = Worker.connect("redis://127.0.0.1:1")
    for decorate, function in (
        (worker.handler("orders"), Called()),
        (worker.task("orders"), Called()),
        (worker.before, each),
        (worker.after, Called()),
        (worker.on_error, every),
        (worker.handler("orders"), each),
        (worker.task("orders"), each),
        (worker.handler_for_each(no_topics), each),
        (worker.batch_handler("orders"), every),
    ):
        with pytest.raises(InvalidInput, match=r"function: .*(each|every|Called.*) contains `yield`"):
            decorate(function)


@pytest.mark.parametrize("inline", [False, True])
def test_a_wrapped_function_that_yields_fails(wheelq: WheelqTest, inline: bool) -> None:
    """Only its result tells that nothing has run."""

    def close(job: Job) -> Any:
        yield job

    wheelq.worker.handler("orders", inline=inline, retry=Retry(max_attempts=1))(lambda job: close(job))
    wheelq.client.schedule("orders", delay=1)
    wheelq.advance(1)
    reason, error = buried(wheelq, "orders")
    assert (reason, "returned the generator" in error, "close" in error) == ("failed", True, True)


def test_an_object_that_can_be_called_is_a_task_if_its_topic_is_given(wheelq: WheelqTest) -> None:
    class Close:
        def __call__(self, number: int) -> int:
            return number

    assert wheelq.worker.task("close")(Close()).job(1).payload_for("close") == {"number": 1}
    assert wheelq.worker.task("open")(partial(Close(), number=2)).__name__ == "partial"
    with pytest.raises(InvalidInput, match=r"topic: give the topic of .*Close object"):
        wheelq.worker.task()(Close())


async def no_topics() -> list[str]:
    return []


def test_a_task_without_parentheses_is_refused(wheelq: WheelqTest) -> None:
    def remind(who: str) -> None: ...

    with pytest.raises(InvalidInput, match=r"write @worker\.task\(\)"):
        wheelq.worker.task(remind)  # type: ignore[arg-type]


# Handlers


@pytest.mark.parametrize("model", [Order, Notice, Parcel, Customer], ids=lambda model: model.__name__)
def test_a_handler_gets_its_payload_as_a_model(wheelq: WheelqTest, model: Any) -> None:
    got: list[Job[Any]] = []

    def handle(job: Job[Any]) -> None:
        got.append(job)

    handle.__annotations__["job"] = Job[model]
    wheelq.worker.handler("things")(handle)
    wheelq.client.schedule("things", MODELS[model], delay=0, key="one", headers={"from": "a test"})
    wheelq.advance(0)
    assert (got[0].payload, got[0].id, got[0].headers) == (MODELS[model], "one", {"from": "a test"})


@pytest.mark.parametrize(
    ("model", "payload", "error"),
    [
        (Order, {"id": str(UUID(int=1))}, "payload.placed: is missing; Order needs it"),
        (Order, {"id": 7, "placed": "2030-01-01"}, "payload.id: must be UUID, not 7"),
        (Notice, {"to": "ann", "on": "soon"}, "payload.on: must be date, not 'soon'"),
        (Notice, {"to": "ann", "onn": "soon"}, "payload.onn: Notice has no such field; it has: to, on"),
        (Parcel, {"id": str(UUID(int=1)), "grams": "x"}, "payload.grams: Expected `int`, got `str`"),
        (Customer, {"id": str(UUID(int=1)), "email": 7}, "payload.email: Input should be a valid string"),
    ],
)
def test_a_payload_that_does_not_fit_is_buried_and_its_field_named(
    wheelq: WheelqTest, model: Any, payload: object, error: str
) -> None:
    async def handle(job: Job[Any]) -> None:
        raise AssertionError("it must not run")

    handle.__annotations__["job"] = Job[model]
    wheelq.worker.handler("things", retry=Retry(max_attempts=None))(handle)
    wheelq.client.schedule("things", payload, delay=0)
    wheelq.advance(3600)
    assert buried(wheelq, "things") == ("payload-mismatch", error)
    assert wheelq.runs[0].job.payload == payload


def test_an_untyped_handler_gets_what_was_sent(wheelq: WheelqTest) -> None:
    """Values that msgpack does not know are sent as their text."""

    @wheelq.worker.handler("things")
    def handle(job: Job) -> None: ...

    wheelq.client.schedule("things", {"order": ORDER, "id": UUID(int=1)}, delay=0)
    wheelq.advance(0)
    line = {"sku": "a", "price": "9.90", "count": 2}
    order = {"id": str(UUID(int=42)), "placed": "2030-01-01T00:00:00+00:00", "lines": [line], "colour": "red"}
    wheelq.assert_ran("things", payload={"order": order, "id": str(UUID(int=1))})


def test_only_the_jobs_of_a_batch_that_do_not_fit_are_buried(wheelq: WheelqTest) -> None:
    """Their places in the results of the others stay right."""
    got: list[list[str]] = []

    @wheelq.worker.batch_handler("lines", max_size=10, max_wait=0, retry=Retry(delays=[60]), on_mismatch="bury")
    async def store(jobs: list[Job[Line]]) -> list[Exception | None]:
        got.append([job.payload.sku for job in jobs])
        return [ValueError(job.payload.sku) if job.payload.sku == "bad" and job.attempt == 1 else None for job in jobs]

    payloads = [Line("a", Decimal(1)), {"sku": "b"}, Line("bad", Decimal(1)), Line("c", Decimal(1))]
    wheelq.client.schedule_many("lines", [JobSpec(one, delay=0) for one in payloads])
    wheelq.advance(0)
    assert buried(wheelq, "lines") == ("payload-mismatch", "payload.price: is missing; Line needs it")
    wheelq.advance(60)
    assert got == [["a", "bad", "c"], ["bad"]]
    wheelq.assert_nothing_waits()


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_with_a_job_that_does_not_fit_runs_behind_a_plain_wrapper(wheelq: WheelqTest, fails: bool) -> None:
    """The others were done without having run: the coroutine that the wrapper returns was taken for their results."""
    got: list[str] = []

    async def store(jobs: list[Job[Line]]) -> None:
        got.extend(job.payload.sku for job in jobs)
        if fails and len(got) == 2:
            raise RuntimeError("the database is away")

    @wraps(store)
    def traced(*args: Any) -> Any:
        return store(*args)

    terms: dict[str, Any] = {"max_size": 10, "max_wait": 0, "on_mismatch": "bury", "retry": Retry(delays=[1])}
    wheelq.worker.batch_handler("lines", **terms)(traced)
    payloads = [Line("a", Decimal(1)), {"sku": "b"}, Line("c", Decimal(1))]
    wheelq.client.schedule_many("lines", [JobSpec(one, delay=0) for one in payloads])
    wheelq.advance(10)
    assert sorted(got) == sorted(["a", "c"] * (1 + fails))
    assert buried(wheelq, "lines") == ("payload-mismatch", "payload.price: is missing; Line needs it")
    wheelq.assert_nothing_waits()


def test_when_a_batch_fails_the_jobs_that_do_not_fit_are_buried_all_the_same(wheelq: WheelqTest) -> None:
    attempts: list[int] = []

    @wheelq.worker.batch_handler("lines", max_size=10, max_wait=0, retry=Retry(delays=[60]), on_mismatch="bury")
    def store(jobs: list[Job[Line]]) -> None:
        attempts.append(jobs[0].attempt)
        if jobs[0].attempt == 1:
            raise RuntimeError("the database is away")

    wheelq.client.schedule_many("lines", [JobSpec(one, delay=0) for one in (Line("a", Decimal(1)), 7)])
    wheelq.advance(60)
    assert attempts == [1, 2]
    assert buried(wheelq, "lines") == ("payload-mismatch", "payload: must be a map of the fields of Line, not 7")


# Results


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Topics that keep finished jobs."""
    return replace(settings, topic=TopicSettings(keep_done_ms=3_600_000))


async def test_a_receipt_is_waited_for_and_the_result_has_the_type_of_the_function(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, scheduler: Scheduler
) -> None:

    @worker.task(topic)
    async def price(order: Order) -> Line:
        return Line("all", sum((line.price * line.count for line in order.lines), Decimal(0)))

    run(worker)
    receipt = await aclient.schedule(price.job(ORDER), delay=0.05)
    assert await aclient.wait(receipt, timeout=PATIENCE) == Line("all", Decimal("19.80"))
    assert await aclient.wait(topic, receipt.id) == {"sku": "all", "price": "19.80", "count": 1}
    assert await aclient.wait(receipt._replace(read_result=None)) == {"sku": "all", "price": "19.80", "count": 1}


async def test_the_blocking_client_waits_for_receipts_too(
    worker: Worker, client: Client, topic: str, run: Run, scheduler: Scheduler, inbox: Inbox
) -> None:

    @worker.task(topic)
    def tomorrow(day: date) -> date:
        return day + timedelta(days=1)

    run(worker)
    receipt = await asyncio.to_thread(client.schedule, tomorrow.job(date(2030, 1, 1)), delay=0)
    assert receipt.topic == topic
    assert await asyncio.to_thread(client.wait, receipt, timeout=PATIENCE) == date(2030, 1, 2)
    [other] = await asyncio.to_thread(
        client.schedule_many, tomorrow, [JobSpec(tomorrow.job(date(2030, 1, 2)), delay=0)]
    )
    assert await asyncio.to_thread(client.wait, other, timeout=PATIENCE) == date(2030, 1, 3)


def test_a_result_of_another_type_is_an_error() -> None:
    """A worker of another release may have returned it."""
    assert ping.read_result(str(UUID(int=1))) == UUID(int=1)
    with pytest.raises(ResultMismatch, match="result: must be UUID, not 7"):
        ping.read_result(7)


def test_wait_needs_a_receipt_or_a_topic_and_an_id(client: Client, topic: str) -> None:
    with pytest.raises(InvalidInput, match="id: missing"):
        client.wait(topic)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="id: leave it out"):
        client.wait(Receipt("a", 1, True, topic=topic), "a")  # type: ignore[call-overload]


def test_a_job_of_a_task_shows_its_arguments() -> None:
    job: TaskJob[UUID] = ping.job(UUID(int=1))
    assert repr(job) == f"ping.job(id={UUID(int=1)!r})"
    assert repr(ping) == "<task ping of topic 'ping'>"


async def test_a_task_in_the_place_of_a_topic_is_refused_with_the_remedy(worker: Worker, aclient: AsyncClient) -> None:
    @worker.task("orders")
    async def close(number: int) -> None: ...

    with pytest.raises(InvalidInput, match=r"is the function close, not a topic name: write schedule\(close\.job"):
        await aclient.schedule(close, delay=1)  # type: ignore[call-overload]
