"""A reply is lost, the client repeats the call, and now nobody can be reached: what happened is unknown, not nothing.

Found by `loadtest.torture`: jobs of a `schedule_many` ran although the producer had been told "unavailable".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pytest

from tests.transports import BlockingWith, ReplyLost
from wheelq import Client, JobSpec
from wheelq.errors import OutcomeUnknown, Unavailable
from wheelq.protocol.call import Call

T = TypeVar("T")


class Vanishing(BlockingWith):
    """The first reply to a schedule call is lost; from the second stream of calls on, no connection can be made."""

    def __init__(self, url: str) -> None:
        super().__init__(url, ReplyLost("schedule"))
        self._streams = 0

    def stream(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None = None) -> Iterator[T]:
        self._streams += 1
        if self._streams > 1:
            raise Unavailable("nobody answers")
        return super().stream(calls, refused)


def test_a_repeat_that_cannot_connect_does_not_undo_what_the_lost_call_did(url: str, topic: str) -> None:
    """The call happened, its reply was lost, and the repeat found no connection: the ids come with the error."""
    client = Client(Vanishing(url))
    with pytest.raises(OutcomeUnknown) as failure:
        client.schedule_many(topic, [JobSpec(delay=60, key="order-42")])
    assert failure.value.ids == ("order-42",)
    assert client.get(topic, "order-42") is not None, "the lost call had happened"
