"""Handles: the names of leases for consumers, as SHARD.ENTRY.NUMBER.MEMBER with the member in hex."""

from __future__ import annotations

import re

from wheelq.errors import InvalidInput
from wheelq.protocol.calls.leases import LeaseId

HANDLE_PATTERN = r"([0-9]{1,4})\.([0-9]{1,19}-[0-9]{1,19})\.([0-9]{1,9})\.((?:[0-9a-f]{2}){1,400})"


def make_handle(shard: int, lease: LeaseId) -> str:
    """The handle of a lease in this shard."""
    return f"{shard}.{lease.entry_id}.{lease.number}.{lease.member.hex()}"


def parse_handle(handle: str) -> tuple[int, LeaseId]:
    """The shard and the lease. Raises: InvalidInput."""
    found = re.fullmatch(HANDLE_PATTERN, handle)
    if found is None:
        raise InvalidInput("handles", f"{handle[:60]!r} is not the handle of a lease")
    shard, entry_id, number, member = found.groups()
    return int(shard), LeaseId(entry_id, bytes.fromhex(member), int(number))
