"""The command ``tenfold reproduce``: measures the papers' claims and writes the report."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tenfold.areas import AREAS

app = typer.Typer(add_completion=False)


class Scale(StrEnum):
    """The choices of ``--scale``."""

    smoke = "smoke"
    quick = "quick"
    full = "full"


def _area_names() -> list[str]:
    return [area.name for area in AREAS]


@app.command()
def reproduce(
    areas: Annotated[
        list[str] | None,
        typer.Argument(metavar="[AREA]...", help="Areas to run; all if none is given.", autocompletion=_area_names),
    ] = None,
    claim: Annotated[list[str] | None, typer.Option(metavar="ID", help="Run this claim only; may be repeated.")] = None,
    scale: Annotated[
        Scale,
        typer.Option(help="smoke: tests that it runs, in about a minute. quick: minutes. full: the published setting."),
    ] = Scale.quick,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds a claim.", show_default="each claim's own")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes.", show_default="one a core")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for index.html and report.json.")] = Path("report"),
    list_only: Annotated[bool, typer.Option("--list", help="Show the claims and run nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Measure again what is known from earlier runs.")
    ] = False,
) -> None:
    """Measure whether the papers' claims hold, and write a report.

    Exit code 0 if every claim that should hold does or is inconclusive, 1 if one does not or ended with an error. An
    interrupted run goes on where it stopped.
    """
    from tenfold.claims.selection import select_claims

    claims, notes = select_claims(areas or (), claim or (), None if list_only else scale.value)
    if list_only:
        from tenfold.claims.outcome import show_claims

        show_claims(claims, json=json)
        return
    from tenfold.claims.live import live_progress
    from tenfold.claims.outcome import exit_code, show_results
    from tenfold.claims.report import write_report
    from tenfold.claims.runner import run_claims
    from tenfold.errors import InputError

    if out.exists() and not out.is_dir():
        raise InputError("this is a file; --out is the folder of the report", path=out)
    with live_progress() as on_progress:
        results = run_claims(claims, scale=scale.value, seeds=seeds, jobs=jobs, fresh=no_cache, on_progress=on_progress)
    page = write_report(results, out, notes=notes)
    show_results(results, page, notes=notes, json=json)
    raise typer.Exit(exit_code(results))
