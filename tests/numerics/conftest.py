"""Loops over arrays around each scalar function, compiled once for all tests of this folder."""

from functools import cache

import numba
import pytest
from numba import float32, float64, void

import tenfold.numerics
from tenfold.numerics import FAST


@pytest.fixture(scope="session")
def compiled_loop():
    """A function of a name ("exp") and its bits ("32") that returns the compiled loop, as a kernel would contain it."""

    @cache
    def compile_loop(name: str, bits: str):
        function = getattr(tenfold.numerics, name + bits)
        kind = {"32": float32, "64": float64}[bits]

        @numba.njit(void(kind[::1], kind[::1]), fastmath=set(FAST), error_model="numpy", nogil=True)
        def loop(values, results):
            for i in range(values.size):
                results[i] = function(values[i])

        return loop

    return compile_loop
