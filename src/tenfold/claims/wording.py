"""How the report and the terminal write numbers, times and judgements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tenfold.claims.claim import Claim
from tenfold.claims.result import Result
from tenfold.claims.verdict import Interval, Judgement, Verdict

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SYMBOLS = {Verdict.HOLDS: "✓", Verdict.DOES_NOT_HOLD: "✗", Verdict.INCONCLUSIVE: "?", Verdict.ERROR: "!"}


def number_text(value: float, digits: int = 3) -> str:
    """A number with a few significant digits, and powers of ten where there are many zeros.

    Args:
        value: The number.
        digits: Significant digits.

    >>> [number_text(value) for value in (0.5, 1234.0, 12345678.0, -2e-5, 1e-6, 0.0, 2e4)]
    ['0.5', '1234', '1.23×10⁷', '−2×10⁻⁵', '10⁻⁶', '0', '20000']
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    rounded = float(f"{value:.{digits - 1}e}") if abs(value) < 10 ** (digits - 1) else float(f"{value:.0f}")
    if value == 0 or 1e-4 <= abs(rounded) < 1e5:
        text = f"{rounded:.10f}".rstrip("0").rstrip(".")
    else:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        power = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
        text = {"1": power, "-1": f"-{power}"}.get(mantissa, f"{mantissa}×{power}")
    return text.replace("-", "−")


def duration_text(seconds: float) -> str:
    """A duration in the units that suit it.

    >>> [duration_text(seconds) for seconds in (0.004, 0.25, 7.21, 75.0, 3720.0)]
    ['4 ms', '0.2 s', '7.2 s', '1 min 15 s', '1 h 2 min']
    """
    if seconds < 0.001:
        return "< 1 ms"
    if seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def interval_text(interval: Interval | None, unit: str = "") -> str:
    """A statistic with its interval.

    >>> interval_text(Interval(0.5, 0.25, 0.75), "s")
    '0.5 s [0.25, 0.75]'
    >>> interval_text(Interval(0.5, 0.5, 0.5))
    '0.5'
    """
    if interval is None:
        return "–"
    text = f"{number_text(interval.center)}{f' {unit}' if unit else ''}"
    if interval.low == interval.high or not math.isfinite(interval.low):
        return text
    return f"{text} [{number_text(interval.low)}, {number_text(interval.high)}]"


def comparison_text(judgement: Judgement) -> str:
    """What was asked of the number, in signs: ``≤ 0.01``."""
    sign = "≤" if judgement.criterion.relation == "at most" else "≥"
    unit = f" {judgement.criterion.unit}" if judgement.criterion.unit else ""
    return f"{sign} {number_text(judgement.criterion.threshold)}{unit}"


def deciding(result: Result) -> Judgement | None:
    """The judgement that made the verdict: the first one that is as bad; None after an error."""
    return next((judgement for judgement in result.judgements if judgement.verdict is result.verdict), None)


def number_words(claim: Claim, number: str) -> str:
    """What a number is, in words; its name where the claim does not describe it."""
    return claim.descriptions.get(number, number)


def expectation_text(result: Result) -> str:
    """What was expected of a claim, where that must be said: it was expected to fail, or fails against expectation."""
    if result.claim.expected == "holds" and result.verdict is not Verdict.DOES_NOT_HOLD:
        return ""
    return "as expected" if result.claim.expected == result.verdict.value else f"expected: {result.claim.expected}"


def advice(results: Sequence[Result]) -> str:
    """What to do about results that decide nothing: another scale, or more seeds; empty if all is decided."""
    if any(result.scale == "smoke" for result in results):
        return "Scale smoke tests that the measurements run; its verdicts say little. For an answer: --scale quick"
    if not any(result.verdict is Verdict.INCONCLUSIVE for result in results):
        return ""
    most = max(len(result.runs) for result in results)
    return f"Inconclusive means that the interval contains the threshold; more seeds may decide: --seeds {2 * most}"


def summary_text(results: Sequence[Result]) -> str:
    """How many claims have which verdict, as a sentence."""
    failing = [result for result in results if result.verdict is Verdict.DOES_NOT_HOLD]
    return counts_text((result.verdict for result in results), expected=sum(r.as_expected for r in failing))


def counts_text(verdicts: Iterable[Verdict], expected: int = 0) -> str:
    """How many claims have which verdict, as a sentence; `expected` of those that do not hold were expected not to.

    >>> counts_text([Verdict.HOLDS, Verdict.HOLDS, Verdict.DOES_NOT_HOLD])
    '2 of 3 claims hold, 1 does not hold.'
    >>> counts_text([Verdict.HOLDS, Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, Verdict.ERROR])
    '1 of 4 claims holds, 2 are inconclusive, 1 ended with an error.'
    >>> counts_text([Verdict.HOLDS, Verdict.DOES_NOT_HOLD], expected=1)
    '1 of 2 claims holds, 1 does not hold (as expected).'
    """
    found = list(verdicts)
    holds, fails, open_, errors = (
        found.count(verdict) for verdict in (Verdict.HOLDS, Verdict.DOES_NOT_HOLD, Verdict.INCONCLUSIVE, Verdict.ERROR)
    )
    claims = "claim" if len(found) == 1 else "claims"
    parts = [f"{holds} of {len(found)} {claims} {'holds' if holds == 1 else 'hold'}"]
    if fails:
        known = f" ({'' if expected == fails else f'{expected} of them '}as expected)" if expected else ""
        parts.append(f"{fails} {'does' if fails == 1 else 'do'} not hold{known}")
    if open_:
        parts.append(f"{open_} {'is' if open_ == 1 else 'are'} inconclusive")
    if errors:
        parts.append(f"{errors} ended with an error")
    return ", ".join(parts) + "."
