"""librdkafka's mock cluster: brokers in this process that can be taken away, slowed down, and made to refuse requests.

`confluent_kafka` shows nothing of it but a setting (`test.mock.num.brokers`), so this calls the library that comes with
it. Brokers keep what they have stored while they are down, up to 100,000 messages and 5 MB in each partition.
"""

from __future__ import annotations

import ctypes
import glob
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition

PRODUCE, INIT_PRODUCER_ID = 0, 22
"""Kinds of requests."""
PARTITIONS = 4
"""Of a topic that is made by its first message."""
READ_AT_ONCE = 5_000
_PRODUCER = 0


def _library() -> Any:
    [path] = glob.glob(f"{confluent_kafka.__path__[0]}.libs/librdkafka-*.so*")
    library = ctypes.CDLL(path)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "conf_new": (c_void_p, []),
        "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
        "new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
        "destroy": (None, [c_void_p]),
        "mock_cluster_new": (c_void_p, [c_void_p, c_int]),
        "mock_cluster_destroy": (None, [c_void_p]),
        "mock_cluster_bootstraps": (c_char_p, [c_void_p]),
        "mock_broker_set_down": (c_int, [c_void_p, c_int32]),
        "mock_broker_set_up": (c_int, [c_void_p, c_int32]),
        "mock_broker_set_rtt": (c_int, [c_void_p, c_int32, c_int]),
        "mock_push_request_errors_array": (None, [c_void_p, c_int16, c_size_t, POINTER(c_int)]),
        "mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
        "mock_topic_set_error": (None, [c_void_p, c_char_p, c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class KafkaCluster:
    """A mock cluster of one broker."""

    def __init__(self) -> None:
        self._library = library = _library()
        said = ctypes.create_string_buffer(512)
        settings = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set(settings, b"log_level", b"0", said, len(said))
        self._client = library.rd_kafka_new(_PRODUCER, settings, said, len(said))
        assert self._client, said.value
        self._cluster = library.rd_kafka_mock_cluster_new(self._client, 1)
        self.servers: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def make_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)

    def go(self) -> None:
        """Cut all connections, and refuse new ones."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def come_back(self) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)

    @contextmanager
    def away(self) -> Iterator[None]:
        self.go()
        try:
            yield
        finally:
            self.come_back()

    def slow_down(self, ms: int) -> None:
        """Answer each request so much later."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, 1, ms)

    def refuse(self, request: int, *errors: int) -> None:
        """Answer the next requests of this kind with these errors, one each."""
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, request, len(errors), (c_int * len(errors))(*errors)
        )

    def fail_topic(self, name: str, error: int) -> None:
        """Answer each question for a topic with this error; 0: no longer."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, name.encode(), error)


def stored(servers: str, topic: str, partitions: int = PARTITIONS, wait_s: float = 0.2) -> Iterator[list[Any]]:
    """Yields the messages of a topic from its beginning, as they come; an empty list if none came for so long."""
    settings = {"group.id": "reads", "log_level": 0, "fetch.wait.max.ms": 50, "reconnect.backoff.max.ms": 500}
    consumer = Consumer({"bootstrap.servers": servers, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    try:
        while True:
            found = consumer.consume(READ_AT_ONCE, wait_s)
            yield [one for one in found if one.error() is None]
    finally:
        consumer.close()
