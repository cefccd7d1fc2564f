"""What a redis error means to a caller; every redis exception is translated here, once."""

from __future__ import annotations

import re

from redis import exceptions as redis_errors

from wheelq import errors
from wheelq.protocol.scripts import script
from wheelq.transport.slots import UNKNOWN_HOSTS, Node

REDIS_FAILURES = (redis_errors.RedisError, OSError, EOFError)
"""What the redis package raises; asyncio's and socket's time-outs are OSErrors."""


SCRIPT_LOADS = 3
"""How often a script is loaded for one call: somebody may flush the server's scripts in between, again and again."""


class ScriptUnknown(errors.OutcomeUnknown):
    """The server has lost its scripts (it was restarted or flushed): load this one and send the call again."""


class Redirected(errors.NotPrimary):
    """A cluster node says that another one serves the key; nothing was done.

    MOVED: from now on. ASK: for this one time, because the slot is just moving there.
    """

    def __init__(self, message: str, node: Node, is_ask: bool) -> None:
        super().__init__(message)
        self.node = node
        """Who serves it; no host: the one that was asked, at another port."""
        self.is_ask = is_ask


_BY_TYPE: tuple[tuple[type[Exception], type[errors.Refused]], ...] = (
    (redis_errors.AuthenticationError, errors.AuthenticationFailed),
    (redis_errors.AuthorizationError, errors.AuthenticationFailed),
    (redis_errors.NoPermissionError, errors.AuthenticationFailed),
    (redis_errors.OutOfMemoryError, errors.ServerFull),
    (redis_errors.BusyLoadingError, errors.ServerBusy),
    (redis_errors.ReadOnlyError, errors.NotPrimary),
    (redis_errors.ClusterDownError, errors.ServerBusy),
    (redis_errors.TryAgainError, errors.ServerBusy),
)
# Errors that happen inside a script come as plain text: the first word of the inner error, somewhere in it.
_BY_TEXT: tuple[tuple[str, type[errors.Refused]], ...] = (
    ("OOM command not allowed", errors.ServerFull),
    ("NOAUTH", errors.AuthenticationFailed),
    ("WRONGPASS", errors.AuthenticationFailed),
    ("invalid password", errors.AuthenticationFailed),
    ("invalid username-password", errors.AuthenticationFailed),
    ("NOPERM", errors.AuthenticationFailed),
    ("ACL failure in script", errors.AuthenticationFailed),
    ("The user executing the script can't", errors.AuthenticationFailed),
    ("BUSY ", errors.ServerBusy),
    ("MASTERDOWN", errors.ServerBusy),
    ("READONLY", errors.NotPrimary),
    ("unknown command", errors.ServerTooOld),
    ("Unknown Redis command", errors.ServerTooOld),
    ("wrong number of arguments for 'client|list'", errors.ServerTooOld),
)
_ADVICE = {
    errors.AuthenticationFailed: "check user and password in the URL, and the user's ACL (config/acl has examples)",
    errors.ServerFull: "the server is out of memory: new jobs are refused until some have run; raise maxmemory",
    errors.ServerBusy: "the server or cluster is loading, busy or being rearranged: try again shortly",
    errors.NotPrimary: "this address is not the primary: connect to the one that takes writes",
    errors.ServerTooOld: "wheelq needs Redis 6.2.2 or newer, or Valkey",
}


def refusal(error: Exception) -> errors.Refused | None:
    """The refusal that this error is, or None when it is a broken connection."""
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
    advice = _ADVICE.get(found)
    return found(f"{error}; {advice}" if advice else str(error))


_LINE = re.compile(r"@user_script: ?(\d+)")
_COMMAND = re.compile(r"redis\.p?call\('(\w+)'")


def _refused_line(words: str, name: str) -> str:
    """Which command of a script was refused: servers before Redis 7.2 name the line only."""
    found = _LINE.search(words)
    if found is None:
        return ""
    command = _COMMAND.search(script(name).text.splitlines()[int(found[1]) - 1])
    return f" ({command[1]})" if command else ""


def not_sent(error: Exception, where: str) -> errors.ServerError:
    """The error of a request that never left: nothing was done."""
    return refusal(error) or errors.Unavailable(f"no connection to {where}: {error or type(error).__name__}")


def not_answered(error: Exception, where: str, name: str) -> errors.ServerError:
    """The error of a request that left: refused, or nobody knows."""
    if isinstance(error, redis_errors.NoScriptError):
        return ScriptUnknown(f"{where} does not know the script {name}")
    refused = refusal(error)
    if isinstance(refused, errors.AuthenticationFailed):
        return errors.AuthenticationFailed(f"{name}{_refused_line(str(error), name)} was not permitted: {refused}")
    return refused or errors.OutcomeUnknown(
        f"{name} was sent to {where} and no reply came ({error or type(error).__name__}): it may or may not have "
        "happened; repeating the call is safe"
    )
