"""Converts typed values to payloads and back. A type is analysed once; converting a value looks up no type hints.

    plain(value)                   dataclass, model, UUID …  ──▶  what a payload may hold      when a job is packed
    converter(Order, "payload")    a function: payload  ──▶  Order                             when a handler runs

| type                                   | in the payload                                        |
|----------------------------------------|-------------------------------------------------------|
| None, bool, int, float, str, bytes     | itself; an int is accepted for a float                |
| list, Sequence, tuple; dict, Mapping   | list; map with string keys                            |
| dataclass, TypedDict                   | map of its fields; an unknown field does not fit      |
| msgspec Struct, pydantic model         | as the library says; its own rules decide what fits   |
| UUID, Decimal; datetime, date, time    | str; str in ISO 8601                                  |
| timedelta; Enum                        | seconds; the value of the member                      |
| Literal, Optional, Union               | one of them: no two may look the same in the payload  |

msgspec and pydantic convert the values of their types themselves; each is imported at its first type.
"""

from __future__ import annotations

import reprlib
import types
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from wheelq.errors import InvalidInput, PayloadMismatch

Convert = Callable[[Any], Any]


class _Misfit(Exception):
    """A value does not fit; on its way up it learns where the value is."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path


_PLAIN: Mapping[type, Callable[[Any], Any]] = {
    UUID: str,
    Decimal: str,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: timedelta.total_seconds,
}


def plain(value: Any) -> Any:
    """Returns a value as a payload may hold it, one level deep: what it contains may have to be converted too.

    Raises: TypeError, if no payload can hold it.
    """
    kind = type(value)
    if is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in fields(kind) if field.init}
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value, builtin_types=_BYTES, str_keys=True, enc_hook=plain)
    if hasattr(kind, "__pydantic_validator__"):
        return value.model_dump(by_alias=True, round_trip=True)
    if isinstance(value, Enum):
        return value.value
    for known, convert in _PLAIN.items():
        if isinstance(value, known):
            return convert(value)
    raise TypeError(f"a {kind.__qualname__} cannot be sent")


_SENT = "None, bool, int, float, str, bytes, UUID, Decimal, datetime, date, time, timedelta, Enum, lists, string-keyed "
_SENT += "dicts, dataclasses, TypedDicts, msgspec Structs and pydantic models"
_PARSED: Mapping[type, tuple[Convert, tuple[type, ...]]] = {
    UUID: (UUID, (str,)),
    Decimal: (lambda value: Decimal(str(value)), (str, int, float)),
    datetime: (datetime.fromisoformat, (str,)),
    date: (date.fromisoformat, (str,)),
    time: (time.fromisoformat, (str,)),
    timedelta: (lambda value: timedelta(seconds=value), (float, int)),
}
_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_MAPS = (dict, abc.Mapping, abc.MutableMapping)


def converter(hint: Any, field: str) -> Convert:
    """Returns a function that converts a payload to the type `hint`; `field` is the payload's name in errors.

    The function raises PayloadMismatch, which names the field. Raises: InvalidInput, if payloads cannot hold the type.
    """
    return _naming(_Analysis().kind(hint, field).convert, field)


def arguments_converter(hints: Mapping[str, Any], required: abc.Set[str], owner: str) -> Convert:
    """Returns a function that converts the arguments of the function `owner`, a map by name, to the types `hints`.

    It raises PayloadMismatch for an argument that does not fit, is unknown, or is missing though it is `required`.
    Raises: InvalidInput, if payloads cannot hold one of the types.
    """
    analysis = _Analysis()
    members = {name: (analysis.kind(hint, name).convert, name in required) for name, hint in hints.items()}
    return _naming(_Members(owner, "argument", dict, members).convert, "")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type, analysed."""

    takes: tuple[type, ...]
    """The types that its values have in payloads; empty: any type."""
    convert: Convert


