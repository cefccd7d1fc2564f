"""What a worker does besides running jobs.

shards      the shards of its topics, read again whenever they may have changed
hints       listens for changes of topics, and for requests to cancel a job
heartbeat   this worker's heartbeat, its reports and its farewell
overdue     warns that due jobs wait because no scheduler runs
janitor     removes leftovers of dead workers, and old dead jobs
"""
