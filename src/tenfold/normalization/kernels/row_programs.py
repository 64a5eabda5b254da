"""The inner loops of normalization over rows whose neighbours belong to different channels, as vector instructions.

The formulas are those of the module `programs`; mean, scale and the like are arrays with one number a column. A program takes
several rows at once, so that the columns' numbers are loaded once for all: `FOUR` of them, or `ONE`. Rows are ``width`` apart,
``at`` is the first number of the first.
"""

from __future__ import annotations

from typing import Any

from numba import types

from tenfold.normalization.kernels.programs import INDEX, Emitter, activated, sloped
from tenfold.numerics.lanes import Lanes, Place, Vector, sweep
from tenfold.numerics.vectors import constant, intrinsic

ONE, FOUR = (0,), (0, 0, 0, 0)  # numba compiles for the length of a tuple


class RowEmitter(Emitter):
    """Rows among the arguments."""

    def rows(self, index: int, at: Any, width: Any, count: int) -> Any:
        """The same slice of consecutive rows of an array argument (a list), or None."""
        starts = [self.builder.add(at, self.builder.mul(constant(row), width)) for row in range(count)]
        places = [self.place(index, start) for start in starts]
        return None if places[0] is None else places

    def columns(self, *indices: int) -> list[Place]:
        """Arrays with one number a column."""
        return [self.place(index, constant(0)) for index in indices]


def _plus(totals: list[Vector], terms: list[Vector]) -> list[Vector]:
    """Sums with one more row in them; the terms, if it is the first."""
    return [total + term for total, term in zip(totals, terms, strict=True)] if totals else terms


def _add(place: Place, at: Any, term: Vector, mask: Any) -> None:
    """Add numbers to float64 sums, in the lanes of the mask."""
    lanes = term.lanes
    if lanes.precision != types.float64:
        precise = Lanes(lanes.context, lanes.builder, types.float64, lanes.width)
        term = Vector(precise, lanes.builder.fpext(term.value, precise.vector))
        lanes = precise
    before = lanes.load(place, at)
    after = before + term
    lanes.store(after if mask is None else lanes.where(mask, after, before), place, at)


@intrinsic
def add_sums(typingctx, x, at, width, count, centers, first, second, rows):
    """Add ``x - centers`` and its squares to float64 sums, column by column."""

    def codegen(context, builder, signature, arguments):
        emitter = RowEmitter(context, builder, signature, arguments, types.float64)
        lines = emitter.rows(0, arguments[1], arguments[2], emitter.option(7))
        centers, *sums = emitter.columns(4, 5, 6)

        def body(lanes, at, chain, mask):
            center = lanes.load(centers, at)
            totals: list[Vector] = []
            for line in lines:
                d = lanes.load(line, at) - center
                totals = _plus(totals, [d, d * d])
            for place, total in zip(sums, totals, strict=True):
                _add(place, at, total, mask)

        sweep(emitter.wide, emitter.narrow, arguments[3], body)
        return context.get_dummy_value()

    return types.void(x, INDEX, INDEX, INDEX, centers, first, second, rows), codegen


@intrinsic
def forward(typingctx, x, added, y, at, width, count, mean, scale, shift, activation, large, rows):
    """``y = act((x - mean) scale + shift + added)``."""

    def codegen(context, builder, signature, arguments):
        emitter = RowEmitter(context, builder, signature, arguments)
        at, width, count = arguments[3:6]
        number = emitter.option(11)
        lines, others, targets = (emitter.rows(index, at, width, number) for index in range(3))
        mean, scale, shift = emitter.columns(6, 7, 8)
        kind, around = emitter.option(9), bool(emitter.option(10))

        def body(lanes, at, chain, mask):
            m, s, t = (lanes.load(place, at) for place in (mean, scale, shift))
            for row in range(number):
                z = (lanes.load(lines[row], at) - m).fma(s, t)
                z = z if others is None else z + lanes.load(others[row], at)
                lanes.store(activated(z, kind), targets[row], at, around and mask is None and lanes.width > 1)

        sweep(emitter.wide, emitter.narrow, count, body)
        return context.get_dummy_value()

    return types.void(x, added, y, INDEX, INDEX, INDEX, mean, scale, shift, activation, large, rows), codegen


@intrinsic
def gradient(typingctx, x, added, dy, dz, at, width, count, mean, scale, shift, rstd, first, second, activation, rows):
    """Add ``dz`` and ``dz (x - mean) rstd`` to float64 sums, column by column; dz is written unless it is None."""

    def codegen(context, builder, signature, arguments):
        emitter = RowEmitter(context, builder, signature, arguments)
        at, width, count = arguments[4:7]
        number = emitter.option(14)
        lines, others, upstream, formed = (emitter.rows(index, at, width, number) for index in range(4))
        mean, scale, shift, rstd, *sums = emitter.columns(*range(7, 13))
        kind = emitter.option(13)

        def body(lanes, at, chain, mask):
            m, r = lanes.load(mean, at), lanes.load(rstd, at)
            s, t = (lanes.load(place, at) if kind else None for place in (scale, shift))
            totals: list[Vector] = []
            for row in range(number):
                centered, dz = lanes.load(lines[row], at) - m, lanes.load(upstream[row], at)
                if kind:
                    z = centered.fma(s, t)
                    dz = sloped(dz, z if others is None else z + lanes.load(others[row], at), kind)
                if formed is not None:
                    lanes.store(dz, formed[row], at)
                totals = _plus(totals, [dz, dz * (centered * r)])
            for place, total in zip(sums, totals, strict=True):
                _add(place, at, total, mask)

        sweep(emitter.wide, emitter.narrow, count, body)
        return context.get_dummy_value()

    arrays = (mean, scale, shift, rstd, first, second)
    return types.void(x, added, dy, dz, INDEX, INDEX, INDEX, *arrays, activation, rows), codegen


@intrinsic
def combine(
    typingctx, x, added, dy, dz, dx, at, width, count, mean, scale, shift, rstd, slope, offset, activation, large, rows
):
    """``dx = dz scale + (x - mean) rstd slope + offset``; without dz, it is formed again from dy."""

    def codegen(context, builder, signature, arguments):
        emitter = RowEmitter(context, builder, signature, arguments)
        at, width, count = arguments[5:8]
        number = emitter.option(16)
        lines, others, upstream, formed, targets = (emitter.rows(index, at, width, number) for index in range(5))
        places = emitter.columns(*range(8, 14))
        kind, around = emitter.option(14), bool(emitter.option(15))

        def body(lanes, at, chain, mask):
            m, s, t, r, q, k = (lanes.load(place, at) for place in places)
            for row in range(number):
                centered = lanes.load(lines[row], at) - m
                dz = lanes.load((upstream if formed is None else formed)[row], at)
                if kind and formed is None:
                    z = centered.fma(s, t)
                    dz = sloped(dz, z if others is None else z + lanes.load(others[row], at), kind)
                dx = dz.fma(s, (centered * r).fma(q, k))
                lanes.store(dx, targets[row], at, around and mask is None and lanes.width > 1)

        sweep(emitter.wide, emitter.narrow, count, body)
        return context.get_dummy_value()

    arrays = (mean, scale, shift, rstd, slope, offset)
    return types.void(x, added, dy, dz, dx, INDEX, INDEX, INDEX, *arrays, activation, large, rows), codegen
