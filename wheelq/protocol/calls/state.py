"""Where jobs stand: what is asked about one, and what workers write down for those who ask.

worker   conclude (an ack that keeps something) · note (progress) ──▶ done · ended · progress · news
anyone   get ◀── all that is known of one job                         news_since ◀── which jobs ended just now
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgpack

from wheelq.ids import made_ms
from wheelq.protocol import codec
from wheelq.protocol.call import Argument, Call, command, scripted, text
from wheelq.protocol.keys import ShardKeys
from wheelq.state import GroupInfo, JobInfo, JobState, Progress, least_far

PROGRESS_KEEP_MS = 86_400_000
"""What handlers said of jobs whose worker died is forgotten a day after the shard's last such word."""
CALLED_BACK = b"0-0"
"""What stands for the entry of a job that was called back from the dead: it has only runs that concern one group."""
NEWS_MS = 600_000
"""How long the ends of jobs are told after somebody began to wait for one."""


class Concluded(NamedTuple):
    """A finished delivery, and what is to be kept of it."""

    entry_id: str
    member: str
    started_ms: int
    result: bytes
    """Packed; empty for None."""
    record: bytes = b""
    """As the producer made it; empty where the entry has it so."""


def conclude(
    keys: ShardKeys, group: str, consumer: str, retention_ms: int, keep_done_ms: int, deliveries: Sequence[Concluded]
) -> Call[int]:
    """Acknowledge up to 500 deliveries and keep what is to be known of them; how many were still this consumer's."""
    args: list[Argument] = [group, consumer, retention_ms, keep_done_ms]
    for delivery in deliveries:
        args += delivery
    wanted = (keys.ready, keys.jobs, keys.done, keys.ended, keys.progress, keys.news)
    return scripted("conclude", wanted, args, int)


def note(keys: ShardKeys, group: str, consumer: str, notes: Sequence[tuple[str, str, bytes]]) -> Call[int]:
    """Write down how far up to 500 running jobs are (entry id, id, note); how many were still this consumer's."""
    args: list[Argument] = [group, consumer, PROGRESS_KEEP_MS]
    for one in notes:
        args += one
    return scripted("note", (keys.ready, keys.progress), args, int)


def pack_note(fraction: float, words: str, at_ms: int, started_ms: int) -> bytes:
    """A note, packed."""
    packed: bytes = msgpack.packb((fraction, words, at_ms, started_ms))
    return packed


def news_since(keys: ShardKeys, cursor: str, wait_ms: int) -> Call[tuple[str, set[str]]]:
    """The ids that ended after `cursor`, waiting for some if there are none, and the cursor to go on from."""

    def read(reply: list[Any] | None) -> tuple[str, set[str]]:
        entries = reply[0][1] if reply else ()
        ended = {id for _, fields in entries for id in fields[1].decode().split("\n")}
        return (entries[-1][0].decode() if entries else cursor), ended

    args = ("BLOCK", wait_ms, "STREAMS", keys.news, cursor)
    return command("XREAD", *args, read=read, wait_ms=wait_ms, key=keys.news)


def listen(keys: ShardKeys) -> Call[str]:
    """Let ends be told for a while; the cursor behind the latest news."""
    return scripted("listen", (keys.news,), (NEWS_MS,), text)


def get(keys: ShardKeys, id: str) -> Call[JobInfo | None]:
    """Look one job up."""

    def read(reply: list[Any]) -> JobInfo | None:
        if not reply:
            return None
        if len(reply) == 2:
            return _info(keys, id, GroupInfo(JobState.DELAYED, codec.due_ms(reply[0])), reply[1], None, {})
        return _promoted(keys, id, reply)

    wanted = (keys.delayed, keys.jobs, keys.ready, keys.done, keys.buried, keys.dead, keys.progress)
    return scripted("get", wanted, (id,), read)


