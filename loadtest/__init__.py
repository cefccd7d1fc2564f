"""Measures wheelq and tries to break it. Run a command as `python -m loadtest.NAME`.

bench        figures beside the floor, which is the best that the server and redis-py do alone
floor        the floor alone
compare      the same scenarios for wheelq and for other delay queues that are installed
torture      faults of every kind while jobs run, and a judge of the outcome
simulate     a whole fleet in one process, in virtual time: see `simulation`
mutants      small mistakes, planted one by one in a copy of the checkout, and who finds each

bundles      a model of how the members of a bundle are counted, of which every interleaving is searched
callbacks    how many callbacks a second, and how late they are beside a receiver that is down
durability   the cost of each grade of durability for a producer
failover     how late jobs are when the leader is killed, stopped or frozen
handover     a model of how followers are handed over, of which every interleaving is searched
herd         a million jobs due at one instant
http         the HTTP server beside an empty FastAPI route
kafka        due jobs forwarded to Kafka, while workers are killed and the broker is away
locust_run   Locust's users against a fleet: `locustfile`, `shapes`
outage       Redis away under an HTTP service that stays in use
outbox       jobs scheduled in a database's transactions, while couriers are killed
sinks        each job one row, while workers are killed
watchers     the cost of open dashboards and scrapes
pictures     pictures of the dashboard

Behind them: `command` (what the commands share), `judge` (compares what producers were promised with what ran), `order`
(jobs in order while workers fail, for tests) and `servers` (real servers: single, replicated, clustered, and a proxy in
front of them).
"""
