"""Compiled gradients of a diagonal Gaussian mixture's samples on the CPU; the torch twin is `pathwise.torch_gradients`.

Formulas as in the module ``quantile``. ``LANES`` rows run side by side in the innermost dimension of every buffer, so that
the vectoriser works across rows whatever K and D are: where there are many batch elements a lane is a batch element;
where there are few but many samples, a lane is a sample of one batch element and the parameters are broadcast. The buffers
stay in the first cache levels. Batch elements are divided among threads, so no sum depends on their number.
"""

import math

import numpy as np
from numba.extending import overload
from numba.types import float32

from tenfold.numerics import exp32, exp64, kernel, log32, log64, mills32, mills64
from tenfold.runtime import parallel_rows

LANES = 16
ROOT_TWO_PI = math.sqrt(2 * math.pi)
BLOCK = 1 << 16  # (sample, component, dimension) triples that one thread takes at a time, about a millisecond


def exp(x):
    """Exponential in the width of its argument."""


def log(x):
    """Logarithm in the width of its argument."""


def mills(x):
    """Mills' ratio in the width of its argument."""


@overload(exp)
def _exp(x):
    return (lambda x: exp32(x)) if x == float32 else (lambda x: exp64(x))


@overload(log)
def _log(x):
    return (lambda x: log32(x)) if x == float32 else (lambda x: log64(x))


@overload(mills)
def _mills(x):
    return (lambda x: mills32(x)) if x == float32 else (lambda x: mills64(x))


@kernel
def _transform(g, x, log_pi, loc, scale, inverse, r, rho, z, work, grad_logits, grad_loc, grad_scale, quantile):
    """Move one sample of each lane: overwrites ``grad_logits`` and adds to ``grad_loc`` and ``grad_scale``.

    Shapes, with L lanes: g, x (D, L); log_pi, grad_logits (K, L); loc, scale, inverse, r, rho, z, grad_loc, grad_scale
    (D, K, L); work (2 K + 6, L). Without ``quantile`` means and deviations follow the responsibilities.
    """
    dims, components = loc.shape[0], loc.shape[1]
    zero, one, half = x.dtype.type(0), x.dtype.type(1), x.dtype.type(0.5)
    root_two_pi = x.dtype.type(ROOT_TWO_PI)
    lowest = x.dtype.type(-np.inf)
    log_w, joint = work[:components], work[components : 2 * components]
    top, total, log_f = work[2 * components], work[2 * components + 1], work[2 * components + 2]
    lower_sum, upper_sum, b = work[2 * components + 3], work[2 * components + 4], work[2 * components + 5]
    for k in range(components):
        for lane in range(LANES):
            log_w[k, lane] = log_pi[k, lane]
    for d in range(dims):
        for lane in range(LANES):
            top[lane] = lowest
            total[lane] = zero
            lower_sum[lane] = zero
            upper_sum[lane] = zero
        # log w + log N (less the constant), and from it the posterior that includes this dimension
        for k in range(components):
            for lane in range(LANES):
                value = (x[d, lane] - loc[d, k, lane]) * inverse[d, k, lane]
                z[d, k, lane] = value
                joint[k, lane] = log_w[k, lane] - half * value * value + log(inverse[d, k, lane])
        for k in range(components):
            for lane in range(LANES):
                top[lane] = max(top[lane], joint[k, lane])
        for k in range(components):
            for lane in range(LANES):
                r[d, k, lane] = exp(joint[k, lane] - top[lane])
        for k in range(components):
            for lane in range(LANES):
                total[lane] += r[d, k, lane]
        for lane in range(LANES):
            log_f[lane] = top[lane] + log(total[lane])
            total[lane] = one / total[lane]
        # w Phi(z) / f in rho, w Phi(-z) / f in joint: neither side is formed by a subtraction that cancels
        for k in range(components):
            for lane in range(LANES):
                posterior = r[d, k, lane] * total[lane]
                r[d, k, lane] = posterior
                tail = posterior * scale[d, k, lane] * mills(abs(z[d, k, lane]))
                whole = exp(log_w[k, lane] - log_f[lane]) * root_two_pi
                below = z[d, k, lane] < zero
                log_w[k, lane] = joint[k, lane] - log_f[lane]
                rho[d, k, lane] = tail if below else whole - tail
                joint[k, lane] = whole - tail if below else tail
        for k in range(components):
            for lane in range(LANES):
                lower_sum[lane] += rho[d, k, lane]
        for k in range(components):
            for lane in range(LANES):
                upper_sum[lane] += joint[k, lane]
        for k in range(components):
            for lane in range(LANES):
                weight = exp(log_pi[k, lane]) if d == 0 else r[d - 1, k, lane]
                lower = rho[d, k, lane] - weight * lower_sum[lane]
                upper = weight * upper_sum[lane] - joint[k, lane]
                rho[d, k, lane] = lower if lower_sum[lane] < upper_sum[lane] else upper
    # Back substitution; grad_logits holds -A_k
    for k in range(components):
        for lane in range(LANES):
            grad_logits[k, lane] = zero
    for d in range(dims - 1, -1, -1):
        for lane in range(LANES):
            b[lane] = g[d, lane]
        for k in range(components):
            for lane in range(LANES):
                b[lane] -= z[d, k, lane] * inverse[d, k, lane] * grad_logits[k, lane]
        if quantile:
            for k in range(components):
                for lane in range(LANES):
                    push = inverse[d, k, lane] * grad_logits[k, lane]
                    y = b[lane] * r[d, k, lane] + z[d, k, lane] * push
                    grad_loc[d, k, lane] += y
                    grad_scale[d, k, lane] += y * z[d, k, lane] - push
        for k in range(components):
            for lane in range(LANES):
                grad_logits[k, lane] -= b[lane] * rho[d, k, lane]
    if not quantile:
        for d in range(dims):
            for k in range(components):
                for lane in range(LANES):
                    y = r[dims - 1, k, lane] * g[d, lane]
                    grad_loc[d, k, lane] += y
                    grad_scale[d, k, lane] += y * z[d, k, lane]


