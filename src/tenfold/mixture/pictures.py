"""Pictures of the mixture autoencoder: a grid of decoded images, and the map of its codes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from tenfold.errors import InputError
from tenfold.files import atomic_write

GAP = 2
LARGEST_MAP = 20_000  # points; more are thinned evenly
LONGEST_LEGEND = 24  # entries


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


def latent_map(
    path: Path,
    codes: Float[np.ndarray, "rows D"],
    probs: Float[np.ndarray, "rows K"],
    labels: Sequence[str] | None = None,
) -> None:
    """Draw codes as points coloured by their most probable component, fainter where that is uncertain, or by labels.

    Codes of more than two dimensions are projected on their two principal axes; codes of one are drawn over their rank.

    Args:
        path: ``.png``, ``.svg`` or ``.pdf``.
        codes: One code a row.
        probs: Probability of each component.
        labels: One a row; None colours by component.

    Raises:
        InputError: Another suffix.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError("a map is written as .png, .svg or .pdf", path=path)
    count = len(codes)
    if labels is None:
        groups = {str(k + 1): probs.argmax(-1) == k for k in range(probs.shape[1])}
        certainty = probs.max(-1)
    else:
        given = np.array(labels)
        groups = {name: given == name for name in sorted(set(labels))}
        certainty = np.full(count, 0.7)
    shares = {name: rows.mean() for name, rows in groups.items()}
    x, y, axis_labels = _plane(codes)
    shown = np.linspace(0, count - 1, min(count, LARGEST_MAP)).astype(int)
    figure = Figure(figsize=(7, 6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    colors = colormaps["tab10" if len(groups) <= 10 else "turbo"]
    points = np.zeros((count, 4))
    for i, (name, rows) in enumerate(groups.items()):
        color = colors(i) if len(groups) <= 10 else colors(i / (len(groups) - 1))
        points[rows] = color
        if i < LONGEST_LEGEND:  # a component without rows too: that it is empty is worth knowing
            axes.scatter([], [], s=25, color=color, linewidths=0, label=f"{name[:24]} ({_share(shares[name])})")
    points[:, 3] = 0.15 + 0.75 * certainty  # fainter where the component is uncertain
    # All groups in one cloud, in the order of the rows: drawn one after another, the last would hide the others.
    axes.scatter(x[shown], y[shown], s=10 if len(shown) < 5000 else 4, c=points[shown], linewidths=0)
    by = "most probable component" if labels is None else "label"
    axes.set(xlabel=axis_labels[0], ylabel=axis_labels[1], title=f"Latent map of {_rows(count)} by {by}")
    if codes.shape[1] > 1:  # distances mean the same in both directions
        axes.set_aspect("equal", adjustable="datalim")
    title = ("component" if labels is None else "label") + (
        f" (first {LONGEST_LEGEND} of {len(groups)})" if len(groups) > LONGEST_LEGEND else ""
    )
    axes.legend(title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handletextpad=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    # Without the date, and with fixed names in the SVG, the same codes give the same file.
    metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with rc_context({"svg.hashsalt": "tenfold"}):
        figure.savefig(buffer, format=kind, metadata=metadata)
    atomic_write(path, buffer.getvalue())


def _share(share: float) -> str:
    """A share in percent; what is empty and what is nearly so differ."""
    return "none" if share == 0 else "<1%" if share < 0.01 else f"{share:.0%}"


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"


def _plane(codes: Float[np.ndarray, "rows D"]) -> tuple[np.ndarray, np.ndarray, tuple[str, str]]:
    if codes.shape[1] == 1:
        rank = codes[:, 0].argsort().argsort()
        return codes[:, 0], (rank + 0.5) / len(rank), ("code", "share of rows below")
    if codes.shape[1] == 2:
        return codes[:, 0], codes[:, 1], ("code 1", "code 2")
    centred = codes - codes.mean(0)
    strength, axes = np.linalg.eigh(centred.T @ centred)
    first, second = (centred @ axes[:, -i] for i in (1, 2))
    shares = strength[:-3:-1].clip(0) / max(float(strength.sum()), 1e-30)
    x_label, y_label = (f"principal axis {i + 1} ({share:.0%} of the spread)" for i, share in enumerate(shares))
    return first, second, (x_label, y_label)
