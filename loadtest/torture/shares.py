"""A topic with limits per key in torture: five keys, and a watcher that counts the permits that are out.

    while it runs    no look finds more permits of a key in a shard than `key_concurrency`
    at the end       no second of a shard's stream has more entries of a key than `key_rate` and one; no permit is left

The second is not judged if the server's clock was stepped, because entries then bear times that were not.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from loadtest.torture.arena import Arena
from wheelq import JobSpec
from wheelq.errors import WheelqError
from wheelq.protocol.call import command
from wheelq.protocol.codec import UnreadableRecord, decode
from wheelq.protocol.keys import ShardKeys

SHARED = "torture-shared"
KEYS = 5
MOST, RATE = 2, 40.0
"""Its `key_concurrency` and `key_rate`."""
LOOK_S = 0.05


def of_a_key(topic: str, spec: JobSpec) -> JobSpec:
    """Returns the job with a partition key, if its topic has limits per key."""
    if topic != SHARED or spec.partition_key is not None:
        return spec
    return replace(spec, partition_key=f"k{zlib.crc32(str(spec.key or spec.payload).encode()) % KEYS}")


class Watcher(threading.Thread):
    """Looks at the permits of some shards again and again."""

    def __init__(self, arena: Arena, shards: Sequence[ShardKeys]) -> None:
        super().__init__(name="watcher of permits", daemon=True)
        self.looks = 0
        """How many looks found permits."""
        self.wrong: set[str] = set()
        self._arena = arena
        self._shards = shards
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            for shard in self._shards:
                with suppress(WheelqError):
                    self._look(shard)

    def finish(self) -> None:
        """Make `run` end."""
        self._is_over.set()
        self.join()

    def _look(self, shard: ShardKeys) -> None:
        asked = command("ZRANGE", shard.permits, 0, -1, read=list, key=shard.permits)
        counts = Counter(member.partition(b"\x1f")[0].decode() for member in self._arena.control.send(asked))
        self.looks += bool(counts)
        for key, count in counts.items():
            if count > MOST:
                self.wrong.add(f"{count} permits of {key} in {shard.topic}:{shard.shard}")


def too_fast(shard: ShardKeys, entries: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> Iterator[str]:
    """Yields the first second of each key that has too many entries."""
    moments: defaultdict[str, list[int]] = defaultdict(list)
    for entry, fields in entries:
        with suppress(UnreadableRecord):  # a defect that the judge finds
            moments[decode(fields[b"record"]).partition_key or ""].append(int(entry.partition(b"-")[0]))
    for key, at in moments.items():
        for n, first in enumerate(at):
            count = sum(1 for one in at[n : n + int(RATE) + 3] if one - first <= 1_000)
            if key and count > RATE + 1:
                yield f"{count} jobs of {key} were promoted in {shard.topic}:{shard.shard} in a second from {first}"
                break
