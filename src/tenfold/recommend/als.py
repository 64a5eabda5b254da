r"""Matrix factorisation of implicit feedback by alternating least squares.

Hu, Koren & Volinsky 2008, *Collaborative filtering for implicit feedback datasets* (ICDM): from counts ``r_ui`` come a preference
``p_ui = 1`` where ``r_ui > 0`` and a confidence ``c_ui = 1 + alpha r_ui`` (or ``1 + alpha log(1 + r_ui / epsilon)``), and users
and items get factors that minimise over *all* cells

.. math:: \sum_{u,i} c_{ui} (p_{ui} - x_u^T y_i)^2 + \sum_u \lambda_u |x_u|^2 + \sum_i \lambda_i |y_i|^2 .

Cells without an entry have p = 0 and the weight ``unobserved_weight`` (1 in the paper). Rendle et al. 2022, *Revisiting the
performance of iALS*, write the same cost with the unobserved weight on every cell (``target="rendle"``) and scale
``lambda_u = lambda (n_u + w_0 M)^nu``, with ``n_u`` entries in the row, M rows on the other side and nu = ``frequency_exponent``.

**The two costs are one.** An entry of the second form costs ``c (1 - s)^2 + w0 s^2 = (c + w0)(s - t)^2`` plus a constant, with
``t = c / (c + w0)``. Where all entries have the same c, it is the first form for factors divided by ``sqrt(t)`` (scores by t),
with confidence ``c + w0``, the same w0 and ``lambda / t``; or, divided by w0, confidence ``1 + c / w0``, w0 = 1 and
``lambda / (w0 t)``.

A negative ``r`` is a dislike: preference 0 with the confidence of ``|r|``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from tenfold.recommend import ranking
from tenfold.recommend.engines import chosen_engine
from tenfold.recommend.explanation import Explanation, explain_score
from tenfold.recommend.fitting import FitCheckpoints, State, fit_factors, start_factors
from tenfold.recommend.matrices import canonical_matrix, row_numbers, rows_of_users
from tenfold.recommend.objective import Confidence, Loss, Objective, Side, Target
from tenfold.recommend.parameters import check_parameters
from tenfold.recommend.solvers import Solver


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
        device: None for compiled kernels on the CPU; ``"cuda"``, ``"cuda:1"`` ... for torch's exact solver on an accelerator
            (``"cpu"`` runs that solver, too, for comparison); ``"auto"`` for a GPU if there is one, else as None.
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
    >>> model.recommend(0, plays, n=2, exclude_seen=False)[0]  # the items of the first user's kind
    array([0, 1])
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
        solver: Solver = "auto",
        tol: float | None = None,
        dtype: str = "float32",
        device: str | None = None,
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
        self.device = device
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
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> ImplicitALS:
        """Fit anew.

        Ctrl-C raises KeyboardInterrupt as always; if an iteration was finished, the model first takes the factors of the last
        one, with its users solved for them, and can be used, or go on by `partial_fit`. A second Ctrl-C leaves it as it was.

        Args:
            X: Counts (users, items): any scipy sparse matrix or array, or a dense one. Duplicates are summed, zeros dropped.
            y: Ignored.
            item_factors: Factors to start from.
            callback: Called with the number of each finished iteration, from 0, and its loss.
            engine: ``"local"``, or ``"ray"`` for half steps spread over a Ray cluster (extra ``ray``).
            checkpoint: Folder in which each finished iteration is kept, so that a run that was stopped or killed can be resumed
                to the same bits; at Ctrl-C the model then stays as it was.
            resume: Go on from the folder's checkpoint, if there is one; only a larger ``iterations`` may differ.

        Raises:
            ValueError: A parameter out of range, an empty matrix, NaN, a singular system (lambda 0), a device that is not here.
            InputError: A checkpoint of other data or parameters, or one that is there without ``resume``.
        """
        self.check_parameters()
        users, items = self.objective().sides(self._matrix(X))
        return self.fit_sides(
            users,
            items,
            item_factors=item_factors,
            callback=callback,
            engine=engine,
            checkpoint=checkpoint,
            resume=resume,
        )

    def fit_sides(
        self,
        users: Side,
        items: Side,
        *,
        item_factors: Float[np.ndarray, "items k"] | None = None,
        callback: Callable[[int, float], None] | None = None,
        engine: str = "local",
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> ImplicitALS:
        """`fit` to rows that are prepared already, such as those that lie on the nodes of a cluster."""
        parameters = self.get_params(deep=False)
        shape = (len(items.rows), self.factors)
        kept = None if checkpoint is None else FitCheckpoints(Path(checkpoint), parameters, users.rows)
        fit_factors(
            State(None, start_factors(shape, item_factors, self.random_state, self.dtype), []),
            users,
            items,
            parameters,
            self._accept,
            engine=engine,
            callback=callback,
            checkpoints=kept,
            resume=resume,
        )
        return self

    def partial_fit(self, X: Any, y: Any = None) -> ImplicitALS:
        """Continue from the present factors (or fit, if there are none) on a matrix of the same shape."""
        if not hasattr(self, "item_factors_"):
            return self.fit(X)
        self.check_parameters()
        matrix = self._matrix(X, shape=self._shape())
        if self.item_factors_.shape[1] != self.factors:
            raise ValueError(
                f"factors={self.factors}, but the factors to continue from have {self.item_factors_.shape[1]}"
            )
        users, items = (factors.astype(self.dtype, copy=False) for factors in (self.user_factors_, self.item_factors_))
        state = State(users, items, self.loss_history_)
        fit_factors(state, *self.objective().sides(matrix), self.get_params(deep=False), self._accept)
        return self

    def _accept(self, users: np.ndarray, items: np.ndarray, losses: list[float]) -> None:
        self.user_factors_, self.item_factors_, self.loss_history_ = users, items, losses
        self.n_iter_ = len(losses)

    def check_parameters(self) -> None:
        """Raises a ValueError that names the first parameter out of range."""
        check_parameters(self.get_params(deep=False))

    def objective(self) -> Objective:
        """The cost that the parameters describe."""
        return Objective(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Objective)})

    def _matrix(self, X: Any, name: str = "X", shape: tuple[int, int] | None = None) -> sparse.csr_array:
        matrix = canonical_matrix(X, name, shape=shape)
        if matrix.nnz == 0:
            raise ValueError(f"{name} of shape {matrix.shape} has no entry that is not zero")
        return matrix

    def _shape(self) -> tuple[int, int]:
        return len(self.user_factors_), len(self.item_factors_)

    def loss(self, X: Any) -> Loss:
        """The cost of ``X`` under the fitted factors, with its parts."""
        check_is_fitted(self)
        matrix = self._matrix(X, shape=self._shape())
        return self.objective().loss(matrix, self.user_factors_, self.item_factors_, self.n_jobs)

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
        objective = self.objective()
        rows = objective.rows(matrix)
        return chosen_engine(device=self.device)(
            fixed,
            rows,
            objective.lambdas(rows.lengths, len(fixed)),
            unobserved_weight=self.unobserved_weight,
            solver="cholesky",
            n_jobs=self.n_jobs,
        )

    def score(self, users: Any, items: Any) -> Float[np.ndarray, "..."]:
        """``x_u . y_i`` of users and items that broadcast against each other."""
        check_is_fitted(self)
        users = row_numbers(users, len(self.user_factors_), "user")
        items = row_numbers(items, len(self.item_factors_), "item")
        products = self.user_factors_[users].astype(np.float64) * self.item_factors_[items]
        return np.asarray(products.sum(-1))

    def score_block(self, users: Any, X: Any = None) -> Float[np.ndarray, "users items"]:
        """Scores of all items for some users; for `ranking_metrics`."""
        check_is_fitted(self)
        return self.user_factors_[row_numbers(users, len(self.user_factors_), "user")] @ self.item_factors_.T

    def rank_percentile(self, users: Any, items: Any) -> Float[np.ndarray, "..."]:
        """Place of items among all for their users, in percent: 0 is the top of the list, 100 its end (2008, section 6)."""
        check_is_fitted(self)
        users, items = np.broadcast_arrays(
            row_numbers(users, len(self.user_factors_), "user"), row_numbers(items, len(self.item_factors_), "item")
        )
        return ranking.percentiles(self.user_factors_, self.item_factors_, users, items)

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
        (item,) = row_numbers([item], len(self.item_factors_), "item")
        row = rows_of_users(X, row_numbers([user], len(self.user_factors_), "user"), self._shape())
        objective = self.objective()
        return explain_score(
            self.item_factors_,
            int(item),
            row.indices,
            objective.confidences(row.data),
            base=objective.base,
            unobserved_weight=self.unobserved_weight,
            regularization=float(objective.lambdas(np.diff(row.indptr), len(self.item_factors_))[0]),
        )

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
            X: Counts whose entries are left out: all users' rows, or one row for each of ``users`` (where both fit, all users').
            n: Length of the lists.
            exclude_seen: Leave out what the user has an entry for; needs ``X``.
            exclude_items: Items never to recommend.
            items: The only items to choose from.
            N: ``n`` by its name in the package ``implicit``.
            filter_already_liked_items: ``exclude_seen`` there.
            filter_items: ``exclude_items`` there.

        Returns:
            Items and scores, (n,) for one user, (users, n) for several; best first, of equal scores the lower item first. Where
            there is no further item the id is -1 and the score -inf. A user whose factors are zero (no likes in training) gets
            ids -1 and scores NaN: there is nothing to go by; `Popularity` is the usual answer.

        Raises:
            ValueError: Ids out of range, a matrix of another width or number of rows, ``exclude_seen`` without ``X``.
        """
        check_is_fitted(self)
        n = n if N is None else N
        exclude_seen = exclude_seen if filter_already_liked_items is None else filter_already_liked_items
        exclude_items = exclude_items if filter_items is None else filter_items
        if np.ndim(users) > 1:
            raise ValueError(f"users has shape {np.shape(users)}; one user, or a list of them, is needed")
        chosen = np.atleast_1d(row_numbers(users, len(self.user_factors_), "user"))
        if exclude_seen and X is None:
            raise ValueError("exclude_seen=True needs X, the counts whose items are left out")
        seen = rows_of_users(X, chosen, self._shape()) if exclude_seen else None
        allowed = ranking.allowed_items(len(self.item_factors_), items, exclude_items)
        ids, scores = ranking.best_items(self.user_factors_[chosen], self.item_factors_, n, allowed, seen, self.n_jobs)
        return (ids[0], scores[0]) if np.ndim(users) == 0 else (ids, scores)

    def recommend_for_factors(
        self, user_factors: Float[np.ndarray, "rows k"], seen: Any = None, n: int = 10
    ) -> tuple[Int[np.ndarray, "rows n"], Float[np.ndarray, "rows n"]]:
        """The best items for factors that `fold_in_users` gave; entries of ``seen`` (rows, items) are left out."""
        check_is_fitted(self)
        shape = (len(user_factors), len(self.item_factors_))
        rows = None if seen is None else canonical_matrix(seen, "seen", shape=shape)
        return ranking.best_items(user_factors, self.item_factors_, n, None, rows, self.n_jobs)

    def similar_items(self, item: int, n: int = 10) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Items by the cosine of their factors, the item itself first; zero vectors have cosine 0."""
        check_is_fitted(self)
        return ranking.most_similar(self.item_factors_, int(row_numbers(item, len(self.item_factors_), "item")), n)

    def similar_users(self, user: int, n: int = 10) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Users by the cosine of their factors, the user itself first."""
        check_is_fitted(self)
        return ranking.most_similar(self.user_factors_, int(row_numbers(user, len(self.user_factors_), "user")), n)

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

    def save_pretrained(self, folder: str | Path, *, user_ids: Any = None, item_ids: Any = None) -> None:
        """Write ``config.json``, ``model.safetensors`` and, if given, the original ids; whole or not at all."""
        from tenfold.recommend.model_folder import write_model

        check_is_fitted(self)
        write_model(self, Path(folder), user_ids, item_ids)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ImplicitALS:
        """Read a model's folder; original ids, if there are any, become ``user_ids_`` and ``item_ids_``."""
        from tenfold.recommend.model_folder import read_model

        return read_model(cls, Path(folder))
