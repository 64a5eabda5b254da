"""From tensors to the compiled kernels and back: which loop serves a layout, and who does which part.

Parts of the work are sets or rows that do not depend on one another, or sums over fixed chunks of rows that are added in
their order; the bits of a result are the same for every number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tenfold.normalization.kernels import entries, programs
from tenfold.normalization.layouts import (
    KINDS,
    Layout,
    Parameters,
    address,
    around_caches,
    divided,
    is_alone,
    layout_of,
    like,
    parameters,
)

IDENTITY, RELU, SILU, GELU = range(4)
CODES = {None: IDENTITY, "relu": RELU, "silu": SILU, "gelu": GELU}
PROGRAMS = (programs.IDENTITY, programs.RELU, programs.SILU, programs.GELU)
RUN = 1024  # numbers that are worked on one after the other in a sample, if the runs of its channels are shorter
ROW = 1024  # numbers of a row that several positions make up
CHUNK = 1 << 18  # numbers of which sums over rows are formed by one thread


def _width(layout: Layout, positions: int) -> int:
    """Numbers of a row: those of so many positions, a divisor of all, that it has up to ROW of them."""
    most = max(1, ROW // layout.channels)
    return layout.channels * next(k for k in range(min(most, positions), 0, -1) if positions % k == 0)


def _chunks(rows: int, width: int, channels: int) -> tuple[int, Tensor]:
    """Rows of a chunk, and memory for the two sums by channel of each."""
    chunk = max(1, CHUNK // width)
    return chunk, torch.empty((-(-rows // chunk), 2, channels), dtype=torch.float64)


def _formed(x: Tensor, layout: Layout, add: Tensor | None, activation: int) -> tuple[Tensor | None, int | None]:
    """Where gradients of z go: to a tensor, if they are a result; else whether a buffer for them (0, not None) saves time.

    Those of ReLU are cheap to form again; of rows, a buffer would not stay in the caches.
    """
    if add is not None and activation != IDENTITY:
        return torch.empty_like(x), None
    return None, 0 if activation in (SILU, GELU) and not layout.by_rows else None


def _require(statistics: Tensor, numbers: int) -> None:
    """Refuse statistics that a kernel would read past the end of."""
    if statistics.dtype != torch.float64 or statistics.numel() != numbers or not statistics.is_contiguous():
        shape = tuple(statistics.shape)
        raise ValueError(
            f"statistics of shape {shape} and {statistics.dtype}; give {numbers} contiguous float64 numbers"
        )


def _parameter_gradients(sums: Tensor, samples: int, channels: int, given: Parameters) -> tuple[Tensor, Tensor]:
    """Dgamma and dbeta from the sums by sample and channel, in the type of the parameters the kernels were given."""
    dgamma, dbeta = torch.empty_like(given.weight), torch.empty_like(given.bias)
    entries.parameter_gradients(sums.data_ptr(), dgamma.data_ptr(), dbeta.data_ptr(), samples, channels, given.kind)
    return dgamma, dbeta


# --- groups ---------------------------------------------------------------------------------------------------------


def group_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    groups: int,
    eps: float,
    activation: int,
    layout: Layout | None = None,
) -> tuple[Tensor, Tensor]:
    """Output, and means and reciprocal deviations of each sample's groups, (2, N, G) in float64."""
    layout = layout or layout_of(x)
    assert layout is not None
    by_rows, samples, channels, positions = layout
    y = torch.empty_like(x)
    statistics = torch.empty((2, samples, groups), dtype=torch.float64)
    given = parameters(weight, bias, channels)
    added = None if add is None else like(add, x)
    tensors = (x.data_ptr(), address(added), y.data_ptr(), *given.addresses, statistics.data_ptr())
    kinds = (KINDS[x.dtype], given.kind, PROGRAMS[activation])
    if by_rows:
        width = _width(layout, positions)
        rows, options = (samples, channels, positions, width, groups), (*kinds, around_caches(y, width))
        divided(lambda i, j: entries.group_forward_rows(*tensors, *rows, eps, *options, i, j), samples, x.numel())
    else:
        runs, options = (samples, channels, positions, groups), (*kinds, around_caches(y, positions))
        sets = samples * groups
        divided(lambda i, j: entries.group_forward_runs(*tensors, *runs, eps, *options, i, j), sets, x.numel())
    return y, statistics


