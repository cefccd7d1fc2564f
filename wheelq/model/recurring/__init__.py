"""When a recurring job occurs. Pure: moments are milliseconds since the Unix epoch, and now is an argument.

rule    `Rule`: cron or interval, zone, start, end and jitter; `plan`: the occurrences to make now
info    recurring jobs as callers see them
"""

from __future__ import annotations

from wheelq.model.recurring.info import RecurringInfo, RecurringOptions, RecurringOutcome, RecurringReceipt, check_name
from wheelq.model.recurring.rule import Missed, Plan, Rule, plan

__all__ = [
    "Missed",
    "Plan",
    "RecurringInfo",
    "RecurringOptions",
    "RecurringOutcome",
    "RecurringReceipt",
    "Rule",
    "check_name",
    "plan",
]
