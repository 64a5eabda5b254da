"""The kernels called by addresses: to make an array from a tensor takes as long as the work of a small layer.

An address belongs to memory of the size that the other arguments tell, in the order that `channel_runs` or `position_rows`
wants; whoever calls keeps that memory alive. What is not there is None. How numbers are stored is told by an option: `FLOAT32`,
`BFLOAT16` or `FLOAT64`; ``kind`` is that of x and its like, ``parameters`` that of gamma and beta and their gradients. Means,
variances and sums are float64.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload
from numba.np.arrayobj import populate_array

from tenfold.normalization.kernels import channel_runs, position_rows
from tenfold.numerics import kernel
from tenfold.numerics.vectors import constant, intrinsic

FLOAT32, BFLOAT16, FLOAT64 = (), (0,), (0, 0)
STORED = (types.float32, types.uint16, types.float64)


@intrinsic
def array_at(typingctx, address, size, kind):
    """The array of so many numbers at an address; None for None."""
    if isinstance(address, types.NoneType):
        return types.none(address, types.int64, kind), lambda context, *rest: context.get_dummy_value()
    array = types.Array(STORED[len(kind)], 1, "C")

    def codegen(context, builder, signature, arguments):
        made = context.make_array(array)(context, builder)
        data = builder.inttoptr(arguments[0], context.get_data_type(array.dtype).as_pointer())
        item = constant(array.dtype.bitwidth // 8)
        populate_array(made, data, [arguments[1]], [item], item, None)
        return made._getvalue()

    return array(types.int64, types.int64, kind), codegen


@intrinsic
def integer_at(typingctx, address):
    """The array of one 64-bit integer at an address."""
    array = types.Array(types.int64, 1, "C")

    def codegen(context, builder, signature, arguments):
        made = context.make_array(array)(context, builder)
        data = builder.inttoptr(arguments[0], context.get_data_type(array.dtype).as_pointer())
        populate_array(made, data, [constant(1)], [constant(8)], constant(8), None)
        return made._getvalue()

    return array(types.int64), codegen


def buffer(x, size):
    """New memory for numbers in the precision of arithmetic on an array's."""


@overload(buffer)
def _buffer(x, size):
    if x.dtype == types.float64:
        return lambda x, size: np.empty(size, np.float64)
    return lambda x, size: np.empty(size, np.float32)


def formed_at(dz, total, kind, x, local, size):
    """Gradients of z: a buffer for ``size`` numbers if there is ``local``, else the array at an address, or None."""


@overload(formed_at)
def _formed_at(dz, total, kind, x, local, size):
    if isinstance(local, types.NoneType):
        return lambda dz, total, kind, x, local, size: array_at(dz, total, kind)
    return lambda dz, total, kind, x, local, size: buffer(x, size)


@kernel
def parameter_gradients(sums, dgamma, dbeta, samples, channels, parameters):
    """Gradients of gamma and beta: the sums (2, N, C) over samples, in their order."""
    by = array_at(sums, 2 * samples * channels, FLOAT64).reshape(2, samples, channels)
    one, two = array_at(dgamma, channels, parameters), array_at(dbeta, channels, parameters)
    totals = np.zeros((2, channels))
    for n in range(samples):
        for c in range(channels):
            totals[0, c] += by[0, n, c]
            totals[1, c] += by[1, n, c]
    for c in range(channels):
        two[c] = totals[0, c]
        one[c] = totals[1, c]


# --- runs: the positions of a channel are contiguous -----------------------------------------------------------------


@kernel
def group_forward_runs(
    x, added, y, gamma, beta, statistics, samples, channels, size, groups, eps, kind, parameters, activation, large,
    start, stop,
):  # fmt: skip
    """Sets start..stop; ``statistics`` (2, N G): means and reciprocal deviations."""
    total, sets = samples * channels * size, samples * groups
    found = array_at(statistics, 2 * sets, FLOAT64)
    channel_runs.group_forward(
        array_at(x, total, kind), array_at(added, total, kind), array_at(y, total, kind),
        array_at(gamma, channels, parameters), array_at(beta, channels, parameters), found[:sets], found[sets:],
        size, groups, eps, activation, large, start, stop,
    )  # fmt: skip


