"""Checks the fleet at rest: after the last job no data is left, and no process is busy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from loadtest.simulation.fleet import GROUPS, Fleet
from loadtest.simulation.ledger import Ledger, part_of
from loadtest.simulation.plan import WEB
from loadtest.simulation.store.sorted_set import SortedSet
from loadtest.simulation.store.stream import Stream
from wheelq.model.topic import Topic
from wheelq.protocol import registry_codec

DEFAULT_WORKERS = [f"worker-{n}" for n, group in enumerate(GROUPS) if group == "default"]
LOOK_S = 12.0
"""How long the fleet is watched at rest."""
MOST_COMMANDS = 90.0
"""The most commands a second of a fleet at rest."""
MOST_TURNS, MOST_WEB_TURNS = 90.0, 170.0
"""The most turns a second of a process at rest: a worker that holds every ordered shard, and asks a Sentinel, has 65.
The HTTP service has more, because its lessees keep asking."""
HOLD = set(b"owner until asker asks_until asker_holds".split())
_KEY = re.compile(rb"^wheelq:(?:\{([^:}]+):(\w+)\}:)?(.+)$")
STAYS = {*b"epoch counts horizon shards rate paces lease dead buried fence groups topics".split()}
STAYS |= {*b"assignment nodes workers beats histograms measured lease-clock callbacks access".split()}
"""Keys that may exist at rest: they do not grow with the number of jobs."""


def is_quiet(fleet: Fleet) -> bool:
    """Whether no job waits, and no delivery is pending."""
    for key, value in fleet.primary.store.values.items():
        if type(value) is SortedSet and key.endswith(b":delayed") and len(value):
            return False
        if type(value) is Stream and key.endswith(b":outgoing") and len(value):
            return False
        if type(value) is Stream and any(one.pending or one.last < value.last for one in value.groups.values()):
            return False
    return all(part.actor is None or not _outbox_waits(part.actor.client) for part in fleet.parts.values())


def _outbox_waits(client: object) -> bool:
    outbox = getattr(client, "_outbox", None)
    return outbox is not None and not outbox.is_empty


def leftovers(fleet: Fleet) -> Iterator[str]:
    """Yields data that nothing will remove."""
    server = fleet.primary
    server.store.set_time(server.clock_us())
    for key in server.store.all_keys():
        match, value = _KEY.match(key), server.store.values[key]
        if match is None:
            yield f"{key!r} is none of wheelq's keys"
            continue
        topic, name = (match[1] or b"").decode(), match[3]
        if name == b"delayed" and len(value):
            yield f"{key.decode()}: {len(value)} jobs wait: {[member for _, member in value.order[:3]]}"
        elif name == b"jobs":
            yield f"{key.decode()}: {len(value)} jobs are remembered: {sorted(value)[:3]}"
        elif name == b"outgoing":
            yield f"{key.decode()}: {len(value)} followers are left" if len(value) else ""
        elif name == b"ready":
            yield from _left_in_stream(key, value, topic)
        elif name == b"bundles":
            yield from left_of_bundles(key, value, fleet.ledger)
        elif name.startswith(b"order:"):
            rest = {
                field for field in value if field not in (b"owner", b"until", b"asker", b"asks_until", b"asker_holds")
            }
            if rest:
                yield f"{key.decode()}: {len(rest)} next runs are remembered: {sorted(rest)[:3]}"
        elif name in (b"done", b"ended"):
            yield f"{key.decode()}: {len(value)} finished jobs are kept" if len(value) else ""
        elif name not in STAYS and key not in server.store.expires_ms:
            yield f"{key.decode()} is left"


def left_of_bundles(key: bytes, counted: dict[bytes, bytes], ledger: Ledger) -> Iterator[str]:
    """Yields what is left of bundles, except of those that wait: for a dead member, or for somebody to close them."""
    waits = {one.id for one in ledger.bundles if not one.is_closed or (one.found and one.found.state == "closed")}
    for field, value in counted.items() if not ledger.undone else ():
        if field.startswith(b"\x1f"):
            is_left = not value.startswith(b"d")
        elif field.startswith(b"="):
            is_left = field[1:].decode() not in waits and not ledger.nameless
        else:
            is_left = field.decode() not in waits and int(value.split()[2]) == 0
        if is_left:
            yield f"{key.decode()}: {field!r} is left: {value!r}"


def _left_in_stream(key: bytes, stream: Stream, topic: str) -> Iterator[str]:
    for name, group in stream.groups.items():
        if group.pending:
            shown = [(b"%d-%d" % id, group.pending[id].consumer) for id in group.order[:3]]
            yield f"{key.decode()}: {len(group.pending)} deliveries of {name.decode()} are pending: {shown}"
        if group.last < stream.last:
            yield f"{key.decode()}: {name.decode()} has not read all entries"
    if len(stream) > (5 if topic == "limit" else 0):  # later acknowledgements remove the entries that it retains
        yield f"{key.decode()}: {len(stream)} entries are left"


def shards(fleet: Fleet) -> dict[str, int]:
    """Returns how many shards each topic of the plan has, by the settings on the server."""
    return {name: topic.shards for name, topic in _topics(fleet).items()}


def _topics(fleet: Fleet) -> dict[str, Topic]:
    stored = fleet.primary.store.values.get(b"wheelq:topics", {})
    names = [topic.name for topic in fleet.plan.topics if topic.name.encode() in stored]
    return {name: registry_codec.decode_topic(stored[name.encode()], name) for name in names}


def holds(fleet: Fleet) -> Iterator[str]:
    """Yields the ordered shards that no living worker holds, and workers that hold too many."""
    server, living = fleet.primary, {f"{part.name}-{part.process.pid}-" for part in fleet.workers}
    now_ms, stored = server.clock_us() // 1000, _topics(fleet)
    for topic in fleet.plan.topics:
        if topic.handling not in ("ordered", "keyed") or topic.name not in stored:
            continue
        held = Counter(dict.fromkeys(DEFAULT_WORKERS, 0))
        for shard in range(stored[topic.name].all_shards):  # former ones too: dead jobs may keep them
            hold = server.store.values.get(f"wheelq:{{{topic.name}:{shard}}}:order:default".encode(), {})
            owner, until = hold.get(b"owner", b"").decode(), int(hold.get(b"until", b"0"))
            if until < now_ms or not any(owner.startswith(one) for one in living):
                yield f"{topic.name}:{shard} is held by {owner or 'no worker'} until {until}, and it is {now_ms}"
            held[part_of(owner)] += 1
        if max(held.values()) - min(held.values()) > 1:
            yield f"{topic.name}: {', '.join(f'{name} holds {count}' for name, count in sorted(held.items()))}"


def forgotten_dead(fleet: Fleet) -> Iterator[str]:
    """Yields dead jobs that nobody finds any more: in a shard beyond all that their topic still counts."""
    topics = _topics(fleet) if not fleet.ledger.undone else {}
    for key, value in fleet.primary.store.values.items():
        match = _KEY.match(key)
        if match is None or match[3] != b"dead" or not len(value):
            continue
        found = topics.get((match[1] or b"").decode())
        if found is not None and int(match[2]) >= found.all_shards:
            yield f"{key.decode()}: {len(value)} dead jobs, and the topic counts {found.all_shards} shards"


class Calm:
    """Measures how busy the fleet is over some time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._since = fleet.world.now
        self._commands = fleet.primary.commands
        self._turns = {process: process.turns for process in fleet.processes}
        self._assigned = fleet.ledger.rewritten["assignment"]

    def broken(self) -> Iterator[str]:
        """Yields what was too busy."""
        seconds = self._fleet.world.now - self._since
        commands = (self._fleet.primary.commands - self._commands) / seconds
        if commands > MOST_COMMANDS:
            yield f"{commands:.0f} commands a second at rest"
        for process, before in self._turns.items():
            turns = (process.turns - before) / seconds
            if turns > (MOST_WEB_TURNS if process.name == WEB else MOST_TURNS):
                yield f"{process.name} spins: {turns:.0f} turns a second at rest"
        assigned = self._fleet.ledger.rewritten["assignment"] - self._assigned
        if assigned > 2:
            yield f"shards were assigned {assigned} times at rest"
