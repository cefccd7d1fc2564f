"""wheelq callbacks, wheelq secret: calls receivers from a separate process, and makes signing secrets."""

from __future__ import annotations

import base64
import logging
import secrets
from functools import partial

from wheelq.cli import process
from wheelq.cli.monitoring import LOOPBACK, MetricsHost, MetricsPort, monitored
from wheelq.cli.options import Config, LogFormat, LogLevel, Url, settings_of
from wheelq.cli.output import say
from wheelq.cli.supervisor import hold

logger = logging.getLogger("wheelq")

SECRET_BYTES = 32


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
    from wheelq.callbacks.worker import CallbackWorker  # needs the extra

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
