"""The simulated server answers as a real one does: the same commands and scripts on both, reply by reply."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from loadtest.simulation.server import Server, Session
from loadtest.simulation.store.database import Refusal
from loadtest.simulation.world import World
from wheelq.embedded import EmbeddedServer

MEMBERS = some.sampled_from(["a", "b", "c", "d"])
SCORES = some.sampled_from(["1", "2.75", "3", "1763000000000.25", "-1"])
FIELDS = some.sampled_from(["f", "g", "h"])
ENDS = some.sampled_from(["-inf", "+inf", "(2", "2.75", "3", "(3"])
IDS = some.sampled_from(["1-0", "2-0", "3-5", "4-1"])
CONSUMERS = some.sampled_from(["x", "y"])
IDLE = "3600000"

COMMANDS = some.one_of(
    some.tuples(some.just("ZADD"), some.just("z"), SCORES, MEMBERS),
    some.tuples(some.just("ZREM"), some.just("z"), MEMBERS, MEMBERS),
    some.tuples(some.just("ZRANGEBYSCORE"), some.just("z"), ENDS, ENDS, some.just("WITHSCORES")),
    some.tuples(some.just("ZCOUNT"), some.just("z"), ENDS, ENDS),
    some.tuples(
        some.just("ZRANGE"), some.just("z"), some.sampled_from(["0", "-1", "1"]), some.sampled_from(["0", "-1"])
    ),
    some.tuples(some.just("ZMSCORE"), some.just("z"), MEMBERS, MEMBERS),
    some.tuples(some.sampled_from(["ZCARD", "EXISTS", "PTTL", "TYPE"]), some.sampled_from(["z", "h", "s", "n"])),
    some.tuples(some.just("HSET"), some.just("h"), FIELDS, MEMBERS),
    some.tuples(some.just("HSETNX"), some.just("h"), FIELDS, MEMBERS),
    some.tuples(some.just("HMGET"), some.just("h"), FIELDS, FIELDS),
    some.tuples(some.just("HDEL"), some.just("h"), FIELDS, FIELDS),
    some.tuples(some.just("HINCRBY"), some.just("n"), FIELDS, some.sampled_from(["1", "-2"])),
    some.tuples(some.just("DEL"), some.sampled_from(["z", "h", "n"])),
    some.tuples(some.just("XADD"), some.just("s"), IDS, FIELDS, MEMBERS),
    some.tuples(some.just("XDEL"), some.just("s"), IDS),
    some.tuples(some.sampled_from(["XLEN"]), some.just("s")),
    some.tuples(
        some.just("XRANGE"), some.just("s"), some.sampled_from(["-", "(1-0", "2"]), some.sampled_from(["+", "3-5"])
    ),
    some.tuples(
        some.just("XREVRANGE"), some.just("s"), some.just("+"), some.just("-"), some.just("COUNT"), some.just("1")
    ),
    some.tuples(some.just("XTRIM"), some.just("s"), some.just("MINID"), IDS),
    some.tuples(
        *map(some.just, ["XGROUP", "CREATE", "s"]), CONSUMERS, some.sampled_from(["0", "$"]), some.just("MKSTREAM")
    ),
    some.tuples(*map(some.just, ["XGROUP", "DELCONSUMER", "s", "x"]), CONSUMERS),
    some.tuples(
        *map(some.just, ["XREADGROUP", "GROUP", "x"]), CONSUMERS, *map(some.just, ["COUNT", "2", "STREAMS", "s", ">"])
    ),
    some.tuples(*map(some.just, ["XACK", "s", "x"]), IDS, IDS),
    some.tuples(*map(some.just, ["XPENDING", "s", "x"])),
    some.tuples(*map(some.just, ["XCLAIM", "s", "x"]), CONSUMERS, some.just("0"), IDS, some.just("JUSTID")),
    some.tuples(*map(some.just, ["XCLAIM", "s", "x"]), CONSUMERS, some.just(IDLE), IDS),
    some.tuples(
        *map(some.just, ["XAUTOCLAIM", "s", "x"]), CONSUMERS, some.just("0"), some.just("0-0"), some.just("JUSTID")
    ),
)


class Both:
    """A real server and a simulated one."""

    def __init__(self, url: str) -> None:
        self._real = redis.Redis.from_url(url, db=9, protocol=2)  # the replies of RESP3 have other types
        self._real.flushdb()
        self._real.response_callbacks.clear()
        self._simulated = Server(World(1), "redis")

    def real(self, *words: str) -> Any:
        try:
            return _plain(self._real.execute_command(*words))
        except redis.ResponseError as error:
            return f"refused: {str(error).split()[0]}"

    def simulated(self, *words: str) -> Any:
        try:
            return _plain(self._simulated.write([word.encode() for word in words]))
        except Refusal:
            return "refused"

    def close(self) -> None:
        self._real.flushdb()
        self._real.close()


def _plain(reply: Any) -> Any:
    if isinstance(reply, (list, tuple)):
        return [_plain(one) for one in reply]
    if reply is True or reply in (b"OK", "OK"):
        return "OK"
    return reply.encode() if isinstance(reply, str) else bytes(reply) if isinstance(reply, bytes) else reply


@pytest.fixture
def both(url: str) -> Callable[[], Both]:
    with redis.Redis.from_url(url) as server:
        if str(server.info("server")["redis_version"]).startswith("6."):
            pytest.skip("the simulated server is like those from 7.0 on: 6.2 answers XAUTOCLAIM in another form")
    return lambda: Both(url)


@given(commands=some.lists(COMMANDS, min_size=5, max_size=40))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_commands_are_answered_as_by_a_real_server(
    both: Callable[[], Both], commands: list[tuple[str, ...]]
) -> None:
    servers = both()
    try:
        for words in commands:
            real, simulated = servers.real(*words), servers.simulated(*words)
            if isinstance(real, str) and real.startswith("refused"):
                assert simulated == "refused", words
            else:
                assert simulated == real, words
    finally:
        servers.close()


FIRST_WRITES = {"redis.call('HDEL', 'h', 'f')": True, "redis.pcall('HSET', 'h', 'f', '1')": False, "0": False}
"""What a script does first, and whether a full server then lets it write on."""


@pytest.mark.parametrize("first", FIRST_WRITES)
def test_a_full_server_lets_a_script_go_on_that_has_written(
    private_server: Callable[..., EmbeddedServer], first: str
) -> None:
    """Or else a script would be broken off half-way, as it is on no server."""
    script = f"local _ = {first}; return redis.call('HSET', 'h', 'g', '1')"
    with redis.Redis.from_url(private_server(appendonly=False).url) as real:
        real.config_set("maxmemory", "100kb")
        try:
            has_gone_on = real.eval(script, 0) == 1
        except redis.ResponseError:
            has_gone_on = False
    simulated, session = Server(World(1), "redis"), cast(Session, SimpleNamespace())
    sha = simulated.script(session, [b"SCRIPT", b"LOAD", script.encode()])
    simulated.refusals.is_full = True
    try:
        has_gone_on_here = simulated.evalsha(session, [b"EVALSHA", sha, b"0"]) == 1
    except Refusal:
        has_gone_on_here = False
    assert has_gone_on_here == has_gone_on == FIRST_WRITES[first]


def test_a_scan_of_a_large_hash_returns_every_field_that_stays() -> None:
    simulated = Server(World(1), "redis")

    def do(*words: str) -> Any:
        return simulated.write([word.encode() for word in words])

    do("HSET", "h", *(part for n in range(50) for part in (f"f{n}", "v")), "=home", "w")
    assert do("HSCAN", "h", "0", "MATCH", "[^f]*", "COUNT", "100") == [b"0", [b"=home", b"w"]]
    found, cursor, pages = set[bytes](), "0", 0
    while pages == 0 or cursor != "0":
        following, page = do("HSCAN", "h", cursor, "COUNT", "3")
        found |= set(page[::2])
        cursor, pages = following.decode(), pages + 1
        do("HDEL", "h", f"f{pages}", "=home")
    assert found >= {b"f%d" % n for n in range(pages + 1, 50)}
    assert 10 < pages <= 17
