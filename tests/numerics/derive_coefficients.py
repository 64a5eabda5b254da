"""Where the constants of `tenfold.numerics` come from: `python tests/numerics/derive_coefficients.py` prints them all.

Each function is divided by its known leading part, and the smooth remainder is interpolated at Chebyshev nodes in
50-digit arithmetic (close to the best polynomial for remainders as smooth as these), then rounded to its precision.
"""

import sys
from collections.abc import Callable

import numpy as np
from mpmath import cos, erfc, exp, expm1, log, log1p, lu_solve, matrix, mp, mpf, pi, sqrt

mp.dps = 50


def interpolate(remainder: Callable, low, high, degree: int) -> list:
    """Monomial coefficients of the polynomial through the Chebyshev nodes of [low, high]."""
    low, high = mpf(low), mpf(high)
    nodes = [(low + high) / 2 + (high - low) / 2 * cos(pi * (2 * i + 1) / (2 * degree + 2)) for i in range(degree + 1)]
    vandermonde = matrix([[node**power for power in range(degree + 1)] for node in nodes])
    return list(lu_solve(vandermonde, matrix([remainder(node) for node in nodes])))


def exp_remainder(r):
    """(exp(r) - 1 - r) / r^2."""
    return (expm1(r) - r) / r**2 if abs(r) > mpf(10) ** -12 else mpf(1) / 2 + r / 6


def log_remainder(f):
    """(log(1 + f) - f + f^2 / 2) / f^3."""
    return (log1p(f) - f + f**2 / 2) / f**3 if abs(f) > mpf(10) ** -12 else mpf(1) / 3 - f / 4


def atanh_remainder(s2):
    """(2 atanh(s) - 2 s) / s as a function of s^2, so that log(1 + f) = 2 s + s R(s^2) with s = f / (2 + f)."""
    s = sqrt(s2)
    return (log((1 + s) / (1 - s)) - 2 * s) / s


def atanh_quotient(s2):
    """R(s^2) / s^2, R as above."""
    return atanh_remainder(s2) / s2


def erfcx_shape(center):
    """(x + 1/2) erfcx(x) as a function of t = (x - center) / (x + center), which maps [0, inf) to [-1, 1)."""

    def shape(t):
        x = center * (1 + t) / (1 - t)
        return (x + mpf(1) / 2) * exp(x * x) * erfc(x) if x < 40 else (x + mpf(1) / 2) * erfcx_far(x)

    return shape


def erfcx_far(x):
    """Continued fraction of erfcx for large x."""
    tail = mpf(0)
    for k in range(60, 0, -1):
        tail = mpf(k) / 2 / (x + tail)
    return 1 / sqrt(pi) / (x + tail)


HALF_LN2 = log(mpf(2)) / 2 * mpf("1.0001")
ATANH_END = ((sqrt(2) - 1) / (sqrt(2) + 1)) ** 2 * mpf("1.0001")

TABLES = {
    "EXP32": (np.float32, exp_remainder, -HALF_LN2, HALF_LN2, 4),
    "EXP64": (np.float64, exp_remainder, -HALF_LN2, HALF_LN2, 10),
    "LOG32": (np.float32, log_remainder, mpf(-1) / 3, mpf(1) / 3, 8),
    "LOG64": (np.float64, atanh_quotient, mpf(10) ** -12, ATANH_END, 6),
    "ERFCX32": (np.float32, erfcx_shape(mpf(2)), -1, 1, 11),
    "ERFCX64": (np.float64, erfcx_shape(mpf(3)), -1, 1, 24),
}


def coefficients(name: str) -> list:
    """The rounded coefficients of one table, constant term first."""
    kind, remainder, low, high, degree = TABLES[name]
    return [kind(float(c)) for c in interpolate(remainder, low, high, degree)]


def fit_error(name: str, points: int = 400) -> float:
    """Largest relative error of the rounded polynomial, evaluated in high precision."""
    _, remainder, low, high, _ = TABLES[name]
    rounded = [mpf(float(c)) for c in coefficients(name)]
    worst = mpf(0)
    for i in range(points):
        x = low + (high - low) * (mpf(2 * i + 1) / (2 * points))
        value = mpf(0)
        for c in reversed(rounded):
            value = value * x + c
        worst = max(worst, abs(value / remainder(x) - 1))
    return float(worst)


if __name__ == "__main__":
    for table in TABLES:
        sys.stdout.write(f"{table}: relative error {fit_error(table):.1e}\n")
        sys.stdout.writelines(f"    {c!s},\n" for c in coefficients(table))
