"""Every solver against the dense systems, written out cell by cell."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from tenfold.recommend import solvers
from tenfold.recommend.kernels import row_systems
from tenfold.recommend.solvers import Rows, half_step

CLOSE = {"float64": 1e-9, "float32": 1e-3}


def entries(rng, rows=23, columns=31, density=0.3, low=0.5):
    """Confidences from ``low`` to 9, some rows and columns empty, a fifth of the entries dislikes."""
    matrix = sparse.random_array((rows, columns), density=density, format="csr", rng=rng)
    matrix.data = rng.uniform(low, 9, matrix.nnz) * rng.choice([1, 1, 1, 1, -1], matrix.nnz)
    dense = matrix.toarray()
    dense[[2, rows - 1]] = 0
    dense[:, 5 % columns] = 0
    return sparse.csr_array(dense)


def as_rows(matrix, base, dtype):
    return Rows(matrix.indptr.astype(np.int64), matrix.indices, matrix.data.astype(dtype), base)


def dense_solution(fixed, matrix, base, weight, regularization):
    """``(w0 Y'Y + Y'WY + lambda I)^-1 Y'Cp`` row by row, in float64."""
    fixed = fixed.astype(np.float64)
    signed = matrix.toarray()
    solution = np.empty((len(signed), fixed.shape[1]))
    for row, confidence in enumerate(signed):
        excess = np.where(confidence != 0, np.abs(confidence) - base, 0)
        system = weight * fixed.T @ fixed + (fixed.T * excess) @ fixed + regularization[row] * np.eye(fixed.shape[1])
        solution[row] = np.linalg.solve(system, fixed.T @ np.maximum(confidence, 0))
    return solution


def relative(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [1, 5, 8, 13, 40])  # no multiples of whole vectors, and more factors than fixed rows
@pytest.mark.parametrize(("base", "low"), [(1.0, 1.5), (0.7, 0.1), (0.0, 0.1)])  # excess above 0, of both signs, rendle
def test_exact_solution_is_that_of_the_dense_system(dtype, k, base, low):  # implicit#721: close in each dtype
    rng = np.random.default_rng(k)
    matrix, fixed = entries(rng, low=low), rng.standard_normal((31, k)).astype(dtype)
    matrix.data = matrix.data.astype(dtype).astype(float)
    regularization = rng.uniform(0.5, 3, 23)
    found = half_step(fixed, as_rows(matrix, base, dtype), regularization, unobserved_weight=0.7, solver="cholesky")
    assert found.dtype == dtype
    assert relative(found, dense_solution(fixed, matrix, base, 0.7, regularization)) < CLOSE[dtype]
    assert not found[[2, 22]].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dual_rows_give_what_direct_rows_give(dtype):
    rng = np.random.default_rng(0)
    matrix, k = entries(rng, low=1.5), 32  # whole vectors in either dtype
    table = rng.standard_normal((31, k)).astype(dtype)
    diagonal, shift = rng.uniform(1, 5, k).astype(dtype), rng.uniform(0, 2, 23).astype(dtype)
    rows = as_rows(matrix, 1.0, dtype)
    arguments = (
        np.arange(23),
        rows.indptr,
        rows.indices,
        rows.values,
        rows.scale(dtype),
        table,
        diagonal,
        shift,
        k,
    )
    direct, dual = np.zeros((2, 23, k), dtype)
    gains = np.empty((2, 23))
    assert (
        row_systems.direct_rows(*arguments, direct, gains[0]) == row_systems.dual_rows(*arguments, dual, gains[1]) == -1
    )
    assert relative(dual, direct) < CLOSE[dtype] / 100
    assert relative(*gains) < CLOSE[dtype] / 100


def test_tiny_excess_goes_to_the_direct_form():
    rows = Rows(np.array([0, 2, 3]), np.array([0, 1, 1]), np.array([1 + 1e-7, 5.0, 2.0]), 1.0)
    assert rows.all_positive.tolist() == [False, True]


