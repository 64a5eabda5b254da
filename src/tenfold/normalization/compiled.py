"""From tensors to the compiled kernels and back: which layout an input has, which loop serves it, and who does which part.

Parts of the work are sets or rows that do not depend on one another, or sums over fixed chunks of rows that are added in
their order; the bits of a result are the same for every number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tenfold.normalization.kernels import rows, runs, short_runs
from tenfold.normalization.kernels.elementwise import GELU, IDENTITY, RELU, SILU
from tenfold.runtime import parallel_rows, thread_count

CODES = {None: IDENTITY, "relu": RELU, "silu": SILU, "gelu": GELU}
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
SHORT = 256  # positions; below, a channel's run is too short for a loop of its own
TILE = 1024  # numbers of a row that several positions make up
CHUNK = 1 << 18  # numbers of which the sums are formed by one thread
ALONE = 1 << 16  # numbers up to which a second thread costs more than it brings

Array = np.ndarray[Any, np.dtype[Any]]


class Layout(NamedTuple):
    """How a tensor lies in memory: ``by_rows`` if the numbers of one position of all channels are contiguous."""

    by_rows: bool
    samples: int
    channels: int
    positions: int


def layout_of(x: Tensor) -> Layout | None:
    """The layout that the kernels take, or None."""
    positions = math.prod(x.shape[2:])
    if x.is_contiguous():
        return Layout(positions == 1, x.shape[0], x.shape[1], positions)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()]):
        return Layout(True, x.shape[0], x.shape[1], positions)
    return None


def like(values: Tensor, x: Tensor) -> Tensor:
    """Values in the layout of x; a copy unless they have it."""
    if values.stride() == x.stride() and values.dtype == x.dtype:
        return values
    return torch.empty_like(x).copy_(values)


def served(x: Tensor, add: Tensor | None) -> bool:
    """Whether the kernels can do it: on the CPU, a floating type they know, a layout they know, some numbers."""
    return (
        x.device.type == "cpu"
        and x.dtype in DTYPES
        and x.numel() > 0
        and layout_of(x) is not None
        and (add is None or add.dtype == x.dtype)
    )


def _numbers(tensor: Tensor) -> Array:
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _view(tensor: Tensor, layout: Layout, *shape: int) -> Array:
    """The tensor's memory in its own order, in another shape."""
    tensor = tensor.detach()
    if layout.by_rows and tensor.dim() > 2:
        tensor = tensor.movedim(1, -1)
    return _numbers(tensor.reshape(shape))


@cache
def _nothing(dtype: torch.dtype, axes: int) -> Array:
    return _numbers(torch.empty((1,) * (axes - 1) + (0,), dtype=dtype))


def _width(x: Tensor) -> Any:
    return np.float64 if x.dtype == torch.float64 else np.float32


def _parameters(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Array, Array]:
    channels = x.shape[1]
    gamma = np.ones(channels) if weight is None else weight.detach().double().numpy()
    beta = np.zeros(channels) if bias is None else bias.detach().double().numpy()
    return gamma, beta


def _divided(work: Callable[[int, int], None], parts: int, numbers: int) -> None:
    """Do all parts, in several threads where it pays."""
    if numbers <= ALONE or thread_count() == 1:
        work(0, parts)
    else:
        parallel_rows(work, parts, block_cost=max(1.0, ALONE * parts / numbers), uses_blas=False)


