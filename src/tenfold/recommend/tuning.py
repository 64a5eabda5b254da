"""Find good hyperparameters by successive halving: many candidates get few iterations, the best of them more.

Jamieson and Talwalkar 2016, *Non-stochastic best arm identification and hyperparameter optimization*: after each round
the better third goes on, with three times the iterations. Alternating least squares shows early which settings are hopeless,
so that most of the work goes where it counts. Every trial is written to a log; a run that ended early goes on from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from tenfold.errors import InputError
from tenfold.files import atomic_write
from tenfold.recommend.evaluation import is_better

Parameters = dict[str, float | int]
Measure = Callable[[Parameters, int], Mapping[str, float]]
REDUCTION = 3

SPACE: Mapping[str, tuple[str, float, float]] = {
    "factors": ("whole", 16, 128),
    "regularization": ("log", 1e-3, 100.0),
    "alpha": ("log", 0.1, 100.0),
    "frequency_exponent": ("even", 0.0, 1.0),
}
"""Where candidates are drawn: name to (kind, lowest, highest); kinds are "log", "even" and "whole" (log, rounded)."""


class Attempt(TypedDict):
    """One line of the log: a candidate, how long it was trained, what came out."""

    candidate: int
    iterations: int
    parameters: Parameters
    metrics: dict[str, float]


def draw_candidates(
    count: int, space: Mapping[str, tuple[str, float, float]] = SPACE, *, seed: int = 0, first: Parameters | None = None
) -> list[Parameters]:
    """Candidates spread over the space; the same for the same seed.

    Args:
        count: How many.
        space: As `SPACE`; bounds that are equal fix a parameter.
        seed: Of the draw.
        first: A candidate to begin with, such as the defaults.

    Raises:
        ValueError: ``count`` below 1, or bounds that are out of order, or not positive on a log scale.

    >>> draw_candidates(2, {"alpha": ("log", 1.0, 1.0)})
    [{'alpha': 1.0}, {'alpha': 1.0}]
    """
    if count < 1:
        raise ValueError(f"count={count} must be at least 1")
    for name, (kind, low, high) in space.items():
        if not low <= high or (kind != "even" and low <= 0):
            raise ValueError(f"{name} from {low} to {high}: the bounds must be in order, and positive on a log scale")
    rng = np.random.default_rng(seed)
    # every stretch of each parameter is tried once (latin hypercube)
    places = {name: (rng.permutation(count) + rng.random(count)) / count for name in space}
    candidates = [{name: _at(places[name][i], *space[name]) for name in space} for i in range(count)]
    return [first, *candidates[1:]] if first is not None else candidates


def search_space(**ranges: str) -> dict[str, tuple[str, float, float]]:
    """`SPACE` with other ranges, each written ``LOW:HIGH`` or as one value.

    Raises:
        ValueError: No numbers, bounds out of order, or not positive on a log scale.

    >>> search_space(alpha="1:40", factors="64")
    {'alpha': ('log', 1.0, 40.0), 'factors': ('whole', 64.0, 64.0)}
    """
    space = {}
    for name, text in ranges.items():
        low, colon, high = text.partition(":")
        try:
            bounds = float(low), float(high if colon else low)
        except ValueError:
            raise ValueError(f"{name}: {text!r} is neither a number nor LOW:HIGH, such as 1:40") from None
        kind = SPACE[name][0]
        if bounds[0] == bounds[1] and kind == "log":
            kind = "even"  # one value, which may be zero
        space[name] = (kind, *bounds)
    draw_candidates(1, space)
    return space


def _at(place: float, kind: str, low: float, high: float) -> float | int:
    if kind == "even":
        return float(f"{low + (high - low) * place:.3g}")
    value = math.exp(math.log(low) + (math.log(high) - math.log(low)) * place)
    return round(value) if kind == "whole" else float(f"{value:.3g}")


def rounds(candidates: int, iterations: int, reduction: int = REDUCTION) -> list[tuple[int, int]]:
    """(candidates, iterations) of each round; the last has the full number of iterations.

    >>> rounds(27, 18)
    [(27, 2), (9, 6), (3, 18)]
    """
    stages = max(1, min(math.floor(math.log(candidates) / math.log(reduction) + 1e-9) + 1, 3))
    while stages > 1 and iterations // reduction ** (stages - 1) < 1:
        stages -= 1
    return [
        (max(1, candidates // reduction**stage), max(1, iterations // reduction ** (stages - 1 - stage)))
        for stage in range(stages)
    ]


def successive_halving(
    measure: Measure,
    candidates: Sequence[Parameters],
    *,
    metric: str,
    iterations: int = 15,
    log: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_progress: Callable[..., None] | None = None,
) -> list[Attempt]:
    """Try candidates round by round.

    Args:
        measure: Trains a candidate for a number of iterations and returns its metrics.
        candidates: Parameters to try.
        metric: The metric that decides; lower is better for ``mpr``, higher for others.
        iterations: Of the last round.
        log: File of attempts (JSON), rewritten after each.
        settings: What makes attempts comparable (data, split, seed); a log with other ones is refused.
        resume: Take attempts from the log where it has them.
        on_progress: Called as ``on_progress(n, best=...)`` after each attempt, with its iterations.

    Returns:
        All attempts, the best first: those of the last round, by the metric, then those of earlier rounds.

    Raises:
        InputError: The log is damaged, or of another run.

    >>> tries = successive_halving(lambda p, n: {"mpr": abs(p["alpha"] - 3)}, [{"alpha": a} for a in (1, 2, 3)], metric="mpr")
    >>> tries[0]["parameters"], tries[0]["iterations"]
    ({'alpha': 3}, 15)
    """
    described = dict(settings or {}, metric=metric, iterations=iterations, candidates=list(candidates))
    described = json.loads(json.dumps(described))  # as it will be read back
    done = _read_log(log, described) if resume and log is not None else []
    known = {(attempt["candidate"], attempt["iterations"]): attempt for attempt in done}
    alive = list(range(len(candidates)))
    everything: list[Attempt] = []
    best: float | None = None
    for count, length in rounds(len(candidates), iterations):
        alive = alive[:count]
        tried = []
        for number in alive:
            attempt = known.get((number, length))
            if attempt is None:
                found = {name: float(value) for name, value in measure(dict(candidates[number]), length).items()}
                attempt = Attempt(
                    candidate=number, iterations=length, parameters=dict(candidates[number]), metrics=found
                )
            tried.append(attempt)
            everything.append(attempt)
            if log is not None:
                atomic_write(log, json.dumps({"settings": described, "attempts": everything}, indent=1))
            value = attempt["metrics"][metric]
            best = value if best is None or is_better(metric, value, best) or best != best else best
            if on_progress is not None:
                on_progress(length, **{metric: best})
        tried.sort(key=lambda attempt: _order(metric, attempt))
        alive = [attempt["candidate"] for attempt in tried]
    return sorted(everything, key=lambda attempt: (-attempt["iterations"], _order(metric, attempt)))


def total_iterations(candidates: int, iterations: int) -> int:
    """Iterations that `successive_halving` trains in all."""
    return sum(count * length for count, length in rounds(candidates, iterations))


def _order(metric: str, attempt: Attempt) -> float:
    value = attempt["metrics"][metric]
    if value != value:
        return math.inf
    return value if metric == "mpr" else -value


def _read_log(log: Path, settings: Mapping[str, Any]) -> list[Attempt]:
    if not log.exists():
        return []
    try:
        content = json.loads(log.read_text(encoding="utf-8"))
        found, attempts = content["settings"], content["attempts"]
        for attempt in attempts:
            int(attempt["candidate"]), int(attempt["iterations"]), float(attempt["metrics"][settings["metric"]])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("is damaged; remove it, or leave out --resume", path=log) from error
    for name in settings:
        if found.get(name) != settings[name]:
            raise InputError(
                f"was made with {name}={_short(found.get(name))}, now {name}={_short(settings[name])}; "
                "leave out --resume to begin anew",
                path=log,
            )
    return list(attempts)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
