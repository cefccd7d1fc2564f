"""What users' values look like in JSON, wherever the service writes them: answers, callbacks, classic contents.

Bytes within them are base64 of the URL-safe alphabet; NaN and infinity, of which JSON knows nothing, are null.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json


def as_json(value: Any) -> bytes:
    """A value as JSON. Raises: PydanticSerializationError for what no payload can hold."""
    return to_json(value, bytes_mode="base64", inf_nan_mode="null")
