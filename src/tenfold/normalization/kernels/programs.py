"""The inner loops of normalization over one slice of memory, as vector instructions.

With mu = m + e, m the mean in the precision of arithmetic and e what rounding left, an element becomes

    c = x - m,    z = c (rstd gamma) + (beta - e rstd gamma) + added,    y = act(z)

so that a large mean cancels exactly before anything is multiplied. Sums run in float64 around a value of the set itself: one
pass, no overflow for float32, no cancellation. In the backward pass dz = dy act'(z), and

    dx = dz (rstd gamma) + (c rstd) slope + constant.

Arrays are flat; ``at`` is the first number of a slice. What is optional is None, and an activation is a tuple whose length says
which one: numba compiles for types, and so a program contains nothing but what it does. ``large`` is such a tuple, too: with a
number in it, results go around the caches, and what lies ``ahead`` is fetched into the second-level cache.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from tenfold.numerics.lanes import Lanes, Place, Sums, Vector, arithmetic, sweep
from tenfold.numerics.vector_functions import gelu, gelu_slope, silu, silu_slope
from tenfold.numerics.vectors import constant, intrinsic

IDENTITY, RELU, SILU, GELU = (), (0,), (0, 0), (0, 0, 0)
INDEX, NUMBER = types.int64, types.float64


def activated(z: Vector, activation: int) -> Vector:
    """act(z)."""
    if activation == 1:
        return z.lanes.where(z <= 0.0, 0.0, z)  # NaN stays NaN
    return silu(z) if activation == 2 else gelu(z) if activation == 3 else z


def sloped(dy: Vector, z: Vector, activation: int) -> Vector:
    """Dy act'(z)."""
    if activation == 1:
        return dy.lanes.where(z <= 0.0, 0.0, dy)
    return dy * silu_slope(z) if activation == 2 else dy * gelu_slope(z) if activation == 3 else dy


class Emitter:
    """What programs have in common: lanes of both widths, slices among the arguments, one channel's numbers."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any, precision: Any = None) -> None:
        self.context, self.builder, self.signature, self.arguments = context, builder, signature, arguments
        precision = arithmetic(signature.args[0].dtype) if precision is None else precision
        self.wide, self.narrow = Lanes(context, builder, precision), Lanes(context, builder, precision, 1)

    def place(self, index: int, at: Any) -> Any:
        """The slice of an array argument (a `Place`), or None."""
        kind = self.signature.args[index]
        if isinstance(kind, types.NoneType):
            return None
        return Place(self.context, self.builder, kind, self.arguments[index], at)

    def option(self, index: int) -> int:
        """The choice that an argument's type stands for."""
        return len(self.signature.args[index])

    def parted(self, number: Any) -> tuple[Any, Any]:
        """A float64 in the precision of arithmetic, and what rounding left, both as float64."""
        if self.wide.precision == types.float64:
            return number, ir.Constant(ir.DoubleType(), 0.0)
        high = self.builder.fpext(self.builder.fptrunc(number, ir.FloatType()), ir.DoubleType())
        return high, self.builder.fsub(number, high)

    def spread(self, number: Any) -> dict[int, Vector]:
        """A number in all lanes, by their width."""
        return {lanes.width: lanes.spread(number) for lanes in (self.wide, self.narrow)}

    def channel(self, mean: Any, rstd: Any, gamma: Any, beta: Any) -> tuple[dict[int, Vector], ...]:
        """m, rstd gamma, beta - e rstd gamma and rstd."""
        high, rest = self.parted(mean)
        scale = self.builder.fmul(rstd, gamma)
        shift = self.builder.fsub(beta, self.builder.fmul(rest, scale))
        return tuple(self.spread(number) for number in (high, scale, shift, rstd))


@intrinsic
def sums(typingctx, x, at, count, center):
    """Sum and sum of squares of ``x - center`` in float64."""

    def codegen(context, builder, signature, arguments):
        emitter = Emitter(context, builder, signature, arguments, types.float64)
        place, center = emitter.place(0, arguments[1]), emitter.spread(arguments[3])
        found = Sums(emitter.wide, emitter.narrow, 2, 4)

        def body(lanes, at, chain, mask):
            d = lanes.load(place, at) - center[lanes.width]
            found.add((d, d * d), chain, mask)

        sweep(emitter.wide, emitter.narrow, arguments[2], body, 4)
        return context.make_tuple(builder, signature.return_type, found.totals())

    return types.UniTuple(NUMBER, 2)(x, INDEX, INDEX, NUMBER), codegen


