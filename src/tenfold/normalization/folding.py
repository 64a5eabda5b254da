"""Fold Batch Normalization into the layer before it, for inference (Ioffe & Szegedy 2015, section 3.1, algorithm 2).

In evaluation the layer is y = a x + c for each channel, with a = gamma / sqrt(Var + eps) and c = beta - a E. Behind a linear map
x = W u + b that is another linear map,

    W' = a W  (along the axis of output channels),    b' = a b + c.

A transposed convolution with g groups stores its weight as [in, out / g, ...], where row i serves the outputs of group
floor(i g / in); so its weight is scaled as [g, in / g, out / g, ...] by a as [g, 1, out / g, 1 ...].
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tenfold.normalization.batches import unwrapped
from tenfold.normalization.dataflow import Flow, observed, traced
from tenfold.normalization.folded import Activation
from tenfold.normalization.inventory import (
    channels_of,
    display_name,
    has_own_forward,
    inference_affine,
    layers_of,
    running_statistics,
)

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LINEAR_MAPS = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)
ALGEBRA = 1e-9  # relative error of one folded pair in float64
WITHOUT = {"input", "x", "add"}  # arguments that a folded layer can do with


@dataclass(frozen=True)
class FoldingReport:
    """What was folded, what was not, and what that did to the output.

    Args:
        folded: Pairs of names: the normalization layer, and the layer that it went into.
        kept: Pairs: a normalization layer that stays, and why.
        output_change: Largest difference of the model's outputs on the example, relative to the largest output; None without
            an example. (For a model that draws random numbers in evaluation it says nothing, and is not checked.)
        layer_error: Largest relative difference of a folded pair in float64, on random input; None if not checked.
        notes: What else there is to know.
    """

    folded: tuple[tuple[str, str], ...]
    kept: tuple[tuple[str, str], ...]
    output_change: float | None
    layer_error: float | None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        change = (
            "not measured (no example)" if self.output_change is None else f"{self.output_change:.2g} of the largest"
        )
        lines = [f"{len(self.folded)} folded, {len(self.kept)} kept; change of the output: {change}"]
        lines += [f"  {norm} into {layer}" for norm, layer in self.folded]
        lines += [f"  {norm} kept: {reason}" for norm, reason in self.kept]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Folding:
    """The folded copy of a model, in evaluation mode, and the report.

    Args:
        model: The copy.
        report: What was done.
    """

    model: nn.Module
    report: FoldingReport


def fold(model: nn.Module, example: Any = None, check: bool = True) -> Folding:
    """A copy of a model, in evaluation mode, without the Batch Normalization that directly follows a linear map.

    Convolutions, transposed convolutions (grouped too) and linear layers take it in. A layer is folded where the model's data
    flow shows that it is the only reader of that output in every call; a shared pair that always runs together is folded once,
    everything else is kept and the report says why. The given model is not changed.

    Args:
        model: Any module, trained.
        example: An input to run the model on: a tensor, a tuple of arguments, or a dictionary of named ones. With it the flow
            is observed and the change of the output is measured; without it the flow is traced by torch.fx.
        check: Compare each folded pair with the original in float64 on random input, and the outputs on the example.

    Returns:
        The copy and a report.

    Raises:
        ValueError: The model cannot be traced and there is no example.
        ArithmeticError: A check failed; nothing is returned.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    >>> print(fold(net).model)
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    inner = unwrapped(model)
    folded_model = copy.deepcopy(inner)
    for module in folded_model.modules():
        module.training = False
    flow = _flow(folded_model, example)
    names = {id(module): display_name(name) for name, module in folded_model.named_modules()}
    tied = _tied_parameters(folded_model)
    folded, kept, notes, replaced = [], [], [], {}
    errors = []
    with torch.no_grad():
        for name, norm in layers_of(folded_model).items():
            found = _layer_before(norm, flow, names, tied)
            if isinstance(found, str):
                kept.append((name, found))
                continue
            pair = nn.ModuleList([found, norm])
            before = copy.deepcopy(pair).double() if check else pair
            absorb(found, norm)
            replaced[id(norm)] = nn.Identity() if _activation(norm) is None and not _adds(flow, norm) else _rest(norm)
            if check:
                errors.append(_pair_error(before, copy.deepcopy(before), _rest(norm)))
                if not errors[-1] <= ALGEBRA:
                    raise ArithmeticError(
                        f"folding {name} into {names[id(found)]} changes the pair's output by {errors[-1]:.2g} of the largest"
                    )
            folded.append((name, names[id(found)]))
            if isinstance(found, nn.Linear) and flow.seen == "torch.fx":
                notes.append(
                    f"{names[id(found)]} is taken to have rows of features as its input; with an example that is seen"
                )
            if len(flow.of(norm)) > 1:
                notes.append(
                    f"{names[id(found)]} and {name} run together {len(flow.of(norm))} times; folded once for all"
                )
        folded_model = replace_modules(folded_model, replaced)
    _check_gone(
        folded_model,
        example,
        {call.module: names[id(call.module)] for call in flow.calls if id(call.module) in replaced},
    )
    change = _output_change(inner, folded_model, example, check) if example is not None else None
    if inner.training:
        notes.append("the copy is in evaluation mode; the layers that were folded have no training mode any more")
    report = FoldingReport(
        tuple(folded), tuple(kept), change, max(errors, default=0.0) if check else None, tuple(notes)
    )
    return Folding(folded_model, report)


