"""server, keys, callbacks, secret: the delay service over HTTP, its API keys, and the calls to receivers."""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from wheelq.base.clock import wall_ms
from wheelq.cli import process
from wheelq.cli.monitoring import LOOPBACK, MetricsHost, MetricsPort, monitored
from wheelq.cli.options import Config, Json, LogFormat, LogLevel, Url, Wide, overrides, settings_of
from wheelq.cli.output import NOT_FOUND, say, say_aside, say_json, stdout, table
from wheelq.cli.supervisor import hold
from wheelq.errors import ConfigurationError
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
    host: Annotated[str | None, overrides(ServerSettings, "host")] = None,
    port: Annotated[int | None, overrides(ServerSettings, "port")] = None,
    url: Url = None,
    config: Config = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    lifeline: process.Lifeline = None,
    speaker: process.Speaker = None,
) -> None:
    """Run the delay service over HTTP until SIGINT or SIGTERM; requests in flight may finish then.

    The settings are in the table [server] of --config; environment variables such as WHEELQ_SERVER_PORT=8080 override
    them. The dashboard is at /, the manual at /docs. Start as many servers as you like: Redis has all they share.
    """
    hold(lifeline)
    settings = settings_of(config)
    process.log_to_stderr(settings, log_level, log_format, speaker)
    process.needs_extra(
        "wheelq server", "fastapi", "uvicorn", "httptools", "httpx", "jinja2", "pydantic", "standardwebhooks"
    )
    from wheelq.server.run import HttpServer  # needs the extra

    given: dict[str, Any] = {"host": host, "port": port}
    listening = replace(settings.server, **{name: value for name, value in given.items() if value is not None})
    found = HttpServer.connect(url, replace(settings, server=listening))
    if found.is_open_to_all:
        logger.warning("access is open, and not only to this machine: anyone who can connect may do anything")
    monitor = partial(monitored, metrics_port, metrics_host, url, settings)
    process.run_until_signal(found.listen, found.stop, monitor)
    logger.info("server has stopped")


@keys.command("create")
def create(
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
    url: Url = None,
    config: Config = None,
) -> None:
    """Make a key and show its token, which is stored nowhere and never shown again."""
    now_ms = wall_ms()
    expires_ms = now_ms + round(parse_duration(expires, "expires") * 1000) if expires else 0
    key, token = new_key(name, tuple(scope), now_ms, expires_ms)
    with _transport(url, config) as (transport, names):
        transport.send(calls.put_api_key(names, key.id, key.stored()))
    say(token)


@keys.command("list")
def list_keys(url: Url = None, config: Config = None, wide: Wide = False, as_json: Json = False) -> None:
    """Show every key: id, name, scopes and times. Secrets are not stored."""
    with _transport(url, config) as (transport, names):
        stored, unreadable = transport.send(calls.api_keys(names))
    found = sorted((ApiKey.read(id, what) for id, what in stored.items()), key=lambda key: key.created_ms)
    for id, why in unreadable.items():
        say_aside(f"key {id} cannot be read, and opens nothing: {why}")
    if as_json:
        say_json([_shown(key) for key in found])
    else:
        rows = [[value or "never" for value in _shown(key).values()] for key in found]
        stdout(wide).print(table("id", "name", "scopes~", "created?", "expires?", rows=rows))


@keys.command("rotate")
def rotate(
    id: Id,
    keep: Annotated[str, typer.Option("--keep", help="How long the present secret still works.")] = "24h",
    url: Url = None,
    config: Config = None,
) -> None:
    """Give a key a new secret and show its token; the present secret still works for a while."""
    with _transport(url, config) as (transport, names):
        found = transport.send(calls.api_keys(names))
        if id in found.unreadable:
            raise ConfigurationError(f"key {id} cannot be read ({found.unreadable[id]}): revoke it, and make another")
        stored = found.stored.get(id)
        if stored is None:
            raise _missing(id)
        key, token = ApiKey.read(id, stored).rotated(wall_ms(), round(parse_duration(keep, "keep") * 1000))
        transport.send(calls.put_api_key(names, id, key.stored()))
    say(token)


@keys.command("revoke")
def revoke(id: Id, url: Url = None, config: Config = None) -> None:
    """Revoke a key; every server refuses it within seconds (keys_ms)."""
    with _transport(url, config) as (transport, names):
        if not transport.send(calls.drop_api_key(names, id)):
            raise _missing(id)
    say(f"key {id} is revoked")


@contextmanager
def _transport(url: str | None, config: Path | None) -> Iterator[tuple[Transport, Keys]]:
    settings = settings_of(config)
    transport = Transport(server_address(url, settings))
    try:
        yield transport, Keys(settings.prefix)
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


def callbacks(
    url: Url = None,
    config: Config = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    lifeline: process.Lifeline = None,
) -> None:
    """Call the receivers of due jobs until SIGINT or SIGTERM; requests in flight may finish then.

    The file named by services in the table [server] of --config (or by WHEELQ_SERVER_SERVICES) lists the receivers.
    wheelq server makes these calls too, unless calls = false is set there. Start as many processes as you like.
    """
    hold(lifeline)
    settings = settings_of(config)
    process.log_to_stderr(settings, log_level, log_format)
    process.needs_extra("wheelq callbacks", "httpx", "standardwebhooks", "pydantic")
    from wheelq.callbacks.caller import CallbackWorker  # needs the extra

    worker = CallbackWorker.connect(url, settings)
    logger.info("callbacks are made")
    process.run_until_signal(worker.run, worker.stop, partial(monitored, metrics_port, metrics_host, url, settings))
    called = worker.destinations()
    logger.info(
        "callbacks have stopped; %d went well, %d failed",
        sum(info.succeeded for info in called),
        sum(info.failed for info in called),
    )


def secret() -> None:
    """Make a secret for signing callbacks (Standard Webhooks), for the register and the receiver."""
    say(f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}")
