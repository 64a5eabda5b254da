"""Batch Renormalization (Ioffe 2017): training that sees, within bounds, what evaluation will do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tenfold.normalization.activations import Activation
from tenfold.normalization.any_rank import AnyRankBatchNorm, fused_batch_norm
from tenfold.normalization.high_precision import promoted
from tenfold.normalization.statistics import OnSingle, masked_moments, move, next_weight, normalized, usable

Schedule = Callable[[int], tuple[float, float]]


def papers_schedule(step: int) -> tuple[float, float]:
    """The bounds (rmax, dmax) of the paper: (1, 0) for 5,000 steps, then to 3 by step 40,000 and to 5 by step 25,000.

    >>> papers_schedule(0), papers_schedule(40_000)
    ((1.0, 0.0), (3.0, 5.0))
    """

    def ramp(first: float, last: float, end: int) -> float:
        return first + (last - first) * min(max(step - 5_000, 0) / (end - 5_000), 1.0)

    return ramp(1.0, 3.0, 40_000), ramp(0.0, 5.0, 25_000)


class BatchRenorm(AnyRankBatchNorm):
    """Batch renormalization: the batch's statistics, corrected towards the population's.

        y = gamma ((x - mu_B) / sigma_B * r + d) + beta
        r = clip(sigma_B / sigma, 1 / rmax, rmax),  d = clip((mu_B - mu) / sigma, -dmax, dmax)

    r and d carry no gradient. sigma_B is sqrt(var_B + eps) with the biased variance of the batch. The population's mu and
    sigma are moving averages of mu_B and sigma_B: of the deviation, not of the variance. With rmax = 1, dmax = 0 this is
    batch normalization; without bounds, training normalizes as evaluation does.

    Args:
        num_features: Channels C of inputs (N, C, ...).
        eps: Added to the variance of the batch.
        momentum: Weight of the batch in the population statistics; None for their cumulative average.
        affine: Learn gamma and beta.
        bias: Learn beta, too.
        rmax: Bound of r, 1 or more.
        dmax: Bound of d, 0 or more.
        schedule: Gives (rmax, dmax) for the number of training steps done, instead of the two; see
            :func:`papers_schedule`.
        activation: ``"relu"``, ``"silu"``, ``"gelu"`` or None.
        on_single: What to do with one value a channel in training: ``"error"`` or ``"running"``.

    Attributes:
        running_mean, running_std: Population mean and deviation, (C,). A checkpoint of torch.nn, which has running_var
            instead, is read too.

    Raises:
        ValueError: An argument is out of its range.

    Ioffe 2017, Batch Renormalization, algorithm 1.

    >>> layer = BatchRenorm(1, rmax=1.0, dmax=0.0, eps=0.0)
    >>> layer(torch.tensor([[1.0], [3.0]])).flatten().tolist()
    [-1.0, 1.0]
    """

    running_std: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-3,
        momentum: float | None = 0.01,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        rmax: float = 3.0,
        dmax: float = 5.0,
        schedule: Schedule | None = None,
        activation: Activation | None = None,
        on_single: OnSingle = "error",
    ) -> None:
        _check_bounds(rmax, dmax)
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            True,
            device,
            dtype,
            bias=bias,
            activation=activation,
            on_single=on_single,
        )
        del self.running_var
        self.register_buffer("running_std", torch.ones(num_features, device=device, dtype=dtype))
        self.rmax = rmax
        self.dmax = dmax
        self.schedule = schedule

    @classmethod
    def from_keras(
        cls, num_features: int, *, momentum: float = 0.99, epsilon: float = 1e-3, **options: Any
    ) -> BatchRenorm:
        """The layer with Keras's conventions: its momentum is the weight of the old statistics.

        Args:
            num_features: Channels.
            momentum: Keras's; 0.99 there is 0.01 here.
            epsilon: Added to the variance.
            **options: Further arguments of the layer.
        """
        return cls(num_features, epsilon, 1.0 - momentum, **options)

    def bounds(self) -> tuple[float, float]:
        """The bounds (rmax, dmax) of the next training step."""
        if self.schedule is None:
            return self.rmax, self.dmax
        rmax, dmax = self.schedule(int(self.num_batches_tracked))  # type: ignore[arg-type]
        _check_bounds(rmax, dmax)
        return rmax, dmax

    def reset_running_stats(self) -> None:
        """Set the population mean to 0 and the deviation to 1."""
        self.running_mean.zero_()  # type: ignore[union-attr]
        self.num_batches_tracked.zero_()  # type: ignore[union-attr]
        if "running_std" in self._buffers:
            self.running_std.fill_(1.0)
        else:  # while torch's own initialisation runs
            self.running_var.fill_(1.0)  # type: ignore[union-attr]

    def forward(
        self,
        x: Float[Tensor, "batch channels *positions"],
        add: Float[Tensor, "batch channels *positions"] | None = None,
        *,
        mask: Bool[Tensor, "batch *valid"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch channels *positions"]:
        """Normalize, add, activate; arguments as of :class:`~tenfold.normalization.BatchNorm1d`.

        Raises:
            ValueError: A shape does not fit, or a channel has one value in training.
        """
        x, valid = self.checked(x, add, mask, lengths)
        running_mean: Tensor = self.running_mean  # type: ignore[assignment]
        if self.training:
            moments = masked_moments(x, valid)
            if moments.count == 1 and self.on_single == "error":
                self.training_statistics(x, moments)
        if not self.training or moments.count <= 1:
            population = running_mean.clone(), promoted(self.running_std).square()
            if valid is None:
                return fused_batch_norm(x, *population, self.weight, self.bias, 0.0, self.activation, add)[0]
            y = normalized(x, *population, self.weight, self.bias, 0.0)
            return self.finished(y, add, valid)
        deviation = torch.sqrt(moments.variance + self.eps)
        rmax, dmax = self.bounds()
        with torch.no_grad():
            r = (deviation / promoted(self.running_std)).clamp(1 / rmax, rmax)
            d = ((moments.mean - promoted(running_mean)) / promoted(self.running_std)).clamp(-dmax, dmax)
        if usable(self, moments.mean, deviation):
            weight = next_weight(self)
            move(running_mean, moments.mean, weight)
            move(self.running_std, deviation, weight)
        # (x - mu_B) / sigma_B * r + d, as one mean and one deviation
        scaled = deviation / r
        y = normalized(x, moments.mean - d * scaled, scaled.square(), self.weight, self.bias, 0.0)
        return self.finished(y, add, valid)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: object) -> None:
        variance = state_dict.pop(f"{prefix}running_var", None)
        if variance is not None and f"{prefix}running_std" not in state_dict:
            state_dict[f"{prefix}running_std"] = torch.sqrt(variance + self.eps)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Arguments shown by ``print(module)``."""
        bounds = f"rmax={self.rmax}, dmax={self.dmax}" if self.schedule is None else f"schedule={self.schedule}"
        return f"{super().extra_repr()}, {bounds}"


def _check_bounds(rmax: float, dmax: float) -> None:
    if not rmax >= 1:
        raise ValueError(f"rmax={rmax} is below 1; at 1 r has no effect")
    if not dmax >= 0:
        raise ValueError(f"dmax={dmax} is negative; at 0 d has no effect")
