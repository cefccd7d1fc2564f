"""`Confirmation`: what goes behind schedule calls, and what the replies mean. No server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.records import RECORD
from wheelq.errors import (
    InvalidInput,
    InvalidJob,
    NotReplicated,
    OutcomeUnknown,
    Refused,
    ServerError,
    ServerFull,
    ServerTooOld,
)
from wheelq.producer.confirmation import BATCHES, Confirmation, confirmation
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.producer import Placed
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, Durability

REPLY = [1, 1_700_000_000_000, 5]  # one job, created
DONE = 0


def waiting(durability: Durability = "replicated", **settings: int) -> Confirmation[Placed]:
    found = confirmation(durability, ClientSettings(**settings))
    assert found is not None
    return found


def calls(*shards: int) -> Iterator[Call[Placed]]:
    """A schedule call of one job to each of these shards."""
    for number, shard in enumerate(shards):
        yield producer.schedule(Keys().shard("orders", shard), [(f"job-{number}", "1", RECORD)], "keep", "1")


def names(call: Call[list[Placed]]) -> list[str]:
    return [part.name for part in call.parts]


# What is sent


def test_mark_and_wait_go_behind_a_schedule_call() -> None:
    (call,) = waiting(replicas=2, replicated_timeout_ms=70).behind(calls(0))
    assert names(call) == ["schedule", "mark", "WAIT"]
    assert call.parts[2].words() == ["WAIT", 2, 70]
    assert call.wait_ms == 70


def test_fsynced_asks_for_the_servers_own_disk_and_no_replica_unless_told() -> None:
    (call,) = waiting("fsynced", replicas=2).behind(calls(0))
    assert call.parts[2].words() == ["WAITAOF", 1, 0, 2_000]
    (call,) = waiting("fsynced", fsynced_replicas=1).behind(calls(0))
    assert call.parts[2].words() == ["WAITAOF", 1, 1, 2_000]


def test_calls_of_one_shard_share_a_wait_up_to_ten() -> None:
    chains = list(waiting().behind(calls(*[0] * (BATCHES + 2))))
    assert [len(call.parts) for call in chains] == [BATCHES + 2, 2 + 2]


def test_a_chain_is_of_one_shard_because_a_cluster_has_it_on_one_node() -> None:
    chains = list(waiting().behind(calls(0, 0, 1, 0)))
    assert [(call.key, len(call.parts) - 2) for call in chains] == [
        ("wheelq:{orders:0}:delayed", 2),
        ("wheelq:{orders:1}:delayed", 1),
        ("wheelq:{orders:0}:delayed", 1),
    ]


def test_the_jobs_before_a_bad_one_are_sent_first() -> None:
    def broken() -> Iterator[Call[Placed]]:
        yield from calls(0)
        raise InvalidJob(1, InvalidInput("delay", "missing"), {})

    chains = waiting().behind(broken())
    assert names(next(chains)) == ["schedule", "mark", "WAIT"]
    with pytest.raises(InvalidJob):
        next(chains)


# What is answered


def test_enough_confirmations_are_no_error() -> None:
    confirming = waiting(replicas=2)
    (call,) = confirming.behind(calls(0))
    assert call.read([REPLY, DONE, 3])[0].receipts[0].created  # type: ignore[union-attr]
    confirming.check([])


@pytest.mark.parametrize(
    ("durability", "settings", "reply", "confirmed", "wanted"),
    [
        ("replicated", {"replicas": 2}, 1, 1, 2),
        ("replicated", {}, 0, 0, 1),
        ("fsynced", {}, [0, 0], 0, 1),
        ("fsynced", {"fsynced_replicas": 1}, [1, 0], 1, 2),
        ("fsynced", {"fsynced_replicas": 1}, [0, 2], 1, 2),  # two replicas do not stand in for the own disk
        ("replicated", {}, Refused("NOPERM wait"), 0, 1),
    ],
)
def test_too_few_are_told_with_the_receipts(
    durability: Durability, settings: dict[str, int], reply: object, confirmed: int, wanted: int
) -> None:
    confirming = waiting(durability, **settings)
    (call,) = confirming.behind(calls(0))
    (placed,) = call.read([REPLY, DONE, reply])
    with pytest.raises(NotReplicated) as told:
        confirming.check(placed.receipts)
    assert (told.value.confirmed, told.value.wanted, told.value.receipts) == (confirmed, wanted, placed.receipts)


def test_a_missing_confirmation_ends_further_waiting() -> None:
    chains = (confirming := waiting()).behind(calls(0, 1))
    next(chains).read([REPLY, DONE, 0])
    second = next(chains)
    assert names(second) == ["schedule", "mark"]
    second.read([REPLY, DONE])
    with pytest.raises(NotReplicated):
        confirming.check([])


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_reply_anywhere_leaves_the_outcome_unknown_so_that_all_is_repeated(lost: int) -> None:
    (call,) = waiting().behind(calls(0))
    replies: list[object] = [REPLY, DONE, 1]
    replies[lost] = OutcomeUnknown("lost")
    with pytest.raises(OutcomeUnknown):
        call.read(replies)


def test_a_refused_schedule_is_refused_although_the_wait_succeeds() -> None:
    (call,) = waiting().behind(calls(0))
    (answer,) = call.read([ServerFull(), DONE, 1])
    assert isinstance(answer, ServerFull)


def test_calls_sent_before_a_refused_one_have_their_answers() -> None:
    """The server got full in between: the caller must hear which jobs are scheduled."""
    (call,) = waiting().behind(calls(0, 0, 0))
    first, second, third = call.read([REPLY, ServerFull(), ServerFull(), DONE, 1])
    assert isinstance(first, Placed)
    assert isinstance(second, ServerFull)
    assert isinstance(third, ServerFull)


# The choice


def test_server_waits_for_nothing() -> None:
    assert confirmation("server", ClientSettings(durability="replicated")) is None
    assert confirmation(None, ClientSettings()) is None


def test_a_server_without_waitaof_is_told_with_what_to_do_instead() -> None:
    told = waiting("fsynced").impossible(ServerTooOld())
    assert isinstance(told, ServerTooOld)
    assert "appendfsync to always" in str(told)
    other: ServerError = Refused("appendonly is disabled")
    assert waiting("fsynced").impossible(other) is other
