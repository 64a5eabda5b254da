"""The report: ``index.html``, one file that needs nothing else, and ``report.json`` with the same content.

Schema 1 of ``report.json``, an object: ``schema`` ("tenfold-report"), ``schema_version`` (1), ``tenfold`` (version),
``created`` (ISO 8601), ``scales``, ``seconds`` (all measurements), ``summary`` and ``advice`` (sentences), ``counts``
(by verdict), ``notes`` (list of sentences), ``machines`` (list of objects), and ``claims``: a list of objects with

- ``id``, ``area``, ``title``, ``statement``, ``paper``, ``published``, ``limits``, ``needs`` and ``expected``;
- ``scale``, ``verdict``, ``as_expected``, ``error`` (empty, or one line), ``seconds``, ``command`` (repeats it);
- ``criteria``: ``number``, ``relation``, ``threshold``, ``unit``, ``statistic``, ``verdict``, ``values`` (one a seed),
  ``center``, ``low``, ``high`` (null where one seed gives no interval), ``note``;
- ``numbers``: by name ``description``, ``unit``, ``statistic``, ``values``, ``center``, ``low``, ``high``, ``note``;
- ``plots``: by name ``title``, ``x_label``, ``y_label``, ``kind``, ``x_log``, ``y_log``, ``caption``, ``ticks`` and
  ``curves``: by name a list with ``seed``, ``x``, ``y``, ``low``, ``high``;
- ``seeds``: ``seed``, ``seconds``, ``cpu_seconds``, ``finished``, ``cached``, ``code``, ``error``, ``traceback``;
- ``machines`` (positions in the report's list) and ``versions``.

Numbers that are not finite are null. Within a schema version fields may be added; none is removed or
changes its meaning.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tenfold import __version__
from tenfold.claims.claim import Claim, Plot
from tenfold.claims.result import Result
from tenfold.claims.verdict import EVERYTHING, Interval, Verdict, confidence_interval
from tenfold.claims.wording import (
    SYMBOLS,
    advice,
    comparison_text,
    deciding,
    duration_text,
    expectation_text,
    interval_text,
    number_text,
    summary_text,
)

SCHEMA_VERSION = 1


def write_report(results: Iterable[Result], out: str | os.PathLike[str], *, notes: Sequence[str] = ()) -> Path:
    """Writes ``index.html`` and ``report.json`` into a folder, each in one step.

    Args:
        results: What ``run_claims`` gave, in the order of the report.
        out: The folder; it is made if it is not there, and other files in it stay.
        notes: Sentences that the report shows at its top, such as areas that could not be run.

    Returns:
        The path of ``index.html``.
    """
    from tenfold.files import atomic_write

    results = tuple(results)
    folder = Path(out)
    content = report_content(results, notes=notes)
    atomic_write(folder / "report.json", json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return atomic_write(folder / "index.html", report_html(results, content))


def report_content(results: Sequence[Result], *, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The content of ``report.json``, in JSON's types.

    Args:
        results: The results, in the order of the report.
        notes: Sentences for the top of the report.
    """
    machines: list[Mapping[str, object]] = []
    for run in (run for result in results for run in result.runs):
        if run.machine and run.machine not in machines:
            machines.append(run.machine)
    content: dict[str, Any] = {
        "schema": "tenfold-report",
        "schema_version": SCHEMA_VERSION,
        "tenfold": __version__,
        "created": datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        "scales": list(dict.fromkeys(result.scale for result in results)),
        "seconds": sum((result.seconds for result in results), 0.0),
        "summary": summary_text(results),
        "advice": advice(results),
        "counts": {verdict.value: sum(result.verdict is verdict for result in results) for verdict in Verdict},
        "notes": list(notes),
        "machines": machines,
        "claims": [_claim_content(result, machines) for result in results],
    }
    finite = _finite(content)
    assert isinstance(finite, dict)
    return finite


