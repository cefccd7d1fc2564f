"""Torture: faults of every kind while jobs are scheduled, moved, cancelled and run; then a judge.

python -m loadtest.torture --on cluster --duration 600 --seed 1

run        one run, from the plan to the verdict         checker    the judge
arena      the servers and what they can suffer          promises   what producers were told, for the judge
scene      who is there, and the seeded plan             remains    what the servers hold at the end
faults     every fault                                   report     the result, as a table and as JSON
fleet      schedulers and workers as processes           planted    defects that the judge must find
producers  clients that do everything and log answers    listening  a transport that records its calls
"""
