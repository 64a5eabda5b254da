"""Group Normalization where a channel has few positions: a group is one run, with gamma and beta spread over its numbers.

A loop over 49 numbers costs as much in entering as in counting. x, y, dy, dx are (N, G, M) with the M = cg S numbers of a group
contiguous; gamma and beta are (G, M), each channel's number S times. All samples of a group are done one after the other, so
that its gamma and beta stay in the first-level cache.
"""

import numpy as np
from numba.types import float64

from tenfold.normalization.kernels.elementwise import (
    IDENTITY,
    activate,
    add_to,
    combine_short,
    derive,
    gradient_sums_short,
    normalize_short,
    sums,
    widened,
)
from tenfold.normalization.kernels.runs import SLICE
from tenfold.numerics import kernel


@kernel
def group_forward(x, added, y, gamma, beta, mean, rstd, z, eps, activation, start, stop):
    """Groups start..stop; mean, rstd (N, G) are written."""
    samples, _, count = x.shape
    kind = z.dtype.type
    for g in range(start, stop):
        for n in range(samples):
            center = float64(widened(x[n, g, 0]))
            first, second = sums(x[n, g], center)
            offset = first / count
            mu = center + offset
            r = 1.0 / np.sqrt(max(second / count - offset * offset, 0.0) + eps)
            mean[n, g] = mu
            rstd[n, g] = r
            rest = kind((float64(kind(mu)) - mu) * r)
            for at in range(0, count, SLICE):
                to = min(at + SLICE, count)
                part = z[: to - at]
                normalize_short(x[n, g, at:to], part, kind(mu), kind(r), rest, gamma[g, at:to], beta[g, at:to])
                if added.size:
                    add_to(part, added[n, g, at:to])
                activate(part, y[n, g, at:to], activation)


@kernel
def group_backward(x, added, dy, dz, dx, gamma, beta, mean, rstd, first, second, z, activation, start, stop):
    """Groups start..stop: writes dx, and adds to the sums for each number of a group, both (G, M), of dbeta and dgamma."""
    samples, _, count = x.shape
    kind = z.dtype.type
    for g in range(start, stop):
        for n in range(samples):
            mu, r = mean[n, g], rstd[n, g]
            high, reciprocal = kind(mu), kind(r)
            low = mu - float64(high)
            one, two = 0.0, 0.0
            for at in range(0, count, SLICE):
                to = min(at + SLICE, count)
                source = dy[n, g, at:to]
                if activation != IDENTITY:
                    part = z[: to - at]
                    normalize_short(
                        x[n, g, at:to], part, high, reciprocal, kind(-low * r), gamma[g, at:to], beta[g, at:to]
                    )
                    if added.size:
                        add_to(part, added[n, g, at:to])
                    derive(part, source, dz[n, g, at:to], activation)
                    source = dz[n, g, at:to]
                a, b = gradient_sums_short(
                    x[n, g, at:to], source, high, reciprocal, gamma[g, at:to], first[g, at:to], second[g, at:to]
                )
                one += a
                two += b
            by_input = -r * r * r * (two - low * one) / count
            constant = kind(-r * one / count - by_input * low)
            source = dy[n, g] if activation == IDENTITY else dz[n, g]
            combine_short(x[n, g], source, dx[n, g], high, reciprocal, gamma[g], kind(by_input), constant)
