r"""How good a ranking of items is, as the literature on implicit feedback measures it, user by user.

A user's candidates are all items but the excluded ones. With n relevant items (test entries above zero) of ranks
1, 2, ... among the candidates, ordered by falling score and, where scores are equal, by item index:

=============== ====================================================================================================
``recall@k``    hits(k) / min(k, n), where hits(k) counts relevant items of rank k or better (Liang et al. 2018)
``precision@k`` hits(k) / k
``ndcg@k``      sum of 1 / log2(rank + 1) over these hits, divided by the same sum for the ranks 1 ... min(k, n)
``map@k``       sum over these hits of hits(rank) / rank, divided by min(k, n)
``hit_rate@k``  1 if there is a hit, else 0
``mrr``         1 / rank of the first relevant item
``auc``         chance that a relevant candidate scores above another candidate, a tie counting half
``mpr``         expected percentile rank in percent, :math:`\sum r_{ui} \mathrm{rank}_{ui} / \sum r_{ui}` over all test
                entries: 0 is the top, 100 the end, 50 chance (Hu, Koren and Volinsky 2008, eq. 8)
``coverage@k``  share of all items that stand in the top k of some judged user
=============== ====================================================================================================

All but ``mpr`` and ``coverage`` are means over users. ``auc`` and ``mpr`` give equal scores their mean rank. An item with
the score -inf is never recommended: it is no hit at any k and in no list. Users without test items are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int64
from scipy import sparse

from tenfold.recommend.matrices import canonical_matrix
from tenfold.recommend.splits import contains

BLOCK = 1 << 22  # scores that are ranked at a time: 16 MiB in float32

Scores = Callable[[Int64[np.ndarray, " block"]], Any]


class RankingMetrics(dict[str, float]):
    """The metrics by name, and what they are made of.

    Args:
        values: Means over the judged users; ``mpr`` weighted by r, ``coverage@k`` over all of them.
        per_user: Each metric but coverage for each judged user, (judged users,); ``auc`` is NaN for a user whose
            candidates are all relevant, and such users are left out of its mean.
        users: Rows of the judged users, ascending.
        user_weights: Sum of r of each judged user: the weights of ``mpr``.
        left_out: How many users had no test items.
        unscored: How many users with test items had no scores (NaN throughout).
    """

    def __init__(
        self,
        values: dict[str, float],
        per_user: dict[str, Float[np.ndarray, " judged"]],
        users: Int64[np.ndarray, " judged"],
        user_weights: Float[np.ndarray, " judged"],
        left_out: int,
        unscored: int,
    ) -> None:
        super().__init__(values)
        self.per_user, self.users, self.user_weights = per_user, users, user_weights
        self.left_out, self.unscored = left_out, unscored

    def interval(
        self,
        name: str,
        *,
        confidence: float = 0.95,
        resamples: int = 2000,
        random_state: int | np.random.Generator | None = None,
    ) -> tuple[float, float]:
        """Bootstrap interval over users of one metric, weighted as the metric is; see `bootstrap_interval`.

        Raises:
            ValueError: A name that is no metric of users.
        """
        if name not in self.per_user:
            raise ValueError(f"{name!r} has no values of single users; those that have: {', '.join(self.per_user)}")
        weights = self.user_weights if name == "mpr" else None
        return bootstrap_interval(
            self.per_user[name], weights=weights, confidence=confidence, resamples=resamples, random_state=random_state
        )


class Ranks(NamedTuple):
    """Where the relevant items of the judged users stand, user by user, best rank first.

    Args:
        users: Judged users, ascending, (judged,).
        start: Where the entries of each judged user begin, (judged,).
        items: Column of each entry, (entries,).
        order: Rank from 1, ties by item index, (entries,).
        middle: Mean rank of the items with the same score, (entries,).
        listed: Whether the score is above -inf, (entries,).
        candidates: Number of candidates of each judged user, (judged,).
        coverage: Share of items in the top k of somebody, for each k.
        unscored: Users left out since their scores are NaN.
    """

    users: Int64[np.ndarray, " judged"]
    start: Int64[np.ndarray, " judged"]
    items: Int[np.ndarray, " entries"]
    order: Int64[np.ndarray, " entries"]
    middle: Float[np.ndarray, " entries"]
    listed: np.ndarray
    candidates: Int64[np.ndarray, " judged"]
    coverage: list[float]
    unscored: int


def ranking_metrics(
    scores: Any,
    test: Any,
    *,
    exclude: Any = None,
    k: int | Sequence[int] = (10, 20, 50, 100),
    weights: Any = None,
    unscored: str = "error",
    block_size: int | None = None,
) -> RankingMetrics:
    """Judge rankings by what they should have found; the module has the definitions.

    Args:
        scores: (users, items), higher is better; or a function that takes int64 indices of users, (block,), and returns
            their scores, (block, items): then only one block of scores is in memory at a time.
        test: (users, items), sparse or dense; entries above zero are relevant.
        exclude: (users, items); where it has an entry (zeros are none) the item is no candidate: what the user had in training.
        k: Lengths of the lists that are judged.
        weights: (users, items), the r of ``mpr`` at the entries of ``test``; the values of ``test`` if None.
        unscored: Users with NaN for every item are an ``"error"``, or are counted and ``"left out"``.
        block_size: Users a block; as many as give 4 million scores if None.

    Raises:
        ValueError: Shapes that differ (both are named), NaN among a user's scores, no user with test items, a test entry
            that is also excluded, k below 1.

    >>> found = ranking_metrics(np.array([[0.9, 0.1, 0.5, 0.3]]), np.array([[0, 0, 1, 1]]), k=2)
    >>> found["recall@2"], found["mrr"]  # of the items ranked 2 and 3 one is among the first two
    (0.5, 0.5)
    >>> round(found["mpr"], 4)  # ranks 2 and 3 of 4 lie at 1/3 and 2/3 of the way
    50.0
    """
    ks = _lengths(k)
    if unscored not in ("error", "left out"):
        raise ValueError(f"unscored={unscored!r} is neither 'error' nor 'left out'")
    relevant = canonical_matrix(test, "test")
    everyone = relevant.shape[0]
    if (relevant.data <= 0).any():
        relevant = canonical_matrix(relevant.multiply(relevant > 0), "test")
    if not relevant.nnz:
        raise ValueError("test has no entry above zero; there is nothing to find")
    excluded = _excluded(exclude, relevant)
    ranks = _rank(scores, relevant, excluded, ks, unscored == "left out", block_size)
    per_user = _of_each_user(ranks, ks)
    r = _weights_of(weights, relevant, ranks)
    total = np.add.reduceat(r, ranks.start)
    if not total.sum() > 0:
        raise ValueError("weights are zero at every test entry; the expected percentile rank needs some above zero")
    percentile = np.add.reduceat(r * _percentiles(ranks), ranks.start)
    per_user["mpr"] = np.divide(percentile, total, out=np.full(len(total), np.nan), where=total > 0)
    values = {name: _mean(found, total if name == "mpr" else np.ones(len(found))) for name, found in per_user.items()}
    values.update({f"coverage@{length}": share for length, share in zip(ks, ranks.coverage, strict=True)})
    left_out = everyone - int(np.count_nonzero(np.diff(relevant.indptr)))
    return RankingMetrics(values, per_user, ranks.users, total, left_out, ranks.unscored)


def bootstrap_interval(
    values: Any,
    *,
    weights: Any = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    random_state: int | np.random.Generator | None = None,
) -> tuple[float, float]:
    """Interval of a (weighted) mean over users: its quantiles when users are drawn again with replacement.

    Args:
        values: One a user, (users,); NaN is left out.
        weights: One a user, 0 or more, (users,); equal if None.
        confidence: Between 0 and 1.
        resamples: How often the users are drawn again.
        random_state: Seed or generator.

    Returns:
        (low, high).

    >>> low, high = bootstrap_interval(np.arange(100) / 99, random_state=0)
    >>> low < 0.5 < high
    True
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or weights.shape != values.shape:
        raise ValueError(f"values {values.shape} and weights {weights.shape} must both have the shape (users,)")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must lie between 0 and 1")
    if resamples < 1:
        raise ValueError(f"resamples={resamples!r} must be 1 or more")
    kept = ~np.isnan(values) & (weights > 0)
    values, weights = values[kept], weights[kept]
    if not values.size:
        raise ValueError("values hold nothing but NaN, or weights nothing above zero")
    rng = np.random.default_rng(random_state)
    means = np.empty(resamples)
    for sample in range(resamples):
        drawn = rng.integers(0, values.size, values.size)
        means[sample] = (values[drawn] @ weights[drawn]) / weights[drawn].sum()
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _of_each_user(ranks: Ranks, ks: Sequence[int]) -> dict[str, Float[np.ndarray, " judged"]]:
    """Every metric but ``mpr`` and coverage, (judged users,)."""
    n = np.diff(np.append(ranks.start, len(ranks.order)))
    position = np.arange(len(ranks.order)) - np.repeat(ranks.start, n) + 1  # this and the better relevant items
    gain = 1 / np.log2(ranks.order + 1.0)
    precision = position / ranks.order
    ideal = np.cumsum(1 / np.log2(np.arange(2, max(int(n.max()), 1) + 2)))
    found: dict[str, Float[np.ndarray, " judged"]] = {}
    for k in ks:
        hit = (ranks.order <= k) & ranks.listed
        hits = np.add.reduceat(hit.astype(np.float64), ranks.start)
        most = np.minimum(k, n)
        found[f"recall@{k}"] = hits / most
        found[f"precision@{k}"] = hits / k
        found[f"ndcg@{k}"] = np.add.reduceat(gain * hit, ranks.start) / ideal[most - 1]
        found[f"map@{k}"] = np.add.reduceat(precision * hit, ranks.start) / most
        found[f"hit_rate@{k}"] = (hits > 0).astype(np.float64)
    found["mrr"] = ranks.listed[ranks.start] / ranks.order[ranks.start]
    # Mann and Whitney: a relevant item is beaten by the others of better rank, not by the other relevant items.
    others = ranks.candidates - n
    beaten = np.add.reduceat(ranks.middle, ranks.start) - n * (n + 1) / 2
    pairs = (n * others).astype(np.float64)
    found["auc"] = np.divide(pairs - beaten, pairs, out=np.full(len(n), np.nan), where=pairs > 0)
    return found


