"""From tensors to the compiled kernels and back: which loop serves a layout, and who does which part.

Parts of the work are sets or rows that do not depend on one another, or sums over fixed chunks of rows that are added in
their order; the bits of a result are the same for every number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tenfold.normalization.kernels import channel_runs, position_rows
from tenfold.normalization.kernels.programs import GELU as GELU_PROGRAM
from tenfold.normalization.kernels.programs import IDENTITY as IDENTITY_PROGRAM
from tenfold.normalization.kernels.programs import RELU as RELU_PROGRAM
from tenfold.normalization.kernels.programs import SILU as SILU_PROGRAM
from tenfold.normalization.layouts import (
    Array,
    Layout,
    around_caches,
    divided,
    layout_of,
    like,
    memory,
    parameter,
    precision,
)
from tenfold.runtime import parallel_rows

IDENTITY, RELU, SILU, GELU = range(4)
CODES = {None: IDENTITY, "relu": RELU, "silu": SILU, "gelu": GELU}
PROGRAMS = (IDENTITY_PROGRAM, RELU_PROGRAM, SILU_PROGRAM, GELU_PROGRAM)
RUN = 1024  # numbers that are worked on one after the other in a sample, if the runs of its channels are shorter
ROW = 1024  # numbers of a row that several positions make up
CHUNK = 1 << 18  # numbers of which sums over rows are formed by one thread


def _row(layout: Layout, positions: int) -> int:
    """Numbers of a row: those of so many positions, a divisor of all, that it has up to ROW of them."""
    most = max(1, ROW // layout.channels)
    return layout.channels * next(k for k in range(min(most, positions), 0, -1) if positions % k == 0)


def _formed(x: Tensor, layout: Layout, add: Tensor | None, activation: int) -> tuple[Tensor | None, bool]:
    """Where gradients of z go: to a tensor, if they are a result; else whether a buffer for them saves time.

    Both of ReLU are cheap to form again; in rows, a buffer would not stay in the caches.
    """
    if add is not None and activation != IDENTITY:
        return torch.empty_like(x), False
    return None, activation in (SILU, GELU) and not layout.by_rows


# --- groups ---------------------------------------------------------------------------------------------------------


def group_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, add: Tensor | None, groups: int, eps: float, activation: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, and mean and reciprocal deviation of each sample's groups, (N, G) in float64."""
    layout = layout_of(x)
    assert layout is not None
    by_rows, samples, channels, positions = layout
    y = torch.empty_like(x)
    mean, rstd = np.empty((2, samples, groups))
    m, r = mean.reshape(-1), rstd.reshape(-1)
    gamma, beta = parameter(weight, 1.0, channels), parameter(bias, 0.0, channels)
    a, other, out, program = memory(x), None if add is None else memory(like(add, x)), memory(y), PROGRAMS[activation]
    if by_rows:
        width = _row(layout, positions)
        rows, large = positions * channels // width, around_caches(y, width)

        def work(start: int, stop: int) -> None:
            columns = np.empty((3, width), precision(x))
            position_rows.group_forward(
                a, other, out, gamma, beta, m, r, columns, rows, groups, eps, program, large, start, stop
            )

        divided(work, samples, x.numel())
    else:
        large = around_caches(y, positions)
        divided(
            lambda start, stop: channel_runs.group_forward(
                a, other, out, gamma, beta, m, r, positions, groups, eps, program, large, start, stop
            ),
            samples * groups,
            x.numel(),
        )
    return y, torch.from_numpy(mean), torch.from_numpy(rstd)


