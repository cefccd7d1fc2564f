"""Typed values survive the way through a payload, and what does not fit is named."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Annotated, Any, Literal, NewType, Required, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from wheelq.errors import InvalidInput, PayloadMismatch
from wheelq.model.convert import arguments_converter, converter
from wheelq.protocol import codec

OrderId = NewType("OrderId", int)


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Kind(StrEnum):
    A = "a"


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Odd(Enum):
    POINT = (1, 2)


@dataclass(frozen=True, slots=True)
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: UUID
    number: OrderId
    placed: datetime
    day: date
    lines: list[Line]
    by_name: dict[str, Line]
    colour: Colour | None
    span: tuple[int, str]
    rest: tuple[float, ...]
    raw: bytes
    mode: Literal["fast", 1]
    parent: Order | None = None
    level: Level = Level.LOW
    weight: float | None = None
    either: int | str | None = None
    at: time = time(0)
    pause: timedelta = timedelta(0)
    note: Annotated[str, "shown"] = ""
    total: int = field(init=False, default=0)


class Notice(TypedDict, total=False):
    to: Required[str]
    on: date


class Parcel(msgspec.Struct, frozen=True):
    id: UUID
    price: Decimal
    raw: bytes
    at: datetime


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


class Customer(pydantic.BaseModel):
    id: UUID
    limit: Decimal
    raw: bytes
    email_address: str = pydantic.Field(alias="emailAddress", default="")


def through(value: Any, hint: Any) -> Any:
    """The value as a handler gets it."""
    record = codec.encode(value, None, 1_000_000)
    return converter(hint, "payload")(codec.decode(record).payload)


DECIMALS = st.decimals(allow_nan=False)
INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LINES = st.builds(Line, TEXTS, DECIMALS, INTS)
MOMENTS = st.datetimes() | st.datetimes(timezones=st.just(UTC))
ORDERS = st.builds(
    Order,
    id=st.uuids(),
    number=INTS,
    placed=MOMENTS,
    day=st.dates(),
    lines=st.lists(LINES, max_size=3),
    by_name=st.dictionaries(TEXTS, LINES, max_size=3),
    colour=st.sampled_from(Colour) | st.none(),
    span=st.tuples(INTS, TEXTS),
    rest=st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
    raw=st.binary(max_size=8),
    mode=st.sampled_from(["fast", 1]),
    parent=st.none(),
    level=st.sampled_from(Level),
    weight=st.floats(allow_nan=False) | st.none(),
    either=INTS | TEXTS | st.none(),
    at=st.times(),
    pause=st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)),
    note=TEXTS,
)


@given(ORDERS, st.none() | ORDERS)
def test_a_dataclass_comes_back_as_it_was(order: Order, parent: Order | None) -> None:
    order.parent = parent
    assert through(order, Order) == order
    assert through([order], list[Order]) == [order]


@given(st.uuids(), DECIMALS, st.binary(max_size=8), st.datetimes())
def test_models_of_libraries_come_back_as_they_were(id: UUID, price: Decimal, raw: bytes, at: datetime) -> None:
    parcel = Parcel(id, price, raw, at)
    assert through(parcel, Parcel) == parcel
    if price.is_finite():
        customer = Customer(id=id, limit=price, raw=raw, emailAddress="a")
        assert through(customer, Customer) == customer
        assert through({"one": [customer]}, dict[str, list[Customer]]) == {"one": [customer]}


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ({"to": "ann", "on": date(2030, 1, 1)}, Notice),
        ({"to": "ann"}, Notice),
        (Cat("a"), Cat | Dog),
        ([Dog("b"), None], list[Cat | Dog | None]),
        (7, Annotated[int, pydantic.Field(gt=5)]),
        (None, Annotated[int, pydantic.Field(gt=5)] | None),
        (7, Annotated[int, msgspec.Meta(gt=5)]),
        (Kind.A, Kind),
        (Rights.READ | Rights.WRITE, Rights),
        ({"a": [1]}, dict),
        ([1, "a"], list),
        ({"a": 1}, object),
        (None, None),
        (True, bool | int),
        (1, bool | int),
        (1.5, int | float),
        (1, int | float),
    ],
)
def test_other_values_come_back_as_they_were(value: Any, hint: Any) -> None:
    got = through(value, hint)
    assert got == value
    assert type(got) is type(value)


def test_an_int_is_accepted_for_a_float_and_a_number_for_a_decimal() -> None:
    """As programs of other languages send them."""
    assert converter(float, "payload")(1) == 1.0
    assert converter(float | None, "payload")(1) == 1.0
    assert converter(Decimal, "payload")(12.5) == Decimal("12.5")
    assert converter(datetime, "payload")("2030-01-01T00:00:00Z").utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("value", "hint", "error"),
    [
        (True, int, "payload: must be int, not True"),
        ("1", int, "payload: must be int, not '1'"),
        (1, str, "payload: must be str, not 1"),
        ("nan", float, "payload: must be float, not 'nan'"),
        ("x", UUID, "payload: must be UUID, not 'x'"),
        ("x", Decimal, "payload: must be Decimal, not 'x'"),
        ("2030-13-01", date, "payload: must be date, not '2030-13-01'"),
        (1e300, timedelta, "payload: must be timedelta, not 1e+300"),
        ("green", Colour, "payload: must be Colour, not 'green'"),
        (3, str | None, "payload: must be str | None, not 3"),
        ("slow", Literal["fast", 1], "payload: must be 'fast' or 1, not 'slow'"),
        (True, Literal["fast", 1], "payload: must be 'fast' or 1, not True"),
        ([1, "a"], list[int], "payload[1]: must be int, not 'a'"),
        ({"a": {"b": "c"}}, dict[str, dict[str, int]], "payload.a.b: must be int, not 'c'"),
        ([1], tuple[int, str], "payload: must be a list of 2, not [1]"),
        ("ab", list[str], "payload: must be list, not 'ab'"),
        ([], dict[str, int], "payload: must be map, not []"),
        ({"on": "2030-01-01"}, Notice, "payload.to: is missing; Notice needs it"),
        (
            {"sku": "a", "price": "1", "cuont": 2},
            Line,
            "payload.cuont: Line has no such field; it has: sku, price, count",
        ),
        ({"name": "a"}, Cat | Dog, "payload: Object missing required field `type`"),
        (3, Annotated[int, pydantic.Field(gt=5)], "payload: Input should be greater than 5"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_path(value: object, hint: Any, error: str) -> None:
    with pytest.raises(PayloadMismatch) as caught:
        converter(hint, "payload")(value)
    assert str(caught.value) == error


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("it is odd")


def test_a_value_that_the_dataclass_itself_refuses_does_not_fit() -> None:
    with pytest.raises(PayloadMismatch, match=r"payload\[0\]: Even refuses it: it is odd"):
        converter(list[Even], "payload")([{"number": 1}])


@dataclass
class Lost:
    value: Nowhere  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Deep:
    inner: list[dict[str, set[int]]]


@pytest.mark.parametrize(
    ("hint", "error"),
    [
        (set[int], "payload: set cannot be sent; use None, bool"),
        (object(), "payload: <object object at"),
        (dict[int, str], "payload: the keys of a map in a payload are str, not int"),
        (UUID | str, "payload: in a payload the types of uuid.UUID | str cannot be told apart"),
        (Line | Even, "cannot be told apart"),
        (Odd, "payload: Odd cannot be sent"),
        (Literal[Colour.RED], "cannot be sent"),
        (Lost, "payload: the annotations of Lost cannot be read (name 'Nowhere' is not defined)"),
        (Deep, "payload.inner[][]: set cannot be sent"),
        (type, "payload: type cannot be sent"),
    ],
)
def test_types_that_payloads_cannot_hold_are_refused(hint: Any, error: str) -> None:
    """Before any job comes."""
    with pytest.raises(InvalidInput) as caught:
        converter(hint, "payload")
    assert error in str(caught.value)


def test_arguments_are_converted_by_name() -> None:
    read = arguments_converter({"id": UUID, "note": str}, {"id"}, "close")
    assert read({"id": str(UUID(int=1))}) == {"id": UUID(int=1)}
    with pytest.raises(PayloadMismatch, match=r"^id: is missing; close needs it$"):
        read({"note": "a"})
    with pytest.raises(PayloadMismatch, match=r"^day: close has no such argument; it has: id, note$"):
        read({"id": str(UUID(int=1)), "day": 1})


def test_a_type_may_contain_itself() -> None:
    order: Order | None = None
    for number in range(20):
        moment = datetime(2030, 1, 1)  # noqa: DTZ001
        order = Order(
            UUID(int=1), OrderId(number), moment, moment.date(), [], {}, None, (1, "a"), (), b"", "fast", parent=order
        )
    assert through(order, Order) == order


def test_values_that_no_payload_holds_are_named_with_their_path() -> None:
    with pytest.raises(InvalidInput) as caught:
        codec.encode({"lines": [Line("a", Decimal(1)), {"tags": {1}}]}, None, 1_000)
    assert caught.value.field == "payload.lines[1].tags"
    with pytest.raises(InvalidInput) as caught:
        codec.encode([Even(2**70 * 2)], None, 1_000)
    assert caught.value.field == "payload[0].number"


WITHOUT_LIBRARIES = """
import sys
sys.modules["pydantic"] = sys.modules["msgspec"] = None  # importing either fails
from dataclasses import dataclass
from datetime import date
from wheelq import Worker
from wheelq.model.convert import converter
from wheelq.protocol import codec

@dataclass
class Order:
    id: int
    day: date

worker = Worker.connect("redis://127.0.0.1:1")

@worker.task()
def close(order: Order) -> Order:
    return order

payload = codec.decode(codec.encode(close.job(Order(1, date(2030, 1, 1))).arguments, None, 1_000)).payload
assert close.read_arguments(payload) == {"order": Order(1, date(2030, 1, 1))}, payload
"""


def test_neither_pydantic_nor_msgspec_is_needed() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_LIBRARIES], check=True, timeout=4 * PATIENCE)
