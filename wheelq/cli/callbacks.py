"""wheelq callbacks, wheelq secret: calls receivers in a process of its own, and makes what they verify calls with."""

from __future__ import annotations

import base64
import logging
import secrets
from importlib.util import find_spec

from wheelq.cli import run
from wheelq.cli.lifeline import hold
from wheelq.cli.options import Config, LogFormat, LogLevel, Url, settings_of
from wheelq.cli.output import say
from wheelq.errors import ConfigurationError

logger = logging.getLogger("wheelq")

SECRET_BYTES = 32


def callbacks(
    url: Url = None,
    config: Config = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    lifeline: run.Lifeline = None,
) -> None:
    """Call the receivers of due jobs until SIGINT or SIGTERM, when requests under way may finish.

    Whom it may call stands in the file that services in [server] of --config names (WHEELQ_SERVER_SERVICES comes before
    it). wheelq server makes these calls too, unless calls = false is said there. Start as many as you like.
    """
    hold(lifeline)
    run.log_to_stderr(log_level, log_format)
    needs_extra("wheelq callbacks", "httpx", "standardwebhooks", "pydantic")
    from wheelq.server.callbacks.worker import CallbackWorker  # these need the extra
    from wheelq.server.environment import with_environment

    worker = CallbackWorker.connect(url, with_environment(settings_of(config)))
    logger.info("callbacks are made")
    run.run_until_signal(worker.run, worker.stop)
    called = worker.destinations()
    logger.info(
        "callbacks have stopped; %d went well, %d failed",
        sum(info.succeeded for info in called),
        sum(info.failed for info in called),
    )


def secret() -> None:
    """Make a secret that callbacks are signed with (Standard Webhooks): for the register, and for the receiver."""
    say(f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}")


def needs_extra(command: str, *modules: str) -> None:
    """Raises: ConfigurationError, if what a command of the server needs is not installed."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{command} needs {', '.join(missing)}: pip install 'wheelq[server]'")
