"""Symmetric rank-n updates ``C += P^T Q`` of small matrices, held in vector registers tile by tile.

A BLAS call per row of a small problem spends its time on packing and dispatch. Here a tile of ``ROWS`` rows and up to
``WIDEST`` vectors of the result stays in registers while the n rows of P and Q stream past from the first-level cache: per step
up to ``WIDEST`` loads, ``ROWS`` broadcasts and their product in fused multiply-adds, which is the rate of the machine's
arithmetic. Numba has no vector types, so the tile is written as LLVM instructions by an intrinsic.

Only tiles that touch the upper triangle are computed; what lies below the diagonal is not meaningful.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as untyped_intrinsic

from tenfold.numerics.compiled import kernel

intrinsic: Any = untyped_intrinsic  # its own annotations describe the undecorated function

ROWS, WIDEST = 4, 3  # 12 accumulators, 3 columns and a broadcast: the 16 vector registers of AVX2
BYTES = 32  # of a vector


def padded(width: int, dtype: Any) -> int:
    """The least number of columns, at least ``width``, that whole vectors hold.

    >>> padded(50, np.float32), padded(64, np.float32), padded(50, np.float64)
    (56, 64, 52)
    """
    lanes = BYTES // np.dtype(dtype).itemsize
    return -(-width // lanes) * lanes


def _tile(vectors: int, sign: int) -> Any:
    """An intrinsic for tiles of ``ROWS`` rows and so many vectors; the products are added or subtracted."""

    def add_to_tile(typingctx, p, q, c, count, stride, first_row, first_column):
        """Adds ``sum_t p[t, row] q[t, column]`` to one tile of c; p, q (count, stride), c (stride, stride), contiguous."""
        return types.void(p, q, c, *(types.int64,) * 4), partial(_write_tile, vectors, sign, p.dtype)

    return intrinsic(add_to_tile)


def _write_tile(vectors, sign, scalar, context, builder, signature, arguments):
    """The instructions of one tile: load it, multiply and add in a loop over t, store it."""
    word = ir.IntType(64)
    element = ir.DoubleType() if scalar == types.float64 else ir.FloatType()
    lanes = BYTES // (8 if scalar == types.float64 else 4)
    vector = ir.VectorType(element, lanes)

    def data(index):
        array = context.make_array(signature.args[index])(context, builder, arguments[index])
        return array.data

    base_p, base_q, base_c = data(0), data(1), data(2)
    count, stride, row, column = arguments[3:]

    def at(base, index):
        return builder.gep(base, [index])

    def load(base, index):
        pointer = builder.bitcast(at(base, index), vector.as_pointer())
        return builder.load(pointer, align=element_bytes)

    element_bytes = 8 if scalar == types.float64 else 4
    constant = lambda value: ir.Constant(word, value)  # noqa: E731
    name = f"llvm.fma.v{lanes}f{8 * element_bytes}"
    fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)

    entry = builder.block
    loop = builder.append_basic_block("tile.loop")
    done = builder.append_basic_block("tile.done")
    starts = []
    for r in range(ROWS):
        line = builder.mul(builder.add(row, constant(r)), stride)
        for v in range(vectors):
            index = builder.add(builder.add(line, column), constant(v * lanes))
            starts.append((index, load(base_c, index)))
    builder.branch(loop)

    builder.position_at_end(loop)
    step = builder.phi(word)
    step.add_incoming(constant(0), entry)
    accumulators = []
    for _, start in starts:
        phi = builder.phi(vector)
        phi.add_incoming(start, entry)
        accumulators.append(phi)
    line = builder.mul(step, stride)
    columns = [load(base_q, builder.add(builder.add(line, column), constant(v * lanes))) for v in range(vectors)]
    results = []
    for r in range(ROWS):
        value = builder.load(at(base_p, builder.add(builder.add(line, row), constant(r))))
        value = value if sign > 0 else builder.fneg(value)
        single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        spread = builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), zeros)
        for v in range(vectors):
            results.append(builder.call(fma, [spread, columns[v], accumulators[r * vectors + v]]))
    following = builder.add(step, constant(1))
    step.add_incoming(following, loop)
    for phi, result in zip(accumulators, results, strict=True):
        phi.add_incoming(result, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)

    builder.position_at_end(done)
    for (index, _), result in zip(starts, results, strict=True):
        pointer = builder.bitcast(at(base_c, index), vector.as_pointer())
        builder.store(result, pointer, align=element_bytes)
    return context.get_dummy_value()


_add_one, _add_two, _add_three = (_tile(vectors, 1) for vectors in (1, 2, 3))
_take_one, _take_two, _take_three = (_tile(vectors, -1) for vectors in (1, 2, 3))


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
        column = 0
        while column < k:
            vectors = min(WIDEST, (k - column) // lanes)
            for row in range(0, column + vectors * lanes, ROWS):
                if vectors == 3:
                    _add_three(p, q, c, count, k, row, column)
                elif vectors == 2:
                    _add_two(p, q, c, count, k, row, column)
                else:
                    _add_one(p, q, c, count, k, row, column)
            column += vectors * lanes


@kernel
def cholesky(a):
    """Overwrites the upper triangle of a positive definite matrix by U with ``A = U^T U``; False if it is not definite.

    Four rows at a time: what the rows above contribute is one tile update, the rest is within the four.

    Args:
        a: (k, k), contiguous, k `padded`; only the upper triangle is read, what lies below becomes meaningless.
    """
    k = a.shape[0]
    lanes = BYTES // a.itemsize
    zero, one = a.dtype.type(0), a.dtype.type(1)
    for first in range(0, k, ROWS):
        if first > 0:
            column = first // lanes * lanes
            while column < k:
                vectors = min(WIDEST, (k - column) // lanes)
                if vectors == 3:
                    _take_three(a, a, a, first, k, first, column)
                elif vectors == 2:
                    _take_two(a, a, a, first, k, first, column)
                else:
                    _take_one(a, a, a, first, k, first, column)
                column += vectors * lanes
        for row in range(first, first + ROWS):
            pivot = a[row, row]
            if not pivot > zero:
                return False
            factor = one / np.sqrt(pivot)
            _scale(a[row, row:], factor)
            for below in range(row + 1, first + ROWS):
                _subtract(a[below, below:], a[row, below], a[row, below:])
    return True


@kernel
def _scale(values, factor):
    for i in range(values.size):
        values[i] *= factor


@kernel
def _subtract(values, factor, other):
    for i in range(values.size):
        values[i] -= factor * other[i]


@kernel
def _dot(a, b):
    result = a.dtype.type(0)
    for i in range(a.size):
        result += a[i] * b[i]
    return result


@kernel
def cholesky_solve(u, b):
    """Overwrites ``b`` by the solution of ``U^T U x = b``.

    Args:
        u: What `cholesky` left, (k, k).
        b: (k,).
    """
    k = b.size
    for row in range(k):
        b[row] /= u[row, row]
        _subtract(b[row + 1 :], b[row], u[row, row + 1 :])
    for row in range(k - 1, -1, -1):
        b[row] = (b[row] - _dot(u[row, row + 1 :], b[row + 1 :])) / u[row, row]
