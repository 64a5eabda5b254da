"""The picture of a comparison: the error rate of each objective and temperature, every seed a point."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from tenfold.errors import InputError
from tenfold.files import atomic_write
from tenfold.raml.comparison import Run

# Okabe and Ito's colours, told apart by readers with any kind of colour vision
COLORS = {"ml": "#666666", "raml": "#0072B2", "smoothing": "#E69F00", "risk": "#009E73"}
KINDS = ("png", "svg", "pdf")
WIDEST_SPREAD = 0.3  # of the points of one column, in columns


def check_picture(path: Path) -> None:
    """Raises an InputError unless a picture can be written under that name; to be asked before long work."""
    if path.suffix.lower().removeprefix(".") not in KINDS:
        raise InputError("a picture is written as .png, .svg or .pdf", path=path)


def draw_comparison(results: Mapping[Run, Mapping[str, float]], path: Path) -> None:
    """Draws the error rates: points are seeds, a line is their mean.

    Args:
        results: From `tenfold.raml.comparison.compare`.
        path: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        InputError: Another suffix.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    check_picture(path)
    names = list(dict.fromkeys(run.name for run in results))
    figure = Figure(figsize=(max(4.0, 1.0 + 0.9 * len(names)), 4.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for place, name in enumerate(names):
        runs = [run for run in results if run.name == name]
        values = [100 * results[run]["error_rate"] for run in runs]
        steps = range(len(values))
        spread = [WIDEST_SPREAD * (step / (len(values) - 1) - 0.5) if len(values) > 1 else 0.0 for step in steps]
        color = COLORS[runs[0].objective]
        axes.plot([place + shift for shift in spread], values, "o", color=color, markersize=5, alpha=0.8)
        mean = sum(values) / len(values)
        axes.plot([place - 0.3, place + 0.3], [mean, mean], color=color, linewidth=2)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set(ylabel="error rate [%], lower is better", title="Pairs that training has not seen")
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    kind = path.suffix.lower().removeprefix(".")
    # Without the date, and with fixed names in the SVG, the same results give the same file.
    metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with rc_context({"svg.hashsalt": "tenfold"}):
        figure.savefig(buffer, format=kind, metadata=metadata)
    atomic_write(path, buffer.getvalue())
