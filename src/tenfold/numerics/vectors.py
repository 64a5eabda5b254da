"""Vector instructions for kernels: the width of the machine's vectors, and loops over whole vectors written as LLVM.

Numba has no vector types, and its loops over array slices cost more in bookkeeping (bounds, aliasing checks, reference counts)
than in arithmetic when rows are short. Intrinsics built on `Stream` are one loop over whole vectors, without checks. Rows are
`padded`, arrays contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic as untyped_intrinsic

intrinsic: Any = untyped_intrinsic  # its own annotations describe the undecorated function

WORD = ir.IntType(64)


def _features() -> str:
    """What the processor that numba compiles for can do; numba's own settings may ask for an older one."""
    if config.CPU_FEATURES is not None:
        return str(config.CPU_FEATURES)
    if config.CPU_NAME in (None, "host"):
        return str(binding.get_host_cpu_features().flatten())
    return ""


WIDE = "+avx512vl" in _features().split(",")
BYTES = 64 if WIDE else 32  # of a vector: the registers of AVX-512, else of AVX2 (two of them on other machines)


def padded(width: int, dtype: Any) -> int:
    """The least number of columns, at least ``width``, that whole vectors hold.

    >>> padded(50, np.float32) % (BYTES // 4), padded(64, np.float64)
    (0, 64)
    """
    lanes = BYTES // np.dtype(dtype).itemsize
    return -(-width // lanes) * lanes


def constant(value: int) -> Any:
    """A 64-bit number."""
    return ir.Constant(WORD, value)


class Stream:
    """Emits vector instructions and loops over the vectors of a row.

    Args:
        context: Numba's, as an intrinsic gets it.
        builder: The same.
        signature: The same.
        scalar: The numba type of the numbers, float32 or float64.
    """

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
        """The address of the first number of an array argument."""
        return self.context.make_array(self.signature.args[index])(self.context, self.builder, value).data

    def row(self, base: Any, number: Any, width: Any) -> Any:
        """The address of a row."""
        return self.builder.gep(base, [self.builder.mul(number, width)])

    def number(self, base: Any, at: Any) -> Any:
        """One number."""
        return self.builder.load(self.builder.gep(base, [at]))

    def spread(self, value: Any) -> Any:
        """A vector that repeats a number."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        single = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(single, undefined, zeros)

    def _pointer(self, base: Any, at: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(base, [at]), self.vector.as_pointer())

    def load(self, base: Any, at: Any) -> Any:
        """A vector."""
        return self.builder.load(self._pointer(base, at), align=self.bytes)

    def store(self, value: Any, base: Any, at: Any) -> None:
        """Writes a vector."""
        self.builder.store(value, self._pointer(base, at), align=self.bytes)

    def fetch(self, base: Any, at: Any) -> None:
        """Asks for the memory at a place, to be there when it is read."""
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        prefetch = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        pointer = self.builder.bitcast(self.builder.gep(base, [at]), byte)
        self.builder.call(
            prefetch, [pointer, *(ir.Constant(word, value) for value in (0, 3, 1))]
        )  # to read, near, data

    def multiply(self, a: Any, b: Any) -> Any:
        """``a b``."""
        return self.builder.fmul(a, b)

    def add(self, a: Any, b: Any) -> Any:
        """``a + b``."""
        return self.builder.fadd(a, b)

    def negative(self, a: Any) -> Any:
        """``-a``, of a number or a vector."""
        return self.builder.fneg(a)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """``a b + c``."""
        return self.builder.call(self._fma, [a, b, c])

    def sum(self, value: Any) -> Any:
        """The sum of a vector's numbers, in any order."""
        return self.builder.call(self._reduce, [ir.Constant(self.element, 0.0), value], fastmath=("reassoc",))

    def _mixed(self, a: Any, b: Any, lanes: list[int]) -> Any:
        kind = ir.VectorType(ir.IntType(32), self.lanes)
        return self.builder.shuffle_vector(a, b, ir.Constant(kind, lanes))

    def four_sums(self, values: list[Any]) -> list[Any]:
        """The sum of each of four vectors' numbers: halves, then quarters of them share a vector and its additions."""
        n, half, quarter = self.lanes, self.lanes // 2, self.lanes // 4

        def fold(a: Any, b: Any, first: list[int], second: list[int]) -> Any:
            return self.builder.fadd(self._mixed(a, b, first), self._mixed(a, b, second))

        lower = [*range(half), *range(n, n + half)]
        pairs = [fold(a, b, lower, [i + half for i in lower]) for a, b in (values[:2], values[2:])]
        lower = [start + i for start in (0, half, n, n + half) for i in range(quarter)]
        total = fold(pairs[0], pairs[1], lower, [i + quarter for i in lower])
        step = quarter // 2
        while step:  # within a quarter
            total = self.builder.fadd(total, self._mixed(total, total, [i ^ step for i in range(n)]))
            step //= 2
        word = ir.IntType(32)
        return [self.builder.extract_element(total, ir.Constant(word, i * quarter)) for i in range(4)]

    def count(self, start: Any, stop: Any, step: int, initial: list[Any], body: Callable[..., list[Any]]) -> list[Any]:
        """Runs ``body(at, values) -> values`` for at = start, start + step, ... below stop, at least once; the last values."""
        builder = self.builder
        before = builder.block
        block, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.branch(block)
        builder.position_at_end(block)
        at = builder.phi(WORD)
        at.add_incoming(start, before)
        values = [builder.phi(value.type) for value in initial]
        for phi, value in zip(values, initial, strict=True):
            phi.add_incoming(value, before)
        results = body(at, values)
        following = builder.add(at, constant(step))
        at.add_incoming(following, block)
        for phi, result in zip(values, results, strict=True):
            phi.add_incoming(result, block)
        builder.cbranch(builder.icmp_signed("<", following, stop), block, done)
        builder.position_at_end(done)
        return results

    def loop(self, width: Any, sums: int, body: Callable[..., list[Any]], start: Any = None) -> list[Any]:
        """Runs ``body(at, sums) -> sums`` for each vector of a row (from column ``start``); the sums over all their numbers."""
        zero = ir.Constant(self.vector, [0.0] * self.lanes)
        first = constant(0) if start is None else start
        vectors = self.count(first, width, self.lanes, [zero] * sums, body)
        return self.four_sums(vectors) if sums == 4 else [self.sum(value) for value in vectors]
