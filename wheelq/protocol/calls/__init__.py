"""Every operation, each as a pure function that returns a `Call`.

producer    schedule, cancel, reschedule, run_now
state       get, progress, results
bulk        count, cancel and move the jobs that are due in a range; rerun
listing     a page of the jobs in one state
dead        find, replay and purge dead jobs
recurring   recurring jobs and their occurrences
leader      acquire, renew, release, open_window, promote, sweep
worker      read, ack, retry, bury, keep, take over, hand back, leave
order       hold, read and release a shard that runs in order; postpone a job there
leases      deliveries for consumers without a connection of their own
registry    topics: which exist, their settings, the terms in force
shard_counts  how many jobs a shard holds in each state, and its groups
measures    the figures of a shard for metrics
histograms  how late jobs were and how long handlers ran, over all processes
counts      the counters of the scripts, and the history of each minute
server      the server itself: its clock, connections and configuration
heartbeats  live nodes and workers, and the assignment of shards
prefixes    other prefixes that are in use on the server
draining    jobs left behind by a former number of shards
removal     the removal of groups and topics
notes       answers and numbers that are kept for a while
access      API keys
"""
