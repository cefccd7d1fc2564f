"""Inspects a server and its topics, schedulers and workers. Changes nothing.

figures     collects the figures of the fleet: topics, groups, schedulers, workers, recurring jobs (operations)
metrics     `FleetMetrics`: the metrics of the fleet in the text format of Prometheus
facts       collects facts about the server, its jobs and other prefixes in use, for `diagnosis` (operations)
payloads    finds jobs that do not fit the handlers of a worker, for `wheelq check` (operations)
diagnosis   turns facts into findings for `wheelq doctor`
inspector   `Inspector`: does all this for blocking programs
"""

from wheelq.admin.figures import NodeInfo, Stats, WorkerInfo
from wheelq.admin.inspector import Inspector

__all__ = ["Inspector", "NodeInfo", "Stats", "WorkerInfo"]
