"""`wheelq demo`: its verdict finds every kind of fault, its plan can be repeated, and it leaves nothing running."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from typing import IO

import pytest
import redis
from rich.console import Console

from tests.cli.commands import is_alive
from tests.waiting import eventually
from wheelq.cli.demo import command
from wheelq.cli.demo.command import Demo
from wheelq.cli.demo.orders import FAILING_TOPIC, FLASH_SALE, KINDS, LAST_MOMENT_MS, draw_orders, draw_plan
from wheelq.cli.demo.verdict import CLOCK_ERROR_MS, FAULTS, DemoLedger, DemoRun
from wheelq.model.job import CancelOutcome, RescheduleOutcome
from wheelq.settings import Settings

DUE_MS = 1_750_000_000_000
A, B = ("orders.close", "order-1"), ("orders.close", "order-2")
DEMO = [sys.executable, "-m", "wheelq", "demo", "--quick"]


def run_of(
    name: tuple[str, str] = A, *, late_ms: float = 1.0, due_ms: int = DUE_MS, attempt: int = 1, failed: bool = False
) -> DemoRun:
    """A run promoted and started `late_ms` after `due_ms`."""
    started_ms = due_ms + late_ms
    return DemoRun(*name, due_ms, int(started_ms // 1), started_ms, attempt, failed)


def ledger_of(*runs: DemoRun, names: tuple[tuple[str, str], ...] = (A,)) -> DemoLedger:
    """Jobs that are all due at `DUE_MS`, and what ran."""
    return DemoLedger(due_ms=dict.fromkeys(names, DUE_MS), runs=list(runs))


def faults(ledger: DemoLedger) -> list[tuple[str, str]]:
    return [(fault, id) for fault, names in ledger.faults().items() for _, id in names]


# The verdict: what is clean


def test_one_run_when_due_is_clean() -> None:
    verdict = ledger_of(run_of(A), run_of(B, late_ms=3.0), names=(A, B)).verdict()
    assert verdict["clean"]
    assert verdict | {"scheduled": 2, "ran": 2, "cancelled": 0, "moved": 0, "retried": 0} == verdict
    assert verdict["lateness_ms"] == {"p50": 1.0, "p99": 3.0, "max": 3.0}
    assert verdict["burst"] == {"jobs": 2, "last_started_ms": 3.0}


def test_a_cancelled_order_that_did_not_run_is_clean() -> None:
    verdict = cancelled(ledger_of()).verdict()
    assert verdict["clean"]
    assert (verdict["ran"], verdict["cancelled"]) == (0, 1)


@pytest.mark.parametrize("outcome", [CancelOutcome.RUNNING, CancelOutcome.NOT_FOUND])
def test_an_order_whose_cancel_came_too_late_must_run(outcome: CancelOutcome) -> None:
    ran, lost = ledger_of(run_of()), ledger_of()
    ran.cancels[A] = lost.cancels[A] = outcome
    assert ran.verdict()["clean"]
    assert ran.verdict()["too_late"] == 1
    assert faults(lost) == [("lost", "order-1")]


def test_a_failed_attempt_and_a_good_one_are_clean_and_late_by_the_retrys_own_due_time() -> None:
    verdict = ledger_of(run_of(failed=True), run_of(due_ms=DUE_MS + 700, attempt=2, late_ms=2.0)).verdict()
    assert verdict["clean"]
    assert (verdict["ran"], verdict["retried"]) == (1, 1)
    assert verdict["lateness_ms"]["max"] == 2.0


@pytest.mark.parametrize("by_ms", [-500, 500])
def test_a_moved_order_is_late_by_its_new_due_time(by_ms: int) -> None:
    ledger = ledger_of(run_of(due_ms=DUE_MS + by_ms, late_ms=4.0))
    ledger.moves[A] = RescheduleOutcome.RESCHEDULED, DUE_MS + by_ms
    verdict = ledger.verdict()
    assert verdict["clean"]
    assert (verdict["moved"], verdict["lateness_ms"]["max"]) == (1, 4.0)


def test_an_order_whose_move_came_too_late_keeps_its_due_time() -> None:
    ledger = ledger_of(run_of(late_ms=4.0))
    ledger.moves[A] = RescheduleOutcome.RUNNING, DUE_MS + 500
    verdict = ledger.verdict()
    assert verdict["clean"]
    assert (verdict["moved"], verdict["too_late"], verdict["lateness_ms"]["max"]) == (0, 1, 4.0)


# The verdict: what it finds


def cancelled(ledger: DemoLedger) -> DemoLedger:
    ledger.cancels[A] = CancelOutcome.CANCELLED
    return ledger


def moved(ledger: DemoLedger) -> DemoLedger:
    ledger.moves[A] = RescheduleOutcome.RESCHEDULED, DUE_MS + 500
    return ledger


FAULTY: dict[str, tuple[DemoLedger, str]] = {
    "never ran": (ledger_of(), "lost"),
    "failed and never came back": (ledger_of(run_of(failed=True)), "lost"),
    "failed twice and never came back": (ledger_of(run_of(failed=True), run_of(attempt=2, failed=True)), "lost"),
    "promoted a millisecond before the due time": (ledger_of(run_of(late_ms=-1.0)), "early"),
    "started long before the due time after a good promotion": (
        ledger_of(run_of()._replace(started_ms=DUE_MS - CLOCK_ERROR_MS - 1.0)),
        "early",
    ),
    "early by its receipt, not by what the worker was told": (ledger_of(run_of(due_ms=DUE_MS - 10)), "early"),
    "moved, and ran at its old time": (moved(ledger_of(run_of())), "early"),
    "an early retry": (ledger_of(run_of(failed=True), run_of(due_ms=DUE_MS + 700, attempt=2, late_ms=-5.0)), "early"),
    "ran twice": (ledger_of(run_of(), run_of(late_ms=2.0)), "doubled"),
    "its failing attempt ran twice": (
        ledger_of(run_of(failed=True), run_of(failed=True), run_of(due_ms=DUE_MS + 700, attempt=2)),
        "doubled",
    ),
    "a retry of a finished job": (ledger_of(run_of(), run_of(due_ms=DUE_MS + 700, attempt=2)), "doubled"),
    "cancelled, and ran": (cancelled(ledger_of(run_of())), "cancelled_but_ran"),
    "nobody asked for it": (ledger_of(run_of(A), names=()), "unknown"),
}


@pytest.mark.parametrize(("ledger", "fault"), FAULTY.values(), ids=FAULTY)
def test_each_fault_of_an_order_is_found(ledger: DemoLedger, fault: str) -> None:
    assert faults(ledger) == [(fault, "order-1")]


def test_only_the_order_at_fault_is_named() -> None:
    assert faults(ledger_of(run_of(A, late_ms=0.0), names=(A, B))) == [("lost", "order-2")]


def test_faults_planted_among_many_good_orders_are_all_found_and_counted() -> None:
    names = tuple(("reminders", f"reminder-{number}") for number in range(1_000))
    ledger = ledger_of(*map(run_of, names[3:]), run_of(names[1], late_ms=-1.0), run_of(names[2]), names=names)
    ledger.runs += [run_of(names[2]), run_of(("reminders", "reminder-x"))]
    ledger.cancels[names[3]] = CancelOutcome.CANCELLED
    random.Random(5).shuffle(ledger.runs)
    verdict = ledger.verdict()
    assert not verdict["clean"]
    assert {fault: verdict[fault] for fault in FAULTS} == {
        "lost": 1,
        "early": 1,
        "doubled": 1,
        "cancelled_but_ran": 1,
        "unknown": 1,
    }
    assert [fault["id"] for fault in verdict["faults"]] == [f"reminder-{place}" for place in (0, 1, 2, 3, "x")]


def test_percentiles_are_exact() -> None:
    names = [("reminders", f"reminder-{number}") for number in range(1, 201)]
    runs = [run_of(name, late_ms=float(late_ms)) for late_ms, name in enumerate(names, 1)]
    assert ledger_of(*runs, names=tuple(names)).lateness() == {"p50": 100.0, "p99": 198.0, "max": 200.0}
    assert ledger_of().lateness() == {"p50": 0.0, "p99": 0.0, "max": 0.0}


# The orders and the plan


def test_the_orders_are_the_same_on_every_machine() -> None:
    assert draw_orders() == draw_orders()
    order = draw_orders()[0]
    assert (order.topic, order.key, order.delay_ms) == ("orders.close", "order-10001", 12614)


def test_the_orders_are_three_thousand_of_four_kinds_within_twenty_seconds() -> None:
    orders = draw_orders()
    assert len({(order.topic, order.key) for order in orders}) == len(orders) == 3_000
    assert {order.topic for order in orders} == set(KINDS)
    assert all(2_000 <= order.delay_ms <= 18_000 for order in orders)
    assert Counter(order.delay_ms for order in orders).most_common(1) == [(10_000, FLASH_SALE)]


def test_a_seed_always_draws_the_same_plan() -> None:
    orders = draw_orders()
    assert draw_plan(orders, 3) == draw_plan(orders, 3) != draw_plan(orders, 4)


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_changes_each_order_once_and_before_it_is_long_gone(seed: int) -> None:
    orders = draw_orders(quick=True)
    plan = draw_plan(orders, seed)
    changed = [change.order.key for change in plan.changes]
    callbacks = {order.key for order in orders if order.topic == FAILING_TOPIC}
    assert len(set(changed)) == len(changed) == 100
    assert sum(change.to_ms is None for change in plan.changes) == 50
    assert all(0 < change.when_ms <= change.order.delay_ms + LAST_MOMENT_MS for change in plan.changes)
    assert plan.failing < callbacks


# How it looks


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_and_the_progress_fit_the_terminal(width: int) -> None:
    demo = Demo(1, False, Settings())
    orders = demo.orders
    demo.ledger.due_ms |= {(order.topic, order.key): DUE_MS + order.delay_ms for order in orders}
    demo.ledger.runs += [run_of((order.topic, order.key), due_ms=DUE_MS + order.delay_ms) for order in orders]
    demo.waiting.update(dict.fromkeys(KINDS, 1_000))
    console = Console(width=width, file=io.StringIO())
    with console.capture() as shown:
        console.print(command.screen(demo))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split()[-6:] == ["waiting", "ready", "handled", "cancelled", "moved", "retried"]
    assert ("shortened" in lines[0]) is (width == 120)
    assert [lines[1].split()[0], *lines[1].split()[-6:]] == ["orders.close", "1,000", "0", "1,400", "0", "0", "0"]
    assert lines[5].split() == ["all", "4,000", "0", "3,000", "0", "0", "0"]
    assert lines[7].endswith("━ lateness p50 1.0 p99 1.0 max 1.0 ms")


# The whole of it


def read_until(output: IO[str], text: str) -> None:
    for line in output:
        if text in line:
            return
    pytest.fail(f"it ended without saying {text!r}")


def children_of(pid: int) -> set[int]:
    """Living processes; zombies do not count."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in table.splitlines()]
    return {int(child) for child, parent, state in rows if int(parent) == pid and not state.startswith("Z")}


