"""The result of a torture run: the verdict and the cost of each kind of fault, as a table and as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from loadtest.judge import Disruption, Promotion, Verdict
from loadtest.torture.promises import Call

AFTER_MS = 3_000
"""How many milliseconds after its end a fault may still cause lateness."""
PLAIN = "(none near)"
"""Stands for promotions with no fault near."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The lateness of promotions near one kind of fault."""

    kind: str
    times: int
    worst_ms: int
    """The worst lateness of all promotions near such faults, perhaps near other faults as well."""
    worst_alone_ms: int | None
    """The worst lateness of promotions near no other fault."""
    middle_alone_ms: int | None
    """The median over these faults of the worst lateness near each."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a run found."""

    verdict: Verdict
    log: Sequence[Call]
    promotions: Sequence[Promotion]
    strikes: Sequence[Disruption]
    """Every fault with its beginning and end."""
    left: dict[str, int]
    """What the servers still held at the end, after all jobs had run; should be empty."""
    fallen: Sequence[str]
    """Parts that ended by themselves, with their last line of output."""
    failures: Sequence[str]
    """Producers that ended too early, by an undocumented error."""
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What else is wrong, by what it concerns: bundles, limits per key, deaths."""

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept and nothing was left behind."""
        is_wrong = self.failures or self.crashed or any(self.others.values()) or any(self.left.values())
        return self.verdict.is_clean and not is_wrong

    @property
    def crashed(self) -> list[str]:
        """Those of `fallen` that did not end by a documented error."""
        return [line for line in self.fallen if ": wheelq.errors." not in line]

    def costs(self) -> list[Cost]:
        """Returns the cost of each kind of fault."""
        near: defaultdict[int, list[int]] = defaultdict(list)  # strike → lateness of promotions near it
        alone: defaultdict[int, list[int]] = defaultdict(list)
        plain: list[int] = []
        for one in self.promotions:
            late_ms = one.promoted_ms - one.due_ms
            found = [n for n, strike in enumerate(self.strikes) if _is_near(strike, one)]
            for n in found:
                near[n].append(late_ms)
            if len(found) == 1:
                alone[found[0]].append(late_ms)
            elif not found:
                plain.append(late_ms)
        rows = [Cost(PLAIN, 0, max(plain, default=0), max(plain, default=None), None)]
        for kind in sorted({strike.kind for strike in self.strikes}):
            places = [n for n, strike in enumerate(self.strikes) if strike.kind == kind]
            worst = max((late_ms for n in places for late_ms in near[n]), default=0)
            each = sorted(max(alone[n]) for n in places if alone[n])
            rows.append(Cost(kind, len(places), worst, *((each[-1], each[len(each) // 2]) if each else (None, None))))
        return rows


def _is_near(strike: Disruption, promotion: Promotion) -> bool:
    return strike.from_ms <= promotion.promoted_ms and promotion.due_ms <= strike.to_ms + AFTER_MS


def as_table(report: Report) -> str:
    """The report for people."""
    lines = [f"{'fault':<18}{'times':>6}{'worst ms':>10}{'alone ms':>10}{'middle ms':>11}"]
    for row in report.costs():
        numbers = ["-" if number is None else f"{number:,}" for number in (row.worst_alone_ms, row.middle_alone_ms)]
        lines.append(f"{row.kind:<18}{row.times or '':>6}{row.worst_ms:>10,}{numbers[0]:>10}{numbers[1]:>11}")
    answers = Counter(f"{call.asked} {call.answer}" for call in report.log)
    causes = ", ".join(f"{count} {kind}" for kind, count in sorted(report.verdict.causes.items()))
    lines += ["", "answers: " + ", ".join(f"{count} {answer}" for answer, count in answers.most_common())]
    if unconfirmed := sum(not call.is_confirmed for call in report.log):
        lines += [f"answers that no replica confirmed: {unconfirmed}"]
    if report.verdict.undone:
        lines += [f"runs whose promotion a failover has undone: {report.verdict.undone}"]
    lines += [f"repeated runs: {report.verdict.reruns}" + (f" ({causes})" if causes else "")]
    lines += [f"fallen: {line}" for line in report.fallen] + [f"failed: {line}" for line in report.failures]
    lines += [f"{what}: {line}" for what, found in report.others.items() for line in found[:20]]
    if any(report.left.values()):
        lines.append(f"left on the servers: {report.left}")
    return "\n".join([*lines, str(report.verdict), "clean" if report.is_clean else "NOT CLEAN"])


def as_json(report: Report) -> str:
    """The report for programs."""
    verdict = report.verdict
    answers = Counter(f"{call.asked} {call.answer}" for call in report.log)
    return json.dumps(
        {
            "is_clean": report.is_clean,
            "verdict": str(verdict),
            "promised": verdict.promised,
            "ran": verdict.ran,
            "wrong": verdict.wrong,
            "reruns": verdict.reruns,
            "undone": verdict.undone,
            "causes": verdict.causes,
            "faults": len(report.strikes),
            "costs": [asdict(cost) for cost in report.costs()],
            "answers": dict(answers),
            "left": report.left,
            "fallen": list(report.fallen),
            "failures": list(report.failures),
            **{what: list(found) for what, found in report.others.items()},
        },
        indent=2,
    )


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Shows one line that changes; nothing if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    try:
        yield lambda line: print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
    finally:
        print(file=sys.stderr)
