"""The form of a problem (RFC 9457)."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ProblemDetails(BaseModel):
    """A problem, and what to do about it."""

    type: str = Field(examples=["/docs#invalid-input"], description="Names the kind of problem, and leads to its page.")
    title: str = Field(examples=["The request is not acceptable"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["delay: must not be negative."], description="What is wrong here, and the remedy.")
    field: str | None = Field(default=None, description="The field that is wrong.")
    ids: list[str] | None = Field(
        default=None, description="The jobs concerned: if the outcome is unknown, repeat the request with these ids."
    )
