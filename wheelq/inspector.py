"""`Inspector`: looks at a server and at everyone who uses it, and changes nothing.

    stats()    what every topic holds; which schedulers and workers live, in the words of their last heartbeat
    doctor()   findings about the server and the jobs in it; what each fact means is decided in `diagnosis`

A heartbeat is believed for 15 seconds by the server's clock, which is three of them. Who was killed leaves its entry
behind, and drops out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from wheelq.clock import Clock, ServerClock, SystemClock
from wheelq.diagnosis import Finding, JobFacts, ServerFacts, diagnose, diagnose_server
from wheelq.errors import Refused, ServerBusy, ServerTooOld
from wheelq.metrics import Lateness
from wheelq.protocol.call import Call
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.settings import Settings, resolve_url
from wheelq.topics import TopicInfo
from wheelq.transport import Address, Transport

T = TypeVar("T")

NOT_TOLD = Lateness()

BELIEVED_MS = 15_000
CLOCK_SAMPLES = 5  # the best of a few round trips is close to the wire's own time
INFO_SECTIONS = ("server", "clients", "memory", "persistence", "replication")
CONFIGURATION = ("maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a live scheduler node last said."""

    name: str
    seen_ms: int
    """When it said so, by the server's clock."""
    shards: int
    leading: int
    """Shards that it leads; the others' leader is another node."""
    promoted: int
    clock_skew_ms: int
    """Its machine's clock minus the server's; harmless."""
    lateness: Lateness = NOT_TOLD
    """How late it promoted them: from due time to promotion, by the server's clock. Those that were due when they were
    scheduled are promoted by that call, at once, and by no node."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a live worker last said."""

    name: str
    seen_ms: int
    """When it said so, by the server's clock."""
    group: str
    topics: tuple[str, ...]
    running: int
    handled: int
    failed: int
    lateness_p99_ms: int
    """99 % of its handlers started within this long after the due time."""
    skipped: int
    """Jobs that were too late, and dropped or buried instead."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Who and what is there."""

    server_ms: int
    """The server's clock when these were read."""
    topics: list[TopicInfo]
    nodes: list[NodeInfo]
    workers: list[WorkerInfo]


class Inspector:
    """Reads what a server holds. Blocking; a context manager."""

    def __init__(self, transport: Transport, shown: str, keys: Keys | None = None, clock: Clock | None = None) -> None:
        self.shown = shown
        """The server's address, without the password."""
        self._transport = transport
        self._keys = keys or Keys()
        self._clock = clock or SystemClock()

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """An inspector of the server at `url` (else WHEELQ_URL). Connects when used. Raises: ConfigurationError."""
        settings = settings or Settings()
        address = Address(resolve_url(url, settings), settings.connection)
        return cls(Transport(address), address.shown, Keys(settings.prefix))

    def stats(self) -> Stats:
        """Every topic, live scheduler and live worker, by name. Raises: ServerError."""
        settings = self._transport.send(registry.topics(self._keys)).settings
        shards = [self._keys.shard(name, n) for name in sorted(settings) for n in range(settings[name].all_shards)]
        counts = list(self._transport.stream(registry.counts(shard) for shard in shards))
        server_ms = self._transport.send(registry.server_time_us()) // 1000
        nodes = self._alive(self._keys.nodes, server_ms)
        workers = self._alive(self._keys.workers, server_ms)
        return Stats(
            server_ms,
            registry.add_up(settings, shards, counts),
            [_node(name, said) for name, said in sorted(nodes.items())],
            [_worker(name, said) for name, said in sorted(workers.items())],
        )

    def doctor(self) -> list[Finding]:
        """Findings about the server and who uses it. Raises: Unavailable, AuthenticationFailed, ServerBusy."""
        server = self.server_facts()
        return diagnose_server(server) if server.missing else diagnose(server, self.job_facts())

    def server_facts(self) -> ServerFacts:
        """What the server says of itself. Raises: Unavailable, AuthenticationFailed, ServerBusy."""
        clock = ServerClock(self._clock)
        for _ in range(CLOCK_SAMPLES):
            asked_at = self._clock.monotonic()
            clock.observe(asked_at, self._transport.send(registry.server_time_us()))
        refused: dict[str, str] = {}
        missing = []
        for name, call in registry.needed_commands(self._keys).items():
            try:
                self._transport.send(call)
            except ServerTooOld:
                missing.append(name)
            except ServerBusy:  # it may say so to anything, and what it would say else is not known
                raise
            except Refused as error:
                if "NOGROUP" not in str(error):  # the answer of a server that knows XAUTOCLAIM
                    refused[name] = str(error)
        info: dict[str, str] = {}
        for section in INFO_SECTIONS:  # one by one: Redis 6.2 takes a single section
            said = self._ask(f"INFO {section}", registry.info(section), refused)
            info.update(said or {})
        return ServerFacts(info, self._configuration(), tuple(missing), refused, clock.skew_ms, clock.error_ms)

    def job_facts(self) -> JobFacts:
        """What is kept, and who looks after it. Raises: ServerError."""
        stats = self.stats()
        kept = self._transport.send(registry.topics(self._keys)).settings
        return JobFacts(
            waiting=sum(topic.delayed for topic in stats.topics),
            schedulers=len(stats.nodes),
            overdue_ms={topic.name: topic.overdue_ms for topic in stats.topics},
            unread={topic.name: topic.ready for topic in stats.topics if not kept[topic.name].retention_ms},
            served=frozenset(topic for worker in stats.workers for topic in worker.topics),
        )

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, operation: str, call: Call[T], refused: dict[str, str]) -> T | None:
        try:
            return self._transport.send(call)
        except Refused as error:
            refused[operation] = str(error)
            return None

    def _configuration(self) -> dict[str, str] | None:
        """None where CONFIG is denied or does not exist."""
        found: dict[str, str] = {}
        for name in CONFIGURATION:
            answer = self._ask("CONFIG GET", registry.config(name), {})
            if answer is None:
                return None
            found |= answer
        return found

    def _alive(self, hash_key: str, server_ms: int) -> dict[str, Mapping[str, Any]]:
        said = self._transport.send(registry.alive(hash_key))
        return {name: what for name, what in said.items() if server_ms - what.get("seen_ms", 0) <= BELIEVED_MS}


def lateness_of(said: Mapping[str, Any]) -> Lateness:
    """How late a node promoted its jobs, from what it said in its heartbeat."""
    return Lateness(said.get("late_ms", 0), tuple(said.get("lateness", ())))


def _node(name: str, said: Mapping[str, Any]) -> NodeInfo:
    figures = ("seen_ms", "shards", "leading", "promoted", "clock_skew_ms")
    return NodeInfo(name, **{figure: said.get(figure, 0) for figure in figures}, lateness=lateness_of(said))


def _worker(name: str, said: Mapping[str, Any]) -> WorkerInfo:
    figures = (said.get(figure, 0) for figure in ("running", "handled", "failed", "lateness_p99_ms", "skipped"))
    return WorkerInfo(name, said.get("seen_ms", 0), said.get("group", "?"), tuple(said.get("topics", ())), *figures)
