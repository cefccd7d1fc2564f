"""`Ledger`: records the answers to producers, the server's writes, and the runs of handlers, without judging them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.simulation.plan import DEBOUNCED, Step
from loadtest.simulation.server import Server
from loadtest.simulation.store.database import Database
from loadtest.simulation.store.stream import Id, Stream, parse_id
from loadtest.simulation.world import World
from wheelq import Bundle, BundleState
from wheelq.protocol.codec import UnreadableRecord, decode

_KEY = re.compile(rb"^wheelq:\{([^:}]+):(\d+)\}:(\w+)")
_CONSUMER = re.compile(r"^(.+)-\d+-[0-9a-f]+$")
LEFT = b"left "
"""How the last heartbeat of a worker begins that has stopped, and left deliveries."""


@dataclass(slots=True)
class Call:
    """One operation on one job, and the answer to its producer."""

    step: Step
    topic: str
    id: str
    sent: float
    asked_us: int
    """The server's clock at the call."""
    answered: float = float("inf")
    outcome: str = "unanswered"
    due_ms: int = 0
    kept: bool = False
    """Whether it is in an outbox."""

    @property
    def makes(self) -> bool:
        """Whether it makes a job."""
        return "payload" in self.step.args or "jobs" in self.step.args

    @property
    def is_known(self) -> bool:
        """Whether the producer knows the outcome."""
        return self.outcome not in ("unanswered", "unknown", "kept")


@dataclass(slots=True)
class Keyed:
    """A request that came several times under one Idempotency-Key."""

    step: Step
    sent: float
    asked_us: int
    marks: list[str]
    """What the payload of each of its jobs ends with."""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    """Status and body of each answer."""

    @property
    def was_told(self) -> bool:
        """Whether an answer has named its jobs."""
        return any(status < 300 for status, _ in self.answers)

    @property
    def is_remembered(self) -> bool:
        """Whether an answer was certainly stored: the server may refuse that to a job's answer while it is kept."""
        found = [job for status, answer in self.answers if status < 300 for job in answer.get("outcomes", [answer])]
        return any("id" in job for job in found) and not any(job.get("in_outbox") for job in found)

    def ids_in(self, answer: Any) -> list[str]:
        """Returns the ids of its jobs in an answer; "" for one that has a problem."""
        made = answer.get("outcomes", [answer])[: len(self.marks)]
        return ["" if "problem" in job else str(job["id"]) for job in made]


@dataclass(frozen=True, slots=True)
class Promotion:
    """An entry of a ready stream."""

    topic: str
    shard: int
    id: str
    entry: str
    due_ms: int
    attempt: int
    group: str
    at: float
    server_us: int
    place: int
    """Its position in the server's log."""
    waits_since: float
    """When the job was stored to wait."""
    unread: int = 0
    """How many entries of the stream the group that is furthest behind has not read, with this one."""
    key: str = ""
    """Its partition key."""
    open_of_key: int = 0
    """How many entries of its key some group has unread or pending, with this one."""
    mark: str = ""
    """What the payload of a debounced job ends with."""


@dataclass(slots=True)
class Permit:
    """The permit of an entry: when the last group acknowledged that, and when the permit was given back."""

    ended: float | None = None
    given_back: float | None = None


@dataclass(slots=True)
class Run:
    """One start of a handler."""

    group: str
    topic: str
    id: str
    entry: str
    attempt: int
    worker: str
    began: float
    server_us: int
    due_ms: int
    key: str
    ended: float | None = None
    outcome: str = "running"
    leased_until: float = 0.0
    """No other lessee may get the job before this time, by the world's clock."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A follower that a run asked for."""

    topic: str
    id: str
    run: Run
    is_of_run: bool
    """Whether its id is of this run, so that no other run can ask for it."""


@dataclass(slots=True)
class Debounced(Call):
    """A call that puts off the jobs of a key, or cancels them. Its `id` is that of the job which the answer names."""

    key: str = ""
    mark: str = ""
    """What the payload ends with; "" of a cancel."""
    max_wait: float = 0.0


