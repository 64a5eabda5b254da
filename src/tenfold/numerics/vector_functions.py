"""Exponential, logistic function and normal distribution on `Vector`s, by the polynomials of the scalar functions.

They differ from those in the far tails: arguments of the exponential are held within its normal range, so that what would be
subnormal or infinite is about 1e-38 or 1e38 in float32. Nothing else is given up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from tenfold.numerics import elementary, normal_tails
from tenfold.numerics.lanes import Vector


class Tables(NamedTuple):
    """Numbers of one precision."""

    exp: Sequence[Any]
    rounder: float  # adding it rounds to an integer, which lies in the low bits
    ln2: tuple[float, float]
    range: float  # of the exponential's argument, both ways
    mantissa_bits: int
    erfcx: Sequence[Any]
    center: float
    far: float


TABLES = {
    types.float32: Tables(
        elementary.EXP32,
        float(elementary.ROUND32),
        (float(elementary.LN2_HIGH32), float(elementary.LN2_LOW32)),
        87.0,
        23,
        normal_tails.ERFCX32,
        float(normal_tails.CENTER32),
        1e6,
    ),
    types.float64: Tables(
        elementary.EXP64,
        elementary.ROUND64,
        (elementary.LN2_HIGH64, elementary.LN2_LOW64),
        708.0,
        52,
        normal_tails.ERFCX64,
        normal_tails.CENTER64,
        1e12,
    ),
}


def polynomial(x: Vector, coefficients: Sequence[Any]) -> Vector:
    """Constant term first; in two chains, so that it waits half as long for itself."""
    lanes, square = x.lanes, x * x
    chains = []
    for first in range(2):
        *rest, last = coefficients[first::2]
        result = lanes.constant(float(last))
        for term in reversed(rest):
            result = result.fma(square, float(term))
        chains.append(result)
    return chains[1].fma(x, chains[0])


def exp(x: Vector) -> Vector:
    """The exponential, its argument held within the range of normal results."""
    lanes, tables = x.lanes, TABLES[x.lanes.precision]
    builder = lanes.builder
    x = lanes.where(x > tables.range, tables.range, x)
    x = lanes.where(x < -tables.range, -tables.range, x)
    rounded = x.fma(math.log2(math.e), tables.rounder)
    n = rounded - tables.rounder
    r = n.fma(-tables.ln2[1], n.fma(-tables.ln2[0], x))
    mantissa = (r * r).fma(polynomial(r, tables.exp), r) + 1.0
    words = ir.VectorType(ir.IntType(32 if lanes.precision == types.float32 else 64), lanes.width)
    shift = ir.Constant(words, [tables.mantissa_bits] * lanes.width)
    exponent = builder.shl(builder.bitcast(rounded.value, words), shift)  # the bits of the rounder leave at the top
    return Vector(lanes, builder.bitcast(builder.add(builder.bitcast(mantissa.value, words), exponent), lanes.vector))


def silu(z: Vector) -> Vector:
    """The sigmoid linear unit z / (1 + exp(-z))."""
    return z / (exp(-z) + 1.0)


def silu_slope(z: Vector) -> Vector:
    """The derivative s + z s (1 - s) of ``silu``, with s the logistic function."""
    e = exp(-z)
    s = z.lanes.constant(1.0) / (e + 1.0)
    return s.fma(z * (e * s), s)


def normal(z: Vector) -> tuple[Vector, Vector]:
    """Distribution function and density of the normal distribution, no tail formed by a subtraction from 1."""
    lanes, tables = z.lanes, TABLES[z.lanes.precision]
    density = exp(z * z * -0.5) * (1 / math.sqrt(2 * math.pi))
    size = lanes.where(z < 0.0, -z, z)
    size = lanes.where(size > tables.far, tables.far, size)
    x = size * math.sqrt(0.5)
    above, half = x + tables.center, x + 0.5  # one division for t = (x - k) / (x + k) and for 1 / (x + 1/2)
    reciprocal = lanes.constant(1.0) / (above * half)
    scaled = polynomial((x - tables.center) * half * reciprocal, tables.erfcx) * (above * reciprocal)
    tail = density * scaled * math.sqrt(math.pi / 2)
    return lanes.where(z < 0.0, tail, 1.0 - tail), density


def gelu(z: Vector) -> Vector:
    """The Gaussian error linear unit z Phi(z)."""
    return z * normal(z)[0]


def gelu_slope(z: Vector) -> Vector:
    """The derivative Phi(z) + z phi(z) of ``gelu``."""
    below, density = normal(z)
    return density.fma(z, below)
