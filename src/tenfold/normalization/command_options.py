"""The options that several commands of normalization share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Checkpoint = Annotated[Path, typer.Argument(help="Weights: .safetensors, or a state_dict saved by torch.save.")]
Build = Annotated[
    str,
    typer.Option("--build", help="File and function that build the network, such as net.py:build.", show_default=False),
]
Classes = Annotated[
    int | None,
    typer.Option("--classes", min=1, help="The function's num_classes, if it takes one.", show_default=False),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Folder of images, table (.csv, .tsv, .parquet) or array (.npy, .npz) of inputs.",
        show_default=False,
    ),
]
Dataset = Annotated[
    str | None, typer.Option("--dataset", help="digits, mnist_5k or mnist, instead of a file.", show_default=False)
]
Label = Annotated[
    str | None,
    typer.Option("--label", help="Column, or array in an .npz, of classes.", show_default="label, class, target or y"),
]
Size = Annotated[
    int | None, typer.Option("--size", min=1, help="Scale and cut images to this height and width.", show_default=False)
]
Grayscale = Annotated[bool, typer.Option("--grayscale", help="Read images with one channel.")]
Mean = Annotated[
    str | None,
    typer.Option(
        "--mean", help="Subtracted from inputs (images from 0 to 1): one number, or one a channel, with commas."
    ),
]
Std = Annotated[str | None, typer.Option("--std", help="Divides inputs, after --mean.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Examples a batch, as in training.")]
Weights = Annotated[Path, typer.Option("--out", "-o", help="Weights to write: .safetensors, .pt or .pth.")]
