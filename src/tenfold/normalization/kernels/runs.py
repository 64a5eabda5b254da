"""Normalization where the positions of a channel are contiguous: a sample is C runs of S numbers.

A set is what is normalized together: cg consecutive runs of one sample (Group), or the runs of one channel in all samples
(Batch). Each is read twice, the second time from the second-level cache. Sets are independent, whatever thread works on them.
Means and reciprocal deviations are float64; ``added`` is an empty array where nothing is added.
"""

import numpy as np
from numba.types import float64

from tenfold.normalization.kernels.elementwise import (
    IDENTITY,
    RELU,
    activate,
    add_to,
    combine,
    derive,
    gradient_sums,
    normalize,
    rectify,
    sums,
    widened,
)
from tenfold.numerics import kernel

SLICE = 2048  # numbers: x, z and y of a slice fit the first-level cache


@kernel
def forward_run(x, added, y, z, mean, rstd, gamma, beta, activation):
    """One run: ``y = act((x - mean) rstd gamma + beta + added)``; z is a buffer of SLICE numbers."""
    kind = z.dtype.type
    high = kind(mean)
    scale = rstd * gamma
    shift = kind(beta - (mean - float64(high)) * scale)
    if activation == IDENTITY and added.size == 0:
        normalize(x, y, high, kind(scale), shift)
    elif activation == RELU and added.size == 0:
        rectify(x, y, high, kind(scale), shift)
    else:
        for start in range(0, x.size, SLICE):
            stop = min(start + SLICE, x.size)
            part = z[: stop - start]
            normalize(x[start:stop], part, high, kind(scale), shift)
            if added.size:
                add_to(part, added[start:stop])
            activate(part, y[start:stop], activation)


@kernel
def gradient_run(x, added, dy, dz, z, mean, rstd, gamma, beta, activation):
    """One run: writes ``dz = dy act'(z)`` and returns its sum and the sum of ``dz (x - mean)``."""
    kind = z.dtype.type
    high = kind(mean)
    rest = mean - float64(high)
    scale = rstd * gamma
    shift = kind(beta - rest * scale)
    first, second = 0.0, 0.0
    for start in range(0, x.size, SLICE):
        stop = min(start + SLICE, x.size)
        if activation == IDENTITY:
            one, two = gradient_sums(x[start:stop], dy[start:stop], high)
        else:
            part = z[: stop - start]
            normalize(x[start:stop], part, high, kind(scale), shift)
            if added.size:
                add_to(part, added[start:stop])
            derive(part, dy[start:stop], dz[start:stop], activation)
            one, two = gradient_sums(x[start:stop], dz[start:stop], high)
        first += one
        second += two
    return first, second - rest * first


@kernel
def group_forward(x, added, y, gamma, beta, mean, rstd, z, groups, eps, activation, start, stop):
    """Sets start..stop of Group Normalization. x, y (N, C, S); gamma, beta (C,); mean, rstd (N G,) are written."""
    per_group, size = x.shape[1] // groups, x.shape[2]
    for index in range(start, stop):
        n, first_channel = index // groups, index % groups * per_group
        center = float64(widened(x[n, first_channel, 0]))
        first, second = 0.0, 0.0
        for c in range(first_channel, first_channel + per_group):
            one, two = sums(x[n, c], center)
            first += one
            second += two
        count = per_group * size
        offset = first / count
        mean[index] = center + offset
        rstd[index] = 1.0 / np.sqrt(max(second / count - offset * offset, 0.0) + eps)
        for c in range(first_channel, first_channel + per_group):
            other = added[n, c] if added.size else added[0, 0]
            forward_run(x[n, c], other, y[n, c], z, mean[index], rstd[index], gamma[c], beta[c], activation)


