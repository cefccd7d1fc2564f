"""What the oracle excuses, and what it does not."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest

from loadtest.simulation import faults, oracle, run
from loadtest.simulation.drawing import draw
from loadtest.simulation.faults import Stage
from loadtest.simulation.fleet import Fleet
from loadtest.simulation.ledger import Call, Forgotten, Hand, Ledger, Permit, Promotion, Run, Undone
from loadtest.simulation.oracle import Seen, answers, keys, limits, recurring, retries, runs, sort, times
from loadtest.simulation.plan import Plan, Step, TopicPlan
from loadtest.simulation.trials import Apart
from loadtest.simulation.world import EPOCH_S, World
from wheelq.protocol.recurring_codec import occurrence_id

ARGS = {"topic": "plain", "id": "p1", "delay": 0, "partition_key": None, "payload": [0, 0, "error"]}
SCHEDULE = Step(0, 0.0, "schedule", "producer-4", ARGS)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(World(1))
    ledger.clock.append((0.0, 0.0, 1.0))
    return ledger


def test_one_node_that_is_frozen_excuses_a_moment_only(ledger: Ledger) -> None:
    """Each fault of a node was taken for a second fault at the same time, and so excused everything."""
    fleet = Fleet(ledger.world, draw(1), ledger)
    freeze = Step(0, 0.0, "freeze-node", "", {"seconds": 9.0, "salt": 1})
    faults.begin(Stage(ledger.world, fleet, ledger), freeze)
    assert ledger.is_explained(0.1, 0.2)
    assert not ledger.is_explained(1.0, 8.0)
    faults.begin(Stage(ledger.world, fleet, ledger), replace(freeze, args={"seconds": 9.0, "salt": 2}))
    assert ledger.is_explained(1.0, 8.0)  # leader and standby of a shard may both be frozen


@pytest.mark.parametrize("kind", ["partition", "half-open"])
def test_one_node_that_is_cut_off_excuses_a_moment_only(ledger: Ledger, kind: str) -> None:
    """Its standby is there."""
    fleet = Fleet(ledger.world, draw(1), ledger)
    parts = list(fleet.parts.values())
    salt = next(n for n in range(99) if Random(n).choice(parts) in fleet.nodes)
    faults.begin(Stage(ledger.world, fleet, ledger), Step(0, 0.0, kind, "", {"seconds": 9.0, "salt": salt}))
    assert ledger.is_explained(0.1, 0.2)
    assert not ledger.is_explained(1.0, 8.0)


@pytest.mark.parametrize(("at", "is_late"), [(65.2, False), (67.0, True)])
def test_a_job_is_due_later_if_the_clock_is_set_back_before_its_promotion(
    ledger: Ledger, at: float, is_late: bool
) -> None:
    ledger.clock.append((5.0005, -60.0, 1.0))
    ledger.promotions.append(_promotion(due=5.0, at=at, since=1.0))
    assert bool(list(times.late(_seen(ledger)))) == is_late


@pytest.mark.parametrize(("begins", "is_late"), [(3.1, False), (7.0, True)])
def test_a_fault_that_begins_after_a_job_was_due_does_not_excuse_its_lateness(
    ledger: Ledger, begins: float, is_late: bool
) -> None:
    ledger.promotions.append(_promotion(due=3.0, at=8.0, since=1.0))
    ledger.trouble("freeze-node", "node-1", 12.0, since=begins)
    assert bool(list(times.late(_seen(ledger)))) == is_late


def test_a_lost_reply_does_not_excuse_a_second_promotion(ledger: Ledger) -> None:
    call = Call(SCHEDULE, "plain", "p1", 1.0, 0, answered=1.1, outcome="kept")
    ledger.trouble("server-away", "", 20.0, since=0.0)
    ledger.calls.append(call)
    ledger.losses.append(("producer-4", 5.5))
    ledger.promotions += [_promotion(due=5.0, at=5.0, since=5.0), _promotion(due=6.0, at=6.0, since=6.0, entry="6-0")]
    ledger.runs.append(_run(5.0, ended=5.2))
    assert list(answers.doubled(_seen(ledger)))


@pytest.mark.parametrize(("again", "is_repeated"), [(5.5, True), (7.5, False)])
def test_a_step_of_the_clock_does_not_excuse_that_a_living_workers_job_runs_twice(
    ledger: Ledger, again: float, is_repeated: bool
) -> None:
    ledger.trouble("clock", "", 12.0, since=4.0)
    ledger.runs += [_run(5.0, ended=6.0, outcome="ValueError"), _run(again, ended=8.0)]
    assert bool(list(runs.repeated(_seen(ledger)))) == is_repeated


@pytest.mark.parametrize(("set_at", "by", "is_early"), [(5.5, 2.0, False), (5.5, 0.05, True), (4.5, 2.0, True)])
def test_a_run_is_early_unless_the_clock_was_set_back_since_its_promotion(
    ledger: Ledger, set_at: float, by: float, is_early: bool
) -> None:
    ledger.clock.append((set_at, -by, 1.0))
    ledger.promotions.append(_promotion(due=5.0, at=5.0, since=1.0))
    ledger.promotions.append(_promotion(due=5.8, at=5.8, since=5.7, entry="6-0"))  # of its next attempt
    server_us = int((EPOCH_S + 5.5) * 1_000_000)
    due_ms = int((EPOCH_S + 5.6) * 1000)
    ledger.runs.append(replace(_run(6.0, ended=7.0), server_us=server_us, due_ms=due_ms))
    assert bool(list(times.early(_seen(ledger)))) == is_early


@pytest.mark.parametrize(("began", "is_slow"), [(10.9, False), (11.1, True)])
def test_a_lost_reply_excuses_a_slow_start_for_six_seconds(ledger: Ledger, began: float, is_slow: bool) -> None:
    ledger.promotions.append(_promotion(due=4.0, at=4.0, since=1.0))
    ledger.trouble("lost-replies", "", 5.0, since=3.0, slack=1.5)
    ledger.runs.append(_run(began, ended=12.0))
    assert bool(list(times.slow(_seen(ledger)))) == is_slow


@pytest.mark.parametrize(("began", "is_slow"), [(9.9, False), (10.1, True)])
@pytest.mark.parametrize("kind", ["kill-worker", "freeze-worker"])
def test_what_a_worker_had_that_is_gone_is_started_by_another(
    ledger: Ledger, kind: str, began: float, is_slow: bool
) -> None:
    """However long that worker is away."""
    ledger.promotions.append(_promotion(due=4.0, at=4.0, since=1.0))
    ledger.trouble(kind, "worker-2", 30.0, since=4.0, slack=6.5)
    ledger.hands += [_hand("worker-2", 4.0), _hand("worker-1", began, before="worker-2")]
    ledger.runs.append(_run(began, ended=12.0))
    assert bool(list(times.slow(_seen(ledger)))) == is_slow


@pytest.mark.parametrize(("whom", "is_slow"), [("worker-1", False), ("worker-2", True), ("node-1", True)])
def test_a_fault_of_another_part_does_not_excuse_a_slow_start(ledger: Ledger, whom: str, is_slow: bool) -> None:
    ledger.promotions.append(_promotion(due=4.0, at=4.0, since=1.0))
    ledger.trouble("partition", whom, 8.0, since=3.0, slack=6.5)
    ledger.hands.append(_hand("worker-1", 4.0))
    ledger.runs.append(_run(6.0, ended=7.0))
    assert bool(list(times.slow(_seen(ledger)))) == is_slow


@pytest.mark.parametrize(("second", "is_slow"), [(9.0, False), (13.0, True)])
def test_faults_must_explain_every_moment_until_a_job_starts(ledger: Ledger, second: float, is_slow: bool) -> None:
    ledger.promotions.append(_promotion(due=4.0, at=4.0, since=1.0))
    for since in (4.1, second):
        ledger.trouble("resets", "", since, since=since)
    ledger.runs.append(_run(14.5, ended=15.0))
    assert bool(list(times.slow(_seen(ledger)))) == is_slow


@pytest.mark.parametrize(("seen_at", "is_taken"), [(9.0, True), (10.5, False)])
def test_no_worker_takes_from_one_whose_heartbeat_it_has_seen(ledger: Ledger, seen_at: float, is_taken: bool) -> None:
    """A taker that has not read the heartbeats since could not know."""
    taker, before = "worker-1-9-ab", "worker-2-8-cd"
    ledger.beats[before] = [1.0, 2.3, 8.0]  # it was frozen for a while
    ledger.beats[taker] = [1.0, 6.0, seen_at]
    ledger.hands.append(Hand("default", "plain", 0, "5-0", taker, 11.0, before, was_given=False))
    assert bool(list(runs.taken(_seen(ledger)))) == is_taken


@pytest.mark.parametrize(("at", "is_taken"), [(11.4, True), (11.6, False)])
def test_a_worker_that_was_silent_for_long_is_gone(ledger: Ledger, at: float, is_taken: bool) -> None:
    ledger.beats["worker-2-8-cd"] = [8.0]
    ledger.beats["worker-1-9-ab"] = [8.1]
    ledger.hands.append(Hand("default", "plain", 0, "5-0", "worker-1-9-ab", at, "worker-2-8-cd", was_given=False))
    assert bool(list(runs.taken(_seen(ledger)))) == is_taken
    ledger.left["worker-2-8-cd"] = 8.2
    assert not list(runs.taken(_seen(ledger)))


@pytest.mark.parametrize(("begins", "ends", "is_repeated"), [(8.0, 15.0, 0), (8.0, 13.0, 1), (13.0, 15.0, 1)])
def test_a_pause_holds_up_that_a_killed_workers_job_runs_again(
    ledger: Ledger, begins: float, ends: float, is_repeated: int
) -> None:
    ledger.trouble("kill-worker", "worker-1", 6.0, since=5.0, slack=6.5)
    ledger.trouble("pause", "plain", ends, since=begins)
    ledger.runs += [_run(5.0, ended=16.0), _run(14.0, ended=15.0, worker="worker-2")]
    assert len(list(runs.repeated(_seen(ledger)))) == is_repeated


@pytest.mark.parametrize(
    ("whom", "again", "is_repeated"), [("", 9.9, 0), ("worker-1", 9.9, 0), ("", 12.1, 1), ("worker-3", 9.9, 1)]
)
def test_a_repeated_run_is_excused_by_a_fault_of_its_worker(
    ledger: Ledger, whom: str, again: float, is_repeated: int
) -> None:
    ledger.trouble("partition", whom, 5.5, since=5.3, slack=6.5)
    ledger.runs += [_run(5.0, ended=5.2), _run(again, ended=13.0, worker="worker-2")]
    assert len(list(runs.repeated(_seen(ledger)))) == is_repeated


@pytest.mark.parametrize(("again", "is_abandoned"), [(10.9, False), (11.1, True)])
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_job_of_a_worker_that_is_gone_runs_again_soon(
    ledger: Ledger, how: str, again: float, is_abandoned: bool
) -> None:
    (ledger.deaths if how == "killed" else ledger.stops).append(("worker-1", 5.0))
    ledger.trouble("restart-worker", "worker-1", 20.0, since=4.0)
    ledger.runs.append(_run(4.5, ended=4.9, outcome="CancelledError"))
    ledger.runs.append(_run(again, ended=13.0, worker="worker-2"))
    assert bool(list(runs.abandoned(_seen(ledger)))) == is_abandoned


@pytest.mark.parametrize(("again", "is_untrue"), [(None, True), ("there", True), ("created", False)])
def test_a_job_that_was_cancelled_is_not_promoted_though_an_outbox_had_it(
    ledger: Ledger, again: str | None, is_untrue: bool
) -> None:
    ledger.calls += [_call("kept", 1.0, 1.1), _call("cancelled", 5.0, 5.1, kind="cancel")]
    if again:
        ledger.calls.append(replace(_call(again, 6.0, 6.1, who="producer-1"), due_ms=int((EPOCH_S + 9.0) * 1000)))
    ledger.promotions.append(_promotion(due=9.0, at=9.0, since=8.5))
    ledger.runs.append(_run(9.0, ended=9.1))
    assert bool(list(answers.untrue(_seen(ledger)))) == is_untrue


@pytest.mark.parametrize(("lost", "is_untrue"), [((1.5, 2.5), False), ((20.0, 21.0), True)])
def test_writes_that_were_lost_excuse_the_answers_of_their_time_only(
    ledger: Ledger, lost: tuple[float, float], is_untrue: bool
) -> None:
    ledger.undone.append(Undone(*lost, is_power_loss=True))
    ledger.calls += [_call("created", 1.0, 1.1), _call("not_found", 2.0, 2.1, kind="cancel")]
    assert bool(list(answers.untrue(_seen(ledger)))) == is_untrue


def test_a_call_that_was_refused_has_done_nothing(ledger: Ledger) -> None:
    ledger.calls += [_call("refused: Unavailable", 1.0, 1.1), _call("not_found", 2.0, 2.1, kind="cancel")]
    assert not list(answers.untrue(_seen(ledger)))
    ledger.calls.append(_call("refused: DuplicateJob", 3.0, 3.1))
    assert list(answers.untrue(_seen(ledger)))


@pytest.mark.parametrize(("who", "is_untrue"), [("producer-4", True), ("producer-1", False)])
def test_a_producer_finds_the_job_that_its_outbox_keeps(ledger: Ledger, who: str, is_untrue: bool) -> None:
    ledger.calls += [_call("kept", 1.0, 1.1), _call("not_found", 2.0, 2.1, kind="cancel", who=who)]
    ledger.runs.append(_run(9.0, ended=9.1))
    assert bool(list(answers.untrue(_seen(ledger)))) == is_untrue


@pytest.mark.parametrize(("at", "is_promoted"), [(4.9, False), (5.2, True), (9.1, False)])
def test_nothing_is_promoted_while_its_topic_is_paused(ledger: Ledger, at: float, is_promoted: bool) -> None:
    pause = Step(7, 5.0, "pause", "producer-1", {"topic": "plain", "seconds": 4.0})
    ledger.calls += [Call(pause, "plain", "", sent, 0, sent + 0.1, "done") for sent in (5.0, 9.0)]
    ledger.promotions.append(_promotion(due=4.0, at=at, since=1.0))
    assert bool(list(limits.paused(_seen(ledger)))) == is_promoted


@pytest.mark.parametrize(("apart", "is_faster"), [(0.13, False), (0.05, True)])
def test_a_topic_promotes_no_more_than_its_rate(ledger: Ledger, apart: float, is_faster: bool) -> None:
    at = [10.0 + n * apart for n in range(20)]
    ledger.promotions += [replace(_promotion(due=5.0, at=one, since=1.0), topic="limit") for one in at]
    seen = _seen(ledger)
    seen.plan = replace(seen.plan, topics=(TopicPlan("limit", {"max_rate": 8.0}, "single", 1.0),))
    assert bool(list(limits.faster(seen))) == is_faster
    change = Step(7, 9.0, "configure", "producer-1", {"topic": "limit", "change": {"max_rate": 0.0}})
    ledger.calls.append(Call(change, "limit", "", 9.0, 0, 9.1, "done"))
    assert not list(limits.faster(seen))


def _seen_with_keys(ledger: Ledger, **limits: float) -> Seen:
    seen = _seen(ledger)
    seen.plan = replace(seen.plan, topics=(TopicPlan("shared", {"key_concurrency": 2, **limits}, "single", 1.0),))
    return seen


def _of_key(at: float, due: float = 5.0, opened: int = 1) -> Promotion:
    return replace(_promotion(due=due, at=at, since=1.0), topic="shared", key="ann", open_of_key=opened)


@pytest.mark.parametrize(("opened", "is_greedy"), [(2, False), (3, True)])
def test_no_more_jobs_of_a_key_are_open_than_may_be(ledger: Ledger, opened: int, is_greedy: bool) -> None:
    ledger.promotions.append(_of_key(40.0, opened=opened))
    assert bool(list(keys.greedy(_seen_with_keys(ledger)))) == is_greedy
    change = Step(7, 9.0, "share-limits", "producer-1", {"topic": "shared", "change": {"key_concurrency": 3}})
    ledger.calls.append(Call(change, "shared", "", 9.0, 0, 9.1, "done"))
    assert not list(keys.greedy(_seen_with_keys(ledger)))


@pytest.mark.parametrize(("apart", "is_hasty"), [(0.26, False), (0.19, True)])
def test_no_more_jobs_of_a_key_are_promoted_in_a_second_than_its_rate(
    ledger: Ledger, apart: float, is_hasty: bool
) -> None:
    ledger.promotions += [_of_key(40.0 + n * apart) for n in range(9)]
    assert bool(list(keys.hasty(_seen_with_keys(ledger, key_rate=4.0)))) == is_hasty


@pytest.mark.parametrize(("freed", "is_starved"), [(9.5, False), (6.0, True)])
def test_a_job_is_promoted_soon_after_there_is_room_for_its_key(ledger: Ledger, freed: float, is_starved: bool) -> None:
    ledger.promotions += [_of_key(5.1, opened=2), _of_key(10.0, opened=2)]
    ledger.ends_of_keys["shared", 0, "ann"].append((freed, 1))
    assert bool(list(keys.starved(_seen_with_keys(ledger)))) == is_starved


@pytest.mark.parametrize(("given_back", "is_wrong"), [(9.0, False), (9.5, True), (8.5, True), (None, True)])
def test_a_permit_is_given_back_in_the_step_that_ends_its_job(
    ledger: Ledger, given_back: float | None, is_wrong: bool
) -> None:
    ledger.permits["shared", 0, "1-0"] = Permit(ended=9.0, given_back=given_back)
    assert bool(list(keys.permits(_seen_with_keys(ledger)))) == is_wrong


@pytest.mark.parametrize(
    ("limit", "count", "is_crowded"),
    [("max_ready", 4, False), ("max_ready", 5, True), ("max_pending", 3, False), ("max_pending", 4, True)],
)
def test_a_topic_takes_and_promotes_no_more_than_it_may(
    ledger: Ledger, limit: str, count: int, is_crowded: bool
) -> None:
    if limit == "max_ready":
        ledger.promotions.append(replace(_promotion(due=5.0, at=5.0, since=1.0), topic="limit", unread=count))
    else:
        ledger.waiting.append(("limit", 0, 5.0, count))
    seen = _seen(ledger)
    seen.plan = replace(seen.plan, topics=(TopicPlan("limit", {limit: 6, "shards": 2}, "single", 1.0),))
    assert bool(list(limits.crowded(seen))) == is_crowded


@pytest.mark.parametrize(("kept_s", "is_forgotten"), [(3.0, False), (2.9, True)])
def test_a_finished_job_is_kept_for_its_time(ledger: Ledger, kept_s: float, is_forgotten: bool) -> None:
    ledger.forgotten.append(Forgotten("limit", "l1", 9.0 - kept_s, 9.0, kept_s))
    seen = _seen(ledger)
    seen.plan = replace(seen.plan, topics=(TopicPlan("limit", {"keep_done_ms": 3_000}, "single", 1.0),))
    assert bool(list(limits.forgotten(seen))) == is_forgotten


@pytest.mark.parametrize(
    ("outcome", "attempt", "due", "wrong"),
    [
        ("ValueError", 2, 5.31, ""),
        ("ValueError", 2, 5.2, "instead of 0.3 s"),
        ("ValueError", 2, 6.2, "nothing was wrong"),
        ("RetryAfter", 1, 5.41, ""),
        ("RetryAfter", 1, 5.3, "instead of 0.4 s"),
        ("done", 2, 5.31, "although"),
        ("Bury", 2, 5.31, "although"),
        ("ValueError", 5, 5.31, "ran 5 times"),
    ],
)
def test_a_job_that_fails_runs_again_after_its_pause(
    ledger: Ledger, outcome: str, attempt: int, due: float, wrong: str
) -> None:
    again = replace(_run(7.0, ended=7.1), attempt=attempt, due_ms=round((EPOCH_S + due) * 1000))
    ledger.runs += [_run(4.0, ended=5.0, outcome=outcome), again]
    found = list(retries.retried(_seen(ledger)))
    assert [wrong in one for one in found] == [True] * bool(wrong)


def test_a_run_of_a_worker_that_was_frozen_does_not_count_when_its_delivery_has_failed_before(ledger: Ledger) -> None:
    """Seed 9020: the worker that had lost the delivery meanwhile ran it, too, shortly before the next attempt."""
    again = replace(_run(7.0, ended=7.1), attempt=2, due_ms=round((EPOCH_S + 5.3) * 1000))
    ledger.runs += [_run(4.0, ended=5.0, outcome="ValueError", worker="worker-2")]
    ledger.runs += [_run(4.8, ended=5.2, outcome="ValueError"), again]
    assert list(retries.retried(_seen(ledger))) == []


@pytest.mark.parametrize(
    ("moments", "wrong"),
    [
        ([5, 10, 15, 20], ""),
        ([5, 10, 20], "has not occurred at 15"),
        ([5, 10, 15, 15, 20], "was promoted 2 times"),
        ([5, 10, 12, 15, 20], "occurred at 12.000"),
    ],
)
def test_a_recurring_job_occurs_at_every_moment_of_its_rule(ledger: Ledger, moments: list[int], wrong: str) -> None:
    rule = Step(7, 2.0, "recurring", "producer-1", {"topic": "plain", "name": "every-2000", "every": 5, "seconds": 20})
    ledger.calls += [Call(rule, "plain", "", sent, 0, sent + 0.1, "done") for sent in (2.0, 22.0)]
    made = [_promotion(due=float(at), at=float(at), since=1.0) for at in moments]
    ledger.promotions += [replace(one, id=occurrence_id("every-2000", one.due_ms)) for one in made]
    assert [wrong in one for one in recurring.recurring(_seen(ledger))] == [True] * bool(wrong)


@pytest.mark.parametrize(
    ("moments", "jitter", "wrong"),
    [
        ([40, 50], 0.5, ""),
        ([40, 50, 60], 0.5, "no moment"),
        ([40, 50], 1.5, "was due 1.500 s later"),
        ([40, 50, 90], 0.0, "no moment"),
        ([50], 0.0, "has not occurred at 40"),
    ],
)
def test_a_cron_expression_occurs_as_its_zone_tells(
    ledger: Ledger, moments: list[int], jitter: float, wrong: str
) -> None:
    """In the second minute its hour comes for the second time."""
    args = {"topic": "timed", "name": "cron-1", "cron": "*/10 * 0,23 * * *", "tz": "Sim/Autumn", "jitter": 1.0}
    ledger.calls += [Call(Step(7, 35.0, "cron", "", args), "timed", "", at, 0, at + 0.1, "done") for at in (35.0, 99.0)]
    made = [_promotion(due=at + jitter, at=at + jitter, since=1.0) for at in moments]
    ids = [occurrence_id("cron-1", int((EPOCH_S + at) * 1000)) for at in moments]
    ledger.promotions += [replace(one, id=id) for one, id in zip(made, ids, strict=True)]
    found = list(recurring.recurring(_seen(ledger)))
    assert bool(found) == bool(wrong)
    assert all(wrong in one for one in found)


@pytest.mark.parametrize(("moments", "wrong"), [([10, 20, 50], ""), ([10, 20, 30, 50], "has occurred at 30")])
def test_a_recurring_job_does_not_occur_while_it_is_paused(ledger: Ledger, moments: list[int], wrong: str) -> None:
    args = {"topic": "timed", "name": "cron-1", "cron": "*/10 * * * * *", "tz": "UTC"}
    times = (5.0, 25.0, 45.0, 55.0)
    ledger.calls += [Call(Step(7, 5.0, "cron", "", args), "timed", "", at, 0, at + 0.1, "done") for at in times]
    made = [_promotion(due=float(at), at=float(at), since=1.0) for at in moments]
    ledger.promotions += [replace(one, id=occurrence_id("cron-1", one.due_ms)) for one in made]
    assert [wrong in one for one in recurring.recurring(_seen(ledger))] == [True] * bool(wrong)


@pytest.mark.parametrize(("again", "is_abandoned"), [(16.9, False), (17.1, True)])
def test_a_job_of_a_dead_worker_runs_again_some_seconds_after_the_server_is_back(
    ledger: Ledger, again: float, is_abandoned: bool
) -> None:
    """Seed 20057: workers see who is silent only when they see heartbeats again."""
    ledger.deaths.append(("worker-1", 5.0))
    ledger.trouble("server-away", "", 3.0, since=6.0, slack=3.0)
    ledger.troubles[-1] = replace(ledger.troubles[-1], over=9.0, ends=12.0)
    ledger.runs += [_run(4.5, ended=4.9, outcome="CancelledError"), _run(again, ended=20.0, worker="worker-2")]
    assert bool(list(runs.abandoned(_seen(ledger)))) == is_abandoned


@pytest.mark.parametrize(("at", "began", "what"), [(30.9, 37.2, ""), (31.1, 32.0, "late"), (30.9, 37.4, "started")])
def test_faults_that_stay_cost_a_moment_only(ledger: Ledger, at: float, began: float, what: str) -> None:
    for whom, lasts in (("", 16.0), ("node-1", 90.0), ("worker-1", 90.0)):
        ledger.trouble("lasting", whom, lasts, since=6.0)
        ledger.troubles[-1] = replace(ledger.troubles[-1], ends=6.0 + lasts)
    ledger.promotions.append(_promotion(due=30.0, at=at, since=1.0))
    ledger.runs.append(_run(began, ended=39.0))
    found = list(times.stuck(_seen(ledger)))
    assert [what in one for one in found] == [True] * bool(what)


def test_the_excuses_of_a_run_are_told(ledger: Ledger) -> None:
    ledger.promotions.append(_promotion(due=4.0, at=4.0, since=1.0))
    ledger.trouble("resets", "", 5.0, since=4.0)
    ledger.runs.append(_run(6.0, ended=7.0))
    problems, excuses = oracle.examine(ledger, draw(1))
    assert not [one for one in problems if one.startswith("slow")]
    assert oracle.summed_up(excuses) == ["slow is excused by resets: 1 times, 1.60 s at most"]


@pytest.mark.parametrize(("late_ms", "is_misdated"), [(0, False), (100, False), (900, True), (-900, True)])
def test_a_job_in_an_outbox_is_due_when_it_was_asked_for(ledger: Ledger, late_ms: int, is_misdated: bool) -> None:
    asked_ms = int(EPOCH_S * 1000) + 1_000
    call = Call(SCHEDULE, "plain", "p1", 1.0, asked_ms * 1000, answered=1.1, outcome="kept", due_ms=asked_ms + late_ms)
    ledger.calls.append(call)
    assert bool(list(times.misdated(_seen(ledger)))) == is_misdated


@pytest.mark.parametrize(("stepped", "is_early"), [(0.5, True), (2.0, False)])
def test_an_outbox_counts_by_the_clock_as_its_producer_last_heard_it(
    ledger: Ledger, stepped: float, is_early: bool
) -> None:
    """Seed 300028: the clock was set an hour forwards while the server was away, and jobs were kept afterwards."""
    ledger.clock.append((stepped, 3_600.0, 1.0))
    asked_ms = int((EPOCH_S + 3.0 + 3_600.0) * 1000)
    heard = replace(_call("created", 1.0, 1.1), id="p0", due_ms=int((EPOCH_S + 1.0 + 3_600.0 * is_early) * 1000))
    kept = replace(_call("kept", 3.0, 3.1), asked_us=asked_ms * 1000, due_ms=asked_ms - 3_600_000)
    ledger.calls += [replace(heard, asked_us=heard.due_ms * 1000), kept]
    ledger.promotions.append(replace(_promotion(due=3.0, at=4.0, since=4.0), server_us=(asked_ms - 1_000) * 1000))
    ledger.runs.append(_run(4.0, ended=4.1))
    seen = _seen(ledger)
    assert bool(list(times.misdated(seen))) == is_early
    assert bool([one for one in times.early(seen) if "what was promised" in one]) == is_early
    assert bool([one for one in answers.untrue(seen) if "plain/p1" in one]) == is_early


@pytest.mark.parametrize("is_run_now", [True, False])
def test_a_member_that_is_to_run_now_after_the_clock_was_set_back_is_due_then(ledger: Ledger, is_run_now: bool) -> None:
    """Seed 2100169: its due time became one that the clock had shown before."""
    ledger.clock.append((5.0, -4.0, 1.0))
    ledger.promotions.append(_promotion(due=2.0, at=6.01, since=1.0))
    if is_run_now:
        ledger.members_run_now.append(("plain", "p1", 6.0))
    assert bool(list(times.late(_seen(ledger)))) != is_run_now


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_frozen_worker_explains_a_run_also_if_its_topic_was_paused_before(ledger: Ledger, is_paused: bool) -> None:
    """Seed 2500033: the pause began before the worker was frozen, and the run in its place began in the pause."""
    ledger.runs += [_run(1.0, ended=9.0), _run(6.5, ended=7.0, worker="worker-2")]
    ledger.trouble("freeze-worker", "worker-1", 7.0, since=2.0)
    if is_paused:
        ledger.trouble("pause", "plain", 6.0, since=1.9)
    assert not list(runs.repeated(_seen(ledger)))


@pytest.mark.parametrize(("died", "is_misdated"), [(0.2, True), (2.0, False)])
def test_a_new_process_has_heard_no_answer(ledger: Ledger, died: float, is_misdated: bool) -> None:
    """Seed 2000289: a producer was killed after a step of the clock, and its new process kept a job in its outbox."""
    ledger.clock.append((0.5, 60.0, 1.0))
    ledger.deaths.append(("producer-4", died))
    heard_ms, asked_ms = (int((EPOCH_S + at + 60.0) * 1000) for at in (1.0, 3.0))
    heard = replace(_call("created", 1.0, 1.1), id="p0", due_ms=heard_ms, asked_us=heard_ms * 1000)
    kept = replace(_call("kept", 3.0, 3.1), due_ms=asked_ms - 60_000, asked_us=asked_ms * 1000)
    ledger.calls += [heard, kept]
    assert bool(list(times.misdated(_seen(ledger)))) == is_misdated


@pytest.mark.long
@pytest.mark.timeout(300)
def test_how_fast_the_machine_is_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 13: httpcore closed a receiver's connection that was idle for five seconds by the machine's own clock."""
    plan = _with_callbacks()
    first = Apart(lambda: run.run(plan).story.lines).result()
    seconds, real = count(0, 10), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + next(seconds))
    assert Apart(lambda: run.run(plan).story.lines).result() == first
    assert len([line for line in first if "called/c" in line]) >= 3


