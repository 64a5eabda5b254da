"""Which normalization layers behave differently in training and in evaluation, and why.

Each batch runs twice: with every layer normalising by the batch, as in training, and by running statistics, as in use. With
(mu, v) the moments of a channel in the data, (mu_r, v_r) its running statistics, (mu_b, v_b) those of a batch and
s = sqrt(v + eps), the normalised values of a layer differ by (root mean squares, in standard deviations of its output)

    drift^2        = (1/s - 1/s_r)^2 v + ((mu - mu_r) / s_r)^2             running statistics against the data,
    batch_noise^2  = mean over b of (1/s_b - 1/s)^2 v_b + ((mu_b - mu) / s)^2   a batch against the data.

Drift is measured in the training flow, where no fault of an earlier layer reaches a later one; so it names the layer at
fault. The gap is what remains at the output of each layer when all layers act together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tenfold.normalization.batches import Forward, batches_for, device_of, feed, unwrapped
from tenfold.normalization.inventory import (
    affine_parameters,
    channels_of,
    eps_of,
    kind_of,
    layers_of,
    running_statistics,
)
from tenfold.normalization.moments import PooledMoments
from tenfold.normalization.observation import Observation

if TYPE_CHECKING:
    import polars

STALE = 0.1  # drift above this, and above the noise of a batch, is no chance
NOISY = 0.5  # batches of about six values: below the eight where the 2018 paper sees Batch Normalization fail
DEAD = 1e-3  # standard deviation of a channel's output, of the layer's largest
FAST_MOMENTUM = 0.5


@dataclass(frozen=True)
class LayerDiagnosis:
    """One normalization layer.

    Args:
        name: The layer's name in the model.
        kind: "batch", "cross_process", "ghost", "renorm" or "frozen".
        channels: Number of channels.
        calls: Calls in one forward pass, the largest number seen.
        values: Values of each channel in all the data.
        updates: Training steps that its running statistics have seen; None if it does not count them.
        momentum: Weight of a new batch in the running statistics (torch's sense); None for a cumulative average.
        gap: Root mean square difference of the layer's outputs in training and evaluation, in standard deviations.
        drift: Of the running statistics from the data, in standard deviations; None if it keeps none.
        batch_noise: Of a batch's statistics from the data's.
        worst_channel: The channel of the largest drift.
        dead_channels: Channels that are constant at the output, or nearly so.
        never_positive: Channels that are above zero nowhere in the data.
        findings: What is wrong, a sentence each; none if all is well.
    """

    name: str
    kind: str
    channels: int
    calls: int
    values: int
    updates: int | None
    momentum: float | None
    gap: float
    drift: float | None
    batch_noise: float
    worst_channel: int | None
    dead_channels: tuple[int, ...]
    never_positive: int
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found.

    Args:
        rows: One entry for each layer with batch statistics, in the order of the model.
        samples: Rows of data that were read.
        batches: Batches that were read.
    """

    rows: tuple[LayerDiagnosis, ...]
    samples: int
    batches: int

    @property
    def findings(self) -> list[str]:
        """Every finding with its layer's name."""
        return [f"{row.name}: {finding}" for row in self.rows for finding in row.findings]

    def to_frame(self) -> polars.DataFrame:
        """The rows as a polars frame; the findings of a layer as one text."""
        from tenfold.normalization.diagnosis_table import diagnosis_frame

        return diagnosis_frame(self)

    def plot(self, path: str | Path) -> None:
        """Draw gap, drift and batch noise of every layer (``.png``, ``.svg`` or ``.pdf``)."""
        from tenfold.normalization.pictures import diagnosis_picture

        diagnosis_picture(Path(path), self)

    def __str__(self) -> str:
        if not self.rows:
            return "the model has no layer that normalises by the batch"
        lines = [f"{len(self.rows)} layers, {self.samples:,} samples in {self.batches} batches"]
        for row in self.rows:
            drift = "none" if row.drift is None else f"{row.drift:.3g}"
            lines.append(f"  {row.name}: gap {row.gap:.3g}, drift {drift}, batch noise {row.batch_noise:.3g}")
        return "\n".join([*lines, *(self.findings or ["no findings"])])


def diagnose(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    forward: Forward | None = None,
    device: torch.device | str | None = None,
    max_samples: int | None = None,
) -> Diagnosis:
    """Compare training and evaluation in every layer that normalises by the batch; the model is left as it was.

    Args:
        model: Any module.
        loader: Batches as they are in training, of the same size: tensors, tuples that begin with the input, dictionaries; a
            tensor is one batch.
        forward: Runs the model on a batch, ``forward(model, batch)``, where the batch needs more than the above.
        device: Where batches are moved; by default where the model is.
        max_samples: Read so many rows at most.

    Returns:
        A row for each layer, with findings in words.

    Raises:
        ValueError: The loader is empty.

    >>> layer = nn.BatchNorm1d(1)
    >>> print(diagnose(layer, [torch.tensor([[9.0], [11.0]])]).findings[0])  # N(10, 1), and it assumes N(0, 1)
    (the model itself): its running statistics were never updated; train it, or call reestimate
    """
    inner = unwrapped(model)
    layers = layers_of(inner)
    records = {name: _Record(layer) for name, layer in layers.items()}
    samples = batches = 0
    place = device_of(inner) if device is None else device
    for batch, rows in batches_for([loader] if isinstance(loader, Tensor) else loader, place, max_samples):
        _compare(inner, layers, records, batch, forward or feed)
        samples += rows or 0
        batches += 1
    if not batches:
        raise ValueError("the loader gave no batches, so there is nothing to compare")
    return Diagnosis(tuple(record.row(name) for name, record in records.items()), samples, batches)


def _compare(
    model: nn.Module, layers: dict[str, nn.Module], records: dict[str, _Record], batch: Any, forward: Forward
) -> None:
    """One batch in the training flow and in the evaluation flow."""
    outputs: dict[tuple[str, int], Tensor] = {}

    def by_the_batch(name: str, index: int, measure: Callable[[], PooledMoments]) -> PooledMoments | None:
        moments = measure()
        records[name].entered(index, moments)
        return None if kind_of(layers[name]) == "frozen" else moments

    def keep(name: str, index: int, output: Tensor) -> None:
        outputs[name, index] = output.detach().clone()  # a ReLU behind may work in place

    def as_it_is(name: str, index: int, measure: Callable[[], PooledMoments]) -> PooledMoments | None:
        return None

    def compare(name: str, index: int, output: Tensor) -> None:
        records[name].left(outputs.pop((name, index), output), output)

    for before, after in ((by_the_batch, keep), (as_it_is, compare)):
        with Observation(model, layers, before, after) as observation, torch.no_grad():
            observation.begin()
            forward(model, batch)


class _Record:
    """Sums over the batches for one layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.calls = 0
        self.fewest = math.inf  # values of a channel in a batch
        reference = next((t for t in (*layer.buffers(), *layer.parameters())), torch.empty(0))
        zeros = torch.zeros(channels_of(layer), dtype=torch.float64, device=reference.device)
        self.entering = PooledMoments.empty(len(zeros), zeros.device)
        self.leaving = PooledMoments.empty(len(zeros), zeros.device)
        self.trained = PooledMoments.empty(len(zeros), zeros.device)
        self.normalised_square, self.normalised_product = zeros.clone(), zeros.clone()
        self.difference = zeros.clone()
        self.largest = torch.full_like(zeros, -math.inf)

    def entered(self, index: int, moments: PooledMoments) -> None:
        variance = moments.variance()
        deviation = (variance + eps_of(self.layer)).sqrt()
        self.normalised_square += (moments.count * variance / deviation.square()).to(self.difference.device)
        self.normalised_product += (moments.count * variance / deviation).to(self.difference.device)
        self.entering = self.entering.merged(moments)
        self.calls = max(self.calls, index + 1)
        self.fewest = min(self.fewest, moments.count)

    def left(self, training: Tensor, evaluation: Tensor) -> None:
        if training.shape != evaluation.shape or not training.numel():
            return
        difference = PooledMoments.of(training.double() - evaluation.double())
        self.difference += difference.deviations + difference.count * difference.mean.square()
        self.trained = self.trained.merged(PooledMoments.of(training))
        self.leaving = self.leaving.merged(PooledMoments.of(evaluation))
        self.largest = torch.maximum(self.largest, evaluation.double().movedim(1, 0).flatten(1).amax(1))

    def row(self, name: str) -> LayerDiagnosis:
        drift = self.drift()
        finite = None if drift is None else torch.nan_to_num(drift, nan=math.inf, posinf=math.inf)
        counter = getattr(self.layer, "num_batches_tracked", None)
        row = LayerDiagnosis(
            name=name,
            kind=kind_of(self.layer) or "batch",
            channels=len(self.difference),
            calls=self.calls,
            values=self.entering.count,
            updates=int(counter) if isinstance(counter, Tensor) else None,
            momentum=getattr(self.layer, "momentum", None),
            gap=self.gap(),
            drift=None if finite is None else float(finite.square().mean().sqrt()),
            batch_noise=self.batch_noise(),
            worst_channel=None if finite is None or not self.calls else int(finite.argmax()),
            dead_channels=tuple(self.dead()) if self.calls else (),
            never_positive=int((self.largest <= 0).sum()) if self.calls else 0,
            findings=(),
        )
        return LayerDiagnosis(**(vars(row) | {"findings": tuple(self.findings(row))}))

    def gap(self) -> float:
        """Root mean square difference over the root mean square deviation, over all channels."""
        difference, spread = float(self.difference.sum()), float(self.trained.deviations.sum())
        if difference == 0:
            return 0.0
        gap = math.sqrt(difference / spread) if spread else math.inf
        return math.inf if math.isnan(gap) else gap

    def drift(self) -> Tensor | None:
        statistics = running_statistics(self.layer)
        if statistics is None:
            return None
        if not self.calls:
            return torch.zeros_like(self.difference)
        running_mean, running_variance = statistics
        mean, variance = self.entering.mean, self.entering.variance()
        deviation = (variance + eps_of(self.layer)).sqrt()
        running = (running_variance.to(mean.device) + eps_of(self.layer)).sqrt()
        scale = (1 / deviation - 1 / running).square() * variance
        return (scale + ((mean - running_mean.to(mean.device)) / running).square()).sqrt()

    def batch_noise(self) -> float:
        if not self.entering.count:
            return 0.0
        deviation = (self.entering.variance() + eps_of(self.layer)).sqrt()
        # The sum over batches of both terms, multiplied out, so that single batches need not be kept.
        squares = self.normalised_square - 2 * self.normalised_product / deviation
        squares = (squares + self.entering.deviations / deviation.square()) / self.entering.count
        return float(squares.clamp(min=0).mean().sqrt())

    def dead(self) -> list[int]:
        variance = self.entering.variance()
        spread = (variance / (variance + eps_of(self.layer))).sqrt()
        weight, _ = affine_parameters(self.layer)
        if weight is not None:
            spread = spread * weight.detach().double().abs().to(spread.device)
        dead = (spread <= DEAD * spread.max()) | (self.leaving.deviations == 0)
        return dead.nonzero().flatten().tolist()

    def findings(self, row: LayerDiagnosis) -> Iterable[str]:
        statistics = running_statistics(self.layer)
        if not row.calls:
            yield "it was never called"
            return
        if statistics is None:
            yield "it keeps no running statistics, so its output depends on the batch in evaluation too"
        else:
            broken = sum(int((~values.isfinite()).sum()) for values in statistics)
            initial = bool((statistics[0] == 0).all() and (statistics[1] == 1).all())
            if broken:
                yield f"its running statistics are not finite in {broken} places; call reestimate"
            elif row.updates == 0 or (row.updates is None and initial):
                yield "its running statistics were never updated; train it, or call reestimate"
            elif row.drift is not None and row.drift > max(STALE, row.batch_noise):
                yield (
                    f"its running statistics are stale: {row.drift:.2g} standard deviations from the data, "
                    f"most in channel {row.worst_channel}; call reestimate"
                )
        if skipped := getattr(self.layer, "skipped_updates", 0):
            yield f"{int(skipped)} training batches had statistics that are not finite and were left out of the average"
        if row.calls > 1 and row.kind != "frozen":
            yield f"it is called {row.calls} times in a forward pass with one set of statistics; give each call its own layer"
        if row.dead_channels:
            names = ", ".join(map(str, row.dead_channels[:8])) + (", ..." if len(row.dead_channels) > 8 else "")
            yield f"{len(row.dead_channels)} of {row.channels} channels are dead (constant): {names}"
        if row.kind != "frozen":
            if row.momentum is not None and row.momentum > FAST_MOMENTUM:
                yield (
                    f"its momentum is {row.momentum:g}: the last batch outweighs all others (0.99 in Keras is 0.01 here)"
                )
            if self.fewest <= 1:
                yield "a batch has one value in each channel, which is an error in training"
            elif row.batch_noise > NOISY:
                yield f"batches are too small: their statistics are {row.batch_noise:.2g} standard deviations from the data's"
