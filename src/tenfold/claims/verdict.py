"""The verdict: a confidence interval over seeds against a threshold that was fixed beforehand.

For n seeds with mean m and sample deviation s, the two-sided 95 % interval of a mean is m ± t(0.975, n - 1) s / √n
(Student 1908), cut to the range that the claim declares for the number; a true mean cannot lie outside, so nothing is
lost. That of a geometric mean is exp of the same interval of the logarithms. The interval of a median is the
bias-corrected and accelerated bootstrap (Efron 1987). A criterion *holds* if the whole interval lies on the right side
of the threshold, *does not hold* if the whole interval lies on the wrong side, and is *inconclusive* if the threshold
is inside. A claim is as good as the worst of its criteria.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tenfold.claims.claim import Criterion, Statistic

CONFIDENCE = 0.95
BOOTSTRAP_RESAMPLES = 9999
EVERYTHING = (-math.inf, math.inf)


class Verdict(StrEnum):
    """What the numbers say about a claim.

    >>> Verdict("does not hold").value
    'does not hold'
    """

    HOLDS = "holds"
    INCONCLUSIVE = "inconclusive"
    DOES_NOT_HOLD = "does not hold"
    ERROR = "error"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts: error, then does not hold, then inconclusive, then holds.

    Args:
        verdicts: At least one verdict.

    >>> str(worst([Verdict.HOLDS, Verdict.INCONCLUSIVE]))
    'inconclusive'
    """
    order = list(Verdict)
    return max(verdicts, key=order.index)


@dataclass(frozen=True)
class Interval:
    """A statistic over seeds with its 95 % confidence interval.

    Args:
        center: Mean or median of the values.
        low: Lower end; minus infinity when one value gives no interval.
        high: Upper end; infinity when one value gives no interval.
        note: What a reader must know about this interval; empty in the regular case.
    """

    center: float
    low: float
    high: float
    note: str = ""


def confidence_interval(
    values: Sequence[float],
    statistic: Statistic = "mean",
    possible: tuple[float, float] = EVERYTHING,
) -> Interval:
    """Two-sided 95 % confidence interval of a mean (t), geometric mean (t) or median (BCa bootstrap, fixed seed) over seeds.

    Args:
        values: One finite number a seed, at least one.
        statistic: ``"mean"``, ``"geometric mean"`` or ``"median"``.
        possible: Least and largest value that the statistic can truly have; the interval keeps to it, though estimates may
            fall outside by chance.

    Returns:
        The interval. One value gives an infinite interval, equal values one of length zero; the note says so.

    Raises:
        ValueError: There is no value, one is NaN or infinite, or not positive for a geometric mean, or the whole interval
            lies where it cannot.

    >>> interval = confidence_interval([1.0, 2.0, 3.0])
    >>> f"{interval.center:.3f} in [{interval.low:.3f}, {interval.high:.3f}]"  # 2 ± 4.3027 / √3
    '2.000 in [-0.484, 4.484]'
    >>> interval = confidence_interval([1.0, 2.0, 3.0], possible=(0.0, math.inf))
    >>> interval.low, round(interval.high, 3)
    (0.0, 4.484)
    >>> confidence_interval([0.5, 0.5]).note
    'every seed gave the same value'
    """
    if not values:
        raise ValueError("confidence_interval: there is no value; give one a seed")
    for value in values:
        if fault := _fault(value, statistic):
            raise ValueError(f"confidence_interval: {value} {fault}")
    found = _interval([float(value) for value in values], statistic)
    low, high = max(found.low, possible[0]), min(found.high, possible[1])
    if low > high:
        raise ValueError(
            f"the interval from {found.low:g} to {found.high:g} lies outside the range from {possible[0]:g} to {possible[1]:g}"
        )
    return found if len(values) == 1 else replace(found, low=low, high=high)


def _interval(values: Sequence[float], statistic: Statistic) -> Interval:
    count = len(values)
    if count == 1:
        return Interval(values[0], -math.inf, math.inf, "one seed gives no interval")
    if min(values) == max(values):
        return Interval(values[0], values[0], values[0], "every seed gave the same value")
    if statistic == "median":
        return _median_interval(values)
    if statistic == "geometric mean":
        logs = _mean_interval([math.log(value) for value in values])
        return Interval(math.exp(logs.center), math.exp(logs.low), math.exp(logs.high))
    return _mean_interval(values)


