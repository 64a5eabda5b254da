"""Moments of channels in float64 that merge exactly, in any split of the data and over processes.

Two sets with counts n, means m and sums of squared deviations S merge as (Chan, Golub & LeVeque 1979)

    n = n_a + n_b,   m = m_a + (m_b - m_a) n_b / n,   S = S_a + S_b + (m_b - m_a)^2 n_a n_b / n.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK = 1 << 22  # values converted to float64 at a time


@dataclass(frozen=True)
class PooledMoments:
    """Count, means and sums of squared deviations of the values of each channel.

    Args:
        count: Values of each channel.
        mean: Of each channel, float64.
        deviations: Sum of squared deviations from the mean, float64.
    """

    count: int
    mean: Float[Tensor, " C"]
    deviations: Float[Tensor, " C"]

    @classmethod
    def empty(cls, channels: int, device: torch.device | str = "cpu") -> PooledMoments:
        """Of no values."""
        zeros = torch.zeros(channels, dtype=torch.float64, device=device)
        return cls(0, zeros, zeros)

    @classmethod
    def of(cls, x: Float[Tensor, "N C *rest"], mask: Bool[Tensor, "N *rest"] | None = None) -> PooledMoments:
        """Of the channels (dimension 1) of a tensor, at the positions where the mask holds."""
        with torch.no_grad():
            x = x.detach() if x.device.type != "mps" else x.detach().cpu()  # float64 is not there
            rows = x.movedim(1, 0).flatten(1) if mask is None else x.movedim(1, -1)[mask.to(x.device)].T
            channels, count = rows.shape
            if not count:
                return cls.empty(channels, x.device)
            step = max(1, BLOCK // count)
            pieces = [torch.var_mean(piece.double(), 1, correction=0) for piece in rows.split(step)]
            variance, mean = (torch.cat([piece[i] for piece in pieces]) for i in (0, 1))
            return cls(count, mean, variance * count)

    def merged(self, other: PooledMoments) -> PooledMoments:
        """Of the values of both."""
        count = self.count + other.count
        if not count:
            return self
        mean, deviations = other.mean.to(self.mean.device), other.deviations.to(self.mean.device)
        difference = mean - self.mean
        share = other.count / count
        return PooledMoments(
            count,
            self.mean + difference * share,
            self.deviations + deviations + difference.square() * (self.count * share),
        )

    def variance(self, *, unbiased: bool = False) -> Float[Tensor, " C"]:
        """Mean square deviation; of the population that the values are drawn from, if unbiased."""
        return self.deviations / (self.count - 1 if unbiased else max(self.count, 1))

    def is_finite(self) -> bool:
        """Whether no channel held infinity or NaN."""
        return bool(self.mean.isfinite().all() and self.deviations.isfinite().all())


def pooled_over_processes(
    moments: list[PooledMoments], group: torch.distributed.ProcessGroup | None
) -> list[PooledMoments]:
    """Moments of the data of all processes, the same to the last bit on each: gathered, and merged in the order of ranks."""
    size = torch.distributed.get_world_size(group)
    device = exchange_device(group)
    parts = [torch.cat([m.mean.new_tensor([m.count]), m.mean, m.deviations]).to(device) for m in moments]
    packed = torch.cat(parts)
    gathered = [torch.empty_like(packed) for _ in range(size)]
    torch.distributed.all_gather(gathered, packed, group=group)
    pooled = [PooledMoments.empty(len(m.mean), m.mean.device) for m in moments]
    for row in gathered:
        for i, (count, mean, deviations) in enumerate(_unpacked(row, moments)):
            pooled[i] = pooled[i].merged(PooledMoments(count, mean, deviations))
    return pooled


def gathered_numbers(numbers: list[int], group: torch.distributed.ProcessGroup | None) -> list[list[int]]:
    """Whole numbers of every process, in the order of ranks."""
    own = torch.tensor(numbers, dtype=torch.int64, device=exchange_device(group))
    gathered = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(gathered, own, group=group)
    return [row.tolist() for row in gathered]


def exchange_device(group: torch.distributed.ProcessGroup | None) -> torch.device:
    """Where tensors must lie for the group's back end."""
    if "gloo" in torch.distributed.get_backend(group):
        return torch.device("cpu")
    return torch.device(torch.accelerator.current_accelerator() or "cpu")


def _unpacked(row: Tensor, like: list[PooledMoments]) -> list[tuple[int, Tensor, Tensor]]:
    parts = row.split([1 + 2 * len(m.mean) for m in like])
    return [(int(part[0]), *part[1:].chunk(2)) for part in parts]
