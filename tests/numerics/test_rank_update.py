"""Tiles in vector registers against numpy, for every width."""

import numpy as np
import pytest

from tenfold.numerics import padded, rank_update, solve_definite, transform_rows

WIDTHS = [*range(1, 41), 64, 65, 100]
CLOSE = {"float32": 2e-5, "float64": 1e-13}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rank_update_adds_the_product_to_the_upper_triangle(dtype):
    rng = np.random.default_rng(0)
    for k in sorted({padded(width, dtype) for width in WIDTHS}):
        q = rng.standard_normal((7, k)).astype(dtype)
        p, start = q * rng.uniform(1, 3, (7, 1)).astype(dtype), rng.standard_normal((k, k)).astype(dtype)
        for count in (0, 1, 5, 7):
            found = start.copy()
            rank_update(p, q, count, found)
            expected = start + p[:count].astype(float).T @ q[:count]
            np.testing.assert_allclose(np.triu(found), np.triu(expected), rtol=0, atol=40 * CLOSE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_solution_of_a_definite_system_is_that_of_numpy(dtype):
    rng = np.random.default_rng(1)
    for k in sorted({padded(width, dtype) for width in WIDTHS}):
        factors, right = rng.standard_normal((k + 3, k)), rng.standard_normal(k).astype(dtype)
        matrix = np.ascontiguousarray(factors.T @ factors + k * np.eye(k), dtype)
        system, found = matrix.copy(), right.copy()
        system[np.tril_indices(k, -1)] = rng.standard_normal(k * (k - 1) // 2)  # only the upper triangle counts
        assert solve_definite(system, found, np.empty(k, dtype))
        expected = np.linalg.solve(matrix.astype(float), right)
        np.testing.assert_allclose(found, expected, rtol=0, atol=20 * CLOSE[dtype] * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("place", [0, 3, 4, 9, 10, 15])
@pytest.mark.parametrize("pivot", [0.0, -1.0, np.nan])
def test_a_matrix_that_is_not_positive_definite_is_told(dtype, place, pivot):
    matrix = np.eye(16, dtype=dtype)
    matrix[place, place] = pivot
    assert not solve_definite(matrix, np.ones(16, dtype), np.empty(16, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_transformed_one_by_one_and_in_place(dtype):
    rng = np.random.default_rng(2)
    for width in (1, 5, 16, 40, 70):
        source, matrix = rng.standard_normal((21, width)).astype(dtype), np.zeros((width, padded(width, dtype)), dtype)
        matrix[:, :width] = rng.standard_normal((width, width))
        every, some = np.zeros((2, 21, matrix.shape[1]), dtype)
        transform_rows(np.arange(21), source, matrix, every)
        np.testing.assert_allclose(every, source @ matrix, rtol=0, atol=100 * CLOSE[dtype])
        chosen = np.array([20, 3, 4])
        transform_rows(chosen, source, matrix, some)
        np.testing.assert_array_equal(some[chosen], every[chosen])  # the same bits whatever is computed beside them
        assert not np.delete(some, chosen, axis=0).any()
        transform_rows(np.arange(21), source, matrix, source)
        np.testing.assert_array_equal(source, every[:, :width])
