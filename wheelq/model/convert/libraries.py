"""Types of msgspec and pydantic, which convert their values themselves. Each is imported at its first type."""

from __future__ import annotations

from typing import Any

from wheelq.model.convert.values import Convert, Misfit

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
