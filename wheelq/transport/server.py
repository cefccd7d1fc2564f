"""`Server`: a pool of blocking connections to one server; each call has a connection to itself. Safe for threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import hiredis
from redis.exceptions import ResponseError

from wheelq.errors import NotPrimary, Refused, ServerError, Unavailable
from wheelq.protocol.call import Argument, Call
from wheelq.protocol.scripts import Script
from wheelq.transport import probing
from wheelq.transport.address import Address
from wheelq.transport.failures import REDIS_FAILURES, SCRIPT_LOADS, AskedSentinel, ScriptUnknown, not_answered, not_sent
from wheelq.transport.streams import CallStream
from wheelq.transport.together import Chain

T = TypeVar("T")


class Server:
    """One server, for a blocking client."""

    def __init__(self, address: Address, reply_timeout_ms: int | None = None) -> None:
        self._address = address
        self._pool = address.pool(reply_timeout_ms)
        self._replicas: set[Any] = set()
        """Connections on which the server said that it is a replica: the name may lead to another server now."""

    def is_of_cluster(self) -> bool:
        """Whether the server is a node of a cluster. One that refuses HELLO is taken for a single server."""
        connection = self.connect()
        try:
            connection.send_command("HELLO", check_health=False)
            reply = connection.read_response()
        except ResponseError:
            return False
        except REDIS_FAILURES as error:
            raise not_sent(error, self._address, probing.speaks_tls(error, self._address)) from error
        finally:
            self.release(connection)
        mode = dict(zip(reply[::2], reply[1::2], strict=False)).get(b"mode")
        if mode == b"sentinel":
            raise not_sent(AskedSentinel(), self._address)
        return bool(mode == b"cluster")

    def ask(self, call: Call[Any], *, is_asking: bool = False) -> Any:
        """Send a call and return its raw reply; for several calls together, a list of replies and errors.

        `is_asking` sends ASKING directly before a single call.
        Raises: Unavailable (nothing was done), Refused (nothing was done), OutcomeUnknown.
        """
        connection = self.connect()
        try:
            return self.ask_over(connection, call, is_asking)
        finally:
            self.release(connection)

    def try_to_listen(self, channel: str) -> None:
        """Listen to a channel for a moment. Raises: Unavailable, Refused, OutcomeUnknown."""
        connection = self.connect()
        try:
            connection.send_command("SUBSCRIBE", channel, check_health=False)
            connection.read_response()
        except REDIS_FAILURES as error:
            raise not_answered(error, self._address, "SUBSCRIBE") from error
        finally:
            connection.disconnect()  # it can now only listen, and UNSUBSCRIBE needs another right
            self.release(connection)

    def stream(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None) -> Iterator[T]:
        """Yield the answers to many calls, in order: see `Transport.stream`."""
        connection = self.connect()
        under_way: deque[Call[T]] = deque()
        early: deque[Any] = deque()
        try:
            stream = CallStream(calls, refused)
            for call in stream:
                self.write(connection, call, *(part.words() for part in call.parts))
                under_way.append(call)
                if len(under_way) > 1:
                    with stream.answering():
                        yield self._answer(connection, under_way, early)
            while under_way:
                with stream.answering():
                    yield self._answer(connection, under_way, early)
            stream.finish()
        finally:
            if under_way:  # pending replies will not be read
                connection.disconnect()
            self.release(connection)

    def close(self) -> None:
        self._pool.disconnect()

    def close_idle(self) -> None:
        self._pool.disconnect(inuse_connections=False)

    # --- for callers with several busy connections -----------------------------------------------------------------

    def connect(self) -> Any:
        """Take a connection from the pool; `release` gives it back. Raises: Unavailable, Refused."""
        try:
            return self._pool.get_connection()
        except REDIS_FAILURES as error:
            raise not_sent(error, self._address, probing.speaks_tls(error, self._address)) from error

    def release(self, connection: Any) -> None:
        if connection in self._replicas:
            self._replicas.discard(connection)
            connection.disconnect()
        self._pool.release(connection)

    def write(self, connection: Any, call: Call[Any], *commands: list[Argument]) -> None:
        """Send commands at once. Raises: OutcomeUnknown."""
        try:
            packed = b"".join([hiredis.pack_command(tuple(words)) for words in commands])  # type: ignore[arg-type]  # its stub knows one-word commands only
            connection.send_packed_command([packed], check_health=False)
        except REDIS_FAILURES as error:
            raise not_answered(error, self._address, call.what) from error

    def read(self, connection: Any, call: Call[Any]) -> Any:
        """Read the reply to the oldest call; for one of several parts, a list of replies and errors.

        Parts whose script the server does not have are sent again over another connection, because other calls may be
        in flight on this one. Raises: Refused, OutcomeUnknown.
        """
        if not call.is_chain:
            return self._read(connection, call.what)
        chain = Chain(call)
        chain.take(self._read_all(connection, call))
        if chain.lacks_scripts():
            with suppress(Unavailable, Refused):  # done parts stay done; the others keep their error
                chain.take(self.ask(chain.rest))
        return chain.replies

    def _read_all(self, connection: Any, call: Call[Any]) -> list[Any]:
        replies: list[Any] = []
        for part in call.parts:
            try:
                replies.append(self._read(connection, part.what))
            except ServerError as error:
                replies.append(error)
        return replies

    def ask_over(self, connection: Any, call: Call[Any], is_asking: bool = False) -> Any:
        """Like `ask`, over a connection taken before."""
        if call.is_chain:
            return self._ask_together(connection, call)
        for _ in range(SCRIPT_LOADS):
            try:
                return self._exchange(connection, call, is_asking)
            except ScriptUnknown:
                self._load(connection, call)
        return self._exchange(connection, call, is_asking)

    def _ask_together(self, connection: Any, call: Call[Any]) -> list[Any]:
        chain = Chain(call)
        chain.take(self._exchange_all(connection, chain.rest))
        if chain.lacks_scripts():
            self._load(connection, chain.rest)
            chain.take(self._exchange_all(connection, chain.rest))
        return chain.replies

    def _load(self, connection: Any, call: Call[Any]) -> None:
        for part in call.parts:
            if isinstance(part.what, Script):
                self.write(connection, part, ["SCRIPT", "LOAD", part.what.text])
                self._read(connection, part.what)

    def _exchange(self, connection: Any, call: Call[Any], is_asking: bool) -> Any:
        if is_asking:
            self.write(connection, call, ["ASKING"])
            self._read(connection, "ASKING")
        self.write(connection, call, call.words())
        return self._read(connection, call.what)

    def _exchange_all(self, connection: Any, call: Call[Any]) -> list[Any]:
        self.write(connection, call, *(part.words() for part in call.parts))
        return self._read_all(connection, call)

    def _answer(self, connection: Any, under_way: deque[Call[T]], early: deque[Any]) -> T:
        """The answer to the oldest call, perhaps read `early`. A call whose script the server lacks is sent again."""
        call = under_way.popleft()
        reply = early.popleft() if early else self._received(connection, call)
        if isinstance(reply, ScriptUnknown):
            early.extend([self._received(connection, one) for one in list(under_way)[len(early) :]])
            return call.read(self.ask_over(connection, call))
        if isinstance(reply, ServerError):
            raise reply
        return call.read(reply)

    def _received(self, connection: Any, call: Call[Any]) -> Any:
        """Returns the reply to the oldest call, or its error."""
        try:
            return self.read(connection, call)
        except ServerError as error:
            return error

    def _read(self, connection: Any, what: Script | str) -> Any:
        try:
            return connection.read_response()
        except REDIS_FAILURES as error:
            failure = not_answered(error, self._address, what)
            if type(failure) is NotPrimary:
                self._replicas.add(connection)
            raise failure from error
