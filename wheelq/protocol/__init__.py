"""Everything sent to Redis, as values: keys, records, scripts, and one `Call` per operation. Nothing here does I/O.

call              `Call`: one round trip as a value, what to send and how to read the reply
calls             a pure function for each operation, which returns a `Call`
scripts           the Lua files under `lua/`, with their digests
codec             the stored record of a job, and the checks of payloads and headers
scores            the due times in a sorted set's scores
attempts          the attempts of a job in its record
recurring_codec   the stored form of a recurring job
registry_codec    the stored form of topics, nodes and workers
keys              the name of every key

PROTOCOL.md describes keys, records and scripts for programs in other languages, with examples.
"""