def group_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    statistics: Tensor,
    groups: int,
    activation: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, the gradient of z (dy itself without activation), dgamma and dbeta."""
    layout = layout_of(x)
    assert layout is not None
    by_rows, samples, channels, positions = layout
    _require(statistics, 2 * samples * groups)
    dy, dx = like(dy, x), torch.empty_like(x)
    dz, local = _formed(x, layout, add, activation)
    sums = torch.empty(2 * samples * channels, dtype=torch.float64)
    given = parameters(weight, bias, channels)
    added = None if add is None else like(add, x)
    inputs = (x.data_ptr(), address(added), dy.data_ptr(), address(dz))
    tensors = (*inputs, dx.data_ptr(), *given.addresses, statistics.data_ptr(), sums.data_ptr())
    kinds = (KINDS[x.dtype], given.kind, PROGRAMS[activation])
    if by_rows:
        width = _width(layout, positions)
        rows, options = (samples, channels, positions, width, groups), (*kinds, around_caches(dx, width))
        divided(lambda i, j: entries.group_backward_rows(*tensors, *rows, *options, i, j), samples, x.numel())
    else:
        runs, options = (samples, channels, positions, groups), (*kinds, around_caches(dx, positions))
        sets = samples * groups
        divided(lambda i, j: entries.group_backward_runs(*tensors, *runs, local, *options, i, j), sets, x.numel())
    return dx, dy if dz is None else dz, *_parameter_gradients(sums, samples, channels, given)


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
    layout: Layout | None = None,
) -> tuple[Tensor, Tensor]:
    """Output, and means and biased variances of the channels, (2, C) in float64: the given ones, or else the batch's."""
    layout = layout or layout_of(x)
    assert layout is not None
    by_rows, samples, channels, positions = layout
    measured = mean is None or variance is None
    y = torch.empty_like(x)
    statistics = torch.empty((2, channels), dtype=torch.float64)
    if mean is not None and variance is not None:
        numbers = statistics.numpy()
        numbers[0], numbers[1] = (values.detach().double().numpy() for values in (mean, variance))
    given = parameters(weight, bias, channels)
    added = None if add is None else like(add, x)
    tensors = (x.data_ptr(), address(added), y.data_ptr(), *given.addresses, statistics.data_ptr())
    kinds, program = (KINDS[x.dtype], given.kind), PROGRAMS[activation]
    if not by_rows:
        shape = (samples, channels, positions, max(1, RUN // positions))
        options = (*kinds, program, around_caches(y, positions))
        divided(
            lambda i, j: entries.batch_forward_runs(*tensors, *shape, eps, measured, *options, i, j),
            channels,
            x.numel(),
        )
        return y, statistics
    width = _width(layout, samples * positions)
    rows, options = x.numel() // width, (*kinds, program, around_caches(y, width))
    if measured:
        chunk, parts = _chunks(rows, width, channels)
        if is_alone(x.numel()):
            entries.batch_whole_rows(*tensors, parts.data_ptr(), channels, rows, width, chunk, eps, *options)
            return y, statistics
        scale = (x.data_ptr(), parts.data_ptr())
        divided(
            lambda i, j: entries.batch_moments_rows(*scale, channels, rows, width, chunk, kinds[0], i, j),
            len(parts),
            x.numel(),
        )
        entries.batch_statistics_rows(*scale, statistics.data_ptr(), channels, rows, width, chunk, kinds[0])
    divided(
        lambda i, j: entries.batch_forward_rows(*tensors, channels, rows, width, eps, *options, i, j), rows, x.numel()
    )
    return y, statistics


def batch_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    statistics: Tensor,
    eps: float,
    activation: int,
    measured: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, the gradient of z (dy itself without activation), dgamma and dbeta; constant statistics unless ``measured``."""
    layout = layout_of(x)
    assert layout is not None
    by_rows, samples, channels, positions = layout
    _require(statistics, 2 * channels)
    dy, dx = like(dy, x), torch.empty_like(x)
    dz, local = _formed(x, layout, add, activation)
    sums = torch.empty(2 * channels, dtype=torch.float64)
    given = parameters(weight, bias, channels)
    added = None if add is None else like(add, x)
    inputs = (x.data_ptr(), address(added), dy.data_ptr(), address(dz))
    scales = (*given.addresses, statistics.data_ptr())
    kinds, program = (KINDS[x.dtype], given.kind), PROGRAMS[activation]
    if by_rows:
        width = _width(layout, samples * positions)
        rows = x.numel() // width
        chunk, parts = _chunks(rows, width, channels)
        place, shape, options = parts.data_ptr(), (channels, rows, width), (*kinds, program, around_caches(dx, width))
        if is_alone(x.numel()):
            dgamma, dbeta = torch.empty_like(given.weight), torch.empty_like(given.bias)
            results = (place, sums.data_ptr(), dgamma.data_ptr(), dbeta.data_ptr())
            entries.batch_backward_whole_rows(
                *inputs, dx.data_ptr(), *scales, *results, *shape, chunk, eps, measured, *options
            )
            return dx, dy if dz is None else dz, dgamma, dbeta
        divided(
            lambda i, j: entries.batch_gradients_rows(
                *inputs, *scales, place, *shape, chunk, eps, *kinds, program, i, j
            ),
            len(parts),
            x.numel(),
        )
        entries.batch_sums_rows(statistics.data_ptr(), place, sums.data_ptr(), channels, len(parts), eps, kinds[0])
        tensors, options = (
            (*inputs, dx.data_ptr(), *scales, sums.data_ptr()),
            (*kinds, program, around_caches(dx, width)),
        )
        divided(
            lambda i, j: entries.batch_backward_rows(*tensors, *shape, eps, measured, *options, i, j), rows, x.numel()
        )
    else:
        tensors = (*inputs, dx.data_ptr(), *scales, sums.data_ptr())
        runs = (samples, channels, positions, max(1, RUN // positions))
        options = (*kinds, program, around_caches(dx, positions))
        divided(
            lambda i, j: entries.batch_backward_runs(*tensors, *runs, eps, measured, local, *options, i, j),
            channels,
            x.numel(),
        )
    return dx, dy if dz is None else dz, *_parameter_gradients(sums, 1, channels, given)