def _with_callbacks() -> Plan:
    """Three calls of a receiver, and nothing else."""
    plan = next(plan for seed in range(1, 99) if "web" in (plan := draw(seed)).traits)
    target: dict[str, Any] = {"service": "shop", "path": "/due"}
    steps = [
        Step(
            n,
            10.0 + 2 * n,
            "http-schedule",
            "web-0",
            {**ARGS, "topic": "called", "id": f"c{n}", "target": target, "repeats": False},
        )
        for n in range(3)
    ]
    topics = tuple(one for one in plan.topics if one.trait in ("", "web"))
    return replace(plan, topics=topics, steps=tuple(steps), traits=frozenset({"web"}), knobs={})


def _seen(ledger: Ledger) -> Seen:
    return sort(ledger, draw(1))


def _promotion(*, due: float, at: float, since: float, entry: str = "5-0") -> Promotion:
    due_ms, at_us = int((EPOCH_S + due) * 1000), int((EPOCH_S + at) * 1_000_000)
    return Promotion("plain", 0, "p1", entry, due_ms, 1, "", at, at_us, 1, since)


def _run(began: float, *, ended: float, outcome: str = "done", worker: str = "worker-1") -> Run:
    return Run("default", "plain", "p1", "5-0", 1, worker, began, 0, 0, "p1", ended, outcome)


def _hand(worker: str, at: float, *, before: str = "") -> Hand:
    was_with = f"{before}-8-cd" if before else ""
    return Hand("default", "plain", 0, "5-0", f"{worker}-9-ab", at, was_with, was_given=False)


def _call(outcome: str, sent: float, answered: float, *, kind: str = "schedule", who: str = "producer-4") -> Call:
    args = ARGS if kind == "schedule" else {"topic": "plain", "id": "p1", "partition_key": None}
    return Call(Step(0, sent, kind, who, args), "plain", "p1", sent, 0, answered=answered, outcome=outcome)
