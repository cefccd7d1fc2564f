"""Every operation, each as a pure function that returns a `Call`.

producer    schedule, cancel, reschedule, run_now
state       get, progress, results; a page of the jobs in one state
bulk        count, cancel and move the jobs that are due in a range; rerun
dead        find, replay and purge dead jobs
recurring   recurring jobs and their occurrences
leader      acquire, renew, release, open_window, promote, sweep
outgoing    followers on their way to other shards: claim, place, remove, bury
bundles     jobs that are counted: the numbers of each shard, and the bundle that they are of
worker      read, ack, retry, bury, keep, take over, hand back, leave
order       hold, read and release a shard that runs in order; postpone a job there
leases      deliveries for consumers without a connection of their own
registry    topics: which exist, their settings, the terms in force
shard_counts how many jobs a shard holds in each state, and its groups; the figures of many shards
counts      the counters of the scripts, the history of each minute, and histograms over all processes
server      the server itself: its clock, connections, configuration, and the prefixes in use on it
heartbeats  live nodes and workers, and the assignment of shards
draining    jobs left behind by a former number of shards
removal     the removal of groups and topics
notes       answers and numbers that are kept for a while
access      API keys
"""
