"""What any model has to beat: the most popular items, and the neighbours of what a user had (Hu et al. 2008, section 6).

Both are fitted on users x items and give the scores of any users, known or new, from their rows of such a matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float32, Int
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from tenfold.recommend.matrices import canonical_matrix

BLOCK = 1 << 24  # similarities that are looked at at a time


class Popularity(BaseEstimator):
    """The same ranking for everybody: by the share of users who had the item.

    Attributes:
        popularity_: Share of users with an entry above zero, (items,).

    >>> Popularity().fit([[1, 1, 0], [0, 2, 0]]).popularity_.tolist()
    [0.5, 1.0, 0.0]
    """

    def fit(self, X: Any, y: None = None) -> Popularity:
        """Count users.

        Args:
            X: (users, items), sparse or dense.
            y: Ignored.
        """
        matrix = canonical_matrix(X, "X")
        _require_entries(matrix)
        self.popularity_ = _shares(matrix)
        self.n_features_in_ = matrix.shape[1]
        return self

    def score_block(self, users: Int[np.ndarray, " block"], X: Any = None) -> Float32[np.ndarray, "block items"]:
        """Scores of a block of users.

        Args:
            users: Their rows in X, (block,).
            X: Not needed; for the same call with every baseline.
        """
        check_is_fitted(self)
        return np.tile(self.popularity_, (len(users), 1))


class ItemCosine(BaseEstimator):
    r"""Item neighbourhoods by cosine: an item scores by its likeness to what the user had.

    .. math:: \hat p_{ui} = \sum_{j \in N(i)} s_{ij} r_{uj}, \quad s_{ij} = \frac{r_i^\top r_j}{\|r_i\| \|r_j\| + h}

    where :math:`r_i` is the column of item i and N(i) its most similar items. A user without entries gets the items'
    popularity, not a list in arbitrary order.

    Args:
        neighbors: Size of N(i); all items if None, as in the 2008 paper.
        shrinkage: h, which takes weight from items with little behind them.
        binary: Take every value above zero as 1, and others as none.

    Attributes:
        similarity_: s_ij at row j and column i, (items, items), sparse; nothing on the diagonal.
        popularity_: Share of users with an entry above zero, (items,).

    >>> model = ItemCosine().fit([[1, 1, 0], [1, 1, 0], [0, 1, 1]])
    >>> model.similarity_.toarray().astype(float).round(4).tolist()  # 2 / sqrt(2 * 3), 0 and 1 / sqrt(3)
    [[0.0, 0.8165, 0.0], [0.8165, 0.0, 0.5774], [0.0, 0.5774, 0.0]]
    """

    def __init__(self, neighbors: int | None = 100, *, shrinkage: float = 0.0, binary: bool = False) -> None:
        self.neighbors = neighbors
        self.shrinkage = shrinkage
        self.binary = binary

    def fit(self, X: Any, y: None = None) -> ItemCosine:
        """Find every item's neighbours, a block of items at a time.

        Args:
            X: (users, items), sparse or dense.
            y: Ignored.

        Raises:
            ValueError: No entries, ``neighbors`` below 1, negative ``shrinkage``.
        """
        if self.neighbors is not None and not self.neighbors >= 1:
            raise ValueError(f"neighbors={self.neighbors!r} must be 1 or more, or None for all items")
        if not 0 <= self.shrinkage < np.inf:
            raise ValueError(f"shrinkage={self.shrinkage!r} must be 0 or more and finite")
        matrix = self._values(canonical_matrix(X, "X"))
        _require_entries(matrix)
        self.popularity_ = _shares(matrix)
        self.n_features_in_ = matrix.shape[1]
        items = matrix.shape[1]
        by_item = matrix.T.tocsr()
        norms = np.sqrt(by_item.multiply(by_item).sum(axis=1)).astype(np.float32)
        step = max(1, BLOCK // items)
        rows = [
            self._neighbors_of(first, by_item[first : first + step] @ matrix, norms) for first in range(0, items, step)
        ]
        self.similarity_ = sparse.csr_array(sparse.vstack(rows, format="csr").T.tocsr())
        return self

    def score_block(self, users: Int[np.ndarray, " block"], X: Any) -> Float32[np.ndarray, "block items"]:
        """Scores of a block of users.

        Args:
            users: Their rows in X, (block,).
            X: (users, items): what each user had; need not be the matrix of `fit`.

        Raises:
            ValueError: X has another number of items than the matrix of `fit`.
        """
        check_is_fitted(self)
        matrix = canonical_matrix(X, "X")
        if matrix.shape[1] != self.n_features_in_:
            turned = "; X is transposed" if matrix.shape[0] == self.n_features_in_ else ""
            raise ValueError(f"X has shape {matrix.shape}, but was fitted with {self.n_features_in_} items{turned}")
        own = self._values(matrix[users])
        scores = (own @ self.similarity_).toarray()
        scores[np.diff(own.indptr) == 0] = self.popularity_
        return scores

    def _values(self, matrix: sparse.csr_array) -> sparse.csr_array:
        if not self.binary:
            return matrix
        return canonical_matrix(matrix > 0, "X")

    def _neighbors_of(self, first: int, products: sparse.csr_array, norms: np.ndarray) -> sparse.csr_array:
        """The similarities of items ``first``, ``first + 1``, ... (rows) to their neighbours."""
        products.sort_indices()
        columns, values, counts = [], [], []
        for row in range(products.shape[0]):
            part = slice(products.indptr[row], products.indptr[row + 1])
            item, others, dots = first + row, products.indices[part], products.data[part]
            kept = (others != item) & (dots != 0)
            others, dots = others[kept], dots[kept]
            similar = dots / (norms[item] * norms[others] + np.float32(self.shrinkage))
            best = _largest(similar, self.neighbors)
            columns.append(others[best])
            values.append(similar[best])
            counts.append(len(best))
        indptr = np.concatenate(([0], np.cumsum(counts)))
        shape = (products.shape[0], products.shape[1])
        return sparse.csr_array((np.concatenate(values), np.concatenate(columns), indptr), shape=shape)


def _largest(values: np.ndarray, count: int | None) -> Int[np.ndarray, " kept"]:
    """Positions of the largest, ascending; of equal ones those that come first."""
    if count is None or len(values) <= count:
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    above, equal = np.flatnonzero(values > least), np.flatnonzero(values == least)
    return np.sort(np.concatenate((above, equal[: count - len(above)])))


def _shares(matrix: sparse.csr_array) -> Float32[np.ndarray, " items"]:
    liked = matrix.indices[matrix.data > 0]
    return (np.bincount(liked, minlength=matrix.shape[1]) / matrix.shape[0]).astype(np.float32)


def _require_entries(matrix: sparse.csr_array) -> None:
    if not matrix.nnz:
        raise ValueError(f"X of shape {matrix.shape} has no entries; at least one interaction is needed")
