"""Measures wheelq and tries to break it. Each command is a module here; the folders hold the code that they run.

bench        figures beside the floor, which is the best that the server and redis-py do alone bench, floor
compare      the same scenarios for wheelq and for other delay queues that are installed       compare
torture      faults of every kind while jobs run, and a judge of the outcome                   torture
trials       one question each: callbacks, durability, failover, herd, http, locust_run, order, outage, sinks,
              watchers
simulation   a fleet in one process, in virtual time                                           simulate
judge        compares what producers were promised with what ran, and says what went wrong; pure
servers      real servers for this: single, replicated, clustered, and a proxy in front of them

python -m loadtest.bench --quick
"""
