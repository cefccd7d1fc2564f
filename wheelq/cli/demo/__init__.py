"""`wheelq demo`: the whole of wheelq at work for half a minute, and a verdict that is computed, not claimed.

this process ── imports, cancels, moves ──▶ server ◀── scheduler process
     ▲                                        ▲
     └────────── every run, by a pipe ── worker process

orders        the jobs, drawn from a seed, and how much their delays are shortened
plan          which orders are cancelled, moved or fail: drawn from a seed before anything starts
play          runs the demo: starts and stops the two child processes, listens to them; roles is their code
board         the counts so far, and the ledger for the verdict
verdict       puts promises and runs before the judge, and counts; pure
panels, views the output: live screen, plain lines, or only JSON
command       options, wiring, exit codes
"""