def _fault(value: float, statistic: Statistic) -> str:
    """What is wrong with one value; empty if nothing is."""
    if not math.isfinite(value):
        return "is not finite"
    if statistic == "geometric mean" and value <= 0:
        return "is not positive, as a geometric mean needs it"
    return ""


def _mean_interval(values: Sequence[float]) -> Interval:
    import numpy as np
    from scipy import stats

    array = np.asarray(values, dtype=np.float64)
    center = float(array.mean())
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array)))
    return Interval(center, center - half, center + half)


def _median_interval(values: Sequence[float]) -> Interval:
    import numpy as np
    from scipy import stats

    array = np.asarray(values, dtype=np.float64)
    low, high, method = math.nan, math.nan, ""
    for method in ("BCa", "percentile"):  # BCa is undefined when the jackknife values all agree
        with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)
            found = stats.bootstrap(
                (array,),
                np.median,
                confidence_level=CONFIDENCE,
                n_resamples=BOOTSTRAP_RESAMPLES,
                method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval
        low, high = float(found.low), float(found.high)
        if math.isfinite(low) and math.isfinite(high):
            break
    notes = ["percentile bootstrap, because BCa is undefined for these values"] if method == "percentile" else []
    # The range of n values covers the median with probability 1 - 2 (1/2)^n: no interval inside it can do better.
    coverage = 1 - 2.0 ** (1 - len(array))
    if coverage < CONFIDENCE:
        notes.append(f"an interval from {len(array)} seeds covers a median in {100 * coverage:.0f} % of cases at best")
    return Interval(float(np.median(array)), low, high, "; ".join(notes))


@dataclass(frozen=True)
class Judgement:
    """One criterion held against the numbers of the seeds.

    Args:
        criterion: The criterion.
        values: The number of each seed that ran, in the order of the seeds.
        interval: The statistic with its interval; None if it could not be formed.
        verdict: What follows.
        note: Why, where the interval alone does not say it.
    """

    criterion: Criterion
    values: tuple[float, ...]
    interval: Interval | None
    verdict: Verdict
    note: str = ""


def judge(criterion: Criterion, values: Sequence[float], possible: tuple[float, float] = EVERYTHING) -> Judgement:
    """Holds a criterion against one number a seed.

    Args:
        criterion: What must be true.
        values: One number a seed; NaN or infinity makes the judgement an error, not an average.
        possible: Least and largest value that the statistic can truly have; an interval wholly outside is an error.

    >>> str(judge(Criterion("bias", "at most", 0.1), [0.01, 0.02, 0.03]).verdict)
    'holds'
    >>> judge(Criterion("bias", "at most", 0.1), [0.01, float("nan")]).note
    'bias is nan in seed 1'
    """
    numbers = tuple(float(value) for value in values)
    for seed, value in enumerate(numbers):
        if fault := _fault(value, criterion.statistic):
            note = f"{criterion.number} is {value} in seed {seed}"
            note = note if not math.isfinite(value) else f"{note}, which {fault}"
            return Judgement(criterion, numbers, None, Verdict.ERROR, note)
    if not numbers:
        return Judgement(criterion, numbers, None, Verdict.ERROR, "no seed gave a measurement")
    try:
        interval = confidence_interval(numbers, criterion.statistic, possible)
    except ValueError as error:
        return Judgement(criterion, numbers, None, Verdict.ERROR, f"{criterion.number}: {error}")
    if criterion.relation == "at most":
        right, wrong = interval.high <= criterion.threshold, interval.low > criterion.threshold
    else:
        right, wrong = interval.low >= criterion.threshold, interval.high < criterion.threshold
    verdict = Verdict.HOLDS if right else Verdict.DOES_NOT_HOLD if wrong else Verdict.INCONCLUSIVE
    return Judgement(criterion, numbers, interval, verdict, interval.note)
