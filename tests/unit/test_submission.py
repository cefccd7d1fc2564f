"""Many jobs become batches of up to 500, by shard; every answer finds its place, whatever got lost on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records import tags_of
from wheelq import JobSpec, Receipt
from wheelq.errors import DuplicateJob, InvalidInput, InvalidJob, OutcomeUnknown, PartlyScheduled, Refused, Unavailable
from wheelq.model.topic import Topic, shard_of
from wheelq.producer.preparation import IdempotentSpec, Preparation, accepted
from wheelq.producer.submission import Submission, Tagging
from wheelq.protocol.call import Call
from wheelq.protocol.calls.producer import Placed
from wheelq.protocol.codec import LAST_MS, Parts, life_of, parts_of
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings

NOW_MS = 1_750_000_000_000
CREATED, NOT_HERE = 1, 4


TAGGING = Tagging.of(ClientSettings(), reply_timeout_ms=10_000)


def submission(specs: Iterable[JobSpec], topic: Topic | int = 1) -> Submission:
    found = Topic(shards=topic) if isinstance(topic, int) else topic
    made = Submission(Keys(), "orders", specs, "keep", ClientSettings(), NOW_MS, TAGGING)
    made.place_by(found)
    return made


def specs(count: int) -> list[JobSpec]:
    return [JobSpec(n, delay=1, key=f"job-{n}") for n in range(count)]


def ids_of(call: Call[Placed]) -> list[str]:
    return [str(id) for id in call.args[7::3]]


def shard_asked(call: Call[Placed]) -> int:
    return int(call.keys[0].split("}")[0].rpartition(":")[2])


def answer(call: Call[Placed], status: int = CREATED) -> Placed:
    """As the server would at 5 ms after the epoch: every job has this status, and is due 2 ms later."""
    return call.read([*(part for _ in ids_of(call) for part in (status, 7)), 5])


def carry_out(asked: Submission) -> list[Call[Placed]]:
    """Answer everything; what was sent."""
    sent = []
    while not asked.is_complete:
        for call in asked.unanswered():
            sent.append(call)
            asked.settle(answer(call))
    return sent


# Batches


@settings(deadline=None)  # busy machines
@given(st.integers(0, 2_500), st.integers(1, 5))
def test_every_job_is_in_one_batch_and_every_receipt_in_its_place(count: int, shards: int) -> None:
    asked = submission(specs(count), shards)
    sent = carry_out(asked)
    assert all(0 < len(ids_of(call)) <= 500 for call in sent)
    assert sorted(id for call in sent for id in ids_of(call)) == sorted(f"job-{n}" for n in range(count))
    assert [receipt.id for receipt in asked.receipts()] == [f"job-{n}" for n in range(count)]


def test_full_batches_are_500_after_two_halves() -> None:
    """So that the server works on the first while the second is packed, even if the call is for 500 jobs only."""
    assert [len(ids_of(call)) for call in carry_out(submission(specs(1_234)))] == [250, 250, 500, 234]


@pytest.mark.parametrize(("count", "batches"), [(0, []), (1, [1]), (250, [250]), (251, [250, 1]), (500, [250, 250])])
def test_no_batch_is_empty(count: int, batches: list[int]) -> None:
    assert [len(ids_of(call)) for call in carry_out(submission(specs(count)))] == batches


@given(st.integers(1, 4))
def test_a_batch_holds_jobs_of_one_shard(shards: int) -> None:
    for call in carry_out(submission(specs(1_000), shards)):
        assert {shard_of(id, shards) for id in ids_of(call)} == {shard_asked(call)}


def test_shards_are_filled_evenly() -> None:
    filled = Counter(shard_of(f"order-{n}", 8) for n in range(8_000))
    assert set(filled) == set(range(8))
    assert max(filled.values()) < 1.2 * min(filled.values())


def test_a_jobs_shard_is_the_same_on_every_machine() -> None:
    """It is part of what is stored: changing it would lose sight of every waiting job."""
    assert [shard_of(f"order-{n}", 4) for n in range(8)] == [1, 3, 1, 3, 0, 2, 0, 2]
    assert shard_of("注文", 1_000) == 871


def test_a_partition_key_takes_the_place_of_the_id() -> None:
    [call] = carry_out(submission([JobSpec(n, delay=1, partition_key="customer-7") for n in range(50)], 8))
    assert len(ids_of(call)) == 50
    assert shard_asked(call) == shard_of("customer-7", 8)


def test_jobs_are_packed_only_when_their_batch_is_due() -> None:
    """So that the server works on one batch while the next is packed, and a generator is not read to its end first."""
    taken = 0

    def generate() -> Iterable[JobSpec]:
        nonlocal taken
        for spec in specs(1_500):
            taken += 1
            yield spec

    calls = submission(generate()).unanswered()
    found = []
    for _ in range(3):
        next(calls)
        found.append(taken)
    assert found == [250, 500, 1_000]


# Lost replies


@given(st.integers(1, 2_000), st.integers(0, 4), st.integers(1, 3))
def test_exactly_the_unanswered_calls_come_again_after_a_lost_reply(count: int, answered: int, shards: int) -> None:
    asked, sent = submission(specs(count), shards), []
    for call in asked.unanswered():
        sent.append(call)
        if len(sent) > answered + 1:  # two are under way when the connection breaks
            break
        if len(sent) <= answered:
            asked.settle(answer(call))
    lost = [ids_of(call) for call in sent[answered:]]
    again = asked.unanswered()
    for ids in lost:
        call = next(again)
        assert ids_of(call) == ids
        asked.settle(answer(call))
    for call in again:
        asked.settle(answer(call))
    assert asked.is_complete
    assert [receipt.id for receipt in asked.receipts()] == [f"job-{n}" for n in range(count)]


def test_a_repeated_batch_has_the_same_records() -> None:
    """By which the server knows its own."""
    asked = submission(specs(10))
    [first] = asked.unanswered()
    [second] = asked.unanswered()
    assert list(first.args) == list(second.args)


def test_an_error_before_anything_was_sent_stays_what_it_is() -> None:
    error = Refused("not today")
    assert submission(specs(10)).failed(error) is error


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Refused("not today")])
def test_an_error_half_way_tells_what_is_scheduled_and_what_perhaps(error: Any) -> None:
    """Also a refusal: it is true of the call that was refused, and not of those before it."""
    asked = submission(specs(1_200))
    calls = asked.unanswered()
    first, second = next(calls), next(calls)
    asked.settle(answer(first))
    told = asked.failed(error)
    assert isinstance(told, PartlyScheduled)
    assert set(told.receipts) == set(range(250))
    assert set(told.ids) == set(ids_of(second))


@pytest.mark.parametrize("error", [Refused("not today")])
def test_an_unknown_outcome_stays_unknown_when_the_repeated_call_fails(error: Any) -> None:
    """The first may have happened, although "refused" says that nothing was done."""
    asked = submission(specs(10))
    list(asked.unanswered())  # sent, and no reply came
    asked.lost()
    list(asked.unanswered())  # sent again, and refused
    assert isinstance(asked.failed(error), OutcomeUnknown)


@pytest.mark.parametrize("count", [10, 500])
def test_an_unknown_outcome_stays_unknown_when_the_server_refuses_the_repeated_calls(count: int) -> None:
    """Also after another lost reply."""
    asked = submission(specs(count))
    list(asked.unanswered())  # sent, and no reply came
    asked.lost()
    for times in range(2):
        for _ in asked.unanswered():
            asked.refused()
        told = asked.failed(Refused("full"))
        assert isinstance(told, PartlyScheduled), times
        assert sorted(told.unknown) == list(range(count))
        asked.lost()


def test_an_unknown_outcome_stays_unknown_when_the_call_is_not_even_repeated() -> None:
    """The circuit breaker has opened meanwhile, say."""
    asked = submission(specs(10))
    list(asked.unanswered())
    asked.lost()
    assert isinstance(asked.failed(Unavailable("not tried")), OutcomeUnknown)


def test_calls_that_were_all_refused_leave_the_error_as_it_is() -> None:
    """Nothing was done, and the jobs can be kept elsewhere as they are."""
    error = Refused("full")
    asked = submission(specs(500))
    for _ in asked.unanswered():
        asked.refused()
    assert asked.failed(error) is error
    found, bad = asked.remaining()
    assert (sorted(found), bad) == (list(range(500)), None)


def test_jobs_that_were_refused_are_not_among_those_of_unknown_outcome() -> None:
    asked = submission(specs(500))
    first, second = asked.unanswered()
    asked.refused()
    asked.settle(answer(second))
    told = asked.failed(Refused("full"))
    assert isinstance(told, PartlyScheduled)
    assert set(told.receipts) == set(range(250, 500))
    assert not told.unknown
    assert [*asked.remaining()[0]] == list(range(250))
    assert ids_of(first) == [job[0] for job, _ in asked.remaining()[0].values()]


def test_refused_jobs_are_sent_again_when_a_later_reply_was_lost() -> None:
    asked = submission(specs(500))
    calls = asked.unanswered()
    first, second = next(calls), next(calls)
    asked.refused()
    asked.lost()
    again = asked.unanswered()
    sent = []
    for call in again:
        sent.append(ids_of(call))
        asked.settle(answer(call))
    assert sent == [ids_of(second), ids_of(first)]
    assert asked.is_complete
    assert [receipt.id for receipt in asked.receipts()] == [f"job-{n}" for n in range(500)]


def test_a_refusal_does_not_decide_the_calls_behind_it() -> None:
    """Another node may have taken it."""
    asked = submission(specs(10), 2)
    list(asked.unanswered())
    told = asked.failed(Refused("full"))
    assert isinstance(told, PartlyScheduled)
    assert not told.receipts
    assert len(told.unknown) == 10


# Bad jobs


def test_a_bad_job_is_named_with_the_receipts_of_those_before_it() -> None:
    """Of batches that were sent; receipts that come in later are found there too."""
    asked = submission([*specs(300), JobSpec({1}, delay=1)])
    calls = asked.unanswered()
    call = next(calls)
    with pytest.raises(InvalidJob) as caught:
        next(calls)
    asked.settle(answer(call))
    assert (caught.value.place, caught.value.field) == (300, "jobs[300].payload")
    assert set(caught.value.receipts) == set(range(250))


def test_a_bad_job_is_named_again_when_the_batches_before_it_are_sent_again() -> None:
    """A reply was lost after it was found: it must not be forgotten over that, nor the jobs behind it."""
    asked = submission([*specs(300), JobSpec({1}, delay=1), *specs(5)])
    calls = asked.unanswered()
    next(calls)
    with pytest.raises(InvalidJob):
        next(calls)
    again = asked.unanswered()
    asked.settle(answer(next(again)))
    with pytest.raises(InvalidJob):
        next(again)


# A topic that changes its number of shards


def test_a_job_with_a_made_id_is_placed_by_the_new_number() -> None:
    """Nobody can have scheduled it before."""
    topic = Topic(shards=4, draining=(2,))
    for call in carry_out(submission([JobSpec(n, delay=1) for n in range(100)], topic)):
        assert {shard_of(id, 4) for id in ids_of(call)} == {shard_asked(call)}
        assert call.args[2] == "4 @0"


def test_a_job_with_a_key_is_looked_for_where_a_former_number_placed_it_and_then_made_at_its_new_place() -> None:
    topic = Topic(shards=3, draining=(2,))
    asked, seen = submission(specs(100), topic), []
    while not asked.is_complete:
        for call in asked.unanswered():
            seen += [(id, shard_asked(call), call.args[2]) for id in ids_of(call)]
            asked.settle(answer(call, NOT_HERE if call.args[2] == "" else CREATED))
    for n in range(100):
        id = f"job-{n}"
        old, new = shard_of(id, 2), shard_of(id, 3)
        visits = [(shard, number) for seen_id, shard, number in seen if seen_id == id]
        assert visits == ([(new, "3 @0")] if old == new else [(old, ""), (new, "3 @0")])
    assert [receipt.id for receipt in asked.receipts()] == [f"job-{n}" for n in range(100)]


def test_an_order_that_another_number_overtook_is_placed_again() -> None:
    asked = submission(specs(600), 2)
    first = next(asked.unanswered())
    asked.settle(first.read([b"5"]))
    assert (asked.is_stale, asked.terms_in_force) == (True, "5")
    asked.place_by(Topic(shards=5))
    sent = carry_out(asked)
    assert sorted(id for call in sent for id in ids_of(call)) == sorted(f"job-{n}" for n in range(600))
    assert all({shard_of(id, 5) for id in ids_of(call)} == {shard_asked(call)} for call in sent)
    assert [receipt.id for receipt in asked.receipts()] == [f"job-{n}" for n in range(600)]


@pytest.mark.parametrize("has_key", [True, False], ids=["given ids", "made ids"])
def test_jobs_of_a_lost_reply_are_asked_for_where_the_former_number_placed_them(has_key: bool) -> None:
    """They may have been accepted the first time: the shard no longer knows the tag, but the jobs may wait there."""
    asked = submission([JobSpec(n, delay=1, key=f"job-{n}" if has_key else None) for n in range(10)], 2)
    first = next(asked.unanswered())
    asked.lost()
    repeated = next(asked.unanswered())
    asked.settle(repeated.read([b"3"]))
    asked.place_by(Topic(shards=3, draining=(2,)))
    visits = [(id, shard_asked(call), call.args[2]) for call in carry_out(asked) for id in ids_of(call)]
    for id in ids_of(first):
        if shard_of(id, 2) != shard_of(id, 3):
            assert (id, shard_of(id, 2), "") in visits
            assert (id, shard_of(id, 3), "3 @0") not in visits, "it was found"


# Tags


def test_a_repeated_call_is_the_same_call_and_every_other_has_a_tag_of_its_own() -> None:
    asked = submission(specs(1_000), 2)
    first = list(asked.unanswered())
    asked.lost()
    again = list(asked.unanswered())
    assert [(call.keys, call.args) for call in again] == [(call.keys, call.args) for call in first]
    tags = [call.args[3] for call in first]
    assert len(set(tags)) == len(tags) > 2
    assert all(isinstance(tag, bytes) and len(tag) == 12 for tag in tags)


@pytest.mark.parametrize(
    ("repeats", "reply_timeout_ms", "expected"),
    [
        (1, 10_000, (30_000, 30_000)),
        (0, 1_000, (30_000, 12_000)),
        (3, 10_000, (60_000, 50_000)),
        (5, 30_000, (120_000, 120_000)),
    ],
)
def test_an_answer_is_kept_for_as_long_as_its_call_may_be_repeated(
    repeats: int, reply_timeout_ms: int, expected: tuple[int, int]
) -> None:
    assert Tagging.of(ClientSettings(repeats=repeats), reply_timeout_ms) == expected


def test_the_answer_to_a_call_with_a_given_id_is_kept_for_jobs_of_any_due_time() -> None:
    """Another caller may have cancelled or moved such a job before the call is repeated."""
    [given] = carry_out(submission(specs(1)))
    [made] = carry_out(submission([JobSpec(1, delay=1)]))
    assert given.args[4:7] == [30_000, LAST_MS, b""]
    assert made.args[4:7] == [30_000, 30_000, b""]
    assert given.keys[-2:] == made.keys[-2:] == tags_of(Keys().shard("orders", 0), 30_000)


# One job


def test_each_job_gets_a_life_of_its_own_also_under_a_given_id() -> None:
    prepare = Preparation("orders", ClientSettings(), NOW_MS).job
    first, second = (prepare(JobSpec(1, delay=1, key="a")) for _ in range(2))
    made_id, due, made_record = prepare(JobSpec(1, delay=1))
    assert (first[:2], len(made_id), due) == (("a", "+1000"), 26, "+1000")
    assert len({life_of(record) for record in (first[2], second[2], made_record)}) == 3


def test_a_member_of_a_bundle_keeps_what_is_asked_for_it_alone() -> None:
    prepare = Preparation("orders", ClientSettings(), NOW_MS, bundle="publish:b").job
    plain, other = (parts_of(prepare(spec)[2]) for spec in (JobSpec(1, delay=1), JobSpec(1, delay=1, attempts=3)))
    assert plain == Parts(bundle="publish:b")
    assert other == Parts(bundle="publish:b", max_attempts=3)


@pytest.mark.parametrize("spec", [JobSpec(1), JobSpec(1, delay=-1), JobSpec({1}, delay=1), JobSpec(1, delay=1, key="")])
def test_a_bad_job_is_refused(spec: JobSpec) -> None:
    with pytest.raises(InvalidInput):
        Preparation("orders", ClientSettings(), NOW_MS).job(spec)


# What the answer means

KEPT, NEW = Receipt("kept", 1, False), Receipt("created", 1, True)


@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
def test_duplicates_are_told_in_the_receipts(on_duplicate: Any) -> None:
    assert accepted("orders", [KEPT, NEW], on_duplicate) == [KEPT, NEW]


def test_duplicates_are_raised_if_that_was_asked_for() -> None:
    assert accepted("orders", [NEW], "raise") == [NEW]
    with pytest.raises(DuplicateJob) as caught:
        accepted("orders", [NEW, KEPT], "raise")
    assert caught.value.ids == ["kept"]


@pytest.mark.parametrize("life", [b"", b"x" * 9, "x" * 8])
def test_a_life_is_eight_bytes(life: Any) -> None:
    with pytest.raises(InvalidInput, match="life"):
        Preparation("orders", ClientSettings(), 0).job(IdempotentSpec(delay=1, key="a", life=life))
