"""Every command of `wheelq`, with its line in `wheelq --help`, so that the help needs no imports."""

from __future__ import annotations

from typing import NamedTuple

_TRY = "Try it"
_PRODUCE = "Schedule jobs and look after them"
_RUN = "Run them"
_LOOK = "Look"


class LazyCommand(NamedTuple):
    """A command that is imported on demand."""

    panel: str
    """Its heading in `wheelq --help`."""
    where: str
    """Module of wheelq.cli, and the name of the function or Typer in it."""
    help: str
    """The first paragraph of its help, as `wheelq --help` shows it."""


COMMANDS = {
    "demo": LazyCommand(
        _TRY,
        "demo.command:demo",
        "See it work: 3,000 orders scheduled, cancelled, moved, run, and checked, in half a minute.",
    ),
    "init": LazyCommand(
        _TRY, "init:init", "Write a starter: shop.py with two tasks, and test_shop.py. Nothing is overwritten."
    ),
    "up": LazyCommand(
        _TRY,
        "up:up",
        "Run everything: a server of its own, a scheduler and a worker, each in a process. Needs no Redis.",
    ),
    "bench": LazyCommand(
        _TRY,
        "bench:bench",
        "Measure a server: jobs scheduled per second, how late they start, jobs drained per second.",
    ),
    "guide": LazyCommand(
        _TRY,
        "shipped:guide",
        "Show a page of the guide. Without a name, list the pages.",
    ),
    "schedule": LazyCommand(
        _PRODUCE,
        "jobs:schedule",
        "Schedule one job.",
    ),
    "import": LazyCommand(
        _PRODUCE,
        "importing:import_file",
        "Schedule every line of a file.",
    ),
    "cancel": LazyCommand(
        _PRODUCE, "changes:cancel", "Cancel a waiting job, or all that are due in a range. Asks first for a range."
    ),
    "reschedule": LazyCommand(
        _PRODUCE,
        "changes:reschedule",
        "Give a waiting job a new due time, or move all that are due in a range. Asks first for a range.",
    ),
    "run-now": LazyCommand(
        _PRODUCE,
        "changes:run_now",
        "Run a waiting job now. Exit code 3: no such job; 4: it is with the workers already.",
    ),
    "job": LazyCommand(
        _PRODUCE,
        "jobs:job",
        "Show a job and its state. Exit code 3: no such job is known.",
    ),
    "wait": LazyCommand(
        _PRODUCE,
        "jobs:wait",
        "Wait until a job is done and print its result as JSON. Exit code 1: it was given up, or not done in time.",
    ),
    "rerun": LazyCommand(
        _PRODUCE,
        "jobs:rerun",
        "Run again, in one group, the jobs promoted between two times that the topic's retention still keeps.",
    ),
    "reshard": LazyCommand(
        _PRODUCE, "jobs:reshard", "Change a topic's number of shards, up or down, while jobs wait and run."
    ),
    "recurring": LazyCommand(
        _PRODUCE,
        "recurring:app",
        "Manage recurring jobs, by cron or at an interval.",
    ),
    "dead": LazyCommand(
        _PRODUCE,
        "dead:app",
        "List, replay or remove dead jobs.",
    ),
    "configure": LazyCommand(
        _PRODUCE, "topics:configure", "Change settings of a live topic, or create a new topic with them."
    ),
    "pause": LazyCommand(
        _PRODUCE,
        "topics:pause",
        "Pause a topic: nothing is promoted or started until it is resumed. Jobs can still be scheduled, and wait.",
    ),
    "resume": LazyCommand(
        _PRODUCE, "topics:resume", "Resume a paused topic. Jobs that fell due meanwhile run at once, earliest first."
    ),
    "scheduler": LazyCommand(
        _RUN,
        "process:scheduler",
        "Run a scheduler node until SIGINT or SIGTERM. Start as many as you like: each shard has one leader.",
    ),
    "worker": LazyCommand(
        _RUN,
        "process:worker",
        "Run a worker until SIGINT or SIGTERM; running handlers may finish then. Waits for a server that is away.",
    ),
    "server": LazyCommand(
        _RUN,
        "serve:server",
        "Run the delay service over HTTP until SIGINT or SIGTERM; requests in flight may finish then.",
    ),
    "callbacks": LazyCommand(
        _RUN,
        "serve:callbacks",
        "Call the receivers of due jobs until SIGINT or SIGTERM; requests in flight may finish then.",
    ),
    "secret": LazyCommand(
        _RUN,
        "serve:secret",
        "Make a secret for signing callbacks (Standard Webhooks), for the register and the receiver.",
    ),
    "keys": LazyCommand(
        _RUN,
        "serve:keys",
        "API keys of the HTTP server: make, list, rotate, revoke.",
    ),
    "topics": LazyCommand(
        _LOOK,
        "topics:topics",
        "Show every topic with its job counts.",
    ),
    "topic": LazyCommand(
        _LOOK,
        "topics:topic",
        "List and remove topics.",
    ),
    "group": LazyCommand(
        _LOOK,
        "topics:group",
        "List and remove the consumer groups of a topic.",
    ),
    "jobs": LazyCommand(
        _LOOK,
        "jobs:jobs",
        "List the jobs of a topic in one state; done and dead ones the latest first.",
    ),
    "forecast": LazyCommand(
        _LOOK, "topics:forecast", "Show how many jobs fall due in the next second, minute, hour and so on."
    ),
    "stats": LazyCommand(
        _LOOK,
        "stats:stats",
        "Show topics, scheduler nodes and workers.",
    ),
    "top": LazyCommand(
        _LOOK,
        "top:top",
        "Show live rates and lateness per scheduler and handler, the fullest topics, and the next due jobs.",
    ),
    "doctor": LazyCommand(
        _LOOK,
        "stats:doctor",
        "Check the server and its jobs, and say what is wrong and what can be lost.",
    ),
    "health": LazyCommand(
        _LOOK,
        "health:health",
        "Ask a wheelq process whether it is healthy. Exit code 1: it is not, or it does not answer.",
    ),
    "config": LazyCommand(
        _LOOK,
        "config:config",
        "Show every setting in force and where it comes from: option, environment variable, file or default.",
    ),
    "script": LazyCommand(
        _LOOK, "shipped:script", "Print a complete Lua script for EVAL or SCRIPT LOAD, for programs in other languages."
    ),
    "outbox": LazyCommand(
        _LOOK,
        "outbox:outbox",
        "Show the jobs that an outbox keeps until the server is back, and the jobs that it has set aside.",
    ),
}
"""Every command, in the order of `wheelq --help`."""
