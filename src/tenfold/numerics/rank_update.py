"""Symmetric rank-n updates ``C += P^T Q`` of small matrices, and rows times a matrix, held in vector registers tile by tile.

A BLAS call per row of a small problem spends its time on packing and dispatch. Here a tile of ``ROWS`` rows and up to
``WIDEST`` vectors of the result stays in registers while the n rows of P and Q stream past from the first-level cache: per step
up to ``WIDEST`` loads, ``ROWS`` broadcasts and their product in fused multiply-adds, which is the rate of the machine's
arithmetic.

Of an update only vectors that touch the upper triangle are computed; what lies below the diagonal is not meaningful. Each number
is summed in one order wherever it stands in a block, so its bits do not depend on what it is computed with.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import types

from tenfold.numerics.compiled import kernel
from tenfold.numerics.vectors import BYTES, WIDE, Stream, constant, intrinsic

WIDEST = 3
ROWS = 8 if WIDE else 4  # 24 or 12 accumulators, 3 columns and a broadcast: within 32 or 16 vector registers


def tile(rows: int, vectors: int, sign: int) -> Any:
    """An intrinsic for tiles of so many rows and vectors; the products are added or subtracted."""

    def add_to_tile(typingctx, p, q, c, count, p_width, width, first_row, first_column):
        """Adds ``sum_t p[t, row] q[t, column]`` to one tile of c; p (count, p_width), q (count, width), c (.., width)."""
        return types.void(p, q, c, *(types.int64,) * 5), partial(_write_tile, rows, vectors, sign, p.dtype)

    return intrinsic(add_to_tile)


def _write_tile(rows, vectors, sign, scalar, context, builder, signature, arguments):
    """The instructions of one tile: load it, multiply and add in a loop over t, store it."""
    stream = Stream(context, builder, signature, scalar)
    count, p_width, width, first_row, first_column = arguments[3:]
    p = builder.gep(stream.data(0, arguments[0]), [first_row])
    q = builder.gep(stream.data(1, arguments[1]), [first_column])
    corner = builder.gep(stream.row(stream.data(2, arguments[2]), first_row, width), [first_column])
    columns = [constant(v * stream.lanes) for v in range(vectors)]
    lines = [stream.row(corner, constant(r), width) for r in range(rows)]

    def step(t, sums):
        values, factors = stream.row(q, t, width), stream.row(p, t, p_width)
        loaded = [stream.load(values, column) for column in columns]
        results = []
        for r in range(rows):
            factor = stream.number(factors, constant(r))
            spread = stream.spread(factor if sign > 0 else stream.negative(factor))
            results += [stream.fma(spread, loaded[v], sums[r * vectors + v]) for v in range(vectors)]
        return results

    start = [stream.load(line, column) for line in lines for column in columns]
    results = stream.count(constant(0), count, 1, start, step)
    places = [(line, column) for line in lines for column in columns]
    for (line, column), result in zip(places, results, strict=True):
        stream.store(result, line, column)
    return context.get_dummy_value()


_add_one, _add_two, _add_three = (tile(ROWS, vectors, 1) for vectors in (1, 2, 3))


@kernel
def rank_update(p, q, count, c):
    """``C += P[:count]^T Q[:count]`` on the upper triangle; their width is `padded`.

    Args:
        p: (at least count, k), contiguous.
        q: The same shape; equal to ``p`` up to a weight for each row.
        count: Rows to add.
        c: (k, k), contiguous.
    """
    if count > 0:
        k = c.shape[0]
        lanes = BYTES // c.itemsize
        for row in range(0, k, ROWS):
            column = row // lanes * lanes
            while column < k:
                left = (k - column) // lanes
                vectors = 2 if left == 4 else min(WIDEST, left)  # twice two rather than three and one
                if vectors == 3:
                    _add_three(p, q, c, count, k, k, row, column)
                elif vectors == 2:
                    _add_two(p, q, c, count, k, k, row, column)
                else:
                    _add_one(p, q, c, count, k, k, row, column)
                column += vectors * lanes


@kernel
def transform_rows(numbers, source, matrix, target):
    """``target[i] = source[i] @ matrix`` for each i in ``numbers``, as far as ``target`` is wide; in place if they are one.

    Args:
        numbers: Rows.
        source: (rows, at least k); its first k columns count.
        matrix: (k, K), K `padded`, contiguous.
        target: (rows, at most K).
    """
    k, width = matrix.shape
    lanes = BYTES // matrix.itemsize
    columns, block = np.empty((k, ROWS), matrix.dtype), np.empty((ROWS, width), matrix.dtype)
    written = target.shape[1]
    for first in range(0, numbers.size, ROWS):
        count = min(ROWS, numbers.size - first)
        for r in range(ROWS):
            row = numbers[first + min(r, count - 1)]
            for t in range(k):
                columns[t, r] = source[row, t]
        block[:] = 0
        column = 0
        while column < width:
            left = (width - column) // lanes
            vectors = 2 if left == 4 else min(WIDEST, left)
            if vectors == 3:
                _add_three(columns, matrix, block, k, ROWS, width, 0, column)
            elif vectors == 2:
                _add_two(columns, matrix, block, k, ROWS, width, 0, column)
            else:
                _add_one(columns, matrix, block, k, ROWS, width, 0, column)
            column += vectors * lanes
        for r in range(count):
            row = numbers[first + r]
            for j in range(written):
                target[row, j] = block[r, j]
