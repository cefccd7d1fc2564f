"""The routes, one module for each resource: each handler reads, asks the client, and answers.

jobs        schedule, look up, move, cancel and run jobs, one or all that are due in a range; bundles of jobs
leases      pull: lease jobs, extend, acknowledge, release
topics      the counts and settings of topics, pause and resume; their groups; the removal of groups and topics
dead        dead jobs: list, replay, purge
recurring   recurring jobs
callbacks   the receivers of callbacks
classic     the classic delay-task API
health      liveness, readiness, version, and metrics for Prometheus
"""
