"""A topic with limits per key in torture: five keys, limits that change, and a watcher that counts the permits.

    while it runs    no permit is given beyond `key_concurrency`: each look counts the older ones that are still out
    at the end       no second of a shard's stream has more entries of a key than `key_rate` and one; no permit is left

The second is not judged if the server's clock was stepped, because entries then bear times that were not.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle

from loadtest.torture.arena import Arena
from wheelq import Client, JobSpec
from wheelq.errors import WheelqError
from wheelq.protocol.call import command
from wheelq.protocol.codec import UnreadableRecord, decode
from wheelq.protocol.keys import ShardKeys
from wheelq.settings import TopicSettings

SHARED = "torture-shared"
KEYS = 5
LIMITS = ((2, 40.0), (4, 20.0), (0, 30.0), (3, 0.0))
"""Its `key_concurrency` and `key_rate`, one after the other; 0: no limit."""
FASTEST = 3 + int(max(rate for _, rate in LIMITS))
"""More jobs of a key than any of these rates allows in a second."""
CHANGE_S = 5.0
LOOK_S = 0.05
SLACK_MS = 2_000.0
"""The most by which the clocks of a server and this process differ, and the longest that a change is under way."""


def of_a_key(topic: str, spec: JobSpec) -> JobSpec:
    """Returns the job with a partition key, if its topic has limits per key."""
    if topic != SHARED or spec.partition_key is not None:
        return spec
    return replace(spec, partition_key=f"k{zlib.crc32(str(spec.key or spec.payload).encode()) % KEYS}")


@dataclass(slots=True)
class InForce:
    """Limits, and in which milliseconds they may have been in force."""

    most: int
    rate: float
    since_ms: float = 0.0
    until_ms: float = float("inf")


class Limits(threading.Thread):
    """Changes the limits of the topic again and again, and knows which were in force when."""

    def __init__(self, client: Client) -> None:
        super().__init__(name="limits per key", daemon=True)
        self.history = [InForce(*LIMITS[0])]
        self._client = client
        self._is_over = threading.Event()

    @staticmethod
    def at_first(settings: TopicSettings) -> TopicSettings:
        """Returns these settings with the first limits."""
        most, rate = LIMITS[0]
        return replace(settings, key_concurrency=most, key_rate=rate)

    def run(self) -> None:
        for most, rate in cycle((*LIMITS[1:], LIMITS[0])):
            if self._is_over.wait(CHANGE_S):
                return
            self.history.append(InForce(most, rate, _now_ms()))
            while not self._change(most, rate):
                if self._is_over.wait(0.5):
                    return
            self.history[-2].until_ms = _now_ms()

    def finish(self) -> None:
        """Make `run` end, if it has begun."""
        self._is_over.set()
        if self.is_alive():
            self.join()

    def _change(self, most: int, rate: float) -> bool:
        with suppress(WheelqError):
            self._client.configure(SHARED, key_concurrency=most, key_rate=rate)
            return True
        return False

    def most(self, since_ms: float, until_ms: float) -> float:
        """Returns the highest `key_concurrency` that may have been in force in a span of time."""
        return max(one.most or float("inf") for one in self._between(since_ms, until_ms))

    def rate(self, since_ms: float, until_ms: float) -> float:
        """The same for `key_rate`."""
        return max(one.rate or float("inf") for one in self._between(since_ms, until_ms))

    def _between(self, since_ms: float, until_ms: float) -> Iterator[InForce]:
        for one in self.history:
            if one.since_ms <= until_ms + SLACK_MS and one.until_ms >= since_ms - SLACK_MS:
                yield one


class Watcher(threading.Thread):
    """Looks at the permits of some shards again and again."""

    def __init__(self, arena: Arena, limits: Limits, shards: Sequence[ShardKeys]) -> None:
        super().__init__(name="watcher of permits", daemon=True)
        self.looks = 0
        """How many looks found permits."""
        self.wrong: set[str] = set()
        self._arena = arena
        self._limits = limits
        self._last: dict[ShardKeys, tuple[float, set[bytes]]] = {shard: (_now_ms(), set()) for shard in shards}
        """When each shard was looked at last, and its permits then."""
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            for shard in self._last:
                with suppress(WheelqError):
                    self._look(shard)

    def finish(self) -> None:
        """Make `run` end."""
        self._is_over.set()
        self.join()

    def _look(self, shard: ShardKeys) -> None:
        since_ms, known = self._last[shard]
        now_ms = _now_ms()
        asked = command("ZRANGE", shard.permits, 0, -1, read=list, key=shard.permits)
        members: list[bytes] = self._arena.control.send(asked)
        self.looks += bool(members)
        self.wrong.update(too_many(shard, members, known, self._limits.most(since_ms, _now_ms())))
        self._last[shard] = now_ms, set(members)


def _now_ms() -> float:
    return time.time() * 1000


def too_many(shard: ShardKeys, members: Iterable[bytes], known: Collection[bytes], most: float) -> Iterator[str]:
    """Yields a sentence for each permit that is not known yet and was given although `most` older ones were out."""
    of_keys: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for member in members:
        key, _, entry = member.partition(b"\x1f")
        ms, _, number = entry.partition(b"-")
        of_keys[key].append((int(ms), int(number)))
    for key, entries in of_keys.items():
        for count, of_entry in enumerate(sorted(entries), start=1):
            if count > most and b"%s\x1f%d-%d" % (key, *of_entry) not in known:
                name = "-".join(map(str, of_entry))
                yield f"{name} got the {count}. permit of {key.decode()} in {shard.topic}:{shard.shard}"


def too_fast(shard: ShardKeys, entries: Iterable[tuple[bytes, Mapping[bytes, bytes]]], limits: Limits) -> Iterator[str]:
    """Yields the first second of each key that has too many entries."""
    moments: defaultdict[str, list[int]] = defaultdict(list)
    for entry, fields in entries:
        with suppress(UnreadableRecord):  # a defect that the judge finds
            moments[decode(fields[b"record"]).partition_key or ""].append(int(entry.partition(b"-")[0]))
    for key, at in moments.items():
        for n, first in enumerate(at):
            count = sum(1 for one in at[n : n + FASTEST] if one - first <= 1_000)
            if key and count > limits.rate(first, first + 1_000) + 1:
                yield f"{count} jobs of {key} were promoted in {shard.topic}:{shard.shard} in a second from {first}"
                break