def _info(
    keys: ShardKeys,
    id: str,
    leading: GroupInfo,
    packed: bytes,
    promoted_ms: int | None,
    groups: Mapping[str, GroupInfo],
) -> JobInfo:
    """What is known all in all, when `leading` decides where the job stands."""
    record = codec.decode(packed) if packed else codec.Record(1, None, {})
    return JobInfo(
        id,
        keys.topic,
        leading.state,
        leading.due_ms or 0,
        record.payload,
        record.headers,
        leading.attempt or record.attempt,
        promoted_ms,
        keys.shard,
        leading.last_error,
        record.replays,
        (codec.made_ms(packed) if packed else None) or made_ms(id),
        leading.started_ms,
        leading.finished_ms,
        leading.worker,
        leading.result,
        leading.progress,
        groups,
    )


def _promoted(keys: ShardKeys, id: str, reply: list[Any]) -> JobInfo:
    """What the script says of a job that was promoted, put together."""
    due, packed, entry, kept = reply[:4]
    first, its_due, its_record, groups = _kept(kept)
    if entry not in (b"", CALLED_BACK, first):  # what is kept is of an earlier life of the id
        first, its_due, its_record, groups = entry, b"", b"", {}
    for name, state, *details in reply[4:]:
        group = name.decode()
        info, found = _group(state.decode(), details)
        its_record = found or its_record
        if info.is_finished and group in groups:
            info = max(info, groups[group], key=lambda one: one.finished_ms or 0)
        groups[group] = info
    leading = least_far(groups) if groups else GroupInfo(JobState.READY)  # no group was there to get it yet
    leading = replace(leading, due_ms=leading.due_ms or int(due or its_due or 0))
    return _info(keys, id, leading, its_record or packed, int(first.partition(b"-")[0] or 0) or None, groups)


def _group(state: str, details: Sequence[Any]) -> tuple[GroupInfo, bytes]:
    """Where the job stands in a group; and its record, if it is known from there."""
    match state, details:
        case "finished", _:
            return GroupInfo(JobState.DONE), b""
        case "dead", [grave, flat]:
            return _dead(grave, dict(zip(flat[::2], flat[1::2], strict=True)))
        case _, [due, packed, *more]:
            record = codec.decode(packed) if packed else None
            progress, started_ms = _note(more[0]) if more else (None, None)
            info = GroupInfo(
                JobState(state),
                codec.due_ms(due) if due else None,
                record.attempt if record else None,
                more[1].decode() if len(more) > 2 else None,
                more[2] if len(more) > 2 else None,
                started_ms,
                last_error=record.last_error if record else None,
                progress=progress,
            )
            return info, packed
    raise ValueError(f"the server says of a group that the job is {state!r} there, which makes no sense here")


def _dead(grave: bytes, fields: Mapping[bytes, bytes]) -> tuple[GroupInfo, bytes]:
    info = GroupInfo(
        JobState.DEAD,
        int(fields.get(b"due", 0)) or None,
        int(fields.get(b"attempt", 0)) or None,
        finished_ms=int(grave.partition(b"-")[0]),
        reason=fields.get(b"reason", b"").decode(),
        last_error=fields.get(b"error", b"").decode(errors="replace"),
    )
    return info, fields.get(b"record", b"")


def _note(packed: bytes) -> tuple[Progress | None, int | None]:
    if not packed:
        return None, None
    fraction, words, at_ms, started_ms = msgpack.unpackb(packed)
    return Progress(fraction, words, at_ms), started_ms


def _kept(packed: bytes) -> tuple[bytes, bytes, bytes, dict[str, GroupInfo]]:
    """First entry, due time and record of a job, and how it ended in groups, as `lua/lib/keep_done.lua` packs them."""
    if not packed:
        return b"", b"", b"", {}
    first, due, record, *rest = _fields(packed)
    groups = {}
    for n in range(0, len(rest), 6):
        group, started, ended, attempt, consumer, result = rest[n : n + 6]
        groups[group.decode()] = GroupInfo(
            JobState.DONE,
            attempt=int(attempt),
            worker=consumer.decode(),
            started_ms=int(started) or None,
            finished_ms=int(ended),
            result=msgpack.unpackb(result) if result else None,
        )
    return first, due, record, groups


def _fields(packed: bytes) -> Iterator[bytes]:
    """The fields that `lua/lib/pack.lua` packed."""
    at = 0
    while at < len(packed):
        colon = packed.index(b":", at)
        end = colon + 1 + int(packed[at:colon])
        yield packed[colon + 1 : end]
        at = end