def _percentiles(ranks: Ranks) -> Float[np.ndarray, " entries"]:
    """0 for the first of the candidates, 100 for the last; the middle, 50, where there is but one."""
    n = np.diff(np.append(ranks.start, len(ranks.order)))
    steps = np.repeat(ranks.candidates - 1, n).astype(np.float64)
    return np.divide(100 * (ranks.middle - 1), steps, out=np.full(len(steps), 50.0), where=steps > 0)


def _rank(
    scores: Any,
    relevant: sparse.csr_array,
    excluded: sparse.csr_array | None,
    ks: Sequence[int],
    may_lack: bool,
    block_size: int | None,
) -> Ranks:
    """Ranks of all relevant items, a block of users at a time."""
    items = relevant.shape[1]
    covered = np.zeros((len(ks), items), dtype=np.bool_)
    users, candidates, unscored = [], [], 0
    orders, middles, listed, columns, counts = [], [], [], [], []
    for block, given in _blocks(scores, relevant, block_size):
        lacking = np.isnan(given)
        missing = lacking.all(axis=1)
        if lacking.any() and not (may_lack and (lacking.any(axis=1) == missing).all()):
            row, column = np.argwhere(lacking)[0]
            hint = "; unscored='left out' leaves such users out" if missing[row] else ""
            raise ValueError(f"the score of item {column} for user {block[row]} is NaN{hint}")
        unscored += int(missing.sum())
        judged, values = block[~missing], given[~missing]
        count = np.full(len(judged), items, dtype=np.int64)
        if excluded is not None:
            rows = excluded[judged].tocoo()
            values[rows.row, rows.col] = np.nan
            count -= np.bincount(rows.row, minlength=len(judged))
        ordered = np.sort(values, axis=1)  # NaN, the excluded items, come last
        _cover(values, ordered, count, ks, covered)
        for row, user in enumerate(judged):
            own = relevant.indices[relevant.indptr[user] : relevant.indptr[user + 1]]
            order, middle = _ranks_of(values[row], ordered[row, : count[row]], own)
            best = np.argsort(order)
            orders.append(order[best])
            middles.append(middle[best])
            listed.append(values[row, own[best]] > -np.inf)
            columns.append(own[best])
            counts.append(len(own))
        users.append(judged)
        candidates.append(count)
    if not counts:
        raise ValueError("no user with test items has scores: all are NaN")
    return Ranks(
        users=np.concatenate(users),
        start=np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64),
        items=np.concatenate(columns),
        order=np.concatenate(orders),
        middle=np.concatenate(middles),
        listed=np.concatenate(listed),
        candidates=np.concatenate(candidates),
        coverage=[float(row.mean()) for row in covered],
        unscored=unscored,
    )


