"""What alternating least squares minimises: confidences, the regularisation of each row, and the cost with its parts.

The cost (module `als`) sums over all cells, but only entries are visited: the squared scores of all cells together are
``sum_{u,i} (x_u . y_i)^2 = <X^T X, Y^T Y>``, two small matrices, from which those of the entries are taken away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from tenfold.recommend.kernels import cost_sums
from tenfold.recommend.solvers import Rows, gram_matrix
from tenfold.recommend.spread_rows import SpreadRows
from tenfold.runtime import parallel_rows

CANCELLED = 1e5  # roundings, as a share of the cost of zeros, below which the entries are summed one by one
Confidence = Literal["linear", "log", "raw"]
Target = Literal["hkv", "rendle"]


@dataclass
class Side:
    """The rows of one side and the lambda of each."""

    rows: Rows | SpreadRows
    regularization: Float[np.ndarray, " rows"]


@dataclass(frozen=True)
class Loss:
    """The cost and its parts, in float64.

    Args:
        total: The sum of the parts.
        observed: ``sum c (p - s)^2`` over the entries.
        unobserved: ``w0 sum s^2`` over the cells without an entry (``"rendle"``: over all cells).
        regularization: ``sum lambda |x|^2`` over both sides.
    """

    total: float
    observed: float
    unobserved: float
    regularization: float


@dataclass(frozen=True)
class Objective:
    """The cost that the parameters of `ImplicitALS` describe, for any matrix.

    Args:
        confidence: ``"linear"``, ``"log"`` or ``"raw"``.
        alpha: Weight of a count.
        epsilon: Scale of counts in ``"log"``.
        unobserved_weight: w0.
        regularization: lambda.
        frequency_exponent: nu.
        target: ``"hkv"`` or ``"rendle"``.
        dtype: Of confidences.
    """

    confidence: Confidence
    alpha: float
    epsilon: float
    unobserved_weight: float
    regularization: float
    frequency_exponent: float
    target: Target
    dtype: str

    @property
    def base(self) -> float:
        """What the part that all rows share already holds of an entry's cell."""
        return self.unobserved_weight if self.target == "hkv" else 0.0

    def confidences(self, counts: Float[np.ndarray, " entries"]) -> Float[np.ndarray, " entries"]:
        """See `signed_confidence`."""
        return signed_confidence(counts, self.confidence, self.alpha, self.epsilon, self.dtype)

    def rows(self, matrix: sparse.csr_array | sparse.csc_array) -> Rows:
        """The rows of a matrix of counts (columns, of a CSC matrix), ready to be solved for; it shares their memory.

        Raises:
            ValueError: A confidence is beyond the range of ``dtype``.
        """
        values, slope, offset = matrix.data, 1.0, 0.0
        if self.confidence == "log":
            values = self.confidences(values)
        elif self.confidence == "linear":
            slope, offset = float(self.alpha), 1.0
            self.confidences(np.array([values.min(initial=0), values.max(initial=0)]))  # the largest is within range
        # one width of indices, so that the same machine code, and with it the same bits, serves every matrix
        indices = matrix.indices.astype(np.int32, copy=False) if max(matrix.shape) < 2**31 else matrix.indices
        return Rows(matrix.indptr.astype(np.int64), indices, values, self.base, slope, offset)

    def lambdas(self, lengths: Int[np.ndarray, " rows"], others: int) -> Float[np.ndarray, " rows"]:
        """Each row's lambda, see `row_regularization`."""
        return row_regularization(lengths, others, self.regularization, self.unobserved_weight, self.frequency_exponent)

    def sides(self, matrix: sparse.csr_array) -> tuple[Side, Side]:
        """Users and items of a matrix of counts."""
        users, items = self.rows(matrix), self.rows(matrix.tocsc())
        return (
            Side(users, self.lambdas(users.lengths, matrix.shape[1])),
            Side(items, self.lambdas(items.lengths, matrix.shape[0])),
        )

    def loss(
        self,
        matrix: sparse.csr_array,
        users: Float[np.ndarray, "users k"],
        items: Float[np.ndarray, "items k"],
        n_jobs: int | None = None,
    ) -> Loss:
        """The cost of a matrix of counts under given factors."""
        rows = self.rows(matrix)
        counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
        return total_loss(
            rows,
            users.astype(np.float64),
            items.astype(np.float64),
            self.lambdas(rows.lengths, matrix.shape[1]),
            self.lambdas(counts, matrix.shape[0]),
            target=self.target,
            unobserved_weight=self.unobserved_weight,
            n_jobs=n_jobs,
        )


def signed_confidence(
    values: Float[np.ndarray, " entries"], confidence: Confidence, alpha: float, epsilon: float, dtype: Any
) -> Float[np.ndarray, " entries"]:
    """``c`` of each entry, negative for dislikes.

    Raises:
        ValueError: A confidence is beyond the range of ``dtype``.

    >>> signed_confidence(np.array([2.0, -1.0]), "linear", 40.0, 1.0, "float32")
    array([ 81., -41.], dtype=float32)
    """
    size = np.abs(values.astype(dtype, copy=False))
    with np.errstate(over="ignore"):
        if confidence == "linear":
            size = 1 + size.dtype.type(alpha) * size
        elif confidence == "log":
            size = 1 + size.dtype.type(alpha) * np.log1p(size / size.dtype.type(epsilon))
    if not np.isfinite(size).all():
        raise ValueError(f"a confidence is beyond {size.dtype}: lower alpha={alpha:g}, or scale the counts")
    return np.copysign(size, values.astype(dtype, copy=False))


