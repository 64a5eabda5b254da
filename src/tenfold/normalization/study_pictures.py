"""The study's two pictures: error against batch size, as figure 5 of Wu & He 2018, and error against epochs."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

from tenfold.claims.verdict import Interval
from tenfold.errors import InputError
from tenfold.files import atomic_write
from tenfold.normalization.study_table import Cell, StudyTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by readers with any kind of colour vision; one a normalization in all pictures
COLORS = {"batch": "#0072B2", "group": "#D55E00", "layer": "#009E73", "instance": "#CC79A7", "none": "#666666"}
MARKERS = {"batch": "o", "group": "s", "layer": "^", "instance": "v", "none": "D"}
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
WIDE = 8.0  # times the smallest error; beyond, a linear axis would press the small ones into one line


def draw_errors(table: StudyTable, path: Path) -> None:
    """Error at the end of training against batch size, a line a normalization, with 95 % intervals as bars.

    Args:
        table: The study.
        path: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        InputError: Another suffix.
    """
    figure = _figure(6.4, 4.4)
    axes = figure.add_subplot()
    sizes = list(table.batch_sizes)
    floor, top, zero = _range(table)
    for number, norm in enumerate(table.norms):
        points = [(place, interval) for place, size in enumerate(sizes) if (interval := table.interval(norm, size))]
        if not points:
            continue
        color = COLORS[norm]
        if all(run.batch_size is None for run in table.runs(norm, sizes[0])):  # one line, one band
            interval = points[0][1]
            ends = _percent_range(interval, floor)
            axes.axhline(100 * interval.center, color=color, linewidth=1.5, label=_label(table, norm))
            if ends is not None:
                axes.axhspan(*ends, color=color, alpha=0.1, linewidth=0)
            continue
        shift = 0.06 * (number - (len(table.norms) - 1) / 2) if table.real_batch else 0.0  # bars beside each other
        x = [place + shift for place, _ in points]
        y = [100 * interval.center for _, interval in points]
        axes.plot(x, y, label=_label(table, norm), color=color, marker=MARKERS[norm], markersize=5, linewidth=1.5)
        for place, (_, interval) in zip(x, points, strict=True):
            ends = _percent_range(interval, floor)
            if ends is not None:
                axes.plot([place, place], ends, color=color, linewidth=1)
    exact = [(place, table.errors("batch", size, reestimated=True).values()) for place, size in enumerate(sizes)]
    exact = [(place, values) for place, values in exact if values]
    if exact and "batch" in table.norms:
        means = [100 * sum(values) / len(values) for _, values in exact]
        axes.plot(
            [place for place, _ in exact],
            means,
            color=COLORS["batch"],
            linestyle=":",
            linewidth=1.5,
            label="batch, exact statistics",
        )
    for norm in table.norms:
        failed = [
            place for place, size in enumerate(sizes) if any(run.outcome == "failed" for run in table.runs(norm, size))
        ]
        if failed:
            axes.plot(
                failed, [top] * len(failed), "x", color=COLORS[norm], markersize=8, label=f"{norm}: cannot be trained"
            )
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlim(-0.4, len(sizes) - 0.6)
    what = "samples a step" if table.real_batch else f"samples that statistics are taken over, of {sizes[0]} a step"
    axes.set(xlabel=f"batch size ({what})", title=_title(table))
    _error_axis(axes, floor, top, zero)
    axes.legend(frameon=False)
    _write(figure, path)


def draw_curves(table: StudyTable, path: Path) -> None:
    """Error after each epoch, a panel a batch size, means over seeds.

    Args:
        table: The study.
        path: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        InputError: Another suffix.
    """
    sizes = table.batch_sizes
    columns = min(3, len(sizes))
    rows = math.ceil(len(sizes) / columns)
    from matplotlib.ticker import MaxNLocator

    figure = _figure(1.2 + 2.6 * columns, 0.9 + 2.3 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    floor, top, zero = _range(table, curves=True)
    for place, size in enumerate(sizes):
        axes = grid[place // columns][place % columns]
        for norm in table.norms:
            mean = _mean_curve(table.runs(norm, size))
            if mean:
                axes.plot(range(1, len(mean) + 1), mean, color=COLORS[norm], linewidth=1.5, label=_label(table, norm))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_title(f"batch size {size}", fontsize=9)
        _error_axis(axes, floor, top, zero, labelled=place % columns == 0)
        if place + columns >= len(sizes):
            axes.set_xlabel("epoch")
            axes.tick_params(labelbottom=True)
    for place in range(len(sizes), rows * columns):
        grid[place // columns][place % columns].set_axis_off()
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, len(labels)), frameon=False)
    figure.suptitle(_title(table), fontsize=10)
    _write(figure, path)


def check_picture_path(path: Path) -> str:
    """The kind of picture, png, svg or pdf.

    Raises:
        InputError: Another suffix.

    >>> check_picture_path(Path("errors.svg"))
    'svg'
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError("pictures are written as .png, .svg or .pdf", path=path)
    return kind


