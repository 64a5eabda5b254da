"""Take activations, and sums of residual branches, into the normalization layers that they directly follow.

An activation module that follows nothing but such layers becomes Identity, and the model stays what it was. Where it serves
other places too (one ReLU for a whole block), is a function, or follows a sum, the calls themselves have to change: then the
model is written anew from its torch.fx graph, with the same submodules and the same ``state_dict``.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from tenfold.normalization.batch_normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d
from tenfold.normalization.batches import Feeding
from tenfold.normalization.dataflow import Flow, ModuleCall, graph_of, observed, traced
from tenfold.normalization.group_normalization import GroupNorm
from tenfold.normalization.inventory import display_name
from tenfold.normalization.observation import Observation

FUSING = (BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm)
F = nn.functional
FUNCTIONS: dict[Any, str] = {F.relu: "relu", torch.relu: "relu", F.silu: "silu", F.gelu: "gelu"}
FUNCTIONS |= {torch.relu_: "relu", F.relu_: "relu", "relu": "relu", "relu_": "relu"}
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


def fuse_activations(model: nn.Module, feeding: Feeding | None) -> tuple[nn.Module, dict[str, str]]:
    """The model with activations taken into layers of this library, and for each such layer what it took.

    Args:
        model: Changed in place where that is enough.
        feeding: Data to run the model on, if torch.fx cannot trace it, and to see which sums are of equal shapes.

    Raises:
        ValueError: The model cannot be traced and there is no data.
    """
    names = {module: display_name(name) for name, module in model.named_modules()}
    try:
        flow = traced(model)
    except ValueError:
        if feeding is None:
            raise
        flow = _observed(model, feeding)
    taken: dict[str, str] = {}
    for activation in {call.module for call in flow.calls if activation_of(call.module) is not None}:
        norms = {call.source.module if call.source is not None else None for call in flow.of(activation)}
        if all(norm is not None and _only_read_by(norm, activation, flow) for norm in norms):
            for norm in norms:
                assert norm is not None
                norm.activation = activation_of(activation)  # type: ignore[assignment]  # a layer's own attribute
                taken[names[norm]] = f"with {activation_of(activation)}"
            _become_identity(model, activation)
    if flow.seen == "torch.fx":
        model = _rewritten(model, feeding, names, taken)
    return model, taken


def activation_of(module: nn.Module) -> str | None:
    """The name of an activation that layers here have, of the module that computes it."""
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" else None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    return {nn.ReLU: "relu", nn.SiLU: "silu"}.get(type(module))


def _only_read_by(norm: nn.Module, activation: nn.Module, flow: Flow) -> bool:
    def goes_on(call: ModuleCall) -> bool:
        return [None if reader is None else reader.module for reader in call.readers] == [activation]

    return _can_take(norm) and all(goes_on(call) for call in flow.of(norm))


def _can_take(norm: Any) -> bool:
    hooks = isinstance(norm, nn.Module) and (norm._forward_hooks or norm._forward_pre_hooks)
    return type(norm) in FUSING and norm.activation is None and not hooks


def _become_identity(model: nn.Module, activation: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is activation:
                parent._modules[name] = nn.Identity()


def _observed(model: nn.Module, feeding: Feeding) -> Flow:
    with Observation(model, {}, lambda name, index, measure: None):
        return observed(model, feeding.first().run)


def _rewritten(
    model: nn.Module, feeding: Feeding | None, names: dict[nn.Module, str], taken: dict[str, str]
) -> nn.Module:
    """The model from its graph with the remaining activations and sums taken in; the model itself if there are none."""
    if not any(True for _ in model.children()):
        return model
    graph = _graph_in_both_modes(model)
    if graph is None:
        return model
    calls: dict[nn.Module, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            module = model.get_submodule(str(node.target))
            calls[module] = calls.get(module, 0) + 1
    shapes = _shapes(model, graph, feeding)
    changed: list[tuple[nn.Module, str | None]] = []
    for node in list(graph.nodes):
        norm = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        # A layer that is called twice would take the activation in both calls.
        if norm is None or not _can_take(norm) or calls[norm] > 1 or len(node.args) != 1 or node.kwargs:
            continue
        total = _sum_behind(node, shapes)
        last = total or node
        follower = next(iter(last.users)) if len(last.users) == 1 else None
        name = None if follower is None else _activation_at(follower, model)
        if name is None and total is None:
            continue
        end = follower if name is not None else total
        assert end is not None
        parts = [] if total is None else [part for part in total.args if part is not node]
        with graph.inserting_before(end):
            fused = graph.call_module(str(node.target), (node.args[0], *parts))
        if end in shapes:
            shapes[fused] = shapes[end]
        end.replace_all_uses_with(fused)
        for gone in (end, total, node):
            if gone is not None and not gone.users and gone in graph.nodes:
                graph.erase_node(gone)
        changed.append((norm, name))
        words = [*(["the residual sum"] if total is not None else []), *([name] if name else [])]
        taken[names[norm]] = "with " + " and ".join(words)
    if not changed:
        return model
    for norm, name in changed:
        norm.activation = name  # type: ignore[assignment]  # a layer's own attribute
    graph.lint()
    return fx.GraphModule(model, graph, type(model).__name__)


def _graph_in_both_modes(model: nn.Module) -> fx.Graph | None:
    """The graph, if it is the same in training and evaluation (a function may have been told which it is)."""
    modes = [(module, module.training) for module in model.modules()]
    graphs = []
    try:
        for training in (False, True):
            for module, _ in modes:
                module.training = training
            graphs.append(graph_of(model))
    finally:
        for module, training in modes:
            module.training = training
    return graphs[0] if str(graphs[0]) == str(graphs[1]) else None


def _activation_at(node: fx.Node, model: nn.Module) -> str | None:
    if node.op == "call_module":
        return activation_of(model.get_submodule(str(node.target)))
    if node.op not in ("call_function", "call_method") or node.target not in FUNCTIONS:
        return None
    others = {key: value for key, value in node.kwargs.items() if key not in ("inplace", "input")}
    return FUNCTIONS[node.target] if not others and len(node.args) <= 1 else None


def _sum_behind(node: fx.Node, shapes: dict[fx.Node, torch.Size]) -> fx.Node | None:
    """The sum of a node and another of the same shape, if nothing else reads the node."""
    total = next(iter(node.users)) if len(node.users) == 1 else None
    if total is None or total.op not in ("call_function", "call_method") or total.target not in SUMS or total.kwargs:
        return None
    if total.target in (operator.iadd, "add_") and total.args[0] is not node:
        return None  # other readers of the branch see what this writes into it
    others = [part for part in total.args if part is not node]
    if len(total.args) != 2 or len(others) != 1 or not isinstance(others[0], fx.Node):
        return None
    return total if node in shapes and shapes[node] == shapes.get(others[0]) else None


def _shapes(model: nn.Module, graph: fx.Graph, feeding: Feeding | None) -> dict[fx.Node, torch.Size]:
    """Shapes on the first batch; none without data, or if the model is not simply called with it."""
    if feeding is None:
        return {}
    shapes: dict[fx.Node, torch.Size] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, torch.Tensor):
                shapes[n] = value.shape
            return value

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            names = [node.name for node in graph.nodes if node.op == "placeholder"]
            return Recorder(model, graph=graph).run(
                *args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)
            )

    with Observation(model, {}, lambda name, index, measure: None):
        feeding.first().run(Called())
    return shapes
