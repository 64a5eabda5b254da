r"""One half step of alternating least squares: every row's factors given the other side's, exactly or by few steps.

Hu, Koren & Volinsky 2008, *Collaborative filtering for implicit feedback datasets*: with the fixed factors ``Y`` (items x k)
the factors of a user solve

.. math:: (w_0 Y^T Y + \lambda_u I + \sum_{i} w_{ui}\, y_i y_i^T)\, x_u = \sum_i b_{ui}\, y_i

where the sums run over the entries of the user's row, ``w`` is what an entry weighs beyond an unobserved cell and ``b`` its
confidence times its preference. The first term is the same for all rows, so it is made diagonal once: with
``w_0 Y^T Y = V diag(e) V^T`` and ``z_i = V^T y_i`` a row's system is ``diag(e + lambda_u) + sum w z z^T``, and ``x_u = V x``.

For conjugate gradients the basis is chosen once more when all rows share one lambda: in coordinates in which the shared
part is the identity, the average excess ``sum_i wbar_i z_i z_i^T`` is made diagonal too, so that a diagonal preconditioner
per row is a good one even where confidences are large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from tenfold.numerics import padded
from tenfold.recommend import kernels
from tenfold.runtime import blas_single_thread, parallel_rows

Solver = Literal["auto", "cholesky", "cg", "subspace"]
SOLVERS: tuple[Solver, ...] = ("auto", "cholesky", "cg", "subspace")
STEPS = 2  # of conjugate gradients
WIDTH = 64  # coordinates of a block of the subspace solver
HEAVY = 0.5  # excess beyond which a few steps from the last factors lag behind the exact solution
SMALLEST = 1e-3  # weight of an entry in a dual system, as a share of what a cell without an entry weighs
DIRECT, DUAL, GRADIENT, SUBSPACE = range(4)
# Rows turned back into the original coordinates at a time, in float64: BLAS gives a row the same bits in every block of this
# size, which it does not for blocks of other sizes, nor in float32. So factors do not depend on who solves which rows.
TURNED = 384


@dataclass(frozen=True)
class Rows:
    """Entries of the rows that are solved for, in compressed form.

    Args:
        indptr: Start of each row's entries, (rows + 1,).
        indices: Row of the fixed side of each entry.
        confidence: Confidence of each entry, negative where the preference is 0; not 0.
        base: What a cell without an entry weighs in the shared part, and an entry therefore does not add.
    """

    indptr: Int[np.ndarray, " rows_and_one"]
    indices: Int[np.ndarray, " entries"]
    confidence: Float[np.ndarray, " entries"]
    base: float

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def lengths(self) -> Int[np.ndarray, " rows"]:
        """Entries of each row."""
        return np.diff(self.indptr)

    @cached_property
    def all_positive(self) -> Bool[np.ndarray, " rows"]:
        """Rows in which every weight is positive, and not so small that its inverse root spoils the dual system."""
        bad = np.concatenate([[0], np.cumsum(np.abs(self.confidence) <= self.base * (1 + SMALLEST))])
        return bad[self.indptr[1:]] == bad[self.indptr[:-1]]

    @cached_property
    def column_weights(self) -> Float[np.ndarray, " columns"]:
        """Sum of the weights of each column, as far as columns occur."""
        return np.bincount(self.indices, np.abs(self.confidence) - self.base).astype(np.float64, copy=False)


def gram_matrix(factors: Float[np.ndarray, "rows k"]) -> Float[np.ndarray, "k k"]:
    """``Y^T Y``, products in the dtype of the factors, summed over blocks in float64."""
    total = np.zeros((factors.shape[1], factors.shape[1]))
    for first in range(0, len(factors), 4096):
        block = factors[first : first + 4096]
        total += block.T @ block
    return total


def half_step(
    fixed: Float[np.ndarray, "items k"],
    rows: Rows,
    regularization: Float[np.ndarray, " rows"],
    *,
    unobserved_weight: float = 1.0,
    start: Float[np.ndarray, "rows k"] | None = None,
    solver: Solver = "auto",
    n_jobs: int | None = None,
    gram: Float[np.ndarray, "k k"] | None = None,
) -> Float[np.ndarray, "rows k"]:
    """The factors of ``rows`` given the fixed ones.

    Args:
        fixed: Factors of the other side, float32 or float64.
        rows: Entries of the rows.
        regularization: Of each row, positive unless ``fixed`` has full column rank.
        unobserved_weight: Weight of cells without an entry.
        start: Factors from which the iterative solvers set out; zeros if None.
        solver: ``"cholesky"`` is exact; ``"cg"`` takes a few whitened conjugate-gradient steps; ``"subspace"`` improves blocks
            of coordinates one after the other (iALS++, Rendle et al. 2021); ``"auto"`` is exact wherever that is about as cheap.
        n_jobs: Threads.
        gram: ``fixed^T fixed`` if it is known.

    Raises:
        ValueError: A system is singular: no regularization and fewer rows than factors.
    """
    dtype, k = fixed.dtype, fixed.shape[1]
    with blas_single_thread():  # the same bits for any number of threads, and no two thread pools at odds
        gram = gram_matrix(fixed) if gram is None else gram
        values, vectors = np.linalg.eigh(unobserved_weight * gram)
        values = np.maximum(values, 0.0)
        if regularization.min(initial=np.inf) <= 0 and values[0] <= 8 * k * np.finfo(dtype).eps * values[-1]:
            raise ValueError(
                f"regularization=0 leaves a singular system: the {len(fixed)} rows of the fixed side do not span {k} "
                "factors; set regularization above 0 or factors lower"
            )
        exact = Basis(vectors, values, regularization, vectors)
        gradient = _whitened(exact, fixed, rows) if solver in ("auto", "cg") else exact
        methods = _methods(rows, k, solver, started=start is not None, heavy=gradient.excess > HEAVY)
        result = np.zeros((len(rows), padded(k, dtype)), dtype)
        for method in np.unique(methods):
            basis = gradient if method == GRADIENT else exact
            _solve(int(method), np.flatnonzero(methods == method), basis, fixed, rows, start, n_jobs, result)
    return np.ascontiguousarray(result[:, :k])


@dataclass(frozen=True)
class Basis:
    """Coordinates in which what the rows share is diagonal.

    Args:
        vectors: Columns of the basis T: factors are ``T x``.
        diagonal: ``T^T (w_0 Y^T Y) T``, plus lambda where that is the same for all rows and included.
        shift: What each row still adds to the diagonal.
        inverse: ``T^-T``: coordinates are ``factors @ inverse``.
        excess: Mean weight of a row's own entries against the shared part, a diagonal entry's average.
    """

    vectors: Float[np.ndarray, "k k"]
    diagonal: Float[np.ndarray, " k"]
    shift: Float[np.ndarray, " rows"]
    inverse: Float[np.ndarray, "k k"]
    excess: float = 0.0


def _whitened(basis: Basis, fixed: Float[np.ndarray, "items k"], rows: Rows) -> Basis:
    """Shared part the identity and average excess diagonal; the basis as it is where rows have lambdas of their own."""
    k = fixed.shape[1]
    mean_weights = np.zeros(len(fixed))
    mean_weights[: len(rows.column_weights)] = rows.column_weights / max(len(rows), 1)
    shared = basis.diagonal + (basis.shift.mean() if len(rows) else 0.0)
    root = np.sqrt(np.maximum(shared, np.finfo(fixed.dtype).tiny))
    white = basis.vectors / root
    z = fixed @ white.astype(fixed.dtype)
    excess = ((z * mean_weights[:, None].astype(fixed.dtype)).T @ z).astype(np.float64)
    average = float(np.trace(excess)) / k
    if len(rows) and np.ptp(basis.shift) > 0:
        return replace(basis, excess=average)
    _, rotation = np.linalg.eigh(excess)
    return Basis(white @ rotation, np.ones(k), np.zeros(len(rows)), (basis.vectors * root) @ rotation, average)


def _solve(
    method: int,
    chosen: Int[np.ndarray, " chosen"],
    basis: Basis,
    fixed: Float[np.ndarray, "items k"],
    rows: Rows,
    start: Float[np.ndarray, "rows k"] | None,
    n_jobs: int | None,
    result: Float[np.ndarray, "rows padded"],
) -> None:
    """Writes the factors of the chosen rows into ``result``."""
    dtype, k = fixed.dtype, fixed.shape[1]
    table = np.zeros((len(fixed), result.shape[1]), dtype)
    table[:, :k] = fixed @ basis.vectors.astype(dtype)
    diagonal = np.ones(result.shape[1], dtype)
    diagonal[:k] = basis.diagonal
    if method in (GRADIENT, SUBSPACE) and start is not None:
        result[chosen, :k] = start[chosen] @ basis.inverse.astype(dtype)
    order = chosen[np.argsort(-rows.lengths[chosen], kind="stable")]
    shift = basis.shift.astype(dtype)
    confidence = rows.confidence.astype(dtype, copy=False)
    arguments = (rows.indptr, rows.indices, confidence, dtype.type(rows.base), table, diagonal, shift, k)

    def block(first: int, last: int) -> int:
        part = order[first:last]
        if method == DIRECT:
            return kernels.direct_rows(part, *arguments, result)
        if method == DUAL:
            return kernels.dual_rows(part, *arguments, result)
        if method == SUBSPACE:
            return kernels.subspace_rows(part, *arguments, min(WIDTH, table.shape[1]), result)
        return kernels.conjugate_gradient_rows(part, *arguments, STEPS, dtype.type(1e-6), result)

    costs = _nanoseconds(rows.lengths[order], k, method)
    failed = [row for row in parallel_rows(block, costs, n_jobs, uses_blas=False) if row >= 0]
    if failed:
        raise ValueError(f"the system of row {failed[0]} is not positive definite; set regularization higher")
    for first in range(0, len(chosen), TURNED):
        part = chosen[first : first + TURNED]
        turned = np.zeros((TURNED, k))
        turned[: len(part)] = result[part, :k]
        result[part, :k] = (turned @ basis.vectors.T)[: len(part)]


def _methods(rows: Rows, k: int, solver: Solver, *, started: bool, heavy: bool) -> Int[np.ndarray, " rows"]:
    """How each row is solved.

    ``auto`` takes gradient steps where they cost less than the exact solution, unless there is no start to improve on or
    the rows' own entries outweigh what they share, where few steps lag behind.
    """
    if solver in ("cg", "subspace"):
        return np.full(len(rows), GRADIENT if solver == "cg" else SUBSPACE)
    direct, dual, gradient = (_nanoseconds(rows.lengths, k, method) for method in (DIRECT, DUAL, GRADIENT))
    methods = np.where(rows.all_positive & (dual < direct), DUAL, DIRECT)
    if solver == "auto" and started and not heavy:
        methods = np.where(np.where(methods == DUAL, dual, direct) <= gradient, methods, GRADIENT)
    return methods


def _nanoseconds(lengths: Int[np.ndarray, " rows"], k: int, method: int) -> Float[np.ndarray, " rows"]:
    """Time for rows of so many entries, about: fitted once; it steers choices and balance, never results of one method."""
    n = lengths.astype(np.float64)
    if method == DIRECT:
        return 300 + n * (k * k / 200 + k / 8) + k**3 / 400 + 8 * k
    if method == DUAL:
        m = np.ceil(n / 16) * 16
        return 300 + m * m * (k / 180) + m**3 / 400 + m * k / 1.8
    if method == SUBSPACE:
        return 500 + n * k * (WIDTH / 200 + 0.5) + k * WIDTH * WIDTH / 200
    return 150 + n * (2 + (STEPS + 2) * k / 20)
