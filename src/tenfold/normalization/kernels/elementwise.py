"""The inner loops of normalization over one contiguous slice: sums in float64, maps in the precision of arithmetic.

With mu = m + e, m the mean in that precision and e what rounding left, an element becomes

    z = (x - m) scale + shift,    scale = rstd gamma,  shift = beta - e scale,    y = act(z + added)

so that a large mean cancels exactly before anything is multiplied. Sums run in float64 around a value of the set itself: one
pass, no overflow for float32, no cancellation. Slices are short enough that z stays in the first-level cache between its
loops. bfloat16 is stored in uint16 and widened to float32.
"""

import math

import numpy as np
from numba.extending import overload
from numba.types import float32, float64, uint16

from tenfold.numerics import exp32, exp64, inlined, kernel, mills32, mills64, sigmoid64
from tenfold.numerics.bfloat16 import bfloat16_of, float32_of
from tenfold.numerics.bits import fused, polynomial, with_exponent_raised

IDENTITY, RELU, SILU, GELU = 0, 1, 2, 3
DENSITY = 1 / math.sqrt(2 * math.pi)
FAR = np.float32(86.6)  # exp(-86.6) is a normal number still
ROUND = np.float32(1.5 * 2.0**23)  # adding and subtracting it rounds to an integer
LOG2E = np.float32(math.log2(math.e))
LOG2E_REST = np.float32(math.log2(math.e) - float(LOG2E))
# 2**f on |f| <= 1/2
POWERS = tuple(
    np.float32(c) for c in (1, 0.693147182, 0.240226507, 0.0555040836, 0.0096191233, 0.00133717118, 0.000150609689)
)


def widened(value):
    """A stored number in the precision of arithmetic."""


def narrowed(value, array):
    """A number in the precision in which an array stores it."""


def sigmoid(z):
    """1 / (1 + exp(-z)) in the width of its argument."""


def normal(z):
    """Distribution function and density of the normal distribution in the width of the argument."""


@overload(widened)
def _widened(value):
    return (lambda value: float32_of(value)) if value == uint16 else (lambda value: value)


@overload(narrowed)
def _narrowed(value, array):
    if array.dtype == uint16:
        return lambda value, array: bfloat16_of(value)
    return lambda value, array: value


@inlined
def lean_sigmoid32(z):
    """1 / (1 + exp(-z)) in float32 in a dozen instructions; what lies below 2**-125 is given as about that.

    With a = |z| log2(e) = n + f, exp(-|z|) is 2**-f by a polynomial, with n taken from its exponent.
    """
    a = min(abs(z), FAR)
    rounded = fused(a, -LOG2E, ROUND)
    f = fused(a, -LOG2E_REST, fused(a, -LOG2E, -(rounded - ROUND)))
    e = with_exponent_raised(polynomial(f, POWERS), rounded)
    return (e if z < np.float32(0) else np.float32(1)) / (np.float32(1) + e)


@overload(sigmoid)
def _sigmoid(z):
    return (lambda z: lean_sigmoid32(z)) if z == float32 else (lambda z: sigmoid64(z))


@overload(normal)
def _normal(z):
    if z == float32:

        def narrow(z):
            density = np.float32(DENSITY) * exp32(np.float32(-0.5) * z * z)
            tail = density * mills32(abs(z))
            return (tail if z < np.float32(0) else np.float32(1) - tail), density

        return narrow

    def wide(z):
        density = DENSITY * exp64(-0.5 * z * z)
        tail = density * mills64(abs(z))
        return (tail if z < 0.0 else 1.0 - tail), density

    return wide


@kernel
def sums(x, center):
    """Sum and sum of squares of ``x - center`` in float64."""
    first, second = 0.0, 0.0
    for i in range(x.size):
        d = float64(widened(x[i])) - center
        first += d
        second += d * d
    return first, second


@kernel
def add_sums(x, centers, first, second):
    """Add ``x - centers`` and its squares to float64 sums, element by element."""
    for i in range(x.size):
        d = float64(widened(x[i])) - centers[i]
        first[i] += d
        second[i] += d * d


@kernel
def normalize(x, z, mean, scale, shift):
    """``z = (x - mean) scale + shift`` with one mean, scale and shift."""
    for i in range(x.size):
        z[i] = narrowed((widened(x[i]) - mean) * scale + shift, z)


@kernel
def rectify(x, y, mean, scale, shift):
    """``y = max((x - mean) scale + shift, 0)`` with one mean, scale and shift."""
    zero = mean - mean
    for i in range(x.size):
        z = (widened(x[i]) - mean) * scale + shift
        y[i] = narrowed(zero if z <= zero else z, y)


