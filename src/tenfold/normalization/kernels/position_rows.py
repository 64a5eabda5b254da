"""Normalization with channels last: the numbers of all channels at one position make up a row.

Where channels are few, several positions make up a row, so that it is long enough: number e of a row belongs to channel
e % C. Arrays are flat; rows are ``width`` numbers, a multiple of C. Parameters of columns are in the precision of arithmetic,
sums in float64, each summed over a chunk of rows that does not depend on threads.
"""

import numpy as np
from numba.types import float64

from tenfold.normalization.kernels.programs import number_at, settle
from tenfold.normalization.kernels.row_programs import FOUR, ONE, add_sums, combine, forward, gradient
from tenfold.numerics import kernel

TOGETHER = 4  # rows of one program, the length of FOUR


@kernel
def repeat(values, columns):
    """One number a channel, for each column."""
    channels = values.size
    for start in range(0, columns.size, channels):
        for c in range(channels):
            columns[start + c] = values[c]


@kernel
def gather(columns, values):
    """Add the sums of columns to those of their channels."""
    channels = values.size
    for start in range(0, columns.size, channels):
        for c in range(channels):
            values[c] += columns[start + c]


@kernel
def moments(x, centers, first, second, start, stop):
    """Add the sums of ``x - centers`` and of its squares over rows start..stop, column by column."""
    width = centers.size
    row = start
    while row + TOGETHER <= stop:
        add_sums(x, row * width, width, width, centers, first, second, FOUR)
        row += TOGETHER
    while row < stop:
        add_sums(x, row * width, width, width, centers, first, second, ONE)
        row += 1


@kernel
def normalize(x, added, y, mean, scale, shift, activation, large, start, stop):
    """``y = act((x - mean) scale + shift + added)`` in rows start..stop, the last first: it was read last for the sums."""
    width = mean.size
    row = stop
    while row - TOGETHER >= start:
        row -= TOGETHER
        forward(x, added, y, row * width, width, width, mean, scale, shift, activation, large, FOUR)
    while row > start:
        row -= 1
        forward(x, added, y, row * width, width, width, mean, scale, shift, activation, large, ONE)


@kernel
def gradients(x, added, dy, dz, mean, scale, shift, rstd, first, second, activation, start, stop):
    """Add the sums of ``dz`` and of ``dz (x - mean) rstd`` over rows start..stop, column by column."""
    width = mean.size
    row = start
    while row + TOGETHER <= stop:
        at = row * width
        gradient(x, added, dy, dz, at, width, width, mean, scale, shift, rstd, first, second, activation, FOUR)
        row += TOGETHER
    while row < stop:
        at = row * width
        gradient(x, added, dy, dz, at, width, width, mean, scale, shift, rstd, first, second, activation, ONE)
        row += 1


@kernel
def combined(x, added, dy, dz, dx, mean, scale, shift, rstd, slope, offset, activation, large, start, stop):
    """``dx = dz scale + (x - mean) rstd slope + offset`` in rows start..stop, the last first as in `normalize`."""
    width = mean.size
    row = stop
    while row - TOGETHER >= start:
        row -= TOGETHER
        at = row * width
        combine(
            x, added, dy, dz, dx, at, width, width, mean, scale, shift, rstd, slope, offset, activation, large, FOUR
        )
    while row > start:
        row -= 1
        at = row * width
        combine(x, added, dy, dz, dx, at, width, width, mean, scale, shift, rstd, slope, offset, activation, large, ONE)


@kernel
def centers(x, channels):
    """The numbers of the first position, in float64."""
    values = np.empty(channels)
    for c in range(channels):
        values[c] = number_at(x, c)
    return values


@kernel
def batch_moments(x, width, channels, first, second, start, stop):
    """The sums of ``x - center`` and of its squares over rows start..stop, (C,) each; centers are the first position's."""
    columns, one, two = np.empty(width), np.zeros(width), np.zeros(width)
    repeat(centers(x, channels), columns)
    moments(x, columns, one, two, start, stop)
    first[:] = 0.0
    second[:] = 0.0
    gather(one, first)
    gather(two, second)


