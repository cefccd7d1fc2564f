"""Requests and answers as pydantic models, which check requests and make up the OpenAPI document.

model       the base of all models; the types of ids, topics and times
jobs        jobs: scheduled and moved, one or many
bulk        changes of all jobs that are due in a range
views       a job as it is looked up
pages       query parameters of lists, and pages of waiting or dead jobs
topics      topics and their settings
groups      groups of a topic
leases      leases: requested, returned and settled
recurring   recurring jobs
callbacks   targets and receivers
problem     a problem (RFC 9457)
reading     turns pydantic's findings into field and remedy
"""