@intrinsic
def forward(typingctx, x, added, y, at, count, ahead, mean, rstd, gamma, beta, activation, large):
    """``y = act((x - mean) rstd gamma + beta + added)``."""

    def codegen(context, builder, signature, arguments):
        emitter = Emitter(context, builder, signature, arguments)
        at, count, ahead = arguments[3:6]
        place, other, target = (emitter.place(index, at) for index in range(3))
        mean, scale, shift, _ = emitter.channel(*arguments[6:10])
        kind, around = emitter.option(10), emitter.option(11)

        def body(lanes, at, chain, mask):
            w = lanes.width
            if around and mask is None and w > 1:
                lanes.fetch(place, builder.add(at, ahead))
            z = (lanes.load(place, at) - mean[w]).fma(scale[w], shift[w])
            z = z if other is None else z + lanes.load(other, at)
            lanes.store(activated(z, kind), target, at, bool(around) and mask is None and w > 1)

        sweep(emitter.wide, emitter.narrow, count, body)
        return context.get_dummy_value()

    numbers = (NUMBER,) * 4
    return types.void(x, added, y, INDEX, INDEX, INDEX, *numbers, activation, large), codegen


@intrinsic
def gradient(typingctx, x, added, dy, dz, at, dz_at, count, mean, rstd, gamma, beta, activation):
    """Sums of ``dz`` and of ``dz (x - mean) rstd``; dz is written, from ``dz_at`` on, unless it is None."""

    def codegen(context, builder, signature, arguments):
        emitter = Emitter(context, builder, signature, arguments)
        at, dz_at, count = arguments[4:7]
        place, other, upstream = (emitter.place(index, at) for index in range(3))
        target = emitter.place(3, dz_at)
        mean, scale, shift, rstd = emitter.channel(*arguments[7:11])
        kind = emitter.option(11)
        found = Sums(emitter.wide, emitter.narrow, 2, 2)

        def body(lanes, at, chain, mask):
            w = lanes.width
            centered = lanes.load(place, at) - mean[w]
            dz = lanes.load(upstream, at)
            if kind:
                z = centered.fma(scale[w], shift[w])
                dz = sloped(dz, z if other is None else z + lanes.load(other, at), kind)
            if target is not None:
                lanes.store(dz, target, at)
            found.add((dz, dz * (centered * rstd[w])), chain, mask)

        sweep(emitter.wide, emitter.narrow, count, body, 2)
        one, two = found.totals()
        rest = builder.fmul(emitter.parted(arguments[7])[1], arguments[8])
        return context.make_tuple(builder, signature.return_type, (one, builder.fsub(two, builder.fmul(rest, one))))

    numbers = (NUMBER,) * 4
    signature = types.UniTuple(NUMBER, 2)(x, added, dy, dz, INDEX, INDEX, INDEX, *numbers, activation)
    return signature, codegen


@intrinsic
def combine(
    typingctx, x, added, dy, dz, dx, at, dz_at, count, ahead, mean, rstd, gamma, beta, slope, offset, activation, large
):
    """``dx = dz rstd gamma + (x - mean) rstd slope + offset``; without dz, it is formed again from dy."""

    def codegen(context, builder, signature, arguments):
        emitter = Emitter(context, builder, signature, arguments)
        at, dz_at, count, ahead = arguments[5:9]
        place, other, upstream, target = (emitter.place(index, at) for index in (0, 1, 2, 4))
        formed = emitter.place(3, dz_at)
        mean, scale, shift, rstd = emitter.channel(*arguments[9:13])
        rest = builder.fmul(emitter.parted(arguments[9])[1], arguments[10])
        slope = emitter.spread(arguments[13])
        offset = emitter.spread(builder.fsub(arguments[14], builder.fmul(rest, arguments[13])))
        kind, around = emitter.option(15), emitter.option(16)

        def body(lanes, at, chain, mask):
            w = lanes.width
            if around and mask is None and w > 1:
                lanes.fetch(place, builder.add(at, ahead))
                lanes.fetch(upstream, builder.add(at, ahead))
            centered = lanes.load(place, at) - mean[w]
            dz = lanes.load(upstream if formed is None else formed, at)
            if kind and formed is None:
                z = centered.fma(scale[w], shift[w])
                dz = sloped(dz, z if other is None else z + lanes.load(other, at), kind)
            dx = dz.fma(scale[w], (centered * rstd[w]).fma(slope[w], offset[w]))
            lanes.store(dx, target, at, bool(around) and mask is None and w > 1)

        sweep(emitter.wide, emitter.narrow, count, body)
        return context.get_dummy_value()

    indices, numbers = (INDEX,) * 4, (NUMBER,) * 6
    return types.void(x, added, dy, dz, dx, *indices, *numbers, activation, large), codegen


@intrinsic
def number_at(typingctx, x, at):
    """One stored number, in float64."""

    def codegen(context, builder, signature, arguments):
        emitter = Emitter(context, builder, signature, arguments, types.float64)
        value = emitter.narrow.load(emitter.place(0, arguments[1]), constant(0)).value
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return NUMBER(x, INDEX), codegen


@intrinsic
def settle(typingctx, large):
    """Wait until results that went around the caches are where other threads see them."""

    def codegen(context, builder, signature, arguments):
        if len(signature.args[0]):
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(large), codegen
