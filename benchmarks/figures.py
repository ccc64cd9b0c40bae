"""Statistics over several runs: medians, the ratio of two contestants, and the check of a target."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

COMPARISONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, ">": operator.gt}


@dataclass(frozen=True, slots=True)
class Target:
    """Target for a figure or a ratio.

    Attributes:
        comparison: one of `COMPARISONS`.
        value: the bound of the comparison.
    """

    comparison: str
    value: float

    def __str__(self) -> str:
        return f"{self.comparison} {self.value:,g}"

    def is_met_by(self, value: float) -> bool:
        """True if this value meets the target."""
        return COMPARISONS[self.comparison](value, self.value)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours divided by theirs.

    Attributes:
        value: the ratio of the medians.
        lowest: the lowest ratio of two runs that followed each other.
        highest: the highest one.
    """

    value: float
    lowest: float
    highest: float


def medians(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure over the runs that have it."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.items():
            found.setdefault(name, []).append(value)
    return {name: median(values) for name, values in found.items()}


def ratio_of(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Ratio | None:
    """Return the ratio of two contestants, whose runs are paired by number; None stands for a failed run.

    Returns:
        The ratio, or None if a contestant has no figure at all or theirs is zero.
    """
    our_values = [value for value in ours if value is not None]
    their_values = [value for value in theirs if value is not None]
    if not our_values or not their_values or not median(their_values):
        return None
    paired = [mine / other for mine, other in zip(ours, theirs, strict=True) if mine is not None and other]
    whole = median(our_values) / median(their_values)
    return Ratio(whole, min(paired, default=whole), max(paired, default=whole))


def number(value: float | None) -> str:
    """Format a figure: three significant digits below 100, a whole number from 100 on."""
    if value is None:
        return "-"
    if value and abs(value) < 100:
        return f"{value:,.3g}"
    return f"{value:,.0f}"
