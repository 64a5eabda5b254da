r"""Minimum-risk training: the expected error of the model's own outputs, over a few candidates.

Shen et al. 2016 (Minimum Risk Training for Neural Machine Translation, arXiv 1512.02433), Eqs. 10-12: with candidates
``S(x)`` that are drawn from the model, each counted once,

.. math:: R = \sum_{y \in S(x)} Q(y|x) \Delta(y, y^*), \qquad Q(y|x) = \frac{p(y|x)^\alpha}{\sum_{y' \in S(x)} p(y'|x)^\alpha}

where ``alpha`` says how sharp Q is. The gradient raises candidates of less cost than Q's average and lowers the others,
so candidates of equal cost teach nothing: a model that has learnt nothing yet does not learn so. The paper starts from a
model trained by maximum likelihood.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

DEFAULT_SHARPNESS = 0.005  # section 5.1.2 of the paper


def minimum_risk_loss(
    log_prob: Float[Tensor, "sources candidates"],
    cost: Float[Tensor, "sources candidates"],
    *,
    sharpness: float = DEFAULT_SHARPNESS,
    counted: Bool[Tensor, "sources candidates"] | None = None,
) -> Float[Tensor, ""]:
    r"""Risk of the candidates under ``Q``, averaged over the sources.

    Args:
        log_prob: ``log p(y|x)`` of each candidate, in nats.
        cost: ``Delta(y, y*)``, an error such as the edit distance; 0 is best.
        sharpness: The paper's ``alpha``, positive.
        counted: False where a candidate repeats an earlier one; None counts all. In each row one at least is True.

    Returns:
        The loss, in units of the cost.

    Raises:
        ValueError: A sharpness that is not positive, or a source without candidates.

    >>> log_prob = torch.tensor([[0.5, 0.25]]).log()
    >>> float(minimum_risk_loss(log_prob, torch.tensor([[0.0, 3.0]]), sharpness=1.0))
    1.0
    """
    if not 0 < sharpness < math.inf:
        raise ValueError(f"sharpness={sharpness} must be a positive number")
    scores = sharpness * log_prob
    if counted is not None:
        if not bool(counted.any(1).all()):
            raise ValueError("counted has a row without True: each source needs a candidate")
        scores = scores.masked_fill(~counted, -math.inf)
    return (scores.softmax(1) * cost).sum(1).mean()


def first_occurrences(ids: Int64[Tensor, "sources candidates width"]) -> Bool[Tensor, "sources candidates"]:
    """Where a candidate equals no earlier one of its source.

    Args:
        ids: Candidates, padded alike.

    >>> first_occurrences(torch.tensor([[[5, 0], [5, 6], [5, 0]]])).tolist()
    [[True, True, False]]
    """
    same = (ids[:, :, None] == ids[:, None]).all(-1)
    return ~torch.tril(same, -1).any(2)
