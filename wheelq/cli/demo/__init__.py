"""`wheelq demo`: the whole of wheelq at work for half a minute, and a verdict that is computed, not claimed.

this process ── imports, cancels, moves ──▶ server ◀── scheduler process
     ▲                                        ▲
     └────────── every run, by a pipe ── worker process

orders        the jobs, from orders.csv, and how much their delays are shortened (orders_file made the file)
plan          what is cancelled, moved and made to fail: drawn from a seed before anything starts
processes     starts and stops the two child processes; roles is what they do
play          the half minute itself
board         what is known so far; ends as the ledger
verdict       compares what was promised with what ran; pure
panels, views how it looks: live screen, plain lines, or silent for --json
command       options, wiring, exit codes
"""

from __future__ import annotations

from wheelq.cli.demo.command import demo

__all__ = ["demo"]
