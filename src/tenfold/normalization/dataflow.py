"""Which layer's output is which layer's input: read from the model's graph, or from a run of the model on an example.

The order in which modules are registered says nothing about the order in which they are called, and a tensor may have a
second reader (a skip connection); so the real flow is looked up. ``traced`` uses torch.fx and needs no data. ``observed`` runs
the model once and follows each tensor through every operation of torch; it serves models that torch.fx cannot trace.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tenfold.normalization.folded import Activation
from tenfold.normalization.inventory import kind_of

TWICE = "one tensor as two arguments"


@dataclass(eq=False)
class ModuleCall:
    """One call of a module.

    Args:
        module: Which.
        source: The call whose output is the first argument, if one of a module's.
        extra: Names of other arguments that were given ("add", "mask", "lengths"); TWICE if one is the first once more.
        readers: What reads the output: calls of modules, and other operations as None.
        dimensions: Of the first argument, if known.
    """

    module: nn.Module
    source: ModuleCall | None = None
    extra: tuple[str, ...] = ()
    readers: list[ModuleCall | None] = field(default_factory=list)
    dimensions: int | None = None


@dataclass
class Flow:
    """The calls of a model's layers, in order.

    Args:
        calls: Each call of a module without children, or of a normalization layer.
        seen: "torch.fx" or "example".
    """

    calls: list[ModuleCall]
    seen: str

    def of(self, module: nn.Module) -> list[ModuleCall]:
        """The calls of one module."""
        return [call for call in self.calls if call.module is module]


class LayerTracer(fx.Tracer):
    """Traces into a model, but not into normalization layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is one node of the graph."""
        return kind_of(m) is not None or isinstance(m, Activation) or super().is_leaf_module(m, module_qualified_name)


def traced(model: nn.Module) -> Flow:
    """The flow by torch.fx.

    Raises:
        ValueError: The model cannot be traced; the reason is given.
    """
    if kind_of(model) is not None or _is_layer(model):
        return Flow([ModuleCall(model, readers=[None])], "torch.fx")
    graph = graph_of(model)
    calls: dict[fx.Node, ModuleCall] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            module = model.get_submodule(str(node.target))
            source = node.args[0] if node.args else next(iter(node.kwargs.values()), None)
            extra = tuple(_names(module, len(node.args))[1:]) + tuple(node.kwargs)[0 if node.args else 1 :]
            if [*node.args, *node.kwargs.values()].count(source) > 1:
                extra += (TWICE,)
            calls[node] = ModuleCall(module, calls.get(source) if isinstance(source, fx.Node) else None, extra)
    for node, call in calls.items():
        call.readers = [calls.get(user) for user in node.users]
    return Flow(list(calls.values()), "torch.fx")


def graph_of(model: nn.Module) -> fx.Graph:
    """The model's graph, with normalization layers as single nodes."""
    try:
        return LayerTracer().trace(model)
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"the model cannot be traced by torch.fx ({reason}), so it is not known which layer feeds which; "
            "give example data to run it on"
        ) from error


def observed(model: nn.Module, run: Callable[[nn.Module], Any], also: Sequence[nn.Module] = ()) -> Flow:
    """The flow as a run of the model shows it: the path that the example took, and no other; also of further modules."""
    following = _Following()
    handles = []
    for module in {module for module in (*model.modules(), *also) if kind_of(module) is not None or _is_layer(module)}:
        handles.append(module.register_forward_pre_hook(following.enter, with_kwargs=True))
        handles.append(module.register_forward_hook(following.leave))
    try:
        with torch.no_grad(), following:
            output = run(model)
    finally:
        for handle in handles:
            handle.remove()
    for tensor in tree_leaves(output):
        if isinstance(tensor, Tensor) and (call := following.maker(tensor)) is not None:
            call.readers.append(None)
    return Flow(following.calls, "example")


class _Following(TorchDispatchMode):
    """Counts as a reader of a tensor every operation that gets it, in the name of the module that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[ModuleCall] = []
        self._running: list[ModuleCall] = []
        self._makers: dict[int, tuple[Tensor, ModuleCall]] = {}  # holds the tensors, so that no id is given twice
        self._read: dict[int, set[int]] = defaultdict(set)  # calls by which each call's output was read

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        source = args[0] if args else next(iter(kwargs.values()), None)
        given = _names(module, len(args))[1:] + list(kwargs)[0 if args else 1 :]
        values = dict(zip(given, (*args[1:], *kwargs.values()), strict=False))
        extra = tuple(name for name in given if values.get(name) is not None)
        call = ModuleCall(
            module,
            self.maker(source) if isinstance(source, Tensor) else None,
            extra + ((TWICE,) if any(value is source for value in values.values()) else ()),
            dimensions=source.ndim if isinstance(source, Tensor) else None,
        )
        for value in tree_leaves((args, kwargs)):  # also if it does nothing with it, as Identity
            if isinstance(value, Tensor):
                self._reads(value, call)
        self.calls.append(call)
        self._running.append(call)

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        call = self._running.pop()
        if isinstance(output, Tensor):
            self._makers[id(output)] = (output, call)

    def maker(self, tensor: Tensor) -> ModuleCall | None:
        return self._makers[id(tensor)][1] if id(tensor) in self._makers else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs or {})):
            if isinstance(value, Tensor):
                self._reads(value, self._running[0] if self._running else None)
        return func(*args, **(kwargs or {}))

    def _reads(self, tensor: Tensor, reader: ModuleCall | None) -> None:
        call = self.maker(tensor)
        if call is None or call is reader:
            return
        if reader is None:
            call.readers.append(None)
        elif id(reader) not in self._read[id(call)]:
            self._read[id(call)].add(id(reader))
            call.readers.append(reader)


def _is_layer(module: nn.Module) -> bool:
    whole = not any(True for _ in module.children()) or nn.utils.parametrize.is_parametrized(module)
    return whole and type(module).__module__.startswith("torch.nn")


def _names(module: nn.Module, count: int) -> list[str]:
    """Names of the first arguments of a module's forward."""
    return list(inspect.signature(module.forward).parameters)[:count]
