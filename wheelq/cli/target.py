"""Loads the worker named by MODULE:NAME, and explains errors in terms of the user's module."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.worker import Worker

SHOWN_FRAMES = 3
_NOT_THEIRS = ("<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


def load_worker(target: str) -> Worker:
    """Returns the worker named by `shop.jobs:worker`: a Worker, or a function without arguments that makes one.

    The current directory is searched first. Raises: InvalidInput, ConfigurationError.
    """
    module_name, colon, name = target.partition(":")
    if not module_name or not colon or not name.isidentifier():
        raise InvalidInput("MODULE:NAME", f"{target!r} must look like shop.jobs:worker")
    module = _import(module_name)
    try:
        found = getattr(module, name)
    except AttributeError as error:
        workers = sorted(other for other, value in vars(module).items() if isinstance(value, Worker))
        has = f"it has {', '.join(workers)}" if workers else "it has no Worker at its top level"
        raise ConfigurationError(f"module {module_name} has no {name!r}; {has}") from error
    if not isinstance(found, Worker) and callable(found):
        found = _call(found, target)
    if not isinstance(found, Worker):
        raise ConfigurationError(
            f"{target} is a {type(found).__name__}, not a Worker: name one made with Worker.connect(), or a function "
            "without arguments that returns one"
        )
    return found


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ConfigurationError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {error.name!r} in {here} or among the installed packages: run the command in the "
                "directory that holds it, or name that directory in PYTHONPATH"
            ) from error
        raise _broken(name, "does not import", error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, "does not import", error) from error


def _call(function: object, target: str) -> object:
    assert callable(function)
    try:
        return function()
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # show whatever the user's function raises
        raise _broken(target, "fails", error) from error


def _broken(name: str, what: str, error: BaseException) -> ConfigurationError:
    """Returns an error with the last lines of the traceback in the user's code, and where to look."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    lines = traceback.format_list((theirs or frames[-1:])[-SHOWN_FRAMES:]) + traceback.format_exception_only(error)
    shown = "".join(lines).rstrip()
    return ConfigurationError(
        f"{name} {what}:\n{shown}\nFix this, and try it with: python -c 'import {name.partition(':')[0]}'"
    )
