"""When a recurring job occurs. Pure: moments are milliseconds since the Unix epoch, and now is an argument.

rule    `Rule`: what was said (cron or interval, zone, start, end, jitter), and the occurrences that follow from it
cron    cron expressions in a time zone, and what becomes of them when clocks change
plan    what is to be made now, and what of the missed (`plan`)
info    recurring jobs as people meet them
"""

from __future__ import annotations

from wheelq.recurrence.info import RecurringInfo, RecurringOutcome, RecurringReceipt, check_name
from wheelq.recurrence.plan import Plan, plan
from wheelq.recurrence.rule import Missed, Rule

__all__ = ["Missed", "Plan", "RecurringInfo", "RecurringOutcome", "RecurringReceipt", "Rule", "check_name", "plan"]
