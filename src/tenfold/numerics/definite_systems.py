"""Solutions of many small positive definite systems ``A x = b``: Cholesky factor and both substitutions in one go.

Four rows of the factor at a time. What the rows above contribute is one tile update (module `rank_update`); the 4 x 4 corner is
factored in scalar registers; then one pass over the columns finishes the four rows and, while they are in registers, takes
them off the right-hand side. So the chain of dependent roots and divisions, which bounds small systems, is as short as it
can be, and the forward substitution costs no pass of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import types

from tenfold.numerics.compiled import kernel
from tenfold.numerics.rank_update import WIDEST, tile
from tenfold.numerics.vectors import BYTES, Stream, constant, intrinsic

_take_one, _take_two, _take_three = (tile(4, vectors, -1) for vectors in (1, 2, 3))


@intrinsic
def _finish_four(typingctx, a, first, start, width, roots, corner, right, solved):
    """Rows ``first`` to ``first + 3`` of the factor from column ``start`` on, given their corner; takes them off ``right``."""
    signature = types.void(a, types.int64, types.int64, types.int64, roots, corner, right, solved)
    return signature, partial(_write_finish, a.dtype)


def _write_finish(scalar, context, builder, signature, arguments):
    stream = Stream(context, builder, signature, scalar)
    base, right = stream.data(0, arguments[0]), stream.data(6, arguments[6])
    first, start, width = arguments[1:4]
    rows = [stream.row(base, builder.add(first, constant(r)), width) for r in range(4)]

    def spread(index, count):
        return [stream.spread(builder.extract_value(arguments[index], i)) for i in range(count)]

    def less(i):
        return stream.spread(stream.negative(builder.extract_value(arguments[5], i)))

    roots, solved = spread(4, 4), [stream.negative(value) for value in spread(7, 4)]
    corner = {(0, 1): less(0), (0, 2): less(1), (0, 3): less(2), (1, 2): less(3), (1, 3): less(4), (2, 3): less(5)}

    def body(at, _):
        finished: list[Any] = []
        for r in range(4):
            value = stream.load(rows[r], at)
            for above in range(r):
                value = stream.fma(corner[above, r], finished[above], value)
            finished.append(stream.multiply(value, roots[r]))
        total = stream.load(right, at)
        for r in range(4):
            stream.store(finished[r], rows[r], at)
            total = stream.fma(finished[r], solved[r], total)
        stream.store(total, right, at)
        return []

    stream.count(start, width, stream.lanes, [], body)
    return context.get_dummy_value()


@intrinsic
def _four_dots(typingctx, a, first, start, width, x):
    """``a[first + r, start:] . x[start:]`` for r = 0..3, as a tuple."""
    return types.UniTuple(a.dtype, 4)(a, types.int64, types.int64, types.int64, x), partial(_write_dots, a.dtype)


def _write_dots(scalar, context, builder, signature, arguments):
    stream = Stream(context, builder, signature, scalar)
    base, x = stream.data(0, arguments[0]), stream.data(4, arguments[4])
    first, start, width = arguments[1:4]
    rows = [stream.row(base, builder.add(first, constant(r)), width) for r in range(4)]

    def body(at, sums):
        shared = stream.load(x, at)
        return [stream.fma(stream.load(row, at), shared, total) for row, total in zip(rows, sums, strict=True)]

    return context.make_tuple(builder, signature.return_type, stream.loop(width, 4, body, start))


# Not inlined, so that a process which compiles its caller runs another copy than one which reads the caller from disk:
# where sums may be reordered and fused the copies differ in their last bits.
@kernel(fastmath=False)
def solve_definite(a, b, forward):
    """Overwrites ``b`` by the solution of ``A x = b``, and ``a``; False if ``A`` is not positive definite.

    Args:
        a: (k, k), contiguous, k `padded`; only the upper triangle counts, below it are any finite numbers.
        b: (k,).
        forward: (k,), overwritten.
    """
    k = a.shape[0]
    lanes = BYTES // a.itemsize
    zero, one = a.dtype.type(0), a.dtype.type(1)
    for f in range(0, k, 4):
        start = f // lanes * lanes
        if f > 0:
            column = start
            while column < k:
                vectors = min(WIDEST, (k - column) // lanes)
                if vectors == 3:
                    _take_three(a, a, a, f, k, k, f, column)
                elif vectors == 2:
                    _take_two(a, a, a, f, k, k, f, column)
                else:
                    _take_one(a, a, a, f, k, k, f, column)
                column += vectors * lanes
        # the corner: U[f:f+4, f:f+4], its diagonal inverted, and what of the right-hand side it solves
        pivot = a[f, f]
        if not pivot > zero:
            return False
        r0 = one / np.sqrt(pivot)
        u01, u02, u03 = a[f, f + 1] * r0, a[f, f + 2] * r0, a[f, f + 3] * r0
        pivot = a[f + 1, f + 1] - u01 * u01
        if not pivot > zero:
            return False
        r1 = one / np.sqrt(pivot)
        u12, u13 = (a[f + 1, f + 2] - u01 * u02) * r1, (a[f + 1, f + 3] - u01 * u03) * r1
        pivot = a[f + 2, f + 2] - u02 * u02 - u12 * u12
        if not pivot > zero:
            return False
        r2 = one / np.sqrt(pivot)
        u23 = (a[f + 2, f + 3] - u02 * u03 - u12 * u13) * r2
        pivot = a[f + 3, f + 3] - u03 * u03 - u13 * u13 - u23 * u23
        if not pivot > zero:
            return False
        r3 = one / np.sqrt(pivot)
        y0 = b[f] * r0
        y1 = (b[f + 1] - u01 * y0) * r1
        y2 = (b[f + 2] - u02 * y0 - u12 * y1) * r2
        y3 = (b[f + 3] - u03 * y0 - u13 * y1 - u23 * y2) * r3
        _finish_four(a, f, start, k, (r0, r1, r2, r3), (u01, u02, u03, u12, u13, u23), b, (y0, y1, y2, y3))
        forward[f], forward[f + 1], forward[f + 2], forward[f + 3] = y0, y1, y2, y3
        a[f, f], a[f + 1, f + 1], a[f + 2, f + 2], a[f + 3, f + 3] = r0, r1, r2, r3
    b[:] = zero  # what is not yet solved must not count in the products
    for f in range(k - 4, -1, -4):
        p, q, r, s = _four_dots(a, f, f // lanes * lanes, k, b)
        x3 = (forward[f + 3] - s) * a[f + 3, f + 3]
        x2 = (forward[f + 2] - r - a[f + 2, f + 3] * x3) * a[f + 2, f + 2]
        x1 = (forward[f + 1] - q - a[f + 1, f + 2] * x2 - a[f + 1, f + 3] * x3) * a[f + 1, f + 1]
        x0 = (forward[f] - p - a[f, f + 1] * x1 - a[f, f + 2] * x2 - a[f, f + 3] * x3) * a[f, f]
        b[f], b[f + 1], b[f + 2], b[f + 3] = x0, x1, x2, x3
    return True
