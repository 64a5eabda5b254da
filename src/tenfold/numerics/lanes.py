"""Kernels for slices of any length, written as vector instructions: numbers side by side, with Python's operators.

A `Lanes` is a width and a precision; a `Vector` is what it computes with. `sweep` runs a body over a slice: whole vectors, then
one vector that ends where the slice ends (its lanes that were done before are masked out of sums), and number by number where
the slice is shorter than a vector. Slices need no padding, so outputs must not overlap inputs.

Stored numbers are float32, float64, or bfloat16 in uint16; arithmetic is in float32 or float64. Stores can go around the
caches, for results that are larger than they: the memory then does not read what is about to be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tenfold.numerics.vectors import BYTES, WORD, constant

BIT, BYTE = ir.IntType(1), ir.IntType(8)
CONTRACT = ("contract",)  # a product and a sum may become one fused multiply-add
TYPES = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.uint16: ir.IntType(16)}


def arithmetic(stored: Any) -> Any:
    """The precision in which numbers stored so are computed with."""
    return types.float64 if stored == types.float64 else types.float32


class Place:
    """Where a slice of an array begins: a pointer, and how its numbers are stored."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any, at: Any = None) -> None:
        pointer = context.make_array(kind)(context, builder, value).data
        self.stored = kind.dtype
        self.pointer = pointer if at is None else builder.gep(pointer, [at])


class Vector:
    """Numbers side by side; sums, differences, products and quotients emit instructions."""

    def __init__(self, lanes: Lanes, value: Any) -> None:
        self.lanes, self.value = lanes, value

    def _other(self, other: Any) -> Any:
        return other.value if isinstance(other, Vector) else self.lanes.constant(other).value

    def __add__(self, other: Any) -> Vector:
        return Vector(self.lanes, self.lanes.builder.fadd(self.value, self._other(other), flags=CONTRACT))

    def __sub__(self, other: Any) -> Vector:
        return Vector(self.lanes, self.lanes.builder.fsub(self.value, self._other(other), flags=CONTRACT))

    def __rsub__(self, other: Any) -> Vector:
        return Vector(self.lanes, self.lanes.builder.fsub(self._other(other), self.value, flags=CONTRACT))

    def __mul__(self, other: Any) -> Vector:
        return Vector(self.lanes, self.lanes.builder.fmul(self.value, self._other(other), flags=CONTRACT))

    def __truediv__(self, other: Any) -> Vector:
        return Vector(self.lanes, self.lanes.builder.fdiv(self.value, self._other(other)))

    def __neg__(self) -> Vector:
        return Vector(self.lanes, self.lanes.builder.fneg(self.value))

    def __lt__(self, other: Any) -> Any:
        return self.lanes.builder.fcmp_ordered("<", self.value, self._other(other))

    def __le__(self, other: Any) -> Any:
        return self.lanes.builder.fcmp_ordered("<=", self.value, self._other(other))

    def __gt__(self, other: Any) -> Any:
        return self.lanes.builder.fcmp_ordered(">", self.value, self._other(other))

    def fma(self, factor: Any, addend: Any) -> Vector:
        """``self factor + addend``, rounded once."""
        arguments = [self.value, self._other(factor), self._other(addend)]
        return Vector(self.lanes, self.lanes.builder.call(self.lanes.fused, arguments))


