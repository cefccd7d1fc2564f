"""The outbox's file: what is kept, in which order it goes, its limits, and that processes and forks may share it."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from wheelq.clock import ManualClock
from wheelq.errors import ConfigurationError, DuplicateJob, OutboxFull, Refused, ServerFull, Unavailable, WheelqError
from wheelq.job import OnDuplicate, Receipt
from wheelq.outbox import Courier, Outbox, Parcel
from wheelq.settings import OutboxSettings

Make = Callable[..., Outbox]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def outbox(tmp_path: Path, clock: ManualClock) -> Outbox:
    return Outbox(OutboxSettings(path=str(tmp_path / "outbox.db"), max_jobs=1_000, max_bytes=20_000), clock)


def keep(
    outbox: Outbox, topic: str, *ids: str, due: str = "5000", how: OnDuplicate = "keep", asked_ms: int = 0
) -> list[Receipt]:
    return outbox.keep(topic, [((id, due, b"record of " + id.encode()), None) for id in ids], how, asked_ms)


class Server:
    """Takes parcels, or fails."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []
        self.taken_ids: set[str] = set()
        self.errors: dict[str, WheelqError] = {}

    def deliver(self, parcel: Parcel) -> list[Receipt]:
        if parcel.topic in self.errors:
            raise self.errors[parcel.topic]
        self.taken += [(parcel.topic, job.id) for job in parcel.jobs]
        return [Receipt(job.id, job.due_ms, created=job.id not in self.taken_ids) for job in parcel.jobs]

    def deliver_all(self, outbox: Outbox) -> None:
        courier = Courier(outbox, self.deliver, 100)
        while courier.step():
            pass


# Keeping


def test_a_job_is_kept_with_its_due_time_and_bytes(outbox: Outbox) -> None:
    outbox.keep("orders", [(("a", "5000", b"\x01\x02"), "customer-7")], "replace", 0)
    assert [tuple(job)[1:] for job in outbox.jobs(10)] == [
        ("orders", "a", 5_000, "", b"\x01\x02", "customer-7", "replace")
    ]


def test_a_delay_is_counted_by_the_servers_clock_as_last_seen(outbox: Outbox, clock: ManualClock) -> None:
    now = clock.wall_ms()
    [before] = keep(outbox, "orders", "a", due="+1000", asked_ms=now)
    assert before.due_ms == now + 1_000
    outbox.observe("+60000", asked_ms=now, due_ms=now + 60_000 + 7_500)  # the server is 7.5 s ahead
    [after] = keep(outbox, "orders", "b", due="+1000", asked_ms=now)
    assert after.due_ms == now + 1_000 + 7_500


def test_the_servers_clock_is_learned_from_the_fastest_answer(outbox: Outbox, clock: ManualClock) -> None:
    def answered(ahead_ms: int, took_ms: int) -> None:
        """The server is `ahead_ms`, and read its clock just before its answer arrived."""
        asked_ms = clock.wall_ms()
        clock.advance(took_ms / 1000)
        outbox.observe("+0", asked_ms, clock.wall_ms() + ahead_ms)

    answered(7_000, took_ms=2)
    answered(7_000, took_ms=3_000)  # it took long to connect: that tells less
    [kept] = keep(outbox, "orders", "a", due="+0", asked_ms=clock.wall_ms())
    assert kept.due_ms == clock.wall_ms() + 7_002
    clock.advance(60)
    answered(-4_000, took_ms=500)  # the server's clock was set back meanwhile
    [kept] = keep(outbox, "orders", "b", due="+0", asked_ms=clock.wall_ms())
    assert kept.due_ms == clock.wall_ms() - 4_000 + 500


def test_a_priority_is_kept_with_the_due_time(outbox: Outbox, clock: ManualClock) -> None:
    keep(outbox, "orders", "high", due="5000h")
    keep(outbox, "orders", "low", due="+1000l", asked_ms=clock.wall_ms())
    assert [job.due for job in outbox.jobs(10)] == ["5000h", f"{clock.wall_ms() + 1_000}l"]


def test_the_receipt_says_that_the_job_is_in_the_outbox(outbox: Outbox) -> None:
    assert keep(outbox, "orders", "a") == [Receipt("a", 5_000, created=True, in_outbox=True)]


def test_what_is_kept_survives_a_restart(outbox: Outbox) -> None:
    keep(outbox, "orders", "a", "b")
    outbox.close()
    again = Outbox(OutboxSettings(path=str(outbox.path)))
    assert [job.id for job in again.jobs(10)] == ["a", "b"]


def test_the_file_is_readable_by_its_owner_only(outbox: Outbox) -> None:
    assert stat.S_IMODE(outbox.path.stat().st_mode) == 0o600


def test_it_takes_no_more_jobs_than_it_may(outbox: Outbox) -> None:
    outbox.keep("orders", [((f"job-{n}", "1", b""), None) for n in range(999)], "keep", 0)
    with pytest.raises(OutboxFull, match=r"holds 999 jobs; its limit is 1,000 \(outbox.max_jobs\)"):
        keep(outbox, "orders", "a", "b")
    assert outbox.info().jobs == 999, "of a call that does not fit, nothing is kept"
    keep(outbox, "orders", "a")


