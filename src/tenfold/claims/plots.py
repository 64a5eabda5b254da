"""Figures of the report as inline SVG that take the page's font and colours: one set for light, dark and print.

matplotlib draws with placeholder colours, which are then replaced by the page's CSS variables (``--s1`` to ``--s6`` for
curves, ``--ink`` for text and axes, ``--rule`` for the grid). Text stays text. Every id gets the figure's own prefix.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tenfold.claims.claim import Curve, Plot
from tenfold.claims.verdict import Judgement
from tenfold.claims.wording import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

INK, RULE = "#fe00a0", "#fe00a1"
SERIES = tuple(f"#fe000{index}" for index in range(1, 7))
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 2), (3, 1, 1, 1))
"""Dash patterns in line widths: curves differ in more than colour."""

INCHES = (3.9, 2.75)
FEW_POINTS = 25  # up to here a line shows its points


@dataclass(frozen=True)
class Figure:
    """A drawn plot.

    Args:
        svg: The ``<svg>`` element.
        legend: Name and swatch (an ``<svg>`` element) of each curve.
        note: How several seeds were drawn; empty for one seed.
    """

    svg: str
    legend: tuple[tuple[str, str], ...]
    note: str


def draw(plots: Sequence[Plot], prefix: str) -> Figure:
    """Draws one plot from the same plot of each seed.

    Args:
        plots: The plot as each seed gave it, at least one; the first gives title, labels and kind.
        prefix: Unique among the figures of a page; letters, digits and hyphens.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    plot = plots[0]
    names = list(dict.fromkeys(name for each in plots for name in each.curves))
    merged = {name: merge([each.curves[name] for each in plots if name in each.curves]) for name in names}
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": prefix,
        "text.parse_math": False,
        "font.family": ["DejaVu Sans"],
        "font.size": 9,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
    }
    buffer = io.StringIO()
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the page's font has its own glyphs
        canvas = Canvas(figsize=INCHES, layout="constrained")
        FigureCanvasSVG(canvas)
        axes = canvas.add_subplot()
        for index, (name, curves) in enumerate(merged.items()):
            for curve in curves:
                _draw_curve(axes, plot, curve, index, len(merged), alone=len(curves) == 1, name=name)
        _dress(axes, plot)
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    swatches = tuple((name, _swatch(plot, index)) for index, name in enumerate(names))
    return Figure(_inline(buffer.getvalue(), prefix, _description(plot, merged)), swatches, _note(len(plots), merged))


