"""Every scalar function against 40-digit arithmetic over its whole range, and at the edges of the number line."""

import mpmath as mp
import numba
import numpy as np
import pytest

import tenfold.numerics as numerics
from tenfold.numerics import FAST

mp.mp.dps = 40

EXACT = {
    "exp": mp.exp,
    "expm1_": mp.expm1,
    "log": mp.log,
    "log1p_": mp.log1p,
    "tanh": mp.tanh,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "softplus": lambda x: mp.log1p(mp.exp(x)),
    "erfcx": lambda x: mp.exp(x * x) * mp.erfc(x) if x < 1000 else asymptotic_erfcx(x),
    "mills": lambda z: mp.sqrt(mp.pi / 2) * EXACT["erfcx"](z / mp.sqrt(2)),
    "gaussian": lambda z: mp.exp(-z * z / 2),
    "ndtr": mp.ncdf,
    "log_ndtr": lambda x: mp.log(mp.ncdf(x)) if x < 0 else mp.log1p(-mp.ncdf(-x)),
}
# the largest error allowed, in units of the last place of the exact result
ULPS = {"tanh": 3, "erfcx": 5, "mills": 5, "ndtr": 5, "log_ndtr": 5}
INF, NAN = np.inf, np.nan
# values at 0, -0, inf, -inf, NaN, -1
EDGES = {
    "exp": (1, 1, INF, 0, NAN, np.exp(-1.0)),
    "expm1_": (0, -0.0, INF, -1, NAN, np.expm1(-1.0)),
    "log": (-INF, -INF, INF, NAN, NAN, NAN),
    "log1p_": (0, 0, INF, NAN, NAN, -INF),
    "tanh": (0, -0.0, 1, -1, NAN, np.tanh(-1.0)),
    "sigmoid": (0.5, 0.5, 1, 0, NAN, 1 / (1 + np.exp(1.0))),
    "softplus": (np.log(2), np.log(2), INF, 0, NAN, np.log1p(np.exp(-1.0))),
    "erfcx": (1, 1, 0, NAN, NAN, NAN),
    "mills": (np.sqrt(np.pi / 2), np.sqrt(np.pi / 2), 0, NAN, NAN, NAN),
    "gaussian": (1, 1, 0, 0, NAN, np.exp(-0.5)),
    "ndtr": (0.5, 0.5, 1, 0, NAN, 0.15865525393145707),
    "log_ndtr": (-np.log(2), -np.log(2), 0, -INF, NAN, -1.8410216450092636),
}
PRECISIONS = {"32": np.float32, "64": np.float64}


def asymptotic_erfcx(x):
    """erfcx for large x: the first terms of 1 - 1/(2 x^2) + 3/(4 x^4) - ..."""
    y = 1 / (2 * x * x)
    return (1 - y + 3 * y**2 - 15 * y**3 + 105 * y**4) / (mp.sqrt(mp.pi) * x)


@pytest.fixture
def evaluate(compiled_loop):
    """The function of every value, computed in a compiled loop over the array."""

    def evaluate(name: str, bits: str, values: np.ndarray) -> np.ndarray:
        results = np.empty_like(values)
        compiled_loop(name, bits)(values, results)
        return results

    return evaluate


def sample(name: str, bits: str) -> np.ndarray:
    """Arguments over the whole range in which the result is finite and not zero, subnormal results included."""
    rng = np.random.default_rng(0)
    single = bits == "32"
    signs = rng.choice([-1.0, 1.0], 100)
    small = np.exp(rng.uniform(-80 if single else -600, 0, 100)) * signs
    if name == "log":
        values = np.exp(rng.uniform(-103 if single else -744, 88 if single else 709, 500))
        values = np.concatenate([values, 1 + rng.uniform(-0.3, 0.4, 100), 1 + small])
    elif name == "log1p_":
        near_minus_one = -1 + np.exp(rng.uniform(-12, 0, 200))
        values = np.concatenate([near_minus_one, np.exp(rng.uniform(0, 80, 200)), small[small > -0.9]])
    elif name in ("erfcx", "mills"):
        values = np.concatenate([rng.uniform(0, 10, 300), np.exp(rng.uniform(-60, 60, 200))])
    elif name in ("gaussian", "ndtr"):
        values = np.concatenate([rng.uniform(-14.2 if single else -38.4, 8, 500), small])
    elif name == "log_ndtr":
        both = rng.uniform(-14 if single else -38, 14 if single else 38, 400)
        values = np.concatenate([both, -np.exp(rng.uniform(0, 40, 100)), small])
    else:
        whole = rng.uniform(-103 if single else -744, 88.7 if single else 709.7, 300)
        values = np.concatenate([whole, rng.uniform(-3, 3, 200), small])
    return values.astype(PRECISIONS[bits])


