"""Settings in force: environment variables over the file over the defaults, and mistakes in a variable's name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from wheelq import AsyncClient, Client, Scheduler, Worker
from wheelq.errors import ConfigurationError
from wheelq.settings import ServerSettings, Settings, WorkerSettings, settings_in_force
from wheelq.settings.environment import variable_of, with_environment

TABLES = [item.name for item in fields(Settings) if is_dataclass(item.default)]
FROM_KUBERNETES = {
    "WHEELQ_SERVICE_HOST": "10.0.0.6",
    "WHEELQ_PORT": "tcp://10.0.0.6:80",
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
"""What Kubernetes sets for three services: wheelq, wheelq-server and wheelq-server-metrics."""


def changed(value: Any) -> Any:
    """A valid value that is not the default."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case "server":
            return "fsynced"
        case "run" | "auto" | "changes" | "link" | "retry":
            return {"run": "skip", "auto": "open", "changes": "all", "link": "parent", "retry": "bury"}[value]
        case _:
            return "other"


def in_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def in_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file that WHEELQ_CONFIG names; empty at first."""
    path = tmp_path / "wheelq.toml"
    path.write_text("")
    monkeypatch.setenv("WHEELQ_CONFIG", str(path))
    return path


# Each table, from the file and from the environment

UNCHANGED = {"tls_cert", "tls_key", "tls_client_ca", "lease_margin_ms", "renew_ms", "ack_batch", "base_path"}
"""Settings that need another beside them, are at their limit, or must have a certain form."""


def values_of(table: str) -> dict[str, Any]:
    default = getattr(Settings(), table)
    return {item.name: changed(getattr(default, item.name)) for item in fields(default) if item.name not in UNCHANGED}


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_of_a_table_is_obeyed_from_the_file_that_wheelq_config_names(file: Path, table: str) -> None:
    values = values_of(table)
    file.write_text(f"[{table}]\n" + "\n".join(f"{name} = {in_toml(value)}" for name, value in values.items()))
    found = getattr(settings_in_force(), table)
    assert {name: getattr(found, name) for name in values} == values


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_of_a_table_has_a_variable_that_overrides_the_file(
    file: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = values_of(table)
    for name, value in values.items():
        monkeypatch.setenv(variable_of(table, name), in_text(value))
    found = getattr(settings_in_force(), table)
    assert {name: getattr(found, name) for name in values} == values


def test_settings_outside_of_the_tables_have_variables_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("prefix = 'of-the-file'\nurl = 'redis://file'")
    assert (settings_in_force().prefix, settings_in_force().url) == ("of-the-file", "redis://file")
    monkeypatch.setenv("WHEELQ_PREFIX", "of-the-environment")
    monkeypatch.setenv("WHEELQ_URL", "redis://environment")
    assert (settings_in_force().prefix, settings_in_force().url) == ("of-the-environment", "redis://environment")


# Every connect()


@pytest.mark.parametrize("connect", [Client.connect, AsyncClient.connect, Worker.connect, Scheduler.connect])
def test_every_connect_obeys_the_file_and_the_environment(
    file: Path, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("url = 'memory://tests'\nprefix = 'of-the-file'")
    assert "of-the-file" in prefixes(connect())
    monkeypatch.setenv("WHEELQ_PREFIX", "of-the-environment")
    assert "of-the-environment" in prefixes(connect())
    assert "of-the-program" in prefixes(connect(settings=Settings(url="memory://tests", prefix="of-the-program")))


def prefixes(part: object) -> str:
    """Every prefix of keys that this part uses, found by its first key."""
    keys = getattr(part, "_keys", None) or part._shards._keys  # type: ignore[attr-defined]
    return str(keys.changes)


def test_settings_given_by_the_program_replace_file_and_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[worker]\nconcurrency = 7")
    monkeypatch.setenv("WHEELQ_WORKER_THREADS", "3")
    given = Worker.connect("memory://tests", settings=Settings())
    read = Worker.connect("memory://tests")
    assert given._settings == WorkerSettings()
    assert read._settings == WorkerSettings(concurrency=7, threads=3)


# Values and names that are wrong


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("SERVER_PORT", "http", "must be a whole number, not 'http'"),
        ("SERVER_PORT", "80.5", "must be a whole number, not '80.5'"),
        ("SERVER_RATE", "-1", "must be at least 0, not -1"),
        ("SERVER_CALLS", "perhaps", "must be true or false, not 'perhaps'"),
        ("TOPIC_MAX_RATE", "much", "must be a number, not 'much'"),
        ("SERVER_ACCESS", "closed", "must be one of auto, keys, open, not 'closed'"),
        ("PREFIX", "a b", "must be non-empty, without braces, colons and spaces, not 'a b'"),
    ],
)
def test_an_invalid_value_is_named_with_its_variable(name: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        with_environment(None, {f"WHEELQ_{name}": text})
    assert str(caught.value) == f"WHEELQ_{name} {problem}"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("SERVER_ACESS", "SERVER_ACCESS"),
        ("SERVER_TLS_CERTS", "SERVER_TLS_CERT"),
        ("SERVER_BODY_MAX", "SERVER_BODY_MAX_BYTES"),
        ("WORKER_CONCURENCY", "WORKER_CONCURRENCY"),
        ("WORKR_CONCURRENCY", "WORKER_CONCURRENCY"),
        ("PREFFIX", "PREFIX"),
        ("CONFG", "CONFIG"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"WHEELQ_{wrong} is not a .* mean WHEELQ_{meant}\b"):
        with_environment(None, {f"WHEELQ_{wrong}": "1"})


def test_a_name_that_is_like_none_is_told_once_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    variables = {"WHEELQ_SERVER_URL": "http://delays.example", "WHEELQ_SERVER_BINARY": "/usr/bin/valkey-server"}
    assert with_environment(None, variables) == with_environment(None, variables) == Settings()
    assert [record.message.split()[0] for record in caplog.records] == ["WHEELQ_SERVER_URL"]


def test_variables_that_kubernetes_sets_for_services_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "wheelq.settings"):
        assert with_environment(None, FROM_KUBERNETES) == Settings()
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert [record.message.split()[0] for record in caplog.records] == list(FROM_KUBERNETES)


def test_variables_of_other_programs_are_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    assert with_environment(None, {"SERVER_PORT": "http", "PATH": "/bin"}) == Settings()
    assert with_environment(None, {"WHEELQ_SERVER_PORT": "80"}).server == ServerSettings(port=80)


@pytest.mark.parametrize(
    ("file", "name", "text", "read"),
    [
        ('[server]\ntls_cert = "/c"', "SERVER_TLS_KEY", "/k", lambda found: found.server.tls_key == "/k"),
        ('[topic]\nmisfire = "skip"', "TOPIC_GRACE_MS", "1000", lambda found: found.topic.grace_ms == 1000),
        ("[breaker]\nopen_ms = 20000", "BREAKER_OPEN_MAX_MS", "30000", lambda found: found.breaker.open_ms == 20_000),
        ('password = "x"', "PASSWORD_FILE", "/run/secret", lambda found: not found.password),
        ('password_file = "/run/secret"', "PASSWORD", "x", lambda found: not found.password_file),
        ("[worker]\nconcurrency = 0", "WORKER_CONCURRENCY", "5", lambda found: found.worker.concurrency == 5),
    ],
)
def test_a_file_and_variables_are_checked_together(
    tmp_path: Path, file: str, name: str, text: str, read: Callable[[Settings], bool]
) -> None:
    path = tmp_path / "wheelq.toml"
    path.write_text(file)
    assert read(with_environment(path, {f"WHEELQ_{name}": text}))


def test_what_is_wrong_in_a_file_or_a_variable_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wheelq.toml"
    path.write_text("[breaker]\nopen_ms = 20000")
    with pytest.raises(ConfigurationError, match=r"^WHEELQ_BREAKER_OPEN_MS must be at most open_max_ms"):
        with_environment(None, {"WHEELQ_BREAKER_OPEN_MS": "90000"})
    with pytest.raises(ConfigurationError, match=r"wheelq\.toml \[breaker\]: open_ms must be at most"):
        with_environment(path, {"WHEELQ_BREAKER_OPEN_MAX_MS": "10000"})
