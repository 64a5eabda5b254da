"""The few operations that Python has no word for: fused multiply-add, sign copying, exponents as bits, polynomials.

Each is one or a few LLVM instructions without a branch, so loops that use them vectorise. All are for use inside
compiled code. Integer work stays in the width of the float beside it (numba widens int32 sums to int64, which halves
the lanes), and avoids arithmetic right shifts of 64 bits, which AVX2 lacks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic as untyped_intrinsic

intrinsic: Any = untyped_intrinsic  # its own annotations describe the undecorated function


class FloatLayout(NamedTuple):
    """Where the exponent of an IEEE float lies."""

    word: Any  # the integer type of the same width
    mantissa_bits: int
    bias: int
    rounder: int  # bits of 1.5 * 2**mantissa_bits: adding it rounds to an integer that lies in the low bits


LAYOUTS = {
    types.float32: FloatLayout(ir.IntType(32), 23, 127, 0x4B400000),
    types.float64: FloatLayout(ir.IntType(64), 52, 1023, 0x4338000000000000),
}


SPLIT = (5, 20)  # numbers of coefficients from which a polynomial is evaluated in two and in four chains


def _known(*arguments: Any) -> bool:
    return arguments[0] in LAYOUTS and all(argument == arguments[0] for argument in arguments)


def _constant(layout: FloatLayout, value: int) -> Any:
    return ir.Constant(layout.word, value)


def _declared(builder: Any, name: str, kind: Any, arity: int) -> Any:
    """An LLVM intrinsic of that many arguments of one type."""
    return builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * arity))


@intrinsic
def fused(typingctx, a, b, c):
    """The fused multiply-add a * b + c, rounded once."""
    if not _known(a, b, c):
        return None

    def codegen(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return a(a, b, c), codegen


@intrinsic
def with_sign(typingctx, magnitude, sign):
    """|magnitude| with the sign of the second argument."""
    if not _known(magnitude, sign):
        return None

    def codegen(context, builder, signature, arguments):
        return builder.call(_declared(builder, "llvm.copysign", arguments[0].type, 2), arguments)

    return magnitude(magnitude, sign), codegen


@intrinsic
def magnitude(typingctx, x):
    """|x|."""
    if not _known(x):
        return None

    def codegen(context, builder, signature, arguments):
        return builder.call(_declared(builder, "llvm.fabs", arguments[0].type, 1), arguments)

    return x(x), codegen


@intrinsic
def times_power_of_two(typingctx, x, rounded):
    """The product x * 2**n with n given as ``rounded = 1.5 * 2**mantissa_bits + n``.

    It is formed by two factors, so that subnormal results round once and large ones do not overflow early.
    """
    if not _known(x, rounded):
        return None

    def codegen(context, builder, signature, arguments):
        layout = LAYOUTS[x]
        value, shifted = arguments
        # n + 2 bias, which is positive (even for n < -bias), so that a logical shift halves it
        n = builder.sub(builder.bitcast(shifted, layout.word), _constant(layout, layout.rounder - 2 * layout.bias))
        half = builder.lshr(n, _constant(layout, 1))
        for biased in (half, builder.sub(n, half)):
            factor = builder.bitcast(builder.shl(biased, _constant(layout, layout.mantissa_bits)), value.type)
            value = builder.fmul(value, factor)
        return value

    return x(x, rounded), codegen


@intrinsic
def exponent_and_mantissa(typingctx, x, lowest):
    """(n, m) as floats with x = m * 2**n and lowest <= m < 2 lowest, for positive normal x and 1/2 < lowest <= 1."""
    if not _known(x, lowest):
        return None

    def codegen(context, builder, signature, arguments):
        layout = LAYOUTS[x]
        value, low = arguments
        word = builder.bitcast(value, layout.word)
        # the exponent field changes where x / lowest crosses a power of two; 1024 bias units keep it positive
        offset = builder.sub(word, builder.bitcast(low, layout.word))
        positive = builder.add(offset, _constant(layout, (layout.bias + 1) << layout.mantissa_bits))
        biased = builder.lshr(positive, _constant(layout, layout.mantissa_bits))
        n = builder.sub(biased, _constant(layout, layout.bias + 1))
        mantissa = builder.sub(word, builder.shl(n, _constant(layout, layout.mantissa_bits)))
        # integer to float by the rounding constant: AVX2 cannot convert int64
        rounder = ir.Constant(value.type, 1.5 * 2.0**layout.mantissa_bits)
        shifted = builder.bitcast(builder.add(n, _constant(layout, layout.rounder)), value.type)
        return context.make_tuple(
            builder, signature.return_type, (builder.fsub(shifted, rounder), builder.bitcast(mantissa, value.type))
        )

    return types.UniTuple(x, 2)(x, lowest), codegen


@intrinsic
def polynomial(typingctx, x, coefficients):
    """The polynomial with a constant tuple of coefficients, constant term first, in multiply-adds.

    Long ones are two or four interleaved Horner chains in x^2 or x^4: a single chain would wait for its own latency.
    """
    if not (isinstance(coefficients, types.UniTuple) and _known(x, coefficients.dtype)):
        return None

    def codegen(context, builder, signature, arguments):
        value, table = arguments
        count = len(coefficients)
        chains = 1 if count < SPLIT[0] else 2 if count < SPLIT[1] else 4
        terms = [builder.extract_value(table, power) for power in range(count)]
        fmuladd = _declared(builder, "llvm.fmuladd", value.type, 3)
        powers = [value]
        while 2 ** len(powers) <= chains:
            powers.append(builder.fmul(powers[-1], powers[-1]))
        sums = []
        for first in range(chains):
            *rest, result = terms[first::chains]
            for term in reversed(rest):
                result = builder.call(fmuladd, (result, powers[-1], term))
            sums.append(result)
        for power in reversed(powers[:-1]):
            half = len(sums) // 2
            sums = [builder.call(fmuladd, (sums[i + half], power, sums[i])) for i in range(half)]
        return sums[0]

    return x(x, coefficients), codegen
