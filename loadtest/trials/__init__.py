"""Trials: each module answers one question about wheelq and judges the result; the commands are one level up.

callbacks    how many callbacks a second, and how late they are beside a receiver that is down
durability   the cost of each grade of durability for a producer
failover     how late jobs are when the leader is killed, stopped or frozen
herd         a million jobs due at one instant
http         the HTTP server beside an empty FastAPI route
locust_run   Locust's users against a fleet: locustfile, shapes
order        jobs in order while workers fail
outage       Redis away under an HTTP service that stays in use
sinks        each job one row, while workers are killed
watchers     the cost of open dashboards and scrapes
"""
