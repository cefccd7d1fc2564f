"""Promises about limits per key: never more of a key than they allow, and nobody is held back without need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from loadtest.simulation.ledger import Promotion
from loadtest.simulation.oracle.limits import in_force
from loadtest.simulation.oracle.seen import SOON_S, Seen, promise

ENDS_S = 30.0
"""A job that was promoted under a former limit has ended after this time."""
LOOKS_S = 0.6
"""A leader looks for freed keys so often, and hears of most at once."""
Key = tuple[str, int, str]


def _of_keys(seen: Seen) -> dict[Key, list[Promotion]]:
    found: defaultdict[Key, list[Promotion]] = defaultdict(list)
    for one in seen.ledger.promotions:
        if one.key:
            found[one.topic, one.shard, one.key].append(one)
    return found


def _limits(seen: Seen, topic: str, name: str, begins: float, ends: float) -> list[float]:
    """Returns the values of a setting that may have been in force in a span of time; empty if that is not known."""
    settings = next(one.settings for one in seen.plan.topics if one.name == topic)
    spans = list(in_force(seen, topic, settings, name, perhaps=True))
    return [value for value, (since, until) in spans if since < ends and until > begins]


@promise("greedy")
def greedy(seen: Seen) -> Iterator[str]:
    """No more jobs of a key are open in a shard than `key_concurrency`."""
    for (topic, shard, key), promoted in _of_keys(seen).items():
        for one in promoted:
            allowed = _limits(seen, topic, "key_concurrency", one.at - ENDS_S, one.at)
            if allowed and min(allowed) > 0 and one.open_of_key > max(allowed):
                what = f"as the {one.open_of_key}. open job of {key} in shard {shard}"
                yield f"{topic}/{one.id} was promoted at {one.at:.2f} {what}"


@promise("hasty")
def hasty(seen: Seen) -> Iterator[str]:
    """No more jobs of a key are promoted in a second than `key_rate` and one."""
    for (topic, shard, key), promoted in _of_keys(seen).items():
        for n, first in enumerate(promoted):
            within = [one for one in promoted[n:] if 0 <= one.server_us - first.server_us <= 1_000_000]
            rates = _limits(seen, topic, "key_rate", first.at - 1.0, within[-1].at)
            stepped = any(first.at <= at <= within[-1].at for at, _, _ in seen.ledger.clock[1:])
            if rates and min(rates) > 0 and not stepped and len(within) > max(rates) + 1:
                yield f"{topic}: {len(within)} jobs of {key}:{shard} were promoted in a second from {first.at:.2f}"


@promise("permits")
def permits(seen: Seen) -> Iterator[str]:
    """A permit is given back in the step in which the last group that has the job ends it, and not before."""
    for (topic, shard, entry), one in seen.ledger.permits.items() if not seen.ledger.undone else ():
        place = f"the permit of {topic}:{shard} {entry}"
        if one.ended is not None and one.given_back != one.ended:
            yield f"{place} was given back at {one.given_back}, and its job ended at {one.ended:.3f}"


@promise("starved")
def starved(seen: Seen) -> Iterator[str]:
    """A due job is promoted soon after there is room for its key."""
    for place, promoted in _of_keys(seen).items():
        ends = seen.ledger.ends_of_keys[place]
        for n, one in enumerate(promoted):
            allowed = _limits(seen, place[0], "key_concurrency", one.at - ENDS_S, one.at)
            rates = _limits(seen, place[0], "key_rate", one.at - ENDS_S, one.at)
            if not allowed or not rates or len({*allowed}) > 1 or len({*rates}) > 1 or not allowed[0]:
                continue
            since = max(seen.reached(one.due_ms, one.waits_since), one.waits_since)
            if n > 0:
                before = promoted[n - 1]
                since = max(since, before.at + (1 / rates[0] if rates[0] else 0.0))
                if before.open_of_key >= allowed[0]:
                    freed = [at for at, left in ends if at >= before.at and left < allowed[0]]
                    since = max(since, min(freed, default=one.at))
            for begins, _, _ in seen.ledger.clock:  # perhaps set back while it was held back: then it is due once more
                if one.waits_since < begins <= one.at and (again := seen.reached(one.due_ms, begins)) > begins:
                    since = max(since, again)
            soon = since + SOON_S + LOOKS_S
            if one.at > soon and not seen.excuses.explain("starved", soon, one.at, (*seen.nodes, one.topic)):
                waited = f"{one.at - since:.2f} s after there was room for {one.key}"
                yield f"{one.topic}/{one.id} was promoted at {one.at:.2f}, {waited}"
