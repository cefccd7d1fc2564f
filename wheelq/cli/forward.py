"""forward: passes the due jobs of a topic on to Kafka."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from wheelq.base.plural import counted
from wheelq.cli.options import Topic
from wheelq.cli.process import Daemon, needs_extra
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.retry import Retry
from wheelq.worker import Worker

logger = logging.getLogger("wheelq")

RETRY = Retry(cap=5)
MAX_SIZE = 500
CONCURRENCY = 2
"""Batches in flight: while one is confirmed, the other is filled."""
MAX_WAIT_S = 0.01


def forward(
    daemon: Daemon,
    topic: Topic,
    to: Annotated[
        str, typer.Option("--to", help="kafka://host:port,…/topic; without a topic, the same name.", show_default=False)
    ],
    group: Annotated[str, typer.Option("--group", help="The group that gets the jobs.")] = "kafka",
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Send the jobs of each partition key one at a time, in due order.")
    ] = False,
    envelope: Annotated[
        bool, typer.Option("--envelope", help='Send {"topic": …, "content": …} instead of the payload alone.')
    ] = False,
    properties: Annotated[
        Path | None,
        typer.Option(
            "--properties", metavar="FILE", exists=True, dir_okay=False, readable=True, help="Settings of librdkafka."
        ),
    ] = None,
) -> None:
    """Send the due jobs of a topic to Kafka until SIGINT or SIGTERM. Start as many processes as you like.

    wheelq forward orders --to kafka://kafka-1:9092,kafka-2:9092/orders-due

    A job is acknowledged when its message is confirmed. While the brokers are away, jobs wait in Redis. Each line of
    --properties is NAME=VALUE, such as security.protocol=SASL_SSL.
    """
    settings = daemon.begin()
    needs_extra("wheelq forward", "confluent_kafka", "pydantic", extra="kafka")
    from wheelq.sinks.kafka import KafkaSink  # needs the extra

    servers, target = kafka_url(to)
    config = read_properties(properties) if properties else None
    sink = KafkaSink(servers, target or topic, envelope=envelope, config=config)
    worker = Worker.connect(daemon.url, group=group, settings=settings)
    if ordered:
        worker.handler(topic, ordered="key", retry=RETRY)(sink)
    else:
        worker.batch_handler(topic, max_size=MAX_SIZE, max_wait=MAX_WAIT_S, concurrency=CONCURRENCY, retry=RETRY)(sink)

    async def run() -> None:
        logger.info("jobs of %s go to Kafka at %s, group %s", topic, servers, group)
        await worker.run(patiently=True)

    daemon.run(settings, run, worker.stop)
    logger.info("forwarding has stopped; %s sent", counted(worker.handled, "job"))


def kafka_url(url: str) -> tuple[str, str]:
    """Returns the servers of `kafka://host:port,…/topic`, and the topic or "". Raises: InvalidInput."""
    parts = urlsplit(url)
    if parts.scheme != "kafka" or not parts.netloc:
        raise InvalidInput("to", f"must look like kafka://host:9092/topic, not {url!r}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidInput(
            "to", "has only hosts and a topic: other settings, such as sasl.password, go to --properties"
        )
    return parts.netloc, parts.path.strip("/")


def read_properties(path: Path) -> dict[str, str]:
    """Returns the settings in a file with lines NAME=VALUE; `#` begins a comment. Raises: ConfigurationError."""
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    given = [line for line in lines if line and not line.startswith("#")]
    if wrong := next((number for number, line in enumerate(lines, 1) if line in given and "=" not in line), None):
        raise ConfigurationError(f"{path}, line {wrong}: must be NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in given)}
