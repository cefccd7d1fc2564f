"""The pages, one module for each noun: what it shows, and what a viewer can do there.

overview    the most important figures, and problems; schedulers and workers; receivers of callbacks, and the outbox
future      how many jobs are due when; the charts of the last hour and day, for overview and topics
topics      all topics; one topic, its settings, pause and resume; consumer groups of all topics
jobs        lists of jobs by state, changes of those that are due in a range; one job, its way so far; a new job
dead        dead jobs: grouped by error, replayed and purged
recurring   recurring jobs: look, run now, pause, edit
"""
