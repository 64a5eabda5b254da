"""Branch-free exp, log, tanh and their kin, which LLVM turns into vector instructions inside array loops.

Each name ends in its precision: ``exp32`` takes and returns float32 (an argument of another type is converted),
``exp64`` float64. Argument reduction is by powers of two, x = n log 2 + r for exp and x = m 2^n for log; the
polynomials on the small remaining interval are interpolations at Chebyshev nodes in 50-digit arithmetic
(``tests/numerics/derive_coefficients.py`` prints them).

Errors against 50-digit arithmetic are at most 2 units in the last place (3 for tanh; tested), subnormal
results included. Infinities give the limits, NaN gives NaN, ``log`` of 0 is -inf and of a negative number NaN; nothing
warns. They can be called from Python too, for a try: each call returns one number.

>>> round(float(exp64(1.0)), 12), round(float(tanh64(0.5)), 12)
(2.718281828459, 0.46211715726)
"""

from __future__ import annotations

import numpy as np

from tenfold.numerics.bits import exponent_and_mantissa, fused, magnitude, polynomial, times_power_of_two, with_sign
from tenfold.numerics.compiled import inlined

# (exp(r) - 1 - r) / r^2 on |r| <= log(2) / 2
EXP32 = tuple(np.float32(c) for c in (0.5, 0.16666576, 0.041666556, 0.008363179, 0.0013926184))
EXP64 = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326136,
    0.0013888888888883748,
    0.00019841269874820627,
    2.4801587325547743e-05,
    2.7557255400206422e-06,
    2.75572736431103e-07,
    2.5105217004720745e-08,
    2.0914686968086876e-09,
)
# (log(1 + f) - f + f^2 / 2) / f^3 on |f| <= 1/3
LOG32 = tuple(
    np.float32(c)
    for c in (
        0.33333334,
        -0.24999945,
        0.19999948,
        -0.16673316,
        0.14291868,
        -0.12288722,
        0.10915655,
        -0.124222,
        0.11330617,
    )
)
# (2 atanh(s) - 2 s) / s^3 as a function of s^2, for 1 + f = (1 + s) / (1 - s) between sqrt(1/2) and sqrt(2)
LOG64 = (
    0.666666666666667,
    0.39999999999899444,
    0.2857142862600327,
    0.22222211130259875,
    0.18182889455675105,
    0.1533171061820642,
    0.14616585424934123,
)

ROUND32, ROUND64 = np.float32(1.5 * 2.0**23), 1.5 * 2.0**52  # adding and subtracting it rounds to an integer
LOG2E32, LOG2E64 = np.float32(1 / np.log(2)), 1 / np.log(2)
# log 2 in two parts: the high one has so few bits that n times it is exact
LN2_HIGH32, LN2_LOW32 = np.float32(0.693359375), np.float32(-2.1219444005469057e-4)
LN2_HIGH64, LN2_LOW64 = 0.693147180369123816490, 1.90821492927058770002e-10
EXP_LOW32, EXP_HIGH32 = np.float32(-105.0), np.float32(90.0)  # beyond: 0 and inf
EXP_LOW64, EXP_HIGH64 = -747.0, 711.0
ZERO32, HALF32, ONE32, TWO32 = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
INFINITY32, NAN32 = np.float32(np.inf), np.float32(np.nan)
NORMAL32, NORMAL64 = np.float32(2.0**-126), 2.0**-1022  # the smallest normal numbers
LIFT32, LIFT64 = np.float32(2.0**23), 2.0**52  # takes subnormal numbers to normal ones
LIFT_BITS32, LIFT_BITS64 = np.float32(23), 52.0
TWO_THIRDS32, SQRT_HALF64 = np.float32(2 / 3), np.sqrt(0.5)
EXPM1_BIG32, EXPM1_BIG64 = np.float32(40.0), 40.0  # from here exp(x) - 1 rounds to exp(x)
TANH_ONE32, TANH_ONE64 = np.float32(10.0), 20.0  # from here tanh rounds to 1


@inlined
def exp32(x):
    """exp(x) in float32."""
    x = np.float32(x)
    x = EXP_HIGH32 if x > EXP_HIGH32 else x
    x = EXP_LOW32 if x < EXP_LOW32 else x
    rounded = fused(x, LOG2E32, ROUND32)
    n = rounded - ROUND32
    r = fused(-n, LN2_LOW32, fused(-n, LN2_HIGH32, x))
    return times_power_of_two(fused(r * r, polynomial(r, EXP32), r) + ONE32, rounded)


@inlined
def exp64(x):
    """exp(x) in float64."""
    x = np.float64(x)
    x = EXP_HIGH64 if x > EXP_HIGH64 else x
    x = EXP_LOW64 if x < EXP_LOW64 else x
    rounded = fused(x, LOG2E64, ROUND64)
    n = rounded - ROUND64
    r = fused(-n, LN2_LOW64, fused(-n, LN2_HIGH64, x))
    return times_power_of_two(fused(r * r, polynomial(r, EXP64), r) + 1.0, rounded)


