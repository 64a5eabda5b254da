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
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from tenfold.numerics import padded, transform_rows
from tenfold.recommend.kernels import row_systems
from tenfold.runtime import blas_single_thread, parallel_rows

Solver = Literal["auto", "cholesky", "cg", "subspace"]
SOLVERS: tuple[Solver, ...] = ("auto", "cholesky", "cg", "subspace")
STEPS = 2  # of conjugate gradients
WIDTH = 64  # coordinates of a block of the subspace solver
HEAVY = 0.5  # excess beyond which a few steps from the last factors lag behind the exact solution
SMALLEST = 1e-3  # weight of an entry in a dual system, as a share of what a cell without an entry weighs
DIRECT, DUAL, GRADIENT, SUBSPACE = range(4)


@dataclass(frozen=True)
class Rows:
    """Entries of the rows that are solved for, in compressed form.

    An entry has confidence ``offset + slope |r|``, so that counts need no copy that holds confidences.

    Args:
        indptr: Start of each row's entries, (rows + 1,).
        indices: Row of the fixed side of each entry.
        values: r of each entry, negative where the preference is 0; not 0.
        base: What a cell without an entry weighs in the shared part, and an entry therefore does not add.
        slope: Of the confidence.
        offset: Of the confidence.
    """

    indptr: Int[np.ndarray, " rows_and_one"]
    indices: Int[np.ndarray, " entries"]
    values: Float[np.ndarray, " entries"]
    base: float
    slope: float = 1.0
    offset: float = 0.0

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def lengths(self) -> Int[np.ndarray, " rows"]:
        """Entries of each row."""
        return np.diff(self.indptr)

    @cached_property
    def all_positive(self) -> Bool[np.ndarray, " rows"]:
        """Rows in which every weight is positive, and not so small that its inverse root spoils the dual system."""
        return row_systems.smallest_weights(self.indptr, self.values, self.scale()) > self.base * SMALLEST

    def column_weights(self, columns: int) -> Float[np.ndarray, " columns"]:
        """Sum of the weights of each of so many columns."""
        return row_systems.column_weights(self.indices, self.values, self.scale(), columns)

    def confidences(self, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Confidences of some of the values, with their signs."""
        return np.copysign(self.offset + self.slope * np.abs(values), values)

    def scale(self, dtype: Any = np.float64) -> tuple[Any, Any, Any]:
        """(slope, offset, base), as the kernels take them."""
        number = np.dtype(dtype).type
        return number(self.slope), number(self.offset), number(self.base)


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
    gains: Float[np.ndarray, " rows"] | None = None,
    in_place: bool = False,
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
        gains: Written, in float64: by how much each row's factors lower its cost below that of zeros.
        in_place: The result may be written over ``start``.

    Raises:
        ValueError: A system is singular: no regularization and fewer rows than factors.
    """
    dtype, k = fixed.dtype, fixed.shape[1]
    with blas_single_thread():  # the same bits for any number of threads, and no two thread pools at odds
        shared = unobserved_weight * (gram_matrix(fixed) if gram is None else gram)
        if regularization.min(initial=np.inf) <= 0:
            values = np.linalg.eigvalsh(shared)
            if values[0] <= 8 * k * np.finfo(dtype).eps * values[-1]:
                raise ValueError(
                    f"regularization=0 leaves a singular system: the {len(fixed)} rows of the fixed side do not span {k} "
                    "factors; set regularization above 0 or factors lower"
                )
        gradient = None
        if solver in ("cg", "auto"):
            gradient = _gradient_basis(shared, fixed, rows, regularization, n_jobs, rotate=solver == "cg")
        heavy = gradient is None or gradient.excess > HEAVY
        methods = _methods(rows, k, solver, gradient=not heavy)
        result = start
        if (
            result is None
            or not in_place
            or not result.flags.c_contiguous
            or k != padded(k, dtype)
            or result.dtype != dtype
        ):
            result = np.zeros((len(rows), padded(k, dtype)), dtype)
        gains = np.empty(len(rows)) if gains is None else gains
        if GRADIENT in methods and gradient is not None:
            _solve(GRADIENT, np.flatnonzero(methods == GRADIENT), gradient, rows, start, n_jobs, result, gains)
        del gradient  # one table at a time
        others = [int(method) for method in np.unique(methods) if method != GRADIENT]
        if others:
            basis = _eigenbasis(shared, fixed, regularization, n_jobs)
            for method in others:
                _solve(method, np.flatnonzero(methods == method), basis, rows, start, n_jobs, result, gains)
    return result if result.shape[1] == k else np.ascontiguousarray(result[:, :k])


@dataclass(frozen=True)
class Basis:
    """Coordinates in which what the rows share is diagonal.

    Args:
        vectors: Columns of the basis T: factors are ``T x``.
        diagonal: ``T^T (w_0 Y^T Y) T``, plus lambda where that is the same for all rows and included.
        shift: What each row still adds to the diagonal.
        inverse: ``T^-T``: coordinates are ``factors @ inverse``.
        table: ``Y T``, padded.
        excess: Mean weight of a row's own entries against the shared part, a diagonal entry's average; 0 if not asked for.
    """

    vectors: Float[np.ndarray, "k k"]
    diagonal: Float[np.ndarray, " k"]
    shift: Float[np.ndarray, " rows"]
    inverse: Float[np.ndarray, "k k"]
    table: Float[np.ndarray, "items padded"]
    excess: float = 0.0


def _padded_columns(matrix: Float[np.ndarray, "k k"], dtype: np.dtype) -> Float[np.ndarray, "k padded"]:
    result = np.zeros((len(matrix), padded(len(matrix), dtype)), dtype)
    result[:, : len(matrix)] = matrix
    return result


def _transformed(
    fixed: Float[np.ndarray, "items k"], vectors: Float[np.ndarray, "k k"], n_jobs: int | None
) -> Float[np.ndarray, "items padded"]:
    """``fixed @ vectors``, padded; the bits of a row do not depend on the others, as they do in BLAS."""
    matrix = _padded_columns(vectors, fixed.dtype)
    result = np.empty((len(fixed), matrix.shape[1]), fixed.dtype)

    def block(first: int, last: int) -> None:
        transform_rows(np.arange(first, last), fixed, matrix, result)

    parallel_rows(block, len(fixed), n_jobs, uses_blas=False)
    return result


def _eigenbasis(
    shared: Float[np.ndarray, "k k"],
    fixed: Float[np.ndarray, "items k"],
    regularization: Float[np.ndarray, " rows"],
    n_jobs: int | None,
) -> Basis:
    values, vectors = np.linalg.eigh(shared)
    table = _transformed(fixed, vectors, n_jobs)
    return Basis(vectors, np.maximum(values, 0.0), regularization, vectors, table)


def _gradient_basis(
    shared: Float[np.ndarray, "k k"],
    fixed: Float[np.ndarray, "items k"],
    rows: Rows,
    regularization: Float[np.ndarray, " rows"],
    n_jobs: int | None,
    *,
    rotate: bool,
) -> Basis:
    """Coordinates for conjugate gradients, with the excess measured.

    The shared part is the identity where all rows have one lambda, and diagonal otherwise. Where the excess is large it can
    be made diagonal on average too (``rotate``).
    """
    k = fixed.shape[1]
    if len(rows) == 0 or np.ptp(regularization) > 0:
        basis = _eigenbasis(shared, fixed, regularization, n_jobs)
    else:
        root = np.linalg.cholesky(shared + regularization[0] * np.eye(k))  # the shared part is L L^T, T is L^-T
        white = np.linalg.inv(root).T
        basis = Basis(white, np.ones(k), np.zeros(len(rows)), root, _transformed(fixed, white, n_jobs))
    mean_weights = (rows.column_weights(len(fixed)) / max(len(rows), 1)).astype(fixed.dtype)
    scales = 1 / np.maximum(basis.diagonal + (basis.shift.mean() if len(rows) else 0.0), np.finfo(fixed.dtype).tiny)
    diagonal = np.zeros(k)
    for first in range(0, len(fixed), 4096):  # squares of the whole table would be another copy of it
        block = slice(first, first + 4096)
        diagonal += mean_weights[block] @ np.square(basis.table[block, :k])
    excess = float(diagonal @ scales) / k
    if not rotate or excess <= HEAVY or np.ptp(regularization) > 0:
        return replace(basis, excess=excess)
    z = basis.table[:, :k]
    _, rotation = np.linalg.eigh(((z * mean_weights[:, None]).T @ z).astype(np.float64))
    vectors = basis.vectors @ rotation
    return Basis(
        vectors, basis.diagonal, basis.shift, basis.inverse @ rotation, _transformed(fixed, vectors, n_jobs), excess
    )


def _solve(
    method: int,
    chosen: Int[np.ndarray, " chosen"],
    basis: Basis,
    rows: Rows,
    start: Float[np.ndarray, "rows k"] | None,
    n_jobs: int | None,
    result: Float[np.ndarray, "rows padded"],
    gains: Float[np.ndarray, " rows"],
) -> None:
    """Writes the factors of the chosen rows into ``result``, and what they gain."""
    table, dtype, k = basis.table, basis.table.dtype, len(basis.vectors)
    forth, back = _padded_columns(basis.inverse, dtype), _padded_columns(basis.vectors.T, dtype)
    warm = method in (GRADIENT, SUBSPACE) and start is not None
    diagonal = np.ones(table.shape[1], dtype)
    diagonal[:k] = basis.diagonal
    order = chosen[np.argsort(-rows.lengths[chosen], kind="stable")]
    shift = basis.shift.astype(dtype)
    values = rows.values if rows.values.itemsize <= dtype.itemsize else rows.values.astype(dtype)
    arguments = (rows.indptr, rows.indices, values, rows.scale(dtype), table, diagonal, shift, k)

    def solve(part: Int[np.ndarray, " part"]) -> int:
        if method == DIRECT:
            return row_systems.direct_rows(part, *arguments, result, gains)
        if method == DUAL:
            return row_systems.dual_rows(part, *arguments, result, gains)
        if method == SUBSPACE:
            return row_systems.subspace_rows(part, *arguments, min(WIDTH, table.shape[1]), result, gains)
        return row_systems.conjugate_gradient_rows(part, *arguments, STEPS, dtype.type(1e-6), result, gains)

    def block(first: int, last: int) -> int:
        part = order[first:last]
        if warm:
            transform_rows(part, start, forth, result)
        failed = solve(part)
        transform_rows(part, result, back, result)
        return failed

    costs = _nanoseconds(rows.lengths[order], k, method) + k * k / 50
    failed = [row for row in parallel_rows(block, costs, n_jobs, uses_blas=False) if row >= 0]
    if failed:
        raise ValueError(f"the system of row {failed[0]} is not positive definite; set regularization higher")


def _methods(rows: Rows, k: int, solver: Solver, *, gradient: bool) -> Int[np.ndarray, " rows"]:
    """How each row is solved.

    ``auto`` takes gradient steps where they cost less than the exact solution, unless the rows' own entries outweigh what
    they share, where few steps lag behind (``gradient`` is False).
    """
    if solver in ("cg", "subspace"):
        return np.full(len(rows), GRADIENT if solver == "cg" else SUBSPACE)
    direct, dual, steps = (_nanoseconds(rows.lengths, k, method) for method in (DIRECT, DUAL, GRADIENT))
    methods = np.where(rows.all_positive & (dual < direct), DUAL, DIRECT)
    if solver == "auto" and gradient:
        methods = np.where(np.where(methods == DUAL, dual, direct) <= steps, methods, GRADIENT)
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