def test_it_takes_no_more_bytes_than_it_may(outbox: Outbox) -> None:
    outbox.keep("orders", [(("big", "1", bytes(19_990)), None)], "keep", 0)
    with pytest.raises(OutboxFull, match=r"holds 19,990 bytes; its limit is 20,000 \(outbox.max_bytes\)"):
        outbox.keep("orders", [(("more", "1", bytes(11)), None)], "keep", 0)


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


def test_a_file_that_cannot_be_written_any_more_is_a_clear_error(outbox: Outbox) -> None:
    keep(outbox, "orders", "a")
    with sqlite3.connect(outbox.path) as connection:
        connection.execute("CREATE TRIGGER no_more BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(Unavailable, match=r"the server is away, and the outbox .* cannot be written: disk full"):
        keep(outbox, "orders", "b")


# Delivering


def test_jobs_are_delivered_in_the_order_in_which_they_were_kept(outbox: Outbox) -> None:
    ids = [f"job-{n}" for n in range(700)]
    for part in (ids[:3], ids[3:650], ids[650:]):
        keep(outbox, "orders", *part)
    server = Server()
    server.deliver_all(outbox)
    assert [id for _, id in server.taken] == ids
    assert outbox.is_empty


def test_an_id_that_was_kept_twice_comes_in_two_parcels(outbox: Outbox) -> None:
    keep(outbox, "orders", "a", "b", "a", "c", how="replace")
    [parcel] = outbox.parcels()
    assert [job.id for job in parcel.jobs] == ["a", "b"]
    server = Server()
    server.deliver_all(outbox)
    assert [id for _, id in server.taken] == ["a", "b", "a", "c"]


def test_a_parcel_holds_jobs_that_are_to_be_treated_alike(outbox: Outbox) -> None:
    keep(outbox, "orders", "a", how="keep")
    keep(outbox, "orders", "b", how="replace")
    [parcel] = outbox.parcels()
    assert (parcel.on_duplicate, [job.id for job in parcel.jobs]) == ("keep", ["a"])


def test_while_the_server_is_away_everything_stays(outbox: Outbox) -> None:
    keep(outbox, "orders", "a", "b")
    server = Server()
    server.errors["orders"] = Unavailable()
    with pytest.raises(Unavailable):
        server.deliver_all(outbox)
    assert outbox.info().jobs == 2


@pytest.mark.parametrize("error", [ServerFull("out of memory"), Refused("WRONGTYPE")])
def test_a_topic_that_is_refused_does_not_hold_up_the_others(outbox: Outbox, error: WheelqError) -> None:
    keep(outbox, "full", "a")
    keep(outbox, "orders", "b")
    server = Server()
    server.errors["full"] = error
    server.deliver_all(outbox)
    assert server.taken == [("orders", "b")]
    assert outbox.info().topics == {"full": 1}


def test_a_job_whose_id_is_taken_is_put_aside_if_it_was_to_be_refused_then(outbox: Outbox, clock: ManualClock) -> None:
    keep(outbox, "orders", "a", "b", how="raise")
    keep(outbox, "notes", "a", how="keep")
    server = Server()
    server.taken_ids = {"a"}
    server.deliver_all(outbox)
    assert outbox.is_empty
    error = "a live job had this id when it was delivered"
    assert outbox.rejected(10) == [("orders", "a", 5_000, error, clock.wall_ms())]
    assert outbox.info().rejected == 1


def test_of_several_processes_one_delivers(outbox: Outbox) -> None:
    keep(outbox, "orders", "a")
    program = (
        "import sys; from wheelq.outbox import Outbox; from wheelq.settings import OutboxSettings; "
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


def test_of_several_outboxes_of_one_process_one_delivers(outbox: Outbox) -> None:
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


def test_whoever_asks_for_a_job_under_way_waits_for_it_and_does_not_deliver_it_again(outbox: Outbox) -> None:
    server, is_under_way, may_arrive = Server(), threading.Event(), threading.Event()

    def deliver(parcel: Parcel) -> list[Receipt]:
        if not is_under_way.is_set():
            is_under_way.set()
            may_arrive.wait(10)
        return server.deliver(parcel)

    courier = Courier(outbox, deliver, 100)
    keep(outbox, "orders", "a")
    courier.start()
    assert is_under_way.wait(10)
    asker = threading.Thread(target=courier.deliver_first, args=("orders", "a"))
    asker.start()
    asker.join(0.2)
    assert asker.is_alive()
    may_arrive.set()
    asker.join()
    courier.close()
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


def test_a_duplicate_told_by_an_error_would_keep_the_whole_parcel(outbox: Outbox) -> None:
    """Deliveries ask for "keep" in place of "raise", so that one taken id does not hold up the rest of its parcel."""
    keep(outbox, "orders", "a", "b", how="raise")
    server = Server()
    server.errors["orders"] = DuplicateJob("orders", ["a"])
    server.deliver_all(outbox)
    assert outbox.info().jobs == 2