@dataclass(slots=True)
class Bundled:
    """A bundle, as its producer knows it."""

    step: Step
    when: str
    id: str = ""
    members: list[tuple[str, str]] = field(default_factory=list)
    """Topic and id of each job of which the producer was told that it is a member."""
    perhaps: list[tuple[str, str]] = field(default_factory=list)
    """Jobs of calls whose outcome was unknown."""
    others: set[tuple[str, str]] = field(default_factory=set)
    """Members that were perhaps replaced by a job that is none."""
    was_unknown: bool = False
    """Whether the outcome of a call for members was unknown."""
    is_closed: bool = False
    """Whether the producer was told that it is closed, or cancelled."""
    found: Bundle | None = None
    """What the last look that found it has found."""

    @property
    def has_ended(self) -> bool:
        """Whether it was seen that it has ended, or is cancelled and no member is left."""
        states = (BundleState.ENDED, BundleState.CANCELLED)
        return self.found is not None and self.found.state in states and not self.found.left


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A finished job or an ended bundle that the server kept for a while."""

    topic: str
    id: str
    """Of a bundle, its field in `done`."""
    ended: float
    at: float
    """When it was forgotten."""
    seconds: float
    """How long it was kept, by the server's clock."""


@dataclass(frozen=True, slots=True)
class Hand:
    """A delivery that came into a worker's hands."""

    group: str
    topic: str
    shard: int
    entry: str
    consumer: str
    at: float
    before: str
    """The consumer that had it before; "" if it was read for the first time."""
    was_given: bool
    """Whether that consumer has handed it back."""

    @property
    def worker(self) -> str:
        """The part that the consumer is."""
        return part_of(self.consumer)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault that explains lateness or repetition for a while."""

    kind: str
    whom: str
    begins: float
    over: float
    """The fault itself lasts until then."""
    ends: float
    """It explains lateness until then."""


@dataclass(slots=True)
class Undone:
    """A span of time whose writes the servers have lost."""

    begins: float
    ends: float
    is_power_loss: bool = False
    """Whether the server itself came back without its last second, and no replica helped."""


def part_of(consumer: str) -> str:
    """Returns the name of the part that is this consumer; "" if it is none."""
    match = _CONSUMER.match(consumer)
    return match[1] if match else ""


def _unread(store: Database, ready: bytes) -> int:
    stream = store.values[ready]
    return max((len(stream.after(group.last, -1)) for group in stream.groups.values()), default=0)


def _open_of(store: Database, ready: bytes, key: str) -> int:
    """Returns how many entries of a partition key some group that they concern has unread or pending."""
    stream = store.values[ready]
    found = (entry for entry, words in stream.entries.items() if _key_of(_fields(words)[b"record"]) == key)
    return sum(_is_open(stream, entry) for entry in found)


def _is_open(stream: Stream, entry: Id) -> bool:
    """Whether a group that the entry concerns has it unread or pending."""
    only = _fields(stream.entries[entry]).get(b"group")
    groups = [one for name, one in stream.groups.items() if only in (None, name)]
    return not stream.groups or any(entry > group.last or entry in group.pending for group in groups)


def _fields(words: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(words[::2], words[1::2], strict=True))


def _key_of(record: bytes) -> str:
    try:
        return decode(record).partition_key or ""
    except UnreadableRecord:
        return ""


def _mark_of(record: bytes) -> str:
    try:
        return str(decode(record).payload[-1])
    except (UnreadableRecord, TypeError):
        return ""


class Ledger:
    """The records of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[Call] = []
        self.promotions: list[Promotion] = []
        self.runs: list[Run] = []
        self.troubles: list[Trouble] = []
        self.unannounced: set[tuple[str, str]] = set()
        """Jobs that another program wrote without a hint to the leader, which may sleep for `idle_ms`."""
        self.members_run_now: list[tuple[str, str, float]] = []
        """Members of bundles that were to run now: topic, id, and when that was asked."""
        self.undone: list[Undone] = []
        self.dead: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self.clock: list[tuple[float, float, float]] = []
        """Changes of the server's clock: the time, the offset and the rate."""
        self.losses: list[tuple[str, float]] = []
        """See `Network.losses`."""
        self.problems: list[str] = []
        """Problems that were noticed during the run."""
        self._waits: dict[tuple[bytes, bytes], float] = {}
        self.deaths: list[tuple[str, float]] = []
        """Killed workers, with the time."""
        self.stops: list[tuple[str, float]] = []
        """Workers that were asked to stop, with the time when their process ended."""
        self.slow: set[str] = set()
        """The parts whose network is slow for good."""
        self.hands: list[Hand] = []
        """Every delivery, in the order of the server."""
        self.beats: defaultdict[str, list[float]] = defaultdict(list)
        """When each consumer has sent a heartbeat."""
        self.left: dict[str, float] = {}
        """When consumers said that they leave."""
        self.waiting: list[tuple[str, int, float, int]] = []
        """How many jobs waited in a shard when new ones were stored: topic, shard, when, and how many with these."""
        self.acks: dict[tuple[str, str, str], float] = {}
        """When the delivery of a group, topic and entry was acknowledged first."""
        self.forgotten: list[Forgotten] = []
        self._ended: dict[tuple[bytes, bytes], tuple[float, int]] = {}
        """By key and field, when what is kept has ended: by the world's clock, and in ms of the server."""
        self._holders: dict[tuple[str, int, str, str], tuple[str, bool]] = {}
        """The consumer that has a delivery, and whether it has handed it back."""
        self.counted: list[tuple[Call, int, int]] = []
        """Calls that counted the jobs they changed: one of the jobs, the count in the answer, and the true count."""
        self.told: list[tuple[str, str, str]] = []
        """What was told of dead jobs: their topics and ids, and the ids of the jobs that told."""
        self.asked: list[Asked] = []
        """Followers that runs asked for."""
        self.debounced: list[Debounced] = []
        """Calls about debounced jobs, which are not in `calls`."""
        self.bundles: list[Bundled] = []
        self.nameless = 0
        """Bundles that were perhaps made, without anybody being told their ids."""
        self.is_loaded = True
        """Whether there is still load."""
        self.followed: dict[tuple[str, str], int] = {}
        """The place in the server's log where a follower was left in `outgoing` first, by topic and id."""
        self.graves: defaultdict[tuple[str, str], list[tuple[int, bool]]] = defaultdict(list)
        """By topic and id: where in the server's log a job was buried (True), or removed from the dead."""
        self._graves: dict[tuple[bytes, bytes], tuple[str, str]] = {}
        self.acked: defaultdict[tuple[str, int, str], list[tuple[int, str]]] = defaultdict(list)
        """By topic, shard and entry: where in the log its deliveries were acknowledged, and of which group."""
        self.keyed: list[Keyed] = []
        """Requests under Idempotency-Keys."""
        self.marked: defaultdict[str, set[str]] = defaultdict(set)
        """Which ids lessees have seen with the mark of a job."""
        self.acknowledged: Counter[tuple[str, str, str]] = Counter()
        """How often lessees were told that a lease is acknowledged: topic, id, and shard and entry."""
        self.rewritten: defaultdict[str, int] = defaultdict(int)
        """How often the assignment was written."""
        self.limited: frozenset[str] = frozenset()
        """The topics with limits per key."""
        self.ends_of_keys: defaultdict[tuple[str, int, str], list[tuple[float, int]]] = defaultdict(list)
        """By topic, shard and partition key: when an entry of it ended, and how many are left open."""
        self.permits: dict[tuple[str, int, str], Permit] = {}
        """By topic, shard and entry."""
        self.shards: dict[str, int] = {}
        """How many shards each topic has at the end."""

    # --- the server ------------------------------------------------------------------------------------------------

    def watch(self, server: Server) -> None:
        """Record every write of a server from now on."""
        server.watchers.append(self._see)
        self.server = server

    def _see(self, store: Database, words: Sequence[bytes], reply: Any) -> None:
        name = words[0].upper()
        if name == b"XADD" and b":ready" in words[1]:
            self._promoted(store, words, reply)
        elif words[1].endswith((b":dead", b":outgoing")):
            self._left_behind(store, name, words, reply)
        elif name == b"ZADD" and words[1].endswith(b":delayed"):
            self._stored(store, words, reply)
        elif name == b"ZREM" and words[1].endswith(b":delayed"):
            for member in words[2:]:
                self._waits.pop((words[1], member), None)
        elif name == b"HSET" and words[1].endswith(b":assignment"):
            self.rewritten["assignment"] += 1
        elif name == b"UNLINK":
            self._unlinked(words)
        elif words[1].endswith(b":permits"):
            self._permitted(store, name, words)
        elif words[1].endswith(b":beats"):
            self._beaten(name, words)
        elif words[1].endswith(b":ended"):
            self._kept(store, name, words)
        else:
            self._held(store, name, words, reply)

    def _left_behind(self, store: Database, name: bytes, words: Sequence[bytes], reply: Any) -> None:
        place, match = len(store.log), _KEY.match(words[1])
        fields = dict(zip(words[3::2], words[4::2], strict=False)) if name == b"XADD" else {}
        if name == b"XADD" and words[1].endswith(b":outgoing"):
            self.followed.setdefault((fields[b"topic"].decode(), fields[b"id"].decode()), place)
        elif name == b"XADD" and match:
            job = match[1].decode(), fields.get(b"id", b"").decode()
            self.dead[job].append(self.world.now)
            self.graves[job].append((place, True))
            self._graves[words[1], reply] = job
        for entry in words[2:] if name == b"XDEL" else ():
            if removed := self._graves.pop((words[1], entry), None):
                self.graves[removed].append((place, False))

    def _kept(self, store: Database, name: bytes, words: Sequence[bytes]) -> None:
        if name == b"ZADD":
            for ms, id in zip(words[2::2], words[3::2], strict=True):
                self._ended[words[1], id] = self.world.now, int(float(ms))
        topic = match[1].decode() if (match := _KEY.match(words[1])) else ""
        for id in words[2:] if name == b"ZREM" else ():
            if kept := self._ended.pop((words[1], id), None):
                seconds = (store.now_ms - kept[1]) / 1000
                self.forgotten.append(Forgotten(topic, id.decode(), kept[0], self.world.now, seconds))

    def _held(self, store: Database, name: bytes, words: Sequence[bytes], reply: Any) -> None:
        if name == b"XREADGROUP":
            for key, entries in reply or ():
                for entry in entries:
                    self._handed(key, words[2], words[3], entry[0])
        elif name == b"XCLAIM":
            for entry in reply if b"JUSTID" in words else [entry[0] for entry in reply]:
                self._handed(words[1], words[2], words[3], entry, gives=b"IDLE" in words)
        elif name == b"XACK" and reply and (match := _KEY.match(words[1])):
            for entry in words[3:]:
                self.acks.setdefault((words[2].decode(), match[1].decode(), entry.decode()), self.world.now)
                self.acked[match[1].decode(), int(match[2]), entry.decode()].append((len(store.log), words[2].decode()))
                if match[1].decode() in self.limited:
                    self._ended_of_key(store, words[1], match[1].decode(), int(match[2]), entry)

    def _ended_of_key(self, store: Database, ready: bytes, topic: str, shard: int, entry: bytes) -> None:
        words = store.values[ready].entries.get(parse_id(entry), ())
        if key := _key_of(_fields(words).get(b"record", b"")):
            left = _open_of(store, ready, key)
            self.ends_of_keys[topic, shard, key].append((self.world.now, left))
            permit = self.permits.get((topic, shard, entry.decode()))
            if permit and permit.ended is None and not _is_open(store.values[ready], parse_id(entry)):
                permit.ended = self.world.now

    def _unlinked(self, words: Sequence[bytes]) -> None:
        """Forget the permits of a topic that has no such limit any more."""
        found = [_KEY.match(key) for key in words[1:] if key.endswith(b":permits")]
        gone = {(match[1].decode(), int(match[2])) for match in found if match}
        self.permits = {place: one for place, one in self.permits.items() if place[:2] not in gone}

    def _permitted(self, store: Database, name: bytes, words: Sequence[bytes]) -> None:
        match = _KEY.match(words[1])
        for member in words[3::2] if name == b"ZADD" else words[2:] if name == b"ZREM" else ():
            assert match is not None
            place = (match[1].decode(), int(match[2]), member.rpartition(b"\x1f")[2].decode())
            if name == b"ZADD":
                self.permits[place] = Permit()
            elif place in self.permits and self.permits[place].given_back is None:
                self.permits[place].given_back = self.world.now

    def _handed(self, key: bytes, group: bytes, consumer: bytes, entry: bytes, *, gives: bool = False) -> None:
        match = _KEY.match(key)
        assert match is not None
        topic, shard, name = match[1].decode(), int(match[2]), consumer.decode()
        place = (topic, shard, group.decode(), entry.decode())
        before, was_given = self._holders.get(place, ("", False))
        self._holders[place] = (name, gives)
        if before != name:
            at = self.world.now
            self.hands.append(Hand(place[2], topic, shard, place[3], name, at, before, was_given))

    def _beaten(self, name: bytes, words: Sequence[bytes]) -> None:
        for consumer, beat in zip(words[2::2], words[3::2], strict=False) if name == b"HSET" else ():
            if beat.startswith(LEFT):
                self.left[consumer.decode()] = self.world.now
            else:
                self.beats[consumer.decode()].append(self.world.now)
        for consumer in words[2:] if name == b"HDEL" else ():
            self.left.setdefault(consumer.decode(), self.world.now)

    def _stored(self, store: Database, words: Sequence[bytes], added: int) -> None:
        for member in words[3::2]:
            self._waits[words[1], member] = self.world.now
        if added and (match := _KEY.match(words[1])) and not all(b"\x1f" in member for member in words[3::2]):
            self.waiting.append((match[1].decode(), int(match[2]), self.world.now, len(store.values[words[1]])))

    def _promoted(self, store: Database, words: Sequence[bytes], reply: bytes) -> None:
        match = _KEY.match(words[1])
        at = list(words).index(b"*") if b"*" in words else 2
        fields = dict(zip(words[at + 1 :: 2], words[at + 2 :: 2], strict=False))
        if match is None or b"id" not in fields:
            return
        id, group = fields[b"id"].decode(), fields.get(b"group", b"").decode()
        member = fields[b"id"] + (b"\x1f" + fields[b"group"] if group else b"")
        delayed = words[1].replace(b":ready", b":delayed")
        self.promotions.append(
            Promotion(
                match[1].decode(),
                int(match[2]),
                id,
                reply.decode(),
                int(float(fields.get(b"due", b"0"))),
                int(fields.get(b"attempt", b"1")),
                group,
                self.world.now,
                store.now_us,
                len(store.log),
                self._waits.pop((delayed, member), self.world.now),
                _unread(store, words[1]),
                key := _key_of(fields[b"record"]) if match[1].decode() in self.limited else "",
                _open_of(store, words[1], key) if key else 0,
                _mark_of(fields[b"record"]) if match[1].decode() == DEBOUNCED else "",
            )
        )

    def took_back(self, begins: float, length: int, *, is_power_loss: bool = False) -> None:
        """Record that the server has lost its writes since `begins`."""
        self.undone.append(Undone(begins, self.world.now, is_power_loss))
        self.promotions = [one for one in self.promotions if one.place < length]
        self._waits = {job: at for job, at in self._waits.items() if at < begins}

    def clock_changed(self, server: Server) -> None:
        """Record that the server's clock was stepped, or has another rate."""
        self.clock.append((self.world.now, server.clock_offset, server.clock_rate))

    def waiting_now(self, topic: str, prefix: str) -> list[str]:
        """Returns the ids that begin so, of jobs of a topic that wait on the server at this moment."""
        found = ((_KEY.match(key), member.decode()) for key, member in self._waits)
        return [id for match, id in found if match and match[1].decode() == topic and id.startswith(prefix)]

    def has_promoted(self, topic: str, id: str) -> bool:
        """Whether a job was ever promoted."""
        return any((one.topic, one.id) == (topic, id) for one in self.promotions)

    # --- faults ----------------------------------------------------------------------------------------------------

    def trouble(self, kind: str, whom: str, lasts: float, *, since: float | None = None, slack: float = 0.0) -> None:
        """Record a fault that lasts so many seconds, and `slack` more until nothing is late any more."""
        now = self.world.now
        self.troubles.append(Trouble(kind, whom, now if since is None else since, now + lasts, now + lasts + slack))

    def is_explained(self, begins: float, ends: float, *, but: Sequence[str] = (), whom: str = "") -> bool:
        """Whether a trouble overlaps a span of time."""
        return any(
            one.begins <= ends and one.ends >= begins
            for one in self.troubles
            if one.kind not in but and (not whom or one.whom in ("", whom))
        )

    def was_undone(self, begins: float, ends: float, *, though_replicated: bool = False) -> bool:
        """Whether writes of a span of time may be lost; with `though_replicated`, even confirmed ones."""
        undone = [one for one in self.undone if one.is_power_loss or not though_replicated]
        return any(one.begins <= ends and one.ends >= begins for one in undone)
