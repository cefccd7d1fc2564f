"""`ask_all`: sends many calls to Redis in a few batches, and returns their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from wheelq.errors import ServerError
from wheelq.protocol.call import Call, together
from wheelq.transport import AsyncTransport

T = TypeVar("T")

AT_ONCE = 20
"""The most calls in one batch, which delays all other clients of the server."""


async def ask_all(transport: AsyncTransport, calls: Sequence[Call[T]]) -> list[T]:
    """Returns the answers in the order of the calls; each call must name its key. Raises: ServerError."""
    by_slot: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        assert call.key is not None, call.name
        by_slot.setdefault(transport.slot(call.key), []).append(place)
    batches = [some[n : n + AT_ONCE] for some in by_slot.values() for n in range(0, len(some), AT_ONCE)]
    answers = await asyncio.gather(*(transport.send(_batch([calls[n] for n in batch])) for batch in batches))
    found: dict[int, T] = {}
    for batch, some in zip(batches, answers, strict=True):
        found |= zip(batch, some, strict=True)
    return [found[place] for place in range(len(calls))]


def _batch(calls: Sequence[Call[T]]) -> Call[list[T]]:
    def read(replies: Sequence[Any | ServerError]) -> list[T]:
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return [call.read(reply) for call, reply in zip(calls, replies, strict=True)]

    return together(calls, read)
