"""The lanes of a worker: the ways of deliveries from their shards to their handlers.

lane        one lane for single handlers, one for each batch or ordered handler
reader      reads new deliveries, as many as could start at once; of many shards, those that may hold some
batching    gathers deliveries in lists, and runs them
"""