@inlined
def expm1_32(x):
    """exp(x) - 1 in float32, with full relative precision near 0."""
    x = np.float32(x)
    y = EXP_HIGH32 if x > EXP_HIGH32 else x
    y = EXP_LOW32 if y < EXP_LOW32 else y
    rounded = fused(y, LOG2E32, ROUND32)
    n = rounded - ROUND32
    r = fused(-n, LN2_LOW32, fused(-n, LN2_HIGH32, y))
    p = fused(r * r, polynomial(r, EXP32), r)
    big = y > EXPM1_BIG32
    head = times_power_of_two(p + ONE32 if big else p, rounded)
    rest = times_power_of_two(ONE32, rounded) - ONE32
    return with_sign(head + (ZERO32 if big else rest), x)


@inlined
def expm1_64(x):
    """exp(x) - 1 in float64, with full relative precision near 0."""
    x = np.float64(x)
    y = EXP_HIGH64 if x > EXP_HIGH64 else x
    y = EXP_LOW64 if y < EXP_LOW64 else y
    rounded = fused(y, LOG2E64, ROUND64)
    n = rounded - ROUND64
    r = fused(-n, LN2_LOW64, fused(-n, LN2_HIGH64, y))
    p = fused(r * r, polynomial(r, EXP64), r)
    big = y > EXPM1_BIG64
    head = times_power_of_two(p + 1.0 if big else p, rounded)
    rest = times_power_of_two(1.0, rounded) - 1.0
    return with_sign(head + (0.0 if big else rest), x)


@inlined
def log32(x):
    """Natural logarithm in float32."""
    x = np.float32(x)
    subnormal = x < NORMAL32
    lifted = x * LIFT32
    n, m = exponent_and_mantissa(lifted if subnormal else x, TWO_THIRDS32)
    n = n - (LIFT_BITS32 if subnormal else ZERO32)
    f = m - ONE32
    f2 = f * f
    y = fused(f2 * f, polynomial(f, LOG32), n * LN2_LOW32) - HALF32 * f2
    result = fused(n, LN2_HIGH32, f + y)
    result = INFINITY32 if x == INFINITY32 else result
    edge = -INFINITY32 if x == ZERO32 else NAN32
    return result if x > ZERO32 else edge


@inlined
def log64(x):
    """Natural logarithm in float64."""
    x = np.float64(x)
    subnormal = x < NORMAL64
    lifted = x * LIFT64
    n, m = exponent_and_mantissa(lifted if subnormal else x, SQRT_HALF64)
    n = n - (LIFT_BITS64 if subnormal else 0.0)
    f = m - 1.0
    s = f / (2.0 + f)
    s2 = s * s
    half_square = 0.5 * f * f
    # 2 s = f - f^2 / 2 + s f^2 / 2, whose leading part f is exact
    y = fused(s, fused(s2, polynomial(s2, LOG64), half_square), n * LN2_LOW64) - half_square
    result = fused(n, LN2_HIGH64, f + y)
    result = np.inf if x == np.inf else result
    edge = -np.inf if x == 0.0 else np.nan
    return result if x > 0.0 else edge


@inlined
def log1p_32(x):
    """log(1 + x) in float32, with full relative precision near 0."""
    x = np.float32(x)
    u = ONE32 + x
    lost = (x - (u - ONE32)) / u  # what the rounding of u took away
    return log32(u) + (lost if magnitude(lost) < ONE32 else ZERO32)


@inlined
def log1p_64(x):
    """log(1 + x) in float64, with full relative precision near 0."""
    x = np.float64(x)
    u = 1.0 + x
    lost = (x - (u - 1.0)) / u
    return log64(u) + (lost if magnitude(lost) < 1.0 else 0.0)


@inlined
def tanh32(x):
    """tanh(x) in float32: e / (e + 2) with e = exp(2 |x|) - 1, and the sign of x."""
    x = np.float32(x)
    a = magnitude(x)
    a = TANH_ONE32 if a > TANH_ONE32 else a
    e = expm1_32(a + a)
    return with_sign(e / (e + TWO32), x)


@inlined
def tanh64(x):
    """tanh(x) in float64: e / (e + 2) with e = exp(2 |x|) - 1, and the sign of x."""
    x = np.float64(x)
    a = magnitude(x)
    a = TANH_ONE64 if a > TANH_ONE64 else a
    e = expm1_64(a + a)
    return with_sign(e / (e + 2.0), x)


@inlined
def sigmoid32(x):
    """1 / (1 + exp(-x)) in float32, relatively precise in the lower tail too."""
    x = np.float32(x)
    e = exp32(-magnitude(x))
    return (e if x < ZERO32 else ONE32) / (ONE32 + e)


@inlined
def sigmoid64(x):
    """1 / (1 + exp(-x)) in float64, relatively precise in the lower tail too."""
    x = np.float64(x)
    e = exp64(-magnitude(x))
    return (e if x < 0.0 else 1.0) / (1.0 + e)


@inlined
def softplus32(x):
    """log(1 + exp(x)) in float32, relatively precise in the lower tail too."""
    x = np.float32(x)
    return (ZERO32 if x < ZERO32 else x) + log1p_32(exp32(-magnitude(x)))


@inlined
def softplus64(x):
    """log(1 + exp(x)) in float64, relatively precise in the lower tail too."""
    x = np.float64(x)
    return (0.0 if x < 0.0 else x) + log1p_64(exp64(-magnitude(x)))
