"""Settings: `config/wheelq.toml` documents each one with its default, and mistakes are named."""

from __future__ import annotations

import tomllib
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from wheelq.errors import ConfigurationError
from wheelq.model.topic import TopicChanges
from wheelq.settings import (
    ClientSettings,
    ConnectionSettings,
    SchedulerSettings,
    ServerSettings,
    Settings,
    TopicSettings,
    WorkerSettings,
    resolve_url,
)
from wheelq.settings.declaration import declarations
from wheelq.settings.whole import tables

DOCUMENTED = Path(__file__).parents[2] / "config" / "wheelq.toml"
SECTIONS = [item.name for item in fields(Settings) if is_dataclass(item.default)]


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "some.toml"
    file.write_text(text)
    return Settings.load(file)


# The documented file


def test_the_documented_values_are_the_defaults() -> None:
    assert Settings.load(DOCUMENTED) == Settings()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_of_a_section_is_documented(section: str) -> None:
    documented = tomllib.loads(DOCUMENTED.read_text())[section]
    assert list(documented) == [item.name for item in fields(getattr(Settings(), section))]


def test_every_documented_setting_says_why() -> None:
    lines = DOCUMENTED.read_text().splitlines()
    bare = [line for before, line in pairwise(lines) if " = " in line and before[:1] != "#"]
    assert bare == []


def test_the_url_has_no_default_and_is_documented_as_a_comment() -> None:
    assert Settings().url is None
    assert "# url = " in DOCUMENTED.read_text()


def test_every_setting_says_what_it_means_in_whole_sentences() -> None:
    """Also the tables; the first sentence stands alone in forms and options."""
    every = [*declarations(Settings).values(), *(one for found in tables(Settings()).values() for one in found)]
    assert [one.name for one in every if not one.text.endswith(".") or one.brief.endswith(".")] == []


def test_the_settings_that_a_live_topic_can_change_are_those_of_a_new_one_but_its_shards() -> None:
    assert list(TopicChanges.__annotations__) == [name for name in declarations(TopicSettings) if name != "shards"]


# Loading


def test_a_setting_that_the_file_does_not_name_has_its_default(tmp_path: Path) -> None:
    settings = load(tmp_path, "[worker]\nconcurrency = 7\n")
    assert settings.worker == WorkerSettings(concurrency=7)
    assert settings.scheduler == SchedulerSettings()


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="cannot read the settings file no-such"):
        Settings.load("no-such.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[worker]\nconcurency = 7", r"some.toml \[worker\]: unknown setting 'concurency'.*concurrency"),
        ("[workers]\nconcurrency = 7", "unknown setting 'workers'; known here: breaker, callbacks, client"),
        ('[worker]\nconcurrency = "7"', "concurrency must be int, not"),
        ("[worker]\nconcurrency = 7.0", "concurrency must be int, not"),
        ("[worker]\nconcurrency = true", "concurrency must be int, not"),
        ("worker = 7", r"worker must be a table \(\[worker\]\)"),
        ("url = 6379", "url must be str, not 6379"),
        ("worker = \n", r"some.toml is not valid TOML: .*line 1"),
        ("[worker]\nconcurrency = 0", r"some.toml \[worker\]: concurrency must be at least 1, not 0"),
        ("[topic]\nmisfire = 'skip'", r"some.toml \[topic\]: grace_ms must be more than 0"),
        ("[server]\nport = 70_000", r"some.toml \[server\]: port must be at most 65,535"),
        ("[client]\nreplicated_timeout_ms = 60_000", r"some.toml: client.replicated_timeout_ms must be less than"),
        ("prefix = 'a b'", r"some.toml: prefix must be non-empty.*, not 'a b'"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_file_and_table(tmp_path: Path, text: str, problem: str) -> None:
    """As it stands there, and not as a field of a class."""
    with pytest.raises(ConfigurationError, match=problem) as caught:
        load(tmp_path, text)
    assert "Settings" not in str(caught.value)


# Checks


@pytest.mark.parametrize(
    ("table", "values", "problem"),
    [
        (ConnectionSettings, {"max_connections": 0}, r"ConnectionSettings.max_connections must be at least 1, not 0"),
        *((TopicSettings, {"max_rate": rate}, r"max_rate must be at least 0") for rate in (-1, float("nan"))),
        *((TopicSettings, {"max_rate": rate}, r"max_rate must be at most 9,007,") for rate in (float("inf"), 2.0**54)),
        (Settings, {"log_level": "loud"}, "log_level must be one of debug, info, warning, error, not 'loud'"),
        (SchedulerSettings, {"lease_ms": 1_000, "lease_margin_ms": 500}, "lease_margin_ms must be at most a third of"),
        (WorkerSettings, {"renew_ms": 2_000}, "abandoned_ms must be at least twice renew_ms"),
        *((Settings, {"prefix": prefix}, "prefix") for prefix in ("", "a:b", "a{b}", "a b")),
        (ServerSettings, {"port": 65_536}, "port must be at most 65,535"),
        (ClientSettings, {"max_delay_ms": 2**45}, "max_delay_ms must be at most 31,622,400,000,000"),
        *((ServerSettings, {"base_path": p}, "base_path") for p in ("/..", "/../x", "/a/./b", "/a/..", "/%2e")),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_a_value_that_makes_no_sense_is_refused(table: type, values: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        table(**values)


# The server's URL


def test_the_given_url_overrides_the_settings_and_those_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(url="redis://settings")
    monkeypatch.setenv("WHEELQ_URL", "redis://environment")
    assert resolve_url("redis://given", settings) == "redis://given"
    assert resolve_url(None, settings) == "redis://settings"
    assert resolve_url(None, Settings()) == "redis://environment"


def test_without_any_url_it_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHEELQ_URL", raising=False)
    with pytest.raises(ConfigurationError, match=r"--url, or set WHEELQ_URL"):
        resolve_url(None, Settings())


@pytest.mark.parametrize("path", ["", "/x", "/a.b/...", "/.well-known/x"])
def test_other_base_paths_are_taken(path: str) -> None:
    assert ServerSettings(base_path=path).base_path == path
