"""The options of ``tenfold recommend`` that several of its commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def one_of(*choices: str) -> Callable[[str], str]:
    """A check of an option's value."""

    def check(value: str) -> str:
        if value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return check


Data = Annotated[Path, typer.Argument(help="Events, one a line: .csv, .tsv (.gz) or .parquet with a header.")]
OptionalData = Annotated[
    Path | None, typer.Argument(help="Events of users: what they had is left out, new users are folded in.")
]
Model = Annotated[Path, typer.Argument(help="Model folder, as written by 'fit'.")]
User = Annotated[
    str | None, typer.Option("--user-column", help="Column of user ids.", show_default="found by its name")
]
Item = Annotated[
    str | None, typer.Option("--item-column", help="Column of item ids.", show_default="found by its name")
]
Value = Annotated[
    str | None,
    typer.Option(
        "--value-column",
        help="Column of counts or ratings; 'none' counts every event once.",
        show_default="found by its name",
    ),
]
Time = Annotated[
    str | None, typer.Option("--time-column", help="Column of time stamps.", show_default="found by its name")
]
MinUser = Annotated[int, typer.Option("--min-user", min=0, help="Leave out users with fewer items.")]
MinItem = Annotated[int, typer.Option("--min-item", min=0, help="Leave out items with fewer users.")]
HalfLife = Annotated[
    float | None,
    typer.Option("--half-life", help="Days in which an event loses half its weight.", show_default="never"),
]
Factors = Annotated[int, typer.Option("--factors", "-k", min=1, help="Length of the vectors of users and items.")]
Regularization = Annotated[float, typer.Option("--regularization", "-l", help="Lambda, 0 or more.")]
Alpha = Annotated[float, typer.Option("--alpha", "-a", help="How fast confidence grows with the value.")]
Confidence = Annotated[
    str,
    typer.Option(
        "--confidence",
        callback=one_of("linear", "log", "raw"),
        help="linear 1 + alpha r, log 1 + alpha log(1 + r / epsilon), or raw (r itself).",
    ),
]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Of the confidence 'log'.")]
Unobserved = Annotated[float, typer.Option("--unobserved-weight", help="Weight of what was not observed.")]
Exponent = Annotated[
    float, typer.Option("--frequency-exponent", help="Nu: how lambda grows with the number of events, 0 to 1.")
]
Target = Annotated[
    str,
    typer.Option(
        "--target", callback=one_of("hkv", "rendle"), help="hkv (the 2008 objective) or rendle (that of 2022)."
    ),
]
Iterations = Annotated[int, typer.Option("--iterations", "-i", min=1, help="Passes over users and items.")]
Solver = Annotated[
    str,
    typer.Option(
        "--solver",
        callback=one_of("auto", "cholesky", "cg", "subspace"),
        help="auto, cholesky (exact), cg or subspace.",
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", callback=one_of("float32", "float64"), help="float32 or float64.")]
Split = Annotated[
    str,
    typer.Option(
        "--split",
        callback=one_of("hold-out", "leave-one-out", "time", "users"),
        help="hold-out (of each user's items), leave-one-out, time, or users (unseen, 80 % shown).",
    ),
]
Fraction = Annotated[float, typer.Option("--fraction", help="Part that is held out: of items, events or users.")]
