"""Translates every exception of redis-py into the error that it means to a caller."""

from __future__ import annotations

import re
import ssl

from redis import exceptions as redis_errors

from wheelq import errors
from wheelq.protocol.scripts import Script
from wheelq.transport.address import Address
from wheelq.transport.advice import about_connecting, cause_of, instead, tls_mismatch
from wheelq.transport.slots import UNKNOWN_HOSTS, Node

REDIS_FAILURES = (redis_errors.RedisError, OSError, EOFError)
"""The errors that the redis package raises; timeouts of asyncio and sockets are OSErrors."""

WRITE_FAILURES = (*REDIS_FAILURES, RuntimeError)
"""Those of a write on an event loop: uvloop raises RuntimeError if the connection has just been closed."""


SCRIPT_LOADS = 3
"""How often a script is loaded for one call, at most: the server's scripts may be flushed again and again."""


class ScriptUnknown(errors.OutcomeUnknown):
    """The server has lost its scripts (it was restarted or flushed): load this one and send the call again."""


class AskedSentinel(redis_errors.RedisError):
    """The URL names a server, and a sentinel listens there."""

    def __init__(self) -> None:
        super().__init__("it is a sentinel")


class Redirected(errors.NotPrimary):
    """A cluster node says that another one serves the key; nothing was done.

    MOVED: from now on. ASK: only this time, because the slot is moving there.
    """

    def __init__(self, message: str, node: Node, is_ask: bool) -> None:
        super().__init__(message)
        self.node = node
        """The node that serves it; without a host, another port of the host that was asked."""
        self.is_ask = is_ask


_BY_TYPE: tuple[tuple[type[Exception], type[errors.Refused]], ...] = (
    (redis_errors.AuthenticationError, errors.AuthenticationFailed),
    (redis_errors.AuthorizationError, errors.AuthenticationFailed),
    (redis_errors.NoPermissionError, errors.NotPermitted),
    (redis_errors.OutOfMemoryError, errors.ServerFull),
    (redis_errors.BusyLoadingError, errors.ServerBusy),
    (redis_errors.ReadOnlyError, errors.NotPrimary),
    (redis_errors.ClusterDownError, errors.ServerBusy),
    (AskedSentinel, errors.WrongServerKind),
    (redis_errors.TryAgainError, errors.ServerBusy),
)
# An error inside a script arrives as text that contains the first word of the inner error.
_BY_TEXT: tuple[tuple[str, type[errors.Refused]], ...] = (
    ("MISCONF", errors.WritesRefused),
    ("NOREPLICAS", errors.WritesRefused),
    ("OOM command not allowed", errors.ServerFull),
    ("NOAUTH", errors.AuthenticationFailed),
    ("WRONGPASS", errors.AuthenticationFailed),
    ("invalid password", errors.AuthenticationFailed),
    ("invalid username-password", errors.AuthenticationFailed),
    ("NOPERM", errors.NotPermitted),
    ("ACL failure in script", errors.NotPermitted),
    ("The user executing the script can't", errors.NotPermitted),
    ("NOGROUP", errors.GroupNotFound),
    ("BUSY ", errors.ServerBusy),
    ("MASTERDOWN", errors.ServerBusy),
    ("READONLY", errors.NotPrimary),
    ("DB index is out of range", errors.WrongDatabase),
    ("SELECT is not allowed in cluster mode", errors.WrongDatabase),
    ("unknown command 'SENTINEL'", errors.WrongServerKind),
    ("unknown command `SENTINEL`", errors.WrongServerKind),  # Redis 6.2
    ("unknown command 'CLUSTER", errors.WrongServerKind),  # a sentinel's answer
    ("unknown command `CLUSTER", errors.WrongServerKind),
    ("cluster support disabled", errors.WrongServerKind),
    ("unknown command", errors.ServerTooOld),
    ("Unknown Redis command", errors.ServerTooOld),
    ("wrong number of arguments for 'client|list'", errors.ServerTooOld),
)
_CAUSES = {
    errors.NotPermitted: "the user's ACL lacks a right (config/acl has examples)",
    errors.ServerFull: "the server is out of memory: new jobs are refused until some have run; raise maxmemory",
    errors.ServerBusy: "the server or cluster is loading, busy or resharding: try again shortly",
    errors.NotPrimary: "this address is not the primary: connect to the one that takes writes",
    errors.ServerTooOld: "wheelq needs Redis 6.2.2 or newer, or Valkey",
}


