"""`other_prefixes`: finds the wheelqs that use the same server with another prefix."""

from __future__ import annotations

from contextlib import suppress

from wheelq.errors import Refused
from wheelq.producer.operation import Operation, ask
from wheelq.protocol.calls.server import is_registry, listening, with_topics
from wheelq.protocol.keys import Keys

LOOKS = 100
"""The most calls that look for topics; with more keys than they cover, some prefixes may be missed."""
ENOUGH = 10
"""When this many other prefixes are found, the search ends."""


def other_prefixes(keys: Keys, *, thoroughly: bool) -> Operation[tuple[str, ...]]:
    """Returns the other prefixes that schedulers and workers use; `thoroughly`: also those that only have topics.

    Programs whose user may not ask this find none.
    """
    found: set[str] = set()
    with suppress(Refused):
        found |= set((yield from ask(listening(keys))))
    if thoroughly:
        with suppress(Refused):
            found |= yield from _with_topics(keys)
    return tuple(sorted(found))


def _with_topics(keys: Keys) -> Operation[set[str]]:
    found: set[str] = set()
    cursor = 0
    for _ in range(LOOKS):
        cursor, named = yield from ask(with_topics(keys, cursor))
        for prefix in sorted(named):
            if (yield from ask(is_registry(Keys(prefix)))):
                found.add(prefix)
            if len(found) == ENOUGH:
                return found
        if not cursor:
            break
    return found
