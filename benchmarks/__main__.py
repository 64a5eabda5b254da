"""``python -m benchmarks AREA``: run an area's cases and show Tenfold and its peers side by side."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.case import areas, load_cases
from benchmarks.contestant import thread_environment
from benchmarks.measure import Row, measure
from benchmarks.results import KEPT, as_json, show, update_results

WIDTH = 180  # of a table that goes to a file or pipe


def run(
    area: Annotated[str, typer.Argument(help=f"One of: {', '.join(areas())}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter turns, and only the quick cases.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each contestant (3 with --quick).")] = 15,
    threads: Annotated[int, typer.Option(min=1, help="Threads for every contestant.")] = 1,
    case: Annotated[str, typer.Option(help="Only the cases whose name contains this text.")] = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PYTHON", help="A contestant with an environment of its own, and its interpreter."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything measured to this file.")] = None,
    update: Annotated[
        bool, typer.Option("--update-results", help="Keep the figures and write benchmarks/RESULTS.md anew.")
    ] = False,
) -> None:
    """Time Tenfold and its peers on the same work, in turns, with the same number of threads."""
    os.environ.update(thread_environment(threads))  # before numpy or torch is imported
    messages = Console(stderr=True)
    try:
        cases = [one for one in load_cases(area) if case in one.name and (one.quick or not quick)]
        pythons = _interpreters(peer or [], {name for one in cases for name in one.contestants()})
    except ValueError as error:
        messages.print(f"benchmarks: {error}", markup=False)
        raise typer.Exit(2) from error
    if not cases:
        messages.print(f"benchmarks: no case of {area} contains {case!r}", markup=False)
        raise typer.Exit(2)

    repeats = min(repeats, 3) if quick else repeats
    rows: list[Row] = []
    with messages.status("") as status:
        for one in cases:
            rows += measure(
                area,
                one,
                repeats=repeats,
                threads=threads,
                turn_seconds=0.02 if quick else 0.1,
                pythons=pythons,
                on_turn=status.update,
            )
    text = as_json(
        area,
        rows,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=_machine(),
        settings={"threads": threads, "turns": repeats, "quick": "yes" if quick else "no"},
    )
    show(Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH), _parsed(text))
    if json_file is not None:
        json_file.write_text(text, encoding="utf-8")
    if update:
        KEPT.mkdir(exist_ok=True)
        (KEPT / f"{area}.json").write_text(text, encoding="utf-8")
        update_results()


def _interpreters(options: Sequence[str], known: set[str]) -> dict[str, str]:
    pythons = {}
    for option in options:
        name, equals, python = option.partition("=")
        if not equals or not python:
            raise ValueError(f"--peer {option}: give NAME=/path/to/python")
        if name not in known:
            raise ValueError(f"--peer {option}: no contestant {name!r}; there are: {', '.join(sorted(known))}")
        pythons[name] = python
    return pythons


def _machine() -> dict[str, object]:
    from tenfold.runtime import describe_machine

    return dict(describe_machine())


def _parsed(text: str) -> dict[str, object]:
    import json

    parsed: dict[str, object] = json.loads(text)
    return parsed


if __name__ == "__main__":
    typer.run(run)