@kernel
def group_backward_runs(
    x, added, dy, dz, dx, gamma, beta, statistics, sums, samples, channels, size, groups, local, kind, parameters, activation,
    large, start, stop,
):  # fmt: skip
    """Sets start..stop; ``sums`` (2, N C): of dz, and of dz times the normalized input."""
    total, sets, runs = samples * channels * size, samples * groups, samples * channels
    found, by = array_at(statistics, 2 * sets, FLOAT64), array_at(sums, 2 * runs, FLOAT64)
    values = array_at(x, total, kind)
    formed = formed_at(dz, total, kind, values, local, channels // groups * size)
    channel_runs.group_backward(
        values, array_at(added, total, kind), array_at(dy, total, kind), formed, array_at(dx, total, kind),
        array_at(gamma, channels, parameters), array_at(beta, channels, parameters), found[:sets], found[sets:],
        by[:runs], by[runs:], size, groups, local is not None, activation, large, start, stop,
    )  # fmt: skip


@kernel
def batch_forward_runs(
    x, added, y, gamma, beta, statistics, samples, channels, size, block, eps, measured, kind, parameters, activation, large,
    start, stop,
):  # fmt: skip
    """Channels start..stop; ``statistics`` (2, C): means and variances, written if ``measured``."""
    total = samples * channels * size
    found = array_at(statistics, 2 * channels, FLOAT64)
    channel_runs.batch_forward(
        array_at(x, total, kind), array_at(added, total, kind), array_at(y, total, kind),
        array_at(gamma, channels, parameters), array_at(beta, channels, parameters), found[:channels], found[channels:],
        samples, size, block, eps, activation, measured, large, start, stop,
    )  # fmt: skip


@kernel
def batch_backward_runs(
    x, added, dy, dz, dx, gamma, beta, statistics, sums, samples, channels, size, block, eps, measured, local, kind,
    parameters, activation, large, start, stop,
):  # fmt: skip
    """Channels start..stop; ``sums`` (2, C): of dz, and of dz times the normalized input."""
    total = samples * channels * size
    found, by = array_at(statistics, 2 * channels, FLOAT64), array_at(sums, 2 * channels, FLOAT64)
    values = array_at(x, total, kind)
    formed = formed_at(dz, total, kind, values, local, samples * block * size)
    channel_runs.batch_backward(
        values, array_at(added, total, kind), array_at(dy, total, kind), formed, array_at(dx, total, kind),
        array_at(gamma, channels, parameters), array_at(beta, channels, parameters), found[:channels], found[channels:],
        by[:channels], by[channels:], samples, size, block, eps, measured, local is not None, activation, large,
        start, stop,
    )  # fmt: skip


# --- rows: channels last ---------------------------------------------------------------------------------------------


@kernel
def group_forward_rows(
    x, added, y, gamma, beta, statistics, samples, channels, size, width, groups, eps, kind, parameters, activation, large,
    start, stop,
):  # fmt: skip
    """Samples start..stop; ``statistics`` as with runs."""
    total, sets = samples * channels * size, samples * groups
    found = array_at(statistics, 2 * sets, FLOAT64)
    values = array_at(x, total, kind)
    position_rows.group_forward(
        values, array_at(added, total, kind), array_at(y, total, kind),
        array_at(gamma, channels, parameters), array_at(beta, channels, parameters), found[:sets], found[sets:],
        buffer(values, 3 * width).reshape(3, width), channels * size // width, groups, eps, activation, large, start, stop,
    )  # fmt: skip


@kernel
def group_backward_rows(
    x, added, dy, dz, dx, gamma, beta, statistics, sums, samples, channels, size, width, groups, kind, parameters,
    activation, large, start, stop,
):  # fmt: skip
    """Samples start..stop; ``sums`` as with runs."""
    total, sets, runs = samples * channels * size, samples * groups, samples * channels
    found, by = array_at(statistics, 2 * sets, FLOAT64), array_at(sums, 2 * runs, FLOAT64)
    values = array_at(x, total, kind)
    position_rows.group_backward(
        values, array_at(added, total, kind), array_at(dy, total, kind), array_at(dz, total, kind),
        array_at(dx, total, kind), array_at(gamma, channels, parameters), array_at(beta, channels, parameters),
        found[:sets], found[sets:], by[:runs], by[runs:], buffer(values, 6 * width).reshape(6, width),
        channels * size // width, groups, activation, large, start, stop,
    )  # fmt: skip


@kernel
def batch_moments_rows(x, parts, channels, rows, width, chunk, kind, start, stop):
    """Chunks start..stop of ``chunk`` rows: writes ``parts[chunk]``, (2, C) each."""
    values = array_at(x, rows * width, kind)
    count = (rows + chunk - 1) // chunk
    found = array_at(parts, count * 2 * channels, FLOAT64).reshape(count, 2, channels)
    for k in range(start, stop):
        last = min(rows, (k + 1) * chunk)
        position_rows.batch_moments(values, width, channels, found[k, 0], found[k, 1], k * chunk, last)


@kernel
def batch_statistics_rows(x, parts, statistics, channels, rows, width, chunk, kind):
    """Means and variances from the sums of all chunks, which are added in their order."""
    values = array_at(x, rows * width, kind)
    count = (rows + chunk - 1) // chunk
    found = array_at(parts, count * 2 * channels, FLOAT64).reshape(count, 2, channels)
    result = array_at(statistics, 2 * channels, FLOAT64)
    position_rows.statistics(values, found, rows * width // channels, result[:channels], result[channels:])


@kernel
def batch_forward_rows(
    x, added, y, gamma, beta, statistics, channels, rows, width, eps, kind, parameters, activation, large, start, stop
):
    """Rows start..stop, by the statistics."""
    values, total = array_at(x, rows * width, kind), rows * width
    found = array_at(statistics, 2 * channels, FLOAT64)
    columns = buffer(values, 4 * width).reshape(4, width)
    position_rows.set_columns(
        columns, array_at(gamma, channels, parameters), array_at(beta, channels, parameters), found[:channels],
        found[channels:], eps,
    )  # fmt: skip
    position_rows.batch_forward(
        values, array_at(added, total, kind), array_at(y, total, kind), columns, activation, large, start, stop
    )


@kernel
def batch_whole_rows(
    x, added, y, gamma, beta, statistics, parts, channels, rows, width, chunk, eps, kind, parameters, activation, large
):
    """All rows by their own statistics, in one thread: the three kernels above."""
    batch_moments_rows(x, parts, channels, rows, width, chunk, kind, 0, (rows + chunk - 1) // chunk)
    batch_statistics_rows(x, parts, statistics, channels, rows, width, chunk, kind)
    batch_forward_rows(
        x, added, y, gamma, beta, statistics, channels, rows, width, eps, kind, parameters, activation, large, 0, rows
    )


@kernel
def batch_gradients_rows(
    x, added, dy, dz, gamma, beta, statistics, parts, channels, rows, width, chunk, eps, kind, parameters, activation,
    start, stop,
):  # fmt: skip
    """Chunks start..stop of ``chunk`` rows: writes dz, and its sums into ``parts[chunk]``, (2, C) each."""
    values, total = array_at(x, rows * width, kind), rows * width
    found = array_at(statistics, 2 * channels, FLOAT64)
    count = (rows + chunk - 1) // chunk
    sums = array_at(parts, count * 2 * channels, FLOAT64).reshape(count, 2, channels)
    columns = buffer(values, 4 * width).reshape(4, width)
    position_rows.set_columns(
        columns, array_at(gamma, channels, parameters), array_at(beta, channels, parameters), found[:channels],
        found[channels:], eps,
    )  # fmt: skip
    others, upstream, formed = array_at(added, total, kind), array_at(dy, total, kind), array_at(dz, total, kind)
    for k in range(start, stop):
        last = min(rows, (k + 1) * chunk)
        position_rows.batch_gradients(
            values, others, upstream, formed, columns, sums[k, 0], sums[k, 1], activation, k * chunk, last
        )


@kernel
def batch_sums_rows(statistics, parts, sums, channels, count, eps, kind):
    """Sums of dz and of dz times the normalized input, from those of all chunks in their order: ``sums`` (2, C)."""
    found = array_at(statistics, 2 * channels, FLOAT64)
    chunks = array_at(parts, count * 2 * channels, FLOAT64).reshape(count, 2, channels)
    result = array_at(sums, 2 * channels, FLOAT64)
    like = array_at(parts, 0, kind)
    position_rows.total_gradients(
        chunks, found[:channels], found[channels:], eps, buffer(like, 1), result[:channels], result[channels:]
    )


@kernel
def batch_backward_rows(
    x, added, dy, dz, dx, gamma, beta, statistics, sums, channels, rows, width, eps, measured, kind, parameters, activation,
    large, start, stop,
):  # fmt: skip
    """Rows start..stop of dx."""
    values, total = array_at(x, rows * width, kind), rows * width
    found, by = array_at(statistics, 2 * channels, FLOAT64), array_at(sums, 2 * channels, FLOAT64)
    columns = buffer(values, 6 * width).reshape(6, width)
    scales = array_at(gamma, channels, parameters)
    position_rows.set_columns(
        columns, scales, array_at(beta, channels, parameters), found[:channels], found[channels:], eps
    )
    position_rows.set_slopes(
        columns, scales, found[:channels], found[channels:], eps, by[:channels], by[channels:],
        rows * width // channels if measured else 0,
    )  # fmt: skip
    position_rows.batch_backward(
        values, array_at(added, total, kind), array_at(dy, total, kind), array_at(dz, total, kind),
        array_at(dx, total, kind), columns, activation, large, start, stop,
    )  # fmt: skip


@kernel
def batch_backward_whole_rows(
    x, added, dy, dz, dx, gamma, beta, statistics, parts, sums, dgamma, dbeta, channels, rows, width, chunk, eps, measured,
    kind, parameters, activation, large,
):  # fmt: skip
    """All rows of dx and the gradients of the parameters, in one thread."""
    count = (rows + chunk - 1) // chunk
    batch_gradients_rows(
        x, added, dy, dz, gamma, beta, statistics, parts, channels, rows, width, chunk, eps, kind, parameters, activation,
        0, count,
    )  # fmt: skip
    batch_sums_rows(statistics, parts, sums, channels, count, eps, kind)
    batch_backward_rows(
        x, added, dy, dz, dx, gamma, beta, statistics, sums, channels, rows, width, eps, measured, kind, parameters,
        activation, large, 0, rows,
    )  # fmt: skip
    parameter_gradients(sums, dgamma, dbeta, 1, channels, parameters)


@kernel
def move_population(
    running_mean, running_var, tracked, mean, variance, channels, count, momentum, biased, largest, buffers
):
    """Move population statistics towards those of a batch and count it, unless a number is not finite; whether they moved.

    A momentum below 0 stands for the cumulative average; what would leave the range of the buffers stays at its edge.
    """
    one, two = array_at(mean, channels, FLOAT64), array_at(variance, channels, FLOAT64)
    for c in range(channels):
        if not (np.isfinite(one[c]) and np.isfinite(two[c])):
            return False
    means, variances = array_at(running_mean, channels, buffers), array_at(running_var, channels, buffers)
    batches = integer_at(tracked)
    batches[0] += 1
    weight = 1.0 / batches[0] if momentum < 0.0 else momentum
    for c in range(channels):
        means[c] = min(means[c] + weight * (one[c] - means[c]), largest)
    if count > 1:
        factor = 1.0 if biased else count / (count - 1.0)
        for c in range(channels):
            variances[c] = min(variances[c] + weight * (two[c] * factor - variances[c]), largest)
    return True
