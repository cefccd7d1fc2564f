"""Handlers with `ordered=`: the jobs of a shard, or of a partition key, run one at a time and in due order.

ordering    the lane of an ordered topic: holds its share of the shards, reads each and passes its deliveries on
deliveries  the deliveries of one shard: each starts in its turn (pure: `Sequence`), and keeps its place after a failure
"""