@kernel
def _recursive_rows(
    start, stop, g, x, log_pi, loc, scale, quantile, lanes_are_samples, grad_logits, grad_loc, grad_scale
):
    """Batch elements ``start`` to ``stop`` of the quantile transform; shapes as `diagonal_gradients`."""
    samples, dims = x.shape[0], x.shape[2]
    components = loc.shape[1]
    cube = (dims, components, LANES)
    one, zero = x.dtype.type(1), x.dtype.type(0)
    locs, scales, inverses = np.empty(cube, x.dtype), np.empty(cube, x.dtype), np.empty(cube, x.dtype)
    r, rho, z = np.empty(cube, x.dtype), np.empty(cube, x.dtype), np.empty(cube, x.dtype)
    sum_loc, sum_scale = np.empty(cube, x.dtype), np.empty(cube, x.dtype)
    log_pis, lane_logits = np.empty((components, LANES), x.dtype), np.empty((components, LANES), x.dtype)
    gs, xs = np.empty((dims, LANES), x.dtype), np.empty((dims, LANES), x.dtype)
    work = np.empty((2 * components + 6, LANES), x.dtype)
    outer = 1 if lanes_are_samples else LANES
    for first in range(start, stop, outer):
        for lane in range(LANES):  # lanes beyond the end repeat the last row; their results are not stored
            row = first if lanes_are_samples else min(first + lane, stop - 1)
            for k in range(components):
                log_pis[k, lane] = log_pi[row, k]
                for d in range(dims):
                    locs[d, k, lane] = loc[row, k, d]
                    scales[d, k, lane] = scale[row, k, d]
        for d in range(dims):
            for k in range(components):
                for lane in range(LANES):
                    inverses[d, k, lane] = one / scales[d, k, lane]
                    sum_loc[d, k, lane] = zero
                    sum_scale[d, k, lane] = zero
        for s in range(0, samples, LANES if lanes_are_samples else 1):
            used = min(LANES, samples - s if lanes_are_samples else stop - first)
            for lane in range(LANES):
                at = min(lane, used - 1)
                sample, row = (s + at, first) if lanes_are_samples else (s, first + at)
                for d in range(dims):
                    gs[d, lane] = g[sample, row, d] if lane < used else zero
                    xs[d, lane] = x[sample, row, d]
            _transform(
                gs, xs, log_pis, locs, scales, inverses, r, rho, z, work, lane_logits, sum_loc, sum_scale, quantile
            )
            for lane in range(used):
                sample, row = (s + lane, first) if lanes_are_samples else (s, first + lane)
                for k in range(components):
                    grad_logits[sample, row, k] = lane_logits[k, lane]
        if lanes_are_samples:
            for k in range(components):
                for d in range(dims):
                    grad_loc[first, k, d] = sum_loc[d, k].sum()
                    grad_scale[first, k, d] = sum_scale[d, k].sum()
        else:
            for lane in range(min(LANES, stop - first)):
                for k in range(components):
                    for d in range(dims):
                        grad_loc[first + lane, k, d] = sum_loc[d, k, lane]
                        grad_scale[first + lane, k, d] = sum_scale[d, k, lane]


