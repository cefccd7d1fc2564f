"""The protocol page is true: it quotes the scripts as they are, and each of its examples gives what it says."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import wheelq.protocol
from tests.protocol.conftest import Service, without_wheelq
from tests.records import tags_of
from wheelq import Client, JobState
from wheelq.model.dead import Reason
from wheelq.model.topic import Topic
from wheelq.protocol import codec, registry_codec, scripts
from wheelq.protocol.codec import LAST_MS
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, TopicSettings, WorkerSettings

PAGE = (Path(wheelq.protocol.__file__).parent / "PROTOCOL.md").read_text()
SINCE_7 = "(since Redis 7.0)"
END = "@@@ end of block"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_each_script_is_quoted_by_its_header_as_it_is() -> None:
    """A change of KEYS, ARGV or replies changes the page, or fails here."""
    quoted = {block.rstrip("\n") for block in blocks("lua") if block.startswith("--")}
    called = set(re.findall(r"(\w+)\.lua", "".join(blocks("sh"))))
    assert {"schedule", "get", "cancel", "reschedule", "ack", "retry", "bury"} < called
    assert quoted == {"\n".join(scripts.header(name)) for name in called}


def test_each_key_of_the_page_is_named_as_it_is() -> None:
    shard = Keys().shard("T", 0)
    stem = shard.delayed.removesuffix("delayed")
    named = set(re.findall(rf"{re.escape(stem)}(\w+)", PAGE))
    more = re.search(r"^\| ((?:`\w+` )+)\| \| the same stem", PAGE, re.MULTILINE)
    assert more is not None
    for name in named - {"tags"} | set(re.findall(r"\w+", more[1])):
        assert getattr(shard, name) == stem + name
    assert [f"`{key.replace('30', 'S')}`" in PAGE for key in tags_of(shard, 30_000)] == [True, True]
    assert all(key.removeprefix(stem) in PAGE for key in tags_of(shard, 30_000))


def test_bytes_and_figures_are_what_the_page_says_of_them() -> None:
    examples = [bytes.fromhex(line) for line in re.findall(r"^    ((?:[0-9a-f]{2} )+) ", PAGE, re.MULTILINE)]
    plain, with_headers, with_key, with_attempts = examples
    assert [codec.decode(record).payload for record in examples] == ["hello"] * 4
    life = codec.life_of(plain)
    parts = codec.Parts("eu")
    assert examples == [
        codec.encode("hello", None, 100, life=life),
        codec.encode("hello", {"a": "b"}, 100, life=life),
        codec.encode("hello", None, 100, parts, life=life),
        codec.encode("hello", None, 100, codec.Parts(max_attempts=3), life=life),
    ]
    assert codec.decode(with_headers).headers == {"a": "b"}
    assert codec.decode(with_key).partition_key == "eu"
    assert codec.decode(with_attempts).max_attempts == 3
    assert f"`\\x{codec.VERSION:02x}`" in PAGE
    assert f"`{LAST_MS}`" in PAGE
    assert r"`\x81\xa6shards\x04` makes four shards" in PAGE
    assert registry_codec.decode_topic(b"\x81\xa6shards\x04") == Topic(shards=4)
    assert registry_codec.decode_topic(b"\x80") == Topic()
    assert f"`{Topic(shards=4, max_pending=1_000, max_rate=100.0).terms}`" in PAGE

    worker, topic = WorkerSettings(), TopicSettings()
    assert f"not renewed for {worker.abandoned_ms / 1000} s" in PAGE
    assert f"every {worker.renew_ms / 1000} s" in PAGE
    assert (worker.max_deliveries, ClientSettings().payload_max_bytes, topic.retention_ms) == (10, 64 * 1024, 0)
    assert f"`dead_retention_ms` (missing: {topic.dead_retention_ms})" in PAGE
    assert f"`dead_max` (missing: {topic.dead_max})" in PAGE
    assert all(f"`{reason}`" in PAGE for reason in Reason if reason is not Reason.NO_RECORD)


def test_every_part_and_option_of_a_record_is_on_the_page() -> None:
    """`codec` has the list of them."""
    table = re.findall(r"^\| ((?:`\w`(?:, )?)+) ", codec.__doc__ or "", re.MULTILINE)
    options = {option for row in table for option in re.findall(r"\w", row)}
    assert len(options) > 5
    assert options == set(re.findall(r"`(\w)`", "".join(re.findall(r"^\| ((?:`\w`(?:, )?)+) \|", PAGE, re.MULTILINE))))


# --- with redis-cli -------------------------------------------------------------------------------------------------


class Terminal:
    """A shell on a terminal of its own, as a reader has it: `redis-cli` shows the types of replies only there."""

    def __init__(self, service: Service, redis_cli: str) -> None:
        commands = service.directory / "bin"
        commands.mkdir()
        _write(commands / "redis-cli", f'exec "{redis_cli}" -s "{service.socket}" "$@"')
        _write(commands / "wheelq", f'exec "{sys.executable}" -m wheelq "$@"')
        self._environment = without_wheelq() | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
        self._directory = service.directory

    def run(self, texts: list[str]) -> list[list[str]]:
        """The lines that each text printed, one shell running them all."""
        script = "".join(f"{text}\necho '{END}'\n" for text in texts)
        ours, theirs = pty.openpty()
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        said = b"".join(_until_closed(ours)).decode(errors="backslashreplace").replace("\r\n", "\n")
        assert shell.wait() == 0, said
        return [part.strip("\n").split("\n") if part.strip() else [] for part in said.split(f"{END}\n")[:-1]]


def _write(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


def _until_closed(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # on Linux this is how a terminal tells that the other end is closed
            part = b""
        if not part:
            os.close(terminal)
            return
        yield part


def expected(block: str, *, is_old: bool) -> list[str]:
    lines = [line.removeprefix("# ") for line in block.splitlines() if line.startswith("# ")]
    return [line.removesuffix(SINCE_7).rstrip() for line in lines if not (is_old and line.endswith(SINCE_7))]


def without_moments(lines: list[str]) -> list[str]:
    """Times and entry ids differ from run to run; in a record, the time is six bytes, shown as text or as escapes."""
    in_text = [re.sub(r"\d{13,}(-\d+)?", lambda found: "entry" if found[1] else "time", line) for line in lines]
    return [re.sub(r'"\\x02(\\x..|\\.|[^\\]){6}', '"\\\\x02 time', line) for line in in_text]


def test_every_example_gives_what_the_page_says(service: Service, redis_cli: str) -> None:
    """Schedule, look up, move, cancel, consume, ack, retry, bury, recover: with `redis-cli` and no code of wheelq's but
    the scheduler."""
    with redis.Redis.from_url(service.url) as connection:
        is_old = connection.info("server")["redis_version"].startswith("6.")
    examples = blocks("sh")
    for example, said in zip(examples, Terminal(service, redis_cli).run(examples), strict=True):
        assert without_moments(said) == without_moments(expected(example, is_old=is_old)), example
    with Client.connect(service.url) as client:
        assert [dead.error for dead in client.dead.list("mail").jobs] == ["no address"]
        assert [(found.waiting, found.ready) for found in client.topics()] == [(0, 0)]


# --- the producer in Lua --------------------------------------------------------------------------------------------

OPENRESTY = """
ngx = {now = os.time, crc32_long = crc32}
package.loaded["resty.random"] = {bytes = random_bytes}
local red = {}
function red:evalsha(...) return send("EVALSHA", ...) end
function red:script(...) return send("SCRIPT", ...) end
return red
"""


@pytest.mark.parametrize("shards", [1, 5, 300])
def test_the_producer_in_lua_schedules_where_the_library_finds_it(url: str, topic: str, shards: int) -> None:
    """Also after the number of shards has changed under it, and a restart has made the server forget its scripts."""
    lupa = pytest.importorskip("lupa.lua51", reason="lupa is not installed")
    lua = lupa.LuaRuntime(encoding=None, unpack_returned_tuples=True)
    connection = redis.Redis.from_url(url)

    def send(*words: Any) -> Any:
        try:
            return as_lua(connection.execute_command(*words))
        except redis.ResponseError as error:
            return None, f"{type(error).__name__} {error}".replace("NoScriptError", "NOSCRIPT").encode()

    def as_lua(reply: Any) -> Any:
        return lua.table_from([as_lua(part) for part in reply]) if isinstance(reply, list) else _text(reply)

    names = lua.globals()
    names[b"send"], names[b"crc32"], names[b"random_bytes"] = send, zlib.crc32, os.urandom
    red = lua.execute(OPENRESTY.encode())
    module = lua.execute(re.search(r"<!-- file: wheelq.lua -->\n```lua\n(.*?)```", PAGE, re.DOTALL)[1].encode())  # type: ignore[index]
    for name in ("schedule", "register_topic"):
        module[b"scripts"][name.encode()] = scripts.script(name).text.encode()

    def job(id: str, text: str) -> Any:
        return module[b"job"](id.encode(), 3_600_000, text.encode())

    def schedule(job: Any) -> Any:
        return module[b"schedule"](red, topic.encode(), job)

    with Client.connect(url) as client, connection:
        schedule(job("first", "in one shard"))
        client.set_shards(topic, shards)
        order = job("order-42", '{"id": 42}' * 100)
        due_ms, is_new = schedule(order)
        assert is_new
        connection.script_flush()
        assert schedule(order) == (due_ms, True)  # the same call: the same answer
        assert schedule(job("order-42", "another")) == (due_ms, False)
        found = client.get(topic, "order-42")
        assert found is not None
        assert (found.state, found.due_ms, found.payload) == (JobState.WAITING, due_ms, '{"id": 42}' * 100)
        client.cancel(topic, "order-42")
        client.set_shards(topic, shards + 1)
        assert schedule(order) == (due_ms, True)
        assert client.get(topic, "order-42") is None, "the repeated call made no job"
        module[b"known"] = lua.table()  # another process
        assert schedule(job("order-43", ""))[1]
        assert client.get(topic, "order-43") is not None


def _text(reply: Any) -> Any:
    return reply.encode() if isinstance(reply, str) else reply