class _Analysis:
    """Finds how the values of a type are converted."""

    def __init__(self) -> None:
        self._seen: dict[type, _Kind] = {}

    def kind(self, hint: Any, path: str) -> _Kind:
        """Returns how values of `hint` are converted. Raises: InvalidInput, with the path of the type that is wrong."""
        for part in (hint, *_alternatives(hint)):  # a union with models is the library's
            if (convert := _by_library(hint, get_origin(part) or part, getattr(part, "__metadata__", ()))) is not None:
                return _Kind((), convert)
        hint = _bare(hint)
        origin, args = get_origin(hint) or hint, get_args(hint)
        if hint is Any or hint is object:
            return _Kind((), _as_is)
        if alternatives := _alternatives(hint):
            return self._union(hint, [self.kind(arg, path) for arg in alternatives], path)
        if origin is Literal and not any(isinstance(arg, Enum) for arg in args):
            return _Kind(tuple({type(arg) for arg in args}), _literal(args))
        if origin in _LISTS:
            return _Kind((list,), _listed(self.kind(args[0] if args else Any, f"{path}[]").convert))
        if origin is tuple:
            return self._tuple(args, path)
        if origin in _MAPS:
            if args and _bare(args[0]) not in (str, Any):
                raise InvalidInput(path, f"the keys of a map in a payload are str, not {_name_of(args[0])}")
            return _Kind((dict,), _mapped(self.kind(args[1] if args else Any, f"{path}[]").convert))
        if isinstance(origin, type):
            return self._class(origin, path)
        raise InvalidInput(path, f"{_name_of(hint)} cannot be sent; use {_SENT}")

    def _class(self, kind: type, path: str) -> _Kind:
        if kind in self._seen:
            return self._seen[kind]
        if kind in (types.NoneType, bool, int, str, bytes):
            return _Kind((kind,), _exact(kind))
        if kind is float:
            return _Kind((float,), _parsed(float, float, (float, int)))
        if kind in _PARSED:
            parse, takes = _PARSED[kind]
            return _Kind(takes[:1], _parsed(kind, parse, takes))
        if is_typeddict(kind) or is_dataclass(kind):
            return self._fields(kind, path)
        if issubclass(kind, Enum):
            takes = tuple({type(member.value) for member in kind})
            if set(takes) <= {bool, int, float, str, bytes, types.NoneType}:
                return _Kind(takes, _parsed(kind, kind, takes))
        raise InvalidInput(path, f"{_name_of(kind)} cannot be sent; use {_SENT}")

    def _fields(self, kind: Any, path: str) -> _Kind:
        members = _Members(kind.__qualname__, "field", kind, {})
        self._seen[kind] = found = _Kind((dict,), members.convert)
        try:
            hints = get_type_hints(kind, include_extras=True)
        except Exception as error:
            problem = f"the annotations of {kind.__qualname__} cannot be read ({error}); define their types in a module"
            raise InvalidInput(path, problem) from error
        if is_typeddict(kind):
            required = {name for name, hint in hints.items() if _is_required(hint, name in kind.__required_keys__)}
        else:
            own = [field for field in fields(kind) if field.init]
            required = {field.name for field in own if field.default is field.default_factory is MISSING}
            hints = {field.name: hints[field.name] for field in own}
        for name, hint in hints.items():
            members.members[name] = self.kind(hint, f"{path}.{name}").convert, name in required
        return found

    def _tuple(self, args: tuple[Any, ...], path: str) -> _Kind:
        if not args or args[-1] is Ellipsis:
            convert = _listed(self.kind(args[0] if args else Any, f"{path}[]").convert)
            return _Kind((list,), lambda value: tuple(convert(value)))
        kinds = [self.kind(arg, f"{path}[{n}]").convert for n, arg in enumerate(args)]
        return _Kind((list,), _fixed(kinds))

    def _union(self, hint: Any, kinds: list[_Kind], path: str) -> _Kind:
        if not all(kind.takes for kind in kinds):
            return _Kind((), _as_is)
        by_type = {taken: kind.convert for kind in kinds for taken in kind.takes}
        if len(by_type) < sum(len(kind.takes) for kind in kinds):
            problem = f"in a payload the types of {_name_of(hint)} cannot be told apart; use one of them"
            raise InvalidInput(path, problem)
        takes = tuple(by_type)
        if float in by_type:
            by_type.setdefault(int, by_type[float])

        def convert(value: Any) -> Any:
            if (one := by_type.get(type(value))) is None:
                _refuse(_name_of(hint), value)
            return one(value)

        return _Kind(takes, convert)


