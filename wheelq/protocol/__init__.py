"""What is said to Redis, as values: keys, records, scripts, and one `Call` per operation. Nothing here does I/O.

calls     a pure function per operation, which returns a `Call`: what to send and how to read the reply
scripts   the Lua files under `lua/`, with their digests
codec     what is stored for a job, and what a ready entry looks like; registry_codec: what is for topics and nodes
keys      the name of every key

PROTOCOL.md tells programs in other languages how to do without any of this: keys, records, scripts, with examples.
"""
