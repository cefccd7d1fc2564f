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

msgspec and pydantic are imported only for types that they define.

outgoing    typed values → payloads
incoming    analyses a type, and makes the function that converts payloads to it
"""