def start_demo() -> subprocess.Popen[str]:
    """A demo on its embedded server that has begun; its lines go to a pipe."""
    demo = subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    read_until(demo.stdout, "waiting")
    return demo


@pytest.mark.slow
def test_on_a_server_of_ones_own_it_ends_clean_and_leaves_no_key(url: str) -> None:
    demo = subprocess.run([*DEMO, "--json", "--url", url], capture_output=True, text=True, check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    verdict = json.loads(demo.stdout)
    assert verdict["clean"]
    assert verdict["ran"] + verdict["cancelled"] == verdict["scheduled"] == 1_000
    assert verdict["moved"] > 30
    assert verdict["retried"] > 15
    assert redis.Redis.from_url(url).keys("wheelq-demo-*") == []


def test_without_a_terminal_it_speaks_in_plain_lines() -> None:
    demo = subprocess.run([*DEMO, "--seed", "3"], capture_output=True, text=True, check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stdout.isascii()
    assert demo.stderr == ""
    for said in (
        "Delays are shortened",
        "waiting",
        "lost 0, early 0, doubled 0",
        "every order ran as promised",
        "next:",
    ):
        assert said in demo.stdout


def test_ctrl_c_ends_it_without_a_traceback_and_without_leftovers() -> None:
    demo = start_demo()
    children = children_of(demo.pid)
    assert len(children) == 4  # server and its guard, scheduler, worker
    demo.send_signal(signal.SIGINT)
    _, complaint = demo.communicate()
    assert demo.returncode == 130
    assert complaint == "Stopped before the end: no verdict.\n"
    assert eventually(lambda: not any(map(is_alive, children)))


def test_nothing_it_started_outlives_it() -> None:
    demo = start_demo()
    children = children_of(demo.pid)
    demo.kill()
    demo.communicate()
    assert eventually(lambda: not any(map(is_alive, children)))


@pytest.mark.parametrize("part", ["scheduler", "worker"])
def test_a_process_that_ends_too_soon_ends_it(part: str) -> None:
    demo = start_demo()
    table = subprocess.run(["ps", "-ww", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in table.stdout.splitlines()]
    [pid] = [int(pid) for pid, parent, args in rows if int(parent) == demo.pid and f"wheelq {part}" in args]
    os.kill(pid, signal.SIGKILL)
    _, complaint = demo.communicate()
    assert demo.returncode == 1
    assert complaint == f"the {part} process ended with code -9\n"


def test_it_says_why_the_server_cannot_be_used() -> None:
    demo = subprocess.run([*DEMO, "--url", "redis://127.0.0.1:1"], capture_output=True, text=True, check=False)
    assert demo.returncode == 1
    assert demo.stderr.startswith("no connection to redis://127.0.0.1:1")