def _claim_content(result: Result, machines: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    claim = result.claim
    criteria = [
        {
            **asdict(judgement.criterion),
            "verdict": judgement.verdict.value,
            "values": judgement.values,
            **_interval_content(judgement.interval),
            "note": judgement.note,
        }
        for judgement in result.judgements
    ] or [
        {**asdict(criterion), "verdict": Verdict.ERROR.value, "values": [], **_interval_content(None), "note": ""}
        for criterion in claim.criteria
    ]
    return {
        **{name: getattr(claim, name) for name in ("id", "area", "title", "statement", "paper", "published", "limits")},
        "needs": claim.needs,
        "expected": claim.expected,
        "scale": result.scale,
        "verdict": result.verdict.value,
        "as_expected": result.as_expected,
        "error": result.error,
        "seconds": result.seconds,
        "command": result.command,
        "criteria": criteria,
        "numbers": {
            name: {
                "description": claim.descriptions.get(name, ""),
                "unit": unit_of(claim, name),
                "statistic": claim.statistic(name),
                "values": values,
                **_interval_content(_interval_or_none(claim, name, values)),
            }
            for name, values in measured_numbers(result).items()
        },
        "plots": {name: _plot_content(seeds) for name, seeds in measured_plots(result).items()},
        "seeds": [
            {
                name: getattr(run, name)
                for name in ("seed", "seconds", "cpu_seconds", "finished", "cached", "code", "error", "traceback")
            }
            for run in result.runs
        ],
        "machines": sorted({list(machines).index(run.machine) for run in result.runs if run.machine}),
        "versions": {name: version for run in result.runs for name, version in run.versions.items()},
    }


def measured_numbers(result: Result) -> dict[str, list[float]]:
    """Each number that all measured seeds gave, with its values in the order of the seeds."""
    found = [run.measurement.numbers for run in result.runs if run.measurement is not None]
    names = [name for name in found[0] if all(name in numbers for numbers in found)] if found else []
    return {name: [numbers[name] for numbers in found] for name in names}


def measured_plots(result: Result) -> dict[str, dict[int, Plot]]:
    """Each plot by seed."""
    plots: dict[str, dict[int, Plot]] = {}
    for run in result.runs:
        for name, plot in (run.measurement.plots if run.measurement is not None else {}).items():
            plots.setdefault(name, {})[run.seed] = plot
    return plots


def _plot_content(seeds: Mapping[int, Plot]) -> dict[str, Any]:
    first = next(iter(seeds.values()))
    content = {name: value for name, value in asdict(first).items() if name != "curves"}
    curves: dict[str, list[dict[str, Any]]] = {}
    for seed, plot in seeds.items():
        for name, curve in plot.curves.items():
            curves.setdefault(name, []).append({"seed": seed, **asdict(curve)})
    return {**content, "curves": curves}


def _interval_content(interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {"center": None, "low": None, "high": None, "note": ""}
    return asdict(interval)


def unit_of(claim: Claim, number: str) -> str:
    """The unit of a number: the claim's, or that of a criterion about it."""
    criteria = (criterion.unit for criterion in claim.criteria if criterion.number == number)
    return claim.units.get(number, "") or next(criteria, "")


def _interval_or_none(claim: Claim, name: str, values: Sequence[float]) -> Interval | None:
    try:
        return confidence_interval(values, claim.statistic(name), claim.ranges.get(name, EVERYTHING))
    except ValueError:  # not finite, or not possible: the judgement says so where it matters
        return None


def _finite(value: object) -> object:
    """The value in JSON's types, null where a number is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def report_html(results: Sequence[Result], content: Mapping[str, Any]) -> str:
    """The page, from the results and ``report_content`` of them.

    Args:
        results: The results.
        content: What ``report_content`` gave for them.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tenfold.claims", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number_text,
        duration=duration_text,
        interval=interval_text,
        comparison=comparison_text,
        expectation=expectation_text,
    )
    cards = [
        {"result": result, "content": claim, **_drawings(result, index)}
        for index, (result, claim) in enumerate(zip(results, content["claims"], strict=True))
    ]
    areas = [
        {**area, "cards": [card for card in cards if card["content"]["area"] == area["name"]]}
        for area in _areas(content)
    ]
    return environment.get_template("report.html").render(
        content=content, areas=areas, symbols=SYMBOLS, slug=_slug, deciding=deciding, created=content["created"][:10]
    )


def _areas(content: Mapping[str, Any]) -> list[dict[str, str]]:
    from tenfold.areas import AREAS

    known = {area.name: area for area in AREAS}
    names = list(dict.fromkeys(claim["area"] for claim in content["claims"]))
    return [
        {
            "name": name,
            "paper": known[name].paper if name in known else "",
            "summary": known[name].summary if name in known else "",
        }
        for name in names
    ]


def _drawings(result: Result, index: int) -> dict[str, Any]:
    """The pictures of a card, as markup, and its numbers, as text."""
    from markupsafe import Markup

    from tenfold.claims.plots import draw, interval_strip

    figures = []
    for number, seeds in enumerate(measured_plots(result).values()):
        plots = list(seeds.values())
        figure = draw(plots, f"c{index}p{number}")
        figures.append(
            {
                "title": plots[0].title,
                "caption": plots[0].caption,
                "svg": Markup(figure.svg),
                "legend": [(name, Markup(swatch)) for name, swatch in figure.legend],
                "note": figure.note,
            }
        )
    numbers = [
        {
            "name": name,
            "description": result.claim.descriptions.get(name, ""),
            "unit": unit_of(result.claim, name),
            "statistic": result.claim.statistic(name),
            "interval": _interval_or_none(result.claim, name, values),
            "values": values,
        }
        for name, values in measured_numbers(result).items()
    ]
    strips = [Markup(interval_strip(judgement)) for judgement in result.judgements]
    return {"figures": figures, "numbers": numbers, "strips": strips}


def _slug(verdict: str) -> str:
    return verdict.replace(" ", "-")
