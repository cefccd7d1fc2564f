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


def test_an_unknown_setting_is_named_with_its_table_and_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"some.toml \[worker\]: unknown setting 'concurency'.*concurrency"):
        load(tmp_path, "[worker]\nconcurency = 7\n")


def test_an_unknown_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown setting 'workers'; known here: breaker, callbacks, client"):
        load(tmp_path, "[workers]\nconcurrency = 7\n")


@pytest.mark.parametrize("value", ['"7"', "7.0", "true"])
def test_a_value_of_the_wrong_type_is_named(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigurationError, match="concurrency must be int, not"):
        load(tmp_path, f"[worker]\nconcurrency = {value}\n")


def test_a_table_that_is_no_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"worker must be a table \(\[worker\]\)"):
        load(tmp_path, "worker = 7\n")


def test_a_url_that_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="url must be str, not 6379"):
        load(tmp_path, "url = 6379\n")


def test_a_file_that_is_not_toml_is_named_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"some.toml is not valid TOML: .*line 1"):
        load(tmp_path, "worker = \n")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="cannot read the settings file no-such"):
        Settings.load("no-such.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[worker]\nconcurrency = 0", r"some.toml \[worker\]: concurrency must be at least 1, not 0"),
        ("[topic]\nmisfire = 'skip'", r"some.toml \[topic\]: grace_ms must be more than 0"),
        ("[server]\nport = 70_000", r"some.toml \[server\]: port must be at most 65,535"),
        ("[client]\nreplicated_timeout_ms = 60_000", r"some.toml: client.replicated_timeout_ms must be less than"),
        ("prefix = 'a b'", r"some.toml: prefix must be non-empty.*, not 'a b'"),
    ],
)
def test_an_invalid_value_is_named_with_its_file_and_table(tmp_path: Path, text: str, problem: str) -> None:
    """As it stands there, and not as a field of a class."""
    with pytest.raises(ConfigurationError, match=problem) as caught:
        load(tmp_path, text)
    assert "Settings" not in str(caught.value)


# Checks


def test_zero_and_negative_numbers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"ConnectionSettings.max_connections must be at least 1, not 0"):
        ConnectionSettings(max_connections=0)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 2.0**54])
def test_a_number_out_of_its_range_is_refused(value: float) -> None:
    with pytest.raises(ConfigurationError, match=r"TopicSettings.max_rate must be at (least 0|most 9,007,)"):
        TopicSettings(max_rate=value)


def test_a_word_that_is_none_of_the_known_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="log_level must be one of debug, info, warning, error, not 'loud'"):
        Settings(log_level="loud")


def test_the_lease_needs_room_for_its_margin() -> None:
    with pytest.raises(ConfigurationError, match="lease_margin_ms must be at most a third of lease_ms"):
        SchedulerSettings(lease_ms=1_000, lease_margin_ms=500)


def test_a_delivery_is_not_abandoned_before_its_second_renewal() -> None:
    with pytest.raises(ConfigurationError, match="abandoned_ms must be at least twice renew_ms"):
        WorkerSettings(renew_ms=2_000)


@pytest.mark.parametrize("prefix", ["", "a:b", "a{b}", "a b"])
def test_a_prefix_that_would_break_the_keys_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        Settings(prefix=prefix)


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="port must be at most 65,535"):
        ServerSettings(port=65_536)


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


@pytest.mark.parametrize("path", ["/..", "/../x", "/a/./b", "/a/..", "/%2e"])
def test_a_base_path_with_dots_that_browsers_resolve_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="base_path"):
        ServerSettings(base_path=path)


@pytest.mark.parametrize("path", ["", "/x", "/a.b/...", "/.well-known/x"])
def test_other_base_paths_are_taken(path: str) -> None:
    assert ServerSettings(base_path=path).base_path == path
