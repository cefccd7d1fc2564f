"""Integrations with other frameworks. Each module needs its framework, and wheelq itself imports none.

django      a backend for Django's tasks, and the command that runs their worker
"""
