"""The delay service over HTTP. One request's way, which is also the reading order:

    gate            how large, how many at once; safe headers
    routing         who is it (`access`), what may he do; strict JSON
    routes/*        one file a resource; `schemas/*` say what it takes and answers
    gathering       jobs that are made at the same time go to Redis together
    leases, bells   pull: jobs leased for a while, long polls that are rung
    classic         the classic delay-task API
    idempotency     the same request again gets the same answer
    problems        every error, as problem+json
    audit           who changed what
    readiness       whether requests should come here

    service         what the routes work with: the client and all of the above
    app             puts routes, gate and document together
    document        the OpenAPI document and the page that shows it
    environment     settings from the environment
    run             listens, and stops in good order

Nothing here decides about jobs: that is done by the client, below, as for everyone else.
"""
