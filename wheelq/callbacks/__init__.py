"""Callbacks: when a job with a target is due, its payload is POSTed there, signed according to Standard Webhooks.

    worker ──job──▶ caller ──▶ destination: may it be asked now? ──▶ request, signed ──▶ network, guarded ──▶ receiver
                                    │ busy, too fast, or broken
                                    ▼
                                 later, not counted as an attempt

    target       the target of a job: a registered service and a path, or a URL that the operator allows (pure)
    services     the register: config/services.toml
    addresses    which addresses may be connected to (pure)
    names        resolves host names in threads of its own, and remembers the answers
    network      connects only to these addresses, whatever the name service answers
    destination  the limits and the health of one receiver, with its own breaker
    caller       one job, one request, with the three headers that authenticate the sender; what each answer means;
                 the worker that reads the jobs of all topics that have callbacks

A slow or dead receiver does not delay the others: a job that cannot be sent now does not wait here. It goes back to the
sorted set for a moment, and takes its turn like any other job.
"""