def _tiled(rows_in_all: int, channels: int) -> int:
    """Positions that make up one row: a divisor of their number, so that a row has up to TILE numbers."""
    most = max(1, TILE // channels)
    return next(k for k in range(most, 0, -1) if rows_in_all % k == 0)


# --- groups ---------------------------------------------------------------------------------------------------------


def group_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, add: Tensor | None, groups: int, eps: float, activation: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, and mean and reciprocal deviation of each sample's groups, (N, G) in float64."""
    layout = layout_of(x)
    assert layout is not None
    y = torch.empty_like(x)
    mean, rstd = (torch.empty(layout.samples, groups, dtype=torch.float64) for _ in range(2))
    m, r = mean.numpy(), rstd.numpy()
    gamma, beta = _parameters(x, weight, bias)
    shape = _group_shape(layout, groups)
    a, out = _view(x, layout, *shape), _view(y, layout, *shape)
    other = _nothing(x.dtype, 3) if add is None else _view(like(add, x), layout, *shape)
    kind = _width(x)
    if layout.by_rows:
        _divided(
            lambda i, j: rows.group_forward(
                a, other, out, gamma, beta, m, r, groups, 1, eps, activation, np.empty(1, kind), i, j
            ),
            layout.samples,
            x.numel(),
        )
    elif layout.positions < SHORT:
        g, b = (_spread_by_group(values, layout, groups, kind) for values in (gamma, beta))
        _divided(
            lambda i, j: short_runs.group_forward(
                a, other, out, g, b, m, r, np.empty(runs.SLICE, kind), eps, activation, i, j
            ),
            groups,
            x.numel(),
        )
    else:
        m, r = m.reshape(-1), r.reshape(-1)
        _divided(
            lambda i, j: runs.group_forward(
                a, other, out, gamma, beta, m, r, np.empty(runs.SLICE, kind), groups, eps, activation, i, j
            ),
            layout.samples * groups,
            x.numel(),
        )
    return y, mean, rstd


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
    dy = like(dy, x)
    dx = torch.empty_like(x)
    dz = dx if add is None else torch.empty_like(x)
    gamma, beta = _parameters(x, weight, bias)
    m, r = mean.numpy(), rstd.numpy()
    kind = _width(x)
    shape = _group_shape(layout, groups)
    a, d, e, out = (_view(tensor, layout, *shape) for tensor in (x, dy, dz, dx))
    other = _nothing(x.dtype, 3) if add is None else _view(like(add, x), layout, *shape)
    if not layout.by_rows and layout.positions < SHORT:
        g, b = (_spread_by_group(values, layout, groups, kind) for values in (gamma, beta))
        first, second = np.zeros(g.shape), np.zeros(g.shape)
        _divided(
            lambda i, j: short_runs.group_backward(
                a, other, d, e, out, g, b, m, r, first, second, np.empty(runs.SLICE, kind), activation, i, j
            ),
            groups,
            x.numel(),
        )
        dbeta, dgamma = (sums.reshape(layout.channels, -1).sum(1) for sums in (first, second))
        return dx, dz, torch.from_numpy(dgamma), torch.from_numpy(dbeta)
    by_sample = [np.empty((layout.samples, layout.channels)) for _ in range(2)]
    if layout.by_rows:
        _divided(
            lambda i, j: rows.group_backward(
                a, other, d, e, out, gamma, beta, m, r, *by_sample, groups, 1, activation, np.empty(1, kind), i, j
            ),
            layout.samples,
            x.numel(),
        )
    else:
        m, r = m.reshape(-1), r.reshape(-1)
        _divided(
            lambda i, j: runs.group_backward(
                a, other, d, e, out, gamma, beta, m, r, *by_sample, np.empty(runs.SLICE, kind), groups, activation, i, j
            ),
            layout.samples * groups,
            x.numel(),
        )
    dbeta, dgamma = (torch.from_numpy(sums.sum(0)) for sums in by_sample)
    return dx, dz, dgamma, dbeta


def _group_shape(layout: Layout, groups: int) -> tuple[int, int, int]:
    samples, channels, positions = layout[1:]
    if layout.by_rows:
        tile = _tiled(positions, channels)
        return samples, positions // tile, tile * channels
    if positions < SHORT:
        return samples, groups, channels // groups * positions
    return samples, channels, positions


def _spread_by_group(values: Array, layout: Layout, groups: int, kind: Any) -> Array:
    return np.repeat(values.astype(kind), layout.positions).reshape(groups, -1)


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
    measured = mean is None or variance is None
    y = torch.empty_like(x)
    m = np.empty(layout.channels) if mean is None else mean.detach().double().numpy().copy()
    v = np.empty(layout.channels) if variance is None else variance.detach().double().numpy().copy()
    gamma, beta = _parameters(x, weight, bias)
    kind = _width(x)
    shape, size = _batch_shape(layout)
    a, out = _view(x, layout, *shape), _view(y, layout, *shape)
    other = _nothing(x.dtype, len(shape)) if add is None else _view(like(add, x), layout, *shape)
    if len(shape) == 3:
        _divided(
            lambda i, j: runs.batch_forward(
                a, other, out, gamma, beta, m, v, np.empty(runs.SLICE, kind), eps, activation, measured, i, j
            ),
            layout.channels,
            x.numel(),
        )
    else:
        if measured:
            _row_moments(a, layout, size, m, v)
        high, scale, shift = _columns(m, v, gamma, beta, eps, kind)
        _divided(
            lambda i, j: rows.forward(a, other, out, high, scale, shift, size, activation, i, j), len(a), x.numel()
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
    dy = like(dy, x)
    dx = torch.empty_like(x)
    dz = dx if add is None else torch.empty_like(x)
    m, v = mean.numpy(), variance.numpy()
    gamma, beta = _parameters(x, weight, bias)
    kind = _width(x)
    shape, size = _batch_shape(layout)
    a, d, e, out = (_view(tensor, layout, *shape) for tensor in (x, dy, dz, dx))
    other = _nothing(x.dtype, len(shape)) if add is None else _view(like(add, x), layout, *shape)
    if len(shape) == 3:
        first, second = np.empty(layout.channels), np.empty(layout.channels)
        _divided(
            lambda i, j: runs.batch_backward(
                a, other, d, e, out, gamma, beta, m, v, first, second, np.empty(runs.SLICE, kind), eps, activation,
                measured, i, j,
            ),
            layout.channels,
            x.numel(),
        )  # fmt: skip
        return dx, dz, torch.from_numpy(second), torch.from_numpy(first)
    high, scale, shift = _columns(m, v, gamma, beta, eps, kind)
    first, second = _in_chunks(
        lambda one, two, i, j: rows.gradient(a, other, d, e, high, scale, shift, size, one, two, activation, i, j),
        len(a),
        x.numel(),
        layout.channels,
    )
    low = m - high.astype(np.float64)
    rstd = 1.0 / np.sqrt(v + eps)
    second = (second - low * first) * rstd
    count = x.numel() // layout.channels if measured else math.inf
    by_input = -rstd * rstd * gamma * second / count
    constant = (-rstd * gamma * first / count - by_input * low).astype(kind)
    source = d if activation == IDENTITY else e
    _divided(
        lambda i, j: rows.combine(a, source, out, high, scale, by_input.astype(kind), constant, size, i, j),
        len(a),
        x.numel(),
    )
    return dx, dz, torch.from_numpy(second), torch.from_numpy(first)


def _batch_shape(layout: Layout) -> tuple[tuple[int, ...], int]:
    """The shape that the kernels see, and how many numbers of a channel follow one another in a row."""
    samples, channels, positions = layout[1:]
    if layout.by_rows:
        tile = _tiled(samples * positions, channels)
        return (samples * positions // tile, tile * channels), 1
    if positions < SHORT:
        return (samples, channels * positions), positions
    return (samples, channels, positions), positions


def _columns(mean: Array, variance: Array, gamma: Array, beta: Array, eps: float, kind: Any) -> tuple[Array, ...]:
    high = mean.astype(kind)
    scale = gamma / np.sqrt(variance + eps)
    shift = beta - (mean - high.astype(np.float64)) * scale
    return high, scale.astype(kind), shift.astype(kind)


def _row_moments(x: Array, layout: Layout, size: int, mean: Array, variance: Array) -> None:
    first_row = x[0, : layout.channels * size : size]
    if first_row.dtype == np.uint16:
        first_row = (first_row.astype(np.uint32) << 16).view(np.float32)
    centers = first_row.astype(np.float64)
    count = layout.samples * layout.positions
    first, second = _in_chunks(
        lambda one, two, i, j: rows.moments(x, centers, size, one, two, i, j), len(x), x.size, layout.channels
    )
    offset = first / count
    mean[:] = centers + offset
    variance[:] = np.maximum(second / count - offset * offset, 0.0)


def _in_chunks(
    work: Callable[[Array, Array, int, int], None], count: int, numbers: int, channels: int
) -> tuple[Array, Array]:
    """Two sums by channel over all rows: chunks by the shape alone, added in their order."""

    def chunk(i: int, j: int) -> tuple[Array, Array]:
        one, two = np.zeros(channels), np.zeros(channels)
        work(one, two, i, j)
        return one, two

    parts = parallel_rows(chunk, count, block_cost=max(1.0, CHUNK * count / numbers), uses_blas=False)
    return sum((one for one, _ in parts), np.zeros(channels)), sum((two for _, two in parts), np.zeros(channels))
