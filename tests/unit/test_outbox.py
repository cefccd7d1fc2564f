"""The outbox's file: what is kept, in which order it goes, its limits, and that processes and forks may share it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from tests.waiting import PATIENCE, eventually, until
from wheelq.base.clock import ManualClock, ServerClock
from wheelq.base.ids import make_tag
from wheelq.errors import (
    ConfigurationError,
    OutboxFull,
    OutcomeUnknown,
    PartlyScheduled,
    Refused,
    ServerFull,
    TopicFull,
    Unavailable,
    WheelqError,
)
from wheelq.model.job import OnDuplicate, Receipt
from wheelq.model.topic import Topic
from wheelq.producer.operation import Do, Operation
from wheelq.producer.outbox import store
from wheelq.producer.outbox.courier import AsyncCourier, Courier
from wheelq.producer.outbox.kept import PARCELS_MS, Asked, Kept, Parcel, Sending
from wheelq.producer.outbox.store import Outbox
from wheelq.protocol import codec
from wheelq.protocol.calls.producer import Fixed, Placed
from wheelq.settings import OutboxSettings

T = TypeVar("T")

LONG_AGO = Asked(0, 0.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server_clock(clock: ManualClock) -> ServerClock:
    return ServerClock(clock, clock.uptime)


@pytest.fixture
def outbox(tmp_path: Path, clock: ManualClock, server_clock: ServerClock) -> Outbox:
    settings = OutboxSettings(path=str(tmp_path / "outbox.db"), max_jobs=1_000, max_bytes=20_000)
    return Outbox(settings, clock, server_clock)


def keep(
    outbox: Outbox, topic: str, *ids: str, due: str = "5000", how: OnDuplicate = "keep", asked: Asked = LONG_AGO
) -> list[Receipt]:
    return outbox.keep(topic, [((id, due, b"record of " + id.encode()), None, None) for id in ids], how, asked)


class Server:
    """Takes parcels, or fails. Runs the operations of a courier's rounds itself."""

    def __init__(self, before: Callable[[], object] = bool, topic: Topic = Topic()) -> None:  # noqa: B008
        """Each parcel arrives after a call of `before`."""
        self.topic = topic
        self.parcels_seen: list[Parcel] = []
        self.taken: list[tuple[str, str]] = []
        self.taken_ids: set[str] = set()
        self.full_ids: set[str] = set()
        self.errors: dict[str, WheelqError] = {}
        self._before = before

    def placement(self, topic: str) -> Operation[Topic]:
        return self.topic
        yield

    def parcels(self, sending: Sending) -> Operation[None]:
        for parcel in sending.parcels:
            self._before()
            self.parcels_seen.append(parcel)
            if parcel.topic in self.errors:
                raise self.errors[parcel.topic]
            full = [n for n, job in enumerate(parcel.jobs) if job.id in self.full_ids]
            receipts = [None if n in full else self._receipt(parcel, job) for n, job in enumerate(parcel.jobs)]
            sending.answers.append(Placed(receipts, full=full))
        return
        yield

    def _receipt(self, parcel: Parcel, job: Kept) -> Receipt:
        self.taken.append((parcel.topic, job.id))
        return Receipt(job.id, job.due_ms, created=job.id not in self.taken_ids)

    def run(self, operation: Operation[T]) -> T:
        answer: object = None
        while True:
            try:
                step = operation.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            assert isinstance(step, Do)
            answer = step.act()

    async def run_here(self, operation: Operation[T]) -> T:
        answer: object = None
        while True:
            try:
                step = operation.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            assert isinstance(step, Do)
            answer = await step.act()

    def courier(self, outbox: Outbox, retry_ms: int = 100) -> Courier:
        return Courier(outbox, self, self.run, retry_ms)

    def deliver_all(self, outbox: Outbox) -> None:
        courier = self.courier(outbox)
        while courier.step():
            pass


@pytest.fixture
def server() -> Server:
    return Server()


def parcels(outbox: Outbox, topic: Topic = Topic()) -> list[Parcel]:  # noqa: B008
    """The next parcels to "orders"."""
    assert outbox.try_to_deliver()
    return outbox.fix("orders", topic)


# Keeping


