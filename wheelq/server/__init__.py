"""The delay service over HTTP. One request's way, which is also the reading order:

    connection      HTTP/1.1 and TLS, with limits for heads, trailers, requests that never end, and idle connections
    gate            limits on size and number of requests; safe headers
    routing         the caller and its rights; strict JSON
    access          API keys, their scopes, and the callers that they stand for
    routes/*        one file per resource; `schemas/*` define requests and answers that several share
    client          `ServerClient`: what the server needs beyond the public client
    coalescing      sends jobs that are scheduled at the same time to Redis together
    intake          jobs with a target: refuses those that could not be called
    leases          pull: leases jobs for a while, by a clock of their own (lease_clock); settles them by handle
    long_poll       wakes the requests that wait for a job
    classic         the classic delay-task API
    idempotency     the same request again gets the same answer
    problems        every error, as problem+json
    audit           who changed which object
    readiness       whether requests should come here
    dashboard       pages for people: jobs, topics, and when jobs are due
    service         the objects that the routes use
    app             puts routes, gate and the OpenAPI document together
    run             listens, and stops gracefully

Nothing here decides about jobs: the client does that, as in any other program.
"""
