"""Claims of the papers as programs: what a claim is, how it is judged, run and reported."""

from tenfold.claims.claim import SCALES, Claim, Criterion, Curve, Measurement, Plot
from tenfold.claims.report import write_report
from tenfold.claims.result import Result, SeedRun
from tenfold.claims.runner import Progress, run_claims
from tenfold.claims.selection import select_claims
from tenfold.claims.verdict import Interval, Judgement, Verdict, confidence_interval, judge

__all__ = [
    "SCALES",
    "Claim",
    "Criterion",
    "Curve",
    "Interval",
    "Judgement",
    "Measurement",
    "Plot",
    "Progress",
    "Result",
    "SeedRun",
    "Verdict",
    "confidence_interval",
    "judge",
    "run_claims",
    "select_claims",
    "write_report",
]
