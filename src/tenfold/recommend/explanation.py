"""Why an item scores as it does for a user (Hu, Koren & Volinsky 2008, section 5).

With ``W_u`` the inverse of the user's system the factors are ``x_u = W_u sum_j c_uj p_uj y_j``, so a score is a sum over the
user's own entries, ``y_i . x_u = sum_j (y_i^T W_u y_j) c_uj p_uj``: the similarity of both items in the user's eyes times
the weight of the past action.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from tenfold.recommend.solvers import gram_matrix


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


def explain_score(
    item_factors: Float[np.ndarray, "items k"],
    item: int,
    entries: Int[np.ndarray, " entries"],
    confidence: Float[np.ndarray, " entries"],
    *,
    base: float,
    unobserved_weight: float,
    regularization: float,
) -> Explanation:
    """The contributions of a user's entries to the score of an item, in float64.

    Args:
        item_factors: All items'.
        item: The item whose score is explained.
        entries: Items of the user.
        confidence: Of each entry, negative where the preference is 0.
        base: What an entry's cell already weighs in the shared part.
        unobserved_weight: w0.
        regularization: The user's lambda.
    """
    factors = item_factors.astype(np.float64)
    own = factors[entries]
    weights = np.abs(confidence).astype(np.float64) - base
    system = unobserved_weight * gram_matrix(factors) + (own.T * weights) @ own
    system[np.diag_indices_from(system)] += regularization
    similarity = own @ np.linalg.solve(system, factors[item])
    contributions = np.maximum(confidence.astype(np.float64), 0) * similarity
    order = np.argsort(-contributions, kind="stable")
    return Explanation(float(contributions.sum()), entries[order].astype(np.int64), contributions[order])
