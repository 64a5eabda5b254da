"""Best items by inner product, exactly and without scoring every item.

Items are sorted by the length of their factors. Once a user's list is full of scores at least t, an item with
``|x| |y| < t`` cannot enter it (Cauchy-Schwarz), so scoring stops at the first block of shorter items for all users of a block.
Of equal scores the lower item comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from tenfold.recommend.kernels import top_lists
from tenfold.recommend.matrices import row_numbers
from tenfold.runtime import parallel_rows

USERS, ITEMS = 256, 1024  # of one block of scores: a megabyte


def best_items(
    users: Float[np.ndarray, "users k_users"],
    items: Float[np.ndarray, "items k"],
    n: Any,
    allowed: Int[np.ndarray, " allowed"] | None = None,
    seen: sparse.csr_array | None = None,
    n_jobs: int | None = None,
) -> tuple[Int[np.ndarray, "users n"], Float[np.ndarray, "users n"]]:
    """The n items of largest inner product for each user; -1 and -inf where there are fewer, -1 and NaN for zero factors.

    Args:
        users: Factors of users.
        items: Factors of items.
        n: Length of the lists.
        allowed: Items to choose from, ascending; all if None.
        seen: Entries to leave out, (users, items).
        n_jobs: Threads.

    >>> best_items(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[2.0, 1.0], [3.0, 0.0], [2.0, 0.0]]), 2)
    (array([[ 1,  0],
           [-1, -1]]), array([[ 3.,  2.],
           [nan, nan]]))
    """
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n={n!r} must be a whole number of at least 1")
    if users.shape[1] != items.shape[1]:
        raise ValueError(f"user factors have shape {users.shape}, but items have {items.shape[1]} factors")
    names = np.arange(len(items)) if allowed is None else allowed
    lengths = np.linalg.norm(items[names], axis=1)
    order = np.argsort(-lengths, kind="stable")
    names, lengths = names[order], lengths[order]
    table = np.ascontiguousarray(items[names])
    position = np.full(len(items), -1, np.int64)
    position[names] = np.arange(len(names))
    top_ids = np.full((len(users), n), -1, np.int64)
    top_scores = np.full((len(users), n), -np.inf, users.dtype)
    # no computed product exceeds that of the computed norms by more than the rounding of k additions
    reach = np.linalg.norm(users, axis=1).astype(np.float64) * (
        1 + 4 * (users.shape[1] + 8) * np.finfo(users.dtype).eps
    )

    def rank(first: int, last: int) -> None:
        for begin in range(first, last, USERS):
            _rank_block(
                np.arange(begin, min(begin + USERS, last)),
                users,
                table,
                names,
                lengths,
                reach,
                position,
                seen,
                top_ids,
                top_scores,
            )

    parallel_rows(rank, len(users), n_jobs)
    nothing = ~users.any(axis=1)  # all items are equal to them: there is no list
    top_ids[nothing], top_scores[nothing] = -1, np.nan
    return top_ids, top_scores


def _rank_block(
    block: np.ndarray,
    users: np.ndarray,
    table: np.ndarray,
    names: np.ndarray,
    lengths: np.ndarray,
    reach: np.ndarray,
    position: np.ndarray,
    seen: sparse.csr_array | None,
    top_ids: np.ndarray,
    top_scores: np.ndarray,
) -> None:
    active = block
    rows = np.empty(0, np.int64)
    columns = np.empty(0, np.int64)
    if seen is not None:
        entries = seen[block]
        rows = np.repeat(block, np.diff(entries.indptr))
        columns = position[entries.indices]
    for first in range(0, len(names), ITEMS):
        # a list that is full of scores no shorter item can reach is done; equality must still be looked at
        active = active[reach[active] * lengths[first] >= top_scores[active, -1]]
        if not len(active):
            return
        part = slice(first, min(first + ITEMS, len(names)))
        scores = users[active] @ table[part].T
        inside = (columns >= part.start) & (columns < part.stop)
        if inside.any():
            place = np.full(int(block[-1]) + 1 - int(block[0]), -1)
            place[active - block[0]] = np.arange(len(active))
            where = place[rows[inside] - block[0]]
            scores[where[where >= 0], columns[inside][where >= 0] - part.start] = -np.inf
        lists, ids = top_scores[active], top_ids[active]
        top_lists.merge_top(scores, names[part], lists, ids)
        top_scores[active], top_ids[active] = lists, ids


def most_similar(
    factors: Float[np.ndarray, "rows k"], row: int, n: Any
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Rows by cosine with one of them, itself first; a zero vector has cosine 0 with everything."""
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n={n!r} must be a whole number of at least 1")
    lengths = np.linalg.norm(factors, axis=1)
    cosines = (factors @ factors[row]) / np.maximum(lengths * lengths[row], np.finfo(factors.dtype).tiny)
    cosines[row] = np.inf  # first, whatever rounding says
    order = np.argsort(-cosines, kind="stable")[:n]
    values = cosines[order]
    values[0] = 1.0 if lengths[row] > 0 else 0.0
    return order.astype(np.int64), values


def percentiles(
    users: Float[np.ndarray, "users k"],
    items: Float[np.ndarray, "items k"],
    chosen: Int[np.ndarray, "*pairs"],
    ranked: Int[np.ndarray, "*pairs"],
) -> Float[np.ndarray, "*pairs"]:
    """Place of each ranked item among all items for its user, in percent; of equal scores each has the middle place."""
    flat, places = ranked.ravel(), np.empty(ranked.size)
    order = np.argsort(chosen.ravel(), kind="stable")
    distinct, starts = np.unique(chosen.ravel()[order], return_index=True)
    for user, pairs in zip(distinct, np.split(order, starts[1:]), strict=True):
        lowered = -(items @ users[user])
        sorted_scores, own = np.sort(lowered), lowered[flat[pairs]]
        before = np.searchsorted(sorted_scores, own)
        places[pairs] = (before + np.searchsorted(sorted_scores, own, side="right") - 1) / 2
    return (100 * places / max(1, len(items) - 1)).reshape(ranked.shape)


def allowed_items(count: int, items: Any, excluded: Any) -> np.ndarray | None:
    """Items to choose from, ascending, or None for all ``count``: those of ``items`` (None: all) without the excluded."""
    if items is None and excluded is None:
        return None
    allowed = np.zeros(count, bool)
    allowed[slice(None) if items is None else row_numbers(items, count, "item")] = True
    if excluded is not None:
        allowed[row_numbers(excluded, count, "item")] = False
    return np.flatnonzero(allowed)
