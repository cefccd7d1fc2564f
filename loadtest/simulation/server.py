"""`Server`: one simulated Redis, with sessions, blocking reads, channels and faults. It runs one command at a time.

    process ──bytes──▶ session ──words──▶ server ──▶ store (commands and real Lua scripts)

It has its own clock, which may drift and be stepped. Writes go to the log of the store. A crash undoes the writes that
were not on the disk yet, and a promoted replica has the writes that had been replicated.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from loadtest.simulation.network import Link
from loadtest.simulation.refusals import Refusals
from loadtest.simulation.store import pending as _pending
from loadtest.simulation.store import ranges as _ranges
from loadtest.simulation.store.commands import COMMANDS
from loadtest.simulation.store.database import OK, Command, Database, Logged, Refusal, Status
from loadtest.simulation.store.scripts import Scripts
from loadtest.simulation.store.streams import blocks_ms, streams_read
from loadtest.simulation.world import EPOCH_S, World

_REGISTERED = (_pending, _ranges)  # their commands are known because they are imported
TWO_WORDS = {b"XGROUP", b"XINFO", b"CLIENT", b"SCRIPT", b"CONFIG", b"CLUSTER", b"SENTINEL"}
NO_ANSWER = object()
DEAF_S = 0.03
"""How long a connection is open after it has begun to lose replies."""
TICK = 1e-9
"""Seconds by which sums of moments may be off."""


def encode(reply: Any) -> bytes:
    """Returns a reply as RESP2."""
    kind = type(reply)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if kind is int or kind is bool:
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    if kind is list or kind is tuple:
        return b"*%d\r\n" % len(reply) + b"".join(map(encode, reply))
    if kind is Status:
        return b"+%b\r\n" % reply
    if isinstance(reply, Refusal):
        return b"-%b\r\n" % str(reply).replace("\n", " ").encode()
    raise TypeError(f"no reply: {reply!r}")


class Session:
    """The server's end of a connection."""

    def __init__(self, server: Server, link: Link, number: int) -> None:
        self.server, self.link, self.number = server, link, number
        self.channels: dict[bytes, None] = {}
        self.queue: deque[list[bytes]] = deque()
        self.blocked: _Blocked | None = None
        self.is_gone = False
        self.is_trusted = not server.refusals.asks_password
        self.written = 0
        """The length of the log after its last write, for WAIT."""
        self._reader = hiredis.Reader()

    def receive(self, data: bytes) -> None:
        """Take data from the network."""
        if self.is_gone:
            return
        self._reader.feed(data)
        while (words := self._reader.gets()) is not False:
            self.queue.append(words)
        if self.queue:
            self.server.ask(self)

    def send(self, reply: Any) -> None:
        """Send a reply."""
        self.link.to_process(encode(reply))

    def gone(self) -> None:
        """Take the end of the connection."""
        self.is_gone = True
        self.server.drop(self)


class _Blocked:
    """A blocking command that waits."""

    __slots__ = ("deadline_ms", "keys", "words")

    def __init__(self, words: list[bytes], keys: Sequence[bytes], deadline_ms: float) -> None:
        self.words, self.keys, self.deadline_ms = words, keys, deadline_ms


