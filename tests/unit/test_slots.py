"""Which server serves which key, and where a call goes that was turned away."""

from __future__ import annotations

from typing import Any

import pytest

from wheelq.errors import ConfigurationError, NotPrimary, OutcomeUnknown, Refused, ServerBusy, ServerFull, Unavailable
from wheelq.protocol.call import Call, command, together
from wheelq.protocol.keys import Keys
from wheelq.transport.address import Address, ServerKind
from wheelq.transport.failures import Redirected, ScriptUnknown
from wheelq.transport.redirects import FIRST_PAUSE, LONGEST_PAUSE, MOST_HOPS, Redirects, Stop
from wheelq.transport.slots import Node, SlotMap
from wheelq.transport.together import Chain

A, B, C = Node("a", 1), Node("b", 2), Node("c", 3)
THIRDS = [[0, 5460, [b"a", 1, b"id"]], [5461, 10922, [b"b", 2, b"id"], [b"r", 9, b"id"]], [10923, 16383, [b"c", 3]]]
DEADLINE = 100.0


def slots() -> SlotMap:
    return SlotMap.of_reply(THIRDS, asked=A)


def call(key: str | None = None) -> Redirects:
    return Redirects(command("GET", key or "", read=bytes, key=key), DEADLINE)


# --- the map ------------------------------------------------------------------------------------------------------


def test_a_key_is_served_by_the_owner_of_its_slot() -> None:
    """`foo` has slot 12182 and `bar` 5061, as the cluster specification's CRC16 has it."""
    assert (slots().slot("foo"), slots().slot("bar")) == (12_182, 5_061)
    assert (slots().owner("foo"), slots().owner("bar")) == (C, A)
    assert slots().nodes == (A, B, C), "replicas serve nothing"


def test_all_keys_of_a_shard_have_one_slot_and_shards_have_many() -> None:
    shards = [Keys().shard("orders", n) for n in range(100)]
    for keys in shards:
        assert len({slots().slot(key) for key in (keys.delayed, keys.jobs, keys.ready, keys.lease, keys.horizon)}) == 1
    assert len({slots().slot(keys.ready) for keys in shards}) == 100
    assert {slots().owner(keys.ready) for keys in shards} == {A, B, C}


@pytest.mark.parametrize("host", [None, b"", b"?"])
def test_a_node_that_does_not_know_its_address_is_where_it_was_reached(host: bytes | None) -> None:
    assert SlotMap.of_reply([[0, 16_383, [host, 7, b"id"]]], asked=Node("here", 1)).owner("k") == Node("here", 7)


def test_a_slot_that_nobody_serves_has_no_owner() -> None:
    found = SlotMap.of_reply(THIRDS[:1], asked=A)
    assert (found.owner("foo"), found.owner("bar"), SlotMap.empty().owner("bar")) == (None, A, None)


def test_one_server_is_a_map_with_one_slot() -> None:
    found = SlotMap.whole(B)
    assert (found.owner("foo"), found.owner(None), found.slot("foo"), found.slot("bar")) == (B, B, 0, 0)


def test_a_moved_slot_is_learned() -> None:
    found = slots()
    found.moved("foo", A)
    assert (found.owner("foo"), found.owner("bar")) == (A, A)


# --- journeys -----------------------------------------------------------------------------------------------------


def test_a_call_goes_to_the_owner_of_its_key() -> None:
    assert call("foo").stop(slots()) == Stop(C, is_asking=False)


def test_moved_goes_there_at_once_and_reads_the_map() -> None:
    redirects = call("foo")
    redirects.stop(slots())
    detour = redirects.failed(Redirected("MOVED", B, is_ask=False), now=0.0)
    assert (detour.pause, detour.reads_map) == (0.0, True)
    assert redirects.stop(slots()) == Stop(B, is_asking=False), "where the answer said, whatever the map says"


def test_ask_goes_there_this_once_and_leaves_the_map() -> None:
    redirects = call("foo")
    redirects.stop(slots())
    detour = redirects.failed(Redirected("ASK", B, is_ask=True), now=0.0)
    assert (detour.pause, detour.reads_map) == (0.0, False)
    assert redirects.stop(slots()) == Stop(B, is_asking=True)
    redirects.failed(ServerBusy("TRYAGAIN"), now=0.0)
    assert redirects.stop(slots()) == Stop(C, is_asking=False), "and then starts again"


def test_a_node_that_names_only_a_port_means_its_own_host() -> None:
    redirects = call("foo")
    redirects.stop(slots())
    redirects.failed(Redirected("MOVED", Node("", 9), is_ask=False), now=0.0)
    assert redirects.stop(slots()).node == Node("c", 9)


def test_nodes_that_send_a_call_in_circles_are_given_time() -> None:
    redirects = call("foo")
    pauses = []
    for _ in range(MOST_HOPS + 1):
        redirects.stop(slots())
        pauses.append(redirects.failed(Redirected("MOVED", B, is_ask=False), now=0.0).pause)
    assert pauses == [0.0] * MOST_HOPS + [FIRST_PAUSE]


@pytest.mark.parametrize("error", [ServerBusy("CLUSTERDOWN"), NotPrimary("READONLY"), Unavailable("refused")])
def test_a_passing_refusal_is_waited_out_until_the_deadline(error: ServerBusy | NotPrimary | Unavailable) -> None:
    redirects = call("foo")
    pauses = []
    for _ in range(8):
        redirects.stop(slots())
        detour = redirects.failed(error, now=DEADLINE - 0.001)
        assert detour.reads_map
        pauses.append(detour.pause)
    assert (pauses[0], pauses[-1]) == (FIRST_PAUSE, LONGEST_PAUSE)
    with pytest.raises(type(error)):
        redirects.failed(error, now=DEADLINE)


