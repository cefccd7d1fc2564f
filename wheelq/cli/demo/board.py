"""The state of the demo: counts for the screen, and the ledger that the verdict is computed from."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wheelq.base.clock import Clock
from wheelq.cli.demo.orders import KINDS, Order
from wheelq.cli.demo.plan import Change, DemoPlan
from wheelq.cli.demo.verdict import DemoLedger, DemoRun, LatenessFigures, Name
from wheelq.model.job import CancelOutcome, Receipt, RescheduleOutcome
from wheelq.model.topic import TopicInfo

NEWS_KEPT = 40


class News(NamedTuple):
    """One thing that happened to one order."""

    elapsed_ms: float
    what: str
    """cancelled, moved, failed or too late."""
    text: str


class Board:
    """Filled in by `play`, read by the views."""

    def __init__(self, orders: Sequence[Order], plan: DemoPlan, clock: Clock) -> None:
        self.orders = orders
        self.plan = plan
        self.ledger = DemoLedger()
        self.scheduled = Counter(order.topic for order in orders)
        self.waiting: Counter[str] = Counter()
        self.ready: Counter[str] = Counter()
        self.handled: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.late_ms: list[float] = []
        self.news: deque[News] = deque(maxlen=NEWS_KEPT)
        self.import_ms = 0.0
        self._clock = clock
        self._imported_at: float | None = None
        self._done: set[Name] = set()

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the import; 0 before."""
        return 0.0 if self._imported_at is None else (self._clock.monotonic() - self._imported_at) * 1000

    @property
    def lateness(self) -> LatenessFigures:
        """The lateness of every run so far."""
        return LatenessFigures.of(self.late_ms)

    @property
    def is_complete(self) -> bool:
        """Whether every order that must run has run."""
        return len(self._done) >= len(self.orders) - self.cancelled.total()

    def importing(self) -> None:
        """Start the clock: due times count from here."""
        self._imported_at = self._clock.monotonic()

    def imported(self, topic: str, receipts: Iterable[Receipt]) -> None:
        """Record scheduled orders of one topic."""
        self.ledger.due_ms.update({(topic, receipt.id): receipt.due_ms for receipt in receipts})
        self.import_ms = self.elapsed_ms

    def counted(self, topics: Iterable[TopicInfo]) -> None:
        """Take the server's counts of waiting and ready jobs."""
        for topic in topics:
            self.waiting[topic.name], self.ready[topic.name] = topic.waiting, topic.ready

    def ran(self, run: DemoRun) -> None:
        """Record the start of a handler."""
        self.ledger.runs.append(run)
        self.late_ms.append(self.ledger.lateness_ms(run))
        if run.attempt > 1:
            self.retried[run.topic] += 1
        if run.failed:
            self._tell("failed", f"{run.id} will retry")
        else:
            self.handled[run.topic] += 1
            self._done.add(run.name)

    def cancelling(self, change: Change, outcome: CancelOutcome) -> None:
        """Record the answer to a cancel."""
        topic, key = change.order.topic, change.order.key
        self.ledger.cancels[topic, key] = outcome
        if outcome is CancelOutcome.CANCELLED:
            self.cancelled[topic] += 1
            self._tell("cancelled", f"{key} {KINDS[topic].cancel_reason}")
        else:
            self._tell("too late", f"{key} {_said(outcome)}")

    def moving(self, change: Change, due_ms: int, outcome: RescheduleOutcome) -> None:
        """Record the answer to a reschedule."""
        topic, key = change.order.topic, change.order.key
        self.ledger.moves[topic, key] = outcome, due_ms
        if outcome is RescheduleOutcome.RESCHEDULED:
            self.moved[topic] += 1
            by_s = (due_ms - self.ledger.due_ms[topic, key]) / 1000
            self._tell("moved", f"{key} by {by_s:+.1f} s")
        else:
            self._tell("too late", f"{key} {_said(outcome)}")

    def _tell(self, what: str, text: str) -> None:
        self.news.append(News(self.elapsed_ms, what, text))


def _said(outcome: CancelOutcome | RescheduleOutcome) -> str:
    return "is running" if outcome.value == "running" else "has run"
