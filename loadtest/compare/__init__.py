"""The comparison: the same scenarios for wheelq and for other delay queues on Redis that are installed.

python -m loadtest.compare

scenarios   bulk, paced, drain, burst, kill: the same for every queue
peers       which queues there are, how their programs are started, what each needs
play        one queue on a server of its own: its processes, and the log of its handlers
adapters    a program for each queue, of at most 60 lines: `wheelq`, `streaq`, `bullmq.mjs`
"""
