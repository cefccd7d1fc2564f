"""How long a leader trusts its lease: never longer than the server would confirm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.scheduler.lease import OwnLease, holder_connection
from wheelq.settings import SchedulerSettings

SETTINGS = SchedulerSettings(lease_ms=9_000, lease_margin_ms=500)


@pytest.fixture
def lease() -> OwnLease:
    return OwnLease(SETTINGS)


def test_at_first_it_is_not_held(lease: OwnLease) -> None:
    assert not lease.is_held(0.0)
    assert not lease.is_held(-1e9)


def test_a_lease_is_trusted_from_its_request_until_the_margin_before_its_end(lease: OwnLease) -> None:
    lease.granted("token", asked_at=100.0)
    assert lease.token == "token"
    assert lease.is_held(108.499)
    assert not lease.is_held(108.5)
    assert lease.trusted_until == 108.5


def test_it_is_renewed_after_a_third(lease: OwnLease) -> None:
    lease.granted("token", asked_at=100.0)
    assert lease.renew_at == 103.0


def test_a_leaders_call_prolongs_it(lease: OwnLease) -> None:
    lease.granted("token", asked_at=100.0)
    lease.prolonged(asked_at=105.0)
    assert lease.trusted_until == 113.5
    assert lease.token == "token"


def test_an_older_answer_does_not_shorten_it(lease: OwnLease) -> None:
    lease.granted("token", asked_at=100.0)
    lease.prolonged(asked_at=105.0)
    lease.prolonged(asked_at=103.0)
    assert lease.trusted_until == 113.5


def test_it_can_be_lost_and_granted_again(lease: OwnLease) -> None:
    lease.granted("old", asked_at=100.0)
    lease.lost()
    assert not lease.is_held(100.0)
    lease.granted("new", asked_at=101.0)
    assert (lease.token, lease.is_held(105.0)) == ("new", True)


@given(st.lists(st.tuples(st.floats(0, 12), st.floats(0, 3), st.floats(0, 3)), max_size=20), st.floats(0, 20))
def test_the_server_still_holds_every_trusted_lease(calls: list[tuple[float, float, float]], later: float) -> None:
    """However long requests and replies take: the server prolongs when the request arrives, after it left."""
    lease, now, server_end = OwnLease(SETTINGS), 0.0, float("-inf")
    for pause, there, back in calls:
        now += pause
        asked_at = now
        arrives = now + there
        if arrives < server_end or not lease.is_held(now):  # prolonged, or acquired from nobody
            server_end = arrives + 9.0
            lease.granted("token", asked_at)
        else:
            lease.lost()
        now = arrives + back
        if lease.is_held(now):
            assert now < server_end
    if lease.is_held(now + later):
        assert now + later < server_end


@pytest.mark.parametrize(
    ("token", "connection"),
    [
        ("host-1-abc:1763000000000:runid:42", ("runid", 42)),
        ("", None),
        ("junk", None),
        ("a:b:c", None),
        ("a:b:c:d", None),
        ("a:b:c:-1", None),
        ("a:b:c:1:2", None),
    ],
)
def test_a_token_tells_its_holders_connection(token: str, connection: tuple[str, int] | None) -> None:
    assert holder_connection(token) == connection
