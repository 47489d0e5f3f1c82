"""The one shape in which the plan reports what is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """One violated rule.

    Attributes:
        id: Stable name of the rule, e.g. ``"generation_batch_divisible_by_world_size"``.
        key: The key whose change repairs it, in the name of the option (``global_batch_size``).
        value: The value found.
        why: The rule, with the numbers put in, and what the job does when it is broken.
        legal: Legal values of ``key`` with everything else unchanged, nearest first; empty if there is none.
        severity: ``"error"`` stops the job or silently changes the training; ``"warning"`` wastes something.
    """

    id: str
    key: str
    value: object
    why: str
    legal: tuple[object, ...] = ()
    severity: Severity = "error"

    def __str__(self) -> str:
        legal = f" Legal: {' or '.join(str(value) for value in self.legal)}." if self.legal else ""
        return f"{self.key} = {self.value}: {self.why}.{legal} [{self.id}]"


class PlanError(ValueError):
    """Raised where a plan is built from inputs that :class:`Problem` errors forbid; carries all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def errors_of(problems: Sequence[Problem]) -> list[Problem]:
    """The problems that forbid the plan, without the warnings."""
    return [problem for problem in problems if problem.severity == "error"]


def check_positive(spec: object) -> list[Problem]:
    """A problem for every integer field of a dataclass that is below 1; the other rules divide by them."""
    return [
        Problem(f"positive_{key}", key, value, "must be at least 1", (1,))
        for key, value in vars(spec).items()
        if isinstance(value, int) and not isinstance(value, bool) and value < 1
    ]


def nearest_multiples(value: int, unit: int) -> tuple[int, ...]:
    """The multiples of ``unit`` next to ``value`` (at least one unit), nearest first, the larger one first on
    a tie."""
    lower, upper = value // unit * unit, -(-value // unit) * unit
    candidates = {candidate for candidate in (lower, upper) if candidate > 0} or {unit}
    return tuple(sorted(candidates, key=lambda candidate: (abs(candidate - value), -candidate)))


def nearest(value: int, candidates: Sequence[int], count: int = 2) -> tuple[int, ...]:
    """The ``count`` candidates closest to ``value``, nearest first."""
    return tuple(sorted(candidates, key=lambda candidate: (abs(candidate - value), -candidate))[:count])


def divisors(number: int, keep: Callable[[int], bool] = lambda _: True) -> tuple[int, ...]:
    """All positive divisors of ``number`` that ``keep`` accepts, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(d for d in sorted({*small, *(number // d for d in small)}) if keep(d))
