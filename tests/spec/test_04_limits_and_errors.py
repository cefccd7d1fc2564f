"""4. Limits and errors: what is refused, by which error, and that nothing was sent."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.records import RECORD
from wheelq import AsyncClient, CancelOutcome, Client, Continuation, JobSpec, RescheduleOutcome, Settings, WheelqError
from wheelq.embedded import EmbeddedServer
from wheelq.errors import (
    AuthenticationFailed,
    ConfigurationError,
    InvalidInput,
    InvalidJob,
    PayloadTooLarge,
    Refused,
    ServerFull,
    Unavailable,
)
from wheelq.protocol.calls import producer
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

DAY = 86_400


def shown(value: object) -> str:
    """The name of a case by its value."""
    return value if isinstance(value, str) else repr(value)[:17]


def refused(client: Client, topic: str, **arguments: Any) -> InvalidInput:
    """The error of a schedule call; nothing was sent."""
    with pytest.raises(InvalidInput) as caught:
        client.schedule(**{"topic": topic, "delay": 60} | arguments)
    assert client.topics() == []
    return caught.value


# When


WRONG_DELAYS: dict[str, list[object]] = {
    "negative": [-1, -0.001, -1e-9, float("nan"), float("-inf"), timedelta(microseconds=-1)],
    "number": ["60", b"60", True, [60], 1j, object()],
    "max_delay_ms": [3_661 * DAY, 1e30, 1e300, float("inf"), 10**400, timedelta.max],
}


@pytest.mark.parametrize(
    ("problem", "delay"), [(why, delay) for why, every in WRONG_DELAYS.items() for delay in every], ids=shown
)
def test_a_delay_is_a_number_of_seconds_from_now_to_ten_years(
    client: Client, topic: str, delay: object, problem: str
) -> None:
    """3,660 days: a due time beyond that is nearly always a unit mistaken (`max_delay_ms` raises the limit)."""
    error = refused(client, topic, delay=delay)
    assert error.field == "delay"
    assert problem in str(error)


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        pytest.param(datetime(2030, 1, 1), "datetime.now(UTC)", id="without a time zone"),  # noqa: DTZ001
        pytest.param(datetime.max.replace(tzinfo=UTC), "after the year 9999", id="the year 9999"),
        pytest.param(
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
            "after the year 9999",
            id="the year 10,000 in UTC",
        ),
        pytest.param(datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "1970", id="before the year 1 in UTC"),
        pytest.param(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "1970", id="before 1970"),
        pytest.param("2030-01-01T00:00:00Z", "datetime", id="text"),
        pytest.param(1_893_456_000, "datetime", id="a number"),
        pytest.param(date(2030, 1, 1), "datetime", id="a date"),
    ],
)
def test_a_moment_is_an_aware_datetime_since_1970(client: Client, topic: str, at: object, problem: str) -> None:
    """The message says what to write instead."""
    error = refused(client, topic, delay=None, at=at)
    assert error.field == "at"
    assert problem in str(error)


def test_one_of_a_delay_and_a_moment_is_given(client: Client, topic: str) -> None:
    both, neither = refused(client, topic, delay=60, at=datetime.now(UTC)), refused(client, topic, delay=None)
    assert (both.field, neither.field) == ("at", "delay")
    assert "not both" in str(both)
    assert "missing" in str(neither)


def test_a_delay_of_nearly_ten_years_is_accepted(client: Client, topic: str) -> None:
    assert client.schedule(topic, delay=3_660 * DAY).created


# What


def nested() -> list[Any]:
    payload: list[Any] = []
    for _ in range(2_000):
        payload = [payload]
    return payload


def cyclic() -> list[Any]:
    payload: list[Any] = [1]
    payload.append(payload)
    return payload


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({1, 2}, "payload: "),
        ({"lines": [1, {"sku": {2}}]}, r"payload\.lines\[1\]\.sku: "),
        (nested(), "nested"),
        (cyclic(), ""),
    ],
    ids=["set", "set inside", "nested too deeply", "contains itself"],
)
def test_a_payload_that_cannot_be_stored_is_refused_with_its_path(
    client: Client, topic: str, payload: object, problem: str
) -> None:
    """The field names the first item that cannot be kept as it is."""
    assert re.search(problem, str(refused(client, topic, payload=payload)))


def test_a_payload_of_more_than_64_kilobytes_is_refused(client: Client, topic: str) -> None:
    """Packed size, 65,536 bytes; the message says what to do: store the data elsewhere and send a reference."""
    error = refused(client, topic, payload="x" * 65_536)
    assert isinstance(error, PayloadTooLarge)
    assert (error.payload_bytes, error.limit_bytes) == (65_541, 65_536)
    assert "reference" in str(error)
    assert client.schedule(topic, "x" * 65_500, delay=60).created


WRONG_ARGUMENTS: dict[str, list[object]] = {
    "headers": [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"b"}, "a", [("a", "b")], {"a": "\ud800"}, {"a": "x" * 70_000}],
    "partition_key": [42, b"a", "\ud800"],
    "on_duplicate": ["overwrite"],
    "priority": ["urgent", ["high"], None],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in WRONG_ARGUMENTS for value in WRONG_ARGUMENTS[name]], ids=shown
)
def test_other_arguments_are_refused_by_their_names(client: Client, topic: str, name: str, value: object) -> None:
    """Headers are text by name, 64 kilobytes at most; a partition key is text; `on_duplicate` is one of three words."""
    assert refused(client, topic, **{name: value}).field == name


# Names

BAD_TOPICS = ["", " ", "a b", "-a", ".a", "a/b", "a:b", "{a}", "ä", "a\n", "x" * 101, None, 7]


@pytest.mark.parametrize("topic", BAD_TOPICS)
def test_a_topic_is_1_to_100_letters_digits_dots_dashes_and_underscores(client: Client, topic: Any) -> None:
    """A letter or digit first."""
    assert refused(client, topic).field == "topic"
    for ask in (client.get, client.cancel, client.run_now):
        with pytest.raises(InvalidInput):
            ask(topic, "a")


@pytest.mark.parametrize("key", ["", "x" * 257, "ä" * 129, "a\nb", "a\x00b", "a\x1fb", "a\x85b", "\ud800", 42, b"a"])
def test_a_key_is_1_to_256_bytes_of_text_without_control_characters(client: Client, topic: str, key: Any) -> None:
    assert refused(client, topic, key=key).field == "key"


@pytest.mark.parametrize("key", [".", "..", "a/../b", "../a", "a/.", "\x9b31m"])
def test_a_key_that_no_url_can_hold_or_that_steers_terminals_is_refused_for_new_jobs(
    client: Client, url: str, settings: Settings, topic: str, key: str
) -> None:
    """One that another program made is found, moved and cancelled."""
    assert refused(client, topic, key=key).field == "key"
    with pytest.raises(InvalidInput, match="name"):
        client.recurring.put(topic, key, every=60)
    client.schedule(topic, delay=60, key="another")
    with closing(Transport(Address(url))) as transport:
        keys = Keys(settings.prefix).shard(topic, 0)
        transport.send(producer.schedule(keys, [(key, "+60000", RECORD)], "keep", "1"))
    assert client.reschedule(topic, key, delay=90) is RescheduleOutcome.RESCHEDULED
    found = client.get(topic, key)
    assert found is not None
    assert found.id == key
    assert client.cancel(topic, key) is CancelOutcome.CANCELLED


@pytest.mark.parametrize("key", ["...", ".a", "a..b", "a/b", "a.", "..a/.b"])
def test_other_keys_with_dots_are_keys(client: Client, topic: str, key: str) -> None:
    assert client.schedule(topic, delay=60, key=key).id == key


@pytest.mark.parametrize("id", ["", "a\x1fgroup", "\ud800", 42, None])
def test_an_id_that_is_asked_for_must_be_one(client: Client, topic: str, id: Any) -> None:
    client.schedule(topic, delay=60)
    for ask in (client.get, client.cancel, client.run_now, partial(client.cancel, partition_key="p")):
        with pytest.raises(InvalidInput):
            ask(topic, id)


def test_invalid_input_is_also_a_value_error(client: Client, topic: str) -> None:
    with pytest.raises(ValueError, match="delay"):
        client.schedule(topic, delay=-1)
    assert issubclass(InvalidInput, WheelqError)


# One of many


@pytest.mark.parametrize(("place", "sent"), [(0, 0), (3, 0), (249, 0), (499, 250), (500, 500), (1_100, 1_000)])
def test_a_bad_job_among_many_is_named_with_what_was_scheduled_before_it(
    client: Client, topic: str, place: int, sent: int
) -> None:
    """Whole batches before it are scheduled: 250 jobs, 250, then 500 each. `receipts` tells exactly which jobs."""
    specs = [JobSpec(n, delay=60) for n in range(1_200)]
    specs[place] = JobSpec({1}, delay=60)
    with pytest.raises(InvalidJob) as caught:
        client.schedule_many(topic, specs)
    error = caught.value
    assert (error.place, error.field) == (place, f"jobs[{place}].payload")
    assert set(error.receipts) == set(range(sent))
    assert sum(info.waiting for info in client.topics()) == len(error.receipts)


@pytest.mark.parametrize("spec", [{"n": 1}, None, 60])
def test_a_foreign_entry_among_many_is_named_and_does_not_end_the_list(client: Client, topic: str, spec: Any) -> None:
    with pytest.raises(InvalidJob, match=r"jobs\[1\]\.spec: must be a JobSpec"):
        client.schedule_many(topic, [JobSpec(0, delay=60), spec, JobSpec(2, delay=60)])
    assert sum(info.waiting for info in client.topics()) == 0


# Other arguments


@pytest.mark.parametrize(
    ("method", "argument", "value", "problem"),
    [
        *(("schedule_many", "jobs", jobs, "must be JobSpecs in a list") for jobs in (None, 5, JobSpec(delay=60))),
        *(("set_shards", "shards", n, "must be 1 to ") for n in (True, "4", 2.0, 1.5, None, 0, 10_001)),
        *(("wait", "timeout", seconds, "must be seconds") for seconds in ("5", True, math.nan)),
        *(("wait", "group", group, "must be a non-empty string") for group in (["g"], "")),
        *(("rerun", "group", group, "must be a non-empty string") for group in (["g"], "")),
        *(("rerun", "rate", rate, "must be 0.001 to 1,000,000 jobs a second") for rate in ("x", 0)),
        *(("rerun", "name", name, "must be a non-empty string") for name in (5, "")),
        *((method, "progress", 5, "must be a function") for method in ("cancel_due", "reschedule_due")),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(
    client: Client, topic: str, method: str, argument: str, value: object, problem: str
) -> None:
    client.schedule(topic, delay=60)
    client.configure(topic, retention_ms=1)
    since = datetime.now(UTC)
    rest: dict[str, dict[str, Any]] = {
        "wait": {"id": "order-42"},
        "rerun": {"group": "g", "since": since},
        "cancel_due": {"since": since},
        "reschedule_due": {"since": since, "by": 1},
    }
    with pytest.raises(InvalidInput, match=rf"^{argument}: {problem}"):
        getattr(client, method)(topic, **{**rest.get(method, {}), argument: value})


def test_a_message_does_not_repeat_a_long_argument_whole(client: Client, topic: str) -> None:
    error = refused(client, topic, priority="x" * 100_000)
    assert len(str(error)) < 700
    assert str(error).startswith("priority: must be high, normal, low, not 'xxx")


@pytest.mark.parametrize("limit", ["5", True, 1.5, None, 0, 501])
def test_the_length_of_a_page_is_a_whole_number(client: Client, topic: str, limit: Any) -> None:
    client.schedule(topic, delay=60)
    for page in (client.waiting, client.dead.list, partial(client.jobs, state="dead")):
        with pytest.raises(InvalidInput, match=r"^limit: must be 1 to 500, not "):
            page(topic, limit=limit)


# The server


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis://localhost:port",
        "redis://localhost/orders",
    ],
)
def test_a_wrong_url_is_told_before_anything_is_tried(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHEELQ_URL", raising=False)
    with pytest.raises(ConfigurationError):
        Client.connect(url)


def test_without_a_url_the_environment_is_asked(url: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELQ_URL", url)
    with Client.connect() as client:
        assert client.get(topic, "a") is None


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path, topic: str) -> None:
    """Nothing was done; the message names the server."""
    with Client.connect(f"unix://{tmp_path}/none.sock") as client, pytest.raises(Unavailable, match=r"none\.sock"):
        client.schedule(topic, delay=60)


def test_a_wrong_password_is_told_as_such_and_not_shown(
    private_server: Callable[..., EmbeddedServer], topic: str
) -> None:
    server = private_server(appendonly=False, password="the right one")
    wrong = server.url.replace("the%20right%20one", "guessed")
    with Client.connect(wrong) as client, pytest.raises(AuthenticationFailed) as caught:
        client.schedule(topic, delay=60)
    assert "guessed" not in str(caught.value)
    with Client.connect(server.url) as client:
        assert client.schedule(topic, delay=60).created


def test_a_full_server_refuses_new_jobs_with_an_error_of_its_own(
    private_server: Callable[..., EmbeddedServer], topic: str
) -> None:
    """Nothing was done; what is due still runs."""
    server = private_server(appendonly=False, options={"maxmemory": "1kb"})
    with Client.connect(server.url) as client, pytest.raises(ServerFull) as caught:
        client.schedule(topic, delay=60)
    assert isinstance(caught.value, Refused)


@pytest.mark.parametrize("count", [500, 1_500])
async def test_a_full_server_refuses_all_of_many_jobs(
    private_server: Callable[..., EmbeddedServer], topic: str, count: int
) -> None:
    """Although the next jobs are under way when it refuses the first."""
    server = private_server(appendonly=False)
    jobs = [JobSpec(n, delay=60) for n in range(count)]
    with Client.connect(server.url) as client, redis.Redis.from_url(server.url) as raw:
        async with AsyncClient.connect(server.url) as aclient:
            client.schedule(topic, delay=60, key="before")
            await aclient.schedule(topic, delay=60, key="before")
            raw.config_set("maxmemory", "1kb")
            with pytest.raises(ServerFull):
                client.schedule_many(topic, jobs)
            with pytest.raises(ServerFull):
                await aclient.schedule_many(topic, jobs)
            raw.config_set("maxmemory", "0")
            assert len(client.schedule_many(topic, jobs)) == count
            assert [info.waiting for info in client.topics()] == [count + 1]


def test_a_client_comes_back_by_itself_when_the_server_does(
    private_server: Callable[..., EmbeddedServer], topic: str
) -> None:
    server = private_server()
    with Client.connect(server.url, Settings()) as client:
        client.schedule(topic, delay=60, key="a")
        server.kill()
        with pytest.raises(WheelqError):
            client.schedule(topic, delay=60, key="b")
        server.start()
        assert client.schedule(topic, delay=60, key="b").created
        assert client.get(topic, "a") is not None


# Wrong kinds of values


class Topics(str, Enum):  # noqa: UP042
    """Members are compared by their value, and written as `Topics.ORDERS`."""

    ORDERS = "orders"


def test_a_topic_or_a_key_that_is_written_otherwise_than_it_compares_is_refused(client: Client, topic: str) -> None:
    """Else the topic would be registered under one name, and its keys would have the other."""
    assert "give its value, 'orders'" in refused(client, Topics.ORDERS).problem
    assert "give its value, 'orders'" in refused(client, topic, key=Topics.ORDERS).problem


@pytest.mark.parametrize("value", ["false", 0, 1, None])
def test_a_flag_is_true_or_false_and_nothing_else(client: Client, topic: str, value: Any) -> None:
    """These remove things: "false" is no way to say yes."""
    client.schedule(topic, delay=60, key="a")
    for call in (
        partial(client.remove_topic, topic, force=value),
        partial(client.remove_group, topic, "g", force=value),
        partial(client.dead.purge, topic, all=value),
        partial(client.dead.replay, topic, all=value),
        partial(client.cancel, topic, "a", running=value),
        partial(client.schedule_many, topic, [], then=Continuation(topic), close=value),
    ):
        with pytest.raises(InvalidInput, match="must be True or False"):
            call()
    assert client.get(topic, "a") is not None


@pytest.mark.parametrize("value", [10**5_000, -1, True, 1.5], ids=["huge", "negative", "flag", "fraction"])
def test_the_due_time_that_a_reschedule_expects_is_a_moment(client: Client, topic: str, value: Any) -> None:
    client.schedule(topic, delay=60, key="a")
    with pytest.raises(InvalidInput, match="if_due_ms: must be whole milliseconds since 1970"):
        client.reschedule(topic, "a", delay=5, if_due_ms=value)


def test_an_error_shows_values_that_cannot_be_shown(client: Client, topic: str) -> None:
    assert "this int" in refused(client, topic, delay=10**5_000).problem
    assert "this int" in refused(client, topic, attempts=10**5_000).problem


def test_expires_is_more_than_nothing(client: Client, topic: str) -> None:
    assert "more than 0 seconds" in refused(client, topic, expires=0).problem


@pytest.mark.parametrize("specs", [5, None])
def test_members_that_are_no_list_make_no_bundle(client: Client, topic: str, specs: Any) -> None:
    with pytest.raises(InvalidInput, match="jobs"):
        client.schedule_many(topic, specs, then=Continuation(f"{topic}-next"))
    with pytest.raises(InvalidInput, match="on_duplicate"):
        client.schedule_many(topic, [], then=Continuation(f"{topic}-next"), on_duplicate="other")  # type: ignore[arg-type]
    assert client.topics() == []


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_host_that_is_no_name_is_named(scheme: str, host: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a server URL"):
        Client.connect(f"{scheme}://{host}:1")


@pytest.mark.parametrize("url", [5, b"redis://127.0.0.1:1", ["redis://127.0.0.1:1"]])
def test_a_url_is_a_string(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a string"):
        Client.connect(url)
