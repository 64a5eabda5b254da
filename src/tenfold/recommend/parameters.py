"""The ranges of the parameters of `ImplicitALS`, checked when it is fitted or read from a folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tenfold.recommend.solvers import SOLVERS


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raises a ValueError that names the first parameter out of range, and its range."""
    for name in ("factors", "iterations"):
        value = parameters[name]
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
    for name, least, strict in (
        ("regularization", 0.0, False),
        ("alpha", 0.0, False),
        ("epsilon", 0.0, True),
        ("unobserved_weight", 0.0, True),
        ("frequency_exponent", -math.inf, False),
    ):
        value = parameters[name]
        if not math.isfinite(value) or value < least or (strict and value == least):
            raise ValueError(f"{name}={value!r} must be finite and {'above' if strict else 'at least'} {least:g}")
    for name, choices in (
        ("confidence", ("linear", "log", "raw")),
        ("target", ("hkv", "rendle")),
        ("solver", SOLVERS),
        ("dtype", ("float32", "float64")),
    ):
        if parameters[name] not in choices:
            raise ValueError(f"{name}={parameters[name]!r} is not one of {', '.join(map(repr, choices))}")
    if not isinstance(parameters["device"], str | None):
        raise ValueError(f"device={parameters['device']!r} must be None or a name such as 'cuda' or 'auto'")
    if parameters["n_jobs"] is not None and not parameters["n_jobs"] >= 1:
        raise ValueError(
            f"n_jobs={parameters['n_jobs']!r} must be at least 1, or None for as many threads as torch takes"
        )
    if parameters["tol"] is not None and not parameters["tol"] >= 0:
        raise ValueError(f"tol={parameters['tol']!r} must be at least 0")
