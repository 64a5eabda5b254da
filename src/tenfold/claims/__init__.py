"""Claims of the papers as programs: what a claim is, how it is judged, run and reported."""

from tenfold.claims.claim import SCALES, Claim, Criterion, Curve, Measurement, Plot

__all__ = ["SCALES", "Claim", "Criterion", "Curve", "Measurement", "Plot"]
