"""What becomes of the measurements: a table on the terminal, JSON, and ``RESULTS.md`` from the kept JSON files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row

FOLDER = Path(__file__).parent
KEPT = FOLDER / "results"
COLUMNS = ("case", "contestant", "wall", "CPU", "spread (wall, CPU)", "memory", "ours/its wall", "ours/its CPU", "goal")


def as_json(
    area: str, rows: Sequence[Row], *, date: str, machine: Mapping[str, object], settings: Mapping[str, object]
) -> str:
    """Everything measured, every turn included, as one JSON document."""
    document = {
        "area": area,
        "date": date,
        "machine": dict(machine),
        "settings": dict(settings),
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(document, indent=1, default=str) + "\n"


def show(console: Console, document: Mapping[str, Any]) -> None:
    """Print the table and the machine's line."""
    table = Table(title=f"{document['area']}: Tenfold and its peers", caption=machine_line(document))
    for column in COLUMNS:
        table.add_column(column, overflow="fold", justify="left" if column in COLUMNS[:2] else "right")
    previous = None
    for row in document["rows"]:
        table.add_row("" if row["case"] == previous else row["case"], *cells(row), end_section=False)
        previous = row["case"]
    console.print(table)


def cells(row: Mapping[str, Any]) -> list[str]:
    """One row's texts, from the contestant's name on."""
    if row["missing"]:
        return [row["contestant"], row["missing"], *[""] * (len(COLUMNS) - 3)]
    return [
        row["contestant"] + (" *" if row["place"] == "own process" else ""),
        f"{duration(row['wall']['median'])} [{duration(row['wall']['low'])}, {duration(row['wall']['high'])}]",
        f"{duration(row['cpu']['median'])} [{duration(row['cpu']['low'])}, {duration(row['cpu']['high'])}]",
        f"{row['wall']['spread']:.0%}, {row['cpu']['spread']:.0%}",
        "" if row["memory"] is None else size(row["memory"]),
        ratio(row["wall_ratio"]),
        ratio(row["cpu_ratio"]),
        "" if row["goal"] is None else f"{row['goal']:g}",
    ]


def duration(seconds: float) -> str:
    """Three figures and a unit.

    >>> duration(0.00123456), duration(2.0)
    ('1.23 ms', '2.00 s')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            return f"{_figures(seconds / factor)} {unit}"
    return f"{_figures(seconds / 1e-9)} ns"


def size(count: float) -> str:
    """Bytes in binary units.

    >>> size(0), size(5 * 2**20)
    ('0 KiB', '5.00 MiB')
    """
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= factor:
            return f"{_figures(count / factor)} {unit}"
    return f"{count / 1024:.0f} KiB"


def ratio(spread: Mapping[str, float] | None) -> str:
    """Median and extremes of a pairwise ratio."""
    if spread is None:
        return ""
    return f"{_figures(spread['median'])} [{_figures(spread['low'])}, {_figures(spread['high'])}]"


def _figures(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def machine_line(document: Mapping[str, Any]) -> str:
    """Date, settings and machine in one line."""
    parts = [str(document["date"])]
    for group in (document["settings"], document["machine"]):
        parts += [
            f"{key.replace('_', ' ')} {value}" for key, value in group.items() if isinstance(value, (str, int, float))
        ]
    return "; ".join(parts)


def markdown(documents: Iterable[Mapping[str, Any]]) -> str:
    """The page ``RESULTS.md``."""
    lines = [
        "# Benchmark results",
        "",
        "Written by `python -m benchmarks AREA --update-results`; do not edit. Contestants take turns on one machine.",
        "Times are of one call: the median over the turns and, in brackets, the extremes; spread is the interquartile",
        "range over the median; memory is what one call adds to the resident memory at its highest.",
        "Ratios are Tenfold's time divided by the contestant's, turn by turn: below 1 Tenfold is the faster.",
        "A star marks a contestant in a process of its own.",
    ]
    for document in documents:
        lines += ["", f"## {document['area']}", "", machine_line(document), ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
        notes: dict[str, str] = {}
        for row in document["rows"]:
            lines.append("| " + " | ".join([row["case"], *(cell.replace("|", "\\|") for cell in cells(row))]) + " |")
            if row["note"]:
                notes[row["case"]] = row["note"]
        lines += [f"\n{case}: {note}" for case, note in notes.items()]
    return "\n".join(lines) + "\n"


def update_results(kept: Path = KEPT, page: Path = FOLDER / "RESULTS.md") -> None:
    """Write the page anew from every JSON file that is kept."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(kept.glob("*.json"))]
    page.write_text(markdown(documents), encoding="utf-8")
