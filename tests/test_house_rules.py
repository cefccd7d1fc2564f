"""House rules that a tool can hold: how the code is laid out, and what it shows to users.

More rules have tools of their own: `lint-imports` holds the layers, `tests/lua/test_headers.py` the headers of the Lua
files, and `tests/unit/test_settings.py` that `config/wheelq.toml` documents every setting.
"""

from __future__ import annotations

import ast
import graphlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import grimp
import pytest

import wheelq
from tests.every import for_every

ROOT = Path(wheelq.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
PUBLIC_MODULES = (
    "wheelq.errors",
    "wheelq.settings",
    "wheelq.sinks",
    "wheelq.sql",
    "wheelq.testing",
    "wheelq.logs",
    "wheelq.embedded",
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT.parent))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


# Rooms


def modules_of(package: Path) -> list[str]:
    inside = [path for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in inside if path.stem not in ("__init__", "__main__"))


PACKAGES = [path for path in SOURCES if path.name == "__init__.py"]
ENTRIES = re.compile(r"(?:^| {3,})(\.?[a-z][\w./*]*(?:, \.?[a-z][\w./]*)*) {2,}(?=\S)", re.MULTILINE)
"""The left column of a map, which may have two: "loop        `Worker`: its life", "panels, views the output"."""


@for_every(PACKAGES, name_of)
def test_the_docstring_of_a_package_names_every_module_in_it(path: Path) -> None:
    told = ast.get_docstring(tree(path)) or ""
    missing = [module for module in modules_of(path.parent) if not re.search(rf"\b{module}\b", told)]
    assert not missing, f"does not name {', '.join(missing)}"


@for_every(PACKAGES, name_of)
def test_the_docstring_of_a_package_names_no_module_that_is_gone(path: Path) -> None:
    gone, above = [], ""
    for entry in ENTRIES.findall(ast.get_docstring(tree(path)) or ""):
        for name in entry.split(", "):
            above = above if name.startswith(".") else name.partition(".")[0]
            if not is_there(path.parent, above + name if name.startswith(".") else name):
                gone.append(name)
    assert not gone, f"names {', '.join(gone)}"


def is_there(package: Path, name: str) -> bool:
    """Whether a package has this: `loop`, `scheduler.loop`, `client.Client.schedule`, `routes/*` or `lua/ack.lua`."""
    if "/" in name:
        return (package / name.removesuffix("/*")).exists()
    found = package
    for part in name.split("."):
        if not part.islower():
            return True  # a class of that module, and its method
        found /= part
        if not (found.is_dir() or found.with_suffix(".py").exists()):
            return False
    return True


def test_there_are_some_twenty_rooms_at_the_top() -> None:
    assert len(modules_of(ROOT)) <= 26


TELLS_TIME = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "now", "utcnow", "today"}
CLOCK = ROOT / "base" / "clock.py"


