"""What follows a job: followers are noted while it runs, written with its settling, and carried to their shards.

    job.then(…) ──▶ notes ──▶ the script that settles the job ──▶ outgoing ──▶ carrier ──▶ the follower's shard

notes     checks and packs what one run asks for
carrier   `Carrier`: places followers, sends them, and removes them from `outgoing` once they have arrived

The worker or the HTTP server that settles a job carries its followers at once. If it dies, or a target does not take
them, the scheduler nodes that serve the shard carry them later: see `scheduler.outgoing`.
"""
