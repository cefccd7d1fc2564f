"""Access control: what the caller of a request may do.

keys       API keys and their scopes, as values
caller     the caller of a request: what it may do, and how often
keyring    the keys as Redis holds them, read again every few seconds

Keys are stored in Redis, not in a file: all server processes share them, a revoked key is gone everywhere within
seconds, and they are saved with the data. While Redis is away, the keys read last remain valid.
"""