def test_a_call_that_is_repeated_goes_as_a_whole_though_it_is_longer_than_what_is_left_of_a_round(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of it would be another call under the same tag."""
    monkeypatch.setattr(store, "PARCEL", 4)
    keep(outbox, "t", "a", "b", "c")
    call = Fixed(make_tag(), 0, "1", PARCELS_MS)
    outbox.keep("t", [((id, "5000", b"record"), None, call) for id in "defg"], "keep", LONG_AGO)
    assert outbox.try_to_deliver()
    found = {parcel.place.tag: "".join(job.id for job in parcel.jobs) for parcel in outbox.fix("t", Topic())}
    assert found[call.tag] == "defg"


def test_a_job_is_kept_with_its_due_time_and_bytes(outbox: Outbox) -> None:
    outbox.keep("orders", [(("a", "5000", b"\x01\x02"), "customer-7", None)], "replace", LONG_AGO)
    assert [tuple(job)[1:] for job in outbox.jobs(10)] == [
        ("orders", "a", 5_000, "", b"\x01\x02", "customer-7", "replace", None, None)
    ]


def answered(server: ServerClock, clock: ManualClock, *, ahead_ms: int = 0, took_ms: int = 0) -> None:
    """The server is `ahead_ms`, and read its clock just before its answer arrived."""
    sent_at = server.instant()
    clock.advance(took_ms / 1000)
    server.observe(sent_at, (clock.wall_ms() + ahead_ms) * 1000)


def due_of_a_job(outbox: Outbox, clock: ManualClock) -> int:
    """When a job is due that is kept now, with a delay of a second."""
    [kept] = keep(outbox, "orders", "a", due="+1000", asked=Asked.now(clock))
    return kept.due_ms


def test_a_delay_is_counted_by_the_servers_clock_as_last_seen(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock
) -> None:
    assert due_of_a_job(outbox, clock) == clock.wall_ms() + 1_000
    answered(server_clock, clock, ahead_ms=7_500)
    assert due_of_a_job(outbox, clock) == clock.wall_ms() + 1_000 + 7_500


@pytest.mark.parametrize("step_s", [3_600, -3_600])
def test_a_clock_that_is_stepped_here_makes_no_job_early_or_late(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock, step_s: int
) -> None:
    answered(server_clock, clock)
    on_the_server = clock.wall_ms()
    clock.step_wall(step_s)
    assert due_of_a_job(outbox, clock) == on_the_server + 1_000


def test_a_job_is_late_rather_than_early_by_what_clocks_may_have_drifted(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock
) -> None:
    answered(server_clock, clock)
    clock.advance(3_600)
    assert clock.wall_ms() + 1_000 < due_of_a_job(outbox, clock) <= clock.wall_ms() + 1_000 + 721


def test_the_servers_clock_is_learned_from_the_fastest_answer(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock
) -> None:
    answered(server_clock, clock, ahead_ms=7_000, took_ms=2)
    answered(server_clock, clock, ahead_ms=7_000, took_ms=3_000)  # it took long to connect: that tells less
    assert 8_002 <= due_of_a_job(outbox, clock) - clock.wall_ms() <= 8_003
    clock.advance(60)
    answered(server_clock, clock, ahead_ms=-4_000, took_ms=500)  # the server's clock was set back meanwhile
    assert -2_500 <= due_of_a_job(outbox, clock) - clock.wall_ms() <= -2_499


def due_by(server: ServerClock, outbox: Outbox) -> list[int]:
    """The due times with which the jobs of the first parcel reach the server."""
    return [job.dated_by(server).due_ms for job in parcels(outbox)[0].jobs]


@pytest.mark.parametrize("is_other", [False, True])
def test_a_delay_that_was_counted_by_a_slow_answer_is_corrected_by_a_quick_one(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock, is_other: bool
) -> None:
    """The server was away: the only answer so far took three seconds, and may have been given at any moment of them."""
    answered(server_clock, clock, ahead_ms=7_000, took_ms=3_000)
    asked_ms = clock.wall_ms() + 7_000
    kept_ms = due_of_a_job(outbox, clock)
    assert asked_ms + 1_000 <= kept_ms <= asked_ms + 1_000 + 3_001
    delivering = Outbox(OutboxSettings(path=str(outbox.path)), clock) if is_other else outbox
    assert due_by(server_clock, delivering) == [kept_ms], "nothing more is known"
    clock.advance(2)
    answered(server_clock, clock, ahead_ms=7_000, took_ms=4)
    [due_ms] = due_by(server_clock, delivering)
    assert asked_ms + 1_000 <= due_ms <= asked_ms + 1_000 + 6


@pytest.mark.parametrize("wrong_s", [5 * 3_600, -5 * 3_600])
@pytest.mark.parametrize("is_other", [False, True])
def test_a_delay_that_was_counted_by_this_machines_clock_is_corrected_by_the_servers_first_answer(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock, wrong_s: int, is_other: bool
) -> None:
    """Also by another process, which this machine's uptime tells the same."""
    asked_ms = clock.wall_ms()
    clock.step_wall(wrong_s)
    kept_ms = due_of_a_job(outbox, clock)
    assert kept_ms == asked_ms + wrong_s * 1000 + 1_000
    delivering = Outbox(OutboxSettings(path=str(outbox.path)), clock) if is_other else outbox
    assert due_by(server_clock, delivering) == [kept_ms], "nothing is known yet"
    clock.advance(60)
    clock.step_wall(777)
    answered(server_clock, clock, ahead_ms=-(wrong_s + 777) * 1000, took_ms=20)
    [due_ms] = due_by(server_clock, delivering)
    assert asked_ms + 1_000 <= due_ms <= asked_ms + 1_000 + 20 + 13, "a clock may have drifted for a minute"


def test_a_job_that_was_kept_before_the_machine_was_restarted_stays_by_its_clock(
    outbox: Outbox, clock: ManualClock
) -> None:
    kept_ms = due_of_a_job(outbox, clock)
    after_boot = ManualClock(monotonic=5.0)
    server_clock = ServerClock(after_boot, after_boot.uptime)
    answered(server_clock, after_boot, ahead_ms=7_500)
    assert due_by(server_clock, Outbox(OutboxSettings(path=str(outbox.path)), after_boot)) == [kept_ms]


def test_a_job_of_a_machine_that_does_not_tell_its_boots_stays_by_its_clock(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "boot_id", lambda: None)
    kept_ms = due_of_a_job(outbox, clock)
    answered(server_clock, clock, ahead_ms=7_500)
    assert due_by(server_clock, outbox) == [kept_ms]


def test_only_a_due_time_that_this_machine_counted_is_corrected(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock
) -> None:
    keep(outbox, "orders", "at", due="5000h", asked=Asked.now(clock))
    answered(server_clock, clock, ahead_ms=7_500)
    by_the_server_ms = due_of_a_job(outbox, clock)
    assert due_by(server_clock, outbox) == [5_000, by_the_server_ms]


def test_a_job_is_put_aside_with_its_corrected_due_time(
    outbox: Outbox, clock: ManualClock, server_clock: ServerClock, server: Server
) -> None:
    keep(outbox, "orders", "a", due="+1000l", how="raise", asked=Asked.now(clock))
    answered(server_clock, clock, ahead_ms=7_500)
    server.taken_ids = {"a"}
    server.deliver_all(outbox)
    assert [job.due_ms for job in outbox.rejected(10)] == [clock.wall_ms() + 7_500 + 1_000]


def test_a_priority_is_kept_with_the_due_time(outbox: Outbox, clock: ManualClock) -> None:
    keep(outbox, "orders", "high", due="5000h")
    keep(outbox, "orders", "low", due="+1000l", asked=Asked.now(clock))
    assert [job.due for job in outbox.jobs(10)] == ["5000h", f"{clock.wall_ms() + 1_000}l"]


def test_the_receipt_says_that_the_job_is_in_the_outbox(outbox: Outbox) -> None:
    assert keep(outbox, "orders", "a") == [
        Receipt("a", 5_000, created=True, in_outbox=True, topic="orders", life=codec.life_of(b"record of a"))
    ]


def test_kept_jobs_survive_a_restart(outbox: Outbox) -> None:
    keep(outbox, "orders", "a", "b")
    outbox.close()
    again = Outbox(OutboxSettings(path=str(outbox.path)))
    assert [job.id for job in again.jobs(10)] == ["a", "b"]


def test_the_file_is_readable_by_its_owner_only(outbox: Outbox) -> None:
    assert stat.S_IMODE(outbox.path.stat().st_mode) == 0o600


def test_it_takes_no_more_jobs_than_it_may(outbox: Outbox) -> None:
    outbox.keep("orders", [((f"job-{n}", "1", b""), None, None) for n in range(999)], "keep", LONG_AGO)
    with pytest.raises(OutboxFull, match=r"holds 999 jobs; its limit is 1,000 \(outbox.max_jobs\)"):
        keep(outbox, "orders", "a", "b")
    assert outbox.info().jobs == 999, "of a call that does not fit, nothing is kept"
    keep(outbox, "orders", "a")


def test_it_takes_no_more_bytes_than_it_may(outbox: Outbox) -> None:
    outbox.keep("orders", [(("big", "1", bytes(19_990)), None, None)], "keep", LONG_AGO)
    with pytest.raises(OutboxFull, match=r"holds 19,990 bytes; its limit is 20,000 \(outbox.max_bytes\)"):
        outbox.keep("orders", [(("more", "1", bytes(11)), None, None)], "keep", LONG_AGO)


def test_room_comes_back_when_jobs_are_delivered(outbox: Outbox) -> None:
    keep(outbox, "orders", *(f"job-{n}" for n in range(500)))
    Server().deliver_all(outbox)
    info = outbox.info()
    assert (info.jobs, info.bytes, info.oldest_kept_ms, info.topics) == (0, 0, None, {})


def test_a_path_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("this is no database, and longer than a header is" * 30)
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(ConfigurationError, match=f"the outbox {path} cannot be used"):
            Outbox(OutboxSettings(path=str(path)))


@pytest.mark.parametrize("format", [0, 1, 3])
def test_a_file_of_another_format_is_refused_with_what_to_do(tmp_path: Path, format: int) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.execute("CREATE TABLE jobs (seq INTEGER PRIMARY KEY)")
        connection.execute(f"PRAGMA user_version = {format}")
        connection.commit()
    with pytest.raises(ConfigurationError, match=f"has format {format}, .* deliver its jobs with the version"):
        Outbox(OutboxSettings(path=str(tmp_path / "old.db")))


def test_a_file_that_cannot_be_written_any_more_is_a_clear_error(outbox: Outbox) -> None:
    keep(outbox, "orders", "a")
    with sqlite3.connect(outbox.path) as connection:
        connection.execute("CREATE TRIGGER no_more BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(Unavailable, match=r"the outbox .* cannot be written: disk full"):
        keep(outbox, "orders", "b")


# Delivering


def test_jobs_are_delivered_in_the_order_in_which_they_were_kept(outbox: Outbox, server: Server) -> None:
    ids = [f"job-{n}" for n in range(700)]
    for part in (ids[:3], ids[3:650], ids[650:]):
        keep(outbox, "orders", *part)
    server.deliver_all(outbox)
    assert [id for _, id in server.taken] == ids
    assert outbox.is_empty


def test_an_id_that_was_kept_twice_comes_in_two_parcels(outbox: Outbox, server: Server) -> None:
    keep(outbox, "orders", "a", "b", "a", "c", how="replace")
    [parcel] = parcels(outbox)
    assert [job.id for job in parcel.jobs] == ["a", "b"]
    server.deliver_all(outbox)
    assert [id for _, id in server.taken] == ["a", "b", "a", "c"]


def test_a_parcel_holds_jobs_that_are_to_be_treated_alike(outbox: Outbox) -> None:
    keep(outbox, "orders", "a", how="keep")
    keep(outbox, "orders", "b", how="replace")
    [parcel] = parcels(outbox)
    assert (parcel.on_duplicate, [job.id for job in parcel.jobs]) == ("keep", ["a"])


def test_a_parcel_without_an_answer_comes_again_as_it_was_also_from_another_process(outbox: Outbox) -> None:
    keep(outbox, "orders", "a", "b")
    [sent] = parcels(outbox)
    keep(outbox, "orders", "c")
    [again] = parcels(outbox)
    outbox.close()
    by_another, *_ = parcels(Outbox(OutboxSettings(path=str(outbox.path))), Topic(shards=4))
    for parcel in (again, by_another):
        assert (parcel.place, [job.id for job in parcel.jobs]) == (sent.place, ["a", "b"])
        assert (sent.is_repeated, parcel.is_repeated) == (False, True)


def test_a_parcel_is_written_down_as_a_whole_when_some_of_its_jobs_are_taken(
    outbox: Outbox, full_disk: Callable[[], None]
) -> None:
    """A part of it under its tag would be another call, which gets the answer to the whole."""
    keep(outbox, "orders", "a", "b")
    [parcel] = parcels(outbox)
    outbox.take_answers(Sending(Topic(), [parcel], [Placed([Receipt("a", 1, True), None], full=[1])]))
    assert [(job.id, job.place) for job in outbox.jobs(10)] == [("b", None)], "it is known here"
    assert [job.place for job in Outbox(OutboxSettings(path=str(outbox.path))).jobs(10)] == [parcel.place] * 2
    full_disk()
    assert outbox.write()
    assert [job.place for job in Outbox(OutboxSettings(path=str(outbox.path))).jobs(10)] == [None]


def test_an_outbox_that_was_closed_neither_sends_nor_settles(outbox: Outbox) -> None:
    """Whoever delivers then repeats its parcel, and gets the answer."""
    keep(outbox, "orders", "a")
    [parcel] = parcels(outbox)
    outbox.close()
    other = Outbox(OutboxSettings(path=str(outbox.path)))
    [repeated] = parcels(other)
    assert outbox.fix("orders", Topic()) == []
    assert outbox.take_answers(Sending(Topic(), [parcel], [Placed([None], full=[0])])).full == {}
    assert [job.place for job in other.jobs(10)] == [parcel.place] == [repeated.place]


def test_an_outbox_that_delivers_again_believes_the_file(outbox: Outbox, full_disk: Callable[[], None]) -> None:
    """Another process may have delivered meanwhile, and this one may be a fork."""
    keep(outbox, "orders", "a")
    server = Server()
    server.deliver_all(outbox)
    outbox.close()
    full_disk()
    other = Outbox(OutboxSettings(path=str(outbox.path)))
    [elsewhere] = parcels(other)
    other.close()
    assert parcels(outbox)[0].place == elsewhere.place == server.parcels_seen[0].place


def test_while_the_server_is_away_everything_stays(outbox: Outbox, server: Server) -> None:
    keep(outbox, "orders", "a", "b")
    server.errors["orders"] = Unavailable()
    with pytest.raises(Unavailable):
        server.deliver_all(outbox)
    assert outbox.info().jobs == 2


@pytest.mark.parametrize("error", [ServerFull("out of memory"), Refused("WRONGTYPE")])
def test_a_topic_that_is_refused_does_not_hold_up_the_others(
    outbox: Outbox, error: WheelqError, server: Server
) -> None:
    keep(outbox, "full", "a")
    keep(outbox, "orders", "b")
    server.errors["full"] = error
    server.deliver_all(outbox)
    assert server.taken == [("orders", "b")]
    assert outbox.info().topics == {"full": 1}


def test_accepted_jobs_of_a_parcel_are_not_delivered_again(outbox: Outbox) -> None:
    keep(outbox, "orders", "a", "b", "c")
    server = Server()
    server.full_ids = {"a", "c"}
    for _ in range(5):
        server.courier(outbox).step()
    assert server.taken == [("orders", "b")]
    assert [job.id for job in outbox.jobs(10)] == ["a", "c"]


def test_a_full_topic_is_reported_once_then_each_minute_and_again_after_a_pause(
    outbox: Outbox, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    server, full = Server(), TopicFull("full", {0: "a"}, {})

    def told() -> int:
        """How often, in three attempts."""
        caplog.clear()
        for _ in range(3):
            server.deliver_all(outbox)
        return sum("stay in the outbox" in record.message for record in caplog.records)

    server.errors["full"] = full
    keep(outbox, "full", "a")
    with caplog.at_level(logging.WARNING):
        assert (told(), told()) == (1, 0)
        clock.advance(61)
        assert told() == 1
        del server.errors["full"]
        assert told() == 0
        assert outbox.is_empty
        server.errors["full"] = full
        keep(outbox, "full", "b")
        assert told() == 1


@pytest.fixture
def full_disk(outbox: Outbox) -> Callable[[], None]:
    """The disk of the outbox is full until this is called, as far as jobs are to be forgotten or put aside."""
    with sqlite3.connect(outbox.path) as connection:
        connection.execute("CREATE TRIGGER full_disk BEFORE DELETE ON jobs BEGIN SELECT RAISE(ABORT, 'disk full'); END")

    def make_room() -> None:
        with sqlite3.connect(outbox.path) as connection:
            connection.execute("DROP TRIGGER full_disk")

    return make_room


def test_delivered_jobs_that_cannot_be_forgotten_are_not_delivered_again(
    outbox: Outbox, full_disk: Callable[[], None], server: Server
) -> None:
    keep(outbox, "orders", *(f"job-{n}" for n in range(700)))
    keep(outbox, "notes", "a")
    server.deliver_all(outbox)
    assert len(server.taken) == len(set(server.taken)) == 701
    assert outbox.is_empty
    assert not outbox.holds("notes", "a")
    assert outbox.jobs(10) == []
    keep(outbox, "orders", "later", "job-3")
    assert not outbox.is_empty
    assert [job.id for job in outbox.jobs(10)] == ["later", "job-3"]
    server.deliver_all(outbox)
    assert server.taken[701:] == [("orders", "later"), ("orders", "job-3")]
    full_disk()
    server.deliver_all(outbox)
    assert Outbox(OutboxSettings(path=str(outbox.path))).is_empty, "the file was told in the end"


def test_a_disk_that_really_is_full(outbox: Outbox) -> None:
    """In a process that may write no further than its file is long already."""

    def in_the_child() -> bool:
        keep(outbox, "orders", "b")
        limit = max(path.stat().st_size for path in outbox.path.parent.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(Unavailable, match="cannot be written"):
            keep(outbox, "orders", *(f"more-{n}" for n in range(300)))
        server = Server()
        for _ in range(3):
            server.deliver_all(outbox)
        assert server.taken == [("orders", "a"), ("orders", "b")]
        assert outbox.is_empty
        assert outbox.info().jobs == 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        server.deliver_all(outbox)
        return outbox.info().jobs == 0

    keep(outbox, "orders", "a")
    assert in_a_fork(in_the_child) == 0


def test_a_job_that_cannot_be_put_aside_is_put_aside_later(
    outbox: Outbox, full_disk: Callable[[], None], server: Server
) -> None:
    keep(outbox, "orders", "a", how="raise")
    server.taken_ids = {"a"}
    server.deliver_all(outbox)
    assert (server.taken, outbox.is_empty, outbox.info().rejected) == ([("orders", "a")], True, 0)
    full_disk()
    keep(outbox, "orders", "b")
    server.deliver_all(outbox)
    assert (server.taken[1:], outbox.info().rejected) == ([("orders", "b")], 1)


def test_a_kept_job_with_a_taken_id_is_put_aside_if_duplicates_raise(
    outbox: Outbox, clock: ManualClock, server: Server
) -> None:
    keep(outbox, "orders", "a", "b", how="raise")
    keep(outbox, "notes", "a", how="keep")
    server.taken_ids = {"a"}
    server.deliver_all(outbox)
    assert outbox.is_empty
    error = "a live job had this id when it was delivered"
    assert outbox.rejected(10) == [("orders", "a", 5_000, error, clock.wall_ms())]
    assert outbox.info().rejected == 1


def test_only_one_of_several_processes_delivers(outbox: Outbox) -> None:
    keep(outbox, "orders", "a")
    program = (
        "import sys; from wheelq.producer.outbox.store import Outbox; from wheelq.settings import OutboxSettings; "
        "outbox = Outbox(OutboxSettings(path=sys.argv[1])); print(outbox.try_to_deliver())"
    )

    def another_process() -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, str(outbox.path)], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert outbox.try_to_deliver()
    assert another_process() == "False"
    outbox.close()
    assert another_process() == "True", "it ended, and left delivering to others"
    assert outbox.try_to_deliver()


def test_only_one_of_several_outboxes_in_a_process_delivers(outbox: Outbox) -> None:
    other = Outbox(OutboxSettings(path=str(outbox.path)))
    assert outbox.try_to_deliver()
    assert not other.try_to_deliver()
    other.close()
    assert not Outbox(OutboxSettings(path=str(outbox.path))).try_to_deliver(), "the one that was closed did not deliver"
    outbox.close()
    assert other.try_to_deliver()


def test_a_fork_that_outlives_its_parent_does_not_keep_others_from_delivering(outbox: Outbox) -> None:
    assert outbox.try_to_deliver()
    may_end, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.read(may_end, 1)  # nothing, when the parent has closed its end
        os._exit(0)
    outbox.close()
    assert outbox.try_to_deliver()
    os.close(end)
    os.waitpid(child, 0)


def test_a_call_about_a_job_under_way_waits_and_does_not_deliver_it_again(outbox: Outbox) -> None:
    is_under_way, may_arrive = threading.Event(), threading.Event()

    def wait_for_permission() -> None:
        is_under_way.set()
        may_arrive.wait(PATIENCE)

    server = Server(wait_for_permission)
    courier = server.courier(outbox)
    keep(outbox, "orders", "a")
    courier.start()
    assert is_under_way.wait(PATIENCE)
    asker = threading.Thread(target=courier.deliver_first, args=("orders", "a"))
    asker.start()
    asker.join(0.2)
    assert asker.is_alive()
    may_arrive.set()
    asker.join()
    courier.close()
    assert server.taken == [("orders", "a")]


@pytest.mark.parametrize("face", [Courier, AsyncCourier])
@pytest.mark.parametrize("asked", ["a", "b"])
async def test_a_call_about_a_job_knows_that_it_changed_nothing_whatever_became_of_the_others(
    outbox: Outbox, face: type[Courier | AsyncCourier], asked: str
) -> None:
    """The jobs of "invoices" got no reply. The caller of a change must not be told that its outcome is unknown."""
    server = Server()
    server.errors["invoices"] = PartlyScheduled("no reply about 1 job", {0: "c"}, {})
    keep(outbox, "orders", "a")
    keep(outbox, "invoices", "b", "c")

    async def deliver_first(topic: str) -> None:
        if face is Courier:
            with contextlib.closing(server.courier(outbox)) as courier:
                await asyncio.to_thread(courier.deliver_first, topic, asked)
        else:
            on_asyncio = AsyncCourier(outbox, server, server.run_here, 100)
            try:
                await on_asyncio.deliver_first(topic, asked)
            finally:
                await on_asyncio.close()

    if asked == "a":
        await deliver_first("orders")
    else:
        with pytest.raises(Unavailable, match=r"job 'b' waits in the outbox .* \(no reply .*\): nothing was changed"):
            await deliver_first("invoices")
    assert server.taken == [("orders", "a")]


def in_a_fork(do: Callable[[], object]) -> int:
    """The exit status of a fork that does this: 0 when it was true."""
    child = os.fork()
    if not child:
        status = 2
        try:
            status = 0 if do() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_keeps_jobs_over_a_connection_of_its_own(outbox: Outbox) -> None:
    keep(outbox, "orders", "parent-1")
    assert in_a_fork(lambda: keep(outbox, "orders", "child")) == 0
    keep(outbox, "orders", "parent-2")
    assert [job.id for job in outbox.jobs(10)] == ["parent-1", "child", "parent-2"]


def test_a_fork_does_not_inherit_delivering(outbox: Outbox) -> None:
    assert outbox.try_to_deliver()
    assert in_a_fork(lambda: not outbox.try_to_deliver()) == 0
    assert outbox.try_to_deliver()


def test_a_fork_works_although_another_thread_held_the_lock(outbox: Outbox) -> None:
    with outbox._file.reading():  # the thread that forks holds it itself here; in the child nobody does
        assert in_a_fork(lambda: keep(outbox, "orders", "child")) == 0


@pytest.fixture
def other_writer(outbox: Outbox) -> Iterator[sqlite3.Connection]:
    """Another process that writes to the file, until this is rolled back."""
    with contextlib.closing(sqlite3.connect(outbox.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


async def test_an_event_loop_does_not_wait_for_writers_of_the_file(
    outbox: Outbox, other_writer: sqlite3.Connection
) -> None:
    """It would wait for this very test to go on, and the job could not be kept in time."""
    is_away = Server()
    is_away.errors["orders"] = Unavailable()

    job = ("a", "5000", b"record")
    courier = AsyncCourier(outbox, is_away, is_away.run_here, 100)
    kept = asyncio.create_task(courier.keep("orders", [(job, None, None)], "keep", LONG_AGO))
    await asyncio.sleep(0.2)
    assert courier.is_empty
    await courier.deliver_first("orders", "a")
    again = Outbox(OutboxSettings(path=str(outbox.path)))
    assert again.is_empty
    other_writer.execute("ROLLBACK")
    assert [receipt.id for receipt in await kept] == ["a"]
    assert not courier.is_empty
    await courier.close()


class Fails:
    """Raises an error the first times that it is called."""

    def __init__(self, then: Callable[..., Any], *errors: Exception) -> None:
        self._then = then
        self._errors = list(errors)

    def __call__(self, *args: Any) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        return self._then(*args)


NO_FILES = OSError(errno.EMFILE, "Too many open files")
NO_THREADS = RuntimeError("can't start new thread")


def test_a_courier_goes_on_after_any_error(outbox: Outbox, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(outbox, "try_to_deliver", Fails(outbox.try_to_deliver, NO_FILES, ValueError("a defect")))
    courier = server.courier(outbox, 10)
    keep(outbox, "orders", "a")
    courier.resume()
    assert eventually(lambda: server.taken == [("orders", "a")])
    courier.close()


def test_a_courier_may_be_closed_while_its_thread_forgets_what_was_delivered(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write that the job was delivered."""
    keep(outbox, "orders", "a")
    [parcel] = parcels(outbox)
    transaction = outbox._file.transaction

    @contextmanager
    def overtaken() -> Iterator[sqlite3.Connection]:
        with transaction() as connection:
            yield connection
        monkeypatch.undo()
        outbox.write()

    monkeypatch.setattr(outbox._file, "transaction", overtaken)
    outbox.take_answers(Sending(Topic(), [parcel], [Placed([Receipt("a", 1, True)])]))
    assert outbox.is_empty


async def test_a_courier_on_asyncio_goes_on_after_any_error(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setattr(outbox, "try_to_deliver", Fails(outbox.try_to_deliver, NO_FILES, NO_THREADS))

    courier = AsyncCourier(outbox, server, server.run_here, 10)
    keep(outbox, "orders", "a")
    courier.resume()
    await until(lambda: server.taken == [("orders", "a")])
    await courier.close()


async def test_a_courier_that_is_closed_while_a_thread_begins_to_deliver_leaves_delivery_to_others(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    """Its thread took delivery over after the file was closed. No other process could deliver until this one ended."""
    begins, may_go_on = asyncio.Event(), threading.Event()
    try_to_deliver, loop = outbox.try_to_deliver, asyncio.get_running_loop()

    def slowly() -> bool:
        loop.call_soon_threadsafe(begins.set)
        may_go_on.wait(PATIENCE)
        return try_to_deliver()

    monkeypatch.setattr(outbox, "try_to_deliver", slowly)
    courier = AsyncCourier(outbox, server, server.run_here, 10)
    keep(outbox, "orders", "a")
    courier.resume()
    await begins.wait()
    closing = asyncio.create_task(courier.close())
    await asyncio.wait([closing], timeout=0.5)  # it waits for the thread, and so does not end
    may_go_on.set()
    await closing
    await until(lambda: Outbox(OutboxSettings(path=str(outbox.path))).try_to_deliver())


def test_a_courier_whose_thread_cannot_be_started_is_started_with_the_next_job(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    server = Server()
    courier = server.courier(outbox, 10)
    monkeypatch.setattr(threading.Thread, "start", Fails(lambda: None, NO_THREADS))
    courier.start()
    monkeypatch.undo()
    keep(outbox, "orders", "a")
    courier.start()
    assert eventually(lambda: server.taken == [("orders", "a")])
    courier.close()


async def test_a_job_that_no_thread_can_keep_has_an_unknown_outcome(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    courier = AsyncCourier(outbox, server, server.run_here, 10)
    monkeypatch.setattr(asyncio, "to_thread", Fails(lambda: None, NO_THREADS))
    with pytest.raises(OutcomeUnknown, match="can't start new thread") as caught:
        await courier.keep("orders", [(("a", "5000", b"record"), None, None)], "keep", LONG_AGO)
    assert caught.value.ids == ("a",)


def test_an_unreadable_outbox_does_not_block_the_server(outbox: Outbox) -> None:
    outbox.close()
    outbox.path.write_bytes(b"no database any more" * 500)
    assert outbox.is_empty
    with pytest.raises(Unavailable, match="cannot be read, and may hold job 'a'"):
        outbox.holds("orders", "a")


def test_a_file_that_was_removed_takes_no_jobs_and_is_made_again_once_its_jobs_are_delivered(
    outbox: Outbox, server: Server
) -> None:
    """The jobs would be gone with the process, although their callers were told that they are on disk."""
    keep(outbox, "orders", "a")
    for path in outbox.path.parent.iterdir():
        path.unlink()
    with pytest.raises(Unavailable, match="removed or replaced while jobs waited in it"):
        keep(outbox, "orders", "b")
    server.deliver_all(outbox)
    keep(outbox, "orders", "c")
    assert [job.id for job in Outbox(OutboxSettings(path=str(outbox.path))).jobs(10)] == ["c"]
    server.deliver_all(outbox)
    assert server.taken == [("orders", "a"), ("orders", "c")]


def test_a_file_that_cannot_forget_says_so_once_then_each_minute(
    outbox: Outbox, clock: ManualClock, full_disk: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    keep(outbox, "orders", "a")
    for _ in range(5):
        Server().deliver_all(outbox)
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage().partition(":")[0][-35:] for record in said] == [
        "cannot forget 1 job that the server has"[-35:]
    ]
    clock.advance(60)
    Server().deliver_all(outbox)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2
