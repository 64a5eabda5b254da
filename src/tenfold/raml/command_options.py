"""Options that several commands of ``tenfold raml`` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tenfold.raml.data import Pairs

PairsFile = Annotated[
    Path, typer.Argument(help="Pairs, source and target with a tab between (.tsv, .txt), or a dictionary (.dict).")
]
Model = Annotated[Path, typer.Argument(help="Model folder, as written by 'fit'.")]
Stress = Annotated[bool, typer.Option("--stress", help="Keep the digits of stress in a dictionary's phones.")]
Tau = Annotated[float, typer.Option("--tau", min=0.0, help="Temperature of the payoff, for raml.")]
Scale = Annotated[
    str, typer.Option("--scale", help="Of the temperature: paper (an edit costs 1 + ln V) or raw (an edit costs 1).")
]
Payoff = Annotated[str, typer.Option("--payoff", help="edit, or hamming (substitutions alone).")]
Samples = Annotated[int, typer.Option("--samples", min=1, help="Targets drawn for each one.")]
Smoothing = Annotated[float, typer.Option("--smoothing", help="Label smoothing, for smoothing.")]
Candidates = Annotated[int, typer.Option("--candidates", min=1, help="Outputs drawn for each source, for risk.")]
Sharpness = Annotated[float, typer.Option("--sharpness", help="Alpha of minimum-risk training, for risk.")]
WarmShare = Annotated[float, typer.Option("--warm-share", help="Share of the steps by maximum likelihood before risk.")]
SourceTokens = Annotated[str, typer.Option("--source-tokens", help="character, space or regex:EXPRESSION.")]
TargetTokens = Annotated[
    str | None,
    typer.Option(
        "--target-tokens",
        help="character, space or regex:EXPRESSION.",
        show_default="space for a dictionary, else character",
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option(
        "--tokens", help="character, space or regex:EXPRESSION.", show_default="space for a dictionary, else character"
    ),
]
MinCount = Annotated[int, typer.Option("--min-count", min=1, help="Rarer tokens are read as one unknown token.")]
Network = Annotated[str, typer.Option("--network", help="gru (with attention) or transformer.")]
Width = Annotated[int, typer.Option("--width", min=1, help="Width of the layers.")]
Layers = Annotated[int, typer.Option("--layers", min=1, help="Layers of encoder and decoder.")]
Dropout = Annotated[float, typer.Option("--dropout", min=0.0, max=0.9, help="While training.")]
Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs", min=1, help="Passes over the data.", show_default="as many as make 1,000 steps, at least 20"
    ),
]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, help="Steps; with --epochs, what ends first.", show_default="open")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Pairs a step.")]
LearningRate = Annotated[float, typer.Option("--learning-rate", help="Adam's, at the start.")]
Beam = Annotated[int, typer.Option("--beam", min=1, help="Prefixes that beam search keeps; 1 is greedy.")]


def target_kind(given: str | None, pairs: Path) -> str:
    """The kind of the targets' tokens: as given, else the phones of a dictionary, else characters."""
    from tenfold.raml.data import is_dictionary

    return given or ("space" if is_dictionary(pairs) else "character")


def check_kinds(source_tokens: str, target_tokens: str) -> None:
    """Refuses unknown kinds of tokens, naming the option."""
    from tenfold.errors import InputError
    from tenfold.raml.data import check_tokens

    for option, kind in (("--source-tokens", source_tokens), ("--target-tokens", target_tokens)):
        try:
            check_tokens(option, kind)
        except ValueError as error:
            raise InputError(str(error)) from None


def many_numbers(option: str, given: str) -> list[float]:
    """Numbers with commas between.

    >>> many_numbers("--taus", "0.6, 0.7")
    [0.6, 0.7]
    """
    from tenfold.errors import InputError

    try:
        return [float(number) for number in given.split(",") if number.strip()]
    except ValueError:
        raise InputError(f"{option} {given!r} must be numbers separated by commas, such as 0.6,0.7") from None


def keep_input(out: Path, *read: Path) -> None:
    """Refuses to write over what is about to be read."""
    from tenfold.errors import InputError

    if out.exists() and any(file.exists() and out.samefile(file) for file in read):
        raise InputError("this is what would be read; give --out another name", path=out)


def known_targets(pairs: Pairs, kind: str, tokens: tuple[str, ...]) -> int:
    """How many pairs have a target of which the model can say every token."""
    from tenfold.raml.data import token_rows

    known = set(tokens)
    return sum(known.issuperset(row) for row in token_rows(pairs, "target", kind))
