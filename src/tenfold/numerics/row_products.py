"""Products of four rows with one vector, and sums of four rows, as streams of vector instructions.

Written as loops over array slices these cost more in bookkeeping (bounds, aliasing checks, reference counts) than in
arithmetic when rows are short. Here each is one loop over whole vectors, without checks: four rows at a time, so that every
part of the shared vector is loaded once for four (`weigh_row` takes a single one). Widths are `padded` (module
`rank_update`), arrays contiguous.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tenfold.numerics.rank_update import BYTES, intrinsic

WORD = ir.IntType(64)
ROWS = 4


class _Stream:
    """Emits one loop over the vectors of a row."""

    def __init__(self, context: Any, builder: Any, signature: Any, scalar: Any) -> None:
        self.context, self.builder, self.signature = context, builder, signature
        self.bytes = 8 if scalar == types.float64 else 4
        self.lanes = BYTES // self.bytes
        self.element = ir.DoubleType() if self.bytes == 8 else ir.FloatType()
        self.vector = ir.VectorType(self.element, self.lanes)
        kind = f"v{self.lanes}f{8 * self.bytes}"
        module = builder.module
        self._fma = cgutils.get_or_insert_function(
            module, ir.FunctionType(self.vector, [self.vector] * 3), f"llvm.fma.{kind}"
        )
        self._reduce = cgutils.get_or_insert_function(
            module, ir.FunctionType(self.element, [self.element, self.vector]), f"llvm.vector.reduce.fadd.{kind}"
        )

    def data(self, index: int, value: Any) -> Any:
        return self.context.make_array(self.signature.args[index])(self.context, self.builder, value).data

    def row(self, base: Any, number: Any, width: Any) -> Any:
        return self.builder.gep(base, [self.builder.mul(number, width)])

    def spread(self, value: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        single = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(single, undefined, zeros)

    def _pointer(self, base: Any, at: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(base, [at]), self.vector.as_pointer())

    def load(self, base: Any, at: Any) -> Any:
        return self.builder.load(self._pointer(base, at), align=self.bytes)

    def store(self, value: Any, base: Any, at: Any) -> None:
        self.builder.store(value, self._pointer(base, at), align=self.bytes)

    def multiply(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])

    def loop(self, width: Any, sums: int, body: Any) -> list[Any]:
        """Runs ``body(at, accumulators) -> accumulators`` for each vector; returns the accumulators, summed over lanes."""
        builder = self.builder
        before = builder.block
        block, done = builder.append_basic_block("row.loop"), builder.append_basic_block("row.done")
        builder.branch(block)
        builder.position_at_end(block)
        at = builder.phi(WORD)
        at.add_incoming(ir.Constant(WORD, 0), before)
        accumulators = [builder.phi(self.vector) for _ in range(sums)]
        for phi in accumulators:
            phi.add_incoming(ir.Constant(self.vector, [0.0] * self.lanes), before)
        results = body(at, accumulators)
        following = builder.add(at, ir.Constant(WORD, self.lanes))
        at.add_incoming(following, block)
        for phi, result in zip(accumulators, results, strict=True):
            phi.add_incoming(result, block)
        builder.cbranch(builder.icmp_signed("<", following, width), block, done)
        builder.position_at_end(done)
        zero = ir.Constant(self.element, 0.0)
        return [builder.call(self._reduce, [zero, result], fastmath=("reassoc",)) for result in results]


@intrinsic
def four_dots(typingctx, rows, first, width, x):
    """``rows[first + r] . x`` for r = 0..3, as a tuple."""
    return types.UniTuple(rows.dtype, ROWS)(rows, types.int64, types.int64, x), partial(_four_dots, rows.dtype)


def _four_dots(scalar, context, builder, signature, arguments):
    stream = _Stream(context, builder, signature, scalar)
    base, x, width = stream.data(0, arguments[0]), stream.data(3, arguments[3]), arguments[2]
    rows = [stream.row(base, builder.add(arguments[1], ir.Constant(WORD, r)), width) for r in range(ROWS)]

    def body(at, sums):
        shared = stream.load(x, at)
        return [stream.fma(stream.load(row, at), shared, total) for row, total in zip(rows, sums, strict=True)]

    return context.make_tuple(builder, signature.return_type, stream.loop(width, ROWS, body))


@intrinsic
def four_adds(typingctx, rows, first, width, factors, result):
    """``result += sum_r factors[r] rows[first + r]``; factors is a tuple of four."""
    return types.void(rows, types.int64, types.int64, factors, result), partial(_four_adds, rows.dtype)


def _four_adds(scalar, context, builder, signature, arguments):
    stream = _Stream(context, builder, signature, scalar)
    base, result, width = stream.data(0, arguments[0]), stream.data(4, arguments[4]), arguments[2]
    rows = [stream.row(base, builder.add(arguments[1], ir.Constant(WORD, r)), width) for r in range(ROWS)]
    factors = [stream.spread(builder.extract_value(arguments[3], r)) for r in range(ROWS)]

    def body(at, _):
        total = stream.load(result, at)
        for row, factor in zip(rows, factors, strict=True):
            total = stream.fma(stream.load(row, at), factor, total)
        stream.store(total, result, at)
        return []

    stream.loop(width, 0, body)
    return context.get_dummy_value()


@intrinsic
def gather_four(typingctx, table, numbers, width, roots, x, rows, first):
    """``rows[first + r] = table[numbers[r]] * roots`` and its product with x, for r = 0..3; the products as a tuple."""
    signature = types.UniTuple(table.dtype, ROWS)(table, numbers, types.int64, roots, x, rows, types.int64)
    return signature, partial(_gather_four, table.dtype)


def _gather_four(scalar, context, builder, signature, arguments):
    stream = _Stream(context, builder, signature, scalar)
    table, roots, x, out = (stream.data(i, arguments[i]) for i in (0, 3, 4, 5))
    width, first = arguments[2], arguments[6]
    sources = [stream.row(table, builder.extract_value(arguments[1], r), width) for r in range(ROWS)]
    targets = [stream.row(out, builder.add(first, ir.Constant(WORD, r)), width) for r in range(ROWS)]

    def body(at, sums):
        scale, shared = stream.load(roots, at), stream.load(x, at)
        results = []
        for source, target, total in zip(sources, targets, sums, strict=True):
            value = stream.multiply(stream.load(source, at), scale)
            stream.store(value, target, at)
            results.append(stream.fma(value, shared, total))
        return results

    return context.make_tuple(builder, signature.return_type, stream.loop(width, ROWS, body))


@intrinsic
def accumulate_four(typingctx, rows, first, width, factors, weights, result, squares):
    """``result += sum_r factors[r] z_r`` and ``squares += sum_r weights[r] z_r^2`` with ``z_r = rows[first + r]``."""
    signature = types.void(rows, types.int64, types.int64, factors, weights, result, squares)
    return signature, partial(_accumulate_four, rows.dtype)


def _accumulate_four(scalar, context, builder, signature, arguments):
    stream = _Stream(context, builder, signature, scalar)
    base, result, squares = (stream.data(i, arguments[i]) for i in (0, 5, 6))
    width = arguments[2]
    rows = [stream.row(base, builder.add(arguments[1], ir.Constant(WORD, r)), width) for r in range(ROWS)]
    factors, weights = ([stream.spread(builder.extract_value(arguments[i], r)) for r in range(ROWS)] for i in (3, 4))

    def body(at, _):
        total, square = stream.load(result, at), stream.load(squares, at)
        for row, factor, weight in zip(rows, factors, weights, strict=True):
            value = stream.load(row, at)
            total = stream.fma(value, factor, total)
            square = stream.fma(stream.multiply(value, weight), value, square)
        stream.store(total, result, at)
        stream.store(square, squares, at)
        return []

    stream.loop(width, 0, body)
    return context.get_dummy_value()


@intrinsic
def weigh_row(typingctx, table, number, width, weight, factor, plain, weighted, place, result):
    """Copies ``z = table[number]`` to ``plain[place]``, ``weight z`` to ``weighted[place]``; ``result += factor z``."""
    signature = types.void(
        table, types.int64, types.int64, table.dtype, table.dtype, plain, weighted, types.int64, result
    )
    return signature, partial(_weigh_row, table.dtype)


def _weigh_row(scalar, context, builder, signature, arguments):
    stream = _Stream(context, builder, signature, scalar)
    table, plain, weighted, result = (stream.data(i, arguments[i]) for i in (0, 5, 6, 8))
    width = arguments[2]
    source = stream.row(table, arguments[1], width)
    copy, scaled = (stream.row(base, arguments[7], width) for base in (plain, weighted))
    weight, factor = stream.spread(arguments[3]), stream.spread(arguments[4])

    def body(at, _):
        value = stream.load(source, at)
        stream.store(value, copy, at)
        stream.store(stream.multiply(value, weight), scaled, at)
        stream.store(stream.fma(value, factor, stream.load(result, at)), result, at)
        return []

    stream.loop(width, 0, body)
    return context.get_dummy_value()


@intrinsic
def four_products(typingctx, table, numbers, width, x):
    """``table[numbers[r]] . x`` for r = 0..3, as a tuple."""
    return types.UniTuple(table.dtype, ROWS)(table, numbers, types.int64, x), partial(_four_products, table.dtype)


def _four_products(scalar, context, builder, signature, arguments):
    stream = _Stream(context, builder, signature, scalar)
    table, x, width = stream.data(0, arguments[0]), stream.data(3, arguments[3]), arguments[2]
    rows = [stream.row(table, builder.extract_value(arguments[1], r), width) for r in range(ROWS)]

    def body(at, sums):
        shared = stream.load(x, at)
        return [stream.fma(stream.load(row, at), shared, total) for row, total in zip(rows, sums, strict=True)]

    return context.make_tuple(builder, signature.return_type, stream.loop(width, ROWS, body))