def row_regularization(
    lengths: Int[np.ndarray, " rows"], others: int, regularization: float, unobserved_weight: float, exponent: float
) -> Float[np.ndarray, " rows"]:
    """Each row's lambda: ``regularization * (n + w0 M)^nu``.

    Args:
        lengths: Entries n of each row.
        others: Rows M of the other side.
        regularization: lambda.
        unobserved_weight: w0.
        exponent: nu.

    >>> row_regularization(np.array([0, 6]), 10, 0.5, 1.0, 1.0)
    array([5., 8.])
    """
    if exponent == 0:
        return np.full(len(lengths), float(regularization))
    return regularization * (lengths + unobserved_weight * others) ** exponent


def shifted_regularization(
    matrix: sparse.csr_array,
    reference: float,
    unobserved_weight: float,
    exponent: float,
    reference_exponent: float = 1.0,
) -> float:
    r"""The lambda that gives, at one nu, the total regularisation that ``reference`` gives at another.

    Rendle et al. 2022, section 3.3: good lambdas lie on one scale for every nu when they are written
    as :math:`\lambda^*`, with

    .. math:: \lambda = \lambda^* \sum (n + w_0 M)^{\nu^*} / \sum (n + w_0 M)^\nu

    and the sums over all users and items.

    Args:
        matrix: Counts (users, items).
        reference: lambda*.
        unobserved_weight: w0.
        exponent: nu.
        reference_exponent: nu*.

    >>> counts = sparse.csr_array([[1.0, 1.0], [0.0, 1.0]])  # users of 2 + 2 w0 and 1 + 2 w0, items of 1 + 2 w0 and 2 + 2 w0
    >>> round(shifted_regularization(counts, 0.1, 0.5, 0.0), 6)  # 0.1 (3 + 2 + 2 + 3) / 4
    0.25
    """
    users, items = matrix.shape
    frequencies = np.concatenate(
        [
            np.diff(matrix.indptr) + unobserved_weight * items,
            np.bincount(matrix.indices, minlength=items) + unobserved_weight * users,
        ]
    )
    return float(reference * (frequencies**reference_exponent).sum() / (frequencies**exponent).sum())


def total_loss(
    rows: Rows | SpreadRows,
    users: Float[np.ndarray, "users k"],
    items: Float[np.ndarray, "items k"],
    user_lambda: Float[np.ndarray, " users"],
    item_lambda: Float[np.ndarray, " items"],
    *,
    target: Target,
    unobserved_weight: float,
    n_jobs: int | None = None,
) -> Loss:
    """The cost, its sums in float64 (products in the dtype of the factors)."""
    users, items = np.ascontiguousarray(users), np.ascontiguousarray(items)
    parts = rows.sums(rows, users, items) if isinstance(rows, SpreadRows) else _sums(rows, users, items, n_jobs)
    observed, squares = (math.fsum(part[i] for part in parts) for i in range(2))
    everywhere = float((gram_matrix(users) * gram_matrix(items)).sum())
    unobserved = unobserved_weight * (everywhere - (squares if target == "hkv" else 0.0))
    regularization = sum(
        cost_sums.weighted_squares(weights, factors)
        for weights, factors in ((user_lambda, users), (item_lambda, items))
    )
    return Loss(observed + unobserved + regularization, observed, unobserved, regularization)


def _sums(
    rows: Rows, users: Float[np.ndarray, "users k"], items: Float[np.ndarray, "items k"], n_jobs: int | None
) -> list[tuple[float, float]]:
    """``sum c (p - s)^2`` and ``sum s^2`` over the entries of blocks of rows."""
    return parallel_rows(
        lambda first, last: cost_sums.loss_rows(
            first, last, rows.indptr, rows.indices, rows.values, rows.scale(), users, items
        ),
        rows.lengths.astype(float) + 1,
        n_jobs,
        uses_blas=False,
    )


def cost_of_zeros(users: Side, items: Side, n_jobs: int | None = None) -> float:
    """``sum c p``: the cost when all factors are 0."""
    left, right = (np.zeros((len(side.rows), 1), np.float32) for side in (users, items))
    lambdas = users.regularization, items.regularization
    return total_loss(users.rows, left, right, *lambdas, target="hkv", unobserved_weight=0.0, n_jobs=n_jobs).total


def loss_by_gains(
    zeros: float,
    gains: Float[np.ndarray, " items"],
    users: Side,
    user_factors: Float[np.ndarray, "users k"],
) -> float | None:
    """The cost from what the items' half step has found, without a visit to the entries.

    With ``A y = b`` the system of an item, its factors y take ``2 b.y - y.A y`` off the cost that it has with zeros.
    Returns None where so little is left that it is rounding.

    Args:
        zeros: `cost_of_zeros`.
        gains: What each item takes off.
        users: Their lambdas.
        user_factors: Those that the items were solved for.
    """
    regularization = cost_sums.weighted_squares(users.regularization, user_factors)
    left = zeros - float(gains.sum())
    return left + regularization if left > CANCELLED * np.finfo(user_factors.dtype).eps * zeros else None
