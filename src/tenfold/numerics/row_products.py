"""Products of four rows with one vector, and sums of four rows, as streams of vector instructions.

Each is one loop over whole vectors, without checks: four rows at a time, so that every part of the shared vector is loaded once
for four (`weigh_row` takes a single one). Widths are `padded` (module `vectors`), arrays contiguous.
"""

from __future__ import annotations

from functools import partial

from numba import types

from tenfold.numerics.vectors import Stream, constant, intrinsic

ROWS = 4


@intrinsic
def four_dots(typingctx, rows, first, width, x):
    """``rows[first + r] . x`` for r = 0..3, as a tuple."""
    return types.UniTuple(rows.dtype, ROWS)(rows, types.int64, types.int64, x), partial(_four_dots, rows.dtype)


def _four_dots(scalar, context, builder, signature, arguments):
    stream = Stream(context, builder, signature, scalar)
    base, x, width = stream.data(0, arguments[0]), stream.data(3, arguments[3]), arguments[2]
    rows = [stream.row(base, builder.add(arguments[1], constant(r)), width) for r in range(ROWS)]

    def body(at, sums):
        shared = stream.load(x, at)
        return [stream.fma(stream.load(row, at), shared, total) for row, total in zip(rows, sums, strict=True)]

    return context.make_tuple(builder, signature.return_type, stream.loop(width, ROWS, body))


@intrinsic
def four_adds(typingctx, rows, first, width, factors, result):
    """``result += sum_r factors[r] rows[first + r]``; factors is a tuple of four."""
    return types.void(rows, types.int64, types.int64, factors, result), partial(_four_adds, rows.dtype)


def _four_adds(scalar, context, builder, signature, arguments):
    stream = Stream(context, builder, signature, scalar)
    base, result, width = stream.data(0, arguments[0]), stream.data(4, arguments[4]), arguments[2]
    rows = [stream.row(base, builder.add(arguments[1], constant(r)), width) for r in range(ROWS)]
    factors = [stream.spread(builder.extract_value(arguments[3], r)) for r in range(ROWS)]

    def body(at, _):
        added = stream.multiply(stream.load(rows[0], at), factors[0])
        for row, factor in zip(rows[1:], factors[1:], strict=True):
            added = stream.fma(stream.load(row, at), factor, added)
        # the result comes last: the next four wait for one addition, not for four
        stream.store(stream.add(stream.load(result, at), added), result, at)
        return []

    stream.loop(width, 0, body)
    return context.get_dummy_value()


@intrinsic
def gather_four(typingctx, table, numbers, width, roots, x, rows, first, following):
    """``rows[first + r] = table[numbers[r]] * roots`` and its product with x, for r = 0..3; the products as a tuple.

    The rows ``following`` of the table are asked for meanwhile.
    """
    signature = types.UniTuple(table.dtype, ROWS)(table, numbers, types.int64, roots, x, rows, types.int64, numbers)
    return signature, partial(_gather_four, table.dtype)


def _gather_four(scalar, context, builder, signature, arguments):
    stream = Stream(context, builder, signature, scalar)
    table, roots, x, out = (stream.data(i, arguments[i]) for i in (0, 3, 4, 5))
    width, first = arguments[2], arguments[6]
    sources = [stream.row(table, builder.extract_value(arguments[1], r), width) for r in range(ROWS)]
    ahead = [stream.row(table, builder.extract_value(arguments[7], r), width) for r in range(ROWS)]
    targets = [stream.row(out, builder.add(first, constant(r)), width) for r in range(ROWS)]

    def body(at, sums):
        for row in ahead:
            stream.fetch(row, at)
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
    stream = Stream(context, builder, signature, scalar)
    base, result, squares = (stream.data(i, arguments[i]) for i in (0, 5, 6))
    width = arguments[2]
    rows = [stream.row(base, builder.add(arguments[1], constant(r)), width) for r in range(ROWS)]
    factors, weights = ([stream.spread(builder.extract_value(arguments[i], r)) for r in range(ROWS)] for i in (3, 4))

    def body(at, _):
        value = stream.load(rows[0], at)
        total, square = stream.multiply(value, factors[0]), stream.multiply(stream.multiply(value, weights[0]), value)
        for row, factor, weight in zip(rows[1:], factors[1:], weights[1:], strict=True):
            value = stream.load(row, at)
            total = stream.fma(value, factor, total)
            square = stream.fma(stream.multiply(value, weight), value, square)
        stream.store(stream.add(stream.load(result, at), total), result, at)
        stream.store(stream.add(stream.load(squares, at), square), squares, at)
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
    stream = Stream(context, builder, signature, scalar)
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
    stream = Stream(context, builder, signature, scalar)
    table, x, width = stream.data(0, arguments[0]), stream.data(3, arguments[3]), arguments[2]
    rows = [stream.row(table, builder.extract_value(arguments[1], r), width) for r in range(ROWS)]

    def body(at, sums):
        shared = stream.load(x, at)
        return [stream.fma(stream.load(row, at), shared, total) for row, total in zip(rows, sums, strict=True)]

    return context.make_tuple(builder, signature.return_type, stream.loop(width, ROWS, body))
