"""The same Idempotency-Key and the same request: the same answer, for a day.

    remember ─▶ nothing there ─▶ schedule the job with the id just stored ─▶ store the answer with it
             ─▶ same request, answered      the answer again; nothing is done
             ─▶ same request, no answer     its server died, or it is in progress: continue with the same job id
             ─▶ another request             refused
             ─▶ nothing there, and the job is refused: forget the request, so that it can be corrected. If the same
                request is on its way once more, and makes the job, it is remembered again

The job's id makes this safe. It is fixed before anything is scheduled, so two requests that continue at the same time
make one job. The first stored answer counts for all of them. If some jobs of a request have an unknown outcome or found
their topic full, the outcomes of the others are stored instead, and a repeated request is about the former only. The id
also fixes the job's life, so that Redis sees the same call again: it finds its own job, live or finished and kept,
and answers "created".

If a reply of Redis is lost, this process repeats its call with the same tag, and gets the first answer, even if the
job has ended meanwhile. One gap remains between two requests, because the second makes a call of its own. A job is made
again if all of these hold: no answer was stored, because the first request is in progress, or the reply to the repeated
call was lost too (the caller got a 504 or 503), or Redis refused the answer while the job was kept on disk, or this
process died; every group has finished the job, or it was cancelled or given up; and it is not kept, because
`keep_done_ms` of the topic is 0 or too short. A tag made from the id would not do. A call carries the jobs of several
requests, and a request that was refused because the topic was full would be refused again when there is room.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from pydantic_core import from_json, to_json

from wheelq.errors import DuplicateJob, InvalidInput, OutcomeUnknown, Refused, ServerError, TopicFull
from wheelq.protocol import codec
from wheelq.protocol.calls import notes
from wheelq.protocol.keys import Keys
from wheelq.server import problems
from wheelq.server.problems import Problem
from wheelq.transport import AsyncTransport

Outcomes = dict[int, dict[str, Any]]
"""Outcomes of the jobs of one request, by their places in it."""
Make = Callable[[str | None, Outcomes], Awaitable[dict[str, Any]]]

NOTHING_MADE = (InvalidInput, DuplicateJob, TopicFull, Refused)
"""Errors after which no job of the request is there."""
KEY_CHARS = 255
MARGIN_MS = 1_000
"""How long before its request an answer is forgotten: it must not be taken for that of the next one with the key."""


class Answers:
    """Answers by Idempotency-Key."""

    def __init__(self, transport: AsyncTransport, keys: Keys, kept_ms: int) -> None:
        self._transport = transport
        self._keys = keys
        self._kept_ms = kept_ms

    async def once(self, caller: str, key: str, request: bytes, id: str, make: Make, jobs: int = 0) -> dict[str, Any]:
        """Returns the answer, perhaps a former one. `make` gets the job's id: `id`, or the first one.

        If the answer has an outcome for each of several `jobs`, `make` also gets those that are certain already.
        Raises: Problem, if the key belongs to another request; ServerError.
        """
        name = f"{caller}\n{key}"
        fingerprint = hashlib.sha256(request).digest()
        claim, place = self._keys.note("request", name), self._keys.note("answer", name)
        places = [self._keys.note("outcome", f"{name}\n{number}") for number in range(jobs)]
        found = await self._transport.send(notes.remember(claim, fingerprint + id.encode(), self._kept_ms))
        known: Outcomes = {}
        if found is not None:
            if found[: len(fingerprint)] != fingerprint:
                raise Problem(problems.KEY_REUSED, field="Idempotency-Key")
            id = found[len(fingerprint) :].decode()
            kept = await self._transport.send(notes.recall(place))
            if kept is not None:
                answer: dict[str, Any] = from_json(kept)
                return answer
            outcomes = await asyncio.gather(*(self._transport.send(notes.recall(one)) for one in places))
            known = {number: from_json(kept) for number, kept in enumerate(outcomes) if kept is not None}
        try:
            made = await make(id, known)
        except NOTHING_MADE:  # the request with the same key may be corrected
            if found is None:
                with suppress(ServerError):
                    if await self._transport.send(notes.recall(place)) is None:  # else the same request got through
                        await self._transport.send(notes.forget(claim))
            raise
        certain = _certain(made)
        try:
            if found is not None and not await self._has_key(claim, found):
                return made
            if len(certain) == jobs:
                return (await self._keep(claim, {place: made}))[0]
            await self._keep(claim, {places[number]: certain[number] for number in certain.keys() - known.keys()})
        except ServerError as error:  # what was made is there all the same
            if len(certain) < jobs:  # else this caller has no reason to repeat the request
                raise OutcomeUnknown("the outcomes of some jobs are certain, and cannot be kept") from error
        return made

    async def _has_key(self, claim: str, note: bytes) -> bool:
        """Whether a repeated request has the key, or has it again: its first copy may have been refused meanwhile."""
        return await self._transport.send(notes.remember(claim, note, self._kept_ms)) in (None, note)

    async def _keep(self, claim: str, made: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Store what was made, each under its note, as long as its request is known. Returns the first of each note."""
        left_ms = await self._transport.send(notes.left_ms(claim)) - MARGIN_MS
        if left_ms <= 0:
            return [*made.values()]
        stored = (notes.remember(place, to_json(one), left_ms) for place, one in made.items())
        found = await asyncio.gather(*map(self._transport.send, stored))
        return [one if first is None else from_json(first) for one, first in zip(made.values(), found, strict=True)]


def life_of(id: str | None, place: int = 0) -> bytes | None:
    """Returns the life of the job at this index of a request with `id`; None without an id: a new one each time."""
    return None if id is None else codec.life_named(f"{id}-{place}")


def _certain(answer: dict[str, Any]) -> Outcomes:
    """The outcomes that a repeated request gets again: they are known, and none of them asks for it."""
    outcomes = enumerate(answer.get("outcomes", ()))
    return {number: one for number, one in outcomes if not _may_change(one.get("problem", {}).get("status", 0))}


def _may_change(status: int) -> bool:
    return status == problems.TOPIC_FULL.status or status >= 500
