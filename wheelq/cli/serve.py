"""server, keys, callbacks, secret: the delay service over HTTP, its API keys, and the calls to receivers."""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import typer

from wheelq.base.clock import wall_ms
from wheelq.cli.options import Session, Wide, overrides
from wheelq.cli.output import NOT_FOUND, say, say_aside, table
from wheelq.cli.process import Daemon, needs_extra
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.checks import LAST_MS, check_id
from wheelq.model.durations import parse_duration
from wheelq.model.job import from_ms
from wheelq.protocol.calls import access as calls
from wheelq.protocol.keys import Keys
from wheelq.server.access import ApiKey, new_key
from wheelq.settings import ServerSettings
from wheelq.transport import Transport, server_address

logger = logging.getLogger("wheelq")

SECRET_BYTES = 32

keys = typer.Typer(help="API keys of the HTTP server: make, list, rotate, revoke.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="The key's id, as wheelq keys list shows it.", show_default=False)]


def server(
    daemon: Daemon,
    host: Annotated[str | None, overrides(ServerSettings, "host")] = None,
    port: Annotated[int | None, overrides(ServerSettings, "port")] = None,
) -> None:
    """Run the delay service over HTTP until SIGINT or SIGTERM; requests in flight may finish then.

    The settings are in the table [server] of --config; environment variables such as WHEELQ_SERVER_PORT=8080 override
    them. The dashboard is at /, the manual at /docs. Start as many servers as you like: Redis has all they share.
    """
    settings = daemon.begin()
    needs_extra("wheelq server", "fastapi", "uvicorn", "httptools", "httpx", "jinja2", "pydantic", "standardwebhooks")
    from wheelq.server.run import HttpServer  # needs the extra

    given: dict[str, Any] = {"host": host, "port": port}
    listening = replace(settings.server, **{name: value for name, value in given.items() if value is not None})
    found = HttpServer.connect(daemon.url, replace(settings, server=listening))
    if found.is_open_to_all:
        logger.warning("access is open, and not only to this machine: anyone who can connect may do anything")
    daemon.run(settings, found.listen, found.stop)
    logger.info("server has stopped")


@keys.command("create")
def create(
    session: Session,
    name: Annotated[str, typer.Argument(help="A name for people: its owner or purpose.", show_default=False)],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            help="VERB:TOPIC, as often as needed; verbs read, schedule, change, consume, manage; * is any: "
            "schedule:orders.*",
            show_default=False,
        ),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", help="How long it is valid: 90d, 12h. Default: for ever.")
    ] = None,
) -> None:
    """Make a key and show its token, which is stored nowhere and never shown again."""
    now_ms = wall_ms()
    expires_ms = 0
    if expires is not None:
        expires_ms = now_ms + round(parse_duration(expires, "expires") * 1000)
        if not now_ms < expires_ms <= LAST_MS:
            problem = f"{expires!r} does not end between now and the year 9999; leave it out for a key without an end"
            raise InvalidInput("expires", problem)
    key, token = new_key(check_id(name, "name"), tuple(scope), now_ms, expires_ms)
    with _transport(session) as (transport, names):
        transport.send(calls.put_api_key(names, key.id, key.stored()))
    session.answer({"id": key.id, "token": token}, token)


@keys.command("list")
def list_keys(session: Session, wide: Wide = False) -> None:
    """Show every key: id, name, scopes and times. Secrets are not stored."""
    with _transport(session) as (transport, names):
        stored, unreadable = transport.send(calls.api_keys(names))
    found = sorted((ApiKey.read(id, what) for id, what in stored.items()), key=lambda key: key.created_ms)
    for id, why in unreadable.items():
        say_aside(f"key {id} cannot be read, and opens nothing: {why}")
    shown = [_shown(key) for key in found]
    rows = [[value or "never" for value in one.values()] for one in shown]
    session.answer(shown, table("id", "name", "scopes~", "created?", "expires?", rows=rows), wide)


@keys.command("rotate")
def rotate(
    session: Session,
    id: Id,
    keep: Annotated[str, typer.Option("--keep", help="How long the present secret still works.")] = "24h",
) -> None:
    """Give a key a new secret and show its token; the present secret still works for a while."""
    with _transport(session) as (transport, names):
        found = transport.send(calls.api_keys(names))
        if id in found.unreadable:
            raise ConfigurationError(f"key {id} cannot be read ({found.unreadable[id]}): revoke it, and make another")
        stored = found.stored.get(id)
        if stored is None:
            raise _missing(id)
        key, token = ApiKey.read(id, stored).rotated(wall_ms(), round(parse_duration(keep, "keep") * 1000))
        transport.send(calls.put_api_key(names, id, key.stored()))
    session.answer({"id": key.id, "token": token}, token)


@keys.command("revoke")
def revoke(session: Session, id: Id) -> None:
    """Revoke a key; every server refuses it within seconds (keys_ms)."""
    with _transport(session) as (transport, names):
        if not transport.send(calls.drop_api_key(names, id)):
            raise _missing(id)
    session.answer({"id": id, "revoked": True}, f"key {id} is revoked")


@contextmanager
def _transport(session: Session) -> Iterator[tuple[Transport, Keys]]:
    transport = Transport(server_address(session.url, session.settings))
    try:
        yield transport, Keys(session.settings.prefix)
    finally:
        transport.close()


def _missing(id: str) -> typer.Exit:
    say_aside(f"there is no key {id}: wheelq keys list shows them")
    return typer.Exit(NOT_FOUND)


def _shown(key: ApiKey) -> dict[str, str | None]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": " ".join(key.scopes),
        "created": from_ms(key.created_ms).isoformat(timespec="seconds"),
        "expires": from_ms(key.expires_ms).isoformat(timespec="seconds") if key.expires_ms else None,
    }


def callbacks(daemon: Daemon) -> None:
    """Call the receivers of due jobs until SIGINT or SIGTERM; requests in flight may finish then.

    The file named by services in the table [server] of --config (or by WHEELQ_SERVER_SERVICES) lists the receivers.
    wheelq server makes these calls too, unless calls = false is set there. Start as many processes as you like.
    """
    settings = daemon.begin()
    needs_extra("wheelq callbacks", "httpx", "standardwebhooks", "pydantic")
    from wheelq.callbacks.caller import CallbackWorker  # needs the extra

    worker = CallbackWorker.connect(daemon.url, settings)
    logger.info("callbacks are made")
    daemon.run(settings, worker.run, worker.stop)
    called = worker.destinations()
    logger.info(
        "callbacks have stopped; %d went well, %d failed",
        sum(info.succeeded for info in called),
        sum(info.failed for info in called),
    )


def secret() -> None:
    """Make a secret for signing callbacks (Standard Webhooks), for the register and the receiver."""
    say(f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}")
