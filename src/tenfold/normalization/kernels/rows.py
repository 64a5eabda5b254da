"""Normalization by columns: rows of numbers of which each belongs to a channel, as with channels last.

Number e of a row belongs to channel (e // size) % channels: with channels last the size is 1, and several positions may make
up one row, so that rows are not too short; where positions are contiguous but few, a row is a sample. Sums are kept for each
number of a block of columns, in the first-level cache, and added up by channel at the end.
"""

import numpy as np
from numba.types import float64

from tenfold.normalization.kernels.elementwise import (
    IDENTITY,
    activate,
    add_gradient_sums,
    add_sums,
    add_to,
    combine_each,
    derive,
    normalize_each,
    widened,
)
from tenfold.numerics import kernel

BLOCK = 1024  # columns that are worked on together


@kernel
def block_width(width, size):
    """Columns of a block: whole channels."""
    return min(width, max(1, BLOCK // size) * size)


@kernel
def spread(values, out, at, to, size):
    """Each channel's number for the columns at..to."""
    channels = values.size
    c = at // size % channels
    e = at
    while e < to:
        value = values[c]
        for k in range(e, e + size):
            out[k - at] = value
        e += size
        c = c + 1 if c + 1 < channels else 0


@kernel
def gather(sums, out, at, to, size):
    """Add the sums of the columns at..to to their channels'."""
    channels = out.size
    c = at // size % channels
    e = at
    while e < to:
        total = 0.0
        for k in range(e, e + size):
            total += sums[k - at]
        out[c] += total
        e += size
        c = c + 1 if c + 1 < channels else 0


@kernel
def moments(x, centers, size, first, second, start, stop):
    """Add the sums of ``x - center`` and of their squares over rows start..stop to (C,) each; x (R, W)."""
    width = x.shape[1]
    wide = block_width(width, size)
    spread_centers, a, b = np.empty(wide), np.empty(wide), np.empty(wide)
    for at in range(0, width, wide):
        to = min(at + wide, width)
        spread(centers, spread_centers, at, to, size)
        a[:] = 0.0
        b[:] = 0.0
        for r in range(start, stop):
            add_sums(x[r, at:to], spread_centers, a, b)
        gather(a, first, at, to, size)
        gather(b, second, at, to, size)


@kernel
def forward(x, added, y, mean, scale, shift, size, activation, start, stop):
    """``y = act((x - mean) scale + shift + added)`` in rows start..stop; mean, scale, shift (C,)."""
    width = x.shape[1]
    wide = block_width(width, size)
    m, s, t, z = (
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
    )
    for at in range(0, width, wide):
        to = min(at + wide, width)
        spread(mean, m, at, to, size)
        spread(scale, s, at, to, size)
        spread(shift, t, at, to, size)
        part = z[: to - at]
        for r in range(start, stop):
            if activation == IDENTITY and added.size == 0:
                normalize_each(x[r, at:to], y[r, at:to], m, s, t)
            else:
                normalize_each(x[r, at:to], part, m, s, t)
                if added.size:
                    add_to(part, added[r, at:to])
                activate(part, y[r, at:to], activation)


@kernel
def gradient(x, added, dy, dz, mean, scale, shift, size, first, second, activation, start, stop):
    """Rows start..stop: writes ``dz = dy act'(z)`` and adds its sums and those of ``dz (x - mean)`` to (C,) each."""
    width = x.shape[1]
    wide = block_width(width, size)
    m, s, t, z = (
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
    )
    a, b = np.empty(wide), np.empty(wide)
    for at in range(0, width, wide):
        to = min(at + wide, width)
        spread(mean, m, at, to, size)
        spread(scale, s, at, to, size)
        spread(shift, t, at, to, size)
        a[:] = 0.0
        b[:] = 0.0
        part = z[: to - at]
        for r in range(start, stop):
            if activation == IDENTITY:
                add_gradient_sums(x[r, at:to], dy[r, at:to], m, a, b)
            else:
                normalize_each(x[r, at:to], part, m, s, t)
                if added.size:
                    add_to(part, added[r, at:to])
                derive(part, dy[r, at:to], dz[r, at:to], activation)
                add_gradient_sums(x[r, at:to], dz[r, at:to], m, a, b)
        gather(a, first, at, to, size)
        gather(b, second, at, to, size)


@kernel
def combine(x, dz, dx, mean, by_gradient, by_input, constant, size, start, stop):
    """``dx = dz by_gradient + (x - mean) by_input + constant`` in rows start..stop; four (C,) of numbers."""
    width = x.shape[1]
    wide = block_width(width, size)
    m, p, q, t = (
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
        np.empty(wide, mean.dtype),
    )
    for at in range(0, width, wide):
        to = min(at + wide, width)
        spread(mean, m, at, to, size)
        spread(by_gradient, p, at, to, size)
        spread(by_input, q, at, to, size)
        spread(constant, t, at, to, size)
        for r in range(start, stop):
            combine_each(x[r, at:to], dz[r, at:to], dx[r, at:to], m, p, q, t)


@kernel
def group_forward(x, added, y, gamma, beta, mean, rstd, groups, size, eps, activation, kind, start, stop):
    """Samples start..stop of Group Normalization; x, y (N, R, W), gamma, beta (C,); mean, rstd (N, G) are written.

    ``kind`` is an array of one number in the precision of arithmetic.
    """
    channels = gamma.size
    per_group = channels // groups
    count = x.shape[1] * x.shape[2] // groups
    centers, first, second = np.empty(channels), np.empty(channels), np.empty(channels)
    high, scale, shift = np.empty(channels, kind.dtype), np.empty(channels, kind.dtype), np.empty(channels, kind.dtype)
    for n in range(start, stop):
        for g in range(groups):
            centers[g * per_group : (g + 1) * per_group] = float64(widened(x[n, 0, g * per_group * size]))
        first[:] = 0.0
        second[:] = 0.0
        moments(x[n], centers, size, first, second, 0, x.shape[1])
        for g in range(groups):
            one, two = 0.0, 0.0
            for c in range(g * per_group, (g + 1) * per_group):
                one += first[c]
                two += second[c]
            offset = one / count
            mu = centers[g * per_group] + offset
            r = 1.0 / np.sqrt(max(two / count - offset * offset, 0.0) + eps)
            mean[n, g] = mu
            rstd[n, g] = r
            for c in range(g * per_group, (g + 1) * per_group):
                high[c] = mu
                scale[c] = r * gamma[c]
                shift[c] = beta[c] - (mu - float64(high[c])) * (r * gamma[c])
        forward(x[n], added[n] if added.size else added[0], y[n], high, scale, shift, size, activation, 0, x.shape[1])


@kernel
def group_backward(
    x, added, dy, dz, dx, gamma, beta, mean, rstd, sums_dz, sums_dzx, groups, size, activation, kind, start, stop
):
    """Samples start..stop: writes dx, and the sums by sample and channel that give dbeta and dgamma, both (N, C)."""
    channels = gamma.size
    per_group = channels // groups
    rows = x.shape[1]
    count = rows * x.shape[2] // groups
    high, scale, shift = np.empty(channels, kind.dtype), np.empty(channels, kind.dtype), np.empty(channels, kind.dtype)
    by_input, constant = np.empty(channels, kind.dtype), np.empty(channels, kind.dtype)
    for n in range(start, stop):
        for c in range(channels):
            mu, r = mean[n, c // per_group], rstd[n, c // per_group]
            high[c] = mu
            scale[c] = r * gamma[c]
            shift[c] = beta[c] - (mu - float64(high[c])) * (r * gamma[c])
        first, second = sums_dz[n], sums_dzx[n]
        first[:] = 0.0
        second[:] = 0.0
        other = added[n] if added.size else added[0]
        gradient(x[n], other, dy[n], dz[n], high, scale, shift, size, first, second, activation, 0, rows)
        for g in range(groups):
            mu, r = mean[n, g], rstd[n, g]
            low = mu - float64(high[g * per_group])
            one, two = 0.0, 0.0
            for c in range(g * per_group, (g + 1) * per_group):
                second[c] = (second[c] - low * first[c]) * r
                one += gamma[c] * first[c]
                two += gamma[c] * second[c]
            slope = -r * r * two / count
            for c in range(g * per_group, (g + 1) * per_group):
                by_input[c] = slope
                constant[c] = -r * one / count - slope * low
        combine(x[n], dy[n] if activation == IDENTITY else dz[n], dx[n], high, scale, by_input, constant, size, 0, rows)
