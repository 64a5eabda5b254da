"""Parts of the data to train on and to be judged by: within each user, by time, or by users that training never sees.

All return matrices of `scipy.sparse.csr_array`, float32, canonical, with the columns of the whole: an index means the same
item everywhere. No entry is in two parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy import sparse

from tenfold.recommend.matrices import canonical_matrix

RandomState = int | np.random.Generator | None


class Split(NamedTuple):
    """Entries to train on, and entries of the same users to find again.

    Args:
        train: (users, items).
        test: (users, items); rows of users with nothing held out are empty.
    """

    train: sparse.csr_array
    test: sparse.csr_array


class StrongSplit(NamedTuple):
    """Users to train on, and others of whom a part is shown to the trained model and the rest is to be found.

    Args:
        train: (train users, items): all entries of the users for training.
        fold_in: (held-out users, items): what the model is told of each held-out user; exclude it from the ranking.
        test: (held-out users, items): what it is to find.
        train_users: Rows of the whole matrix that are the rows of `train`, ascending, (train users,).
        held_out_users: Rows of the whole matrix that are the rows of `fold_in` and `test`, ascending, (held-out users,).
    """

    train: sparse.csr_array
    fold_in: sparse.csr_array
    test: sparse.csr_array
    train_users: Int64[np.ndarray, " train"]
    held_out_users: Int64[np.ndarray, " held_out"]


def leave_one_out(
    matrix: sparse.csr_array,
    *,
    times: Float[np.ndarray, " entries"] | None = None,
    random_state: RandomState = None,
) -> Split:
    """One entry of each user with at least two is held out: a random one, or the latest where times are given.

    Args:
        matrix: (users, items).
        times: Time of each entry in the order of ``matrix.data``; of entries at one time, a random one is the latest.
        random_state: Seed or generator.

    >>> train, test = leave_one_out(sparse.csr_array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), random_state=0)
    >>> train.sum(1).tolist(), test.sum(1).tolist()
    ([1.0, 1.0], [1.0, 0.0])
    """
    matrix = canonical_matrix(matrix, "matrix")
    counts = np.diff(matrix.indptr)
    draw = np.random.default_rng(random_state).random(matrix.nnz)
    if times is not None:
        if len(times) != matrix.nnz:
            raise ValueError(f"times has {len(times)} entries for the {matrix.nnz} of the matrix")
        draw[np.lexsort((draw, times))] = np.arange(matrix.nnz, 0, -1) / (matrix.nnz + 1)  # the latest first
    return Split(*_parted(matrix, _first_of_each_row(matrix, draw, (counts > 1).astype(np.int64))))


def hold_out(matrix: sparse.csr_array, fraction: float = 0.2, *, random_state: RandomState = None) -> Split:
    """A random part of each user's entries is held out.

    Args:
        matrix: (users, items).
        fraction: Of a user's n entries round(fraction n) are held out, but at least one and never all; none if n = 1.
        random_state: Seed or generator.

    Raises:
        ValueError: A fraction that is not between 0 and 1.
    """
    _require_fraction("fraction", fraction)
    matrix = canonical_matrix(matrix, "matrix")
    draw = np.random.default_rng(random_state).random(matrix.nnz)
    return Split(*_parted(matrix, _first_of_each_row(matrix, draw, _portion(matrix, fraction))))


def cut_time(timestamps: Float[np.ndarray, " events"], fraction: float | None, at: float | None) -> float:
    """The moment that parts the events: the given one, or such that about ``fraction`` of them come at it or later.

    Raises:
        ValueError: Both or neither given, a fraction not between 0 and 1, a moment that leaves one side empty.
    """
    if (fraction is None) == (at is None):
        raise ValueError(f"give either fraction or at, not fraction={fraction!r} and at={at!r}")
    if fraction is not None:
        _require_fraction("fraction", fraction)
        place = min(max(round((1 - fraction) * len(timestamps)), 0), len(timestamps) - 1)
        moment = float(np.partition(timestamps, place)[place])
    else:
        assert at is not None
        moment = float(at)
    first, last = float(timestamps.min()), float(timestamps.max())
    if not first < moment <= last:
        raise ValueError(f"a cut at {moment} leaves one side empty; events reach from {first} to {last}")
    return moment


def split_by_time(before: sparse.csr_array, after: sparse.csr_array, *, keep_repeats: bool = False) -> Split:
    """What happened before a moment, and what happened at it or later.

    The test of the 2008 paper leaves out what the user knew already: to predict it again is easy. So does this, unless
    ``keep_repeats``.

    Args:
        before: (users, items), the sum of the earlier events.
        after: (users, items), the sum of the later ones.
        keep_repeats: Keep entries in the test that are in the training part, too.

    >>> early, late = sparse.csr_array([[1.0, 0.0, 0.0]]), sparse.csr_array([[2.0, 3.0, 0.0]])
    >>> split_by_time(early, late).test.toarray().tolist()
    [[0.0, 3.0, 0.0]]
    """
    before = canonical_matrix(before, "before")
    after = canonical_matrix(after, "after", shape=before.shape)
    if keep_repeats:
        return Split(before, after)
    return Split(before, _parted(after, contains(before, after))[0])


def strong_generalization(
    matrix: sparse.csr_array, held_out_users: int | float, fold_in: float = 0.8, random_state: RandomState = None
) -> StrongSplit:
    """Held-out users, as in Liang et al. 2018 and Rendle et al. 2022: the model is fitted on the others only.

    Entries of held-out users on items that no user for training has are dropped: nothing can be known of such items.
    Of the n entries that are left to a held-out user round(fold_in n) are shown, at least one, never all; users with one
    entry show it and have no test, and users with none stay as empty rows.
    For a validation set, split once for the test and split ``train`` again.

    Args:
        matrix: (users, items).
        held_out_users: How many users, drawn from those with at least two entries; or their share of all users,
            a float between 0 and 1.
        fold_in: Share of a held-out user's entries that the model is shown.
        random_state: Seed or generator.

    Raises:
        ValueError: No user left on one side, more held out than have two entries, a share not between 0 and 1.

    >>> split = strong_generalization(sparse.csr_array(np.ones((6, 5))), 2, random_state=0)
    >>> split.train.shape, split.fold_in.sum(1).tolist(), split.test.sum(1).tolist()
    ((4, 5), [4.0, 4.0], [1.0, 1.0])
    """
    matrix = canonical_matrix(matrix, "matrix")
    _require_fraction("fold_in", fold_in)
    users = matrix.shape[0]
    if isinstance(held_out_users, float | np.floating):
        _require_fraction("held_out_users", float(held_out_users))
        count = max(1, round(held_out_users * users))
    else:
        count = int(held_out_users)
    able = np.flatnonzero(np.diff(matrix.indptr) > 1)
    if not 1 <= count <= len(able) or count >= users:
        raise ValueError(
            f"held_out_users={held_out_users!r} must be at least 1 and leave users to train on; "
            f"{len(able)} of {users} users have two entries or more"
        )
    rng = np.random.default_rng(random_state)
    held_out = np.sort(rng.choice(able, size=count, replace=False))
    trained = np.setdiff1d(np.arange(users), held_out)
    train, shown = matrix[trained], matrix[held_out]
    known = np.zeros(matrix.shape[1], dtype=np.bool_)
    known[train.indices] = True
    shown = _parted(shown, known[shown.indices])[1]
    tested = _first_of_each_row(shown, rng.random(shown.nnz), _portion(shown, 1 - fold_in))
    kept, test = _parted(shown, tested)
    return StrongSplit(train, kept, test, trained.astype(np.int64), held_out.astype(np.int64))


def contains(matrix: sparse.csr_array, other: sparse.csr_array) -> Bool[np.ndarray, " entries"]:
    """For each entry of ``other``, in the order of its data, whether ``matrix`` has one there; both canonical."""
    keys = [_rows(part).astype(np.int64) * part.shape[1] + part.indices for part in (matrix, other)]
    if not len(keys[0]):
        return np.zeros(len(keys[1]), dtype=np.bool_)
    place = np.minimum(np.searchsorted(keys[0], keys[1]), len(keys[0]) - 1)
    return keys[0][place] == keys[1]


def _rows(matrix: sparse.csr_array) -> np.ndarray:
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _portion(matrix: sparse.csr_array, fraction: float) -> np.ndarray:
    """round(fraction n) of each row's n entries, at least one and never all."""
    counts = np.diff(matrix.indptr)
    return np.where(counts > 1, np.clip(np.rint(fraction * counts), 1, np.maximum(counts - 1, 1)), 0).astype(np.int64)


def _first_of_each_row(matrix: sparse.csr_array, draw: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Marks the ``wanted[u]`` entries of row u with the smallest draws, which lie in [0, 1)."""
    rows = _rows(matrix)
    order = np.argsort(rows + 0.99 * draw)  # by row, then by draw
    rank = np.empty(matrix.nnz, dtype=np.int64)
    rank[order] = np.arange(matrix.nnz) - matrix.indptr[:-1][rows]
    return rank < wanted[rows]


def _parted(matrix: sparse.csr_array, marked: np.ndarray) -> tuple[sparse.csr_array, sparse.csr_array]:
    """The entries that are not marked, and those that are."""
    parts = []
    for kept in (~marked, marked):
        before = np.concatenate(([0], np.cumsum(kept)))
        indptr = before[matrix.indptr].astype(matrix.indptr.dtype)
        part = sparse.csr_array((matrix.data[kept], matrix.indices[kept], indptr), shape=matrix.shape)
        part.has_canonical_format = True
        parts.append(part)
    return parts[0], parts[1]


def _require_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name}={value!r} must lie between 0 and 1")