def refusal(error: Exception, place: Address) -> errors.Refused | None:
    """Returns the refusal that this error means, or None for a broken connection."""
    if isinstance(error, redis_errors.AskError):  # MovedError is a kind of it
        is_ask = not isinstance(error, redis_errors.MovedError)
        host = "" if error.host.encode() in UNKNOWN_HOSTS else error.host
        return Redirected(f"{'ASK' if is_ask else 'MOVED'} {error}", Node(host, error.port), is_ask)
    found: type[errors.Refused] | None = next((ours for theirs, ours in _BY_TYPE if isinstance(error, theirs)), None)
    if found is None:
        found = next((ours for words, ours in _BY_TEXT if words in str(error)), None)
    if found is None:
        if not isinstance(error, redis_errors.ResponseError):
            return None
        found = errors.Refused
    words = str(error).rstrip(". ")
    cause = _about_rights(words) if found is errors.NotPermitted else _CAUSES.get(found)
    if cause is not None:
        return found(f"{cause}; the server said: {words}")
    advice = instead(found, words, place)
    if advice and found is errors.WrongServerKind:
        return found(advice)
    return found(f"{words}; {advice}" if advice else str(error))


def _about_rights(words: str) -> str:
    return CHANNELS if "channel" in words else KEYS if " key" in words else _CAUSES[errors.NotPermitted]


CHANNELS = "the user's ACL lacks the channels: ACL SETUSER <user> &wheelq:* (with another prefix &<prefix>:*)"
"""What to do if a channel is refused. In Redis 7 a new user may use no channel."""

KEYS = "the user's ACL lacks the keys that begin with the prefix (~wheelq:*; config/acl has examples)"
"""What to do if a key is refused."""

_LINE = re.compile(r"@user_script: ?(\d+)")
_COMMAND = re.compile(r"redis\.p?call\('(\w+)'")


def _refused_line(words: str, what: Script | str) -> str:
    """Returns the command of a script that was refused. Servers before Redis 7.2 name only the line."""
    found = _LINE.search(words)
    if found is None or isinstance(what, str):
        return ""
    command = _COMMAND.search(what.text.splitlines()[int(found[1]) - 1])
    return f" ({command[1]})" if command else ""


def not_sent(error: Exception, place: Address, speaks_tls: bool | None = None) -> errors.ServerError:
    """Returns the error of a request that was never sent: nothing was done. `speaks_tls` is what `probing` found."""
    if (refused := refusal(error, place)) is not None:
        return refused
    if speaks_tls is not None:
        return errors.TlsFailed(tls_mismatch(place, speaks_tls))
    kind = errors.TlsFailed if _is_tls(error) else errors.Unavailable
    return kind(f"no connection to {place.shown}: {_why(error).rstrip('. ')}{about_connecting(error, place)}")


def broken_off(error: Exception, place: Address) -> errors.ServerError:
    """Returns the error of a working connection that broke with no request in flight."""
    return refusal(error, place) or errors.Unavailable(f"no connection to {place.shown}: {_why(error)}")


def _why(error: Exception) -> str:
    if isinstance(error, RuntimeError):  # its text is about uvloop's own objects
        return "the connection was closed"
    refused = cause_of(error, ConnectionRefusedError)
    return "the connection was refused" if refused else str(error) or type(error).__name__


def _is_tls(error: BaseException | None) -> bool:
    """Whether TLS itself failed, rather than the connection during the handshake."""
    found = cause_of(error, ssl.SSLError)
    return found is not None and not isinstance(found, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)


def not_answered(error: Exception, place: Address, what: Script | str) -> errors.ServerError:
    """Returns the error of a request that was sent, a script or a command: refused, or of unknown outcome."""
    name = what if isinstance(what, str) else what.name
    if isinstance(error, redis_errors.NoScriptError):
        return ScriptUnknown(f"{place.shown} does not know the script {name}")
    refused = refusal(error, place)
    if isinstance(refused, errors.NotPermitted):
        return errors.NotPermitted(f"{name}{_refused_line(str(error), what)} was not permitted: {refused}")
    return refused or errors.OutcomeUnknown(
        f"{name} was sent to {place.shown} and no reply came ({_why(error)}): it may or may not have "
        "happened; repeating the call is safe"
    )