class Server:
    """One server process. A restart keeps the object, and changes its run id."""

    def __init__(self, world: World, address: str) -> None:
        self.world, self.address = world, address
        self.random = world.random(f"server {address}")
        self.store = Database()
        self.store.listeners = self._listeners
        self.log_times: list[float] = []
        """The time of each entry of the store's log, by the world's clock."""
        self._log_calls: list[int] = []
        """The number of the command or script that wrote each entry."""
        self.refusals = Refusals(world)
        self.scripts = Scripts(self._do_in_script)
        self.sessions: dict[Session, None] = {}
        self._asking: set[Session] = set()
        """The sessions with queued commands."""
        self.is_up = True
        self.clock_offset, self.clock_rate = 0.0, 1.0
        self.commands = 0
        """How many it has received."""
        self.replica_lag: list[float] = []
        """The lag of each connected replica, in seconds."""
        self.loses: Callable[[Sequence[bytes]], bool] = lambda words: False
        """Whether the reply to such a command is lost, and its connection soon after."""
        self.watchers: list[Callable[[Database, Sequence[bytes], Any], None]] = []
        """Called after each write; the ledger uses this."""
        self._subscribed: dict[bytes, dict[Session, None]] = {}
        self._waiting: dict[bytes, dict[Session, None]] = {}
        self._numbers = iter(range(3, 1 << 62))
        self._run_id = self._new_run_id()
        self._busy_until = 0.0
        self._is_working = False
        self._has_written = False
        """Whether the running script has written."""

    # --- its clock -------------------------------------------------------------------------------------------------

    def clock_us(self) -> int:
        """Returns the time of its clock."""
        return int((EPOCH_S + self.clock_offset + self.world.now * self.clock_rate) * 1_000_000)

    def step_clock(self, seconds: float) -> None:
        """Set the clock forward or back."""
        self.clock_offset += seconds
        for session in list(self.sessions):
            self._look_at_deadline(session)

    def drift(self, rate: float) -> None:
        """Change the speed of the clock."""
        self.clock_offset += self.world.now * (self.clock_rate - rate)
        self.clock_rate = rate

    # --- connections -----------------------------------------------------------------------------------------------

    def accept(self, link: Link) -> Session | None:
        """Returns a new session; None if the server is down."""
        if not self.is_up:
            return None
        session = Session(self, link, next(self._numbers))
        self.sessions[session] = None
        return session

    def drop(self, session: Session) -> None:
        """Forget a session that has ended."""
        self.sessions.pop(session, None)
        self._asking.discard(session)
        for channel in session.channels:
            self._subscribed[channel].pop(session, None)
        self._unblock(session)

    # --- its life --------------------------------------------------------------------------------------------------

    def stop(self, lost_s: float | None = None, *, cut: int | None = None) -> None:
        """Stop, and reset every connection.

        The writes of the last `lost_s` seconds are lost, or those behind the place `cut` of the log, which was cut off
        there: a script is there as a whole, or not at all.
        """
        self.is_up = False
        for session in list(self.sessions):
            session.link.reset()
        if lost_s is not None:
            self.take_back(bisect_right(self.log_times, self.world.now - lost_s))
        if cut is not None and cut < len(self._log_calls):
            self.take_back(bisect_left(self._log_calls, self._log_calls[cut]))

    def start(self, loading_s: float = 0.0) -> None:
        """Start again with the data on the disk."""
        self.is_up = True
        self.scripts.forget()
        self._run_id, self._numbers = self._new_run_id(), iter(range(3, 1 << 62))
        self.refusals.loading_until = self.world.now + loading_s

    def take_back(self, length: int) -> None:
        """Undo the writes after the log had this length."""
        lost = len(self.store.log) - length
        if lost > 0:
            self.world.story.tell(self.address, f"{lost} writes are lost")
            self.store = self.store.replayed(self.store.log[:length], COMMANDS)
            del self.log_times[length:], self._log_calls[length:]

    def become(self, other: Server, length: int) -> None:
        """Take over from another server as its replica, which has this much of its log."""
        self.store = other.store.replayed(other.store.log[:length], COMMANDS)
        self.store.listeners = self._listeners
        self.log_times, self._log_calls = other.log_times[:length], other._log_calls[:length]
        self.commands = max(self.commands, other.commands)

    def known_by_replica(self, lag: float) -> int:
        """Returns the length of the log that a replica with this lag has."""
        return bisect_right(self.log_times, self.world.now - lag)

    def stall(self, seconds: float) -> None:
        """Do nothing for a while, as during a fork or on a slow disk."""
        self._busy_until = max(self._busy_until, self.world.now) + seconds

    # --- commands --------------------------------------------------------------------------------------------------

    def ask(self, session: Session) -> None:
        """Note that a session has queued commands."""
        self._asking.add(session)
        self.work()

    def work(self) -> None:
        """Run the queued commands as soon as the server is free."""
        if not self._is_working and self.is_up:
            self._is_working = True
            self.world.at(max(self.world.now, self._busy_until), self._work)

    def _work(self) -> None:
        self._is_working = False
        if self._busy_until > self.world.now:  # it stalled meanwhile
            self.work()
            return
        for session in sorted(self._asking, key=lambda session: session.number):
            while session.queue and session.blocked is None and not session.is_gone:
                self._carry_out(session, session.queue.popleft())
            if not session.queue:
                self._asking.discard(session)
        self._busy_until = self.world.now + 0.00003

    def _carry_out(self, session: Session, words: list[bytes]) -> None:
        self.commands += 1
        words[0] = name = words[0].upper()
        self.store.set_time(self.clock_us())
        try:
            self.refusals.check(name, session.is_trusted)
            own = _SERVERS_OWN.get(name)
            reply = own(self, session, words) if own is not None else self._do(words, session)
        except Refusal as error:
            reply = error
        if self.loses(words):
            session.link.is_deaf = True
            self.world.after(DEAF_S, session.link.reset)
        if reply is not NO_ANSWER:
            session.send(reply)
        self._tell_news()

    def _do(self, words: list[bytes], session: Session) -> Any:
        command = self._command(words)
        reply = self._run(command, words)
        if reply is None and (block := blocks_ms(words) if command.name[:5] == b"XREAD" else None) is not None:
            self._block(session, words, block)
            return NO_ANSWER
        session.written = len(self.store.log)
        return reply

    def write(self, words: Sequence[bytes]) -> Any:
        """Run a write of a program that is not simulated."""
        return self._run(self._command(words), words)

    def _do_in_script(self, words: Sequence[bytes]) -> Any:
        """Run one command of a script. After its first write a script is refused nothing: Redis lets it finish."""
        command = self._command(words)
        if command.writes and not self._has_written:
            self.refusals.check_write(command.needs_memory)
            self._has_written = True
        return self._carry(command, words)

    def _command(self, words: Sequence[bytes]) -> Command:
        name = words[0].upper()
        if name in TWO_WORDS:
            name = name + b" " + words[1].upper()
        found = COMMANDS.get(name)
        if found is None:
            raise Refusal(f"ERR unknown command '{name.decode()}'")
        return found

    def _run(self, command: Command, words: Sequence[bytes]) -> Any:
        if command.writes:
            self.refusals.check_write(command.needs_memory)
        return self._carry(command, words)

    def _carry(self, command: Command, words: Sequence[bytes]) -> Any:
        reply = command.run(self.store, words)
        if command.writes:
            self.store.log.append(Logged(self.store.now_us, (command.name, *words[1:])))
            self.log_times.append(self.world.now)
            self._log_calls.append(self.commands)
            for watcher in self.watchers:
                watcher(self.store, words, reply)
        return reply

    def evalsha(self, session: Session, words: list[bytes]) -> Any:
        """EVALSHA."""
        sha, count = words[1].lower(), int(words[2])
        if not self.scripts.knows(sha):
            raise Refusal("NOSCRIPT No matching script. Please use EVAL.")
        self._has_written = False
        reply = self.scripts.run(sha, words[3 : 3 + count], words[3 + count :])
        session.written = len(self.store.log)
        return reply

    # --- waiting reads and channels --------------------------------------------------------------------------------

    def _block(self, session: Session, words: list[bytes], ms: int) -> None:
        keys = streams_read(words)
        if words[0] == b"XREAD":  # `$` means the current end of the stream
            at = len(words) - len(keys)
            for n, key in enumerate(keys):
                if words[at + n] == b"$":
                    words[at + n] = self._last_id(key)
        session.blocked = _Blocked(words, keys, self.store.now_ms + ms if ms else float("inf"))
        for key in keys:
            self._waiting.setdefault(key, {})[session] = None
        self._look_at_deadline(session)

    def _last_id(self, key: bytes) -> bytes:
        stream = self.store.values.get(key)
        return b"%d-%d" % stream.last if stream is not None else b"0-0"

    def _look_at_deadline(self, session: Session) -> None:
        blocked = session.blocked
        if blocked is None or blocked.deadline_ms == float("inf"):
            return
        left_s = (blocked.deadline_ms * 1000 - self.clock_us()) / 1_000_000
        if left_s <= 0:
            self._unblock(session)
            session.send(None)
            self.work()
        else:

            def look_again() -> None:
                if session.blocked is blocked:
                    self._look_at_deadline(session)

            self.world.after(min(left_s, 60.0) + 0.0005, look_again)

    def _unblock(self, session: Session) -> None:
        if session.blocked is not None:
            for key in session.blocked.keys:
                self._waiting[key].pop(session, None)
            session.blocked = None

    def _tell_news(self) -> None:
        while self.store.published:
            channel, data = self.store.published.pop(0)
            for session in self._subscribed.get(channel, ()):
                session.send([b"message", channel, data])
        touched, self.store.touched = self.store.touched, []
        for key in dict.fromkeys(touched):
            for session in list(self._waiting.get(key, ())):
                self._serve(session)

    def _serve(self, session: Session) -> None:
        blocked = session.blocked
        if blocked is None:
            return
        try:
            reply = self._run(self._command(blocked.words), blocked.words)
        except Refusal as error:
            reply = error
        if reply is not None:
            self._unblock(session)
            session.send(reply)
            self.work()

    def _listeners(self, channel: bytes) -> int:
        return len(self._subscribed.get(channel, ()))

    def subscribe(self, session: Session, words: list[bytes]) -> Any:
        """SUBSCRIBE."""
        for channel in words[1:]:
            session.channels[channel] = None
            self._subscribed.setdefault(channel, {})[session] = None
            session.send([b"subscribe", channel, len(session.channels)])
        return NO_ANSWER

    def unsubscribe(self, session: Session, words: list[bytes]) -> Any:
        """UNSUBSCRIBE."""
        for channel in words[1:] or list(session.channels):
            session.channels.pop(channel, None)
            self._subscribed.get(channel, {}).pop(session, None)
            session.send([b"unsubscribe", channel, len(session.channels)])
        return NO_ANSWER

    # --- other commands ----------------------------------------------------------------------------------------------

    def hello(self, session: Session, words: list[bytes]) -> Any:
        """HELLO."""
        role = b"slave" if self.refusals.is_replica else b"master"
        fields = [b"server", b"redis", b"version", b"7.4.0", b"proto", 2, b"id", session.number]
        return [*fields, b"mode", b"standalone", b"role", role, b"modules", []]

    def info(self, session: Session, words: list[bytes]) -> bytes:
        """INFO, with the fields that wheelq reads."""
        role = "slave" if self.refusals.is_replica else "master"
        lines = ["# Server", "redis_version:7.4.0", f"run_id:{self._run_id}", "redis_mode:standalone", f"role:{role}"]
        lines += [f"connected_slaves:{len(self.replica_lag)}", "aof_enabled:1", "maxmemory_policy:noeviction"]
        lines += ["used_memory:1000000", "maxmemory:0", "loading:0", "cluster_enabled:0", "evicted_keys:0"]
        return "\r\n".join([*lines, ""]).encode()

    def client(self, session: Session, words: list[bytes]) -> Any:
        """CLIENT ID, LIST ID and UNBLOCK; other subcommands only set names."""
        what = words[1].upper()
        by_number = {one.number: one for one in self.sessions}
        if what == b"ID":
            return session.number
        if what == b"LIST":
            return b"".join(b"id=%d\n" % int(n) for n in words[3:] if int(n) in by_number)
        if what == b"UNBLOCK":
            other = by_number.get(int(words[2]))
            if other is None or other.blocked is None:
                return 0
            self._unblock(other)
            other.send(None)
            self.work()
            return 1
        return OK

    def script(self, session: Session, words: list[bytes]) -> Any:
        """SCRIPT LOAD, EXISTS and FLUSH."""
        what = words[1].upper()
        if what == b"LOAD":
            sha = self.scripts.load(words[2])
            self.scripts.remember(sha)
            return sha
        if what == b"EXISTS":
            return [int(self.scripts.knows(sha)) for sha in words[2:]]
        self.scripts.forget()
        return OK

    def wait(self, session: Session, words: list[bytes]) -> Any:
        """WAIT and WAITAOF: answers when enough servers have the writes of this session, or after the time-out.

        A replica that is cut off meanwhile does not count.
        """
        is_aof, began = words[0] == b"WAITAOF", self.world.now
        wanted, timeout_s = int(words[-2]), int(words[-1]) / 1000
        written_at = self.log_times[session.written - 1] if session.written else float("-inf")
        delays = sorted(max(written_at + lag - began, 0.0) for lag in self.replica_lag)
        takes = delays[wanted - 1] if 0 < wanted <= len(delays) else timeout_s if wanted else 0.0
        session.blocked = blocked = _Blocked(words, (), float("inf"))

        def answer() -> None:
            if session.blocked is not blocked or session.is_gone:
                return
            now = self.world.now
            count = sum(written_at + lag <= now + TICK for lag in self.replica_lag)
            if count < wanted and now + TICK < began + timeout_s:
                self.world.after(began + timeout_s - now, answer)
                return
            session.blocked = None
            session.send([1, count] if is_aof else count)
            self.work()

        self.world.after(min(takes, timeout_s) + (self.random.uniform(0, 1.0) if is_aof else 0.0), answer)
        return NO_ANSWER

    def _new_run_id(self) -> str:
        return hashlib.sha1(f"{self.address} {self.random.random()}".encode(), usedforsecurity=False).hexdigest()


def _ok(server: Server, session: Session, words: list[bytes]) -> Any:
    return OK


def _nothing(server: Server, session: Session, words: list[bytes]) -> Any:
    return []


_SERVERS_OWN: dict[bytes, Callable[[Server, Session, list[bytes]], Any]] = {
    b"EVALSHA": Server.evalsha,
    b"SUBSCRIBE": Server.subscribe,
    b"UNSUBSCRIBE": Server.unsubscribe,
    b"HELLO": Server.hello,
    b"INFO": Server.info,
    b"CLIENT": Server.client,
    b"SCRIPT": Server.script,
    b"WAIT": Server.wait,
    b"WAITAOF": Server.wait,
    b"SELECT": _ok,
    b"AUTH": _ok,
    b"CONFIG": _nothing,
    b"PUBSUB": _nothing,
}
