r"""The reward-augmented objective: cross-entropy of targets that were drawn from the payoff distribution.

Norouzi et al. 2016 (arXiv 1609.00150), Eq. 6: with ``q(y|y*) \propto \exp(r(y, y*) / \tau)``,

.. math:: L = \sum_{(x, y^*)} E_{q(y|y^*)}[-\log p(y|x)] = \sum_{(x, y^*)} \mathrm{KL}(q \| p) + H(q)

so that a step of training is one of maximum likelihood, on other targets. The entropy of q is no fault of the model, and
the loss never falls below it: `raml_report` takes it off, and states the likelihood of the reference apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

REDUCTIONS = ("mean", "sum", "none")


def raml_loss(
    logits: Float[Tensor, "rows steps vocabulary"],
    labels: Int64[Tensor, "rows steps"],
    weight: Float[Tensor, " rows"] | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Cross-entropy of sampled targets, ``-sum_t log p(y_t | y_<t, x)``, in nats.

    Args:
        logits: Of each next token, from a decoder that reads the sampled targets. Half precision is summed in float32.
        labels: The sampled targets, ``ignore_index`` in the padding.
        weight: One for each row, not negative; the importance weights, which sum to one over the samples of a source.
            None: all ones.
        ignore_index: What padding is marked with; never taken for a token.
        reduction: ``"mean"``: over tokens, ``sum_r w_r loss_r / sum_r w_r n_r`` with the number of tokens ``n_r`` of row
            r, so that neither padding nor the number of samples changes it; ``"sum"``: ``sum_r w_r loss_r``; ``"none"``:
            ``w_r loss_r`` for each row.

    Returns:
        The loss; with ``"mean"``, 0 if there is not a single token.

    Raises:
        ValueError: An unknown reduction, or a weight that is negative or not finite.

    >>> logits, labels = torch.zeros(2, 3, 4), torch.tensor([[1, 2, 3], [0, -100, -100]])
    >>> float(raml_loss(logits, labels).exp()), float(raml_loss(logits, labels, reduction="sum") / 4)  # log 4 a token
    (4.0, 1.3862943649291992)
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r} is not one of {', '.join(map(repr, REDUCTIONS))}")
    legal = True
    if weight is not None and not torch.compiler.is_compiling():  # a look at values would break the graph
        legal = bool(((weight >= 0) & weight.isfinite()).all())
    if not legal:
        raise ValueError("weight must be finite and not negative")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if reduction == "mean" and weight is None:
        total = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=ignore_index, reduction="sum"
        )
        return total / (labels != ignore_index).sum().clamp(min=1)
    losses = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=ignore_index, reduction="none").sum(
        1
    )
    losses = losses if weight is None else losses * weight
    if reduction == "none":
        return losses
    if reduction == "sum" or weight is None:
        return losses.sum()
    tokens = ((labels != ignore_index).sum(1) * weight).sum()
    return losses.sum() / torch.where(tokens > 0, tokens, 1.0)


class RAMLReport(NamedTuple):
    """The parts of the objective in nats a token of the reference, so that ``loss = kl + entropy``.

    Args:
        loss: ``E_q[-log p(y|x)]``, estimated from the samples.
        entropy: ``H(q)``, which no model gets below.
        kl: ``KL(q || p)``; its estimate may be slightly negative.
        nll: ``-log p(y*|x)`` of the reference itself.
    """

    loss: Float[Tensor, ""]
    entropy: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    nll: Float[Tensor, ""]

    @property
    def perplexity(self) -> float:
        """``exp(nll)``: that of the reference, comparable with a model of any other objective."""
        return math.exp(min(float(self.nll), 700.0))


@torch.no_grad()
def raml_report(
    logits: Float[Tensor, "rows steps vocabulary"],
    labels: Int64[Tensor, "rows steps"],
    reference_logits: Float[Tensor, "batch width vocabulary"],
    reference_labels: Int64[Tensor, "batch width"],
    entropy: Float[Tensor, " batch"],
    weight: Float[Tensor, " rows"] | None = None,
    ignore_index: int = -100,
) -> RAMLReport:
    """Loss, entropy of the targets, divergence and likelihood of the reference, each of its own meaning.

    Args:
        logits: From a decoder that reads the sampled targets; ``rows`` is a multiple of ``batch``.
        labels: The sampled targets.
        reference_logits: From a decoder that reads the references.
        reference_labels: The references.
        entropy: ``H(q)`` of each reference in nats, as the payoff's ``entropy`` gives it.
        weight: Importance weights that sum to one over the samples of a source. None: the same for all.
        ignore_index: What padding is marked with.

    Returns:
        All four, divided by the number of the references' tokens (the end counts where the labels have one).

    Raises:
        ValueError: The number of samples is no multiple of that of references, or a weight is not legal.

    >>> logits, labels = torch.zeros(1, 2, 4), torch.tensor([[1, 3]])  # a uniform model
    >>> report = raml_report(logits, labels, logits, labels, entropy=torch.tensor([2 * math.log(4.0)]))
    >>> round(report.perplexity, 4), abs(round(float(report.kl), 4))
    (4.0, 0.0)
    """
    rows, batch = labels.shape[0], reference_labels.shape[0]
    if batch == 0 or rows % batch:
        raise ValueError(f"labels has {rows} rows, which is no multiple of the {batch} references")
    if weight is None:
        weight = logits.new_full((rows,), batch / rows)
    tokens = (reference_labels != ignore_index).sum().clamp(min=1)
    loss = raml_loss(logits, labels, weight, ignore_index, "sum") / tokens
    nll = raml_loss(reference_logits, reference_labels, None, ignore_index, "sum") / tokens
    of_targets = entropy.sum().to(loss.dtype) / tokens
    return RAMLReport(loss, of_targets, loss - of_targets, nll)
