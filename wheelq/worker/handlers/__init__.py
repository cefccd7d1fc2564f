"""What a worker runs: functions, how they are registered, typed, hooked and called.

handler     the function that runs the jobs of a topic, and how it is called
decorators  the decorators that register handlers and hooks
batch       how deliveries are gathered in lists, and the outcome of each job in a list (pure)
typed       converts payloads to the types in a function's signature
hooks       middleware around handlers, and lifespans of a worker
threads     runs plain functions, each in a thread that can be abandoned
"""
