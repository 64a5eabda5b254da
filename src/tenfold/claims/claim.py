"""What a claim is: a sentence of a paper, the program that measures it, and the criterion fixed beforehand.

A room writes its claims in ``tenfold/<area>/claims.py`` as a tuple ``CLAIMS``. Each names the sentence, the paper's own
figure and setting, a function ``measure(seed, scale)`` that returns numbers and curves, and the criteria that decide.
The verdict is computed from the numbers of several seeds and is never written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

SCALES: tuple[str, ...] = ("smoke", "quick", "full")
"""How much a measurement does: enough to see that it runs, about two CPU minutes an area, or the published setting."""

Statistic = Literal["mean", "geometric mean", "median"]
STATISTICS: tuple[str, ...] = get_args(Statistic)

DEFAULT_SEEDS: Mapping[str, int] = {"smoke": 2, "quick": 3, "full": 5}

_CLAIM_ID = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True)
class Curve:
    """One curve of a plot: points (x, y), with an optional band from ``low`` to ``high``.

    Args:
        x: Horizontal positions, at least one; of an array, give ``array.tolist()``.
        y: Values, as many as ``x``; NaN leaves a gap.
        low: Lower edge of the band, as many as ``x``; given together with ``high``.
        high: Upper edge of the band.

    Raises:
        ValueError: The lengths differ, there is no point, or only one edge of the band is given.

    >>> Curve(x=[1.0, 2.0, 4.0], y=[1.0, 0.5, 0.25]).y
    (1.0, 0.5, 0.25)
    """

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError("Curve: low and high belong together; only one of them was given")
        for name in ("x", "y", "low", "high"):
            values = getattr(self, name)
            if values is None:
                continue
            numbers = tuple(float(value) for value in values)
            if not numbers or len(numbers) != len(self.x):
                raise ValueError(
                    f"Curve: {name} has {len(numbers)} values, x has {len(self.x)}; give as many, at least 1"
                )
            object.__setattr__(self, name, numbers)


@dataclass(frozen=True)
class Plot:
    """A figure of the report: named curves over one pair of axes.

    Args:
        title: What the figure shows, one line.
        x_label: Quantity on the horizontal axis, with its unit.
        y_label: Quantity on the vertical axis, with its unit.
        curves: Name in the legend and curve, in drawing order.
        kind: ``"line"``, ``"scatter"`` or ``"bar"`` (one bar group a curve, ``x`` are the positions).
        x_log: Logarithmic horizontal axis.
        y_log: Logarithmic vertical axis.
        caption: How to read it, a sentence or two under the figure.
        ticks: Names of the horizontal positions 0, 1, 2, ... (mostly for bars).

    Raises:
        ValueError: ``kind`` is none of the three, or there is no curve.
    """

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Curve]
    kind: Literal["line", "scatter", "bar"] = "line"
    x_log: bool = False
    y_log: bool = False
    caption: str = ""
    ticks: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("line", "scatter", "bar"):
            raise ValueError(f"Plot: kind={self.kind!r} is not one of 'line', 'scatter', 'bar'")
        if not self.curves:
            raise ValueError(f"Plot {self.title!r} has no curve; give at least one")
        if self.ticks is not None:
            object.__setattr__(self, "ticks", tuple(self.ticks))


@dataclass(frozen=True)
class Measurement:
    """What one seed gave.

    Args:
        numbers: Named results; each criterion of the claim refers to one of these names.
        plots: Named figures. Curves of the same name from several seeds are averaged where their ``x`` agree.

    >>> Measurement({"bias": 0.0, "seconds": 1.5}).numbers
    {'bias': 0.0, 'seconds': 1.5}
    """

    numbers: Mapping[str, float]
    plots: Mapping[str, Plot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {name: float(value) for name, value in self.numbers.items()})


@dataclass(frozen=True)
class Criterion:
    """What must be true of one number over the seeds, fixed before the measurement.

    Args:
        number: Name of the number in ``Measurement.numbers``.
        relation: ``"at most"`` or ``"at least"``.
        threshold: The bound, in the number's unit.
        unit: Unit of number and threshold; empty for pure numbers.
        statistic: ``"mean"`` over seeds (t interval), ``"geometric mean"`` (t interval of the logarithms; for ratios and
            other positive numbers that are compared by factors) or ``"median"`` (bootstrap interval).

    Raises:
        ValueError: ``relation`` or ``statistic`` is none of the choices.

    >>> print(Criterion("bias", "at most", 0.01))
    mean bias at most 0.01
    """

    number: str
    relation: Literal["at most", "at least"]
    threshold: float
    unit: str = ""
    statistic: Statistic = "mean"

    def __post_init__(self) -> None:
        if self.relation not in ("at most", "at least"):
            raise ValueError(f"Criterion: relation={self.relation!r} is not one of 'at most', 'at least'")
        if self.statistic not in STATISTICS:
            raise ValueError(
                f"Criterion: statistic={self.statistic!r} is not one of {', '.join(map(repr, STATISTICS))}"
            )
        object.__setattr__(self, "threshold", float(self.threshold))
        if self.threshold != self.threshold:
            raise ValueError(f"Criterion: the threshold of {self.number!r} is NaN; give a number")

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.statistic} {self.number} {self.relation} {self.threshold:g}{unit}"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper as a program.

    Args:
        id: ``"<area>.<name-with-hyphens>"``; what ``tenfold reproduce --claim`` takes. Never changed once published.
        area: Name of the area, the part of ``id`` before the dot.
        title: A few words for tables.
        statement: The claim in our words, one or more sentences.
        paper: Authors, year, title and place (section, figure, table).
        published: The paper's own figure and the setting in which it was obtained.
        measure: Top-level function of an importable module: ``measure(seed, scale)`` with a seed from 0 and a scale of
            ``SCALES`` gives a ``Measurement``. It runs alone in a worker process, with one thread; the global
            generators of random, numpy and torch have been seeded with ``seed`` before.
        criteria: All must hold for the claim to hold.
        units: Unit of each number that has one.
        descriptions: What each number is, in a few words of the field: a phrase that its value can follow.
        ranges: Least and largest possible value of numbers that have them: ``(0.0, math.inf)`` for a variance. Intervals
            keep to it; an interval wholly outside is an error.
        seeds: Number of seeds by scale; scales left out keep 2 (smoke), 3 (quick), 5 (full).
        expected: ``"does not hold"`` for a claim known to fail in our setting; it stays in the report all the same.
        limits: What this measurement cannot say.
        needs: Names of the data sets it reads.
        scales: Where it is measured; a claim about the published setting alone may be for ``"full"`` only.

    Raises:
        ValueError: An argument breaks one of the rules above.
    """

    id: str
    area: str
    title: str
    statement: str
    paper: str
    published: str
    measure: Callable[[int, str], Measurement]
    criteria: tuple[Criterion, ...]
    units: Mapping[str, str] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    expected: Literal["holds", "does not hold"] = "holds"
    limits: str = ""
    needs: tuple[str, ...] = ()
    scales: tuple[str, ...] = SCALES

    def __post_init__(self) -> None:
        if not _CLAIM_ID.fullmatch(self.id) or self.id.split(".")[0] != self.area:
            raise ValueError(f"Claim: id={self.id!r} is not '{self.area}.name-with-hyphens' in lower case")
        if not self.criteria:
            raise ValueError(f"Claim {self.id}: criteria is empty; a claim without a criterion cannot be judged")
        if self.expected not in ("holds", "does not hold"):
            raise ValueError(f"Claim {self.id}: expected={self.expected!r} is not one of 'holds', 'does not hold'")
        name = getattr(self.measure, "__qualname__", "")
        if not name or "<" in name:
            raise ValueError(f"Claim {self.id}: measure={name or self.measure!r} is no top-level function of a module")
        for name, (low, high) in self.ranges.items():
            if not low < high:
                raise ValueError(f"Claim {self.id}: ranges[{name!r}]=({low}, {high}) must go from low to high")
        wrong = {scale: count for scale, count in self.seeds.items() if scale not in SCALES or count < 1}
        if wrong:
            raise ValueError(f"Claim {self.id}: seeds={wrong} must give 1 or more for the scales {', '.join(SCALES)}")
        if not self.scales or not set(self.scales) <= set(SCALES):
            raise ValueError(f"Claim {self.id}: scales={self.scales!r} must be one or more of {', '.join(SCALES)}")
        for criterion in self.criteria:
            if criterion.statistic != self.statistic(criterion.number):
                raise ValueError(f"Claim {self.id}: {criterion.number!r} is asked for by two statistics; give one")
        object.__setattr__(self, "seeds", {**DEFAULT_SEEDS, **self.seeds})

    def statistic(self, number: str) -> Statistic:
        """By which statistic a number is summed up over the seeds: that of the criteria, the mean for others."""
        return next((criterion.statistic for criterion in self.criteria if criterion.number == number), "mean")
