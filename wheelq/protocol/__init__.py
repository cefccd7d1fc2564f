"""What is said to Redis, as values: keys, records, scripts, and one `Call` per operation. Nothing here does I/O.

calls     a pure function per operation, which returns a `Call`: what to send and how to read the reply
scripts   the Lua files under `lua/`, with their digests
codec     what is stored for a job, and what a ready entry looks like
keys      the name of every key
"""