@pytest.mark.parametrize("error", [ServerFull("OOM"), Refused("WRONGTYPE")])
def test_any_other_refusal_goes_to_the_caller(error: Refused) -> None:
    with pytest.raises(type(error)):
        call("foo").failed(error, now=0.0)


def test_a_call_for_any_node_goes_to_another_when_one_is_gone() -> None:
    redirects = call()
    assert redirects.stop(slots()).node == A
    redirects.failed(Unavailable("gone"), now=0.0)
    assert redirects.stop(slots()).node in (B, C)


# --- several calls as one -----------------------------------------------------------------------------------------

SET, MARK = command("SET", "k", read=bool, key="k"), command("DEL", "k", read=int, key="k")
WAIT = command("WAIT", read=int)
BUSY = ServerBusy("TRYAGAIN")
REPLICA = NotPrimary("READONLY")


def names(call: Call[Any]) -> list[str]:
    return [part.name for part in call.parts]


@pytest.mark.parametrize(
    ("replies", "again"),
    [
        pytest.param([BUSY, BUSY, 0], ["SET", "DEL", "WAIT"], id="nothing was done"),
        pytest.param([True, BUSY, 0], ["DEL", "WAIT"], id="what was done does not go again"),
        pytest.param([BUSY, 1, 1], ["SET", "WAIT"], id="what waits goes again behind it"),
        pytest.param([True, 1, BUSY], [], id="WAIT names no key: that it was refused does not undo the rest"),
    ],
)
def test_only_the_calls_that_were_not_done_go_again(replies: list[Any], again: list[str]) -> None:
    redirects = Redirects(together([SET, MARK, WAIT], list), DEADLINE)
    failure = redirects.came(replies)
    assert redirects.is_over is (failure is None) is (again == [])
    if again:
        assert failure is BUSY
        assert names(redirects.call) == again
        assert redirects.came([7] * len(again)) is None
    places = {"SET": 0, "DEL": 1, "WAIT": 2}
    assert redirects.reply == [7 if name in again else replies[place] for name, place in places.items()]


@pytest.mark.parametrize(
    ("replies", "is_known"),
    [
        pytest.param([True, REPLICA, 0], False, id="the former primary found the job: the next one may not have it"),
        pytest.param([REPLICA, REPLICA, 0], True, id="nothing was done: the next one does it all"),
    ],
)
def test_only_the_node_that_has_done_a_part_may_do_the_rest(replies: list[Any], is_known: bool) -> None:
    redirects = Redirects(together([SET, MARK, WAIT], list), DEADLINE)
    assert redirects.stop(SlotMap.whole(A)).node == A
    assert redirects.came(replies) is REPLICA
    assert redirects.stop(SlotMap.whole(A)).node == A  # the map does not know of the failover yet
    if is_known:
        assert redirects.stop(SlotMap.whole(B)).node == B
    else:
        with pytest.raises(OutcomeUnknown, match="repeating the call is safe"):
            redirects.stop(SlotMap.whole(B))


def test_a_single_repeated_call_is_answered_with_a_list() -> None:
    """Errors stand in the places of replies, and are not raised."""
    chain = Chain(together([SET, MARK], list))
    chain.take([True, ScriptUnknown("unknown")])
    assert chain.lacks_scripts()
    assert (chain.rest.is_chain, names(chain.rest)) == (True, ["DEL"])


def test_when_time_is_up_what_was_done_is_told() -> None:
    """To the caller, who reads the errors among the replies; else it would seem that nothing was done."""
    redirects = Redirects(together([SET, MARK, WAIT], list), DEADLINE)
    redirects.stop(slots())
    failure = redirects.came([True, BUSY, 0])
    assert failure is not None
    redirects.failed(failure, now=DEADLINE)
    assert (redirects.is_over, redirects.reply) == (True, [True, BUSY, 0])


def test_several_calls_together_do_not_follow_one_of_them() -> None:
    """ASK: some may have to go, others not yet."""
    redirects = Redirects(together([SET, WAIT], list), DEADLINE)
    redirects.stop(slots())
    assert redirects.failed(Redirected("ASK", B, is_ask=True), now=0.0).pause > 0


# --- addresses ----------------------------------------------------------------------------------------------------


def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    address = Address("redis+cluster://user:p%40ss@one:7001,two,[::1]:7003")
    assert address.kind is ServerKind.CLUSTER
    assert address.nodes == (Node("one", 7001), Node("two", 6379), Node("::1", 7003))
    assert "p%40ss" not in address.shown


def test_sentinels_are_named_with_the_service_they_watch() -> None:
    address = Address("rediss+sentinel://:secret@one,two:5/jobs/2?sentinel_password=other")
    assert (address.kind, address.service) == (ServerKind.SENTINEL, "jobs")
    assert address.nodes == (Node("one", 26_379), Node("two", 5))
    assert "secret" not in address.shown
    assert "other" not in address.shown


@pytest.mark.parametrize(
    "url", ["redis+sentinel://one:26379", "redis+cluster://", "redis+ring://one", "redis+sentinel://one/jobs/two"]
)
def test_an_address_of_several_that_is_wrong_is_told(url: str) -> None:
    with pytest.raises(ConfigurationError):
        Address(url)
