"""Targets drawn anew for each example and epoch, the same ones whichever process draws them.

Labels come as a batch in which ``ignore_index`` (-100) marks padding, at the right as usual or at the left. Each example
has a random stream of its own, named by (seed, epoch, example): the batch around it, the number of worker processes and
the order of the examples change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt64
from torch import Tensor

from tenfold.raml.edit import EditPayoff
from tenfold.raml.hamming import HammingPayoff, check_samples
from tenfold.raml.importance import ImportanceWeighted, WeightedSamples
from tenfold.training.seeds import derived_seed

Payoff = HammingPayoff | EditPayoff | ImportanceWeighted
Schedule = Callable[[int], float]
IGNORED = -100


class SampledTargets(NamedTuple):
    """Labels drawn from a payoff, n rows for each example, one behind the other.

    Args:
        labels: (B * n, width), padded as the references were.
        weights: (B * n,) importance weights where the payoff has any.
    """

    labels: Int64[Tensor, "rows width"]
    weights: Float[Tensor, " rows"] | None


class TargetSampler:
    """Draws labels from a payoff, by (seed, epoch, example).

    Args:
        payoff: What the labels are drawn from.
        n_samples: Draws for each example, at least 1.
        schedule: Temperature of an epoch, on the payoff's own scale; None keeps the payoff's.
        seed: Of all streams, not negative.
        ignore_index: Marks padding in the labels.

    Raises:
        ValueError: ``n_samples`` below 1, or a negative seed.

    >>> sampler = TargetSampler(HammingPayoff(9, tau=0.8), seed=3)
    >>> labels = torch.tensor([[1, 2, 3], [4, 5, -100]])
    >>> drawn = sampler.draw(labels, examples=[10, 11]).labels
    >>> drawn[1, 2].item(), drawn[1:, :2].equal(sampler.draw(labels[1:], examples=[11]).labels)
    (-100, True)
    """

    def __init__(
        self,
        payoff: Payoff,
        n_samples: int = 1,
        schedule: Schedule | None = None,
        *,
        seed: int = 0,
        ignore_index: int = IGNORED,
    ) -> None:
        check_samples(n_samples)
        self.payoff, self.n_samples, self.schedule = payoff, n_samples, schedule
        self.seed, self.ignore_index = seed, ignore_index
        derived_seed(seed)  # its check of the number
        # in shared memory: worker processes that outlive an epoch see the next one
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch that labels are drawn for."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Call before each epoch, counted from 0: new draws, and the temperature that the schedule has for it.

        Raises:
            ValueError: A negative epoch.
        """
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: epochs are counted from 0")
        self._epoch.fill_(epoch)

    def current_payoff(self) -> Payoff:
        """The payoff at this epoch's temperature."""
        return self.payoff if self.schedule is None else self.payoff.with_tau(self.schedule(self.epoch))

    def draw(
        self, labels: Int[Tensor, "batch width"], examples: Sequence[int] | np.ndarray, pad_to_multiple_of: int = 1
    ) -> SampledTargets:
        """New labels for the references ``labels``.

        Args:
            labels: References, padded with ``ignore_index`` at one side.
            examples: A number for each row, which names its stream.
            pad_to_multiple_of: The width is rounded up to that.

        Raises:
            ValueError: An id that the payoff does not know, or not one number for each row.
        """
        references, counts, offsets, left = self._aligned(labels)
        payoff, n = self.current_payoff(), self.n_samples
        seeds = stream_seeds(self.seed, self.epoch, examples)
        drawn = payoff.sample(references, counts, n, seeds=seeds)
        ids, lengths = drawn[0], drawn[1]
        offsets = offsets.repeat_interleave(n)
        needed = int((lengths + (0 if left else offsets)).max()) if len(ids) else 0
        width = -(-needed // pad_to_multiple_of) * pad_to_multiple_of
        if left:
            offsets = width - lengths
        columns = torch.arange(width, device=ids.device) - offsets[:, None]
        inside = (columns >= 0) & (columns < lengths[:, None])
        new = ids.new_full((len(ids), width), self.ignore_index)
        new[inside] = ids[torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]]
        return SampledTargets(new.long(), drawn.weights if isinstance(drawn, WeightedSamples) else None)

    def _aligned(self, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Rows that begin with their first token, their lengths, where that stood, and whether padding is at the left."""
        real = labels != self.ignore_index
        some = real.any(1)
        offsets = torch.where(some, real.int().argmax(1), 0)
        ends = torch.where(some, labels.shape[1] - real.flip(1).int().argmax(1), 0)
        counts = ends - offsets
        left = bool((offsets > 0).any()) and bool((ends == labels.shape[1])[some].all())
        if not bool((offsets > 0).any()):
            return labels, counts, offsets, left
        columns = torch.arange(labels.shape[1], device=labels.device) + offsets[:, None]
        return labels.gather(1, columns.clamp(max=labels.shape[1] - 1)), counts, offsets, left


def stream_seeds(seed: int, epoch: int, examples: Sequence[int] | np.ndarray) -> UInt64[np.ndarray, " batch"]:
    """A seed for each example, well mixed (the finalizer of SplitMix64; Steele et al. 2014), of (seed, epoch, example).

    >>> stream_seeds(0, 1, [5, 6])[1] == stream_seeds(0, 1, [6])[0], len(set(stream_seeds(0, 0, range(1000))))
    (np.True_, 1000)
    """
    key = np.uint64(derived_seed(seed, epoch))
    # one by one: numpy makes a list of numbers on both sides of 2**63 an array of floats
    numbers = np.fromiter((int(example) % 2**64 for example in examples), np.uint64, len(examples))
    state = numbers * np.uint64(0x9E3779B97F4A7C15) + key
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def example_number(*parts: Sequence[int] | np.ndarray | Tensor) -> int:
    """A 64-bit number for an example that has no index: a hash of its source and target ids.

    >>> example_number([1, 2], [3]) == example_number(torch.tensor([1, 2]), [3]), example_number([1, 2], [3]) >> 64
    (True, 0)
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        ids = np.ascontiguousarray(np.asarray(part, dtype=np.int64))
        digest.update(len(ids).to_bytes(8, "little") + ids.tobytes())
    return int.from_bytes(digest.digest(), "little")
