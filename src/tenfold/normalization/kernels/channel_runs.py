"""Normalization where the positions of a channel are contiguous: a sample is C runs of S numbers.

What is normalized together is a set: consecutive runs of one sample (Group), or the runs of one channel in all samples
(Batch). It is read twice, the second time from the second-level cache. Sets are independent, whatever thread works on them.

Arrays are flat, in the order (N, C, S). Means and reciprocal deviations are float64; ``added`` is None where nothing is added.
``dz``, the gradients of z, is an array like x where they are asked for; a buffer for one block of sets (``local``) where forming
them twice would take longer than reading them; and else None.
"""

import numpy as np

from tenfold.normalization.kernels.programs import combine, forward, gradient, number_at, settle, sums
from tenfold.numerics import kernel


@kernel
def group_forward(x, added, y, gamma, beta, mean, rstd, size, groups, eps, activation, large, start, stop):
    """Sets start..stop of Group Normalization with runs of ``size`` numbers; mean, rstd (N G,) are written."""
    per_group = gamma.size // groups
    count = per_group * size
    for index in range(start, stop):
        at = index * count
        center = number_at(x, at)
        first, second = sums(x, at, count, center)
        offset = first / count
        mu = center + offset
        r = 1.0 / np.sqrt(max(second / count - offset * offset, 0.0) + eps)
        mean[index] = mu
        rstd[index] = r
        channel = index % groups * per_group
        for c in range(channel, channel + per_group):
            forward(x, added, y, at, size, count, mu, r, gamma[c], beta[c], activation, large)
            at += size
    settle(large)


@kernel
def group_backward(
    x, added, dy, dz, dx, gamma, beta, mean, rstd, by_dz, by_dzx, size, groups, local, activation, large, start, stop
):
    """Sets start..stop: writes dx, and by sample and channel the sums that give dbeta and dgamma, both (N C,)."""
    per_group = gamma.size // groups
    count = per_group * size
    for index in range(start, stop):
        mu, r = mean[index], rstd[index]
        channel, run = index % groups * per_group, index * per_group
        first, second = 0.0, 0.0
        for k in range(per_group):
            c, at = channel + k, (run + k) * size
            here = k * size if local else at
            one, two = gradient(x, added, dy, dz, at, here, size, mu, r, gamma[c], beta[c], activation)
            by_dz[run + k] = one
            by_dzx[run + k] = two
            first += gamma[c] * one
            second += gamma[c] * two
        slope, offset = -r * second / count, -r * first / count
        for k in range(per_group):
            c, at = channel + k, (run + k) * size
            here = k * size if local else at
            combine(
                x, added, dy, dz, dx, at, here, size, count, mu, r, gamma[c], beta[c], slope, offset, activation, large
            )
    settle(large)


@kernel
def batch_moments(x, mean, variance, samples, channels, size, start, stop):
    """Mean and biased variance of channels start..stop, (C,) each: their runs side by side, sample after sample."""
    center, first, second = np.empty(stop - start), np.zeros(stop - start), np.zeros(stop - start)
    for k in range(stop - start):
        center[k] = number_at(x, (start + k) * size)
    for n in range(samples):
        for k in range(stop - start):
            one, two = sums(x, (n * channels + start + k) * size, size, center[k])
            first[k] += one
            second[k] += two
    for k in range(stop - start):
        offset = first[k] / (samples * size)
        mean[start + k] = center[k] + offset
        variance[start + k] = max(second[k] / (samples * size) - offset * offset, 0.0)


@kernel
def batch_forward(
    x, added, y, gamma, beta, mean, variance, samples, size, block, eps, activation, measured, large, start, stop
):
    """Channels start..stop of Batch Normalization; mean and variance (C,) are written first if ``measured``."""
    channels = gamma.size
    for low in range(start, stop, block):
        high = min(low + block, stop)
        if measured:
            batch_moments(x, mean, variance, samples, channels, size, low, high)
        for n in range(samples):
            for c in range(low, high):
                r = 1.0 / np.sqrt(variance[c] + eps)
                at = (n * channels + c) * size
                forward(x, added, y, at, size, block * size, mean[c], r, gamma[c], beta[c], activation, large)
    settle(large)


@kernel
def batch_backward(
    x, added, dy, dz, dx, gamma, beta, mean, variance, by_dz, by_dzx, samples, size, block, eps, measured, local, activation,
    large, start, stop,
):  # fmt: skip
    """Channels start..stop: writes dx and the sums that give dbeta and dgamma, (C,) each."""
    channels = gamma.size
    for low in range(start, stop, block):
        high = min(low + block, stop)
        by_dz[low:high] = 0.0
        by_dzx[low:high] = 0.0
        for n in range(samples):
            for c in range(low, high):
                r = 1.0 / np.sqrt(variance[c] + eps)
                at = (n * channels + c) * size
                here = (n * block + c - low) * size if local else at
                one, two = gradient(x, added, dy, dz, at, here, size, mean[c], r, gamma[c], beta[c], activation)
                by_dz[c] += one
                by_dzx[c] += two
        for n in range(samples):
            for c in range(low, high):
                r = 1.0 / np.sqrt(variance[c] + eps)
                slope, offset = 0.0, 0.0
                if measured:
                    slope = -r * gamma[c] * by_dzx[c] / (samples * size)
                    offset = -r * gamma[c] * by_dz[c] / (samples * size)
                at = (n * channels + c) * size
                here = (n * block + c - low) * size if local else at
                ahead = block * size
                combine(
                    x, added, dy, dz, dx, at, here, size, ahead, mean[c], r, gamma[c], beta[c], slope, offset,
                    activation, large,
                )  # fmt: skip
    settle(large)
