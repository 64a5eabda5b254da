"""The normal distribution function and its logarithm in both tails, as branch-free arithmetic for vectorised loops.

Everything rests on the scaled complementary error function: with t = (x - k) / (x + k), which maps [0, inf) to [-1, 1),

    erfcx(x) = exp(x^2) erfc(x) = P(t) / (x + 1/2),

where P is one polynomial (degree 11 in float32, 24 in float64; ``tests/numerics/derive_coefficients.py``). For z >= 0,

    Phi(-z) = erfcx(z / sqrt 2) exp(-z^2 / 2) / 2    and    Phi(-z) / phi(z) = sqrt(pi / 2) erfcx(z / sqrt 2),

the second being Mills' ratio, so that no tail is formed by subtraction from one. The square in exp(-z^2 / 2) carries
its rounding error along. Errors are at most 5 units in the last place (tested); infinities give
the limits, NaN gives NaN.

>>> round(float(log_ndtr64(-30.0)), 9), round(float(ndtr64(-1.0)), 12)
(-454.321243956, 0.158655253931)
"""

from __future__ import annotations

import numpy as np

from tenfold.numerics.bits import fused, magnitude, polynomial
from tenfold.numerics.compiled import inlined
from tenfold.numerics.elementary import exp32, exp64, log32, log64

CENTER32, CENTER64 = np.float32(2.0), 3.0  # k of the change of variable
ERFCX32 = tuple(
    np.float32(c)
    for c in (
        0.6384892,
        -0.04638191,
        -0.083015546,
        0.08202525,
        -0.027105998,
        -0.0040123696,
        0.0043446263,
        0.0006152516,
        -0.0006979025,
        -0.0001854642,
        8.042017e-05,
        3.4037574e-05,
    )
)
ERFCX64 = (
    0.6265040291348648,
    -0.06781055306229058,
    -0.023781147176725435,
    0.0648225793513803,
    -0.05963683170765349,
    0.03415401367198924,
    -0.011885257459322944,
    0.0012646959080331195,
    0.0009443451795780776,
    -0.00038991613605419956,
    -5.257989990750589e-05,
    6.254967617781554e-05,
    2.4747424962852974e-06,
    -1.0050283965644614e-05,
    -3.657552582079531e-07,
    1.736207301437843e-06,
    1.7841919576996102e-07,
    -3.0832480388021764e-07,
    -7.080032470132994e-08,
    5.0935003000364426e-08,
    2.090392349422791e-08,
    -6.663182406501917e-09,
    -4.250198964886308e-09,
    4.942899415569683e-10,
    4.432109508213546e-10,
)
FAR32, FAR64 = np.float32(1e12), 1e24  # t is 1 from here on; keeps inf / inf out
VANISHED32, VANISHED64 = np.float32(15.0), 39.0  # exp(-z^2 / 2) is 0 from here on
SQRT_HALF32, SQRT_HALF = np.float32(np.sqrt(0.5)), np.sqrt(0.5)
SQRT_HALF_PI32, SQRT_HALF_PI = np.float32(np.sqrt(np.pi / 2)), np.sqrt(np.pi / 2)
ZERO32, HALF32, ONE32, NAN32 = np.float32(0), np.float32(0.5), np.float32(1), np.float32(np.nan)


@inlined
def erfcx32(x):
    """exp(x^2) erfc(x) in float32 for x >= 0; NaN below 0."""
    x = np.float32(x)
    near = FAR32 if x > FAR32 else x
    t = (near - CENTER32) / (near + CENTER32)
    result = polynomial(t, ERFCX32) / (x + HALF32)
    return NAN32 if x < ZERO32 else result


@inlined
def erfcx64(x):
    """exp(x^2) erfc(x) in float64 for x >= 0; NaN below 0."""
    x = np.float64(x)
    near = FAR64 if x > FAR64 else x
    t = (near - CENTER64) / (near + CENTER64)
    result = polynomial(t, ERFCX64) / (x + 0.5)
    return np.nan if x < 0.0 else result


@inlined
def mills32(z):
    """Mills' ratio Phi(-z) / phi(z) in float32 for z >= 0; NaN below 0."""
    return SQRT_HALF_PI32 * erfcx32(np.float32(z) * SQRT_HALF32)


@inlined
def mills64(z):
    """Mills' ratio Phi(-z) / phi(z) in float64 for z >= 0; NaN below 0."""
    return SQRT_HALF_PI * erfcx64(np.float64(z) * SQRT_HALF)


@inlined
def gaussian32(z):
    """exp(-z^2 / 2) in float32, full relative precision far out."""
    z = magnitude(np.float32(z))
    z = VANISHED32 if z > VANISHED32 else z
    square = z * z
    lost = fused(z, z, -square)
    e = exp32(-HALF32 * square)
    return fused(-HALF32 * lost, e, e)


@inlined
def gaussian64(z):
    """exp(-z^2 / 2) in float64, full relative precision far out."""
    z = magnitude(np.float64(z))
    z = VANISHED64 if z > VANISHED64 else z
    square = z * z
    lost = fused(z, z, -square)
    e = exp64(-0.5 * square)
    return fused(-0.5 * lost, e, e)


@inlined
def ndtr32(x):
    """Phi(x), the normal distribution function, in float32; relatively precise down to subnormal results."""
    x = np.float32(x)
    a = magnitude(x)
    tail = HALF32 * erfcx32(a * SQRT_HALF32) * gaussian32(a)
    return ONE32 - tail if x > ZERO32 else tail


@inlined
def ndtr64(x):
    """Phi(x), the normal distribution function, in float64; relatively precise down to subnormal results."""
    x = np.float64(x)
    a = magnitude(x)
    tail = 0.5 * erfcx64(a * SQRT_HALF) * gaussian64(a)
    return 1.0 - tail if x > 0.0 else tail


@inlined
def log_ndtr32(x):
    """Logarithm of Phi(x) in float32, relatively precise in both tails: one erfcx, one exp, one log.

    Below 0 it is log(erfcx(|x| / sqrt 2) / 2) - x^2 / 2; above 0 it is log(1 - Phi(-x)), with what the rounding of
    1 - Phi(-x) took away put back.
    """
    x = np.float32(x)
    a = magnitude(x)
    scaled = HALF32 * erfcx32(a * SQRT_HALF32)
    tail = scaled * gaussian32(a)
    body = ONE32 - tail
    below = x < ZERO32
    return log32(scaled if below else body) + (-HALF32 * a * a if below else (ONE32 - body) - tail)


@inlined
def log_ndtr64(x):
    """Logarithm of Phi(x) in float64, relatively precise in both tails: one erfcx, one exp, one log.

    Below 0 it is log(erfcx(|x| / sqrt 2) / 2) - x^2 / 2; above 0 it is log(1 - Phi(-x)), with what the rounding of
    1 - Phi(-x) took away put back.
    """
    x = np.float64(x)
    a = magnitude(x)
    scaled = 0.5 * erfcx64(a * SQRT_HALF)
    tail = scaled * gaussian64(a)
    body = 1.0 - tail
    below = x < 0.0
    return log64(scaled if below else body) + (-0.5 * a * a if below else (1.0 - body) - tail)