def readings(path: Path) -> Iterator[int]:
    """The lines in which a file asks the machine for the time."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if (
                node.func.attr in TELLS_TIME
                and isinstance(owner, ast.Name)
                and owner.id in ("time", "datetime", "date")
            ):
                yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (node.lineno for alias in node.names if alias.name in TELLS_TIME)


@for_every(SOURCES, name_of)
def test_only_the_clock_reads_the_time(path: Path) -> None:
    """So that a test, and a simulator, can move it. Processes that watch processes live in real time."""
    allowed = path in (CLOCK, ROOT / "transport" / "memory.py")
    assert allowed or not list(readings(path)), f"lines {list(readings(path))}"


# Names, size and language

MOST_LINES = 500
TOO_LONG = {"wheelq/aio/client.py", "wheelq/client/client.py"}
"""The clients: every operation has a method with its signature and docstring, and mixins would only hide that."""
MOST_MODULES_OF_ONE = 60
"""Fewer modules than this may have a single importer."""
OPENINGS = "Of all|Of each|Of what|Of those|Of whom|Who|Whoever|Whom|What was|What were|Those that"
STUMBLING = re.compile(rf"(?:^|[.:]\s+|\n\n\s*)((?:{OPENINGS})\b)")


def classes() -> Iterator[tuple[str, Path]]:
    """Every class by name. The blocking twins, which are generated, do not count."""
    for path in SOURCES:
        if ROOT / "client" not in path.parents:
            yield from ((node.name, path) for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for name, path in classes():
        places.setdefault(name, []).append(name_of(path))
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert shared == {}


def test_files_are_short() -> None:
    longer = {name_of(path) for path in SOURCES if len(path.read_text().splitlines()) > MOST_LINES}
    assert longer - TOO_LONG == set(), f"find the second duty of a file of more than {MOST_LINES} lines"


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Every string that stands alone: of modules, classes, functions, attributes and constants."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_sentences_name_their_subject() -> None:
    """A reader has to go back to find the subject of a sentence that begins with one of OPENINGS."""
    found = [
        f"{name_of(path)}:{line}: {hit[1]} …"
        for path in SOURCES
        for line, text in docstrings(path)
        for hit in STUMBLING.finditer(text)
    ]
    assert found == []


# The public face


def test_the_names_of_the_package_are_sorted() -> None:
    assert wheelq.__all__ == sorted(wheelq.__all__)


def test_every_error_can_be_imported_from_the_package() -> None:
    found = inspect.getmembers(wheelq.errors, lambda one: inspect.isclass(one) and issubclass(one, wheelq.WheelqError))
    assert {name for name, _ in found} <= set(wheelq.__all__)


def public(module: ModuleType) -> Iterator[tuple[str, object]]:
    for name in module.__all__:
        found = getattr(module, name)
        yield name, found
        if inspect.isclass(found):
            for method, function in inspect.getmembers(found, inspect.isfunction):
                if not method.startswith("_") or method == "__init__":
                    yield f"{name}.{method}", function


def types_in(hint: object) -> Iterator[type]:
    """The classes of wheelq that a type hint is made of."""
    if inspect.isclass(hint) and hint.__module__.partition(".")[0] == "wheelq":
        yield hint
    for part in typing.get_args(hint):
        if isinstance(part, (list, tuple)):
            for one in part:
                yield from types_in(one)
        else:
            yield from types_in(part)


NOT_FOR_USERS = {"__init__"}
"""Users call `connect`."""


def test_every_type_in_a_public_signature_can_be_imported_from_the_package() -> None:
    importable = {getattr(wheelq, name) for name in wheelq.__all__}
    for module in map(import_module, PUBLIC_MODULES):
        importable |= {found for _, found in inspect.getmembers(module, inspect.isclass)}
    missing = set()
    for name, function in public(wheelq):
        if inspect.isfunction(function) and name.rpartition(".")[2] not in NOT_FOR_USERS:
            for hint in typing.get_type_hints(function).values():
                missing |= {f"{name}: {one.__module__}.{one.__qualname__}" for one in types_in(hint)} - {
                    f"{name}: {one.__module__}.{one.__qualname__}" for one in importable if inspect.isclass(one)
                }
    assert missing == set()


def test_few_modules_serve_only_one_other() -> None:
    """A small file that only one other imports is a part of that one, unless it has a duty of its own."""
    graph = grimp.build_graph("wheelq", cache_dir=None)
    alone = [module for module in graph.modules if len(graph.find_modules_that_directly_import(module)) == 1]
    assert len(alone) < MOST_MODULES_OF_ONE, sorted(alone)


@pytest.mark.parametrize("package", ["wheelq", "loadtest"])
def test_no_imports_go_round_in_a_circle(package: str) -> None:
    """Neither those at the top of a module nor those inside a function."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(graphlib.TopologicalSorter(imports).static_order())


def test_every_module_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything installed: no name that has moved."""
    monkeypatch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")  # else Locust would make this process gevent's
    for found in pkgutil.walk_packages(wheelq.__path__, "wheelq."):
        if not found.name.endswith(("__main__", "django.admin", "django.models")):  # Django imports these in a project
            import_module(found.name)
