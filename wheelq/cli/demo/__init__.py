"""`wheelq demo`: the whole of wheelq at work for half a minute, and a verdict that is computed, not claimed.

this process ── schedules, cancels, moves ──▶ server ◀── wheelq scheduler
     ▲                                          ▲
     └────────── every run, by a pipe ──── wheelq worker

orders    the jobs, and which of them are cancelled, moved or fail: drawn from seeds before anything starts
worker    the worker: its handler reports each run
verdict   compares receipts and answers with runs; pure
command   starts the processes, schedules and changes the orders, hears of every run; options, output, exit codes
"""
