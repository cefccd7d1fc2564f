"""Jobs, topics and their rules, as callers and handlers see them. No I/O.

job         a job, its receipt, and the outcomes of changing one or many
state       where a job is, in each group; pages of jobs in one state
task        functions whose signature is the payload of their jobs
topic       a topic: shards, limits, retention; what happened in it, minute by minute
dead        dead jobs, and filters for them
bundle      jobs that are counted, and the job that follows them
recurring   recurring jobs: rules, the occurrences to make now, outcomes
cron        cron expressions in a time zone, and clock changes
retry       when a failed job runs again
durations   durations as people write and read them: 1h 30m
convert     converts typed values to payloads and back
checks      checks arguments and converts them to what the scripts take
"""
