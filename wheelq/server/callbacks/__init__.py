"""Callbacks: when a job with a target is due, its payload is POSTed there, signed as Standard Webhooks lays down.

    worker ──job──▶ caller ──▶ destination: may it be asked now? ──▶ request, signed ──▶ network, guarded ──▶ receiver
                                    │ busy, too fast, or broken
                                    ▼
                                 later, which is no attempt

    target       what a job may name: a registered service and a path, or a URL that the operator allows (pure)
    services     the register: config/services.toml
    addresses    which addresses may be connected to (pure)
    network      connects to those only, whatever the name service says
    signing      the three headers by which a receiver knows the sender
    destination  what one receiver bears: how many at once, how fast, and whether it is well (`wheelq.breaker`)
    verdict      what an answer means for the job (pure)
    caller       one job, one request
    worker       reads the jobs of all topics that have callbacks

Each receiver is apart from the others: who is slow or dead holds nobody else up, because a job that cannot be sent now
does not wait here. It goes back to the sorted set for a moment, and its turn comes as that of any other job.
"""
