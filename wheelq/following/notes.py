"""`Notes`: the followers that one run of a job asks for, checked and packed as `schedule` does. No I/O."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from wheelq.base.ids import make_tag
from wheelq.errors import InvalidInput
from wheelq.model.checks import check_topic
from wheelq.model.job import JobSpec, OnDuplicate
from wheelq.model.task import TaskJob
from wheelq.producer.preparation import Preparation, carrying
from wheelq.protocol.calls.outgoing import BYTES_IN_A_CALL, Follower
from wheelq.protocol.keys import ShardKeys
from wheelq.settings import ClientSettings

MOST = 100
"""The most followers of one run."""
_HOW = ("keep", "replace")


class Notes:
    """The followers that one run has asked for so far."""

    def __init__(self, keys: ShardKeys, entry_id: str, group: str, settings: ClientSettings, now_ms: int) -> None:
        """`keys`, `entry_id` and `group` name the delivery; `now_ms` is this machine's clock."""
        source = "\0".join((keys.topic, str(keys.shard), entry_id, group))
        self._stem = f"then-{hashlib.sha256(source.encode()).hexdigest()[:24]}-"
        self._settings = settings
        self._now_ms = now_ms
        self._bytes = 0
        self.followers: list[Follower] = []

    @property
    def size(self) -> int:
        """The bytes of their records."""
        return self._bytes

    def add(self, topic: str | TaskJob[Any], spec: JobSpec, on_duplicate: OnDuplicate) -> str:
        """Note a follower; returns its id. Raises: InvalidInput, as `schedule` does."""
        if isinstance(topic, TaskJob):
            topic, spec = topic.without(spec.payload), replace(spec, payload=topic)
        check_topic(topic)
        if spec.delay is None and spec.at is None:
            spec = replace(spec, delay=0)
        if on_duplicate not in _HOW:
            problem = f"must be 'keep' or 'replace', not {on_duplicate!r}"
            raise InvalidInput("on_duplicate", f"{problem}: nobody waits for the answer when a follower is made")
        if len(self.followers) == MOST:
            raise InvalidInput("then", f"one run may have {MOST} followers; let one of them make more")
        has_key = spec.key is not None
        if not has_key and spec.max_wait is None:
            spec = replace(spec, key=f"{self._stem}{len(self.followers):02}")
        id, due, record = Preparation(topic, self._settings, self._now_ms, on_duplicate).job(carrying(spec))
        if self._bytes + len(record) > BYTES_IN_A_CALL:
            raise InvalidInput("then", f"the followers of one run may have {BYTES_IN_A_CALL:,} bytes together")
        self._bytes += len(record)
        how = on_duplicate if has_key else ""
        self.followers.append(Follower(topic, id, due, spec.partition_key or "", how, record, make_tag()))
        return id