def merge(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """One mean curve with the range of the seeds as its band, where all x agree; else the curves as they are.

    Bands that the curves bring along are averaged instead. Curves that are equal need no band.

    >>> merge([Curve([1.0, 2.0], [0.0, 4.0]), Curve([1.0, 2.0], [2.0, 4.0])])[0]
    Curve(x=(1.0, 2.0), y=(1.0, 4.0), low=(0.0, 4.0), high=(2.0, 4.0))
    >>> len(merge([Curve([1.0, 2.0], [0.0, 4.0]), Curve([1.0, 3.0], [2.0, 4.0])]))
    2
    """
    first = curves[0]
    if any(curve.x != first.x for curve in curves):
        return tuple(curves)
    if all(curve == first for curve in curves):
        return (first,)
    ys = list(zip(*(curve.y for curve in curves), strict=True))
    mean = Curve(first.x, [_mean(y) for y in ys])
    lows = [curve.low for curve in curves if curve.low is not None]
    highs = [curve.high for curve in curves if curve.high is not None]
    if len(lows) == len(curves):
        low = [_mean(values) for values in zip(*lows, strict=True)]
        high = [_mean(values) for values in zip(*highs, strict=True)]
    else:
        low, high = [min(y) for y in ys], [max(y) for y in ys]
    return (replace(mean, low=low, high=high),)


def interval_strip(judgement: Judgement) -> str:
    """A small picture of a judgement: the seeds as dots, the interval as a bar, and the threshold with its right side.

    Args:
        judgement: What to draw.

    Returns:
        An ``<svg>`` element as wide as its place, or nothing if there is no finite number to draw.
    """
    criterion, interval = judgement.criterion, judgement.interval
    if interval is None or not math.isfinite(criterion.threshold):
        return ""
    bounded = math.isfinite(interval.low) and math.isfinite(interval.high)
    shown = [*judgement.values, criterion.threshold, *([interval.low, interval.high] if bounded else [])]
    low, high = min(shown), max(shown)
    span = (high - low) or abs(high) or 1.0

    def place(value: float) -> float:
        return 7 + 86 * (value - low) / span

    threshold = place(criterion.threshold)
    left, width = (0.0, threshold) if criterion.relation == "at most" else (threshold, 100 - threshold)
    anchor = "start" if threshold < 25 else "end" if threshold > 75 else "middle"
    label = html.escape(f"threshold {number_text(criterion.threshold)}")
    parts = [
        f'<rect class="right-side" x="{left:.2f}%" width="{width:.2f}%" y="4" height="30" rx="3"/>',
        '<line class="axis" x1="0" x2="100%" y1="19" y2="19"/>',
        f'<line class="threshold" x1="{threshold:.2f}%" x2="{threshold:.2f}%" y1="2" y2="36"/>',
        f'<text x="{threshold:.2f}%" y="49" text-anchor="{anchor}">{label}</text>',
    ]
    if bounded:
        ends = f'x1="{place(interval.low):.2f}%" x2="{place(interval.high):.2f}%"'
        parts.append(f'<line class="interval" {ends} y1="19" y2="19"/>')
    parts += [f'<circle cx="{place(value):.2f}%" cy="19" r="3.5"/>' for value in judgement.values]
    center = place(interval.center)
    parts.append(f'<line class="center" x1="{center:.2f}%" x2="{center:.2f}%" y1="11" y2="27"/>')
    seeds = ", ".join(number_text(value) for value in judgement.values)
    label = html.escape(f"{criterion.number} by seed: {seeds}; {criterion}", quote=True)
    return f'<svg class="strip" width="100%" height="54" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _draw_curve(axes: Axes, plot: Plot, curve: Curve, index: int, count: int, *, alone: bool, name: str) -> None:
    color = SERIES[index % len(SERIES)]
    errors = None
    if curve.low is not None and curve.high is not None:
        below = [max(y - low, 0.0) for y, low in zip(curve.y, curve.low, strict=True)]
        above = [max(high - y, 0.0) for y, high in zip(curve.y, curve.high, strict=True)]
        errors = (below, above)
    if plot.kind == "bar":
        width = 0.8 / count
        x = [position - 0.4 + width * (index + 0.5) for position in curve.x]
        axes.bar(x, curve.y, width=width * 0.92, color=color, alpha=0.85)
        if errors:
            axes.errorbar(x, curve.y, yerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    elif plot.kind == "scatter":
        axes.errorbar(
            curve.x,
            curve.y,
            yerr=errors,
            fmt="osD^v<"[index % 6],
            color=color,
            markersize=3.2,
            elinewidth=0.8,
            alpha=0.8,
        )
    else:
        few = len(curve.x) <= FEW_POINTS
        (line,) = axes.plot(
            curve.x,
            curve.y,
            color=color,
            linewidth=1.6 if alone else 0.9,
            alpha=1.0 if alone else 0.7,
            marker="o" if few else None,
            markersize=2.6,
        )
        dashes = DASHES[index % len(DASHES)]
        if dashes:
            line.set_dashes(dashes)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0)


def _dress(axes: Axes, plot: Plot) -> None:
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.x_log:
        axes.set_xscale("log")
        _log_ticks(axes.xaxis)
    if plot.y_log:
        axes.set_yscale("log")
        _log_ticks(axes.yaxis)
    if plot.ticks is not None:
        longest = max((len(tick) for tick in plot.ticks), default=0)
        slanted = longest * len(plot.ticks) > 40
        axes.set_xticks(
            range(len(plot.ticks)),
            list(plot.ticks),
            rotation=30 if slanted else 0,
            ha="right" if slanted else "center",
        )
    if plot.kind == "bar":
        axes.grid(visible=False, axis="x")


def _log_ticks(axis: Axis) -> None:
    """Powers of ten as plain text; inside two decades also 2 and 5 times them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    short = low > 0 and high / low < 100
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if short else (1.0,), numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _position: number_text(value)))
    axis.set_minor_formatter(NullFormatter())


def _inline(svg: str, prefix: str, description: str) -> str:
    """The ``<svg>`` element alone, with ids of its own, the page's font and colours, and as wide as its place."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", body)
    body = re.sub(r'(?:xlink:)?href="#([^"]+)"', rf'href="#{prefix}-\1"', body)
    body = re.sub(r"font-family:[^;\"]*;?\s*", "", re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", body))
    body = body.replace(INK, "var(--ink)").replace(RULE, "var(--rule)")
    for index, color in enumerate(SERIES, 1):
        body = body.replace(color, f"var(--s{index})")
    found = re.match(r"<svg[^>]*?viewBox=\"([^\"]+)\"[^>]*>", body)
    if found is None:
        raise RuntimeError("matplotlib wrote an SVG without viewBox")
    label = html.escape(description, quote=True)
    head = f'<svg class="plot" viewBox="{found[1]}" role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg">'
    return re.sub(r"\n\s*", "\n", head + body[found.end() :]).strip()


def _swatch(plot: Plot, index: int) -> str:
    color = f"var(--s{index % len(SERIES) + 1})"
    if plot.kind == "line":
        dashes = " ".join(f"{2 * length:g}" for length in DASHES[index % len(DASHES)])
        mark = f'<line x1="1" x2="25" y1="6" y2="6" stroke="{color}" stroke-width="2.5" stroke-dasharray="{dashes}"/>'
    elif plot.kind == "bar":
        mark = f'<rect x="7" y="0" width="12" height="12" rx="2" fill="{color}"/>'
    else:
        shapes = (
            '<circle cx="13" cy="6" r="4.5"',
            '<rect x="9" y="2" width="8" height="8"',
            '<path d="M13 0l6 6-6 6-6-6z"',
            '<path d="M13 1l5 10h-10z"',
            '<path d="M13 11l5-10h-10z"',
            '<path d="M8 6l10-5v10z"',
        )
        mark = f'{shapes[index % 6]} fill="{color}"/>'
    return f'<svg class="swatch" width="26" height="12" aria-hidden="true">{mark}</svg>'


def _description(plot: Plot, merged: Mapping[str, Sequence[Curve]]) -> str:
    parts = []
    for name, curves in merged.items():
        finite = [y for curve in curves for y in curve.y if math.isfinite(y)]
        if finite:
            parts.append(f"{name} from {number_text(min(finite))} to {number_text(max(finite))}")
    against = f" against {plot.x_label}" if plot.x_label else ""
    return f"{plot.title}: {plot.y_label}{against}; {', '.join(parts)}"


def _note(seeds: int, merged: Mapping[str, Sequence[Curve]]) -> str:
    if seeds == 1:
        return ""
    if any(len(curves) > 1 for curves in merged.values()):
        return f"One curve for each of {seeds} seeds."
    if any(curve.low is not None for curves in merged.values() for curve in curves):
        return f"Means over {seeds} seeds, with their range."
    return f"Equal for all {seeds} seeds."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