class Lanes:
    """A width and a precision, and the instructions of it.

    Args:
        context: Numba's, as an intrinsic gets it.
        builder: The same.
        precision: float32 or float64 (numba types): of the arithmetic.
        width: Numbers side by side; None for those of a whole register.
    """

    def __init__(self, context: Any, builder: Any, precision: Any, width: int | None = None) -> None:
        self.context, self.builder, self.precision = context, builder, precision
        self.width = BYTES // (8 if precision == types.float64 else 4) if width is None else width
        self.element = TYPES[precision]
        self.vector = ir.VectorType(self.element, self.width)
        name = f"llvm.fma.v{self.width}f{precision.bitwidth}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        self.fused = cgutils.get_or_insert_function(builder.module, kind, name)

    def constant(self, value: float) -> Vector:
        """One number in all lanes, known when the kernel is compiled."""
        return Vector(self, ir.Constant(self.vector, [ir.Constant(self.element, float(value))] * self.width))

    def spread(self, number: Any) -> Vector:
        """One number in all lanes; a float64 is rounded to the precision first."""
        if number.type != self.element:
            number = self.builder.fptrunc(number, self.element)
        undefined = ir.Constant(self.vector, ir.Undefined)
        single = self.builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.width), [0] * self.width)
        return Vector(self, self.builder.shuffle_vector(single, undefined, zeros))

    def where(self, condition: Any, yes: Any, no: Any) -> Vector:
        """``yes`` in the lanes where the condition holds, else ``no``."""
        values = [part.value if isinstance(part, Vector) else self.constant(part).value for part in (yes, no)]
        return Vector(self, self.builder.select(condition, *values))

    def _pointer(self, place: Place, at: Any) -> Any:
        kind = ir.VectorType(TYPES[place.stored], self.width)
        return self.builder.bitcast(self.builder.gep(place.pointer, [at]), kind.as_pointer())

    def load(self, place: Place, at: Any) -> Vector:
        """Stored numbers, widened to the precision."""
        builder = self.builder
        value = builder.load(self._pointer(place, at), align=place.stored.bitwidth // 8)
        if place.stored == types.uint16:  # the upper half of a float32
            words = ir.VectorType(ir.IntType(32), self.width)
            shifted = builder.shl(builder.zext(value, words), ir.Constant(words, [16] * self.width))
            value = builder.bitcast(shifted, ir.VectorType(ir.FloatType(), self.width))
        return Vector(self, value if value.type == self.vector else builder.fpext(value, self.vector))

    def store(self, value: Vector, place: Place, at: Any, around: bool = False) -> None:
        """Write numbers as they are stored; ``around`` the caches, if the place is aligned to whole vectors."""
        builder, numbers = self.builder, value.value
        if place.stored == types.uint16:
            numbers = self._upper_halves(numbers)
        elif numbers.type.element != TYPES[place.stored]:
            wider = place.stored == types.float64
            kind = ir.VectorType(TYPES[place.stored], self.width)
            numbers = builder.fpext(numbers, kind) if wider else builder.fptrunc(numbers, kind)
        size = place.stored.bitwidth // 8
        written = builder.store(numbers, self._pointer(place, at), align=size * self.width if around else size)
        if around:
            written.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))

    def _upper_halves(self, numbers: Any) -> Any:
        """bfloat16, rounded to nearest, ties to even; NaN stays NaN."""
        builder = self.builder
        words = ir.VectorType(ir.IntType(32), self.width)

        def each(value: int) -> Any:
            return ir.Constant(words, [value] * self.width)

        word = builder.bitcast(numbers, words)
        upper = builder.lshr(word, each(16))
        odd = builder.and_(upper, each(1))
        rounded = builder.lshr(builder.add(builder.add(word, each(0x7FFF)), odd), each(16))
        unordered = builder.fcmp_unordered("uno", numbers, numbers)
        kept = builder.select(unordered, builder.or_(upper, each(0x40)), rounded)
        return builder.trunc(kept, ir.VectorType(ir.IntType(16), self.width))

    def fetch(self, place: Place, at: Any) -> None:
        """Have the line with this number brought to the second-level cache; it may lie outside the array."""
        address = self.builder.bitcast(self.builder.gep(place.pointer, [at]), BYTE.as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        prefetch = self.builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        self.builder.call(prefetch, [address, *(ir.Constant(word, value) for value in (0, 2, 1))])

    def total(self, value: Any) -> Any:
        """The sum of all lanes: halves are added until one number is left."""
        builder, width = self.builder, self.width
        while width > 1:
            width //= 2
            picks = ir.VectorType(ir.IntType(32), width)
            low, high = (
                builder.shuffle_vector(value, value, ir.Constant(picks, list(range(start, start + width))))
                for start in (0, width)
            )
            value = builder.fadd(low, high)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


class Sums:
    """Running sums that a sweep adds to, several side by side, so that none waits for the one before.

    Args:
        wide: Of the sweep.
        narrow: Of the sweep.
        count: Different sums.
        chains: Of each sum.
    """

    def __init__(self, wide: Lanes, narrow: Lanes, count: int, chains: int) -> None:
        self.wide, self.narrow, self.chains = wide, narrow, chains
        self.places = {
            (lanes.width, chain): [
                cgutils.alloca_once_value(lanes.builder, lanes.constant(0.0).value) for _ in range(count)
            ]
            for lanes, number in ((wide, chains), (narrow, 1))
            for chain in range(number)
        }
        for (width, _), places in self.places.items():
            lanes = wide if width == wide.width else narrow
            for place in places:
                lanes.builder.store(lanes.constant(0.0).value, place)

    def add(self, terms: Sequence[Vector], chain: int, mask: Any = None) -> None:
        """Add a vector to each sum, in the lanes of the mask."""
        lanes = terms[0].lanes
        for term, place in zip(terms, self.places[lanes.width, chain], strict=True):
            counted = term if mask is None else lanes.where(mask, term, 0.0)
            total = Vector(lanes, lanes.builder.load(place)) + counted
            lanes.builder.store(total.value, place)

    def totals(self) -> list[Any]:
        """The sums over all lanes and chains, in float64."""
        builder = self.wide.builder
        results = []
        for index in range(len(self.places[self.wide.width, 0])):
            chains = [builder.load(self.places[self.wide.width, chain][index]) for chain in range(self.chains)]
            while len(chains) > 1:
                half = len(chains) // 2
                chains = [builder.fadd(chains[i], chains[i + half]) for i in range(half)]
            rest = self.narrow.total(builder.load(self.places[self.narrow.width, 0][index]))
            number = builder.fadd(self.wide.total(chains[0]), rest)
            results.append(number if number.type == ir.DoubleType() else builder.fpext(number, ir.DoubleType()))
        return results


def sweep(
    wide: Lanes, narrow: Lanes, count: Any, body: Callable[[Lanes, Any, int, Any], None], chains: int = 1
) -> None:
    """Run ``body(lanes, at, chain, mask)`` over ``count`` numbers.

    Args:
        wide: For slices of at least one vector.
        narrow: Of width 1, for shorter ones.
        count: Of numbers, a 64-bit integer of LLVM.
        body: Emits the work on the numbers from ``at`` on; where the mask is not None, sums take its lanes only.
        chains: Vectors of one turn of the loop; a power of two.
    """
    builder = wide.builder
    width = constant(wide.width)
    cursor = cgutils.alloca_once(builder, WORD)
    builder.store(constant(0), cursor)

    def loop(lanes: Lanes, vectors: int) -> None:
        step = constant(vectors * lanes.width)
        head, inside, done = (builder.append_basic_block(name) for name in ("head", "inside", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        at = builder.load(cursor)
        builder.cbranch(builder.icmp_signed("<=", builder.add(at, step), count), inside, done)
        builder.position_at_end(inside)
        for vector in range(vectors):
            body(lanes, builder.add(at, constant(vector * lanes.width)), vector, None)
        builder.store(builder.add(at, step), cursor)
        builder.branch(head)
        builder.position_at_end(done)

    with builder.if_else(builder.icmp_signed(">=", count, width)) as (long, short):
        with long:
            if chains > 1:
                loop(wide, chains)
            loop(wide, 1)
            at = builder.load(cursor)
            with builder.if_then(builder.icmp_signed("<", at, count)):
                last = builder.sub(count, width)
                done = wide.builder.trunc(builder.sub(at, last), ir.IntType(32))
                numbers = ir.VectorType(ir.IntType(32), wide.width)
                undefined = ir.Constant(numbers, ir.Undefined)
                single = builder.insert_element(undefined, done, ir.Constant(ir.IntType(32), 0))
                spread = builder.shuffle_vector(single, undefined, ir.Constant(numbers, [0] * wide.width))
                mask = builder.icmp_signed(">=", ir.Constant(numbers, list(range(wide.width))), spread)
                body(wide, last, 0, mask)
        with short:
            loop(narrow, 1)


def fence(builder: Any) -> None:
    """Wait until what was stored around the caches is seen by all threads."""
    builder.fence("seq_cst")
