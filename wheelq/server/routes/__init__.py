"""The routes, by resource: each handler reads, asks the client, and answers."""