def absorb(layer: nn.Module, norm: nn.Module) -> None:
    """Multiply a layer's weight and bias so that it computes what the layer and the normalization behind it did."""
    scale, shift = inference_affine(norm)
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    wide = weight.detach().double()
    scale, shift = scale.to(wide.device), shift.to(wide.device)
    if isinstance(layer, TRANSPOSED):
        groups = layer.groups
        grouped = wide.reshape(groups, wide.shape[0] // groups, *wide.shape[1:])
        per_output = scale.reshape(groups, 1, -1, *[1] * (wide.ndim - 2))
        wide = (grouped * per_output).reshape(wide.shape)
    else:
        wide = wide * scale.reshape(-1, *[1] * (wide.ndim - 1))
    if isinstance(bias, Tensor):
        shift = shift + bias.detach().double() * scale
    trains = weight.requires_grad
    layer.weight = nn.Parameter(_like(wide, weight), requires_grad=trains)
    layer.bias = nn.Parameter(shift.to(weight.dtype), requires_grad=trains)


def replace_modules(model: nn.Module, replaced: Mapping[int, nn.Module]) -> nn.Module:
    """Put modules in the place of others (by ``id``), under every name that those have; returns the model."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in replaced:
                parent._modules[name] = replaced[id(child)]
    return replaced.get(id(model), model)


def run_on(model: nn.Module, example: Any) -> Any:
    """Call a model on an example: a tensor, a tuple of arguments, or a dictionary of named ones."""
    if isinstance(example, Mapping):
        return model(**example)
    return model(*example) if isinstance(example, tuple | list) else model(example)


def relative_change(before: Any, after: Any) -> float:
    """Largest difference of two (nested) outputs, relative to the largest value of the first."""
    pairs = [
        (old.detach().double(), new.detach().double())
        for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True)
        if isinstance(old, Tensor) and old.numel() and (old.is_floating_point() or old.is_complex())
    ]
    largest = max((float(old.abs().max()) for old, _ in pairs), default=0.0)
    difference = max((float((old - new).abs().max()) for old, new in pairs), default=0.0)
    return difference / largest if largest else difference


def rounding_allowance(dtypes: list[torch.dtype]) -> float:
    """Relative difference of outputs that rounding may make of two ways to compute them: 10 sqrt(eps) of the coarsest dtype."""
    return 10 * math.sqrt(max((torch.finfo(dtype).eps for dtype in dtypes), default=1.0))


def _flow(model: nn.Module, example: Any, also: tuple[nn.Module, ...] = ()) -> Flow:
    return traced(model) if example is None else observed(model, lambda module: run_on(module, example), also)


def _check_gone(model: nn.Module, example: Any, names: dict[nn.Module, str]) -> None:
    """A layer that the model also reaches by something else than a submodule's name would be applied a second time."""
    try:
        again = [names[call.module] for call in _flow(model, example, tuple(names)).calls if call.module in names]
    except ValueError:  # torch.fx could trace the model before, and now meets a module that it finds under no name
        again = list(names.values())
    if again:
        raise ValueError(
            f"{' or '.join(again)} is called through a reference that is no submodule's name, so it cannot be taken out"
        )


def _layer_before(norm: nn.Module, flow: Flow, names: dict[int, str], tied: set[int]) -> nn.Module | str:
    """The layer to fold into, or why there is none."""
    if has_own_forward(norm):
        return f"{type(norm).__name__} is a subclass with a forward of its own"
    if running_statistics(norm) is None:
        return "it keeps no running statistics, so it is no fixed map"
    calls = flow.of(norm)
    if not calls:
        return "it is never called" if flow.seen == "torch.fx" else "the example does not reach it"
    if unknown := sorted({name for call in calls for name in call.extra} - WITHOUT):
        return f"it is called with {' and '.join(unknown)}"
    sources = [call.source for call in calls]
    layers = {id(source.module): source.module for source in sources if source is not None}
    if any(nn.utils.parametrize.is_parametrized(layer) for layer in layers.values()):
        return "the weight of the layer before it is computed by a parametrization"
    if None in sources or not all(type(layer) in LINEAR_MAPS for layer in layers.values()):
        return "it does not directly follow a convolution or linear layer"
    if len(layers) > 1:
        return f"it is shared: it follows {', '.join(names[key] for key in layers)}"
    (layer,) = layers.values()
    if any(reader is None or reader.module is not norm for call in flow.of(layer) for reader in call.readers):
        shared = len(flow.of(layer)) > 1
        return (
            f"{names[id(layer)]} is shared or read elsewhere too"
            if shared
            else f"{names[id(layer)]} is read elsewhere too"
        )
    if any(len(call.readers) != 1 for call in flow.of(layer)):
        return f"not every output of {names[id(layer)]} goes through it"
    if any(id(parameter) in tied for parameter in layer.parameters(recurse=False)):
        return f"{names[id(layer)]} shares its weight or bias with another layer"
    for module, label in ((layer, names[id(layer)]), (norm, "it")):
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{label} has hooks that may change what it computes"
    outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    wanted = 2 if isinstance(layer, nn.Linear) else None
    if isinstance(layer, CONVOLUTIONS + TRANSPOSED):
        wanted = len(layer.kernel_size) + 2
    if outputs != channels_of(norm) or any(call.dimensions not in (None, wanted) for call in calls):
        return f"its channels are not the output channels of {names[id(layer)]}"
    return layer


def _tied_parameters(model: nn.Module) -> set[int]:
    """Parameters that belong to more than one module."""
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    return {key for key, count in owners.items() if count > 1}


def _activation(norm: nn.Module) -> str | None:
    return getattr(norm, "activation", None)


def _adds(flow: Flow, norm: nn.Module) -> bool:
    return any("add" in call.extra for call in flow.of(norm))


def _rest(norm: nn.Module) -> Activation:
    return Activation(_activation(norm))


def _like(wide: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(weight)  # keeps the memory format
    out.copy_(wide)
    return out


def _pair_error(before: nn.ModuleList, after: nn.ModuleList, rest: Activation) -> float:
    """Relative difference of the pair and the folded layer in float64, on random input."""
    layer, norm = before[0], before[1]
    absorb(after[0], after[1])
    weight = layer.weight
    assert isinstance(weight, Tensor)
    x = torch.randn(_input_shape(layer), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        weight.device
    )
    return relative_change(norm(layer(x)), rest(after[0](x)))


def _input_shape(layer: Any) -> list[int]:
    """Rows for a linear map; for a convolution large enough for the kernel, and for padding by reflection."""
    if isinstance(layer, nn.Linear):
        return [3, layer.in_features]
    padding = (0,) * len(layer.kernel_size) if isinstance(layer.padding, str) else layer.padding
    sizes = zip(layer.kernel_size, layer.dilation, padding, strict=True)
    return [2, layer.in_channels, *(max(dilation * (kernel - 1), pad) + 3 for kernel, dilation, pad in sizes)]


def _output_change(model: nn.Module, folded: nn.Module, example: Any, check: bool) -> float:
    original = copy.deepcopy(model)
    for module in original.modules():
        module.training = False
    given = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, example)
    with torch.no_grad():
        before, after = run_on(original, given), run_on(folded, example)
    change = relative_change(before, after)
    dtypes = [t.dtype for t in tree_leaves(before) if isinstance(t, Tensor) and t.is_floating_point()]
    allowed = rounding_allowance(dtypes)
    if check and not change <= allowed:
        with torch.no_grad():
            if relative_change(before, run_on(original, given)) > allowed:
                return change  # the model draws random numbers in evaluation too: no comparison can fail it
        raise ArithmeticError(
            f"the folded model's output differs by {change:.2g} of the largest output, where rounding allows {allowed:.1g}"
        )
    return change