def _percent_range(interval: Interval, floor: float) -> tuple[float, float] | None:
    """The interval in per cent, cut at the axis, where a logarithm has no place for less; None for one seed."""
    if not math.isfinite(interval.low):
        return None
    return max(100 * interval.low, floor / 2), min(100 * interval.high, 100.0)


def _mean_curve(runs: list[Cell]) -> list[float]:
    """Mean error in per cent after each epoch that all runs came to."""
    curves = [run.errors for run in runs if run.errors]
    return [100 * sum(values) / len(values) for values in zip(*curves, strict=False)]


def _range(table: StudyTable, *, curves: bool = False) -> tuple[float, float, bool]:
    """Lowest error above zero, at least half an answer in a thousand, and the highest, in per cent; whether some are zero."""
    kinds = [(norm, size) for norm in table.norms for size in table.batch_sizes]
    if curves:
        shown = [error for kind in kinds for error in _mean_curve(table.runs(*kind))]
    else:
        shown = [100 * interval.center for kind in kinds if (interval := table.interval(*kind)) is not None]
    top = min(100.0, max(1.3 * max(shown, default=100.0), 1.0))
    low = min((value for value in shown if value > 0), default=top)  # without any, a linear axis
    return max(0.05, 0.7 * low), top, any(value == 0 for value in shown)


def _error_axis(axes: Axes, floor: float, top: float, zero: bool, *, labelled: bool = True) -> None:
    """A logarithmic axis if errors differ much; if some are zero, which has no logarithm, with a linear piece below."""
    if top > WIDE * floor:
        ticks = [tick for tick in TICKS if floor <= tick <= top]
        if zero:
            axes.set_yscale("symlog", linthresh=floor, linscale=0.3)
            ticks = [0.0, *ticks]
        else:
            axes.set_yscale("log")
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([], minor=True)
        axes.set_ylim(-0.1 * floor if zero else floor, 1.1 * top)
    else:
        axes.set_ylim(-0.01 * top if zero else 0, 1.1 * top)
    if labelled:
        axes.set_ylabel("error in the test part [%]")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label(table: StudyTable, norm: str) -> str:
    return norm if table.real_batch or norm == "batch" else f"{norm} (any size)"


def _title(table: StudyTable) -> str:
    settings = table.settings
    if "data" not in settings:
        return "Normalization and batch size"
    seeds = len({cell.seed for cell in table.cells})
    return f"{settings['model']} on {settings['data']}, {seeds} seed{'s' if seeds != 1 else ''}"


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _write(figure: Figure, path: Path) -> None:
    from matplotlib import rc_context

    kind = check_picture_path(path)
    buffer = io.BytesIO()
    # without the date, and with fixed names in the SVG, the same study gives the same file
    metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with rc_context({"svg.hashsalt": "tenfold"}):
        figure.savefig(buffer, format=kind, metadata=metadata)
    atomic_write(path, buffer.getvalue())
