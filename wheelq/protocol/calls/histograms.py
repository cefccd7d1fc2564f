"""The histograms in Redis, summed over all processes: how late jobs were promoted and started, how long handlers
ran."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from wheelq.base.observations import BOUNDS, Increments, Measured, Series
from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.keys import MEMBER_SEPARATOR, Keys


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
