"""Every operation, each as a pure function that returns a `Call`.

producer   schedule, cancel, reschedule, run_now, get
leader     acquire, renew, release, open_window, promote, sweep
worker     read, ack, retry, bury, keep, claim, hand_back, leave
registry   topics, nodes, workers and the server itself
"""
