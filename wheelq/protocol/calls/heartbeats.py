"""Which scheduler nodes and workers are alive, what they report, and which node leads which shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from wheelq.errors import ServerError
from wheelq.protocol import registry_codec
from wheelq.protocol.call import Call, answers, command, nothing, scripted, together
from wheelq.protocol.calls.registry import version_of
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys


def beat_node(keys: Keys, node: str, what: Mapping[str, Any]) -> Call[int]:
    """Send a scheduler node's heartbeat and report; returns the server's time in microseconds.

    A server that is out of memory refuses it, but takes `beat_node_though_full`, which costs it twice the commands.
    """
    written = command("HSET", keys.nodes, node, msgpack.packb(dict(what)), read=nothing, key=keys.nodes)
    calls: list[Call[Any]] = [written, server_time_us(keys.nodes)]

    def read(replies: Sequence[Any | ServerError]) -> int:
        _, server_us = answers(calls, replies)
        return int(server_us)

    return together(calls, read)


def beat_node_though_full(keys: Keys, node: str, what: Mapping[str, Any]) -> Call[int]:
    """The same as `beat_node`, also while the server is out of memory."""
    return scripted("beat", (keys.nodes,), (node, msgpack.packb(dict(what))), int)


def beat_courier(keys: Keys, place: str, what: Mapping[str, Any]) -> Call[None]:
    """Send the report of the courier that delivers from this SQL outbox."""
    return command("HSET", keys.couriers, place, msgpack.packb(dict(what)), read=nothing, key=keys.couriers)


class Beats(NamedTuple):
    """The answer to a worker's heartbeat."""

    server_us: int
    """The server's time; 0 if it was not asked for."""
    beats: dict[str, str]
    """The last heartbeat of every worker, including the caller."""


LEFT = "left"
"""Replaces the number in the heartbeat of a worker that has stopped and left deliveries for others."""


def beat_worker(
    keys: Keys, worker: str, beat: str, report: Mapping[str, Any] | None = None, *, asks_time: bool = True
) -> Call[Beats]:
    """Send a worker's heartbeat, and its report if given. Returns all heartbeats.

    A server that is out of memory refuses it, but takes `beat_worker_though_full`, which costs it twice the commands.
    """
    calls: list[Call[Any]] = [command("HSET", keys.beats, worker, beat, read=nothing, key=keys.beats)]
    if report is not None:
        packed = msgpack.packb(dict(report))
        calls.append(command("HSET", keys.workers, worker, packed, read=nothing, key=keys.workers))
    if asks_time:
        calls.append(server_time_us(keys.beats))
    calls.append(beats(keys))

    def read(replies: Sequence[Any | ServerError]) -> Beats:
        *before, found = answers(calls, replies)
        return Beats(before[-1] if asks_time else 0, found)

    return together(calls, read)


def beat_worker_though_full(keys: Keys, worker: str, beat: str, report: Mapping[str, Any] | None = None) -> Call[Beats]:
    """The same as `beat_worker`, also while the server is out of memory."""
    packed = b"" if report is None else msgpack.packb(dict(report))
    written = scripted("beat_worker", (keys.beats, keys.workers), (worker, beat, packed), int)
    calls: list[Call[Any]] = [written, beats(keys)]
    return together(calls, lambda replies: Beats(*answers(calls, replies)))


def newcomer(group: str) -> str:
    """What a worker that starts announces to the others of its group. It is no topic's name."""
    return f":worker {group}"


def report_left(keys: Keys, worker: str, group: str) -> Call[None]:
    """Announce that a worker has stopped, so that its deliveries are taken over at once."""
    return command("HSET", keys.beats, worker, f"{LEFT} {group}", read=nothing, key=keys.beats)


def beats(keys: Keys) -> Call[dict[str, str]]:
    """The last heartbeat of every worker."""

    def read(reply: list[bytes]) -> dict[str, str]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return {name.decode(): beat.decode(errors="replace") for name, beat in pairs}

    return command("HGETALL", keys.beats, read=read, key=keys.beats)


def gone(hash_key: str, who: str) -> Call[None]:
    """Remove a node or worker that has stopped."""
    return command("HDEL", hash_key, who, read=nothing, key=hash_key)


BELIEVED_MS = 15_000
"""How long a heartbeat is trusted, by the server's clock: three intervals of a scheduler node."""


def living(reports: Mapping[str, Mapping[str, Any]], server_ms: int) -> dict[str, Mapping[str, Any]]:
    """Returns the reports with a recent heartbeat.

    A heartbeat from further in the future was sent before the clock was stepped back, and does not count.
    """
    return {name: what for name, what in reports.items() if abs(server_ms - what.get("seen_ms", 0)) <= BELIEVED_MS}


def alive(hash_key: str) -> Call[dict[str, dict[str, Any]]]:
    """The last report of every node or worker."""
    return command("HGETALL", hash_key, read=registry_codec.decode_maps, key=hash_key)


def assignment_version(keys: Keys) -> Call[int]:
    """The version of the assignment of shards; 0 if there is none."""
    return command("HGET", keys.assignment, "version", read=version_of, key=keys.assignment)


def assignment(keys: Keys) -> Call[dict[tuple[str, int], tuple[str, str | None]]]:
    """Leader and standby of every shard."""

    def read(reply: bytes | None) -> dict[tuple[str, int], tuple[str, str | None]]:
        return registry_codec.decode_posts(reply) if reply else {}

    return command("HGET", keys.assignment, "posts", read=read, key=keys.assignment)


def put_assignment(
    keys: Keys, version: int, next_version: int, posts: Mapping[tuple[str, int], tuple[str, str | None]]
) -> Call[bool]:
    """Replace the assignment if its version is still `version`; False if it is not."""
    args = (version, next_version, registry_codec.encode_posts(posts), keys.changes)
    return scripted("assign", (keys.assignment,), args, bool)
