"""`Gathering`: what many shards ask at leisure shares calls, and each gets its own answer."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from tests.waiting import until
from wheelq.base.clock import SystemClock
from wheelq.errors import NotLeader, Refused, Unavailable
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leader
from wheelq.protocol.keys import Keys
from wheelq.scheduler import promoter
from wheelq.scheduler.promoter import MOST_SHARDS, Gathering


class Server:
    """Answers each call with the tokens in it; a shard whose token is a number gets its error instead."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.calls: list[list[str]] = []
        self._fails = fails

    def slot(self, key: str) -> int:
        return 7 if "elsewhere" in key else 0

    async def send(self, call: Call[Any]) -> Any:
        if len(call.keys) == 4:  # of one shard
            self.calls.append([str(call.args[0])])
            return f"answer to {call.args[0]}"
        tokens = [str(call.args[2 + 4 * n]) for n in range(int(call.args[0]))]
        self.calls.append(tokens)
        await asyncio.sleep(0)
        if self._fails is not None:
            raise self._fails
        return [NotLeader(token) if token == "lost" else f"answer to {token}" for token in tokens]


def renew(token: str, topic: str = "t") -> Call[Any]:
    return leader.renew(Keys().shard(topic, 0), token, 9_000)


def gathering(server: Server) -> Gathering:
    return Gathering(server, SystemClock())  # type: ignore[arg-type]


async def ask(node: Gathering, token: str, topic: str = "t") -> object:
    _, answer = await node.ask(renew(token, topic))
    return answer


async def test_the_first_question_goes_at_once_and_those_soon_after_it_share_a_call() -> None:
    node = gathering(server := Server())
    assert await ask(node, "a") == "answer to a"
    assert await asyncio.gather(*(ask(node, token) for token in "bcd")) == [f"answer to {token}" for token in "bcd"]
    assert server.calls == [["a"], ["b", "c", "d"]]


async def test_after_a_quiet_moment_a_question_goes_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promoter, "GATHER_S", 0.0)
    node = gathering(server := Server())
    for token in "abc":
        await asyncio.sleep(0.001)  # longer than a quiet moment lasts
        await ask(node, token)
    assert server.calls == [["a"], ["b"], ["c"]]


async def test_questions_for_different_slots_share_no_call() -> None:
    node = gathering(server := Server())
    topics = ["here", "elsewhere"] * 3
    await asyncio.gather(*(ask(node, f"{topic}-{n}", topic) for n, topic in enumerate(topics)))
    assert all(len({token.partition("-")[0] for token in tokens}) == 1 for tokens in server.calls)
    assert len(server.calls) == 4, "of each slot one at once, and the others together"


async def test_a_full_call_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promoter, "GATHER_S", 3_600.0)
    node = gathering(server := Server())
    await ask(node, "first")
    tokens = [f"{n}" for n in range(MOST_SHARDS)]
    assert await asyncio.gather(*(ask(node, token) for token in tokens)) == [f"answer to {token}" for token in tokens]
    assert [len(some) for some in server.calls] == [1, MOST_SHARDS]


async def test_each_shard_gets_its_own_error() -> None:
    node = gathering(Server())
    await ask(node, "first")
    found = await asyncio.gather(*(ask(node, token) for token in ("a", "lost", "b")), return_exceptions=True)
    assert [found[0], type(found[1]), found[2]] == ["answer to a", NotLeader, "answer to b"]


@pytest.mark.parametrize("error", [Unavailable("away"), Refused("full"), ValueError("spoilt")])
async def test_a_call_that_fails_fails_for_all_who_asked(error: Exception) -> None:
    node = gathering(Server(error))
    await ask(node, "first")
    found = await asyncio.gather(*(ask(node, token) for token in "ab"), return_exceptions=True)
    assert found == [error, error]


async def test_nothing_is_sent_when_all_who_asked_have_ended() -> None:
    """The node may have stopped: a call would open its connection again."""
    node = gathering(server := Server())
    await ask(node, "first")
    asking = [asyncio.create_task(ask(node, token)) for token in "ab"]
    await asyncio.sleep(0)
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)
    await until(lambda: not node._waiting)
    assert (server.calls, node._under_way) == ([["first"]], set())


async def test_a_shard_that_ends_meanwhile_keeps_nothing_from_the_others() -> None:
    node = gathering(Server())
    await ask(node, "first")
    ends, stays = (asyncio.create_task(ask(node, token)) for token in "ab")
    await asyncio.sleep(0)
    ends.cancel()
    assert await stays == "answer to b"
    with pytest.raises(asyncio.CancelledError):
        await ends


async def test_an_error_that_nobody_waits_for_any_more_is_not_reported() -> None:
    node, reported = gathering(server := Server(Unavailable("away"))), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await ask(node, "first")
    given_up = ask(node, "a")
    given_up.send(None)
    given_up.close()
    with suppress(Unavailable):
        await ask(node, "b")
    assert server.calls[-1] == ["a", "b"]
    server._fails = None
    await asyncio.sleep(0)  # then nothing refers to the error
    gc.collect()
    assert reported == []
