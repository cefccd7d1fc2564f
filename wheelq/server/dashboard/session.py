"""The sign-in cookie, and the tokens of forms. Pure: time and keys are arguments.

    cookie    KEY_ID.EXPIRES_MS.MAC      MAC = HMAC-SHA256(stored digest of the key's secret, KEY_ID.EXPIRES_MS)
    token     32 random hexadecimal digits, in a cookie of its own and in each form; both must be the same

The server stores nothing. Every process that knows the key can check the cookie, and a revoked, rotated or expired key
ends its sessions, because its digest is gone. The cookie never holds the secret or its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from wheelq.server.access.keys import ApiKey

SESSION_MS = 12 * 3_600_000
"""How long a sign-in lasts."""
_SESSION = re.compile(r"([A-Za-z0-9-]{1,64})\.([0-9]{1,15})\.([0-9a-f]{64})")
_TOKEN = re.compile(r"[0-9a-f]{32}")


def issue(key: ApiKey, now_ms: int) -> str:
    """Returns the cookie of a new session with this key."""
    expires_ms = now_ms + SESSION_MS
    if key.expires_ms:
        expires_ms = min(expires_ms, key.expires_ms)
    latest = next(digest for digest, until_ms in key.digests if not until_ms)
    return f"{key.id}.{expires_ms}.{_mac(latest, key.id, expires_ms)}"


def key_id_of(cookie: str) -> str:
    """Returns the id of the key that a cookie names; "" if the cookie is not that of a session."""
    found = _SESSION.fullmatch(cookie)
    return found[1] if found else ""


def is_valid(cookie: str, key: ApiKey, now_ms: int) -> bool:
    """Whether this key issued the cookie, and neither of them has ended."""
    found = _SESSION.fullmatch(cookie)
    if found is None or found[1] != key.id:
        return False
    expires_ms, valid = int(found[2]), False
    for digest, until_ms in key.digests:
        is_in_force = not until_ms or now_ms < until_ms
        valid |= hmac.compare_digest(_mac(digest, key.id, expires_ms), found[3]) and is_in_force
    return valid and now_ms < expires_ms and key.is_alive(now_ms)


def new_token() -> str:
    """Returns a new token for forms."""
    return secrets.token_hex(16)


def is_token(text: str) -> bool:
    """Whether this text looks like a token."""
    return _TOKEN.fullmatch(text) is not None


def is_same(cookie: str, field: str) -> bool:
    """Whether the token of a form is that of the cookie."""
    return is_token(cookie) and hmac.compare_digest(cookie.encode(), field.encode(errors="replace"))


def _mac(digest: bytes, id: str, expires_ms: int) -> str:
    return hmac.new(digest, f"wheelq dashboard {id}.{expires_ms}".encode(), hashlib.sha256).hexdigest()
