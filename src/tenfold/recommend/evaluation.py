"""Judge a model and what it has to beat on the same held-out entries: split, fit, rank, measure.

All models see the same: `Trial.train` to be fitted on, and `Trial.shown`, what is known of the users that are judged.
Where these users were trained on, both are one matrix; users that training has not seen are folded in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from scipy import sparse

from tenfold.recommend.baselines import ItemCosine, Popularity
from tenfold.recommend.interactions import Interactions
from tenfold.recommend.matrices import canonical_matrix
from tenfold.recommend.metrics import RankingMetrics, Scores, ranking_metrics

SPLITS = ("hold-out", "leave-one-out", "time", "users")


class Trial(NamedTuple):
    """What models are fitted on and judged by; all matrices have the same columns.

    Args:
        train: (train users, items).
        shown: (judged users, items): what a model is told of the judged users, left out of their rankings.
        test: (judged users, items): what is to be found.
        new_users: Whether the judged users are others than those of ``train``.
        cold: How many users of whom nothing is known in ``train`` were taken out of ``test``: there is nothing to judge.
    """

    train: sparse.csr_array
    shown: sparse.csr_array
    test: sparse.csr_array
    new_users: bool
    cold: int = 0


def make_trial(
    interactions: Interactions,
    split: str = "hold-out",
    *,
    fraction: float = 0.2,
    random_state: int | np.random.Generator | None = None,
) -> Trial:
    """Divide the data.

    Args:
        interactions: All of it.
        split: ``"hold-out"``: a random part of each user's items. ``"leave-one-out"``: one item of each user, the latest
            where there are time stamps. ``"time"``: the last events, items that are new to their user. ``"users"``: a part of
            the users, of whose items a fifth is to be found.
        fraction: Part that is held out: of items, events or users.
        random_state: Seed or generator.

    Raises:
        ValueError: No such split, a fraction that is not between 0 and 1, a split by time without time stamps.

    >>> plays = Interactions([1, 1, 2, 2, 3, 3], [1, 2, 1, 2, 1, 2])
    >>> trial = make_trial(plays, "leave-one-out", random_state=0)
    >>> trial.train.nnz, trial.test.nnz, trial.new_users
    (3, 3, False)
    """
    if split == "hold-out":
        parts = interactions.hold_out(fraction, random_state=random_state)
    elif split == "leave-one-out":
        latest = interactions.last_times is not None
        parts = interactions.leave_one_out(latest=latest, random_state=random_state)
    elif split == "time":
        parts = interactions.split_by_time(fraction)
    elif split == "users":
        strong = interactions.strong_generalization(float(fraction), random_state=random_state)
        return Trial(strong.train, strong.fold_in, strong.test, new_users=True)
    else:
        raise ValueError(f"split={split!r} is not one of {', '.join(SPLITS)}")
    if not parts.train.nnz:
        raise ValueError(f"the split {split!r} leaves nothing to train on")
    known, asked = (np.diff(matrix.indptr) > 0 for matrix in parts)
    if (asked & ~known).any():
        parts = parts._replace(test=canonical_matrix(parts.test.multiply(known[:, None]), "test"))
    if not parts.test.nnz:
        raise ValueError(f"the split {split!r} leaves nothing to find: no user has an item to spare")
    return Trial(parts.train, parts.train, parts.test, new_users=False, cold=int((asked & ~known).sum()))


def scores_of(model: Any, trial: Trial) -> Scores:
    """Scores of the judged users, a block at a time, by a fitted `ImplicitALS` or baseline."""
    if not hasattr(model, "item_factors_"):
        return lambda block: model.score_block(block, trial.shown)
    factors = model.fold_in_users(trial.shown) if trial.new_users else model.user_factors_
    items = model.item_factors_.T

    def scores(block: Int64[np.ndarray, " block"]) -> Float[np.ndarray, "block items"]:
        return factors[block] @ items

    return scores


def judge(model: Any, trial: Trial, *, k: int | Sequence[int] = (10, 20, 50, 100)) -> RankingMetrics:
    """The metrics of a fitted model; see `ranking_metrics`.

    Args:
        model: A fitted `ImplicitALS`, or a baseline with ``score_block``.
        trial: The data.
        k: Lengths of the lists.
    """
    return ranking_metrics(scores_of(model, trial), trial.test, exclude=trial.shown, k=k)


def baselines(neighbors: int | None = 100) -> Mapping[str, Any]:
    """What any model has to beat, by name, not fitted yet."""
    return {"item neighbourhood": ItemCosine(neighbors), "popularity": Popularity()}


def metric_names(names: str) -> tuple[list[str], list[int]]:
    """Names of metrics separated by commas, checked, and the lengths of lists that they name.

    Raises:
        ValueError: An unknown metric, or one without its length.

    >>> metric_names("recall@20, mpr")
    (['recall@20', 'mpr'], [20])
    """
    found = [name.strip() for name in names.split(",") if name.strip()]
    lengths = set()
    for name in found:
        kind, _, length = name.partition("@")
        at_k = kind in ("recall", "precision", "ndcg", "map", "hit_rate", "coverage")
        if at_k and length.isdecimal() and int(length) > 0:
            lengths.add(int(length))
        elif name not in ("mrr", "auc", "mpr"):
            raise ValueError(
                f"metric {name!r} is not known; there are recall@K, precision@K, ndcg@K, map@K, hit_rate@K, coverage@K, "
                "mrr, auc and mpr, with a number for K"
            )
    if not found:
        raise ValueError("no metric is named; give some, such as recall@20,mpr")
    return found, sorted(lengths) or [10]


def is_better(metric: str, value: float, other: float) -> bool:
    """Whether one value of a metric is better than another: lower for ``mpr``, higher for all others; NaN never is.

    >>> is_better("mpr", 8.0, 9.0), is_better("recall@20", 0.2, 0.3)
    (True, False)
    """
    return value < other if metric == "mpr" else value > other
