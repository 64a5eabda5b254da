"""The options of ``tenfold recommend`` that several of its commands share, alone and in groups.

A group is a dataclass whose fields are options. A command under `grouped` that takes one has the options of its fields, and
gets them as one value.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tenfold.console.options import check_device

if TYPE_CHECKING:
    from tenfold.recommend.als import ImplicitALS
    from tenfold.recommend.evaluation import Trial
    from tenfold.recommend.interactions import Interactions


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
Device = Annotated[
    str,
    typer.Option(
        "--device",
        callback=check_device,
        help="cpu (compiled kernels), cuda, cuda:1, xpu or mps (torch, exact), or auto for a GPU if there is one.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a file hold what."""

    user: User = None
    item: Item = None
    value: Value = None

    def read(self, data: Path) -> Interactions:
        """The events, summed; time stamps are not kept."""
        from tenfold.recommend.command_inputs import read_events

        return read_events(data, self.user, self.item, self.value, None, undated=True)


@dataclass(frozen=True, kw_only=True)
class DatedEvents:
    """Which columns of a file hold what, and which events count how much."""

    user: User = None
    item: Item = None
    value: Value = None
    time: Time = None
    min_user: MinUser = 0
    min_item: MinItem = 0
    half_life: HalfLife = None

    @property
    def is_plain(self) -> bool:
        """Whether every event counts, whenever it was."""
        return self.half_life is None and self.min_user <= 1 and self.min_item <= 1

    @property
    def names(self) -> dict[str, str | None]:
        """Of the columns of users, items and values."""
        return {"user": self.user, "item": self.item, "value": self.value}

    def read(self, data: Path) -> Interactions:
        """The events, weighted by age, without rare users and items."""
        from tenfold.recommend.command_inputs import prepared, read_events

        return prepared(
            read_events(data, self.user, self.item, self.value, self.time), self.min_user, self.min_item, self.half_life
        )


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The parameters of the model that 'tune' searches."""

    factors: Factors = 64
    regularization: Regularization = 0.01
    alpha: Alpha = 1.0
    frequency_exponent: Exponent = 0.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of the model that 'tune' leaves alone."""

    confidence: Confidence = "linear"
    epsilon: Epsilon = 1.0
    unobserved_weight: Unobserved = 1.0
    target: Target = "hkv"
    iterations: Iterations = 15
    solver: Solver = "auto"
    dtype: Dtype = "float32"
    device: Device = "cpu"

    def model(self, *, engine: str = "local", **others: Any) -> ImplicitALS:
        """The model, checked before there is any work.

        Args:
            engine: What will fit it.
            others: Further parameters, or others in place of these.

        Raises:
            ValueError: A parameter out of range, a device that is not here or does not have the engine or solver.
        """
        from tenfold.recommend.als import ImplicitALS
        from tenfold.recommend.engines import chosen_engine

        parameters = {**dataclasses.asdict(self), **others}
        if parameters["device"] == "cpu":
            parameters["device"] = None  # compiled kernels are the way to use the CPU
        model = ImplicitALS(**parameters)
        model.check_parameters()
        chosen_engine(engine, model.device, model.solver)
        return model


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What is held out to judge by."""

    split: Split = "hold-out"
    fraction: Fraction = 0.2

    def trial(self, events: Interactions, seed: int) -> Trial:
        """The events, divided."""
        from tenfold.recommend.evaluation import make_trial

        return make_trial(events, self.split, fraction=self.fraction, random_state=seed)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of the fields in place of each parameter that is a group.

    >>> @grouped
    ... def show(data: Data, columns: Columns) -> None:
    ...     print(data, columns.item)
    >>> list(inspect.signature(show).parameters)
    ['data', 'user', 'item', 'value']
    >>> show(data="plays.csv", user=None, item="song", value=None)
    plays.csv song
    """
    parameters = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints, fields = get_type_hints(kind, include_extras=True), dataclasses.fields(kind)
        groups[parameter.name] = parameter.annotation, [field.name for field in fields]
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
            for field in fields
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, (kind, names) in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in names})
        command(**given)

    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del vars(run)["__wrapped__"]
    return run