def _naming(convert: Convert, field: str) -> Convert:
    def converted(value: Any) -> Any:
        try:
            return convert(value)
        except _Misfit as misfit:
            raise PayloadMismatch((field + misfit.path).lstrip(".") or "payload", misfit.problem) from misfit.__cause__

    return converted


def _as_is(value: Any) -> Any:
    return value


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()


def _bare(hint: Any) -> Any:
    """Returns the type inside Annotated, Required, NotRequired, NewType and type aliases."""
    while True:
        if get_origin(hint) in (Annotated, Required, NotRequired):
            hint = get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif hasattr(hint, "__value__"):
            hint = hint.__value__
        else:
            return types.NoneType if hint is None else hint


def _is_required(hint: Any, is_by_default: bool) -> bool:
    return get_origin(hint) is Required or (is_by_default and get_origin(hint) is not NotRequired)


@dataclass(slots=True)
class _Members:
    """Converts a map by name. Its members are set after it exists, because a type may contain itself."""

    owner: str
    word: str
    make: Callable[..., Any]
    members: dict[str, tuple[Convert, bool]]
    """How each is converted, and whether it must be there."""

    def convert(self, value: Any) -> Any:
        if type(value) is not dict:
            _refuse(f"a map of the {self.word}s of {self.owner}", value)
        if unknown := sorted(value.keys() - self.members.keys()):
            known = ", ".join(self.members) or "none"
            raise _Misfit(f"{self.owner} has no such {self.word}; it has: {known}", f".{unknown[0]}")
        found = {}
        for name, (convert, is_required) in self.members.items():
            if name in value:
                try:
                    found[name] = convert(value[name])
                except _Misfit as misfit:
                    misfit.path = f".{name}{misfit.path}"
                    raise
            elif is_required:
                raise _Misfit(f"is missing; {self.owner} needs it", f".{name}")
        try:
            return self.make(**found)
        except (TypeError, ValueError) as error:  # its __post_init__ checks the values
            raise _Misfit(f"{self.owner} refuses it: {error}") from error


def _refuse(wanted: str, value: Any) -> NoReturn:
    raise _Misfit(f"must be {wanted}, not {reprlib.repr(value)}")


def _exact(kind: type) -> Convert:
    def convert(value: Any) -> Any:
        return value if type(value) is kind else _refuse(_name_of(kind), value)

    return convert


def _parsed(kind: type, parse: Convert, takes: tuple[type, ...]) -> Convert:
    def convert(value: Any) -> Any:
        try:
            if type(value) in takes:
                return parse(value)
        except (ValueError, TypeError, ArithmeticError):
            pass  # refused like a value of another type
        _refuse(_name_of(kind), value)

    return convert


def _literal(values: tuple[Any, ...]) -> Convert:
    def convert(value: Any) -> Any:
        is_one = any(type(one) is type(value) and one == value for one in values)
        return value if is_one else _refuse(" or ".join(map(repr, values)), value)

    return convert


def _listed(convert_item: Convert) -> Convert:
    return lambda value: _items(value, (convert_item for _ in value)) if type(value) is list else _refuse("list", value)


def _fixed(converts: list[Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list or len(value) != len(converts):
            _refuse(f"a list of {len(converts)}", value)
        return tuple(_items(value, converts))

    return convert


def _items(values: list[Any], converts: Iterable[Convert]) -> list[Any]:
    found: list[Any] = []
    try:
        for value, convert in zip(values, converts, strict=True):
            found.append(convert(value))
    except _Misfit as misfit:
        misfit.path = f"[{len(found)}]{misfit.path}"
        raise
    return found


def _mapped(convert_value: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            _refuse("map", value)
        members = dict.fromkeys(value, (convert_value, True))
        return _Members("", "key", dict, members).convert(value)

    return convert


def _name_of(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")


_BYTES = (bytes, bytearray, memoryview)


def _by_library(hint: Any, kind: Any, notes: tuple[Any, ...] = ()) -> Convert | None:
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
            raise _Misfit(first["msg"], path) from error

    return convert


def _msgspec(hint: Any) -> Convert:
    import msgspec

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint, builtin_types=_BYTES, str_keys=True)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at `$")
            raise _Misfit(problem, path.rstrip("`")) from error

    return convert