@kernel
def statistics(x, parts, count, mean, variance):
    """Means and variances of ``count`` numbers a channel from the sums of all chunks (K, 2, C), added in their order."""
    chunks, _, channels = parts.shape
    first, second = np.zeros(channels), np.zeros(channels)
    for k in range(chunks):
        for c in range(channels):
            first[c] += parts[k, 0, c]
            second[c] += parts[k, 1, c]
    for c in range(channels):
        offset = first[c] / count
        mean[c] = number_at(x, c) + offset
        variance[c] = max(second[c] / count - offset * offset, 0.0)


@kernel
def set_columns(columns, gamma, beta, mean, variance, eps):
    """Mean, scale, shift and reciprocal deviation of each column: the first rows of a buffer (4 or more, width)."""
    kind, channels = columns.dtype.type, mean.size
    for c in range(channels):
        r = 1.0 / np.sqrt(variance[c] + eps)
        high = kind(mean[c])
        columns[0, c] = high
        columns[1, c] = kind(r * gamma[c])
        columns[2, c] = kind(beta[c] - (mean[c] - float64(high)) * (r * gamma[c]))
        columns[3, c] = kind(r)
    for k in range(4):
        repeat(columns[k, :channels], columns[k])


@kernel
def set_slopes(columns, gamma, mean, variance, eps, by_dz, by_dzx, count):
    """Slope and offset of each column, rows 4 and 5 of a buffer; of constant statistics, if there are no numbers to count."""
    kind, channels = columns.dtype.type, mean.size
    for c in range(channels):
        slope, offset = 0.0, 0.0
        if count:
            r = 1.0 / np.sqrt(variance[c] + eps)
            slope = -r * gamma[c] * by_dzx[c] / count
            offset = -r * gamma[c] * by_dz[c] / count - (mean[c] - float64(kind(mean[c]))) * r * slope
        columns[4, c] = kind(slope)
        columns[5, c] = kind(offset)
    for k in range(4, 6):
        repeat(columns[k, :channels], columns[k])


@kernel
def batch_forward(x, added, y, columns, activation, large, start, stop):
    """Rows start..stop of Batch Normalization, by columns."""
    normalize(x, added, y, columns[0], columns[1], columns[2], activation, large, start, stop)
    settle(large)


@kernel
def batch_gradients(x, added, dy, dz, columns, first, second, activation, start, stop):
    """The sums of ``dz`` and of ``dz (x - m) rstd`` over rows start..stop, (C,) each."""
    one, two = np.zeros(columns.shape[1]), np.zeros(columns.shape[1])
    gradients(x, added, dy, dz, columns[0], columns[1], columns[2], columns[3], one, two, activation, start, stop)
    first[:] = 0.0
    second[:] = 0.0
    gather(one, first)
    gather(two, second)


@kernel
def total_gradients(parts, mean, variance, eps, one, first, second):
    """The sums over all chunks (K, 2, C) in their order, the second with mu for m; ``one`` is of the kind of columns."""
    kind = one.dtype.type
    chunks, _, channels = parts.shape
    first[:] = 0.0
    second[:] = 0.0
    for k in range(chunks):
        for c in range(channels):
            first[c] += parts[k, 0, c]
            second[c] += parts[k, 1, c]
    for c in range(channels):
        second[c] -= (mean[c] - float64(kind(mean[c]))) / np.sqrt(variance[c] + eps) * first[c]


@kernel
def batch_backward(x, added, dy, dz, dx, columns, activation, large, start, stop):
    """Rows start..stop of dx, by columns."""
    combined(
        x, added, dy, dz, dx, columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], activation, large,
        start, stop,
    )  # fmt: skip
    settle(large)


