"""Who leads what: even, and moving no more than must be moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from wheelq.scheduler.assignment import Post, assign

SHARDS = [(f"topic-{n}", shard) for n in range(50) for shard in range(4)]


def nodes(count: int) -> list[str]:
    return [f"node-{n}" for n in range(count)]


def moved(before: dict[tuple[str, int], Post], after: dict[tuple[str, int], Post]) -> int:
    return sum(before[name].leader != post.leader for name, post in after.items())


def imbalance(posts: Iterable[Post], nodes: Iterable[str]) -> int:
    """The difference between the most and the fewest shards that a node leads."""
    led = Counter(post.leader for post in posts)
    counts = [led[node] for node in nodes]
    return max(counts, default=0) - min(counts, default=0)


def test_without_nodes_nobody_leads() -> None:
    assert assign(SHARDS, [], {}) == {}


def test_one_node_leads_all_and_has_no_standby() -> None:
    assert set(assign(SHARDS, ["a"], {}).values()) == {Post("a", None)}


def test_three_nodes_share_two_hundred_shards_evenly() -> None:
    """50 topics × 4 shards on 3 nodes: 66 or 67 each to lead, about as many to stand by for, never one's own."""
    posts = assign(SHARDS, nodes(3), {})
    assert sorted(Counter(post.leader for post in posts.values()).values()) == [66, 67, 67]
    assert all(64 <= stood <= 69 for stood in Counter(post.standby for post in posts.values()).values())
    assert all(post.leader != post.standby for post in posts.values())


def test_a_joining_node_takes_its_share_and_nothing_else_moves() -> None:
    before = assign(SHARDS, nodes(3), {})
    after = assign(SHARDS, nodes(4), before)
    assert moved(before, after) == 50
    assert {post.leader for name, post in after.items() if post.leader != before[name].leader} == {"node-3"}


def test_only_the_shards_of_a_leaving_node_move() -> None:
    before = assign(SHARDS, nodes(4), {})
    after = assign(SHARDS, ["node-0", "node-1", "node-3"], before)
    assert {before[name].leader for name, post in after.items() if post.leader != before[name].leader} == {"node-2"}
    assert moved(before, after) == 50


def test_a_standby_inherits_what_it_has_room_for() -> None:
    before = assign(SHARDS, nodes(4), {})
    after = assign(SHARDS, ["node-0", "node-1", "node-3"], before)
    orphans = [name for name, post in before.items() if post.leader == "node-2"]
    inherited = sum(after[name].leader == before[name].standby for name in orphans)
    assert inherited >= len(orphans) * 0.7


def test_the_order_of_arguments_does_not_matter() -> None:
    assert assign(SHARDS, nodes(5), {}) == assign(reversed(SHARDS), reversed(nodes(5)), {})


@given(
    history=st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=6),
    shards=st.lists(st.integers(0, 80), min_size=6, max_size=6),
)
def test_assignments_stay_even_and_move_the_least_in_every_history(history: list[set[int]], shards: list[int]) -> None:
    """At every step: shares differ by one at the most; what moves is what the dead held, or what newcomers need."""
    posts: dict[tuple[str, int], Post] = {}
    for alive_numbers, count in zip(history, shards, strict=False):
        names = [("t", shard) for shard in range(count)]
        alive = {f"n{number}" for number in alive_numbers}
        before = {name: post for name, post in posts.items() if name in set(names)}
        posts = assign(names, alive, posts)
        assert set(posts) == set(names)
        assert imbalance(posts.values(), alive) <= 1
        held = Counter(post.leader for post in before.values() if post.leader in alive)
        share, odd = divmod(count, len(alive))
        most_kept = sum(min(held[node], share) for node in alive)
        most_kept += min(odd, sum(held[node] > share for node in alive))
        kept = sum(posts[name].leader == post.leader for name, post in before.items())
        assert kept == most_kept
        if len(alive) > 1:
            assert all(post.standby in alive and post.standby != post.leader for post in posts.values())


def test_a_thousand_nodes_and_a_hundred_thousand_shards() -> None:
    """The largest fleet in the documentation: even, and one node more moves a thousandth of the shards."""
    names = [(f"topic-{n // 100}", n % 100) for n in range(100_000)]
    posts = assign(names, nodes(1_000), {})
    assert imbalance(posts.values(), nodes(1_000)) == 0
    after = assign(names, nodes(1_001), posts)
    assert imbalance(after.values(), nodes(1_001)) == 1
    assert moved(posts, after) <= 100
