"""check: names the jobs whose payloads do not fit the types of a worker's handlers."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import RenderableType

from wheelq.admin.payloads import MisfitKind
from wheelq.base.plural import counted
from wheelq.cli.options import Session
from wheelq.cli.output import FAILED, progress_bar, table
from wheelq.cli.process import Target, load_worker
from wheelq.settings import resolve_url


def check_payloads(
    session: Session,
    target: Target,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Look only at so many jobs of each topic, the first due.")
    ] = None,
) -> None:
    """Name the jobs that the worker's handlers could not read. Exit code 1: there are some.

    wheelq check shop.jobs:worker

    Run it before a deploy, with the code to be deployed. It looks at the waiting, retrying and ready jobs of the
    worker's topics and group, and changes nothing.
    """
    settings = session.settings
    os.environ["WHEELQ_URL"] = resolve_url(session.url, settings)  # before the module is imported: see `worker`
    worker = load_worker(target)
    with session.inspector() as inspector, progress_bar() as bar:
        task = bar.add_task("jobs", total=None)
        found = inspector.check_payloads(
            worker, sample, lambda done, total: bar.update(task, completed=done, total=max(done, total))
        )
    misfits = sorted(found.misfits.values(), key=lambda one: (one.topic, -one.jobs))
    told = {"jobs": found.jobs, "untyped": found.untyped, "misfits": [asdict(one) for one in misfits]}
    looked = f"{counted(found.jobs, 'job')} looked at"
    if found.untyped:
        looked += f"; any payload fits the handlers of {', '.join(found.untyped)}"
    session.answer(told, _table(misfits) if misfits else f"all payloads fit: {looked}")
    if misfits:
        raise typer.Exit(FAILED)


def _table(misfits: list[MisfitKind]) -> RenderableType:
    rows = ((one.topic, one.field, one.jobs, ", ".join(one.ids), one.error) for one in misfits)
    return table("topic", "field", ">jobs", "such as", "error~", rows=rows)