@kernel
def group_forward(x, added, y, gamma, beta, mean, rstd, columns, rows, groups, eps, activation, large, start, stop):
    """Samples start..stop of Group Normalization, ``rows`` rows each; mean, rstd (N G,) are written.

    ``columns`` is a buffer (4, width) in the precision of arithmetic, and tells the width.
    """
    channels, width = gamma.size, columns.shape[1]
    per_group = channels // groups
    count = rows * width // groups
    centers, first, second = np.empty(channels), np.empty(channels), np.empty(channels)
    wide, one, two = np.empty(width), np.empty(width), np.empty(width)
    high, scale, shift = columns[0], columns[1], columns[2]
    kind = columns.dtype.type
    for n in range(start, stop):
        for g in range(groups):
            centers[g * per_group : (g + 1) * per_group] = number_at(x, n * rows * width + g * per_group)
        repeat(centers, wide)
        one[:] = 0.0
        two[:] = 0.0
        moments(x, wide, one, two, n * rows, (n + 1) * rows)
        first[:] = 0.0
        second[:] = 0.0
        gather(one, first)
        gather(two, second)
        for g in range(groups):
            a, b = 0.0, 0.0
            for c in range(g * per_group, (g + 1) * per_group):
                a += first[c]
                b += second[c]
            offset = a / count
            mu = centers[g * per_group] + offset
            r = 1.0 / np.sqrt(max(b / count - offset * offset, 0.0) + eps)
            mean[n * groups + g] = mu
            rstd[n * groups + g] = r
            rest = mu - float64(kind(mu))
            for c in range(g * per_group, (g + 1) * per_group):
                high[c] = kind(mu)
                scale[c] = kind(r * gamma[c])
                shift[c] = kind(beta[c] - rest * (r * gamma[c]))
        for k in range(3):
            repeat(columns[k, :channels], columns[k])
        normalize(x, added, y, high, scale, shift, activation, large, n * rows, (n + 1) * rows)
    settle(large)


@kernel
def group_backward(
    x, added, dy, dz, dx, gamma, beta, mean, rstd, by_dz, by_dzx, columns, rows, groups, activation, large, start, stop
):
    """Samples start..stop: writes dx, and the sums by sample and channel that give dbeta and dgamma, both (N C,).

    ``columns`` is a buffer (6, width).
    """
    channels, width = gamma.size, columns.shape[1]
    per_group = channels // groups
    count = rows * width // groups
    one, two = np.empty(width), np.empty(width)
    high, scale, shift, reciprocal, slope, offset = (
        columns[0], columns[1], columns[2], columns[3], columns[4], columns[5],
    )  # fmt: skip
    kind = columns.dtype.type
    for n in range(start, stop):
        for c in range(channels):
            mu, r = mean[n * groups + c // per_group], rstd[n * groups + c // per_group]
            high[c] = kind(mu)
            scale[c] = kind(r * gamma[c])
            shift[c] = kind(beta[c] - (mu - float64(kind(mu))) * (r * gamma[c]))
            reciprocal[c] = kind(r)
        for k in range(4):
            repeat(columns[k, :channels], columns[k])
        one[:] = 0.0
        two[:] = 0.0
        first, second = n * rows, (n + 1) * rows
        gradients(x, added, dy, dz, high, scale, shift, reciprocal, one, two, activation, first, second)
        total, product = by_dz[n * channels : (n + 1) * channels], by_dzx[n * channels : (n + 1) * channels]
        total[:] = 0.0
        product[:] = 0.0
        gather(one, total)
        gather(two, product)
        for g in range(groups):
            mu, r = mean[n * groups + g], rstd[n * groups + g]
            rest = (mu - float64(kind(mu))) * r
            a, b = 0.0, 0.0
            for c in range(g * per_group, (g + 1) * per_group):
                product[c] -= rest * total[c]
                a += gamma[c] * total[c]
                b += gamma[c] * product[c]
            q = -r * b / count
            for c in range(g * per_group, (g + 1) * per_group):
                slope[c] = kind(q)
                offset[c] = kind(-r * a / count - rest * q)
        for k in range(4, 6):
            repeat(columns[k, :channels], columns[k])
        combined(x, added, dy, dz, dx, high, scale, shift, reciprocal, slope, offset, activation, large, first, second)
    settle(large)
