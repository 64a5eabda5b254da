"""The picture of a diagnosis: how far each layer is from what it was in training."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.errors import InputError
from tenfold.files import atomic_write

if TYPE_CHECKING:
    from tenfold.normalization.diagnosis import Diagnosis

SMALLEST = 1e-3  # standard deviations; less is drawn so
SERIES: tuple[tuple[str, str, str, Any], ...] = (
    ("gap", "gap: training against evaluation", "#c8452b", "o"),
    ("drift", "drift: running statistics against data", "#2b6cc8", "D"),
    ("batch_noise", "noise: one batch against data", "#8a8a8a", "|"),
)


def diagnosis_picture(path: Path, diagnosis: Diagnosis) -> None:
    """Draw gap, drift and batch noise of each layer, one line a layer in the order of the model, on a logarithmic axis.

    Layers with findings have a bold name and the number of findings beside it.

    Args:
        path: ``.png``, ``.svg`` or ``.pdf``.
        diagnosis: What ``diagnose`` returned.

    Raises:
        InputError: Another suffix, or no layer to draw.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError("a picture is written as .png, .svg or .pdf", path=path)
    rows = diagnosis.rows
    if not rows:
        raise InputError("the model has no layer that normalises by the batch, so there is nothing to draw", path=path)
    finite = [
        value for row in rows for value in (row.gap, row.drift, row.batch_noise) if value and math.isfinite(value)
    ]
    largest = 2 * max([1.0, *finite])
    figure = Figure(figsize=(8, 1.6 + 0.28 * len(rows)), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    places = range(len(rows))
    axes.hlines(places, SMALLEST, largest, color="#eeeeee", linewidth=1, zorder=0)
    for name, label, color, marker in SERIES:
        values = [(i, getattr(row, name)) for i, row in enumerate(rows) if getattr(row, name) is not None]
        shown = [min(max(value, SMALLEST), largest) for _, value in values]
        heights, size = [i for i, _ in values], 60 if marker == "|" else 26
        axes.scatter(shown, heights, s=size, color=color, marker=marker, label=label, clip_on=False, zorder=2)
    axes.axvline(1.0, color="#bbbbbb", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(SMALLEST, largest)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(places, [_label(row.name, len(row.findings)) for row in rows], fontsize=8)
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_fontweight("bold" if row.findings else "normal")
    axes.set_xlabel(f"standard deviations of the layer's output ({SMALLEST:g} or less at the left edge)")
    count = len(diagnosis.findings)
    found = "no findings" if not count else "1 finding" if count == 1 else f"{count} findings"
    figure.suptitle(f"Training against evaluation, {diagnosis.samples:,} samples: {found}", fontsize=11)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, pad=9)
    buffer = io.BytesIO()
    # Without the date, and with fixed names in the SVG, the same diagnosis gives the same file.
    metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with rc_context({"svg.hashsalt": "tenfold"}):
        figure.savefig(buffer, format=kind, metadata=metadata)
    atomic_write(path, buffer.getvalue())


def _label(name: str, findings: int) -> str:
    short = name if len(name) <= 40 else "..." + name[-37:]
    return f"{short} ({findings})" if findings else short
