"""Ghost Batch Normalization (Hoffer, Hubara & Soudry 2017): statistics over parts of a batch, in training only."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tenfold.normalization.activations import Activation
from tenfold.normalization.any_rank import AnyRankBatchNorm, fused_batch_norm
from tenfold.normalization.statistics import OnSingle, RunningVariance, masked_moments, update_running


class GhostBatchNorm(AnyRankBatchNorm):
    """Batch normalization over virtual batches, so that a large batch regularizes as a small one does.

    The batch is divided, in its order, into parts of ``virtual_batch_size`` samples; each is normalized by its own mean and
    biased variance and moves the population statistics once. A last part that is smaller is a part of its own, but one of a
    single value a channel joins the part before it. Evaluation normalizes by the population and knows no parts.

    Args:
        num_features: Channels C of inputs (N, C, ...).
        eps: Added to the variance.
        momentum: Weight of a part in the population statistics; None for the cumulative average over parts.
        affine: Learn gamma and beta.
        track_running_stats: Keep population statistics; without, evaluation normalizes by the whole batch.
        bias: Learn beta, too.
        virtual_batch_size: Samples a part.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.
        on_single: What to do with one value a channel in training: ``"error"`` or ``"running"``.
        running_variance: ``"unbiased"`` or ``"biased"``: the variance that enters the population's.

    Raises:
        ValueError: An argument is out of its range.

    Hoffer, Hubara & Soudry 2017, Train longer, generalize better, section 4 (algorithm 1).

    >>> layer = GhostBatchNorm(1, virtual_batch_size=2, eps=0.0)
    >>> layer(torch.tensor([[0.0], [2.0], [10.0], [30.0]])).flatten().tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        virtual_batch_size: int = 32,
        activation: Activation | None = None,
        on_single: OnSingle = "error",
        running_variance: RunningVariance = "unbiased",
    ) -> None:
        if virtual_batch_size < 1:
            raise ValueError(f"virtual_batch_size={virtual_batch_size} must be 1 or more")
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            device,
            dtype,
            bias=bias,
            activation=activation,
            on_single=on_single,
            running_variance=running_variance,
        )
        self.virtual_batch_size = virtual_batch_size

    def forward(
        self,
        x: Float[Tensor, "batch channels *positions"],
        add: Float[Tensor, "batch channels *positions"] | None = None,
        *,
        mask: Bool[Tensor, "batch *valid"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch channels *positions"]:
        """Normalize each part, add, activate; arguments as of :class:`~tenfold.normalization.BatchNorm1d`.

        Raises:
            ValueError: A shape does not fit, or a part has one value a channel in training.
        """
        x, valid = self.checked(x, add, mask, lengths)
        if not self.training:
            return self.evaluated(x, add, valid)
        sizes = self._part_sizes(x)
        if valid is None and all(size * x[:1, 0].numel() > 1 for size in sizes):
            return self._by_kernel_in_parts(x, add, sizes)
        parts = x.split(sizes)
        masks = [None] * len(sizes) if valid is None else valid.split(sizes)
        moments = [masked_moments(part, part_valid) for part, part_valid in zip(parts, masks, strict=True)]
        statistics = [self.training_statistics(part, own) for part, own in zip(parts, moments, strict=True)]
        for own in moments:  # after the last part that could be refused
            update_running(self, own.mean, own.variance, own.count)
        outputs = [self.affine_normalized(part, *own) for part, own in zip(parts, statistics, strict=True)]
        y = torch.cat(outputs) if outputs else x * 0.0
        return self.finished(y, add, valid)

    def _by_kernel_in_parts(self, x: Tensor, add: Tensor | None, sizes: list[int]) -> Tensor:
        """All values count: statistics, affine map, sum and activation of each part at once."""
        sums = [None] * len(sizes) if add is None else add.split(sizes)
        outputs = []
        for part, other in zip(x.split(sizes), sums, strict=True):
            y, mean, variance = fused_batch_norm(
                part, None, None, self.weight, self.bias, self.eps, self.activation, other
            )
            update_running(self, mean, variance, part.numel() // self.num_features)
            outputs.append(y)
        return torch.cat(outputs) if outputs else x * 0.0

    def _part_sizes(self, x: Tensor) -> list[int]:
        size = self.virtual_batch_size
        full, rest = divmod(x.shape[0], size)
        sizes = [size] * full + ([rest] if rest else [])
        if rest == 1 and full and x[0, 0].numel() == 1:
            sizes[-2:] = [size + 1]
        return sizes

    def extra_repr(self) -> str:
        """Arguments shown by ``print(module)``."""
        return f"{super().extra_repr()}, virtual_batch_size={self.virtual_batch_size}"
