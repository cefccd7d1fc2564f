"""up: runs everything at once, each part in its own process. Needs no Redis."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from wheelq.aio import AsyncClient
from wheelq.cli import process
from wheelq.cli.options import UP_PORT
from wheelq.cli.output import plain, say
from wheelq.cli.supervisor import (
    CommandPart,
    Part,
    ServerPart,
    Supervisor,
    lifeline,
    restarting_on_change,
    worker_parts,
)
from wheelq.model.job import Job
from wheelq.settings.environment import variable_of
from wheelq.transport import Address
from wheelq.worker import Worker

UP_DATA = Path("wheelq-data")
PRINTING = "wheelq.cli.up:printing_worker"
"""The worker without a module, as an argument for `wheelq worker`."""
PRINTING_GROUP = "wheelq-up"
"""Its group. It is no other worker's, so that each job that is printed also runs where it should."""


def up(
    logged: process.Logged,
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="The worker to run; else each due job is printed.")
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="Where the server keeps its data.")] = UP_DATA,
    port: Annotated[int, typer.Option("--port", help="The server's port, on this machine only.")] = UP_PORT,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Use this server and start none. WHEELQ_URL is not used.", show_default=False),
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Run the HTTP service, too, with its dashboard.")] = False,
    processes: process.Processes = 1,
    reload: process.Reload = False,
    log_jobs: process.LogJobs = False,
    courier: process.WithCourier = None,
) -> None:
    """Run everything: a server of its own, a scheduler and a worker, each in a process. Needs no Redis.

    Without MODULE:NAME it prints every job that falls due, in a group of its own, which takes no job from your workers
    and ends with it; with --url it then runs no worker. A process that crashes is restarted. SIGINT or SIGTERM stops
    the worker, then the scheduler, then the server; the data stays in --data. The scheduler gets --metrics-port, the
    first worker the port above it, and so on.
    """
    settings = logged.log_to_stderr("up")
    server = ServerPart(data, port=port) if url is None else None
    if server is not None:
        url = server.start().url
        for name in ("username", "password", "password_file"):
            os.environ[variable_of("", name)] = ""  # they are for another server
    assert url is not None
    shown = Address(url).shown
    os.environ["WHEELQ_URL"] = url
    with ExitStack() as stack:
        line = stack.enter_context(lifeline())
        count = processes if target else 1
        monitoring = [logged.monitoring_options(number) for number in range(count + 1)]
        scheduling = CommandPart("scheduler", ["scheduler", *monitoring[0]], line)
        carrying = process.courier_parts(courier, line)
        jobs = ["--log-jobs"] if log_jobs else []
        runs = target or (PRINTING if server is not None else None)
        working = worker_parts(runs, jobs, monitoring[1:], line, reload=reload and bool(target)) if runs else []
        stack.enter_context(restarting_on_change(working))
        serving = [CommandPart("http", ["server"], line)] if http else []
        groups: list[list[Part]] = [[server] if server else [], [scheduling], [*carrying], [*working], [*serving]]

        def started() -> None:
            say(f"server     {url}, process {server.pid}, data in {data}" if server else f"server     {shown}")
            say(f"scheduler  process {scheduling.pid}")
            for part in carrying:
                say(f"courier    process {part.pid}")
            for part in working:
                say(f"worker     process {part.pid}, {target or 'prints every job that falls due'}")
            if not working:
                say("worker     none: wheelq up MODULE:NAME runs one")
            for serving_part in serving:
                say(f"http       process {serving_part.pid}, {settings.server.shown}")
            if server:
                say(f"export WHEELQ_URL={url}")

        raise typer.Exit(Supervisor(groups).run(started))


def printing_worker() -> Worker:
    """Returns a worker for all topics, in a group of its own. It prints every job that falls due."""
    made = Worker.connect(group=PRINTING_GROUP)

    @made.lifespan
    async def client() -> AsyncIterator[AsyncClient]:
        async with AsyncClient.connect() as connected:
            yield connected
            await _end_group(connected)  # the worker is closed by then

    async def topics() -> Iterable[str]:
        return [info.name for info in await client.value.topics()]

    @made.handler_for_each(topics)
    async def show(job: Job) -> None:
        payload = json.dumps(job.payload, default=plain, ensure_ascii=False)
        say(f"{job.topic}/{job.id} is due: {payload}, {max(0.0, job.lateness) * 1000:.1f} ms late")

    return made


async def _end_group(client: AsyncClient) -> None:
    """Remove the group from every topic, or it would keep each job for ever that falls due from now on.

    It stays where it is the only one and has jobs to print: nobody else would ever get them.
    """
    for info in await client.topics():
        groups = await client.groups(info.name)
        left = sum(group.lag + group.pending for group in groups if group.name == PRINTING_GROUP)
        if len(groups) > 1 or not left:
            await client.remove_group(info.name, PRINTING_GROUP, force=True)
