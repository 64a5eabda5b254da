"""Batch normalization over all parts of a batch that is too large to be run at once: gradient accumulation, exactly.

A batch that is run in parts leaves each part with statistics of its own: the gradients that add up are not the batch's.
Here the parts are normalized by the pooled statistics m_1 ... m_L of the L layers, measured before, layer behind layer. The
loss L(theta, m_1, ..., m_L) is then a sum over parts, but the statistics depend on the parameters too:

    dL/dtheta = L_theta + sum_k G_k dm_k/dtheta,    G_l = L_{m_l} + sum_{k > l} G_k dm_k/dm_l

L_theta and L_{m_l} come from the user's backward passes. The rest is added when the last part is done: from the last layer
to the first, the parts are run up to layer k once more, and G_k m_k, itself a sum over the parts, is differentiated.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tenfold.normalization.any_rank import AnyRankBatchNorm
from tenfold.normalization.batches import Feeding, Reached, feed, unwrapped
from tenfold.normalization.high_precision import by_channel, promoted
from tenfold.normalization.inventory import layers_of, running_statistics
from tenfold.normalization.moments import PooledMoments
from tenfold.normalization.reestimation import moments_in_turn
from tenfold.normalization.statistics import normalized, update_running, validity


@dataclass(frozen=True)
class _Leaves:
    """The statistics of one layer as what the loss is differentiated by."""

    count: int
    mean: Tensor
    variance: Tensor


def pooled_statistics(
    module: nn.Module, parts: Sequence[Any], *, gradients: Literal["exact", "fixed"] = "exact"
) -> PooledStatistics:
    """Normalize the parts of a batch by the statistics of the whole batch.

    Within the context every Batch Normalization layer of the module normalizes by the moments of all parts together. Call
    the module on each part there, and the backward passes. At its end the running statistics have moved once, and the
    gradients are those of the whole batch, to rounding: of the parameters, and of parts that are leaves. The module may
    draw no random numbers (dropout), as its layers are run several times on each part; a warning says so.

    Args:
        module: Any module in training mode, with layers of torch.nn or of this library.
        parts: The batch's parts, at least one: inputs, tuples that begin with the input, or dictionaries. They are read
            several times: 2 L + 1 in all for L layers.
            Parts that other parameters were used to compute are refused: give the whole model.
        gradients: ``"exact"``, or ``"fixed"`` to treat the statistics as constants, which saves the second half of the
            passes and leaves out what the gradient owes to the statistics.

    Returns:
        A context; iterated over, it is entered and gives the module's output for each part.

    Raises:
        ValueError: There are no parts or a part has a history, a layer is called twice in one pass, a kind of layer has
            no pooled form (ghost, renorm), or a channel has one value in all.
        RuntimeError: A backward pass came after the context, too late for the statistics' share of the gradient.

    Ioffe & Szegedy 2015, Batch Normalization, section 3, for the gradient through the statistics.

    >>> import torch
    >>> layer = nn.BatchNorm1d(1, eps=0.0)
    >>> parts = [torch.tensor([[0.0], [3.0]]), torch.tensor([[3.0], [6.0], [3.0]])]
    >>> with pooled_statistics(layer, parts):
    ...     outputs = [layer(part) for part in parts]
    >>> [round(value, 4) for value in torch.cat(outputs).flatten().tolist()]
    [-1.5811, 0.0, 0.0, 1.5811, 0.0]
    >>> round(layer.running_mean.item(), 4)
    0.3
    """
    if gradients not in ("exact", "fixed"):
        raise ValueError(f"gradients={gradients!r} is not one of 'exact', 'fixed'")
    parts = list(parts)
    if not parts:
        raise ValueError("parts is empty; give the parts of the batch")
    return PooledStatistics(unwrapped(module), parts, gradients)


class PooledStatistics:
    """The context that :func:`pooled_statistics` gives.

    Args:
        module: The module.
        parts: The batch's parts.
        gradients: ``"exact"`` or ``"fixed"``.
    """

    def __init__(self, module: nn.Module, parts: list[Any], gradients: str) -> None:
        self._module = module
        self._parts = parts
        self._exact = gradients == "exact"
        self._layers = {name: layer for name, layer in layers_of(module, ("batch",)).items() if layer.training}
        for name, layer in layers_of(module, ("cross_process", "ghost", "renorm")).items():
            raise ValueError(
                f"{name} is {type(layer).__name__}, whose statistics are not those of a batch; convert it first"
            )
        for name, layer in self._layers.items():
            if running_statistics(layer) is None:
                raise ValueError(f"{name} keeps no running statistics (track_running_stats=False); it cannot be pooled")
        if self._exact and any(isinstance(t, Tensor) and t.grad_fn is not None for t in tree_leaves(parts)):
            raise ValueError(
                "a part was computed from other parameters, whose gradients would lack a share; give the whole model and "
                "its inputs, detach the part, or set gradients='fixed'"
            )
        for name, child in module.named_modules():
            if isinstance(child, nn.modules.dropout._DropoutNd) and child.training and child.p > 0:
                warnings.warn(
                    f"{name} drops values at random, and the pooled statistics are those without: set its p to 0",
                    stacklevel=3,
                )
                break
        self._closed = False
        self._order: list[str] = []
        self._leaves: dict[str, _Leaves] = {}

    def __iter__(self) -> Iterator[Any]:
        with self:
            for part in self._parts:
                yield feed(self._module, part)

    def moments(self, name: str | None = None) -> PooledMoments:
        """Count, mean and squared deviations of the whole batch at a layer, within the context or behind it.

        Args:
            name: Of the layer; may be left out where there is one.

        Raises:
            KeyError: There is no such layer, or the context was not entered.
        """
        leaves = self._leaves[next(iter(self._leaves)) if name is None and len(self._leaves) == 1 else str(name)]
        return PooledMoments(leaves.count, leaves.mean.detach(), leaves.variance.detach() * leaves.count)

    def __enter__(self) -> PooledStatistics:
        moments, calls = moments_in_turn(self._module, self._layers, Feeding(self._parts, feed, None, None))
        for name, count in calls.items():
            if count > 1:
                raise ValueError(f"{name} is called {count} times in a pass; give each call a layer of its own")
        for name in calls:  # in the order of the forward pass
            pooled = moments[name]
            if pooled.count == 1:
                raise ValueError(f"{name} has 1 value a channel in all parts together; its variance is 0")
            self._leaves[name] = _Leaves(
                pooled.count, pooled.mean.clone().requires_grad_(), pooled.variance().clone().requires_grad_()
            )
        self._order = list(calls)
        for name in self._order:
            if self._exact:
                self._leaves[name].mean.register_hook(self._refuse_late)
            self._normalize_by_leaves(name)
        return self

    def _refuse_late(self, gradient: Tensor) -> None:
        if self._closed:
            raise RuntimeError(
                "this backward pass comes after the end of pooled_statistics; run it within the context, or set "
                "gradients='fixed' to leave out what the gradient owes to the statistics"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._exact:
                self._differentiate_statistics()
        finally:
            self._closed = True
            for name in self._order:
                self._layers[name].__dict__.pop("forward", None)
        if kind is None:
            for name, leaves in self._leaves.items():
                update_running(self._layers[name], leaves.mean.detach(), leaves.variance.detach(), leaves.count)

    def _normalize_by_leaves(self, name: str) -> None:
        layer, leaves = self._layers[name], self._leaves[name]

        def forward(
            x: Tensor, add: Tensor | None = None, *, mask: Tensor | None = None, lengths: Tensor | None = None
        ) -> Tensor:
            valid = validity(x, mask, lengths)
            if valid is not None:
                x = x.masked_fill(~valid.unsqueeze(1), 0.0)
            y = normalized(x, leaves.mean, leaves.variance, layer.weight, layer.bias, layer.eps)  # type: ignore[arg-type]
            if isinstance(layer, AnyRankBatchNorm):
                return layer.finished(y, add, valid)
            return y

        layer.forward = forward

    def _differentiate_statistics(self) -> None:
        for name in reversed(self._order):
            leaves = self._leaves[name]
            by_mean, by_variance = leaves.mean.grad, leaves.variance.grad
            if by_mean is None or by_variance is None:  # no backward pass came through this layer
                continue
            layer = self._layers[name]
            usual = layer.forward

            def reached(
                x: Tensor,
                add: Tensor | None = None,
                *,
                mask: Tensor | None = None,
                lengths: Tensor | None = None,
                leaves: _Leaves = leaves,
                by_mean: Tensor = by_mean,
                by_variance: Tensor = by_variance,
            ) -> Tensor:
                if x.requires_grad:
                    self._add_to_gradients(x, validity(x, mask, lengths), leaves, by_mean, by_variance)
                raise Reached

            layer.forward = reached
            try:
                for part in self._parts:
                    try:
                        feed(self._module, part)
                    except Reached:
                        continue
            finally:
                layer.forward = usual

    @staticmethod
    def _add_to_gradients(
        x: Tensor, valid: Tensor | None, leaves: _Leaves, by_mean: Tensor, by_variance: Tensor
    ) -> None:
        """Differentiate this part's share of G_k m_k; the mean inside the variance has no first-order effect."""
        values = promoted(x)
        centered = values - by_channel(leaves.mean.detach(), x)
        share = by_channel(by_mean, x) * values + by_channel(by_variance, x) * centered.square()
        if valid is not None:
            share = share.masked_fill(~valid.unsqueeze(1), 0.0)
        (share.sum() / leaves.count).backward()
