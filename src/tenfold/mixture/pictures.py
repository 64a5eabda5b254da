"""Pictures of the mixture autoencoder: a grid of decoded images, and the map of its codes."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from tenfold.errors import InputError
from tenfold.files import atomic_write

GAP = 2
LARGEST_MAP = 20_000  # points; more are thinned evenly


def image_grid(values: Float[np.ndarray, "images features"], shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
    """Images side by side in a grid that is about square, small ones enlarged so that they can be seen.

    Args:
        values: Intensities from 0 to 1; others are cut off.
        shape: (height, width) or (height, width, channels) of one image.

    >>> image_grid(np.zeros((5, 64)), (8, 8)).shape  # two rows of three, each enlarged eightfold
    (130, 196)
    """
    images = values.reshape(len(values), *shape)
    factor = max(1, 64 // max(shape[:2]))
    images = images.repeat(factor, 1).repeat(factor, 2)
    height, width = images.shape[1:3]
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    grid = np.ones((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, *shape[2:]))
    for i, image in enumerate(images):
        top, left = (i // columns) * (height + GAP), (i % columns) * (width + GAP)
        grid[top : top + height, left : left + width] = image
    return (grid.clip(0, 1) * 255).round().astype(np.uint8)


def write_picture(path: Path, pixels: UInt8[np.ndarray, "..."]) -> None:
    """Write pixels as PNG, whole or not at all."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    atomic_write(path, buffer.getvalue())


def latent_map(path: Path, codes: Float[np.ndarray, "rows D"], probs: Float[np.ndarray, "rows K"]) -> None:
    """Draw codes as points coloured by their most probable component, fainter where that is uncertain.

    Codes of more than two dimensions are projected on their two principal axes; codes of one are drawn over their rank.

    Args:
        path: ``.png``, ``.svg`` or ``.pdf``.
        codes: One code a row.
        probs: Probability of each component.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError("a map is written as .png, .svg or .pdf", path=path)
    if len(codes) > LARGEST_MAP:
        keep = np.linspace(0, len(codes) - 1, LARGEST_MAP).astype(int)
        codes, probs = codes[keep], probs[keep]
    x, y, labels = _plane(codes)
    best = probs.argmax(-1)
    figure = Figure(figsize=(7, 6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    colors = colormaps["tab10" if probs.shape[1] <= 10 else "turbo"]
    for k in range(probs.shape[1]):
        rows = best == k
        if not rows.any():
            continue
        red, green, blue, _ = colors(k) if probs.shape[1] <= 10 else colors(k / (probs.shape[1] - 1))
        shades = np.tile([red, green, blue, 1.0], (rows.sum(), 1))
        shades[:, 3] = 0.25 + 0.65 * probs[rows, k]  # fainter where the component is uncertain
        axes.scatter(x[rows], y[rows], s=10, c=shades, linewidths=0)
        axes.scatter([], [], color=(red, green, blue), label=f"{k + 1}  ({rows.mean():.0%})")
    axes.set(xlabel=labels[0], ylabel=labels[1], title=f"Latent map of {len(codes)} rows by most probable component")
    axes.legend(title="component", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    atomic_write(path, buffer.getvalue())


def _plane(codes: Float[np.ndarray, "rows D"]) -> tuple[np.ndarray, np.ndarray, tuple[str, str]]:
    if codes.shape[1] == 1:
        rank = codes[:, 0].argsort().argsort()
        return codes[:, 0], (rank + 0.5) / len(rank), ("code", "share of rows below")
    if codes.shape[1] == 2:
        return codes[:, 0], codes[:, 1], ("code 1", "code 2")
    centred = codes - codes.mean(0)
    _, strength, axes = np.linalg.svd(centred, full_matrices=False)
    share = strength**2 / max(float((strength**2).sum()), 1e-30)
    plane = centred @ axes[:2].T
    return plane[:, 0], plane[:, 1], tuple(f"principal axis {i + 1} ({share[i]:.0%} of the spread)" for i in range(2))  # type: ignore[return-value]