@pytest.mark.parametrize("solver", ["cg", "subspace", "auto"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scaled", [False, True], ids=["one lambda", "lambda of each row"])
@pytest.mark.parametrize("base", [0.7, 0.0])
def test_iterative_solvers_converge_to_the_dense_solution(solver, dtype, scaled, base):
    rng = np.random.default_rng(3)
    matrix, fixed = entries(rng, low=0.1), rng.standard_normal((31, 13)).astype(dtype)
    regularization = rng.uniform(0.5, 3, 23) if scaled else np.full(23, 1.5)
    rows, factors = as_rows(matrix, base, dtype), None
    for _ in range(60):
        factors = half_step(fixed, rows, regularization, unobserved_weight=0.7, solver=solver, start=factors)
    assert relative(factors, dense_solution(fixed, matrix, base, 0.7, regularization)) < CLOSE[dtype]


def test_subspace_blocks_that_do_not_divide_the_width_converge():  # implicit PR #638: iALS++
    rng = np.random.default_rng(4)
    matrix, fixed = entries(rng, low=0.1), rng.standard_normal((31, 70)) / 8  # one block of 64 and a rest
    rows, factors, regularization = as_rows(matrix, 0.7, "float64"), None, np.ones(23)
    for _ in range(40):
        factors = half_step(fixed, rows, regularization, unobserved_weight=0.7, solver="subspace", start=factors)
    assert relative(factors, dense_solution(fixed, matrix, 0.7, 0.7, regularization)) < 1e-9


@pytest.mark.parametrize("solver", solvers.SOLVERS)
def test_factors_have_the_same_bits_for_any_number_of_threads(solver):  # implicit#440, #387, #241
    rng = np.random.default_rng(5)
    matrix, fixed = entries(rng, rows=300), rng.standard_normal((31, 19)).astype(np.float32)
    start = rng.standard_normal((300, 19)).astype(np.float32)
    one, two, three = (
        half_step(fixed, as_rows(matrix, 0.7, "float32"), np.ones(300), solver=solver, start=start, n_jobs=threads)
        for threads in (1, 2, 3)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


def test_no_rows_give_no_factors():
    empty = Rows(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), 1.0)
    assert half_step(np.ones((4, 3), np.float32), empty, np.empty(0)).shape == (0, 3)


def test_entries_in_64_bit_indices_give_the_same_factors():  # implicit#86, implicit#722
    rng = np.random.default_rng(6)
    matrix, fixed = entries(rng), rng.standard_normal((31, 8)).astype(np.float32)
    narrow = as_rows(matrix, 0.5, "float32")
    wide = Rows(narrow.indptr, narrow.indices.astype(np.int64), narrow.values, 0.5)
    found, expected = (half_step(fixed, rows, np.ones(23)) for rows in (wide, narrow))
    assert relative(found, expected) < 1e-6


def test_more_factors_than_fixed_rows_without_regularization_are_refused():  # implicit#377, #153, #94, #80, #106
    identity = as_rows(sparse.eye_array(10, format="csr") * 2, 1.0, "float32")
    fixed = np.random.default_rng(0).standard_normal((10, 15)).astype(np.float32)
    with pytest.raises(ValueError, match=r"regularization=0 leaves a singular system: the 10 rows .* 15 factors"):
        half_step(fixed, identity, np.zeros(10))


@pytest.mark.parametrize("solver", solvers.SOLVERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scaled", [False, True], ids=["one lambda", "lambda of each row"])
@pytest.mark.parametrize(("base", "low"), [(1.0, 1.5), (0.7, 0.1), (0.0, 0.1)])
def test_gains_are_what_the_factors_take_off_the_cost(solver, dtype, scaled, base, low):
    rng = np.random.default_rng(8)
    matrix, fixed = entries(rng, low=low), rng.standard_normal((31, 13)).astype(dtype)
    regularization = rng.uniform(0.5, 3, 23) if scaled else np.full(23, 1.5)
    start, gains = rng.standard_normal((23, 13)).astype(dtype), np.full(23, np.nan)
    rows = as_rows(matrix, base, dtype)
    factors = half_step(
        fixed, rows, regularization, unobserved_weight=0.7, solver=solver, start=start, gains=gains
    ).astype(np.float64)
    signed, scores = matrix.toarray(), factors @ fixed.astype(np.float64).T
    confidence = np.abs(signed)
    cost = (confidence * ((signed > 0) - scores) ** 2).sum(1)  # of the entries; then of all that all rows share
    cost += 0.7 * (scores**2).sum(1) - base * (scores**2 * (signed != 0)).sum(1) + regularization * (factors**2).sum(1)
    expected = np.maximum(signed, 0).sum(1) - cost
    assert (
        relative(gains, expected) < {"float64": 1e-12, "float32": 1e-4}[dtype]
    )  # rounding is that of the start's cost


def test_factors_written_over_their_start_have_the_same_bits():
    rng = np.random.default_rng(9)
    matrix, fixed = entries(rng), rng.standard_normal((31, 32)).astype(np.float32)
    start, rows = rng.standard_normal((23, 32)).astype(np.float32), as_rows(matrix, 0.7, "float32")
    for solver in solvers.SOLVERS:
        apart = half_step(fixed, rows, np.ones(23), solver=solver, start=start)
        own = start.copy()
        assert half_step(fixed, rows, np.ones(23), solver=solver, start=own, in_place=True) is own
        np.testing.assert_array_equal(own, apart)


def test_confidences_by_slope_and_offset_are_those_of_values_that_hold_them():
    rng = np.random.default_rng(10)
    matrix, fixed = entries(rng, low=0.5), rng.standard_normal((31, 13))
    counts = as_rows(matrix, 0.7, "float64")
    held = replace(counts, values=np.copysign(1 + 2.5 * np.abs(counts.values), counts.values))
    scaled = replace(counts, slope=2.5, offset=1.0)
    np.testing.assert_allclose(half_step(fixed, scaled, np.ones(23)), half_step(fixed, held, np.ones(23)), rtol=1e-9)
    assert scaled.all_positive.tolist() == held.all_positive.tolist()
    np.testing.assert_allclose(scaled.column_weights(31), held.column_weights(31), rtol=1e-12, atol=1e-12)
