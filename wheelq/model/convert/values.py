"""Functions that convert one value of a payload, which `incoming` puts together. They raise `Misfit`.

Types of msgspec and pydantic convert their values themselves. Each library is imported at its first type.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

Convert = Callable[[Any], Any]


class Misfit(Exception):
    """A value does not fit; on its way up it learns where the value is."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path


@dataclass(slots=True)
class Members:
    """Converts a map by name. Its members are set after it exists, because a type may contain itself."""

    owner: str
    word: str
    make: Callable[..., Any]
    members: dict[str, tuple[Convert, bool]]
    """How each is converted, and whether it must be there."""

    def convert(self, value: Any) -> Any:
        if type(value) is not dict:
            refuse(f"a map of the {self.word}s of {self.owner}", value)
        if unknown := sorted(value.keys() - self.members.keys()):
            known = ", ".join(self.members) or "none"
            raise Misfit(f"{self.owner} has no such {self.word}; it has: {known}", f".{unknown[0]}")
        found = {}
        for name, (convert, is_required) in self.members.items():
            if name in value:
                try:
                    found[name] = convert(value[name])
                except Misfit as misfit:
                    misfit.path = f".{name}{misfit.path}"
                    raise
            elif is_required:
                raise Misfit(f"is missing; {self.owner} needs it", f".{name}")
        try:
            return self.make(**found)
        except (TypeError, ValueError) as error:  # its __post_init__ checks the values
            raise Misfit(f"{self.owner} refuses it: {error}") from error


def refuse(wanted: str, value: Any) -> NoReturn:
    raise Misfit(f"must be {wanted}, not {reprlib.repr(value)}")


def exact(kind: type) -> Convert:
    def convert(value: Any) -> Any:
        return value if type(value) is kind else refuse(name_of(kind), value)

    return convert


def parsed(kind: type, parse: Convert, takes: tuple[type, ...]) -> Convert:
    def convert(value: Any) -> Any:
        try:
            if type(value) in takes:
                return parse(value)
        except (ValueError, TypeError, ArithmeticError):
            pass  # refused like a value of another type
        refuse(name_of(kind), value)

    return convert


def literal(values: tuple[Any, ...]) -> Convert:
    def convert(value: Any) -> Any:
        is_one = any(type(one) is type(value) and one == value for one in values)
        return value if is_one else refuse(" or ".join(map(repr, values)), value)

    return convert


def listed(convert_item: Convert) -> Convert:
    return lambda value: _items(value, (convert_item for _ in value)) if type(value) is list else refuse("list", value)


def fixed(converts: list[Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list or len(value) != len(converts):
            refuse(f"a list of {len(converts)}", value)
        return tuple(_items(value, converts))

    return convert


def _items(values: list[Any], converts: Iterable[Convert]) -> list[Any]:
    found: list[Any] = []
    try:
        for value, convert in zip(values, converts, strict=True):
            found.append(convert(value))
    except Misfit as misfit:
        misfit.path = f"[{len(found)}]{misfit.path}"
        raise
    return found


def mapped(convert_value: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            refuse("map", value)
        members = dict.fromkeys(value, (convert_value, True))
        return Members("", "key", dict, members).convert(value)

    return convert


def name_of(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")


_BYTES = (bytes, bytearray, memoryview)


def struct_to_plain(value: Any, otherwise: Convert) -> Any:
    """Returns a Struct as payloads hold it; `otherwise` converts what msgspec does not know."""
    import msgspec

    return msgspec.to_builtins(value, builtin_types=_BYTES, str_keys=True, enc_hook=otherwise)


def by_library(hint: Any, kind: Any, notes: tuple[Any, ...] = ()) -> Convert | None:
    """Returns the converter of `hint` if a library defines the class `kind` or one of the `notes` of an `Annotated`."""
    makers = {type(note).__module__.partition(".")[0] for note in notes}
    if hasattr(kind, "__pydantic_validator__") or makers & {"pydantic", "annotated_types"}:
        return _pydantic(hint)
    if hasattr(kind, "__struct_fields__") or "msgspec" in makers:
        return _msgspec(hint)
    return None


def _pydantic(hint: Any) -> Convert:
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[Any] = TypeAdapter(hint)

    def convert(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
            raise Misfit(first["msg"], path) from error

    return convert


def _msgspec(hint: Any) -> Convert:
    import msgspec

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint, builtin_types=_BYTES, str_keys=True)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at `$")
            raise Misfit(problem, path.rstrip("`")) from error

    return convert
