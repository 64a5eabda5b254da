"""Networks from the user's own Python file, and weights from checkpoints that cannot run code.

A network is named ``net.py:build``: a file, and the function in it that builds the network. The file is run, as the
user asked; a checkpoint is data, read as safetensors or by torch's reader of weights alone, never unpickled.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.errors import InputError
from tenfold.files import atomic_path
from tenfold.files.limits import DAMAGE, require_file
from tenfold.normalization.models import offered_arguments

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")
PREFIXES = ("module.", "_orig_mod.", "model.", "network.")  # of DataParallel, torch.compile, and modules that hold one


def load_build(source: str) -> Callable[..., Any]:
    """The function that ``net.py:build`` names; the file's folder can be imported from while it is run.

    Args:
        source: Path and name, with a colon between them.

    Raises:
        InputError: No such file or function, or the file raises an error, with the line at fault.
    """
    place, colon, name = source.rpartition(":")
    if not colon or not name.isidentifier() or not place:
        raise InputError(f"{source!r} names no function in a file; write it as net.py:build")
    path = require_file(place).resolve()
    if path.suffix != ".py":
        raise InputError("a Python file (.py) is needed", path=place)
    # a name of its own for each file: two files called net.py must not be taken for one another
    module_name = f"{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # there is a loader for .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses in the file look themselves up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise InputError(_described(error), path=place, line=_line_in(error, path)) from error
    finally:
        sys.path.remove(str(path.parent))
    build = getattr(module, name, None)
    if not callable(build):
        functions = sorted(
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module_name and not key.startswith("_")
        )
        raise InputError(f"has no function {name!r}; there are {', '.join(functions) or 'none'}", path=place)
    return build


def build_network(source: str, build: Callable[..., Any], offers: Mapping[str, Any]) -> nn.Module:
    """What a user's function builds, called with those of the offered arguments that it takes.

    Args:
        source: How the user named it, for messages.
        build: The function.
        offers: Name to value.

    Raises:
        InputError: It needs something else, raises an error, or gives no module.
    """
    path, _, name = source.rpartition(":")
    try:
        arguments = offered_arguments(build, dict(offers))
    except ValueError as error:
        raise InputError(f"{name} {error}", path=path) from error
    try:
        network = build(**arguments)
    except Exception as error:
        message = f"{name}() raised {_described(error)}"
        raise InputError(message, path=path, line=_line_in(error, Path(path).resolve())) from error
    if not isinstance(network, nn.Module):
        raise InputError(f"{name}() gave a {type(network).__name__}; a torch.nn.Module is needed", path=path)
    return network


def takes(build: Callable[..., Any], name: str) -> bool:
    """Whether a function has an argument of that name.

    >>> takes(lambda num_classes, norm: None, "norm")
    True
    """
    return name in inspect.signature(build).parameters


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, without what wraps them.

    Args:
        path: A ``.safetensors`` file, or what ``torch.save`` wrote of a state_dict, or of a dict with one in it.

    Raises:
        InputError: No such file, damaged, a pickle of more than weights, or without tensors.
    """
    file = require_file(path)
    if file.suffix.lower() == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(file)
        except (SafetensorError, *DAMAGE) as error:
            raise InputError(
                f"this is no safetensors file, or a damaged one ({_described(error)})", path=file
            ) from error
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            "holds more than tensors and plain values, or is damaged; it is never unpickled, since that could run code: "
            "save model.state_dict() alone, or as safetensors",
            path=file,
        ) from error
    return _unwrapped(content, file)


def load_weights(network: nn.Module, path: str | os.PathLike[str]) -> None:
    """Loads a checkpoint into a network; all weights must be there, and fit.

    Args:
        network: What the weights are for.
        path: As for `read_weights`. A prefix that all names share (``module.``, ``model.``, ``_orig_mod.``) is taken off.

    Raises:
        InputError: As `read_weights`, or weights that are missing, left over, or of another shape.
    """
    weights = read_weights(path)
    wanted = network.state_dict()
    for prefix in PREFIXES:
        if (
            weights
            and all(name.startswith(prefix) for name in weights)
            and not all(n.startswith(prefix) for n in wanted)
        ):
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    missing = [name for name in wanted if name not in weights and not name.endswith("num_batches_tracked")]
    left_over = [name for name in weights if name not in wanted]
    if missing or left_over:
        parts = [f"it lacks {_few(missing)}"] * bool(missing) + [f"the network has no {_few(left_over)}"] * bool(
            left_over
        )
        raise InputError(f"does not fit the network: {'; '.join(parts)}", path=path)
    for name, tensor in weights.items():
        if tensor.shape != wanted[name].shape:
            raise InputError(
                f"does not fit the network: {name} has shape {tuple(tensor.shape)}, the network's {tuple(wanted[name].shape)}",
                path=path,
            )
    network.load_state_dict(weights, strict=False)


def save_weights(network: nn.Module, path: Path) -> None:
    """Writes a network's state_dict, whole or not at all.

    Args:
        network: A network.
        path: ``.safetensors``, or ``.pt``/``.pth`` for torch's own format.

    Raises:
        InputError: Another suffix.
    """
    check_weights_path(path)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    with atomic_path(path) as temporary:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import save_file

            save_file({name: tensor.clone() for name, tensor in state.items()}, temporary)  # tied weights share memory
        else:
            torch.save(state, temporary)


def check_weights_path(path: Path) -> None:
    """Refuses a name that `save_weights` would refuse, before the work.

    Raises:
        InputError: A suffix that is not known.
    """
    if path.suffix.lower() not in (".safetensors", ".pt", ".pth"):
        raise InputError("weights are written as .safetensors, .pt or .pth", path=path)


def _unwrapped(content: Any, path: Path) -> dict[str, Tensor]:
    while isinstance(content, Mapping):
        tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        if len(tensors) == len(content) and tensors:
            return tensors
        inner = [content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    raise InputError(
        "holds no state_dict: names with a tensor each, or a dict of which 'state_dict' holds these", path=path
    )


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _described(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _line_in(error: BaseException, path: Path) -> int | None:
    """The line of the user's file that was last on the way to an error."""
    if isinstance(error, SyntaxError):
        return error.lineno
    line, step = None, error.__traceback__
    while step is not None:
        if Path(step.tb_frame.f_code.co_filename) == path:
            line = step.tb_lineno
        step = step.tb_next
    return line
