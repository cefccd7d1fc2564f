"""The server's settings from the environment: what is read, what is told, and what is not meant for them."""

from __future__ import annotations

import logging

import pytest

from wheelq.errors import ConfigurationError
from wheelq.server.environment import with_environment
from wheelq.settings import ServerSettings, Settings

INJECTED = {
    "WHEELQ_SERVER_SERVICE_HOST": "10.0.0.7",
    "WHEELQ_SERVER_SERVICE_PORT": "80",
    "WHEELQ_SERVER_SERVICE_PORT_HTTP": "80",
    "WHEELQ_SERVER_PORT": "tcp://10.0.0.7:80",
    "WHEELQ_SERVER_PORT_80_TCP": "tcp://10.0.0.7:80",
    "WHEELQ_SERVER_PORT_80_TCP_PROTO": "tcp",
    "WHEELQ_SERVER_PORT_80_TCP_PORT": "80",
    "WHEELQ_SERVER_PORT_80_TCP_ADDR": "10.0.0.7",
    "WHEELQ_SERVER_PORT_53_UDP": "udp://10.0.0.7:53",
    "WHEELQ_SERVER_METRICS_SERVICE_HOST": "10.0.0.8",
    "WHEELQ_SERVER_METRICS_PORT": "tcp://10.0.0.8:80",
}
"""What Kubernetes says of two services, wheelq-server and wheelq-server-metrics."""


def test_what_the_environment_says_comes_before_the_file_and_what_is_given_before_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in {"PORT": "8080", "HOST": "::1", "CALLS": "false", "ACCESS": "keys"}.items():
        monkeypatch.setenv(f"WHEELQ_SERVER_{name}", text)
    read = with_environment(Settings(server=ServerSettings(port=1, rate=5)), host="::2", port=None)
    assert read.server == ServerSettings(port=8080, rate=5, host="::2", calls=False, access="keys")


def test_a_text_that_is_no_such_value_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELQ_SERVER_PORT", "http")
    with pytest.raises(ConfigurationError, match=r"WHEELQ_SERVER_PORT: .*integer.*, not 'http'"):
        with_environment(Settings())


def test_a_number_that_cannot_be_is_told_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not where an option came before it."""
    monkeypatch.setenv("WHEELQ_SERVER_RATE", "-1")
    with pytest.raises(ConfigurationError, match=r"^WHEELQ_SERVER_RATE must be at least 0, not -1$"):
        with_environment(Settings())
    with pytest.raises(ConfigurationError, match=r"^rate must be at least 0, not -2$"):
        with_environment(Settings(), rate=-2)


def test_what_kubernetes_says_of_its_services_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in INJECTED.items():
        monkeypatch.setenv(name, text)
    with caplog.at_level(logging.DEBUG, "wheelq.server"):
        assert with_environment(Settings()) == Settings()
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert all(any(record.message.startswith(f"{name} ") for record in caplog.records) for name in INJECTED)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("ACESS", "ACCESS"), ("TLS_CERTS", "TLS_CERT"), ("BODY_MAX", "BODY_MAX_BYTES"), ("KEY_MS", "KEYS_MS")],
)
def test_a_misspelt_name_is_told_with_the_nearest(monkeypatch: pytest.MonkeyPatch, wrong: str, meant: str) -> None:
    monkeypatch.setenv(f"WHEELQ_SERVER_{wrong}", "1")
    with pytest.raises(ConfigurationError, match=rf"WHEELQ_SERVER_{wrong} is no .* mean WHEELQ_SERVER_{meant}\b"):
        with_environment(Settings())


def test_a_name_that_is_like_none_is_told_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WHEELQ_SERVER_URL", "http://delays.example")
    monkeypatch.setenv("WHEELQ_SERVER_BINARY", "/usr/bin/valkey-server")
    assert with_environment(Settings()) == Settings()
    assert [record.message.split()[0] for record in caplog.records] == ["WHEELQ_SERVER_URL"]
