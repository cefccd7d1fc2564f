"""Recurring jobs when things go wrong: each occurrence is made once, whoever fails where."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from loadtest.torture.fleet import Fleet
from tests.records import RECORD
from tests.transports import AsyncWith, BlockingWith, Fault, Forgetful, Refusing, Repeating, ReplyLost, Unreachable
from tests.waiting import eventually, until
from wheelq import Client, RecurringOutcome, Settings
from wheelq.base.clock import SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import OutcomeUnknown, Refused, ServerError, Unavailable
from wheelq.model.job import from_ms
from wheelq.model.recurring import Missed, Rule
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer
from wheelq.protocol.calls import recurring as calls
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.protocol.recurring_codec import StoredRecurring, occurrence_id
from wheelq.reminders import Loop
from wheelq.scheduler.parts import NodeParts
from wheelq.scheduler.recurring import Occurrences
from wheelq.settings import SchedulerSettings, TopicSettings
from wheelq.transport import Address, Transport

HOUR_MS = 3_600_000
FAULTS: list[type[Fault]] = [ReplyLost, Unreachable, Refusing, Repeating, Forgetful]
NAME = "hourly"


class Place:
    """Shard 0 of a topic, with one recurring job and makers that are stepped by the test."""

    def __init__(self, url: str, topic: str) -> None:
        self.url = url
        self.keys = Keys().shard(topic, 0)
        self.plain = Transport(Address(url))
        self.raw = redis.Redis.from_url(url, decode_responses=True)
        self.now_ms = self.plain.send(server_time_us()) // 1000

    def put(self, next_ms: int, missed: Missed = "coalesce", **rule: Any) -> StoredRecurring:
        entry = StoredRecurring.new(Rule(missed=missed, **({"every_ms": HOUR_MS} | rule)), RECORD, None, next_ms)
        assert self.plain.send(calls.change(self.keys, NAME, None, entry, next_ms, None))
        return entry

    def maker(self, *faults: Fault, holds_back: bool = False) -> Occurrences:
        clock = SystemClock()
        parts = NodeParts(AsyncWith(self.url, *faults), Keys(), clock)
        parts.server.observe(clock.monotonic(), self.plain.send(server_time_us()))
        return Occurrences(parts, self.keys, holds_back=lambda: holds_back)

    def waiting(self) -> dict[str, int]:
        pairs = self.raw.zrange(self.keys.delayed, 0, -1, withscores=True)
        return {member: int(due) for member, due in pairs}  # type: ignore[union-attr,misc]

    def finish(self, id: str) -> None:
        """Let a job be as if it had run: no trace of it."""
        self.plain.send(producer.cancel(self.keys, id))


@pytest.fixture
def place(url: str, topic: str) -> Place:
    return Place(url, topic)


# Makers


async def test_many_makers_at_the_same_time_make_an_occurrence_once(place: Place) -> None:
    due = place.now_ms + 5_000
    place.put(due, start_ms=due)
    rests = await asyncio.gather(*(place.maker().step() for _ in range(10)))
    assert place.waiting() == {occurrence_id(NAME, due): due}
    assert all(50 < rest <= SchedulerSettings().idle_ms / 1000 for rest in rests), "nothing is near"


async def test_a_maker_that_was_frozen_between_look_and_make_makes_nothing(place: Place) -> None:
    """Meanwhile another has made the occurrence, and it has run and is forgotten."""
    due = place.now_ms + 5_000
    place.put(due, start_ms=due)

    class Overtaken(Fault):
        def strike(self, call: Call[Any]) -> list[Call[Any]]:
            return [call, producer.cancel(place.keys, occurrence_id(NAME, due)), call]

    fault = Overtaken("recurring_make")
    await place.maker(fault).step()
    assert fault.struck == 1
    assert place.waiting() == {}


def is_at_rest() -> bool:
    return not any(task.get_name().startswith("wheelq recurring") for task in asyncio.all_tasks())


async def test_a_maker_at_rest_has_no_task_and_looks_again_when_it_gets_a_notice(place: Place) -> None:
    maker = place.maker()
    maker.start()
    await until(is_at_rest)
    due = place.now_ms + 5_000
    place.put(due, start_ms=due)
    maker.notice()
    await until(is_at_rest)
    assert place.waiting() == {occurrence_id(NAME, due): due}
    await maker.stop()


async def test_a_notice_while_a_maker_looks_makes_it_look_once_more(place: Place) -> None:
    due = place.now_ms + 5_000

    class PutMeanwhile(Fault):
        """After the server's answer that there is none, while this answer is on its way."""

        def strike(self, call: Call[Any]) -> list[Call[Any]]:
            def read(reply: Any) -> Any:
                place.put(due, start_ms=due)
                maker.notice()
                return call.read(reply)

            return [replace(call, read=read)]

    maker = place.maker(PutMeanwhile("recurring_near"))
    maker.start()
    await until(is_at_rest)
    assert place.waiting() == {occurrence_id(NAME, due): due}
    await maker.stop()