@kernel
def _squared(x, loc, inverse, z):
    """Fills ``z`` and returns the sum of its squares."""
    result = x.dtype.type(0)
    for d in range(x.size):
        value = (x[d] - loc[d]) * inverse[d]
        z[d] = value
        result += value * value
    return result


@kernel
def _weighted(responsibility, g, z, grad_loc, grad_scale):
    for d in range(g.size):
        y = responsibility * g[d]
        grad_loc[d] += y
        grad_scale[d] += y * z[d]


@kernel
def _responsibility_rows(start, stop, g, x, log_pi, loc, scale, grad_loc, grad_scale):
    """Batch elements ``start`` to ``stop`` of the responsibility-weighted gradients; no recursion."""
    samples, dims = x.shape[0], x.shape[2]
    components = loc.shape[1]
    one, half = x.dtype.type(1), x.dtype.type(0.5)
    inverse, z = np.empty((components, dims), x.dtype), np.empty((components, dims), x.dtype)
    prior, joint = np.empty(components, x.dtype), np.empty(components, x.dtype)
    for row in range(start, stop):
        for k in range(components):
            log_det = x.dtype.type(0)
            for d in range(dims):
                inverse[k, d] = one / scale[row, k, d]
                log_det += log(inverse[k, d])
            prior[k] = log_pi[row, k] + log_det
        grad_loc[row] = 0
        grad_scale[row] = 0
        for s in range(samples):
            for k in range(components):
                joint[k] = prior[k] - half * _squared(x[s, row], loc[row, k], inverse[k], z[k])
            top = joint.max()
            total = x.dtype.type(0)
            for k in range(components):
                joint[k] = exp(joint[k] - top)
                total += joint[k]
            for k in range(components):
                _weighted(joint[k] / total, g[s, row], z[k], grad_loc[row, k], grad_scale[row, k])


def diagonal_gradients(g, x, logits, loc, scale, responsibility, recursive, num_threads):
    """Gradients of ``sum(g x)`` in the logits of each sample, and in ``loc`` and ``scale`` summed over the samples.

    Args:
        g: Upstream gradients (S, B, D).
        x: Samples (S, B, D).
        logits: Unnormalised log weights (B, K).
        loc: Means (B, K, D).
        scale: Standard deviations (B, K, D).
        responsibility: Means and deviations follow the responsibilities, not the quantile transform.
        recursive: Compute the quantile transform (the logits need it); zeros for the logits otherwise.
        num_threads: Threads that share the batch elements.

    Returns:
        Arrays (S, B, K), (B, K, D), (B, K, D) of the dtype of ``x``.
    """
    samples, batch, dims = x.shape
    components = logits.shape[1]
    shifted = logits - logits.max(-1, keepdims=True)
    log_pi = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    grad_logits = np.zeros((samples, batch, components), x.dtype)
    grad_loc, grad_scale = np.empty_like(loc), np.empty_like(scale)

    lanes_are_samples = samples > batch  # a property of the whole call, so that threads change no sum

    def rows(start: int, stop: int) -> None:
        if recursive:
            quantile = not responsibility
            outputs = (grad_logits, grad_loc, grad_scale)
            _recursive_rows(start, stop, g, x, log_pi, loc, scale, quantile, lanes_are_samples, *outputs)
        else:
            _responsibility_rows(start, stop, g, x, log_pi, loc, scale, grad_loc, grad_scale)

    if num_threads == 1 or samples * batch * components * dims < BLOCK:
        rows(0, batch)
    else:
        block = max(LANES, BLOCK // (samples * components * dims))
        parallel_rows(rows, batch, num_threads, block_cost=float(block), uses_blas=False)
    return grad_logits, grad_loc, grad_scale
