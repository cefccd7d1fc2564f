"""The bench: scenarios that measure wheelq, each beside the floor of the same machine and server.

python -m loadtest.bench --quick

stage      a server, keys and sizes for a scenario      running    scenarios in which jobs run
parts      a scheduler and workers as processes         waiting    scenarios in which jobs wait
figures    a figure, its target, and the table          scale      one server beside a cluster
rate       what a job costs, by rate                    highest    the highest rate, by search
payload    larger payloads                              growth     more waiting jobs, more topics
network    a server that is 1 ms away                   shares     several workers side by side
shards     one topic of many shards                     killed     a worker with many topics is killed
machine    the machine and the versions                 plots      the figures as SVG
floor      Redis and redis-py alone: bare, chain        soonest    how soon a job could start
"""
