"""From what a command was given to examples and networks, and from findings to text."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from tenfold.console.terminal import is_terminal, results
from tenfold.errors import InputError
from tenfold.normalization import data as reading
from tenfold.normalization.model_files import (
    build_network,
    check_weights_path,
    load_build,
    load_weights,
)
from tenfold.runtime import set_threads


def whole_numbers(text: str, option: str, example: str) -> list[int]:
    """Whole numbers with commas between them.

    >>> whole_numbers("2, 4", "--batch-sizes", "2,4")
    [2, 4]
    """
    try:
        return [int(number) for number in text.split(",") if number.strip()]
    except ValueError:
        raise InputError(f"{option} {text!r} must be whole numbers with commas, such as {example}") from None


def model_of(model: str) -> tuple[str | Callable[..., nn.Module], str | None]:
    """A model's name as it is; the function of a file, with a name that changes when the file does."""
    if ":" not in model and not model.endswith(".py"):
        return model, None
    build = load_build(model)
    digest = hashlib.sha256(Path(model.rpartition(":")[0]).read_bytes()).hexdigest()

    @functools.wraps(build, updated=())  # a class may stand there, too
    def reporting(**arguments: Any) -> nn.Module:
        return build_network(model, build, arguments)

    return reporting, f"{Path(model).name} ({digest[:8]})"


def write_paragraphs(*paragraphs: str) -> None:
    """Writes text to standard output, each paragraph after a blank line; at a terminal, lines end between words."""
    for text in paragraphs:
        if is_terminal(sys.stdout):
            results().print(f"\n{text}")
        else:
            sys.stdout.write(f"\n{text}\n")


def network_of(checkpoint: Path, source: str, classes: int | None) -> nn.Module:
    """The user's network with the checkpoint's weights."""
    offers = {} if classes is None else {"num_classes": classes}
    network = build_network(source, load_build(source), offers)
    load_weights(network, checkpoint)
    return network


def prepared_network(checkpoint: Path, build: str, classes: int | None, out: Path, threads: int | None) -> nn.Module:
    """The network, when nothing stands against writing the result."""
    check_weights_path(out)
    if out.exists() and checkpoint.exists() and out.samefile(checkpoint):
        raise InputError("this is the checkpoint that is read; give --out another name", path=out)
    set_threads(threads)
    return network_of(checkpoint, build, classes)


def read_examples(
    data: str | None,
    dataset: str | None,
    label: str | None,
    size: int | None,
    grayscale: bool,
    mean: str | None,
    std: str | None,
) -> Float32[Tensor, "examples ..."]:
    """Inputs in the network's own scale.

    Raises:
        InputError: Not exactly one of file and data set, or what cannot be read or scaled.
    """
    if (data is None) == (dataset is None):
        raise InputError("give either --data, a file or folder, or --dataset with digits, mnist_5k or mnist")
    if dataset is not None:
        inputs = reading.dataset(dataset, size=size).inputs
    else:
        inputs = reading.read_inputs(data or "", label=label, size=size, grayscale=grayscale)
    for text, option in ((mean, "--mean"), (std, "--std")):
        if text is None:
            continue
        values = _per_channel(text, option, inputs)
        if option == "--std" and not bool((values > 0).all()):
            raise InputError(f"--std {text!r} must be positive")
        inputs = inputs - values if option == "--mean" else inputs / values
    return inputs


def _per_channel(text: str, option: str, inputs: Tensor) -> Tensor:
    try:
        values = torch.tensor([float(number) for number in text.split(",")])
    except ValueError:
        raise InputError(f"{option} {text!r} must be numbers with commas, such as 0.485,0.456,0.406") from None
    if len(values) not in (1, inputs.shape[1]):
        raise InputError(
            f"{option} has {len(values)} numbers, the inputs {inputs.shape[1]} channels; give one, or one each"
        )
    return values.view(1, -1, *[1] * (inputs.dim() - 2))