async def test_a_notice_ends_the_pause_after_a_failure(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "failed", lambda *_: float("inf"))
    fault = Unreachable("recurring_near")
    maker = place.maker(fault)
    maker.start()
    await until(lambda: fault.struck == 1)
    assert not is_at_rest()
    maker.notice()
    await until(is_at_rest)
    assert fault.met == 2
    await maker.stop()


async def test_a_task_that_is_cancelled_while_it_stops_a_maker_is_cancelled(place: Place) -> None:
    """A node that was stopped while it gave shards away went on, and its process did not end."""
    maker = place.maker()
    maker.start()
    await asyncio.sleep(0)
    stopping = asyncio.create_task(maker.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait((stopping,))
    assert stopping.cancelled()


async def test_a_maker_that_dies_between_look_and_make_is_replaced_by_any_other(place: Place) -> None:
    due = place.now_ms + 5_000
    place.put(due, start_ms=due)
    with pytest.raises(Unavailable):
        await place.maker(Unreachable("recurring_make")).step()
    assert place.waiting() == {}
    await place.maker().step()
    assert place.waiting() == {occurrence_id(NAME, due): due}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("struck", ["recurring_near", "recurring_make"])
async def test_a_maker_makes_an_occurrence_once_although_its_calls_fail(
    place: Place, fault: type[Fault], struck: str
) -> None:
    due = place.now_ms + 5_000
    place.put(due, start_ms=due)
    trouble = fault(struck)
    maker = place.maker(trouble)
    for _ in range(3):
        try:
            await maker.step()
        except ServerError:
            continue
        place.finish(occurrence_id(NAME, due))  # whoever makes it again is found out
    assert trouble.struck == 1
    assert place.waiting() == {}
    entry = place.plain.send(calls.read_one(place.keys, NAME)).entry
    assert entry
    assert (entry.state.last_ms, entry.state.next_ms) == (due, due + HOUR_MS)


async def test_missed_occurrences_coalesce_to_one_with_many_makers(place: Place) -> None:
    start = place.now_ms - 100 * HOUR_MS - 5
    place.put(start, start_ms=start)
    await asyncio.gather(*(place.maker().step() for _ in range(5)))
    last = start + 100 * HOUR_MS
    assert place.waiting() == {occurrence_id(NAME, last): last}


@pytest.mark.parametrize("missed", ["coalesce", "skip"])
@pytest.mark.parametrize("holds_back", [False, True])
async def test_what_waited_for_its_topic_is_not_taken_back_for_a_missed_occurrence(
    place: Place, missed: Missed, holds_back: bool
) -> None:
    due = place.now_ms - HOUR_MS - 5
    place.put(due, missed, start_ms=due, grace_ms=2 * HOUR_MS)
    first, then = due, due + HOUR_MS
    entry = place.plain.send(calls.read_one(place.keys, NAME)).entry
    assert entry
    state = entry.state.made(first, then)
    jobs = [(occurrence_id(NAME, first), str(first))]
    assert place.plain.send(calls.make(place.keys, NAME, entry.state, state, then, jobs, None))
    await place.maker(holds_back=holds_back).step()
    moments = [first, then] if holds_back else [then]
    assert place.waiting() == {occurrence_id(NAME, moment): moment for moment in moments}


@pytest.mark.parametrize("missed", ["coalesce", "skip", "all"])
@pytest.mark.parametrize("grace_ms", [1_000, 3 * HOUR_MS])
async def test_an_occurrence_that_was_a_job_before_the_outage_does_not_run_after_its_grace(
    place: Place, missed: Missed, grace_ms: int
) -> None:
    """All that were missed after it were too late as well, so none took its place."""
    due = place.now_ms - 2 * HOUR_MS - 10_000
    place.put(due, missed, start_ms=due, grace_ms=grace_ms)
    entry = place.plain.send(calls.read_one(place.keys, NAME)).entry
    assert entry
    state = entry.state.made(due, due + HOUR_MS)
    jobs = [(occurrence_id(NAME, due), str(due))]
    assert place.plain.send(calls.make(place.keys, NAME, entry.state, state, due + HOUR_MS, jobs, None))
    await place.maker().step()
    waiting = [due + n * HOUR_MS for n in range(3)] if missed == "all" else [due + 2 * HOUR_MS]
    assert list(place.waiting().values()) == (waiting if grace_ms > 1_000 else [])


async def test_an_occurrence_that_was_moved_is_not_too_late(place: Place) -> None:
    due = place.now_ms - 2 * HOUR_MS - 10_000
    place.put(due, start_ms=due, grace_ms=1_000)
    entry = place.plain.send(calls.read_one(place.keys, NAME)).entry
    assert entry
    state = entry.state.made(due, due + HOUR_MS)
    jobs = [(occurrence_id(NAME, due), str(place.now_ms + HOUR_MS))]
    assert place.plain.send(calls.make(place.keys, NAME, entry.state, state, due + HOUR_MS, jobs, None))
    await place.maker().step()
    assert place.waiting() == {occurrence_id(NAME, due): place.now_ms + HOUR_MS}


async def test_the_log_tells_of_missed_occurrences_when_they_are_made(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt at a server that refused it, and each of several makers, said that it makes up for them."""
    due = place.now_ms - 3 * HOUR_MS
    place.put(due, start_ms=due)
    with pytest.raises(Refused):
        await place.maker(Refusing("recurring_make")).step()
    assert "missed occurrences" not in caplog.text
    await asyncio.gather(*(place.maker().step() for _ in range(5)))
    assert caplog.text.count(f"/{NAME} missed occurrences; made up for 1") == 1


async def test_each_of_the_missed_is_made_once_with_many_makers(place: Place) -> None:
    start = place.now_ms - 20 * HOUR_MS - 5
    place.put(start, "all", start_ms=start)
    await asyncio.gather(*(place.maker().step() for _ in range(5)))
    moments = [start + n * HOUR_MS for n in range(21)]
    assert place.waiting() == {occurrence_id(NAME, moment): moment for moment in moments}


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        ({"payload": "new"}, True),
        ({"priority": "high", "expires": HOUR_MS}, True),
        ({"every": 1_800}, False),
        ({"missed": "coalesce"}, False),
        ({"jitter": 1}, False),
    ],
    ids=["payload", "priority", "every", "missed", "jitter"],
)
async def test_missed_occurrences_run_after_a_change_unless_the_rule_has_changed(
    place: Place, change: dict[str, Any], runs: bool
) -> None:
    """With "all", too: a new rule counts from the change, so what the former rule missed is dropped."""
    start = place.now_ms - 2 * HOUR_MS - HOUR_MS // 4
    place.put(start, "all", start_ms=start)
    asked = {"every": 3_600, "missed": "all", "start": from_ms(start), **change}
    with Client(Transport(Address(place.url))) as client:
        receipt = client.recurring.put(place.keys.topic, NAME, asked.pop("payload", "old"), **asked)
    assert receipt.outcome is RecurringOutcome.UPDATED
    await place.maker().step()
    moments = [start + n * HOUR_MS for n in range(3)] if runs else []
    assert set(place.waiting()) == {occurrence_id(NAME, moment) for moment in moments}


async def test_a_pause_drops_what_was_missed_before_it(place: Place) -> None:
    start = place.now_ms - 2 * HOUR_MS - HOUR_MS // 4
    place.put(start, "all", start_ms=start)
    with Client(Transport(Address(place.url))) as client:
        assert client.recurring.pause(place.keys.topic, NAME) is RecurringOutcome.PAUSED
        assert client.recurring.resume(place.keys.topic, NAME) is RecurringOutcome.RESUMED
    await place.maker().step()
    assert place.waiting() == {}


async def test_a_pause_leaves_an_occurrence_that_is_due(place: Place) -> None:
    """It may wait for its topic, and runs when that is resumed, however often the recurring job is paused."""
    start = place.now_ms - HOUR_MS // 4
    place.put(start, start_ms=start)
    await place.maker().step()
    late = {occurrence_id(NAME, start): start}
    assert place.waiting() == late
    with Client(Transport(Address(place.url))) as client:
        for _ in range(2):
            assert client.recurring.pause(place.keys.topic, NAME) is RecurringOutcome.PAUSED
            assert place.waiting() == late
            assert client.recurring.resume(place.keys.topic, NAME) is RecurringOutcome.RESUMED
    await place.maker().step()
    assert place.waiting() == late


@pytest.mark.parametrize("change", [{}, {"missed": "skip"}, None], ids=["payload", "rule", "pause"])
async def test_an_occurrence_that_jitter_puts_off_is_left_out_only_by_a_pause(
    place: Place, change: dict[str, Any] | None
) -> None:
    """Its moment has come. With another payload it is made again, and a new rule would not make it."""
    jitter = Rule(every_ms=HOUR_MS, jitter_ms=HOUR_MS // 2)
    soon = range(place.now_ms + 5_000, place.now_ms + 9_000)
    start = next(n for n in range(place.now_ms - HOUR_MS // 2, place.now_ms) if jitter.due_ms(NAME, n) in soon)
    place.put(start, start_ms=start, jitter_ms=jitter.jitter_ms)
    coming, rule = {occurrence_id(NAME, start): jitter.due_ms(NAME, start)}, {"every": 3_600, "jitter": 1_800}
    await place.maker().step()
    assert place.waiting() == coming
    with Client(Transport(Address(place.url))) as client:
        if change is None:
            assert client.recurring.pause(place.keys.topic, NAME) is RecurringOutcome.PAUSED
            coming = {}
        else:
            client.recurring.put(place.keys.topic, NAME, "new", start=from_ms(start), **rule, **change)
            assert place.waiting() == (coming if change else {})
    await place.maker().step()
    assert place.waiting() == coming


async def test_a_recurring_job_with_an_unknown_time_zone_does_not_hold_up_the_others(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    due = place.now_ms + 5_000
    place.put(due, start_ms=due)
    odd = StoredRecurring.new(Rule(cron="0 2 * * *", tz="Mars/Olympus"), RECORD, None, due - 10)
    assert place.plain.send(calls.change(place.keys, "odd", None, odd, due - 10, None))
    await place.maker().step()
    assert list(place.waiting()) == [occurrence_id(NAME, due)]
    assert "odd cannot be made here: tz: 'Mars/Olympus' is not a time zone" in caplog.text
    assert place.raw.zscore(place.keys.occurrences, "odd") > due + 30_000  # type: ignore[operator]


# Clients


@pytest.mark.parametrize("fault", [ReplyLost, Repeating, Forgetful])
def test_a_client_is_told_what_it_did_also_when_a_reply_is_lost(url: str, topic: str, fault: type[Fault]) -> None:
    with Client(BlockingWith(url, fault("recurring_change"))) as client:
        assert client.recurring.put(topic, NAME, every=3600).outcome is RecurringOutcome.CREATED
    with Client(BlockingWith(url, fault("recurring_change"))) as client:
        assert client.recurring.put(topic, NAME, 1, every=3600).outcome is RecurringOutcome.UPDATED
    with Client(BlockingWith(url, fault("recurring_change"))) as client:
        assert client.recurring.pause(topic, NAME) is RecurringOutcome.PAUSED
    with Client(BlockingWith(url, fault("recurring_change"))) as client:
        assert client.recurring.resume(topic, NAME) is RecurringOutcome.RESUMED
    with Client(BlockingWith(url, fault("schedule"))) as client:
        receipt = client.recurring.trigger(topic, NAME)
        assert receipt
        assert receipt.created
    with Client(BlockingWith(url, fault("recurring_change"))) as client:
        assert client.recurring.remove(topic, NAME) is RecurringOutcome.REMOVED
        assert client.recurring.list(topic) == []


@pytest.mark.parametrize("then", [Unreachable, Refusing])
def test_an_unknown_outcome_stays_unknown_when_the_repeated_call_fails(url: str, topic: str, then: type[Fault]) -> None:
    transport = BlockingWith(url, then("recurring_change", after=1), ReplyLost("recurring_change"))
    with Client(transport) as client:
        with pytest.raises(OutcomeUnknown):
            client.recurring.put(topic, NAME, every=3600)
        assert client.recurring.put(topic, NAME, every=3600).outcome is RecurringOutcome.UNCHANGED


@pytest.mark.parametrize("fault", [Unreachable, Refusing])
def test_a_refused_call_was_not_done(url: str, topic: str, fault: type[Fault]) -> None:
    with Client(BlockingWith(url, fault("recurring_change"))) as client:
        with pytest.raises((Unavailable, Refused)):
            client.recurring.put(topic, NAME, every=3600)
        assert client.recurring.get(topic, NAME) is None


def test_a_client_that_was_overtaken_begins_again(url: str, topic: str) -> None:
    """Between its look and its change another changes the same recurring job."""
    other = Client.connect(url)
    other.recurring.put(topic, NAME, "old", every=60)

    class Overtaking(Fault):
        def strike(self, call: Call[Any]) -> list[Call[Any]]:
            other.recurring.put(topic, NAME, "theirs", every=60)
            return [call]

    with Client(BlockingWith(url, fault := Overtaking("recurring_change")), Keys()) as client:
        assert client.recurring.put(topic, NAME, "ours", every=60).outcome is RecurringOutcome.UPDATED
        assert fault.met == 2
        info = client.recurring.get(topic, NAME)
        assert info
        assert info.payload == "ours"
    other.close()


# Processes


@pytest.mark.long
def test_schedulers_killed_again_and_again_make_and_promote_every_occurrence_once(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """kill -9 of one of two nodes every second or so, while jobs of three kinds occur every second."""
    server = private_server()
    settings = Settings(topic=TopicSettings(retention_ms=HOUR_MS))
    with Fleet(server.url, tmp_path, lease_ms=1_500) as fleet, Client.connect(server.url, settings) as client:
        nodes = [fleet.start("scheduler"), fleet.start("scheduler")]
        for name, said in {
            "interval": {"every": 1},
            "cron": {"cron": "* * * * * *", "tz": "Australia/Lord_Howe"},
            "jittered": {"every": 1, "jitter": 0.9},
        }.items():
            client.recurring.put("ticks", name, missed="all", **said)  # type: ignore[arg-type]
        raw = redis.Redis.from_url(server.url)
        ready = Keys().shard("ticks", 0).ready

        def moments() -> dict[str, list[datetime]]:
            found: dict[str, list[datetime]] = {"interval": [], "cron": [], "jittered": []}
            for entry, fields in raw.xrange(ready):
                assert int(entry.split(b"-")[0]) >= int(fields[b"due"]), "never early"
                name, _, moment = fields[b"id"].decode().partition("@")
                found[name].append(datetime.fromisoformat(moment))
            return found

        assert eventually(lambda: all(len(each) >= 2 for each in moments().values()))
        for _ in range(5):
            fleet.kill(nodes.pop(0))
            nodes.append(fleet.start("scheduler"))
            time.sleep(1.2)
        count = max(len(each) for each in moments().values())
        assert eventually(lambda: all(len(each) >= count + 5 for each in moments().values()))
        for name, each in moments().items():
            steps = {after - before for before, after in pairwise(sorted(each))}
            assert steps == {timedelta(seconds=1)}, f"{name}: one is doubled or missing\n{fleet.output()}"
