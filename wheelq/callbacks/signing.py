"""The headers that prove to a receiver that a callback is genuine: Standard Webhooks (standardwebhooks.com).

`webhook-id` is the same for every attempt at one job, so that a receiver can drop duplicates. With several secrets
there are several signatures, and a receiver needs to know only one of them: this allows changes of secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks import Webhook

from wheelq.model.job import Job


def message_id(job: Job) -> str:
    """Returns the name of a job's message, the same for every attempt.

    A later job with the same id has another name, unless it is due at the same time as the earlier one.
    """
    whole = f"{job.topic}\0{job.id}\0{job.first_due_ms}"
    return f"msg_{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def signature_headers(id: str, sent: datetime, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Returns the headers for a body that is sent at `sent`; unsigned if there are no secrets."""
    headers = {"webhook-id": id, "webhook-timestamp": str(int(sent.timestamp()))}
    if secrets:
        signed = (Webhook(secret).sign(id, sent, body.decode()) for secret in secrets)
        headers["webhook-signature"] = " ".join(signed)
    return headers
