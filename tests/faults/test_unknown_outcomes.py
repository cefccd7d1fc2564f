"""A reply is lost after the write, and what follows goes wrong too: no caller may be told more than is known.

Found by `loadtest.torture`: jobs ran although their producers had been told that nothing was done.
"""

from __future__ import annotations

import pytest

from tests.transports import BlockingWith, Refusing, ReplyLost, Unreachable
from wheelq import Client, JobSpec
from wheelq.errors import OutcomeUnknown, Refused, ServerError, Unavailable

TWO_BATCHES = [JobSpec(n, delay=60, key=f"key-{n}") for n in range(501)]


@pytest.mark.parametrize("then", [Refusing, Unreachable])
def test_a_repeat_that_fails_does_not_undo_what_the_lost_call_did(url: str, topic: str, then: type[Refusing]) -> None:
    """The first call happened and its reply was lost; the repeat is refused: the outcome is unknown, not "nothing"."""
    client = Client(BlockingWith(url, ReplyLost("schedule"), then("schedule", after=1)))
    with pytest.raises(OutcomeUnknown, match="no reply came, and repeating it failed: no") as failure:
        client.schedule(topic, delay=60, key="order-42")
    assert type(failure.value) is OutcomeUnknown, "there are no others that were scheduled"
    assert failure.value.ids == ("order-42",)
    assert client.get(topic, "order-42") is not None, "the lost call had happened"


@pytest.mark.parametrize("then", [Refusing, Unreachable])
def test_a_repeat_of_many_that_fails_does_not_undo_what_the_lost_calls_did(
    url: str, topic: str, then: type[Refusing]
) -> None:
    """The same for `schedule_many`: the ids whose calls were sent have an unknown outcome."""
    client = Client(BlockingWith(url, ReplyLost("schedule"), then("schedule", after=1)))
    with pytest.raises(OutcomeUnknown) as failure:
        client.schedule_many(topic, [JobSpec(delay=60, key="order-42")])
    assert failure.value.ids == ("order-42",)


def test_a_refusal_in_the_middle_of_many_does_not_hide_what_was_done_before(url: str, topic: str) -> None:
    """The first 500 were scheduled, the rest was refused: then "refused", which says nothing was done, is untrue."""
    client = Client(BlockingWith(url, Refusing("schedule", after=1)))
    with pytest.raises(ServerError) as failure:
        client.schedule_many(topic, TWO_BATCHES)
    assert client.get(topic, "key-0") is not None
    assert not isinstance(failure.value, (Refused, Unavailable))


def test_a_refusal_at_once_is_a_refusal(url: str, topic: str) -> None:
    """Nothing was lost before: nothing was done, and that is what is said."""
    client = Client(BlockingWith(url, Refusing("schedule")))
    with pytest.raises(Refused):
        client.schedule(topic, delay=60, key="order-42")
    assert client.get(topic, "order-42") is None
