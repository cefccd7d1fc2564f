"""What the oracle promises about bundles: who follows, when, and the counts; and what may be left of them at rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtest.simulation.ledger import Bundled, Forgotten, Ledger, Promotion, Run
from loadtest.simulation.oracle import Seen, bundles
from loadtest.simulation.oracle.excuses import Excuses
from loadtest.simulation.plan import OWN_TOPICS, Plan, Step
from loadtest.simulation.rest import left_of_bundles
from loadtest.simulation.world import World
from wheelq import Bundle, BundleState

ID = "album:b1"
FOLLOWER = ("album", "bundle-b1")
MADE_AT = 50
"""The place in the log at which the follower was made."""


class Scene:
    """A bundle of two members, which have run to their ends before the follower was made."""

    def __init__(self, when: str = "all_done") -> None:
        self.ledger = Ledger(World(1))
        step = Step(7, 1.0, "bundle", "producer-1", {"cancels": False})
        self.bundle = Bundled(step, when, ID, [("brood", "b1"), ("flock", "f2")], is_closed=True)
        self.ledger.bundles.append(self.bundle)
        self.found(BundleState.ENDED, done=2)
        for n, (topic, id) in enumerate(self.bundle.members):
            self.promote(topic, id, place=10 + n)
            for group in ("default", "audit")[: 1 + (topic == "flock")]:
                self.run(topic, id, group)
            self.ledger.acked[topic, 0, f"{10 + n}-0"] += [(20 + n, "default")]
        self.follow()

    def found(self, state: BundleState, **numbers: int) -> None:
        members = sum(numbers.values())
        self.bundle.found = Bundle(ID, state, "all_done", *FOLLOWER, members, **numbers)

    def promote(self, topic: str, id: str, *, place: int, **more: Any) -> None:
        given = {"attempt": 1, "group": "", **more}
        one = Promotion(topic, 0, id, f"{place}-0", 0, given["attempt"], given["group"], 1.0, 0, place, 1.0)
        self.ledger.promotions.append(one)

    def run(self, topic: str, id: str, group: str = "default", outcome: str = "done") -> None:
        entry = next(one.entry for one in reversed(self.ledger.promotions) if one.id == id)
        self.ledger.runs.append(Run(group, topic, id, entry, 1, "worker-0", 1.0, 0, 0, id, 2.0, outcome))

    def follow(self) -> None:
        self.ledger.followed[FOLLOWER] = MADE_AT
        self.promote(*FOLLOWER, place=MADE_AT + 1)

    def unfollow(self) -> None:
        self.ledger.followed.clear()
        self.ledger.promotions = [one for one in self.ledger.promotions if one.topic != "album"]

    def forget(self, kept_s: float, set_at: float, by: float) -> None:
        """Let the server forget the bundle so long after its end at 20 s, and set its clock."""
        self.ledger.clock += [(0.0, 0.0, 1.0), (set_at, by, 1.0)]
        self.ledger.forgotten.append(Forgotten("album", f"\x1fbundle\x1f{ID}", 20.0, 20.0 + kept_s, kept_s + by))

    def die(self, topic: str, id: str) -> None:
        """Let a member be buried in place of its run."""
        self.ledger.graves[topic, id].append((20, True))
        self.ledger.runs = [run for run in self.ledger.runs if run.id != id]
        self.run(topic, id, outcome="Bury")

    def problems(self) -> str:
        seen = Seen(self.ledger, Plan(1, OWN_TOPICS, False, ()), 100.0, Excuses([]))
        for one in self.ledger.promotions:
            seen.jobs[one.topic, one.id].promotions.append(one)
        for run in self.ledger.runs:
            seen.jobs[run.topic, run.id].runs.append(run)
        return "\n".join(bundles.bundled(seen))


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_bundle_of_which_no_call_was_answered_need_not_exist(scene: Scene, is_answered: bool) -> None:
    scene.unfollow()
    scene.bundle.found, scene.bundle.was_unknown, scene.bundle.is_closed = None, True, False
    if not is_answered:
        scene.bundle.perhaps, scene.bundle.members = scene.bundle.members, []
    assert bool(scene.problems()) == is_answered


def test_a_bundle_that_has_ended_is_followed_once(scene: Scene) -> None:
    assert scene.problems() == ""
    scene.follow()
    assert "was made 2 times" in scene.problems()
    scene.unfollow()
    assert "its follower was made 0 times" in scene.problems()


def test_a_member_that_ends_after_the_follower_was_made_is_found(scene: Scene) -> None:
    scene.ledger.acked["brood", 0, "10-0"].append((MADE_AT + 5, "default"))
    assert "brood/b1 ended after" in scene.problems()


def test_a_member_that_is_promoted_after_the_follower_was_made_is_found(scene: Scene) -> None:
    scene.promote("flock", "f2", place=MADE_AT + 5, attempt=2, group="audit")
    assert "flock/f2 ended after" in scene.problems()


@pytest.mark.parametrize(("when", "is_wrong"), [("all_done", True), ("all_ended", False)])
def test_a_dead_member_holds_up_all_done_only(when: str, is_wrong: bool) -> None:
    scene = Scene(when)
    scene.die("brood", "b1")
    scene.found(BundleState.ENDED, done=1, dead=1)
    assert ("brood/b1 was dead when the follower was made" in scene.problems()) == is_wrong
    scene.unfollow()
    scene.found(BundleState.CLOSED, done=1, dead=1)
    assert bool(scene.problems()) != is_wrong


def test_a_bundle_with_members_left_at_rest_is_found(scene: Scene) -> None:
    scene.unfollow()
    scene.found(BundleState.CLOSED, done=1, left=1)
    assert "1 left" in scene.problems()


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ({"done": 2}, ""),
        ({"done": 4}, "knows of 2 to 2"),
        ({"done": 1}, "knows of 2 to 2"),
        ({"done": 1, "cancelled": 1}, "2 to 2 are done"),
        ({"done": 1, "dead": 1}, "0 to 0 are dead"),
    ],
)
def test_the_counts_are_compared_with_what_has_happened(scene: Scene, numbers: dict[str, int], wrong: str) -> None:
    scene.found(BundleState.ENDED, **numbers)
    assert wrong in scene.problems()
    assert bool(scene.problems()) == bool(wrong)


def test_a_member_that_never_ran_counts_as_cancelled(scene: Scene) -> None:
    scene.ledger.runs = [run for run in scene.ledger.runs if run.id != "b1"]
    assert "1 to 1 are cancelled" in scene.problems()
    scene.found(BundleState.ENDED, done=1, cancelled=1)
    assert scene.problems() == ""


@pytest.mark.parametrize("is_replayed", [True, False])
def test_a_member_that_was_done_before_it_was_buried_counts_as_what_came_after(scene: Scene, is_replayed: bool) -> None:
    """Seed 2100300: its worker was cut off, another one buried it because it was late, and it was purged."""
    scene.ledger.graves["brood", "b1"] += [(12, True), (14, False)]
    if is_replayed:
        scene.promote("brood", "b1", place=15, attempt=2)
        scene.run("brood", "b1")
    assert bool(scene.problems()) != is_replayed
    scene.found(BundleState.ENDED, done=1, cancelled=1)
    assert bool(scene.problems()) == is_replayed


def test_a_bundle_that_was_closed_is_not_open(scene: Scene) -> None:
    scene.unfollow()
    scene.found(BundleState.OPEN, done=2)
    assert "it is open" in scene.problems()
    scene.bundle.is_closed = False
    assert scene.problems() == ""


@pytest.mark.parametrize(
    ("kept_s", "set_at", "by", "is_excused"),
    [
        (2.0, 21.0, 3_600.0, True),
        (2.0, 21.0, 17.0, False),  # too soon by the server's clock, too
        (2.0, 21.0, -3_600.0, False),
        (2.0, 19.0, 3_600.0, False),  # before it ended
        (2.0, 23.0, 3_600.0, False),  # after it was forgotten
        (25.0, 21.0, 3_600.0, False),  # producers had the whole time to look
    ],
)
@pytest.mark.parametrize("was_seen", [False, True], ids=["never seen", "seen before its end"])
def test_an_end_may_stay_unseen_only_if_the_clock_was_set_forward_meanwhile(
    scene: Scene, kept_s: float, set_at: float, by: float, is_excused: bool, was_seen: bool
) -> None:
    """Seed 20143: a bundle ended 0.3 s before the clock was set an hour forward, while its producer changed members."""
    scene.found(BundleState.CLOSED, done=1, left=1)
    scene.bundle.found = scene.bundle.found if was_seen else None
    scene.forget(kept_s, set_at, by)
    assert (scene.problems() == "") == is_excused


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_bundle_whose_end_nobody_saw_is_followed_unless_it_was_cancelled(scene: Scene, is_cancelled: bool) -> None:
    scene.bundle.step = replace(scene.bundle.step, args={"cancels": is_cancelled})
    scene.bundle.found = None
    scene.forget(2.0, 21.0, 3_600.0)
    assert ("its follower was made 1 times" in scene.problems()) == is_cancelled
    scene.unfollow()
    assert ("its follower was made 0 times" in scene.problems()) != is_cancelled


def test_a_bundle_that_was_seen_to_end_is_checked_also_if_the_clock_was_set_forward(scene: Scene) -> None:
    scene.found(BundleState.ENDED, done=1)
    scene.forget(2.0, 21.0, 3_600.0)
    assert "knows of 2 to 2" in scene.problems()


@pytest.mark.parametrize(
    ("field", "value", "is_left"),
    [
        (b"\x1flife", b"l0\x1falbum:b1\x1fb1", True),
        (b"\x1flife", b"d1\x1falbum:b1\x1fb1", False),
        (b"=album:b1", b"4:open", True),
        (b"=album:b2", b"6:closed", False),
        (b"album:b1", b"2 2 0 0 9 closed", True),
        (b"album:b1", b"2 1 1 0 9 closed", False),
        (b"album:b2", b"2 2 0 0 9 open", False),
    ],
)
def test_only_what_waits_may_be_left_at_rest(scene: Scene, field: bytes, value: bytes, is_left: bool) -> None:
    scene.ledger.bundles.append(Bundled(scene.bundle.step, "all_done", "album:b2"))
    assert bool(list(left_of_bundles(b"wheelq:{brood:0}:bundles", {field: value}, scene.ledger))) == is_left