def group_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    groups: int,
    activation: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, the gradient of z (dy itself without activation), dgamma and dbeta, the last two (C,) in float64."""
    layout = layout_of(x)
    assert layout is not None
    by_rows, samples, channels, positions = layout
    dx = torch.empty_like(x)
    dz, local = _formed(x, layout, add, activation)
    dy = like(dy, x)
    m, r = mean.reshape(-1).numpy(), rstd.reshape(-1).numpy()
    gamma, beta = parameter(weight, 1.0, channels), parameter(bias, 0.0, channels)
    a, d, out, program = memory(x), memory(dy), memory(dx), PROGRAMS[activation]
    other, formed = (
        None if tensor is None else memory(tensor) for tensor in (None if add is None else like(add, x), dz)
    )
    by_dz, by_dzx = np.empty((2, samples * channels))
    if by_rows:
        width = _row(layout, positions)
        rows, large = positions * channels // width, around_caches(dx, width)

        def by_row(start: int, stop: int) -> None:
            columns = np.empty((6, width), precision(x))
            position_rows.group_backward(
                a, other, d, formed, out, gamma, beta, m, r, by_dz, by_dzx, columns, rows, groups, program, large,
                start, stop,
            )  # fmt: skip

        divided(by_row, samples, x.numel())
    else:
        large = around_caches(dx, positions)

        def by_run(start: int, stop: int) -> None:
            z = np.empty(channels // groups * positions, precision(x)) if local else formed
            channel_runs.group_backward(
                a, other, d, z, out, gamma, beta, m, r, by_dz, by_dzx, positions, groups, local, program, large,
                start, stop,
            )  # fmt: skip

        divided(by_run, samples * groups, x.numel())
    dbeta, dgamma = (torch.from_numpy(sums.reshape(samples, channels).sum(0)) for sums in (by_dz, by_dzx))
    return dx, dy if dz is None else dz, dgamma, dbeta


# --- batches --------------------------------------------------------------------------------------------------------


def batch_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    eps: float,
    activation: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, and mean and biased variance of each channel, (C,) in float64: the given ones, or else the batch's."""
    layout = layout_of(x)
    assert layout is not None
    by_rows, samples, channels, positions = layout
    measured = mean is None or variance is None
    y = torch.empty_like(x)
    m = np.empty(channels) if mean is None else mean.detach().double().numpy().copy()
    v = np.empty(channels) if variance is None else variance.detach().double().numpy().copy()
    gamma, beta = parameter(weight, 1.0, channels), parameter(bias, 0.0, channels)
    a, other, out, program = memory(x), None if add is None else memory(like(add, x)), memory(y), PROGRAMS[activation]
    if by_rows:
        width = _row(layout, samples * positions)
        rows, large = x.numel() // width, around_caches(y, width)
        if measured:
            _row_moments(a, rows, width, m, v)
        columns = _columns(m, v, gamma, beta, eps, width, precision(x))[:3]
        divided(
            lambda start, stop: position_rows.batch_forward(a, other, out, *columns, program, large, start, stop),
            rows,
            x.numel(),
        )
    else:
        large, block = around_caches(y, positions), max(1, RUN // positions)
        divided(
            lambda start, stop: channel_runs.batch_forward(
                a, other, out, gamma, beta, m, v, samples, positions, block, eps, program, measured, large, start, stop
            ),
            channels,
            x.numel(),
        )
    return y, torch.from_numpy(m), torch.from_numpy(v)


def batch_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    activation: int,
    measured: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, the gradient of z (dy itself without activation), dgamma and dbeta, the last two (C,) in float64."""
    layout = layout_of(x)
    assert layout is not None
    by_rows, samples, channels, positions = layout
    dx = torch.empty_like(x)
    dz, local = _formed(x, layout, add, activation)
    dy = like(dy, x)
    m, v = mean.detach().double().numpy(), variance.detach().double().numpy()
    gamma, beta = parameter(weight, 1.0, channels), parameter(bias, 0.0, channels)
    a, d, out, program = memory(x), memory(dy), memory(dx), PROGRAMS[activation]
    other, formed = (
        None if tensor is None else memory(tensor) for tensor in (None if add is None else like(add, x), dz)
    )
    if by_rows:
        width = _row(layout, samples * positions)
        rows, large, kind = x.numel() // width, around_caches(dx, width), precision(x)
        columns = _columns(m, v, gamma, beta, eps, width, kind)

        def chunk(one: Array, two: Array, start: int, stop: int) -> None:
            position_rows.batch_gradients(a, other, d, formed, *columns, one, two, program, start, stop)

        first, second = _in_chunks(chunk, rows, x.numel(), channels)
        rstd = 1.0 / np.sqrt(v + eps)
        rest = (m - m.astype(kind).astype(np.float64)) * rstd
        second -= rest * first
        count = samples * positions if measured else np.inf
        slope, offset = -rstd * gamma * second / count, -rstd * gamma * first / count
        columns += tuple(_repeated(values, width, kind) for values in (slope, offset - rest * slope))
        divided(
            lambda start, stop: position_rows.batch_backward(
                a, other, d, formed, out, *columns, program, large, start, stop
            ),
            rows,
            x.numel(),
        )
    else:
        first, second = np.empty((2, channels))
        large, block = around_caches(dx, positions), max(1, RUN // positions)

        def by_run(start: int, stop: int) -> None:
            z = np.empty(samples * block * positions, precision(x)) if local else formed
            channel_runs.batch_backward(
                a, other, d, z, out, gamma, beta, m, v, first, second, samples, positions, block, eps, measured, local,
                program, large, start, stop,
            )  # fmt: skip

        divided(by_run, channels, x.numel())
    return dx, dy if dz is None else dz, torch.from_numpy(second), torch.from_numpy(first)


def _repeated(values: Array, width: int, kind: type) -> Array:
    return np.tile(values.astype(kind), width // values.size)


def _columns(
    mean: Array, variance: Array, gamma: Array, beta: Array, eps: float, width: int, kind: type
) -> tuple[Array, ...]:
    """Mean, scale, shift and reciprocal deviation of each column, as the programs want them."""
    rstd = 1.0 / np.sqrt(variance + eps)
    shift = beta - (mean - mean.astype(kind).astype(np.float64)) * rstd * gamma
    return tuple(_repeated(values, width, kind) for values in (mean, rstd * gamma, shift, rstd))


def _row_moments(x: Array, rows: int, width: int, mean: Array, variance: Array) -> None:
    channels = mean.size

    def chunk(one: Array, two: Array, start: int, stop: int) -> None:
        position_rows.batch_moments(x, width, channels, one, two, start, stop)

    first, second = _in_chunks(chunk, rows, x.size, channels)
    count = x.size // channels
    offset = first / count
    mean[:] = position_rows.centers(x, channels) + offset
    variance[:] = np.maximum(second / count - offset * offset, 0.0)


def _in_chunks(
    work: Callable[[Array, Array, int, int], None], rows: int, numbers: int, channels: int
) -> tuple[Array, Array]:
    """Two sums by channel over all rows: chunks by the shape alone, added in their order."""

    def chunk(start: int, stop: int) -> Array:
        sums = np.empty((2, channels))
        work(sums[0], sums[1], start, stop)
        return sums

    if numbers <= CHUNK:
        first, second = chunk(0, rows)
        return first, second
    parts = parallel_rows(chunk, rows, block_cost=max(1.0, CHUNK * rows / numbers), uses_blas=False)
    first, second = sum(parts[1:], parts[0])
    return first, second
