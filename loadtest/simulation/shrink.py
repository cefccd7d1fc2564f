"""The shrinker: removes steps while the run still fails in the same way, and shows the remaining story.

Delta debugging (Zeller and Hildebrandt, 2002): it removes halves first, then quarters, down to single steps. Every step
has its own random numbers, so the remaining steps do the same as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.simulation.faults import FAULTS
from loadtest.simulation.plan import Plan, Step
from loadtest.simulation.trials import Trial

Try = Callable[[frozenset[int]], Trial]
MOST_TRIES = 150


def kind_of(problem: str) -> str:
    """Returns the kind of a problem: problems of the same kind count as the same failure."""
    return problem.split(":")[0]


def shrink(plan: Plan, attempt: Try, most_tries: int = MOST_TRIES) -> tuple[Trial, Sequence[Step]]:
    """Returns the shortest run found that fails like the whole one, and its steps. Raises: ValueError."""
    whole = attempt(frozenset())
    if not whole.problems:
        raise ValueError(f"seed {plan.seed} does not fail")
    wanted, best = kind_of(whole.problems[0]), whole
    left = sorted((step.number for step in plan.steps), key=lambda number: _is_fault(plan, number))
    everything, tries, size = frozenset(left), 0, max(len(left) // 2, 1)
    while tries < most_tries:
        for start in range(0, len(left), size):
            kept = left[:start] + left[start + size :]
            trial = attempt(everything - frozenset(kept))
            tries += 1
            if any(kind_of(problem) == wanted for problem in trial.problems):
                left, best = kept, trial
                break
            if tries >= most_tries:
                break
        else:
            if size == 1:
                break
            size = max(size // 2, 1)
    return best, [step for step in plan.steps if step.number in frozenset(left)]


def _is_fault(plan: Plan, number: int) -> bool:
    return next(step for step in plan.steps if step.number == number).kind in FAULTS


def short_story(trial: Trial, steps: Sequence[Step], *, lines: int = 30) -> list[str]:
    """Returns the story on one screen: the steps, the log of the parts, and the problems."""
    of_steps = [line for line in trial.lines if "FAULT" in line or any(f"#{step.number} " in line for step in steps)]
    others = [line for line in trial.lines if line not in of_steps and " info:" not in line]
    room = max(lines - len(of_steps), 6)
    shown = sorted((of_steps + others[:room])[: lines + 6])
    return [
        f"{len(steps)} steps are left:",
        *(f"  {step.at:8.3f}  {step.who or 'fault'}: {step}"[:160] for step in steps[:12]),
        "what happened:",
        *(line[:160] for line in shown),
    ]
