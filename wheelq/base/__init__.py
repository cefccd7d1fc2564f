"""Helpers for every other room: time, ids, counters. They know nothing of wheelq.

clock      wall clock, monotonic clock, the server's clock, and waiting
timers     a clock whose timers fire within 0.1 ms
fresh      a value that is read at most once in so many seconds, for all who ask
ids        job ids that sort by creation time
metrics    histograms, and durations that a process adds up until they are sent
liveness   which processes are alive, judged by changing values
per_loop   one object for each event loop
plural     counted nouns in messages
as_json    JSON without NaN
printable  text that is safe to print: control characters as escapes
version    the version of wheelq
"""
