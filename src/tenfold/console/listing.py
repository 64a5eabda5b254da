"""``tenfold areas``: what the library has, and what of it is ready here."""

from __future__ import annotations

import typer

from tenfold.areas import AREAS, Area
from tenfold.console.options import Json
from tenfold.console.tables import show_table
from tenfold.errors import MissingExtraError

app = typer.Typer()


@app.command()
def areas(json: Json = False) -> None:
    """List the areas: the paper, what it does for you, how many of its claims are measured, what is installed."""
    if json:
        columns = ["area", "paper", "summary", "claims", "extra", "missing"]
        rows = [[a.name, a.paper, a.summary, claim_count(a), a.extra, a.missing()] for a in AREAS]
    else:
        columns = ["area", "paper", "what it does", "claims", "extra"]
        rows = [[a.name, a.paper, a.summary, claim_count(a), readiness(a)] for a in AREAS]
    show_table("Areas of Tenfold", columns, rows, json=json)


def claim_count(area: Area) -> int | None:
    """How many claims the area measures; None when an extra that they need is missing."""
    try:
        return len(area.claims())
    except MissingExtraError:
        return None
    except ModuleNotFoundError as error:
        if area.missing() or error.name == f"tenfold.{area.name}.claims":
            return None
        raise


def readiness(area: Area) -> str:
    """Whether the area's extra is installed, and how to install it.

    >>> readiness(Area("sums", "Gauss 1786", "Adds.", extra="sums", requires=("no_such_package",)))
    "missing: pip install 'tenfold[sums]'"
    >>> readiness(Area("sums", "Gauss 1786", "Adds."))
    'none needed'
    """
    if area.extra is None:
        return "none needed"
    return f"missing: pip install 'tenfold[{area.extra}]'" if area.missing() else f"{area.extra} installed"
