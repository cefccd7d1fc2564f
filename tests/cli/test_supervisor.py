"""The supervisor's rules: order, restarts and their pauses, and when it gives up."""

from __future__ import annotations

import os
import signal

import pytest

from wheelq.cli.supervisor import Crashes, Supervisor
from wheelq.errors import ConfigurationError


class Fake:
    """A part that ends when told to, and writes down what is done to it."""

    def __init__(self, name: str, log: list[str], *, fails: bool = False) -> None:
        self.name = name
        self.code: int | None = None
        self._log = log
        self._fails = fails

    def start(self) -> None:
        if self._fails:
            raise ConfigurationError(f"{self.name} cannot start")
        self._log.append(f"start {self.name}")
        self.code = None

    def poll(self) -> int | None:
        return self.code

    def ask_to_stop(self) -> None:
        self._log.append(f"ask {self.name}")

    def finish(self) -> None:
        self._log.append(f"finish {self.name}")

    def kill(self) -> None:
        self._log.append(f"kill {self.name}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_parts_start_in_order_and_stop_in_reverse_order_together_within_a_group(number: signal.Signals) -> None:
    log: list[str] = []
    server, one, two = (Fake(name, log) for name in ("server", "one", "two"))
    code = Supervisor([[server], [one, two]]).run(lambda: os.kill(os.getpid(), number))
    assert code == 0
    assert log == [
        *("start server", "start one", "start two"),
        *("ask one", "ask two", "finish one", "finish two"),
        *("ask server", "finish server"),
    ]


def test_a_second_signal_ends_everything_at_once() -> None:
    log: list[str] = []

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    assert Supervisor([[Fake("server", log)], [Fake("one", log)]]).run(twice) == 130
    assert log == ["start server", "start one", "kill one", "kill server"]


def test_a_second_hang_up_ends_nothing_early() -> None:
    log: list[str] = []

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)

    assert Supervisor([[Fake("one", log)]]).run(twice) == 0
    assert log == ["start one", "ask one", "finish one"]


def test_a_process_that_cannot_start_ends_everything() -> None:
    log: list[str] = []
    with pytest.raises(ConfigurationError, match="one cannot start"):
        Supervisor([[Fake("server", log)], [Fake("one", log, fails=True)]]).run(lambda: None)
    assert log == ["start server", "kill one", "kill server"]


def test_exit_code_2_is_not_repeated() -> None:
    log: list[str] = []
    part = Fake("one", log)

    def unusable() -> None:
        part.code = 2

    assert Supervisor([[part]]).run(unusable) == 2
    assert log == ["start one", "ask one", "finish one"]


def test_exit_code_2_of_a_part_that_has_worked_before_is_a_crash_like_any_other() -> None:
    """The password is wrong for a while, and one of the processes happens to crash meanwhile."""
    part = Fake("one", [])
    crashes = Crashes(part)
    part.code = -9
    assert crashes.step(100.0) == -9
    crashes.step(100.2)
    part.code = 2
    assert crashes.step(100.3) is None
    crashes.step(101.0)
    assert part.code is None, "it was started again"


def test_the_pause_before_a_restart_doubles_up_to_ten_seconds() -> None:
    log: list[str] = []
    part = Fake("one", log)
    crashes = Crashes(part)
    now, pauses = 100.0, []
    for _ in range(10):
        part.code = -9
        crashes.step(now)
        ended = now
        while part.code is not None:
            now += 0.05
            crashes.step(now)
        pauses.append(round(now - ended, 1))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


def test_a_process_that_has_crashed_for_days_is_still_restarted() -> None:
    part = Fake("one", log := [])
    crashes, now = Crashes(part), 100.0
    for _ in range(2_000):
        part.code = 1
        crashes.step(now)
        now += 10.0
        crashes.step(now)
    assert log == ["start one"] * 2_000


def test_a_hang_up_is_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        def hang_up() -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)

        assert Supervisor([[Fake("one", [])]]).run(hang_up) == 0, "one signal counted, not two"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_after_ten_quiet_seconds_the_pause_is_short_again() -> None:
    part = Fake("one", [])
    crashes = Crashes(part)
    for now in (100.0, 100.2, 100.5):  # ends, runs, ends …
        part.code = -9
        crashes.step(now)
        crashes.step(now + 0.2)
    part.code = -9
    crashes.step(120.0)
    crashes.step(120.1)
    assert part.code is None
