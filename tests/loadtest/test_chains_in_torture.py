"""What torture promises about chains: a follower runs once if the job before it does, and never otherwise."""

from __future__ import annotations

from loadtest.judge import Disruption, FaultKind, JobRun, Promise, Promotion, judge
from loadtest.torture.chains import (
    LINKS,
    ONE_IN,
    OTHERS,
    came_again,
    dies,
    follower,
    notice,
    notices,
    with_followers,
    wrong,
)
from wheelq.protocol import codec


def chain(first: str) -> list[str]:
    """Returns the ids of a chain."""
    found = [first]
    while (after := follower(found[-1])) is not None:
        found.append(after)
    return found


FOLLOWED, MORTAL = (
    next(id for id in map(str, range(1_000)) if follower(id) and dies(chain(id)[-1]) == is_mortal)
    for is_mortal in (False, True)
)
SURE = Promise(1_000, must_run=True)


def test_some_jobs_are_followed_and_all_their_followers_but_the_last() -> None:
    followed = [id for id in map(str, range(6_000)) if follower(id)]
    assert 0.8 < len(followed) * ONE_IN / 6_000 < 1.2
    assert len(set(chain(FOLLOWED))) == LINKS + 1
    assert not any(follower(f"{kind}{n}") for kind in OTHERS for n in range(100))


def test_followers_are_promised_as_the_job_before_them() -> None:
    after = follower(FOLLOWED) or ""
    last = follower(after) or ""
    cancelled = Promise(1_000, must_run=False, may_run=False)
    for promise in (SURE, cancelled):
        assert with_followers({FOLLOWED: promise}, {}) == {FOLLOWED: promise, after: promise, last: promise}


def test_a_follower_that_is_missing_or_comes_twice_is_found() -> None:
    promised = with_followers({FOLLOWED: SURE}, {})
    promotions = [Promotion(id, 1_000, 1_000 + n, entry_id=f"{1_000 + n}-0") for n, id in enumerate(promised)]
    runs = [JobRun(one.id, one.entry_id, one.promoted_ms) for one in promotions]
    assert judge(promised, promotions, runs, ()).is_clean
    assert judge(promised, promotions[:-1], runs[:-1], ()).wrong == {FaultKind.LOST: [promotions[-1].id]}
    again = Promotion(promotions[-1].id, 1_000, 1_010, entry_id="1010-0")
    twice = judge(promised, [*promotions, again], [*runs, JobRun(again.id, "1010-0", 1_010)], ())
    assert twice.wrong == {FaultKind.DOUBLED: [again.id]}


def test_a_follower_may_come_again_where_a_failover_may_have_undone_what_it_follows() -> None:
    last = chain(MORTAL)[-1]
    ids = [*chain(MORTAL), notice(last)]
    found = [Promotion(id, 1_000, ms, entry_id=f"{ms}-{n}") for n, id in enumerate(ids) for ms in (20_000, 25_000)]
    failover = Disruption("fail-over", "", 22_000, 23_000, may_undo=True)
    assert came_again(found, [], [failover]) == dict.fromkeys(ids[1:], 1)  # the first one follows nothing
    for other in (
        Disruption("freeze-worker", "", 22_000, 23_000),
        Disruption("fail-over", "", 25_001, 26_000, may_undo=True),
        Disruption("fail-over", "", 8_000, 9_999, may_undo=True),
    ):
        assert came_again(found, [], [other]) == {}
    followed = [one for one in found if one.id in ids[1:]]
    again = came_again(followed, [], [failover])
    promised = {id: one for id, one in with_followers({MORTAL: SURE}, again).items() if id in ids[1:]}
    runs = [JobRun(one.id, one.entry_id, one.promoted_ms) for one in followed]
    assert judge(promised, followed, runs, ()).is_clean
    assert judge(promised, followed[:-2], runs[:-2], ()).wrong == {FaultKind.LOST: [notice(last)]}
    assert not list(wrong(with_followers({MORTAL: SURE}, again), [last, last], again))


def test_a_follower_may_come_as_often_as_the_job_before_it_ran() -> None:
    last = chain(MORTAL)[-1]
    found = [Promotion(notice(last), 1_000, ms, entry_id=f"{ms}-0") for ms in (20_000, 80_000, 81_000)]
    runs = [JobRun(last, entry, 10_000) for entry in ("10000-0", "10000-0", "10500-0")]
    assert came_again(found, runs, []) == {notice(last): 1}
    assert came_again(found[:2], runs[:2], []) == {}
    follows = [Promotion(last, 1_000, ms, entry_id=f"{ms}-0") for ms in (20_000, 80_000)]
    assert came_again(follows, [JobRun(chain(MORTAL)[-2], f"{n}-0", 10_000) for n in (1, 2)], []) == {last: 1}


def test_each_follower_that_must_die_does_once_and_is_told_of() -> None:
    last = chain(MORTAL)[-1]
    promised = with_followers({MORTAL: SURE}, {})
    assert promised[notice(last)] == SURE
    assert not list(wrong(promised, [last], {}))
    assert list(wrong(promised, [last, last], {}))
    assert list(wrong(promised, [], {}))
    assert list(wrong(promised, [last, chain(FOLLOWED)[-1]], {}))
    assert not list(wrong(with_followers({FOLLOWED: SURE}, {}), [], {}))


def test_a_job_that_tells_of_a_death_is_known_by_the_name_of_the_dead_one() -> None:
    record = codec.encode({"id": "after-after-1", "topic": "torture-chained"}, None, 1_000)
    fields = {b"id": b"told-1", b"due": b"1000", b"record": record}
    assert list(notices([(b"1001-0", fields)])) == [Promotion(notice("after-after-1"), 1_000, 1_001, 1, "1001-0")]
