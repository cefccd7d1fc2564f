"""`Client` and `AsyncClient` are twins: one is made from the other, and both have the same outcomes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.transports import AsyncWith, BlockingWith, Fault, Forgetful, Refusing, Repeating, ReplyLost, Unreachable
from wheelq import AsyncClient, Client, JobSpec
from wheelq.admin import Inspector, facts
from wheelq.admin.figures import ASKS_ALWAYS
from wheelq.aio import AsyncDeadLetters, AsyncRecurring
from wheelq.base.clock import SystemClock
from wheelq.errors import WheelqError
from wheelq.producer.driver import AsyncDriver
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, AsyncTransport

MAKER = Path(__file__).parents[2] / ".ci" / "unasync.py"


def test_the_blocking_modules_are_made_from_the_asyncio_ones() -> None:
    """So they have the same methods, which take the same arguments and are described by the same words."""
    checked = subprocess.run([sys.executable, MAKER, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_method_says_what_it_does_and_the_awaited_ones_are_coroutines() -> None:
    for kind in (AsyncClient, AsyncDeadLetters, AsyncRecurring):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                assert method.__doc__, name
                assert inspect.iscoroutinefunction(inspect.unwrap(method)), name


# They do the same, also when things go wrong

Script = list[tuple[str, tuple[Any, ...], dict[str, Any]]]
SCRIPT: Script = [
    ("schedule", ("TOPIC", 1), {"delay": 60, "key": "a"}),
    ("schedule", ("TOPIC", 2), {"delay": 60, "key": "a"}),
    ("schedule", ("TOPIC", 3), {"delay": 90, "key": "a", "on_duplicate": "replace"}),
    ("schedule", ("TOPIC", 3), {"delay": 90, "key": "a", "on_duplicate": "raise"}),
    ("schedule", ("TOPIC", 4), {"delay": 0, "key": "b"}),
    ("schedule_many", ("TOPIC", [JobSpec(n, delay=60, key=f"many-{n}") for n in range(1_300)]), {}),
    ("schedule_many", ("TOPIC", [JobSpec(n, delay=60 if n != 5 else -1) for n in range(9)]), {}),
    ("get", ("TOPIC", "a"), {}),
    ("get", ("TOPIC", "b"), {}),
    ("get", ("TOPIC", "none"), {}),
    ("reschedule", ("TOPIC", "a"), {"delay": 120}),
    ("reschedule", ("TOPIC", "b"), {"delay": 120}),
    ("run_now", ("TOPIC", "a"), {}),
    ("cancel", ("TOPIC", "many-7"), {}),
    ("cancel", ("TOPIC", "a"), {}),
    ("cancel", ("unknown", "a"), {}),
    ("schedule", ("no topic",), {"delay": 1}),
    ("topics", (), {}),
]


def tell(answer: Any) -> Any:
    """An answer, without what depends on the moment."""
    if isinstance(answer, Exception):
        return type(answer).__name__, getattr(answer, "field", None)
    if isinstance(answer, list):
        return [tell(item) for item in answer]
    if hasattr(answer, "_fields"):  # a receipt
        return answer.id, answer.created, answer.replaced
    if hasattr(answer, "state"):
        return answer.id, answer.state, answer.payload, answer.attempt, answer.shard
    if hasattr(answer, "waiting"):
        return answer.shards, answer.waiting, answer.ready, answer.dead
    return answer


def said_blocking(url: str, topic: str, *faults: Fault) -> list[Any]:
    said = []
    with Client(BlockingWith(url, *faults), topic_settings=TopicSettings(shards=3)) as client:
        for name, arguments, options in SCRIPT:
            try:
                said.append(tell(getattr(client, name)(*_named(arguments, topic), **options)))
            except WheelqError as error:
                said.append(tell(error))
        said[-1] = [tell(info) for info in client.topics() if info.name == topic]
    return said


async def said_awaited(url: str, topic: str, *faults: Fault) -> list[Any]:
    said = []
    async with AsyncClient(AsyncWith(url, *faults), topic_settings=TopicSettings(shards=3)) as client:
        for name, arguments, options in SCRIPT:
            try:
                said.append(tell(await getattr(client, name)(*_named(arguments, topic), **options)))
            except WheelqError as error:
                said.append(tell(error))
        said[-1] = [tell(info) for info in await client.topics() if info.name == topic]
    return said


def _named(arguments: tuple[Any, ...], topic: str) -> tuple[Any, ...]:
    return tuple(topic if argument == "TOPIC" else argument for argument in arguments)


async def test_they_answer_the_same(url: str, topic: str) -> None:
    awaited = await said_awaited(url, f"{topic}-a")
    assert said_blocking(url, f"{topic}-b") == awaited
    assert len(awaited) == len(SCRIPT)


@pytest.mark.parametrize("after", [0, 1, 2, 5])
@pytest.mark.parametrize("fault", [ReplyLost, Refusing, Unreachable, Repeating, Forgetful])
async def test_they_answer_the_same_when_a_schedule_call_goes_wrong(
    url: str, topic: str, fault: type[Fault], after: int
) -> None:
    if after == 5 and fault in (Refusing, Unreachable):
        pytest.skip("the first of many batches fails: how many others are under way by then is not laid down")
    awaited = await said_awaited(url, f"{topic}-a", fault("schedule", after=after))
    assert said_blocking(url, f"{topic}-b", fault("schedule", after=after)) == awaited


@pytest.mark.parametrize("call", ["register_topic", "cancel", "reschedule", "run_now", "get"])
@pytest.mark.parametrize("fault", [ReplyLost, Refusing, Unreachable, Repeating, Forgetful])
async def test_they_answer_the_same_when_another_call_goes_wrong(
    url: str, topic: str, fault: type[Fault], call: str
) -> None:
    awaited = await said_awaited(url, f"{topic}-a", fault(call))
    assert said_blocking(url, f"{topic}-b", fault(call)) == awaited


async def test_inspections_find_the_same(url: str) -> None:
    with Inspector.connect(url) as inspector:
        levels = [finding.level for finding in inspector.doctor()]
    clock, transport = SystemClock(), AsyncTransport(Address(url))
    driver = AsyncDriver(transport, ASKS_ALWAYS, clock)
    found = await driver.run(facts.findings(Keys(), clock, transport))
    await driver.close()
    assert [finding.level for finding in found] == levels
    assert len(levels) > 5


@pytest.mark.parametrize("has_outbox", [False, True])
async def test_both_can_be_used_again_after_they_were_closed(
    url: str, topic: str, tmp_path: Path, has_outbox: bool
) -> None:
    """They connect again, and are to be closed once more."""
    outbox = tmp_path / "outbox.db" if has_outbox else None
    client, aclient = Client.connect(url, outbox=outbox), AsyncClient.connect(url, outbox=outbox)
    for n in range(2):
        assert client.schedule(topic, delay=60, key=f"blocking-{n}").created
        client.close()
        assert (await aclient.schedule(topic, delay=60, key=f"awaited-{n}")).created
        await aclient.close()
