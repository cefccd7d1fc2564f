"""`Transport`: sends calls and waits for the answers. Safe for threads; each call has a connection to itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import hiredis

from wheelq.errors import ServerError, WheelqError
from wheelq.protocol.call import Argument, Call
from wheelq.protocol.scripts import Script
from wheelq.transport.address import Address
from wheelq.transport.failures import REDIS_FAILURES, ScriptUnknown, not_answered, not_sent

T = TypeVar("T")


class Transport:
    """A pool of blocking connections to one server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool = address.pool()

    def send(self, call: Call[T]) -> T:
        """The answer to one call.

        Raises: Unavailable (nothing was done), Refused (nothing was done), OutcomeUnknown (repeat the call).
        """
        connection = self._connect()
        try:
            return call.read(self._ask(connection, call))
        finally:
            self._pool.release(connection)

    def stream(self, calls: Iterable[Call[T]]) -> Iterator[T]:
        """The answers to many calls, in order; while the server works on one, the next is made and sent.

        Raises as `send` does, at the first call that fails; of the calls after it, some may have happened.
        """
        connection = self._connect()
        under_way: deque[Call[T]] = deque()
        try:
            remaining = iter(calls)
            for first in remaining:  # alone, so that a script unknown to the server is loaded before others need it
                yield first.read(self._ask(connection, first))
                break
            failure: WheelqError | None = None
            while True:
                try:
                    call = next(remaining)
                except StopIteration:
                    break
                except WheelqError as error:  # the next call cannot be made: read what is still to come, then say so
                    failure = error
                    break
                self._write(connection, call, *(part.words() for part in call.parts))
                under_way.append(call)
                if len(under_way) > 1:
                    yield self._answer(connection, under_way)
            while under_way:
                yield self._answer(connection, under_way)
            if failure is not None:
                raise failure
        finally:
            if under_way:  # replies are still to come that nobody will read
                connection.disconnect()
            self._pool.release(connection)

    def close(self) -> None:
        """Close all connections."""
        self._pool.disconnect()

    def _connect(self) -> Any:
        try:
            return self._pool.get_connection()
        except REDIS_FAILURES as error:
            raise not_sent(error, self._address.shown) from error

    def _answer(self, connection: Any, under_way: deque[Call[T]]) -> T:
        reply = self._reply(connection, under_way[0])
        return under_way.popleft().read(reply)

    def _ask(self, connection: Any, call: Call[T]) -> Any:
        self._write(connection, call, *(part.words() for part in call.parts))
        try:
            return self._reply(connection, call)
        except ScriptUnknown:
            for part in call.parts:
                if isinstance(part.what, Script):
                    self._write(connection, part, ["SCRIPT", "LOAD", part.what.text])
                    self._read(connection, part)
            self._write(connection, call, *(part.words() for part in call.parts))
            return self._reply(connection, call)

    def _reply(self, connection: Any, call: Call[Any]) -> Any:
        """The reply to a call; of several together a list, with errors in the places of replies."""
        if not call.behind:
            return self._read(connection, call)
        replies: list[Any] = []
        for part in call.parts:
            try:
                replies.append(self._read(connection, part))
            except ServerError as error:
                replies.append(error)
        for reply in replies:
            if isinstance(reply, ScriptUnknown):
                raise reply
        return replies

    def _write(self, connection: Any, call: Call[Any], *commands: list[Argument]) -> None:
        try:
            packed = b"".join(hiredis.pack_command(tuple(words)) for words in commands)  # type: ignore[arg-type]  # its stub knows one-word commands only
            connection.send_packed_command([packed], check_health=False)
        except REDIS_FAILURES as error:
            raise not_answered(error, self._address.shown, call.name) from error

    def _read(self, connection: Any, call: Call[Any]) -> Any:
        try:
            return connection.read_response()
        except REDIS_FAILURES as error:
            raise not_answered(error, self._address.shown, call.name) from error
