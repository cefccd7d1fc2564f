"""The headers by which a receiver knows that a callback is genuine: Standard Webhooks (standardwebhooks.com).

`webhook-id` is the same for every attempt at one job, so that a receiver can drop what it has seen. With several
secrets there are several signatures, and a receiver that knows one of them is content: so secrets are changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks import Webhook

from wheelq.job import Job


def message_id(job: Job) -> str:
    """Names one job among all that ever were: an id can be used again, but not with the same first due time."""
    whole = f"{job.topic}\0{job.id}\0{job.first_due_ms}"
    return f"msg_{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def signature_headers(id: str, sent: datetime, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """The headers for a body that is sent at `sent`; unsigned if there are no secrets."""
    headers = {"webhook-id": id, "webhook-timestamp": str(int(sent.timestamp()))}
    if secrets:
        signed = (Webhook(secret).sign(id, sent, body.decode()) for secret in secrets)
        headers["webhook-signature"] = " ".join(signed)
    return headers
