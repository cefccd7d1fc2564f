"""The data of the simulated server: Redis's commands and scripts, in this process and by a given clock.

    database     `Database`: keys, expiry, and the log of writes that persistence and replicas follow
    sorted_set   `SortedSet`
    stream       `Stream`, its groups and their pending entries
    commands     the registry of commands, and those of keys, strings, sets and hashes
    ranges       the commands of sorted sets
    streams      the commands of streams
    scripts      `Scripts`: runs Lua 5.1 (lupa) with `redis.call`

Only the commands that wheelq uses are here. Any other raises the error that Redis raises for an unknown command.
`tests/simulation/test_store.py` runs the same commands on a real server and compares every reply.

fakeredis, which `memory://` uses, takes 0.6 ms for one script, has its own threads and queues, and has neither refusals
nor a log. It is too slow, and would need too many changes.
"""
