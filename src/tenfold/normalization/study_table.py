"""The table of a study: the error of each normalization at each batch size, over seeds, and the advice that follows.

Everything that is said comes from the numbers: two normalizations are told apart where the 95 % interval of their mean
difference, paired by seed (the same examples, first weights and order), does not contain zero. Errors are counts of wrong
answers, so that a few seeds may agree by chance: their deviation is taken as one answer at least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scipy import stats

from tenfold.claims.verdict import Interval, confidence_interval

Outcome = Literal["trained", "diverged", "failed"]
NAMES = {"none": "no normalization"}


@dataclass(frozen=True)
class Cell:
    """One training run.

    Args:
        norm: The normalization.
        batch_size: Samples that statistics are taken over, or in a step; None where it makes no difference by
            construction, and one run stands for all.
        seed: Of the run.
        outcome: Whether training ended, lost its finite loss on the way, or could not be done at all.
        error: Share of wrong answers at the end, in evaluation mode; None if it failed.
        reestimated: The same with exact population statistics in the place of running averages; None where there are none.
        errors: Share of wrong answers after each epoch.
        losses: Mean loss of each epoch.
        reason: What went wrong.
        seconds: Time taken.
    """

    norm: str
    batch_size: int | None
    seed: int
    outcome: Outcome = "trained"
    error: float | None = None
    reestimated: float | None = None
    errors: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class StudyTable:
    """Errors of normalizations by batch size.

    Args:
        cells: The runs.
        norms: Normalizations, in the order of the rows.
        batch_sizes: From the largest to the smallest, as the paper's table.
        real_batch: Whether the batch size is that of a step, rather than the part of it that statistics are taken over.
        settings: What was trained on what, and how.
        without_input: Normalization to the layers in which it cannot let anything of its input through.
    """

    cells: tuple[Cell, ...]
    norms: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    real_batch: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    without_input: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def runs(self, norm: str, batch_size: int) -> list[Cell]:
        """The runs that stand for a normalization at a batch size, by seed."""
        found = [cell for cell in self.cells if cell.norm == norm and cell.batch_size in (batch_size, None)]
        return sorted(found, key=lambda cell: cell.seed)

    def errors(self, norm: str, batch_size: int, *, reestimated: bool = False) -> dict[int, float]:
        """Seed to share of wrong answers, of runs that did not fail."""
        pairs = {cell.seed: cell.reestimated if reestimated else cell.error for cell in self.runs(norm, batch_size)}
        return {seed: error for seed, error in pairs.items() if error is not None}

    def interval(self, norm: str, batch_size: int) -> Interval | None:
        """Mean error over seeds with its 95 % interval; None if no run came to an end."""
        values = list(self.errors(norm, batch_size).values())
        return error_interval(values, self.answer) if values else None

    @property
    def answer(self) -> float:
        """What one answer of the test part is of the error: the step in which errors are counted; 0 where unknown."""
        count = self.settings.get("test_examples")
        return 1 / count if count else 0.0

    def difference(self, norm: str, other: str, batch_size: int) -> Interval | None:
        """Mean difference of two errors, paired by seed, with its 95 % interval; negative where `norm` is better.

        >>> runs = [Cell(norm, 2, seed, error=error) for norm, errors in
        ...         {"batch": (0.5, 0.7), "group": (0.1, 0.1)}.items() for seed, error in enumerate(errors)]
        >>> round(StudyTable(tuple(runs), ("batch", "group"), (2,)).difference("batch", "group", 2).center, 3)
        0.5
        """
        return paired_difference(self.errors(norm, batch_size), self.errors(other, batch_size), self.answer)

    def rows(self) -> list[list[object]]:
        """A row a normalization: its name and, a batch size each, the mean error in per cent with half its interval."""
        return [[norm, *(self._cell_text(norm, size) for size in self.batch_sizes)] for norm in self.norms]

    def records(self) -> list[dict[str, object]]:
        """A record a normalization and batch size, with the numbers that the advice rests on."""
        found: list[dict[str, object]] = []
        for norm in self.norms:
            for size in self.batch_sizes:
                runs = self.runs(norm, size)
                interval = self.interval(norm, size)
                exact = list(self.errors(norm, size, reestimated=True).values())
                found.append(
                    {
                        "norm": norm,
                        "batch_size": size,
                        "error": interval.center if interval else None,
                        "low": interval.low if interval and len(runs) > 1 else None,
                        "high": interval.high if interval and len(runs) > 1 else None,
                        "error_reestimated": sum(exact) / len(exact) if exact else None,
                        "seeds": len(runs),
                        "diverged": sum(run.outcome == "diverged" for run in runs),
                        "failed": sum(run.outcome == "failed" for run in runs),
                        "depends_on_batch_size": all(run.batch_size is not None for run in runs),
                    }
                )
        return found

    def advice(self) -> str:
        """What the numbers say about which normalization to take; see `tenfold.normalization.advice`."""
        from tenfold.normalization.advice import advice

        return advice(self)

    def to_dict(self) -> dict[str, Any]:
        """All of it as what JSON can hold."""
        return {
            "settings": dict(self.settings),
            "real_batch": self.real_batch,
            "rows": self.records(),
            "advice": self.advice(),
            "without_input": {norm: list(layers) for norm, layers in self.without_input.items()},
            "runs": [asdict(cell) for cell in self.cells],
        }

    def _cell_text(self, norm: str, batch_size: int) -> object:
        runs = self.runs(norm, batch_size)
        interval = self.interval(norm, batch_size)
        if interval is None:
            return "fails" if runs else None
        marks = "*" * any(run.outcome == "diverged" for run in runs) + "!" * any(
            run.outcome == "failed" for run in runs
        )
        text = f"{100 * interval.center:.1f}"
        spread = interval.high - interval.center
        return f"{text} ± {100 * spread:.1f}{marks}" if spread < float("inf") else text + marks


def spelled(norm: str) -> str:
    """A normalization's whole name.

    >>> spelled("batch"), spelled("none")
    ('batch normalization', 'no normalization')
    """
    return NAMES.get(norm, f"{norm} normalization")


def error_interval(values: Sequence[float], answer: float = 0.0) -> Interval:
    """Mean of errors, or of their differences, over seeds with its 95 % interval (Student's t).

    Args:
        values: One a seed, at least one.
        answer: The step in which they are counted; the deviation over seeds is taken as that at least.

    >>> interval = error_interval([0.25, 0.25], 0.01)  # 12.706 * 0.01 / sqrt(2) on either side
    >>> round(interval.low, 4), round(interval.high, 4)
    (0.1602, 0.3398)
    """
    interval = confidence_interval(values)
    count = len(values)
    if count == 1:
        return interval
    half = max(interval.high - interval.center, float(stats.t.ppf(0.975, count - 1)) * answer / math.sqrt(count))
    return Interval(interval.center, interval.center - half, interval.center + half)


def paired_difference(first: Mapping[int, float], second: Mapping[int, float], answer: float = 0.0) -> Interval | None:
    """Mean difference over the seeds that both have, with its 95 % interval; None without any.

    Args:
        first: Seed to error.
        second: Seed to error.
        answer: As for `error_interval`.

    >>> paired_difference({0: 0.5, 1: 0.5}, {0: 0.25, 1: 0.25, 2: 0.0}).center
    0.25
    """
    seeds = sorted(first.keys() & second.keys())
    return error_interval([first[seed] - second[seed] for seed in seeds], answer) if seeds else None


def reestimation_gain(table: StudyTable, norm: str, batch_size: int) -> Interval | None:
    """How much of the error goes when running averages give way to exact population statistics; None where unknown.

    Args:
        table: The table.
        norm: A normalization with running averages.
        batch_size: One of the table's.
    """
    exact = table.errors(norm, batch_size, reestimated=True)
    return paired_difference(table.errors(norm, batch_size), exact, table.answer)
