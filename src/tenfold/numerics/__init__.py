"""Compiled kernels: their decorator, and the vectorising scalar functions to use inside them."""

from tenfold.numerics.compiled import FAST, inlined, kernel
from tenfold.numerics.definite_systems import solve_definite
from tenfold.numerics.elementary import (
    exp32,
    exp64,
    expm1_32,
    expm1_64,
    log1p_32,
    log1p_64,
    log32,
    log64,
    sigmoid32,
    sigmoid64,
    softplus32,
    softplus64,
    tanh32,
    tanh64,
)
from tenfold.numerics.normal_tails import (
    erfcx32,
    erfcx64,
    gaussian32,
    gaussian64,
    log_ndtr32,
    log_ndtr64,
    mills32,
    mills64,
    ndtr32,
    ndtr64,
)
from tenfold.numerics.rank_update import rank_update, transform_rows
from tenfold.numerics.vectors import padded

__all__ = [
    "FAST",
    "erfcx32",
    "erfcx64",
    "exp32",
    "exp64",
    "expm1_32",
    "expm1_64",
    "gaussian32",
    "gaussian64",
    "inlined",
    "kernel",
    "log1p_32",
    "log1p_64",
    "log32",
    "log64",
    "log_ndtr32",
    "log_ndtr64",
    "mills32",
    "mills64",
    "ndtr32",
    "ndtr64",
    "padded",
    "rank_update",
    "sigmoid32",
    "sigmoid64",
    "softplus32",
    "softplus64",
    "solve_definite",
    "tanh32",
    "tanh64",
    "transform_rows",
]
