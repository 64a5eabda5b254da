r"""Matrix factorisation of implicit feedback by alternating least squares.

Hu, Koren & Volinsky 2008, *Collaborative filtering for implicit feedback datasets* (ICDM): from counts ``r_ui`` come a preference
``p_ui = 1`` where ``r_ui > 0`` and a confidence ``c_ui = 1 + alpha r_ui`` (or ``1 + alpha log(1 + r_ui / epsilon)``), and users
and items get factors that minimise over *all* cells

.. math:: \sum_{u,i} c_{ui} (p_{ui} - x_u^T y_i)^2 + \sum_u \lambda_u |x_u|^2 + \sum_i \lambda_i |y_i|^2 .

Cells without an entry have p = 0 and the weight ``unobserved_weight`` (1 in the paper). Rendle et al. 2022, *Revisiting the
performance of iALS*, write the same cost with the unobserved weight on every cell (``target="rendle"``) and scale
``lambda_u = lambda (n_u + w_0 M)^nu``, with ``n_u`` entries in the row, M rows on the other side and nu = ``frequency_exponent``.

**The two costs are one.** An entry of the second form costs ``c (1 - s)^2 + w0 s^2 = (c + w0)(s - t)^2`` plus a constant with
``t = c / (c + w0)``. Where all entries have the same c, scaling both factors by ``sqrt(t)`` turns it into the first form
with confidence ``(c + w0) / w0``, unobserved weight 1, ``lambda / (w0 t)`` and scores divided by t.

A negative ``r`` is a dislike: preference 0 with the confidence of ``|r|``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from tenfold.recommend import kernels, ranking
from tenfold.recommend.matrices import canonical_matrix
from tenfold.recommend.solvers import SOLVERS, Rows, gram_matrix, half_step
from tenfold.runtime import parallel_rows

Confidence = Literal["linear", "log", "raw"]
Target = Literal["hkv", "rendle"]
START_DEVIATION = 0.1  # of the first item factors, divided by sqrt(factors)


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
class Explanation:
    """Why an item scores as it does for a user.

    Args:
        total: The score: the sum of the contributions.
        items: The user's entries, largest contribution first.
        contributions: What each adds to the score.
    """

    total: float
    items: Int[np.ndarray, " entries"]
    contributions: Float[np.ndarray, " entries"]


class ImplicitALS(BaseEstimator):
    """Recommender for implicit feedback, by alternating least squares.

    Args:
        factors: Length k of the factors.
        regularization: lambda, at least 0.
        alpha: Weight of a count in the confidence, at least 0.
        confidence: ``"linear"``: c = 1 + alpha |r|; ``"log"``: c = 1 + alpha log(1 + |r| / epsilon); ``"raw"``: |r| is c.
        epsilon: Scale of counts in ``"log"``, positive.
        unobserved_weight: w0, the weight of cells without an entry, positive.
        frequency_exponent: nu; 0 gives every row the same lambda, 1 one in proportion to its frequency.
        target: ``"hkv"`` (2008) or ``"rendle"`` (2022), see the module.
        iterations: Full iterations, users then items; a last exact solution of the users follows.
        solver: ``"cholesky"`` (exact), ``"cg"``, ``"subspace"`` (iALS++) or ``"auto"``: exact wherever that costs least or few
            steps would lag behind.
        tol: Stop when an iteration lowers the loss by less than this share; None never stops early.
        dtype: ``"float32"`` or ``"float64"``.
        random_state: Seed of the first item factors.
        n_jobs: Threads; None for as many as torch takes. The factors do not depend on it, bit for bit.
        verbose: Show progress and loss on standard error.

    Attributes:
        user_factors_: (users, k).
        item_factors_: (items, k).
        loss_history_: Cost after each full iteration.
        n_iter_: Iterations done.

    >>> plays = sparse.csr_array([[5, 2, 0, 0], [3, 4, 0, 0], [0, 0, 6, 1], [0, 0, 2, 2]])
    >>> model = ImplicitALS(factors=2, regularization=0.1, random_state=0).fit(plays)
    >>> model.recommend(0, plays, n=1, exclude_seen=False)[0]  # the item of the first user's kind
    array([1])
    >>> bool(np.all(np.diff(model.loss_history_) <= 0))
    True
    """

    def __init__(
        self,
        factors: int = 64,
        *,
        regularization: float = 0.01,
        alpha: float = 1.0,
        confidence: Confidence = "linear",
        epsilon: float = 1.0,
        unobserved_weight: float = 1.0,
        frequency_exponent: float = 0.0,
        target: Target = "hkv",
        iterations: int = 15,
        solver: str = "auto",
        tol: float | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.factors = factors
        self.regularization = regularization
        self.alpha = alpha
        self.confidence = confidence
        self.epsilon = epsilon
        self.unobserved_weight = unobserved_weight
        self.frequency_exponent = frequency_exponent
        self.target = target
        self.iterations = iterations
        self.solver = solver
        self.tol = tol
        self.dtype = dtype
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        item_factors: Float[np.ndarray, "items k"] | None = None,
        callback: Callable[[int, float], None] | None = None,
        engine: str = "local",
    ) -> ImplicitALS:
        """Fit anew.

        Args:
            X: Counts (users, items): any scipy sparse matrix or array, or a dense one. Duplicates are summed, zeros dropped.
            y: Ignored.
            item_factors: Factors to start from.
            callback: Called with the number of each finished iteration and its loss.
            engine: ``"local"``, or ``"ray"`` for half steps spread over a Ray cluster (extra ``ray``).

        Raises:
            ValueError: A parameter out of range, an empty matrix, NaN, or a singular system (lambda 0).
        """
        self._check()
        matrix = self._matrix(X)
        shape = (matrix.shape[1], self.factors)
        if item_factors is None:
            draw = check_random_state(self.random_state).standard_normal(shape)
            start = draw * (START_DEVIATION / math.sqrt(self.factors))
        else:
            start = np.asarray(item_factors)
            if start.shape != shape:
                raise ValueError(f"item_factors has shape {start.shape}, but (items, factors) = {shape} is needed")
            if not np.isfinite(start).all():
                raise ValueError("item_factors must be finite")
        self.loss_history_: list[float] = []
        self._iterate(matrix, start.astype(self.dtype), None, callback, engine)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> ImplicitALS:
        """Continue from the present factors (or fit, if there are none) on a matrix of the same shape."""
        if not hasattr(self, "item_factors_"):
            return self.fit(X)
        self._check()
        matrix = self._matrix(X, shape=(len(self.user_factors_), len(self.item_factors_)))
        self._iterate(matrix, self.item_factors_, self.user_factors_, None, "local")
        return self

    def _iterate(
        self,
        matrix: sparse.csr_array,
        items: np.ndarray,
        users: np.ndarray | None,
        callback: Callable[[int, float], None] | None,
        engine: str,
    ) -> None:
        if engine not in ("local", "ray"):
            raise ValueError(f"engine={engine!r} is not one of 'local', 'ray'")
        step: Callable[..., np.ndarray] = half_step
        if engine == "ray":
            from tenfold.recommend.ray_engine import ray_half_step

            step = ray_half_step
        confidence = self.signed_confidence(matrix.data)
        user_rows = self._rows(matrix, confidence)
        by_item = sparse.csr_array((confidence, matrix.indices, matrix.indptr), shape=matrix.shape).tocsc()
        item_rows = self._rows(by_item, by_item.data)
        user_lambda = self.row_regularization(user_rows.lengths, matrix.shape[1])
        item_lambda = self.row_regularization(item_rows.lengths, matrix.shape[0])
        options = {"unobserved_weight": self.unobserved_weight, "solver": self.solver, "n_jobs": self.n_jobs}
        first_items: np.ndarray | None = items if self.loss_history_ or users is not None else None
        with _progress(self.verbose, self.iterations) as display:
            for iteration in range(self.iterations):
                users = step(items, user_rows, user_lambda, start=users, **options)
                items = step(users, item_rows, item_lambda, start=first_items, **options)
                first_items = items
                loss = self._loss(user_rows, users, items, user_lambda, item_lambda).total
                self.loss_history_.append(loss)
                display.advance(loss=f"{loss:.6g}")
                if callback is not None:
                    callback(iteration, loss)
                previous = self.loss_history_[-2] if len(self.loss_history_) > 1 else math.inf
                if self.tol is not None and previous - loss <= self.tol * abs(previous) < math.inf:
                    break
        # Users that solve exactly the system of the final items: explanations add up, and fold-in gives the same factors.
        users = step(items, user_rows, user_lambda, **{**options, "solver": "cholesky"})
        self.user_factors_, self.item_factors_ = users, items
        self.n_iter_ = len(self.loss_history_)

    def _check(self) -> None:
        for name in ("factors", "iterations"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
        for name, least, strict in (
            ("regularization", 0.0, False),
            ("alpha", 0.0, False),
            ("epsilon", 0.0, True),
            ("unobserved_weight", 0.0, True),
            ("frequency_exponent", -math.inf, False),
        ):
            value = getattr(self, name)
            if not math.isfinite(value) or value < least or (strict and value == least):
                raise ValueError(f"{name}={value!r} must be finite and {'above' if strict else 'at least'} {least:g}")
        for name, choices in (
            ("confidence", ("linear", "log", "raw")),
            ("target", ("hkv", "rendle")),
            ("solver", SOLVERS),
            ("dtype", ("float32", "float64")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(map(repr, choices))}")
        if self.tol is not None and not self.tol >= 0:
            raise ValueError(f"tol={self.tol!r} must be at least 0")

    def _matrix(self, X: Any, name: str = "X", shape: tuple[int, int] | None = None) -> sparse.csr_array:
        matrix = canonical_matrix(X, name, shape=shape)
        if matrix.nnz == 0:
            raise ValueError(f"{name} of shape {matrix.shape} has no entry that is not zero")
        return matrix

    def signed_confidence(self, data: Float[np.ndarray, " entries"]) -> Float[np.ndarray, " entries"]:
        """``c`` of each entry, negative for dislikes."""
        size = np.abs(data.astype(self.dtype, copy=False))
        if self.confidence == "linear":
            size = 1 + size.dtype.type(self.alpha) * size
        elif self.confidence == "log":
            size = 1 + size.dtype.type(self.alpha) * np.log1p(size / size.dtype.type(self.epsilon))
        return np.copysign(size, data)

    def row_regularization(self, lengths: Int[np.ndarray, " rows"], others: int) -> Float[np.ndarray, " rows"]:
        """Each row's lambda: ``regularization * (n + w0 M)^nu``.

        Args:
            lengths: Entries n of each row.
            others: Rows M of the other side.
        """
        if self.frequency_exponent == 0:
            return np.full(len(lengths), float(self.regularization))
        return self.regularization * (lengths + self.unobserved_weight * others) ** self.frequency_exponent

    def _rows(self, matrix: Any, confidence: np.ndarray) -> Rows:
        base = self.unobserved_weight if self.target == "hkv" else 0.0
        return Rows(matrix.indptr.astype(np.int64), matrix.indices, confidence, base)

    # ---------------------------------------------------------------- loss

    def loss(self, X: Any) -> Loss:
        """The cost of ``X`` under the fitted factors, with its parts."""
        check_is_fitted(self)
        matrix = self._matrix(X, shape=(len(self.user_factors_), len(self.item_factors_)))
        rows = self._rows(matrix, self.signed_confidence(matrix.data))
        counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
        return self._loss(
            rows,
            self.user_factors_,
            self.item_factors_,
            self.row_regularization(rows.lengths, matrix.shape[1]),
            self.row_regularization(counts, matrix.shape[0]),
        )

    def _loss(
        self, rows: Rows, users: np.ndarray, items: np.ndarray, user_lambda: np.ndarray, item_lambda: np.ndarray
    ) -> Loss:
        parts = parallel_rows(
            lambda first, last: kernels.loss_rows(
                first, last, rows.indptr, rows.indices, rows.confidence, users, items
            ),
            rows.lengths.astype(float) + 1,
            self.n_jobs,
            uses_blas=False,
        )
        observed, squares = (math.fsum(part[i] for part in parts) for i in range(2))
        everywhere = float((gram_matrix(users) * gram_matrix(items)).sum())
        unobserved = self.unobserved_weight * (everywhere - (squares if self.target == "hkv" else 0.0))
        regularization = sum(
            float(weights @ np.einsum("ij,ij->i", factors, factors, dtype=np.float64))
            for weights, factors in ((user_lambda, users), (item_lambda, items))
        )
        return Loss(observed + unobserved + regularization, observed, unobserved, regularization)

    # ---------------------------------------------------------------- new rows, scores, explanations

    def fold_in_users(self, X: Any) -> Float[np.ndarray, "rows k"]:
        """Factors of users that were not in training, solved exactly from their counts (rows, items); zeros for empty rows."""
        check_is_fitted(self)
        return self._fold_in(X, self.item_factors_, "(rows, items)")

    def fold_in_items(self, X: Any) -> Float[np.ndarray, "rows k"]:
        """Factors of items that were not in training, from their counts (new items, users)."""
        check_is_fitted(self)
        return self._fold_in(X, self.user_factors_, "(new items, users)")

    def _fold_in(self, X: Any, fixed: np.ndarray, axes: str) -> np.ndarray:
        matrix = canonical_matrix(np.atleast_2d(X) if isinstance(X, np.ndarray) else X, "X")
        if matrix.shape[1] != len(fixed):
            raise ValueError(f"X has shape {matrix.shape}, but {axes} with {len(fixed)} columns is needed")
        rows = self._rows(matrix, self.signed_confidence(matrix.data))
        return half_step(
            fixed,
            rows,
            self.row_regularization(rows.lengths, len(fixed)),
            unobserved_weight=self.unobserved_weight,
            solver="cholesky",
            n_jobs=self.n_jobs,
        )

    def score(self, users: Any, items: Any) -> Float[np.ndarray, "..."]:
        """``x_u . y_i`` of users and items that broadcast against each other."""
        check_is_fitted(self)
        users = _ids(users, len(self.user_factors_), "user")
        items = _ids(items, len(self.item_factors_), "item")
        products = self.user_factors_[users].astype(np.float64) * self.item_factors_[items]
        return products.sum(-1)

    def score_block(self, users: Any, X: Any = None) -> Float[np.ndarray, "users items"]:
        """Scores of all items for some users; for `ranking_metrics`."""
        check_is_fitted(self)
        return self.user_factors_[_ids(users, len(self.user_factors_), "user")] @ self.item_factors_.T

    def rank_percentile(self, users: Any, items: Any) -> Float[np.ndarray, "..."]:
        """Place of items among all for their users, in percent: 0 is the top of the list, 100 its end (2008, section 6)."""
        check_is_fitted(self)
        users, items = np.broadcast_arrays(
            _ids(users, len(self.user_factors_), "user"), _ids(items, len(self.item_factors_), "item")
        )
        places = np.empty(users.size)
        for at, (user, item) in enumerate(zip(users.flat, items.flat, strict=True)):
            scores = self.item_factors_ @ self.user_factors_[user]
            places[at] = (scores > scores[item]).sum() + ((scores == scores[item]).sum() - 1) / 2
        return (100 * places / max(1, len(self.item_factors_) - 1)).reshape(users.shape)

    def explain(self, user: int, item: int, X: Any) -> Explanation:
        """How much each of the user's entries adds to the score of an item (2008, section 5).

        Args:
            user: The user; its row of ``X`` is explained. With a single row in ``X`` that row is the user's.
            item: The item.
            X: Counts, one row or all users'.

        Returns:
            The contributions ``c_uj p_uj y_i^T W_u y_j`` with ``W_u`` the inverse of the user's system; their sum is the score.
        """
        check_is_fitted(self)
        (item,) = _ids([item], len(self.item_factors_), "item")
        matrix = canonical_matrix(np.atleast_2d(X) if isinstance(X, np.ndarray) else X, "X")
        row = self._user_rows(matrix, np.atleast_1d(_ids(user, len(self.user_factors_), "user")))
        entries, confidence = row.indices, self.signed_confidence(row.data).astype(np.float64)
        factors = self.item_factors_.astype(np.float64)
        own = factors[entries]
        base = self.unobserved_weight if self.target == "hkv" else 0.0
        weights = np.abs(confidence) - base
        (penalty,) = self.row_regularization(np.array([len(entries)]), len(factors))
        system = (
            self.unobserved_weight * gram_matrix(factors) + (own.T * weights) @ own + penalty * np.eye(self.factors)
        )
        similarity = own @ np.linalg.solve(system, factors[item])
        contributions = np.maximum(confidence, 0) * similarity
        order = np.argsort(-contributions, kind="stable")
        return Explanation(float(contributions.sum()), entries[order].astype(np.int64), contributions[order])

    # ---------------------------------------------------------------- lists

    def recommend(
        self,
        users: Any,
        X: Any = None,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        exclude_items: Any = None,
        items: Any = None,
        N: int | None = None,
        filter_already_liked_items: bool | None = None,
        filter_items: Any = None,
    ) -> tuple[Int[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        """The best items of each user.

        Args:
            users: One user or several.
            X: Counts whose entries are left out: one row for each of ``users``, or all users' rows.
            n: Length of the lists.
            exclude_seen: Leave out what the user has an entry for; needs ``X``.
            exclude_items: Items never to recommend.
            items: The only items to choose from.
            N: Alias of ``n``; so are ``filter_already_liked_items`` of ``exclude_seen`` and ``filter_items`` of
                ``exclude_items``, the names of the package ``implicit``.
            filter_already_liked_items: Alias.
            filter_items: Alias.

        Returns:
            Items and scores, (n,) for one user, (users, n) for several; best first, of equal scores the lower item first. Where
            there is no further item the id is -1 and the score -inf. A user without factors (no entries in training) gets
            ids -1 and scores NaN: there is nothing to go by; `Popularity` is the usual answer.

        Raises:
            ValueError: Ids out of range, a matrix of another width or number of rows, ``exclude_seen`` without ``X``.
        """
        check_is_fitted(self)
        n = n if N is None else N
        exclude_seen = exclude_seen if filter_already_liked_items is None else filter_already_liked_items
        exclude_items = exclude_items if filter_items is None else filter_items
        if n < 1:
            raise ValueError(f"n={n} must be at least 1")
        single = np.ndim(users) == 0
        chosen = np.atleast_1d(_ids(users, len(self.user_factors_), "user"))
        seen = None
        if exclude_seen:
            if X is None:
                raise ValueError("exclude_seen=True needs X, the counts whose items are left out")
            seen = self._user_rows(canonical_matrix(np.atleast_2d(X) if isinstance(X, np.ndarray) else X, "X"), chosen)
        allowed = self._allowed(items, exclude_items)
        ids, scores = ranking.best_items(self.user_factors_[chosen], self.item_factors_, n, allowed, seen, self.n_jobs)
        nothing = ~self.user_factors_[chosen].any(axis=1)
        ids[nothing], scores[nothing] = -1, np.nan
        return (ids[0], scores[0]) if single else (ids, scores)

    def recommend_for_factors(
        self, user_factors: Float[np.ndarray, "rows k"], seen: Any = None, n: int = 10
    ) -> tuple[Int[np.ndarray, "rows n"], Float[np.ndarray, "rows n"]]:
        """The best items for factors that `fold_in_users` gave; entries of ``seen`` (rows, items) are left out."""
        check_is_fitted(self)
        shape = (len(user_factors), len(self.item_factors_))
        rows = None if seen is None else canonical_matrix(seen, "seen", shape=shape)
        return ranking.best_items(user_factors, self.item_factors_, n, None, rows, self.n_jobs)

    def _user_rows(self, matrix: sparse.csr_array, users: np.ndarray) -> sparse.csr_array:
        """The rows of ``users``: all users' rows, or one for each of them."""
        width = len(self.item_factors_)
        if matrix.shape[1] != width:
            raise ValueError(f"X has shape {matrix.shape}, but the model has {width} items (columns)")
        if matrix.shape[0] == len(self.user_factors_):
            return matrix[users]
        if matrix.shape[0] != len(users):
            raise ValueError(
                f"X has {matrix.shape[0]} rows; {len(users)} (one for each user asked for) or {len(self.user_factors_)} "
                "(all users) are needed"
            )
        return matrix

    def _allowed(self, items: Any, exclude_items: Any) -> np.ndarray | None:
        if items is None and exclude_items is None:
            return None
        count = len(self.item_factors_)
        allowed = np.zeros(count, bool)
        allowed[slice(None) if items is None else np.atleast_1d(_ids(items, count, "item"))] = True
        if exclude_items is not None:
            allowed[np.atleast_1d(_ids(exclude_items, count, "item"))] = False
        return np.flatnonzero(allowed)

    def similar_items(self, item: int, n: int = 10) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Items by the cosine of their factors, the item itself first; zero vectors have cosine 0."""
        check_is_fitted(self)
        return ranking.most_similar(self.item_factors_, int(_ids(item, len(self.item_factors_), "item")), n)

    def similar_users(self, user: int, n: int = 10) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Users by the cosine of their factors, the user itself first."""
        check_is_fitted(self)
        return ranking.most_similar(self.user_factors_, int(_ids(user, len(self.user_factors_), "user")), n)

    # ---------------------------------------------------------------- names of `implicit`, export, folders

    @property
    def user_factors(self) -> Float[np.ndarray, "users k"]:
        """Alias of ``user_factors_``."""
        check_is_fitted(self)
        return self.user_factors_

    @property
    def item_factors(self) -> Float[np.ndarray, "items k"]:
        """Alias of ``item_factors_``."""
        check_is_fitted(self)
        return self.item_factors_

    def to_embeddings(self) -> tuple[torch.nn.Embedding, torch.nn.Embedding]:
        """User and item factors as a pair of ``nn.Embedding``; the score is the inner product."""
        check_is_fitted(self)
        users, items = (
            torch.nn.Embedding.from_pretrained(torch.from_numpy(f.copy()), freeze=False)
            for f in (self.user_factors_, self.item_factors_)
        )
        return users, items

    def save_pretrained(
        self, folder: str | Path, *, user_ids: Sequence[Any] | None = None, item_ids: Sequence[Any] | None = None
    ) -> None:
        """Write ``config.json``, ``model.safetensors`` and, if given, the original ids; whole or not at all."""
        from tenfold.recommend.data import write_model

        check_is_fitted(self)
        write_model(self, Path(folder), user_ids, item_ids)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ImplicitALS:
        """Read a model's folder; original ids, if there are any, become ``user_ids_`` and ``item_ids_``."""
        from tenfold.recommend.data import read_model

        return read_model(cls, Path(folder))


def _ids(values: Any, count: int, what: str) -> np.ndarray:
    """Whole numbers from 0 to count - 1."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"{what} ids must be whole numbers, not {array.dtype}; original ids are mapped by Interactions.{what}_index"
        )
    if array.size and (array.min() < 0 or array.max() >= count):
        wrong = int(array.min()) if array.min() < 0 else int(array.max())
        raise ValueError(f"{what} {wrong} is not one of the {count} {what}s 0 to {count - 1}")
    return array.astype(np.int64)


def _progress(verbose: bool, iterations: int) -> Any:
    from tenfold.console.progress import progress

    return progress("alternating least squares", iterations, show=verbose)
