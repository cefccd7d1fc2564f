"""Handlers with `ordered=`: the jobs of a shard, or of a partition key, run one at a time and in due order.

ordering    the lane of an ordered topic, which holds its share of the shards
shard       holds and reads one shard, and passes its deliveries on
deliveries  the deliveries of one shard: each starts in its turn, and keeps its place after a failure
sequence    which deliveries may start (pure)
"""
