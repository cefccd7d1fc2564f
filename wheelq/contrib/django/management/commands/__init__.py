"""Commands of `manage.py`.

wheelq_worker   runs the worker of a backend's queues
"""
