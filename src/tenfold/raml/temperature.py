"""The temperature of a payoff distribution: two scales, the largest legal value, noise rates, and schedules.

The payoff distribution is ``q(y | y*) = exp(-d(y, y*) / tau_raw) / Z`` with ``d`` a number of edits. The paper's
experiments state another number: there one edit costs ``1 + ln V`` for an alphabet of V tokens, so that

    tau_raw = tau_paper / (1 + ln V).

The effective noise depends on V: 0.85 on the paper's scale is 1.9 edits of a reference of 6 tokens at V = 39, and 2.9
edits of 30 tokens at V = 32000. `HammingPayoff.from_error_rate` and `EditPayoff.from_error_rate` start from the noise.

With insertions there are V^n strings with n tokens more, so over all finite strings q exists only for
``V exp(-1 / tau_raw) < 1``: tau_raw < 1 / ln V, or tau_paper < 1 + 1 / ln V.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq

SCALES = ("paper", "raw")


def raw_temperature(tau: float, vocab_size: int, scale: str = "paper") -> float:
    """The temperature of ``exp(-d / tau_raw)`` for a temperature on the given scale.

    Args:
        tau: At least 0.
        vocab_size: V, the number of tokens that may appear, at least 2.
        scale: "paper" (an edit costs 1 + ln V) or "raw" (an edit costs 1).

    Returns:
        tau_raw = tau / (1 + ln V), or tau itself.

    Raises:
        ValueError: tau is negative or NaN, V < 2, or there is no such scale.

    Norouzi et al. 2016, section 3 and 4 (experiments with edit distance).

    >>> round(raw_temperature(0.9, 60), 4)
    0.1767
    """
    check_scale(scale)
    check_vocab_size(vocab_size)
    if not tau >= 0:
        raise ValueError(f"tau={tau} must be at least 0")
    return float(tau) / (1 + math.log(vocab_size)) if scale == "paper" else float(tau)


def scaled_temperature(raw_tau: float, vocab_size: int, scale: str = "paper") -> float:
    """The inverse of `raw_temperature`: the number to give on that scale for a raw temperature.

    >>> round(scaled_temperature(0.1767, 60), 2)
    0.9
    """
    check_scale(scale)
    check_vocab_size(vocab_size)
    return float(raw_tau) * (1 + math.log(vocab_size)) if scale == "paper" else float(raw_tau)


def temperature_limit(vocab_size: int, scale: str = "paper") -> float:
    """The temperature from which on the edit payoff over all strings has no normaliser: 1 / ln V raw, 1 + 1 / ln V.

    Every temperature below it is legal.

    >>> round(temperature_limit(60), 4), round(temperature_limit(60, "raw"), 4)
    (1.2442, 0.2442)
    """
    check_vocab_size(vocab_size)
    return scaled_temperature(1 / math.log(vocab_size), vocab_size, scale)


def edit_weight(raw_tau: float) -> float:
    """The factor w = exp(-1 / tau_raw) that one edit costs; 0 at tau 0.

    >>> round(edit_weight(0.5), 4), edit_weight(0.0)
    (0.1353, 0.0)
    """
    return math.exp(-1 / raw_tau) if raw_tau > 0 else 0.0


def hamming_raw_temperature(vocab_size: int, rate: float) -> float:
    """The raw temperature at which a token is replaced with probability ``rate``.

    ``rate = (V - 1) w / (1 + (V - 1) w)``, so ``1 / tau_raw = ln(V - 1) + ln((1 - rate) / rate)``.

    Raises:
        ValueError: The rate is not in [0, (V - 1) / V): at the upper end all strings are equally likely.

    >>> round(hamming_raw_temperature(2, 0.25), 4)
    0.9102
    """
    check_vocab_size(vocab_size)
    highest = (vocab_size - 1) / vocab_size
    if not 0 <= rate < highest:
        raise ValueError(f"rate={rate} must lie in [0, {highest:.6g}) with {vocab_size} tokens")
    if rate == 0:
        return 0.0
    return 1 / (math.log(vocab_size - 1) + math.log1p(-rate) - math.log(rate))


def edit_raw_temperature(
    vocab_size: int, rate: float, edits_per_token: Callable[[float], float], *, unbounded: bool
) -> float:
    """The raw temperature at which ``edits_per_token(w)`` is the rate.

    Args:
        vocab_size: V, at least 2.
        rate: Mean edits for each token of the reference, at least 0.
        edits_per_token: The mean as an increasing function of w = exp(-1 / tau_raw).
        unbounded: Whether w must stay below 1 / V (insertions without a cap) or below 1.

    Raises:
        ValueError: The rate is negative, or no legal temperature reaches it.
    """
    check_vocab_size(vocab_size)
    if not rate >= 0:
        raise ValueError(f"rate={rate} must be at least 0")
    if rate == 0:
        return 0.0
    highest = (1 / vocab_size if unbounded else 1.0) * (1 - 1e-9)
    reached = edits_per_token(highest)
    if rate >= reached:
        raise ValueError(f"rate={rate} must be below {reached:.6g}, the most that a legal temperature gives here")
    lowest = math.log(highest) - 700.0
    weight = brentq(lambda log_w: edits_per_token(math.exp(log_w)) - rate, lowest, math.log(highest), xtol=1e-13)
    return -1 / weight


def linear_schedule(first: float, last: float, steps: int) -> Callable[[int], float]:
    """A temperature for each step: from ``first`` to ``last`` in a straight line over ``steps`` steps, then constant.

    >>> schedule = linear_schedule(0.9, 0.5, 4)
    >>> [round(schedule(step), 2) for step in (0, 2, 4, 100)]
    [0.9, 0.7, 0.5, 0.5]
    """
    _check_ends(first, last, steps)
    return lambda step: first + (last - first) * min(max(step / steps, 0.0), 1.0)


def geometric_schedule(first: float, last: float, steps: int) -> Callable[[int], float]:
    """A temperature for each step: from ``first`` to ``last`` by a constant factor over ``steps`` steps, then constant.

    >>> schedule = geometric_schedule(0.8, 0.2, 2)
    >>> [round(schedule(step), 2) for step in (0, 1, 2, 3)]
    [0.8, 0.4, 0.2, 0.2]
    """
    _check_ends(first, last, steps)
    if first == 0 or last == 0:
        raise ValueError(f"first={first} and last={last} must be positive; linear_schedule reaches 0")
    return lambda step: first * (last / first) ** min(max(step / steps, 0.0), 1.0)


def check_scale(scale: str) -> None:
    """Raise a ValueError unless there is such a scale."""
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r} must be one of: {', '.join(SCALES)}")


def check_vocab_size(vocab_size: int) -> None:
    """Raise a ValueError unless there are at least two tokens to choose from."""
    if isinstance(vocab_size, bool) or vocab_size < 2:
        raise ValueError(f"vocab_size={vocab_size}: at least 2 tokens must be there to choose from")


def _check_ends(first: float, last: float, steps: int) -> None:
    if not (first >= 0 and last >= 0):
        raise ValueError(f"first={first} and last={last} must be temperatures of at least 0")
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
