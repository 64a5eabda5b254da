"""Products with four rows at a time against numpy, for every width."""

import numpy as np
import pytest

from tenfold.numerics import kernel, padded
from tenfold.numerics.row_products import accumulate_four, four_adds, four_dots, four_products, gather_four, weigh_row


@kernel
def dots_and_sums(rows, first, factors, x, result):
    four_adds(rows, first, x.size, (factors[0], factors[1], factors[2], factors[3]), result)
    return four_dots(rows, first, x.size, x)


@kernel
def gather(table, numbers, roots, x, rows, first):
    four = (numbers[0], numbers[1], numbers[2], numbers[3])
    return gather_four(table, four, x.size, roots, x, rows, first, four)


@kernel
def accumulate(rows, first, a, b, result, squares):
    factors, weights = (a[0], a[1], a[2], a[3]), (b[0], b[1], b[2], b[3])
    accumulate_four(rows, first, result.size, factors, weights, result, squares)


@kernel
def products(table, numbers, x):
    return four_products(table, (numbers[0], numbers[1], numbers[2], numbers[3]), x.size, x)


@kernel
def weigh(table, number, weight, factor, plain, weighted, place, result):
    weigh_row(table, number, result.size, weight, factor, plain, weighted, place, result)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_four_rows_give_what_numpy_gives(dtype):
    rng = np.random.default_rng(0)
    close = {"rtol": 0, "atol": 1e-4 if dtype == "float32" else 1e-13}
    for width in range(1, 41):
        k = padded(width, dtype)
        rows, x = rng.standard_normal((9, k)).astype(dtype), rng.standard_normal(k).astype(dtype)
        factors, weights = rng.standard_normal((2, 4)).astype(dtype)
        result = np.ones(k, dtype)
        np.testing.assert_allclose(dots_and_sums(rows, 5, factors, x, result), rows[5:] @ x, **close)
        np.testing.assert_allclose(result, 1 + factors @ rows[5:], **close)
        target, numbers = np.zeros((8, k), dtype), np.array([7, 0, 7, 3])
        roots = rng.uniform(1, 2, k).astype(dtype)
        np.testing.assert_allclose(gather(rows, numbers, roots, x, target, 4), (rows[numbers] * roots) @ x, **close)
        np.testing.assert_array_equal(target[4:], rows[numbers] * roots)
        assert not target[:4].any()
        result, squares = np.ones((2, k), dtype)
        accumulate(rows, 1, factors, weights, result, squares)
        np.testing.assert_allclose(result, 1 + factors @ rows[1:5], **close)
        np.testing.assert_allclose(squares, 1 + weights @ rows[1:5] ** 2, **close)
        np.testing.assert_allclose(products(rows, numbers, x), rows[numbers] @ x, **close)
        plain, weighted, result = np.zeros((3, k), dtype), np.zeros((3, k), dtype), np.ones(k, dtype)
        weigh(rows, 8, weights[0], factors[0], plain, weighted, 1, result)
        np.testing.assert_array_equal(plain[1], rows[8])
        np.testing.assert_array_equal(weighted[1], weights[0] * rows[8])
        np.testing.assert_allclose(result, 1 + factors[0] * rows[8], **close)
        assert not plain[[0, 2]].any()
