"""The scheduler node: leads shards, and promotes each job at the moment it is due.

loop     `Scheduler`: one node; finds topics, listens for hints, runs a leader per shard
leader   `ShardLeader`: one shard; decides in `step()` what is to be done next, and does it
lease    what a leader may believe of its lease (pure)
window   which jobs are loaded, and when to load more (pure)
"""

from __future__ import annotations

from wheelq.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
