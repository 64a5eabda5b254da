"""The options that several commands share, so that each is spelled, checked and explained in one way.

A command gives the default: ``def fit(data: Path, out: Out = Path("model"), seed: Seed = 0, threads: Threads = None)``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d+)?")


def check_device(device: str) -> str:
    """The device as given, when torch could know it.

    Args:
        device: ``auto``, ``cpu``, ``mps``, ``cuda`` or ``cuda:N``, ``xpu`` or ``xpu:N``.

    Raises:
        typer.BadParameter: Another text.

    >>> check_device("cuda:1")
    'cuda:1'
    """
    if not DEVICE.fullmatch(device):
        raise typer.BadParameter(f"{device!r} is no device; give auto, cpu, cuda, cuda:1, xpu or mps")
    return device


Out = Annotated[Path, typer.Option("--out", "-o", help="File or folder to write.", show_default=True)]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of all randomness: same seed, same result.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads.", show_default="as many as torch takes")
]
Device = Annotated[
    str,
    typer.Option(
        "--device", callback=check_device, help="auto, cpu, cuda, cuda:1, xpu or mps; auto takes a GPU if there is one."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of an interrupted run.")]
