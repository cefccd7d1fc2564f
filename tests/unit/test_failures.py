"""What a redis error means: refused, or nobody knows. No error is taken for the other kind."""

from __future__ import annotations

import asyncio
import socket

import pytest
from redis import exceptions as redis_errors

from wheelq import errors
from wheelq.transport import Address
from wheelq.transport.failures import REDIS_FAILURES, Redirected, ScriptUnknown, not_answered, not_sent, refusal

REFUSALS = [
    (redis_errors.AuthenticationError("invalid password"), errors.AuthenticationFailed),
    (redis_errors.ResponseError("WRONGPASS invalid username-password pair"), errors.AuthenticationFailed),
    (redis_errors.ResponseError("NOAUTH Authentication required."), errors.AuthenticationFailed),
    (redis_errors.NoPermissionError("this user has no permissions"), errors.NotPermitted),
    (redis_errors.ResponseError("NOPERM this user has no permissions"), errors.NotPermitted),
    (redis_errors.ResponseError("ACL failure in script: No permissions to access a channel"), errors.NotPermitted),
    (redis_errors.ResponseError("NOGROUP No such key 's' or consumer group 'g'"), errors.GroupNotFound),
    (
        redis_errors.ResponseError("NOGROUP No such consumer group 'g' script: 1a, on @user_script:9."),
        errors.GroupNotFound,
    ),
    (redis_errors.ResponseError("DB index is out of range"), errors.WrongDatabase),
    (redis_errors.ResponseError("SELECT is not allowed in cluster mode"), errors.WrongDatabase),
    (redis_errors.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), errors.ServerFull),
    (
        redis_errors.ResponseError(
            "Error running script (call to f_1): @script:9: -OOM command not allowed when used memory > 'maxmemory'"
        ),
        errors.ServerFull,
    ),
    (redis_errors.BusyLoadingError("Redis is loading the dataset in memory"), errors.ServerBusy),
    (redis_errors.ResponseError("BUSY Redis is busy running a script."), errors.ServerBusy),
    (redis_errors.ResponseError("MISCONF Errors writing to the AOF file: No space left"), errors.WritesRefused),
    (
        redis_errors.ResponseError("@user_script: 5: -NOREPLICAS Not enough good replicas to write."),
        errors.WritesRefused,
    ),
    (redis_errors.ResponseError("MASTERDOWN Link with MASTER is down"), errors.ServerBusy),
    (redis_errors.ClusterDownError("The cluster is down"), errors.ServerBusy),
    (redis_errors.ReadOnlyError("You can't write against a read only replica."), errors.NotPrimary),
    (
        redis_errors.ResponseError(
            "READONLY You can't write against a read only replica. script: 1, on @user_script:1."
        ),
        errors.NotPrimary,
    ),
    (redis_errors.MovedError("1234 127.0.0.1:7001"), Redirected),
    (redis_errors.AskError("1234 127.0.0.1:7001"), Redirected),
    (redis_errors.ResponseError("unknown command 'ZMSCORE'"), errors.ServerTooOld),
    (redis_errors.ResponseError("Unknown Redis command called from script"), errors.ServerTooOld),
    (redis_errors.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), errors.Refused),
    (redis_errors.ResponseError("something new"), errors.Refused),
]

THERE = Address("redis://somewhere")

BROKEN = [
    redis_errors.ConnectionError("Connection closed by server."),
    redis_errors.TimeoutError("Timeout reading from socket"),
    redis_errors.InvalidResponse("Protocol error"),
    ConnectionResetError(104, "Connection reset by peer"),
    BrokenPipeError(32, "Broken pipe"),
    TimeoutError("no reply in time"),
    asyncio.IncompleteReadError(b"", 10),
    socket.gaierror(-2, "Name or service not known"),
    EOFError(),
    OSError(),
]


@pytest.mark.parametrize(("error", "kind"), REFUSALS, ids=[str(error)[:40] for error, _ in REFUSALS])
def test_an_answer_that_is_an_error_is_a_refusal_of_its_kind(error: Exception, kind: type[errors.Refused]) -> None:
    """Whether it came while connecting or as a reply; nothing was done either way."""
    for found in (refusal(error, THERE), not_sent(error, THERE), not_answered(error, THERE, "schedule")):
        assert type(found) is kind
        assert str(error).rstrip(".") in str(found)
    assert isinstance(error, REDIS_FAILURES)


@pytest.mark.parametrize("error", BROKEN, ids=repr)
def test_a_broken_connection_is_no_refusal(error: Exception) -> None:
    assert refusal(error, THERE) is None
    assert isinstance(error, REDIS_FAILURES)


@pytest.mark.parametrize("error", BROKEN, ids=repr)
def test_a_call_that_was_never_sent_was_not_done(error: Exception) -> None:
    found = not_sent(error, THERE)
    assert type(found) is errors.Unavailable
    assert "redis://somewhere" in str(found)


@pytest.mark.parametrize("error", BROKEN, ids=repr)
def test_a_call_that_was_sent_may_have_been_done(error: Exception) -> None:
    found = not_answered(error, THERE, "schedule")
    assert type(found) is errors.OutcomeUnknown
    assert "schedule" in str(found)
    assert "redis://somewhere" in str(found)


def test_a_script_that_is_not_known_was_not_run_but_is_to_be_sent_again() -> None:
    found = not_answered(redis_errors.NoScriptError("No matching script."), THERE, "schedule")
    assert type(found) is ScriptUnknown


def test_a_refusal_and_an_unknown_outcome_are_never_the_same_class() -> None:
    assert not issubclass(errors.Refused, errors.OutcomeUnknown)
    assert not issubclass(errors.OutcomeUnknown, errors.Refused)
    assert not issubclass(errors.Unavailable, errors.OutcomeUnknown)
    for kind in (errors.Refused, errors.OutcomeUnknown, errors.Unavailable):
        assert issubclass(kind, errors.ServerError)


def test_every_error_has_a_message_of_its_own() -> None:
    """Its docstring's first line stands in where nothing was said."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.WheelqError)]
    assert {kind.__module__ for kind in kinds} == {"wheelq.errors"}, "which tracebacks, logs and spans show"
    plain = [kind for kind in kinds if kind.__init__ in (errors.WheelqError.__init__, errors.OutcomeUnknown.__init__)]
    assert len(plain) > 10
    for kind in plain:
        assert len(str(kind())) > 10
    assert len({str(kind()) for kind in plain}) == len(plain)


# Addresses


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:secret@localhost", "redis://:***@localhost"),
        ("redis://me:secret@localhost:1/2", "redis://me:***@localhost:1/2"),
        ("rediss://me:se%40cret@localhost", "rediss://me:***@localhost"),
        ("unix://:secret@/tmp/server.sock", "unix://:***@/tmp/server.sock"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert Address(url).shown == shown


@pytest.mark.parametrize("url", ["localhost", "http://localhost", "redis://localhost:port", "redis://[::1", "6379"])
def test_a_wrong_server_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="redis://"):
        Address(url)


def test_a_url_with_a_password_that_is_refused_does_not_show_it() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        Address("redis://:secret@localhost:port")
    assert "secret" not in str(caught.value)
