"""The scheduler node: plays its part in shards, and promotes each job at the moment it is due.

loop         `Scheduler`: one node; topics, hints, and a `Shard` for each that is assigned to it
membership   which nodes live, and what each looks after
assignment   shares the shards out (pure)
shard        a node's part in one shard: leader or standby
candidate    asks for the lease, also in place of a holder that is gone
leader       what the holder of the lease does
clearing     ends the draining of former numbers of shards
recurring    makes the occurrences of recurring jobs
lookout      what a standby does: looks after the leader, promotes in its place
standby      when to look after a leader, and what to do about it (pure)
lease        what may be believed of a lease (pure)
window       which jobs are loaded, and when to load more (pure)
"""

from __future__ import annotations

from wheelq.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
