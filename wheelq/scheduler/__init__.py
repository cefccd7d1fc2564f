"""The scheduler node: leads shards or stands by, and promotes each job at the moment it is due.

loop         `Scheduler`: one node; its topics, and a `Shard` for each that is assigned to it
membership   which nodes are alive, and which shards each serves
assignment   distributes the shards over the nodes (pure)
parts        the objects that all parts of a node or a shard share
shard        a node's part in one shard: leader or standby
candidate    asks for the lease, and replaces a holder that is gone
promoter     what a node does for all its shards in few calls: promotes, looks for missed jobs, gathers questions
leader       the work of the holder of the lease, and which jobs it loads
draining     ends the draining of former numbers of shards; cleans up after groups that another program destroyed
topics       the topics as a node last read them; registers topics again that a failover lost
recurring    makes the occurrences of recurring jobs
outgoing     carries followers that the process which settled their jobs has left
standby      watches the leader, and promotes in its place while it is silent
lease        how long a lease can be trusted (pure)
wheel        the timing wheel: says which of the loaded jobs are due
"""

from wheelq.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
