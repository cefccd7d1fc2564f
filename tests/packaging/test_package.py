"""What is published: the sdist and the wheel, their version, and a wheel that is installed without any extra."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.once import made_once
from wheelq import __version__
from wheelq.embedded import EmbeddedServer

pytestmark = pytest.mark.timeout(900)  # packages are built and installed

ROOT = Path(__file__).parents[2]
CORE = ROOT / "tests" / "packaging" / "core.py"
OWN = f"3.{sys.version_info.minor}"
VERSIONS = [OWN, *(pytest.param(f"3.{n}", marks=pytest.mark.long) for n in range(11, 15) if f"3.{n}" != OWN)]


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel of this checkout."""

    def build(directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "build", "--outdir", directory, ROOT], check=True, capture_output=True)

    return made_once(tmp_path_factory, "wheelq-dist", build)


@pytest.mark.long
def test_there_is_one_version_and_the_changelog_dates_it(dist: Path) -> None:
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert re.fullmatch(rf"## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", first)
    assert {path.name for path in dist.iterdir()} == {
        f"wheelq-{__version__}-py3-none-any.whl",
        f"wheelq-{__version__}.tar.gz",
    }


@pytest.mark.long
def test_twine_accepts_both_and_renders_the_readme(dist: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.long
def test_the_wheel_holds_nothing_that_does_not_belong_there(dist: Path) -> None:
    command = [sys.executable, "-m", "check_wheel_contents", next(dist.glob("*.whl"))]
    answer = subprocess.run(command, cwd=dist, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.long
def test_the_wheel_holds_the_guide_the_scripts_and_the_files_of_config(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    for folder in ("wheelq/guide", "wheelq/protocol/lua"):
        shipped = (path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".lua", ".png"))
        ours = {str(path.relative_to(ROOT)) for path in shipped}
        assert ours <= names
    config = (path for path in (ROOT / "config").rglob("*") if path.is_file())
    assert {f"wheelq/{path.relative_to(ROOT)}" for path in config} <= names
    assert "wheelq/py.typed" in names


def python(version: str) -> Path:
    """An interpreter of this version, on the PATH or of pyenv; skips the test where there is none."""
    candidates = [found for found in [shutil.which(f"python{version}")] if found]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        candidates += sorted(map(str, Path(root).glob(f"versions/{version}.*/bin/python{version}")))
    for candidate in candidates:
        if subprocess.run([candidate, "-V"], capture_output=True, check=False).returncode == 0:  # not a mere shim
            return Path(candidate)
    pytest.skip(f"Python {version} is not installed")


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_the_core_schedules_and_names_the_extra_for_what_it_lacks(version: str, dist: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([python(version), "-m", "venv", "--without-pip", environment], check=True)
    bin = environment / "bin"
    wheel = next(dist.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "--python", bin / "python"]
    subprocess.run([*pip, "install", "-q", wheel], check=True, capture_output=True)
    with EmbeddedServer(appendonly=False) as server:
        answer = subprocess.run([bin / "python", CORE, server.url], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.long
def test_the_oldest_versions_that_are_allowed_of_what_it_stands_on_do(dist: Path, tmp_path: Path) -> None:
    """pip gives users the newest ones, which all other tests run with."""
    environment = tmp_path / "venv"
    bin = environment / "bin"
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "-q", "--python", bin / "python"]
    direct = ["--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml", "--extra", "all", "--extra", "django"]
    for command in (
        [*uv, "venv", "-q", "--python", sys.executable, environment],
        [*install, *direct],
        [*install, "--no-deps", next(dist.glob("*.whl"))],
        [*install, "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis"],
    ):
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
    units = [ROOT / "tests" / "unit" / f"test_{name}.py" for name in ("codec", "recurrence", "recurrence_plan")]
    tests = [bin / "python", "-m", "pytest", "-p", "no:cacheprovider", *units]
    for command in ([bin / "wheelq", "demo"], tests):
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
