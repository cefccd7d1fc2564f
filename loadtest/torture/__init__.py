"""Torture: faults of every kind while jobs are scheduled, moved, cancelled and run; then a judge.

python -m loadtest.torture --on cluster --duration 600 --seed 1

run        one run, from the plan to the verdict         promises   the answers that producers got, for the judge,
arena      the servers and their faults                             which is `loadtest.judge`
scene      the processes, and the seeded plan            remains    what the servers hold at the end
faults     every fault                                   report     the result, as a table and as JSON
fleet      schedulers and workers as processes           planted    defects on purpose, which the judge must find
producers  clients that do everything and log answers    listening  a transport that records its calls
bundles    what must hold of bundles
"""
