"""Objectives, temperatures and seeds beside each other: each trained on the same pairs, judged on the same others.

Every finished run is a file in the folder of the comparison, so that an interrupted comparison goes on where it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenfold.claims.verdict import confidence_interval
from tenfold.errors import InputError
from tenfold.files import atomic_write, write_table
from tenfold.raml.data import Pairs, join, token_rows
from tenfold.raml.model import Seq2SeqModel
from tenfold.raml.scores import REPLICATES, Score, scores
from tenfold.raml.training import OBJECTIVES, fit_pairs

SETTINGS, RUNS = "settings.json", "runs"
NUMBERS = ("error_rate", "word_error_rate", "wrong", "bleu", "loss")


@dataclass(frozen=True)
class Run:
    """What tells a training run from the others of a comparison.

    Args:
        objective: One of ``tenfold.raml.training.OBJECTIVES``.
        tau: Temperature; of ``"raml"`` only.
        seed: Of the run.
    """

    objective: str
    tau: float | None
    seed: int

    @property
    def name(self) -> str:
        """In tables and pictures.

        >>> Run("raml", 0.7, 0).name, Run("ml", None, 0).name
        ('raml 0.7', 'ml')
        """
        return self.objective if self.tau is None else f"{self.objective} {self.tau:g}"

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name.replace(' ', '-')}-seed-{self.seed}.json"


def planned(objectives: Sequence[str], taus: Sequence[float], seeds: int, first_seed: int = 0) -> list[Run]:
    """All runs, seed by seed, so that an early look sees every objective.

    Raises:
        ValueError: An unknown objective, nothing to run, or something twice.

    >>> [run.name for run in planned(["ml", "raml"], [0.6, 0.7], 1)]
    ['ml', 'raml 0.6', 'raml 0.7']
    """
    unknown = [objective for objective in objectives if objective not in OBJECTIVES]
    if unknown or not objectives:
        raise ValueError(f"objectives={','.join(objectives)!r}: give some of {', '.join(OBJECTIVES)}")
    if "raml" in objectives and not taus:
        raise ValueError("taus is empty; the objective raml needs a temperature at least")
    if len(set(objectives)) < len(objectives) or len(set(taus)) < len(taus):
        raise ValueError("an objective or a temperature is given twice")
    kinds = [(objective, tau) for objective in objectives for tau in (taus if objective == "raml" else [None])]
    return [Run(*kind, seed) for seed in range(first_seed, first_seed + seeds) for kind in kinds]


def held_out(pairs: Pairs, share: float, seed: int = 0) -> tuple[Pairs, Pairs]:
    """Pairs to train on and pairs to judge by, all pairs of a source in the same part.

    Raises:
        InputError: One of the parts would be empty.

    >>> [len(part) for part in held_out(Pairs(("a", "b", "a", "c"), ("1", "2", "3", "4")), 0.34)]
    [3, 1]
    """
    known = list(dict.fromkeys(pairs.sources))
    count = round(share * len(known))
    if not 0 < count < len(known):
        raise InputError(f"a share of {share:g} of {len(known)} sources leaves nothing to train on or to judge by")
    order = np.random.default_rng(seed).permutation(len(known))
    chosen = {known[number] for number in order[:count]}
    rows: tuple[list[int], list[int]] = ([], [])
    for row, source in enumerate(pairs.sources):
        rows[source in chosen].append(row)
    first, second = (
        Pairs(
            tuple(pairs.sources[row] for row in part),
            tuple(pairs.targets[row] for row in part),
            pairs.path,
            None if pairs.lines is None else tuple(pairs.lines[row] for row in part),
        )
        for part in rows
    )
    return first, second


def judge(
    model: Seq2SeqModel, pairs: Pairs, *, beam_size: int = 1, replicates: int = REPLICATES, seed: int = 0
) -> tuple[dict[str, Score], int]:
    """Scores of the model's outputs for each different source, against all of its targets; and how many sources.

    Args:
        model: Any.
        pairs: Sources and right answers; a source may be there several times.
        beam_size: 1 is greedy.
        replicates: Resamplings for the intervals.
        seed: Of these.

    Raises:
        InputError: Names the line of a pair that cannot be used.
    """
    targets = token_rows(pairs, "target", model.target_tokens)
    answers: dict[str, list[list[str]]] = {}
    first: dict[str, int] = {}
    for row, source in enumerate(pairs.sources):
        answers.setdefault(source, []).append(targets[row])
        first.setdefault(source, row)
    lines = None if pairs.lines is None else [pairs.lines[row] for row in first.values()]
    outputs = model.predict(list(answers), beam_size=beam_size, path=pairs.path, lines=lines)
    found = scores(
        list(answers.values()),
        [output.tokens for output in outputs],
        join=lambda tokens: join(tokens, model.target_tokens),
        replicates=replicates,
        seed=seed,
    )
    return found, len(answers)


def compare(
    pairs: Pairs,
    judged: Pairs,
    runs: Sequence[Run],
    *,
    folder: Path | None = None,
    resume: bool = False,
    beam_size: int = 1,
    on_run: Callable[[Run, dict[str, float]], None] = lambda run, numbers: None,
    **settings: Any,
) -> dict[Run, dict[str, float]]:
    """Trains and judges each run.

    Args:
        pairs: To train on.
        judged: To judge by.
        runs: From `planned`.
        folder: Where finished runs are kept; None keeps none.
        resume: Whether an earlier comparison is wanted there.
        beam_size: Of decoding.
        on_run: Called when a run is finished, or found.
        settings: For `fit_pairs`.

    Returns:
        Of each run ``error_rate``, ``word_error_rate``, ``wrong``, ``bleu`` (see `tenfold.raml.scores`), and ``loss``, the
        negative log-likelihood of the pairs of training in nats a token.

    Raises:
        InputError: Pairs that cannot be used, or a folder that holds something else.
    """
    finished: dict[Run, dict[str, float]] = {}
    if folder is not None:
        described = {
            **{name: value for name, value in settings.items() if name not in ("device", "progress")},
            "beam_size": beam_size,
            "pairs": len(pairs),
            "judged": len(judged),
        }
        finished = _open(folder, described, runs, resume)
    for run in runs:
        numbers = finished.get(run)
        if numbers is None:
            tau: dict[str, Any] = {} if run.tau is None else {"tau": run.tau}
            model, losses = fit_pairs(
                pairs,
                objective=run.objective,
                seed=run.seed,
                description=f"{run.name}, seed {run.seed}",
                **tau,
                **settings,
            )
            found, _ = judge(model, judged, beam_size=beam_size, replicates=0)
            numbers = {name: score.value for name, score in found.items()} | {"loss": losses["loss"]}
            if folder is not None:
                atomic_write(folder / RUNS / run.file, json.dumps(numbers))
            finished[run] = numbers
        on_run(run, numbers)
    return {run: finished[run] for run in runs}


def write_comparison(results: Mapping[Run, Mapping[str, float]], folder: Path) -> Path:
    """Writes ``comparison.csv``, a line a run; tau is NaN where there is none."""
    columns = {
        "objective": np.array([run.objective for run in results]),
        "tau": np.array([math.nan if run.tau is None else run.tau for run in results]),
        "seed": np.array([run.seed for run in results]),
    }
    columns |= {name: np.array([numbers[name] for numbers in results.values()]) for name in NUMBERS}
    return write_table(folder / "comparison.csv", columns)


def summary(
    results: Mapping[Run, Mapping[str, float]], *, percent: bool = True
) -> tuple[list[str], list[list[object]]]:
    """Heads and rows of the table: each objective's and temperature's means over the seeds, the error rate with its 95 % t
    interval.

    Args:
        results: From `compare`.
        percent: Whether rates are given in per cent, under heads for a person; otherwise plain numbers under plain names.
    """
    rows: list[list[object]] = []
    for name in dict.fromkeys(run.name for run in results):
        values = [numbers for run, numbers in results.items() if run.name == name]
        error = confidence_interval([one["error_rate"] for one in values], possible=(0.0, math.inf))
        ends = (error.low, error.high) if len(values) > 1 else (None, None)  # one run says nothing about the spread
        means = [sum(one[number] for one in values) / len(values) for number in ("wrong", "bleu", "loss")]
        parts = [value if value is None or not percent else 100 * value for value in (error.center, *ends, means[0])]
        rows.append([name, len(values), *parts, *means[1:]])
    if percent:
        return ["objective", "runs", "error rate [%]", "low", "high", "wrong [%]", "BLEU", "loss [nats a token]"], rows
    return ["objective", "runs", "error_rate", "low", "high", "wrong", "bleu", "loss"], rows


def _open(folder: Path, described: Mapping[str, Any], runs: Sequence[Run], resume: bool) -> dict[Run, dict[str, float]]:
    """The finished runs in a folder of the same comparison; a new folder is begun."""
    file = folder / SETTINGS
    described = json.loads(json.dumps(described))  # as it will be read back
    if folder.exists() and not folder.is_dir():
        raise InputError("this is a file; a folder is needed", path=folder)
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError("holds other files; give the comparison a folder of its own", path=folder)
        atomic_write(file, json.dumps(described, indent=1))
        return {}
    if not resume:
        raise InputError("holds an earlier comparison; --resume goes on with it, or give another folder", path=folder)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        differing = [name for name in described if found.get(name) != described[name]]
    except (ValueError, AttributeError) as error:
        raise InputError("is damaged; give another folder, or remove it", path=file) from error
    if differing:
        name = differing[0]
        raise InputError(
            f"this comparison was made with {name}={found.get(name)}, now {name}={described[name]}; give another folder",
            path=folder,
        )
    return {run: numbers for run in runs if (numbers := _read(folder / RUNS / run.file)) is not None}


def _read(file: Path) -> dict[str, float] | None:
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        numbers = {name: float(content[name]) for name in NUMBERS}
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError("not finite")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError("is damaged; remove it, and the run is made again", path=file) from error
    return numbers
