"""`wheelq config`: what is in force and from where, and the files that ship with the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.cli.commands import wheelq
from wheelq import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file, and variables that override a part of it."""
    file = tmp_path / "wheelq.toml"
    file.write_text("prefix = 'shop'\n[worker]\nconcurrency = 7\nthreads = 3\n")
    monkeypatch.setenv("WHEELQ_WORKER_THREADS", "5")
    monkeypatch.setenv("WHEELQ_PASSWORD", "secret")
    return file


def line(out: str, name: str) -> list[str]:
    found = next(line for line in out.splitlines() if line.startswith(f"{name} = "))
    return [part.strip() for part in found.split("  # ")]


def test_each_setting_is_shown_with_the_place_it_comes_from(sources: Path) -> None:
    out = wheelq("config", "--config", sources, "--url", "redis://h:1/0").out
    assert line(out, "url") == ['url = "redis://h:1/0"', "--url"]
    assert line(out, "prefix") == ['prefix = "shop"', str(sources)]
    assert line(out, "concurrency") == ["concurrency = 7", str(sources)]
    assert line(out, "threads") == ["threads = 5", "WHEELQ_WORKER_THREADS"]
    assert line(out, "lease_ms") == ["lease_ms = 9000", "default"]


def test_it_is_toml_with_every_setting_and_no_password(sources: Path) -> None:
    answer = wheelq("config", "--config", sources, url="redis://me:secret@h:1/0")
    assert "secret" not in answer.out
    assert line(answer.out, "url") == ['url = "redis://me:***@h:1/0"', "WHEELQ_URL"]
    tables = tomllib.loads(answer.out)
    assert tables.keys() == set(Settings.__dataclass_fields__)


def test_as_json(sources: Path) -> None:
    found = wheelq("config", "--config", sources, "--json").json
    assert {"table": "worker", "name": "concurrency", "value": 7, "source": str(sources)} in found
    assert {"table": "", "name": "password", "value": "***", "source": "WHEELQ_PASSWORD"} in found


@pytest.mark.parametrize("by", ["option", "variable"])
def test_an_env_file_sets_variables_that_are_not_set_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setenv("WHEELQ_PREFIX", "")
    monkeypatch.delenv("WHEELQ_PREFIX")  # so that it is deleted again after the test
    path = tmp_path / ".env"
    path.write_text("# for development\nWHEELQ_PREFIX='shop-2'\nexport WHEELQ_WORKER_THREADS=9\n")
    if by == "variable":
        monkeypatch.setenv("WHEELQ_ENV_FILE", str(path))
    out = wheelq(*(["--env-file", path] if by == "option" else []), "config").out
    assert line(out, "prefix") == ['prefix = "shop-2"', "WHEELQ_PREFIX"]
    assert line(out, "threads") == ["threads = 5", "WHEELQ_WORKER_THREADS"]


def test_an_env_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    answer = wheelq("--env-file", tmp_path / "nowhere", "config")
    assert answer.code == 2
    assert "--env-file" in answer.err
    assert "does not exist" in answer.err


@pytest.mark.parametrize("text", [b"x = " + b"9" * 5_000, b"x = " + b"[" * 5_000, b"x = '\xff'"])
def test_a_settings_file_that_cannot_be_read_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text)
    answer = wheelq("config", "--config", path)
    assert f"{path} is not valid TOML" in answer.err


def test_an_env_file_of_other_bytes_is_named(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"WHEELQ_PREFIX=\xff\xfe")
    assert f"{path} is not UTF-8 text" in wheelq("--env-file", path, "config").err


def test_the_default_file_is_the_one_of_the_package() -> None:
    assert wheelq("config", "--default").out == (ROOT / "config" / "wheelq.toml").read_text()


def test_into_writes_every_file_once(tmp_path: Path) -> None:
    files = [path for path in (ROOT / "config").rglob("*") if path.is_file() and path.parent.name != "starter"]
    there = {str(path.relative_to(ROOT / "config")) for path in files}
    assert wheelq("config", "--into", tmp_path / "etc").code == 0
    written = {str(path.relative_to(tmp_path / "etc")) for path in (tmp_path / "etc").rglob("*") if path.is_file()}
    assert written == there >= {"wheelq.toml", "services.toml", "acl/worker.acl"}
    again = wheelq("config", "--into", tmp_path / "etc")
    assert (again.code, "exists already" in again.err) == (2, True)


def test_a_misspelt_variable_is_an_error_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELQ_WORKER_CONCURENCY", "1")
    answer = wheelq("config")
    assert answer.code == 2
    assert "did you mean WHEELQ_WORKER_CONCURRENCY?" in answer.err


@pytest.mark.parametrize("command", [("config", "--into"), ("script", "--into"), ("init",)])
def test_a_place_that_cannot_be_written_to_is_named(command: tuple[str, ...]) -> None:
    answer = wheelq(*command, "/dev/null/x" if command == ("init",) else "/dev/null")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("/dev/null")
    assert "cannot be used" in answer.err
