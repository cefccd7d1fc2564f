"""Who may do what.

keys       API keys and their scopes, as values
keyring    the keys as Redis holds them, read again every few seconds
rate       how many requests a second a caller may make

Keys live in Redis and not in a file: several server processes share them, a revoked one is gone everywhere within
seconds, and they are saved with the data. When Redis is away, those read last still hold.
"""
