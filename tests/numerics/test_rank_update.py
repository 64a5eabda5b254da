"""Tiles in vector registers against numpy, for every width."""

import numpy as np
import pytest

from tenfold.numerics.rank_update import cholesky, cholesky_solve, padded, rank_update

WIDTHS = range(1, 41)
CLOSE = {"float32": 2e-5, "float64": 1e-13}


def definite(rng, width, dtype):
    factors = rng.standard_normal((width + 3, width))
    return np.ascontiguousarray(factors.T @ factors + width * np.eye(width), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rank_update_adds_the_product_to_the_upper_triangle(dtype):
    rng = np.random.default_rng(0)
    for width in WIDTHS:
        k = padded(width, dtype)
        q = rng.standard_normal((7, k)).astype(dtype)
        p, start = q * rng.uniform(1, 3, (7, 1)).astype(dtype), rng.standard_normal((k, k)).astype(dtype)
        for count in (0, 1, 5, 7):
            found = start.copy()
            rank_update(p, q, count, found)
            expected = start + p[:count].astype(float).T @ q[:count]
            np.testing.assert_allclose(np.triu(found), np.triu(expected), rtol=0, atol=40 * CLOSE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cholesky_and_solution_are_those_of_numpy(dtype):
    rng = np.random.default_rng(1)
    for width in WIDTHS:
        k = padded(width, dtype)
        matrix, right = definite(rng, k, dtype), rng.standard_normal(k).astype(dtype)
        factor, found = matrix.copy(), right.copy()
        factor[np.tril_indices(k, -1)] = np.nan  # only the upper triangle is read
        assert cholesky(factor)
        upper = np.triu(factor).astype(float)
        np.testing.assert_allclose(upper.T @ upper, matrix, rtol=0, atol=CLOSE[dtype] * np.abs(matrix).max())
        cholesky_solve(factor, found)
        expected = np.linalg.solve(matrix.astype(float), right)
        np.testing.assert_allclose(found, expected, rtol=0, atol=20 * CLOSE[dtype] * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("place", [0, 3, 4, 11, 15])
@pytest.mark.parametrize("pivot", [0.0, -1.0, np.nan])
def test_a_matrix_that_is_not_positive_definite_is_told(dtype, place, pivot):
    matrix = np.eye(16, dtype=dtype)
    matrix[place, place] = pivot
    assert not cholesky(matrix)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_width_is_padded_to_whole_vectors(dtype):
    lanes = 32 // np.dtype(dtype).itemsize
    assert all(padded(width, dtype) % lanes == 0 and 0 <= padded(width, dtype) - width < lanes for width in WIDTHS)