@kernel
def group_backward(
    x, added, dy, dz, dx, gamma, beta, mean, rstd, sums_dz, sums_dzx, z, groups, activation, start, stop
):
    """Sets start..stop: writes dx, and for each sample and channel the sums that give dbeta and dgamma, both (N, C)."""
    per_group, size = x.shape[1] // groups, x.shape[2]
    kind = z.dtype.type
    for index in range(start, stop):
        n, first_channel = index // groups, index % groups * per_group
        mu, r = mean[index], rstd[index]
        first, second = 0.0, 0.0
        for c in range(first_channel, first_channel + per_group):
            other = added[n, c] if added.size else added[0, 0]
            one, two = gradient_run(x[n, c], other, dy[n, c], dz[n, c], z, mu, r, gamma[c], beta[c], activation)
            sums_dz[n, c] = one
            sums_dzx[n, c] = two * r
            first += gamma[c] * one
            second += gamma[c] * two
        count = per_group * size
        by_input = -r * r * r * second / count
        constant = -r * first / count - by_input * (mu - float64(kind(mu)))
        for c in range(first_channel, first_channel + per_group):
            source = dy[n, c] if activation == IDENTITY else dz[n, c]
            combine(x[n, c], source, dx[n, c], kind(mu), kind(r * gamma[c]), kind(by_input), kind(constant))


@kernel
def batch_moments(x, centers, first, second, mean, variance, start, stop):
    """Mean and biased variance of channels start..stop, (C,) each; three buffers (C,). Samples are read in their order."""
    samples, _, size = x.shape
    for c in range(start, stop):
        centers[c] = float64(widened(x[0, c, 0]))
        first[c] = 0.0
        second[c] = 0.0
    for n in range(samples):
        for c in range(start, stop):
            one, two = sums(x[n, c], centers[c])
            first[c] += one
            second[c] += two
    for c in range(start, stop):
        offset = first[c] / (samples * size)
        mean[c] = centers[c] + offset
        variance[c] = max(second[c] / (samples * size) - offset * offset, 0.0)


@kernel
def batch_forward(x, added, y, gamma, beta, mean, variance, z, eps, activation, measured, block, start, stop):
    """Channels start..stop of Batch Normalization; mean and variance (C,) are written first if ``measured``.

    A block of channels is read twice while it is in the last-level cache. The runs of one channel alone would often fall
    on the same sets of a smaller cache and drive one another out.
    """
    channels = x.shape[1]
    centers, first, second = np.empty(channels), np.empty(channels), np.empty(channels)
    for begin in range(start, stop, block):
        end = min(begin + block, stop)
        if measured:
            batch_moments(x, centers, first, second, mean, variance, begin, end)
        for n in range(x.shape[0]):
            for c in range(begin, end):
                other = added[n, c] if added.size else added[0, 0]
                rstd = 1.0 / np.sqrt(variance[c] + eps)
                forward_run(x[n, c], other, y[n, c], z, mean[c], rstd, gamma[c], beta[c], activation)


@kernel
def batch_backward(
    x,
    added,
    dy,
    dz,
    dx,
    gamma,
    beta,
    mean,
    variance,
    sums_dz,
    sums_dzx,
    z,
    eps,
    activation,
    measured,
    block,
    start,
    stop,
):
    """Channels start..stop: writes dx and the sums that give dbeta and dgamma, (C,) each."""
    samples, _, size = x.shape
    kind = z.dtype.type
    count = float64(samples * size)
    for begin in range(start, stop, block):
        end = min(begin + block, stop)
        sums_dz[begin:end] = 0.0
        sums_dzx[begin:end] = 0.0
        for n in range(samples):
            for c in range(begin, end):
                r = 1.0 / np.sqrt(variance[c] + eps)
                other = added[n, c] if added.size else added[0, 0]
                one, two = gradient_run(
                    x[n, c], other, dy[n, c], dz[n, c], z, mean[c], r, gamma[c], beta[c], activation
                )
                sums_dz[c] += one
                sums_dzx[c] += two * r
        for n in range(samples):
            for c in range(begin, end):
                mu = mean[c]
                r = 1.0 / np.sqrt(variance[c] + eps)
                by_input, constant = 0.0, 0.0
                if measured:
                    by_input = -r * r * gamma[c] * sums_dzx[c] / count
                    constant = -r * gamma[c] * sums_dz[c] / count - by_input * (mu - float64(kind(mu)))
                source = dy[n, c] if activation == IDENTITY else dz[n, c]
                combine(x[n, c], source, dx[n, c], kind(mu), kind(r * gamma[c]), kind(by_input), kind(constant))