@kernel
def normalize_each(x, z, mean, scale, shift):
    """``z = (x - mean) scale + shift`` with a mean, scale and shift for each element."""
    for i in range(x.size):
        z[i] = narrowed((widened(x[i]) - mean[i]) * scale[i] + shift[i], z)


@kernel
def add_to(z, added):
    """``z += added``."""
    for i in range(z.size):
        z[i] += widened(added[i])


@kernel
def activate(z, y, activation):
    """``y = act(z)``."""
    zero = z.dtype.type(0)
    if activation == RELU:
        for i in range(z.size):
            y[i] = narrowed(zero if z[i] <= zero else z[i], y)
    elif activation == SILU:
        for i in range(z.size):
            y[i] = narrowed(z[i] * sigmoid(z[i]), y)
    elif activation == GELU:
        for i in range(z.size):
            y[i] = narrowed(z[i] * normal(z[i])[0], y)
    else:
        for i in range(z.size):
            y[i] = narrowed(z[i], y)


@kernel
def derive(z, dy, dz, activation):
    """``dz = dy act'(z)``."""
    zero, one = z.dtype.type(0), z.dtype.type(1)
    if activation == RELU:
        for i in range(z.size):
            dz[i] = narrowed(zero if z[i] <= zero else widened(dy[i]), dz)
    elif activation == SILU:
        for i in range(z.size):
            s = sigmoid(z[i])
            dz[i] = narrowed(widened(dy[i]) * s * (one + z[i] * (one - s)), dz)
    elif activation == GELU:
        for i in range(z.size):
            below, density = normal(z[i])
            dz[i] = narrowed(widened(dy[i]) * (below + z[i] * density), dz)
    else:
        for i in range(z.size):
            dz[i] = narrowed(widened(dy[i]), dz)


@kernel
def gradient_sums(x, dz, mean):
    """Sums of dz and of ``dz (x - mean)``; the slice is short, so that the precision of arithmetic is enough."""
    first, second = mean - mean, mean - mean
    for i in range(x.size):
        d = widened(dz[i])
        first += d
        second += d * (widened(x[i]) - mean)
    return float64(first), float64(second)


@kernel
def add_gradient_sums(x, dz, mean, first, second):
    """Add dz and ``dz (x - mean)`` to float64 sums, element by element."""
    for i in range(x.size):
        d = widened(dz[i])
        first[i] += float64(d)
        second[i] += float64(d * (widened(x[i]) - mean[i]))


@kernel
def combine(x, dz, dx, mean, by_gradient, by_input, constant):
    """``dx = dz by_gradient + (x - mean) by_input + constant``."""
    for i in range(x.size):
        dx[i] = narrowed(widened(dz[i]) * by_gradient + ((widened(x[i]) - mean) * by_input + constant), dx)


@kernel
def combine_each(x, dz, dx, mean, by_gradient, by_input, constant):
    """``dx = dz by_gradient + (x - mean) by_input + constant`` with four numbers for each element."""
    for i in range(x.size):
        dx[i] = narrowed(widened(dz[i]) * by_gradient[i] + ((widened(x[i]) - mean[i]) * by_input[i] + constant[i]), dx)


@kernel
def normalize_short(x, z, mean, rstd, rest, gamma, beta):
    """``z = ((x - mean) rstd + rest) gamma + beta`` with gamma and beta for each element."""
    for i in range(x.size):
        z[i] = narrowed(((widened(x[i]) - mean) * rstd + rest) * gamma[i] + beta[i], z)


@kernel
def gradient_sums_short(x, dz, mean, rstd, gamma, first, second):
    """Sums of ``gamma dz`` and ``gamma dz (x - mean)``; dz and ``dz (x - mean) rstd`` are added to float64 sums."""
    one, two = mean - mean, mean - mean
    for i in range(x.size):
        d = widened(dz[i])
        centered = widened(x[i]) - mean
        one += gamma[i] * d
        two += gamma[i] * d * centered
        first[i] += float64(d)
        second[i] += float64(d * centered * rstd)
    return float64(one), float64(two)


@kernel
def combine_short(x, dz, dx, mean, rstd, gamma, by_input, constant):
    """``dx = dz rstd gamma + (x - mean) by_input + constant`` with gamma for each element."""
    for i in range(x.size):
        dx[i] = narrowed(widened(dz[i]) * rstd * gamma[i] + ((widened(x[i]) - mean) * by_input + constant), dx)
