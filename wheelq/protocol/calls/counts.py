"""What scripts and processes count: totals of a shard, one row per minute for three days, and histograms.

The scripts that change jobs count them in the hash `counts`, so a process can neither lose nor repeat a count:

| field                                              | one for each                                                   |
|----------------------------------------------------|----------------------------------------------------------------|
| `created`, `replaced`, `kept`, `refused`           | job of a schedule call, by outcome; repeated calls add nothing |
| `promoted`; of these `swept`, `late`               | entry of the ready stream; by a sweep; 1,024 ms late or more   |
| `done`, `retried`, `buried`, `expired`, `cancelled`| delivery that ended so, with `\\x1f` and the group behind it.   |
|                                                    | A job that was cancelled while it waited has no group          |
| `mismatched`                                       | delivery whose payload did not fit and that waits, by group    |
| `recovered`                                        | delivery taken over from a worker that is gone, by group, too  |
| `led`                                              | change of the leader, whose node is in the field `leader`      |
| `born`                                             | no count: when the first group was made, as in `1763000000 ms` |

The shard's leader adds a row for each minute to the hash `history` of that hour, computed from the differences
(`lua/lib/record.lua`). This needs no extra calls. A row has about 15 bytes.

The histograms are summed over all processes: how late jobs were promoted and started, and how long handlers ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from wheelq.base.metrics import BOUNDS, Increments, Measured, Series
from wheelq.model.topic import TopicMinute
from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.keys import MEMBER_SEPARATOR, Keys, ShardKeys

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
_SEVEN_BITS = 7


def read_counted(reply: list[bytes]) -> dict[tuple[str, str], int]:
    """Returns the totals of a shard, by outcome and group; the group is "" for outcomes without a group."""
    found = {}
    for name, value in zip(reply[::2], reply[1::2], strict=True):
        if value.isdigit():
            outcome, _, group = name.decode(errors="backslashreplace").partition(MEMBER_SEPARATOR)
            found[outcome, group] = int(value)
    return found


def minutes(keys: ShardKeys, hour: int) -> Call[list[TopicMinute]]:
    """The minutes of an hour in which something happened in a shard, in order; `hour` is in hours since the epoch."""

    def read(reply: list[bytes]) -> list[TopicMinute]:
        rows = dict(zip(reply[::2], reply[1::2], strict=True))
        numbered = sorted((int(minute), row) for minute, row in rows.items() if minute.isdigit())
        return [TopicMinute(hour * HOUR_MS + minute * MINUTE_MS, *_unpacked(row)) for minute, row in numbered]

    key = keys.history(hour)
    return command("HGETALL", key, read=read, key=key)


def add_to(found: dict[int, TopicMinute], more: list[TopicMinute]) -> None:
    """Add the minutes of another shard or hour to those of its topic, by start."""
    for one in more:
        found[one.at_ms] = found[one.at_ms] + one if one.at_ms in found else one


def _unpacked(row: bytes) -> list[int]:
    """The numbers of a row, without those that a newer release adds at its end."""
    numbers, number, shift = [], 0, 0
    for byte in row:
        number |= (byte & 0x7F) << shift
        shift += _SEVEN_BITS
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers[: TopicMinute.FIGURES]


def observe(keys: Keys, process: str, number: int, increments: Increments) -> Call[bool]:
    """Add numbered increments of a process, unless they were added before. Returns whether this call added them."""
    args: list[Argument] = [process, number]
    for series, figures in increments.items():
        args += (MEMBER_SEPARATOR.join(series), " ".join(map(str, figures)))
    return scripted("observe", (keys.histograms, keys.measured), args, bool)


def histograms(keys: Keys) -> Call[Mapping[Series, list[int]]]:
    """The figures of every series that was measured in the last hour; see `Increments`."""

    def read(reply: list[bytes]) -> Mapping[Series, list[int]]:
        found = {}
        for name, value in zip(reply[::2], reply[1::2], strict=True):
            with suppress(ValueError):  # the number of a process, or what another program wrote
                kind, topic, group = name.decode().split(MEMBER_SEPARATOR)
                figures = [int(figure) for figure in value.split()]
                if len(figures) == len(BOUNDS[Measured(kind)]) + 2:
                    found[Measured(kind), topic, group] = figures
        return found

    return command("HGETALL", keys.histograms, read=read, key=keys.histograms)
