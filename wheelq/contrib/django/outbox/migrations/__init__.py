"""The migrations of the outbox's tables.

initial     makes them
"""
