"""bfloat16 in compiled code, which numba has no type for: the upper half of a float32, held in uint16."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from tenfold.numerics.bits import intrinsic

WORD, HALF = ir.IntType(32), ir.IntType(16)


@intrinsic
def float32_of(typingctx, half):
    """The float32 with these upper 16 bits."""
    if half != types.uint16:
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.shl(builder.zext(arguments[0], WORD), ir.Constant(WORD, 16))
        return builder.bitcast(word, ir.FloatType())

    return types.float32(half), codegen


@intrinsic
def bfloat16_of(typingctx, value):
    """The upper half of a float32, rounded to nearest, ties to even; NaN stays NaN."""
    if value != types.float32:
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.bitcast(arguments[0], WORD)
        upper = builder.lshr(word, ir.Constant(WORD, 16))
        odd = builder.and_(upper, ir.Constant(WORD, 1))
        rounded = builder.lshr(builder.add(builder.add(word, ir.Constant(WORD, 0x7FFF)), odd), ir.Constant(WORD, 16))
        quiet = builder.or_(upper, ir.Constant(WORD, 0x40))
        unordered = builder.fcmp_unordered("uno", arguments[0], arguments[0])
        return builder.trunc(builder.select(unordered, quiet, rounded), HALF)

    return types.uint16(value), codegen
