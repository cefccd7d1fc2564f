"""The same Idempotency-Key and the same request: the same answer, for a day.

    remember ─▶ nothing there ─▶ make the job with the id just written down ─▶ write the answer beside it
             ─▶ same request, answered      the answer again; nothing is done
             ─▶ same request, no answer     its server died in between, or it is under way: go on with the same job id
             ─▶ another request             refused

What makes it safe is the id of the job: it is fixed before anything is scheduled, so that two that go on at once make
one job. The first answer that is written is everybody's; one that says of some jobs that their outcome is unknown is no
answer yet, and is not written. The id also fixes the job's nonce, so that for Redis those who go on make the very same
call once more: it finds its own job, alive or among those that are done and kept, and is answered "created".

What remains: a job whose first reply was lost, and which nothing is known of any more when the request comes again, is
made again. That needs all of this: no answer was written (the caller got a 504 or 503, or none); the job has been
finished by every group, cancelled or given up meanwhile; and it is not kept, because the topic has no `keep_done_ms`,
or a shorter one. To close that for any topic the schedule script would have to write a note of its own for each such
job, into the job's shard, and so would what delivers from an outbox; a note of this module lies in no shard, and cannot
be written in one step with the job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_core import from_json, to_json

from wheelq.ids import made_ms
from wheelq.protocol import codec
from wheelq.protocol.calls import notes
from wheelq.protocol.keys import Keys
from wheelq.server import problems
from wheelq.server.problems import Problem
from wheelq.transport import AsyncTransport

KEY_CHARS = 255


class Answers:
    """Answers by Idempotency-Key."""

    def __init__(self, transport: AsyncTransport, keys: Keys, kept_ms: int) -> None:
        self._transport = transport
        self._keys = keys
        self._kept_ms = kept_ms

    async def once(
        self, caller: str, key: str, request: bytes, id: str, make: Callable[[str | None], Awaitable[dict[str, Any]]]
    ) -> tuple[dict[str, Any], bool]:
        """The answer, and whether it is a former one. `make` is given the job's id: `id`, or that of the first time.

        Raises: Problem, when the key belongs to another request; ServerError.
        """
        name = f"{caller}\n{key}"
        fingerprint = hashlib.sha256(request).digest()
        claim = notes.remember(self._keys.note("request", name), fingerprint + id.encode(), self._kept_ms)
        found = await self._transport.send(claim)
        place = self._keys.note("answer", name)
        if found is not None:
            if found[: len(fingerprint)] != fingerprint:
                raise Problem(problems.KEY_REUSED, field="Idempotency-Key")
            id = found[len(fingerprint) :].decode()
            answer = await self._transport.send(notes.recall(place))
            if answer is not None:
                return from_json(answer), True
        made = await make(id)
        if not _is_definite(made):
            return made, False
        first = await self._transport.send(notes.remember(place, to_json(made), self._kept_ms))
        return (made, False) if first is None else (from_json(first), True)


def nonce_of(id: str | None, place: int = 0) -> bytes | None:
    """The nonce of the job at this place of a request that was given `id`; None, without one: another each time."""
    return None if id is None else codec.nonce_of(f"{id}-{place}", made_ms(id) or 0)


def _is_definite(answer: dict[str, Any]) -> bool:
    """Whether nothing of it could turn out otherwise when the request comes again: of many jobs, none is in doubt."""
    problems_of_jobs = (outcome.get("problem", {}) for outcome in answer.get("outcomes", ()))
    return not any(problem.get("status", 0) >= 500 for problem in problems_of_jobs)
