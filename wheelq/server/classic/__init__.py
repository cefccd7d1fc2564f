"""The classic delay-task API, for callers of the service that wheelq replaces: they change only the host.

POST /delay/task/add    topic, timing_moment (unix seconds), content   →  {"dm_error": 0, …, "task_id": 17950000000001}
POST /delay/task/pull   topic, perhaps task_id                         →  {"dm_error": 0, …, "content": "…"}

request    parses requests, JSON or forms, and contents (v1: to be kept, v2: to be called back)
ids        numeric ids
tasks      add and pull, on top of jobs and leases
envelope   the form of every answer, and the error codes
"""