@pytest.mark.parametrize("bits", PRECISIONS)
@pytest.mark.parametrize("name", EXACT)
def test_error_is_a_few_units_in_the_last_place_over_the_whole_range(evaluate, name, bits):
    values = sample(name, bits)
    limits = np.finfo(PRECISIONS[bits])
    for value, result in zip(values, evaluate(name, bits, values), strict=True):
        exact = EXACT[name](mp.mpf(float(value)))
        if exact == 0:
            assert result == 0
            continue
        spacing = mp.ldexp(1, int(mp.floor(mp.log(abs(exact), 2))) - limits.nmant)
        error = abs(mp.mpf(float(result)) - exact) / max(spacing, mp.mpf(float(limits.smallest_subnormal)))
        assert error <= ULPS.get(name, 2), f"{name}{bits}({value}) = {result}, exact {mp.nstr(exact, 20)}"


@pytest.mark.parametrize("bits", PRECISIONS)
@pytest.mark.parametrize("name", EDGES)
def test_infinities_give_limits_and_nan_gives_nan(evaluate, name, bits):
    values = np.array([0.0, -0.0, INF, -INF, NAN, -1.0], PRECISIONS[bits])
    results = evaluate(name, bits, values)
    expected = np.array(EDGES[name], PRECISIONS[bits])
    np.testing.assert_allclose(results, expected, rtol=5 * np.finfo(PRECISIONS[bits]).eps)
    if expected[0] == 0:
        assert np.signbit(results[0]) == np.signbit(expected[0])
        assert np.signbit(results[1]) == np.signbit(expected[1])


@pytest.mark.parametrize("bits", PRECISIONS)
def test_overflow_begins_where_the_result_leaves_the_range(evaluate, bits):
    kind = PRECISIONS[bits]
    largest = np.log(np.finfo(np.float64).max) if bits == "64" else np.log(float(np.finfo(np.float32).max))
    below, above = kind(largest * (1 - 1e-6)), kind(largest * (1 + 1e-6))
    for name in ("exp", "expm1_"):
        results = evaluate(name, bits, np.array([below, above], kind))
        assert np.isfinite(results[0])
        assert results[1] == INF


@pytest.mark.parametrize("bits", PRECISIONS)
def test_probabilities_of_both_tails_add_to_one(evaluate, bits):
    values = np.linspace(-9, 9, 401).astype(PRECISIONS[bits])
    total = evaluate("ndtr", bits, values) + evaluate("ndtr", bits, -values)
    np.testing.assert_allclose(total, 1, rtol=3 * np.finfo(PRECISIONS[bits]).eps)


@pytest.mark.parametrize("sigma", [-30.0, -100.0, 30.0, -1e4])
def test_log_ndtr_holds_far_beyond_where_the_probability_underflows(sigma):
    exact = EXACT["log_ndtr"](mp.mpf(sigma))
    assert float(numerics.log_ndtr32(sigma)) == pytest.approx(float(exact), rel=3e-7, abs=1e-45)
    assert float(numerics.log_ndtr64(sigma)) == pytest.approx(float(exact), rel=1e-15, abs=0)


def test_an_argument_of_another_type_is_converted():
    assert numerics.exp64(1) == pytest.approx(np.e, rel=1e-15)
    assert numerics.exp32(np.float64(1)) == pytest.approx(np.e, rel=1e-7)


def test_guards_against_infinity_survive_the_fast_flags():
    @numba.njit(fastmath=set(FAST), error_model="numpy")
    def masked_total(values):
        total = 0.0
        for i in range(values.size):
            total += 0.0 if values[i] == -np.inf or np.isnan(values[i]) else values[i]
        return total

    assert masked_total(np.array([1.0, -INF, NAN, 2.0])) == 3.0
