"""Population statistics after training, exactly ("precise BN": Wu & Johnson 2021, arXiv 2105.07576, section 3).

The running averages of Batch Normalization lag behind the weights and weigh the last batches most. Here every layer's
statistics are the moments of all values that enter it, pooled in float64: what one training step on the whole data set, as
one batch, would record. The second layer's input depends on how the first normalises, so the layers are measured one after
another, each behind layers that are normalised by their final moments; the result depends on the data, and not on how a
loader cuts them into batches, orders them, or spreads them over processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.normalization.batches import Feeding, Forward, Reached, unwrapped
from tenfold.normalization.inventory import (
    BATCH_KINDS,
    channels_of,
    display_name,
    eps_of,
    kind_of,
    layers_of,
    running_statistics,
    set_statistics,
)
from tenfold.normalization.moments import PooledMoments, gathered_numbers, pooled_over_processes
from tenfold.normalization.observation import Observation

Call = tuple[str, int]  # a layer's name, and which of its calls in the forward pass


@dataclass(frozen=True)
class LayerChange:
    """What re-estimation did to one layer.

    Args:
        name: The layer's name in the model.
        calls: How often the forward pass calls it.
        values: How many values of each channel were pooled.
        mean_shift: Root mean square over channels of (new mean - old mean) / sqrt(old variance + eps).
        variance_ratio: Geometric mean over channels of (new variance + eps) / (old variance + eps).
    """

    name: str
    calls: int
    values: int
    mean_shift: float
    variance_ratio: float


@dataclass(frozen=True)
class ReestimationReport:
    """What re-estimation read and changed.

    Args:
        samples: Rows read in one pass, by all processes together.
        batches: Batches read in one pass, by all processes together.
        passes: How often this process read the data.
        layers: One entry for each layer with new statistics, in the order of the model.
        notes: What was left as it was, and why.
    """

    samples: int
    batches: int
    passes: int
    layers: tuple[LayerChange, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"statistics of {len(self.layers)} layers from {self.samples:,} samples in {self.passes} passes"]
        lines += [
            f"  {layer.name}: mean moved by {layer.mean_shift:.3g} standard deviations, variance x {layer.variance_ratio:.3g}"
            for layer in self.layers
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Reestimation:
    """The module whose statistics were renewed, in place, and the report.

    Args:
        model: The module that was given.
        report: What changed.
    """

    model: nn.Module
    report: ReestimationReport


def reestimate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    forward: Forward | None = None,
    device: torch.device | str | None = None,
    max_samples: int | None = None,
    passes: str = "exact",
    process_group: torch.distributed.ProcessGroup | None = None,
) -> Reestimation:
    """Set the running statistics of every Batch Normalization layer to the moments of all the data, in place.

    For each channel, over all n values v that enter the layer,

        running_mean = sum(v) / n,    running_var = sum((v - running_mean)^2) / (n - 1)

    (divided by n where the layer says ``running_variance="biased"``). Dropout is off. Nothing but the statistics and
    ``num_batches_tracked`` changes, buffers stay the same tensors, and after an error all is as it was before.

    Inside a process group, every process calls this with its part of the data, which may be none; all end with the same
    statistics, those of the parts together.

    Args:
        model: Any module; DistributedDataParallel and compiled modules are looked into.
        loader: Batches: tensors, tuples that begin with the input, or dictionaries. An iterator, which can be read only once,
            is held in memory. A tensor is one batch.
        forward: Runs the model on a batch, ``forward(model, batch)``, where the batch needs more than the above.
        device: Where batches are moved; by default where the model is.
        max_samples: Read so many rows at most (in each process); one to ten thousand are enough by the paper.
        passes: "exact" measures the layers one after another, and so reads the data once for each call of a layer (on
            average half the model is run). "single" reads them once and normalises each batch by its own moments on the way,
            as training does: then only the layers next to the input are independent of the batches.
        process_group: Processes that pool; the default group if one is initialised.

    Returns:
        The module and a report.

    Raises:
        ValueError: The loader is empty, a layer meets values that are not finite, or a single value for each channel.
        RuntimeError: Another process failed, or processes run through different layers.

    >>> net = nn.Sequential(nn.BatchNorm1d(1))
    >>> result = reestimate(net, [torch.tensor([[1.0], [2.0]]), torch.tensor([[6.0]])])
    >>> net[0].running_mean.item(), net[0].running_var.item()  # of 1, 2, 6
    (3.0, 7.0)
    """
    if passes not in ("exact", "single"):
        raise ValueError(f'passes={passes!r} is not known; it is "exact" or "single"')
    inner = unwrapped(model)
    notes = []
    layers = {}
    for name, layer in layers_of(inner, ("batch", "cross_process", "ghost", "renorm")).items():
        if running_statistics(layer) is None:
            notes.append(f"{name} keeps no running statistics; it normalises by the batch in evaluation mode too")
        else:
            layers[name] = layer
    notes += [f"{name} is frozen and was left so" for name in layers_of(inner, ("frozen",))]
    notes += [
        f"{display_name(name)} keeps statistics of other sets (of each step, or each sample), which are not re-estimated"
        for name, module in inner.named_modules()
        if kind_of(module) not in BATCH_KINDS
        and any(key.startswith("running_mean") for key, buffer in module._buffers.items() if buffer is not None)
    ]
    if not layers:
        notes.append("the model has no layer with running statistics to renew")
        return Reestimation(model, ReestimationReport(0, 0, 0, (), tuple(notes)))
    data = Feeding.of(inner, loader, forward, device, max_samples)
    pooling = _Pooling(process_group, list(layers))
    measure = _measure_in_turn if passes == "exact" else _measure_together
    moments, calls = measure(inner, layers, data, pooling)
    counts = pooling.totals([data.samples, data.batches])
    if not counts[1]:
        raise ValueError("the loader gave no batches, so there is nothing to estimate from")
    for name, layer in layers.items():
        if moments[name].count == 1 and _is_unbiased(layer):
            raise ValueError(f"layer {name} met a single value of each channel; a variance needs two at least")
    changes = []
    for name, layer in layers.items():
        if not moments[name].count:
            notes.append(f"{name} was never called; its statistics are the old ones")
            continue
        if calls[name] > 1:
            notes.append(f"{name} is called {calls[name]} times in a forward pass; its statistics pool all calls")
        changes.append(_renewed(name, layer, moments[name], calls[name], counts[1]))
    return Reestimation(model, ReestimationReport(counts[0], counts[1], data.passes, tuple(changes), tuple(notes)))


@dataclass
class _Pooling:
    """Agreement between the processes of a group; without one, its methods return what they are given."""

    group: torch.distributed.ProcessGroup | None
    names: list[str]
    active: bool = field(init=False)

    def __post_init__(self) -> None:
        self.active = torch.distributed.is_available() and torch.distributed.is_initialized()

    def agreed(self, call: Call | None, error: BaseException | None) -> Call | None:
        """The call that all processes have measured, None if none of them has any left; raises if one has failed."""
        if not self.active:
            if error is not None:
                raise error
            return call
        code = 0 if call is None else 1 + self.names.index(call[0]) + len(self.names) * call[1]
        rows = gathered_numbers([code, int(error is not None)], self.group)
        if error is not None:
            raise error
        failed = [rank for rank, (_, failure) in enumerate(rows) if failure]
        if failed:
            raise RuntimeError(f"process {failed[0]} failed while it ran the model on its data; see its own error")
        codes = {code for code, _ in rows if code}
        if len(codes) > 1:
            raise RuntimeError("the processes run through the model's normalization layers in different orders")
        if not codes:
            return None
        code = codes.pop() - 1
        return self.names[code % len(self.names)], code // len(self.names)

    def pooled(self, moments: list[PooledMoments]) -> list[PooledMoments]:
        return pooled_over_processes(moments, self.group) if self.active else moments

    def totals(self, numbers: list[int]) -> list[int]:
        if not self.active:
            return numbers
        return [sum(column) for column in zip(*gathered_numbers(numbers, self.group), strict=True)]


def moments_in_turn(
    model: nn.Module, layers: dict[str, nn.Module], data: Feeding
) -> tuple[dict[str, PooledMoments], Counter[str]]:
    """Moments of all data by layer, and its number of calls, in the order of the forward pass; this process alone.

    Layers before the one that is measured normalise by their own moments, with the biased variance.
    """
    alone = _Pooling(None, list(layers))
    alone.active = False
    return _measure_in_turn(model, layers, data, alone)


def _measure_in_turn(
    model: nn.Module, layers: dict[str, nn.Module], data: Feeding, pooling: _Pooling
) -> tuple[dict[str, PooledMoments], Counter[str]]:
    """Moments by layer. One call of one layer is measured in each pass; calls before it are normalised by their moments."""
    done: dict[Call, PooledMoments] = {}
    known: list[Call] = []  # calls in the order of the forward pass
    while True:
        left = [call for call in known if call not in done]
        target: list[Call] = left[:1]
        found = _empty(layers)
        stop = len(left) > 1  # else the pass goes on behind the target, to see which calls follow

        def before(
            name: str,
            index: int,
            measure: Callable[[], PooledMoments],
            target: list[Call] = target,
            found: dict[str, PooledMoments] = found,
            stop: bool = stop,
        ) -> PooledMoments | None:
            call = (name, index)
            if call in done:
                return done[call]
            if call not in known:
                known.append(call)
            if not target:
                target.append(call)
            moments = measure()
            if call == target[0]:
                _check_finite(name, moments)
                found[name] = found[name].merged(moments)
                if stop:
                    raise Reached
            return moments

        error: BaseException | None = None
        if left or not data.passes:
            try:
                with Observation(model, layers, before) as observation:
                    data.run(model, observation.begin)
            except BaseException as raised:  # noqa: BLE001 - the other processes are told before it goes on
                error = raised
        agreed = pooling.agreed(target[0] if target else None, error)
        if agreed is None:
            break
        (done[agreed],) = pooling.pooled([found[agreed[0]]])
        if agreed not in known:  # this process has no data of its own
            known.append(agreed)
    moments = _empty(layers)
    for (name, _), part in done.items():
        moments[name] = moments[name].merged(part)
    return moments, Counter(name for name, _ in done)


def _measure_together(
    model: nn.Module, layers: dict[str, nn.Module], data: Feeding, pooling: _Pooling
) -> tuple[dict[str, PooledMoments], Counter[str]]:
    """Moments by layer in one pass; each batch is normalised by its own."""
    moments = _empty(layers)
    most: Counter[str] = Counter()

    def before(name: str, index: int, measure: Callable[[], PooledMoments]) -> PooledMoments | None:
        own = measure()
        _check_finite(name, own)
        moments[name] = moments[name].merged(own)
        most[name] = max(most[name], index + 1)
        return own

    error: BaseException | None = None
    try:
        with Observation(model, layers, before) as observation:
            data.run(model, observation.begin)
    except BaseException as raised:  # noqa: BLE001 - the other processes are told before it goes on
        error = raised
    pooling.agreed(None, error)
    pooled = pooling.pooled(list(moments.values()))
    return dict(zip(layers, pooled, strict=True)), most


def _empty(layers: dict[str, nn.Module]) -> dict[str, PooledMoments]:
    statistics = {name: running_statistics(layer) for name, layer in layers.items()}
    return {name: PooledMoments.empty(channels_of(layers[name]), s[0].device) for name, s in statistics.items() if s}


def _check_finite(name: str, moments: PooledMoments) -> None:
    if not moments.is_finite():
        raise ValueError(f"layer {name} received values that are not finite; its statistics would be NaN for ever")


def _is_unbiased(layer: nn.Module) -> bool:
    # Batch Renormalization averages the deviation that it normalises a batch by.
    return kind_of(layer) != "renorm" and getattr(layer, "running_variance", "unbiased") == "unbiased"


def _renewed(name: str, layer: nn.Module, moments: PooledMoments, calls: int, batches: int) -> LayerChange:
    statistics = running_statistics(layer)
    assert statistics is not None  # only such layers are measured
    old_mean, old_variance = statistics
    old = old_variance + eps_of(layer)
    set_statistics(layer, moments, unbiased=_is_unbiased(layer))
    if isinstance(counter := getattr(layer, "num_batches_tracked", None), Tensor):
        counter.fill_(batches)  # so that a cumulative average (momentum=None) goes on with the right weight
    shift = (moments.mean.to(old.device) - old_mean).square() / old
    ratio = (moments.variance().to(old.device) + eps_of(layer)) / old
    return LayerChange(name, calls, moments.count, float(shift.mean().sqrt()), float(ratio.log().mean().exp()))
