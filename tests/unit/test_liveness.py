"""`Watch` and `Peers`: who lives is told by what changes, by the watcher's own clock."""

from __future__ import annotations

import pytest

from wheelq.base.liveness import Watch
from wheelq.settings import WorkerSettings
from wheelq.worker.delivery.peers import Peers, Standing

RENEW, ABANDONED = 1.3, 3.5


def test_silence_is_the_time_without_a_change() -> None:
    watch = Watch(usual_gap=1.0, longest_gap=2.0)
    for now, value in [(10.0, 1), (11.0, 1), (12.5, 1), (13.0, 2), (14.0, 2)]:
        watch.looked(now, {"a": value})
    assert watch.silent("a") == 1.0
    assert watch.changed_at("a") == 13.0
    assert watch.silent("b") == 0.0
    watch.looked(15.0, {})
    assert "a" not in watch


def test_time_in_which_the_watcher_could_not_look_hardly_counts() -> None:
    watch = Watch(usual_gap=1.0, longest_gap=2.0)
    watch.looked(10.0, {"a": 1})
    watch.looked(70.0, {"a": 1})
    assert watch.silent("a") == 1.0


class Heard:
    """What one worker hears; times and numbers as a worker counts them."""

    def __init__(self) -> None:
        self.peers = Peers("me", "g", WorkerSettings())
        self.now = 100.0

    def beats(self, after: float = RENEW, **beats: str) -> bool:
        self.now += after
        return self.peers.heard(self.now, {"me": f"{self.now} g", **beats})


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_before_the_first_look_everybody_counts_as_living() -> None:
    assert Heard().peers.standing("a") is Standing.LIVING


def test_a_worker_is_gone_when_its_heartbeat_has_not_changed_for_long_enough(heard: Heard) -> None:
    assert heard.beats(a="1 g"), "the first look"
    for _ in range(2):
        assert not heard.beats(a="1 g")
        assert heard.peers.standing("a") is Standing.LIVING
    assert abs(heard.peers.next_look(is_at_rest=True) - (ABANDONED - 2 * RENEW)) < 0.001, "earlier than usual"
    assert heard.beats(heard.peers.next_look(is_at_rest=True), a="1 g")
    assert heard.peers.standing("a") is Standing.GONE
    for _ in range(4):
        assert heard.beats(a="1 g"), "its last read may have waited, and received something since"
    assert not heard.beats(a="1 g"), "that is no news any more"
    assert heard.peers.next_look(is_at_rest=True) == RENEW
    heard.beats(a="2 g")
    assert heard.peers.standing("a") is Standing.LIVING, "it was only frozen"


def test_a_worker_alone_and_at_rest_looks_half_as_often() -> None:
    heard = Heard()
    heard.beats(other="1 another group")
    assert heard.peers.next_look(is_at_rest=True) == 2 * RENEW
    assert heard.peers.next_look(is_at_rest=False) == RENEW
    heard.beats(a="left g")
    assert heard.peers.next_look(is_at_rest=True) == RENEW, "it may return"


def test_a_worker_alone_beats_early_enough_for_one_that_starts_meanwhile() -> None:
    peers = Peers("me", "g", WorkerSettings(renew_ms=1_000, abandoned_ms=2_000))
    peers.heard(100.0, {"me": "1 g"})
    assert peers.next_look(is_at_rest=True) == 1.5


def test_a_living_worker_may_beat_late_by_two_seconds(heard: Heard) -> None:
    heard.beats(a="1 g")
    for number in range(20):
        heard.beats(RENEW, a=f"{number} g")
        heard.beats(2.0, a=f"{number} g")
        assert heard.peers.standing("a") is Standing.LIVING


def test_after_an_outage_everybody_has_the_time_to_beat_again(heard: Heard) -> None:
    heard.beats(a="1 g")
    for outage_s in (60.0, 2.3):
        heard.beats(outage_s, a="1 g")
        assert heard.peers.standing("a") is Standing.LIVING


def test_a_worker_that_says_that_it_left_is_gone_at_once(heard: Heard) -> None:
    heard.beats(a="1 g")
    assert heard.beats(a="left g")
    assert heard.peers.standing("a") is Standing.GONE


def test_a_consumer_without_a_heartbeat_is_unknown(heard: Heard) -> None:
    heard.beats(a="1 another group")
    assert heard.peers.standing("node-client") is Standing.UNKNOWN
    assert heard.peers.standing("me") is Standing.LIVING
