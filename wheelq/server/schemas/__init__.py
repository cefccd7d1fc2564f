"""Requests and answers as pydantic models, which check requests and make up the OpenAPI document.

model       the base of all models; the types of ids, topics and times
jobs        jobs: scheduled and moved, one or many
views       jobs as they are looked up and listed; query parameters of lists
topics      topics, their settings and groups
reading     bodies: their media type and charset; findings of pydantic as field and remedy
"""