def _blocks(
    scores: Any, relevant: sparse.csr_array, block_size: int | None
) -> Iterator[tuple[Int64[np.ndarray, " block"], Float[np.ndarray, "block items"]]]:
    """Users with test items, and their scores as an array of our own."""
    items = relevant.shape[1]
    size = max(1, BLOCK // items) if block_size is None else block_size
    if size < 1:
        raise ValueError(f"block_size={block_size!r} must be 1 or more")
    users = np.flatnonzero(np.diff(relevant.indptr)).astype(np.int64)
    whole = None
    if not callable(scores):
        whole = np.asarray(scores)
        if whole.shape != relevant.shape:
            turned = "; scores are transposed" if whole.shape == relevant.shape[::-1] else ""
            raise ValueError(f"scores has shape {whole.shape}, test {relevant.shape}: both are (users, items){turned}")
    for start in range(0, len(users), size):
        block = users[start : start + size]
        given = np.asarray(scores(block)) if whole is None else whole[block]
        if given.shape != (len(block), items):
            raise ValueError(
                f"scores gave an array of shape {given.shape} for {len(block)} users and {items} items; "
                f"{(len(block), items)} is needed"
            )
        if given.dtype.kind not in "biuf":
            raise ValueError(f"scores are {given.dtype}; real numbers are needed")
        wide = np.float32 if given.dtype in (np.float16, np.float32) else np.float64
        yield block, np.array(given, dtype=wide, order="C")


def _ranks_of(
    values: np.ndarray, ordered: np.ndarray, items: np.ndarray
) -> tuple[Int64[np.ndarray, " items"], Float[np.ndarray, " items"]]:
    """Ranks of one user's items, ties by index, and their mean ranks; ``ordered`` holds the candidates' scores, ascending."""
    own = values[items]
    right = np.searchsorted(ordered, own, side="right")
    tied = right - np.searchsorted(ordered, own, side="left")
    better = len(ordered) - right
    order = better + 1
    for place in np.flatnonzero(tied > 1):
        order[place] += np.count_nonzero(values[: items[place]] == own[place])
    return order.astype(np.int64), better + (tied + 1) / 2


def _cover(values: np.ndarray, ordered: np.ndarray, count: np.ndarray, ks: Sequence[int], covered: np.ndarray) -> None:
    """Marks in ``covered`` (one row for each k) the items in the top k of each row; ties by index."""
    if not len(values):
        return
    for which, k in enumerate(ks):
        least = ordered[np.arange(len(values)), np.maximum(count - k, 0)][:, None]
        listed = (values >= least) & (values > -np.inf)
        for row in np.flatnonzero(listed.sum(axis=1) > k):  # more at the least score than there are places
            tied = np.flatnonzero(values[row] == least[row])
            listed[row, tied[k - np.count_nonzero(values[row] > least[row]) :]] = False
        covered[which] |= listed.any(axis=0)


def _excluded(exclude: Any, relevant: sparse.csr_array) -> sparse.csr_array | None:
    if exclude is None:
        return None
    excluded = canonical_matrix(exclude, "exclude", shape=relevant.shape)
    both = contains(excluded, relevant)
    if both.any():
        entry = int(np.argmax(both))
        user = int(np.searchsorted(relevant.indptr, entry, side="right")) - 1
        raise ValueError(
            f"item {relevant.indices[entry]} of user {user} is in test and in exclude ({int(both.sum())} such entries): "
            "what is excluded cannot be found; take it out of one of them"
        )
    return excluded


def _weights_of(weights: Any, relevant: sparse.csr_array, ranks: Ranks) -> Float[np.ndarray, " entries"]:
    """The r of each entry, in the order of the ranks."""
    source = relevant if weights is None else canonical_matrix(weights, "weights", shape=relevant.shape)
    if (source.data < 0).any():
        raise ValueError(f"weights hold {source.data.min()}; they must be 0 or more")
    n = np.diff(np.append(ranks.start, len(ranks.order)))
    keys = [
        rows.astype(np.int64) * source.shape[1] + columns
        for rows, columns in (
            (np.repeat(np.arange(source.shape[0]), np.diff(source.indptr)), source.indices),
            (np.repeat(ranks.users, n), ranks.items),
        )
    ]
    if not len(keys[0]):
        return np.zeros(len(keys[1]))
    place = np.minimum(np.searchsorted(keys[0], keys[1]), len(keys[0]) - 1)
    return np.where(keys[0][place] == keys[1], source.data[place], 0).astype(np.float64)


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    kept = ~np.isnan(values)
    return float(values[kept] @ weights[kept] / weights[kept].sum()) if kept.any() else float("nan")


def _lengths(k: int | Sequence[int]) -> list[int]:
    lengths = [k] if isinstance(k, int | np.integer) else list(k)
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
            raise ValueError(f"k={k!r} must be one or more whole numbers from 1")
    if not lengths:
        raise ValueError(f"k={k!r} must name at least one length")
    return sorted({int(length) for length in lengths})
