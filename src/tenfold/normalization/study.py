"""The study of Wu & He 2018, table 2 and figure 5, on any data and network: error by normalization and batch size.

Two questions can be asked. By default, as in the paper, each step takes the same number of examples, and the batch size is
the part of them that batch normalization takes its statistics over, as if each part lay on a GPU of its own: what differs is
normalization alone. Other normalizations do not see the split, so that one run stands for all sizes. With
``real_batch=True`` the batch size is that of a step, with the learning rate in proportion, as on a machine whose memory
holds no more: everything is trained at every size.

Each run depends on its own seed alone, and is kept as a file of its own when it ends; a study that was killed goes on
with the same numbers, and a finished one can be given more seeds, normalizations and sizes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tenfold.errors import InputError
from tenfold.normalization.data import LabelledData, Parts, split
from tenfold.normalization.models import CHANNELS_A_GROUP, MODELS, NORMS, norm_layer, offered_arguments, without_input
from tenfold.normalization.norm_replacement import replace_norms
from tenfold.normalization.study_folder import Run, keep_cell, open_folder
from tenfold.normalization.study_table import Cell, StudyTable
from tenfold.normalization.training import Settings, error_rate, steps_per_epoch, train_classifier
from tenfold.training import Interrupted, derived_seed
from tenfold.training.seeds import seeded

FEWEST_STEPS = 450  # enough for the small networks to settle
BATCH = 32  # to which the learning rate belongs, in the paper as here


@dataclass(frozen=True)
class Plan:
    """What a study has to do.

    Args:
        runs: Training runs, those done before left out.
        done: Runs found done.
        steps: Optimizer steps in all of them.
        seconds: Estimate of the time they take, from a few steps of each kind.
    """

    runs: int
    done: int
    steps: int
    seconds: float


def norm_study(
    data: LabelledData,
    model: str | Callable[..., nn.Module] = "auto",
    *,
    norms: Sequence[str] | None = None,
    batch_sizes: Sequence[int] = (2, 4, 8, 16, 32),
    seeds: int = 3,
    seed: int = 0,
    epochs: int | None = None,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    real_batch: bool = False,
    held_out: float = 0.2,
    channels_per_group: int = CHANNELS_A_GROUP,
    device: str = "cpu",
    model_name: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_plan: Callable[[Plan], Any] | None = None,
    on_progress: Callable[..., Any] | None = None,
) -> StudyTable:
    """Trains a network with each normalization at each batch size and seed.

    Args:
        data: Labelled examples; a part of each class is held out, another for each seed, unless they bring a test set.
        model: ``"small-conv"``, ``"resnet"``, ``"mlp"``; ``"auto"`` is the first for images and the last for tables; or a
            function that builds a network. It is given those of ``num_classes``, ``in_channels``, ``input_shape`` and
            ``norm`` (a function from channels to a layer) that it takes; without ``norm``, the normalizations in the
            network it gives are replaced.
        norms: Of ``"batch"``, ``"group"``, ``"layer"``, ``"instance"`` and ``"none"``. None: all four for images, and
            without ``"instance"`` for rows, where that would normalize single numbers.
        batch_sizes: Samples; unless `real_batch`, each divides the largest, which is the batch of a step.
        seeds: Runs of each kind, with the seeds ``seed``, ``seed + 1``, ...
        seed: The first seed.
        epochs: Passes; None for as many as make 450 steps of the largest batch, two at least.
        learning_rate: For steps of 32 examples; in proportion for others (section 4.1: 0.1 N / 32).
        momentum: Of SGD.
        weight_decay: On all parameters.
        real_batch: Take the batch size as that of a step.
        held_out: Share of the examples to test on.
        channels_per_group: Of group normalization.
        device: Where to train.
        model_name: What the model is called in the table; its function's name unless given.
        out: Folder in which each finished run is kept; None keeps nothing.
        resume: Go on from the runs in `out`.
        on_plan: Called with the `Plan` before the first step.
        on_progress: Called as ``on_progress(steps, norm=..., size=..., seed=...)``.

    Raises:
        ValueError: An argument out of range, or too few examples.
        InputError: `out` holds an earlier study and `resume` is False, or one with other settings; a network that does
            not fit the data.
        Interrupted: Ctrl-C; finished runs are kept.

    >>> from tenfold.normalization.data import dataset
    >>> table = norm_study(dataset("digits"), norms=["batch", "group"], batch_sizes=[2, 32], seeds=2, epochs=2)
    >>> [row[0] for row in table.rows()], table.batch_sizes, len(table.cells)
    (['batch', 'group'], (32, 2), 6)
    >>> table.difference("batch", "group", 2).center > 0.1  # statistics over two samples
    True
    """
    shape = tuple(data.inputs.shape[1:])
    chosen = _checked_norms(norms, shape)
    sizes = _checked_sizes(batch_sizes, real_batch)
    counts = (
        ("seeds", seeds, 1),
        ("seed", seed, 0),
        ("epochs", epochs, 1),
        ("channels_per_group", channels_per_group, 1),
    )
    for name, value, least in counts:
        if value is not None and value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if not learning_rate > 0:
        raise ValueError(f"learning_rate={learning_rate} must be positive")
    parts = split(data, held_out=held_out, seed=seed)
    per_epoch = steps_per_epoch(len(parts.labels), sizes[0])
    settings = Settings(
        epochs=epochs or max(2, -(-FEWEST_STEPS // per_epoch)),
        batch_size=sizes[0],
        learning_rate=learning_rate * sizes[0] / BATCH,
        momentum=momentum,
        weight_decay=weight_decay,
    )
    network = _networks(model, shape, len(data.classes), channels_per_group, sizes[0], real_batch)
    blocked = _try_out(network, chosen, sizes, parts, len(data.classes))
    described = {
        "data": data.name,
        "examples": len(data.labels),
        "test_examples": len(parts.test_labels),
        "classes": len(data.classes),
        "checksum": _checksum(data),
        "model": model_name or _model_name(model, shape),
        "channels_per_group": channels_per_group,
        "held_out": held_out if data.test is None else None,
        "real_batch": real_batch,
        **{key: value for key, value in asdict(settings).items() if not (real_batch and key == "batch_size")},
    }
    if real_batch:
        described["learning_rate"] = learning_rate  # of 32 examples
    folder = None if out is None else Path(out)
    wanted = [
        Run(norm, size if real_batch or norm == "batch" else None, number)
        for number in range(seed, seed + seeds)
        for norm in chosen
        for size in (sizes if real_batch or norm == "batch" else sizes[:1])
    ]
    finished = {} if folder is None else open_folder(folder, described, wanted, resume)

    def settings_of(run: Run) -> Settings:
        if not real_batch or run.batch_size is None:
            return settings
        return replace(settings, batch_size=run.batch_size, learning_rate=learning_rate * run.batch_size / BATCH)

    left = [run for run in wanted if run not in finished]
    if on_plan is not None:
        on_plan(_plan(left, len(finished), network, parts, settings_of, device))
    cells = dict(finished)
    try:
        for run in left:
            of_seed = parts if run.seed == seed else split(data, held_out=held_out, seed=run.seed)
            cells[run] = _train(run, network, _moved(of_seed, device), settings_of(run), on_progress)
            if folder is not None:
                keep_cell(folder, run, cells[run])
    except KeyboardInterrupt as stop:
        saved = "; the same command with --resume goes on" if folder is not None else ""
        raise Interrupted(f"stopped after {len(cells)} of {len(wanted)} runs{saved}") from stop
    return StudyTable(tuple(cells[run] for run in wanted), chosen, sizes, real_batch, described, blocked)


Network = Callable[[str, int | None], nn.Module]


def _networks(
    model: str | Callable[..., nn.Module],
    shape: tuple[int, ...],
    num_classes: int,
    channels_per_group: int,
    largest: int,
    real_batch: bool,
) -> Network:
    """A function that builds the network with a normalization, its statistics over so many samples."""
    if isinstance(model, str):
        name = ("small-conv" if len(shape) == 3 else "mlp") if model == "auto" else model
        if name not in MODELS:
            raise ValueError(f"model {model!r} is not one of auto, {', '.join(MODELS)}")
        built_in = MODELS[name]

    def build(norm: str, batch_size: int | None) -> nn.Module:
        part = None if real_batch or batch_size in (None, largest) else batch_size

        def layer(channels: int, axes: int = 0 if len(shape) == 1 else 2) -> nn.Module:
            return norm_layer(norm, channels, axes=axes, split=part, channels_per_group=channels_per_group)

        if isinstance(model, str):
            return built_in(shape, num_classes, layer)
        offers = {"num_classes": num_classes, "in_channels": shape[0], "input_shape": shape, "norm": layer}
        arguments = offered_arguments(model, offers)
        network = model(**arguments)
        return network if "norm" in arguments else replace_norms(network, layer)

    return build


def _try_out(
    network: Network, norms: Sequence[str], sizes: Sequence[int], parts: Parts, num_classes: int
) -> dict[str, tuple[str, ...]]:
    """Builds each network once, so that one that does not fit the data is refused before the work."""
    blocked = {}
    for norm in norms:
        model = network(norm, sizes[-1])
        example = parts.inputs[:2]
        try:
            with torch.no_grad():
                scores = model.eval()(example)
        except (RuntimeError, ValueError, TypeError) as error:
            raise InputError(
                f"the network does not take inputs of shape {tuple(example.shape[1:])}: {_one_line(error)}"
            ) from error
        if not isinstance(scores, torch.Tensor) or scores.shape != (2, num_classes):
            given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise InputError(
                f"the network gives {given} for 2 examples; a score for each of {num_classes} classes is needed"
            )
        if layers := without_input(model, example):
            blocked[norm] = layers
    return blocked


def _train(
    run: Run, network: Network, parts: Parts, settings: Settings, on_progress: Callable[..., Any] | None
) -> Cell:
    """One run; what cannot be trained with this normalization, such as one value a channel, is part of the result."""
    start = time.monotonic()
    steps = settings.epochs * steps_per_epoch(len(parts.labels), settings.batch_size)
    taken = 0
    size = "any" if run.batch_size is None else run.batch_size

    def step(n: int) -> None:
        nonlocal taken
        taken += n
        if on_progress is not None:
            on_progress(n, norm=run.norm, size=size, seed=run.seed)

    with seeded(derived_seed(run.seed, 2)):  # of weights, and of dropout in the user's network
        model = network(run.norm, run.batch_size).to(parts.inputs.device)
        try:
            history = train_classifier(model, parts, settings, seed=run.seed, on_step=step)
        except ValueError as error:  # torch's for one value a channel
            history, reason = None, _one_line(error)
    if on_progress is not None:
        on_progress(steps - taken)  # of a run that ended early
    if history is None:
        return Cell(run.norm, run.batch_size, run.seed, "failed", reason=reason)
    return Cell(
        run.norm,
        run.batch_size,
        run.seed,
        "trained" if history.diverged is None else "diverged",
        history.errors[-1],
        _reestimated(model, parts) if run.norm == "batch" and history.diverged is None else None,
        history.errors,
        history.losses,
        "" if history.diverged is None else f"the loss was not finite at step {history.diverged}",
        round(time.monotonic() - start, 3),
    )


def _reestimated(model: nn.Module, parts: Parts) -> float:
    """The error with the training part's exact moments in the place of running averages."""
    from tenfold.normalization.reestimation import reestimate

    reestimate(model, list(parts.inputs.split(500)))
    return error_rate(model, parts.test_inputs, parts.test_labels)


def _plan(
    left: Sequence[Run],
    done: int,
    network: Network,
    parts: Parts,
    settings_of: Callable[[Run], Settings],
    device: str,
) -> Plan:
    """Counts the steps, and times a few of each kind of run."""
    costs: dict[tuple[str, int | None], tuple[float, float]] = {}
    steps, seconds = 0, 0.0
    for run in left:
        settings = settings_of(run)
        count = settings.epochs * steps_per_epoch(len(parts.labels), settings.batch_size)
        kind = (run.norm, run.batch_size)
        if kind not in costs:
            costs[kind] = _costs(network(*kind), parts, settings.batch_size, device)
        steps += count
        seconds += count * costs[kind][0] + settings.epochs * costs[kind][1]
    return Plan(len(left), done, steps, seconds)


def _costs(model: nn.Module, parts: Parts, batch_size: int, device: str) -> tuple[float, float]:
    """Seconds a step, the fastest of three after two to start, and an evaluation; nothing for what cannot be trained."""
    few = 5 * batch_size
    start = _moved(replace(parts, inputs=parts.inputs[:few], labels=parts.labels[:few]), device)
    settings = Settings(epochs=5 // (len(start.labels) // batch_size), batch_size=batch_size, learning_rate=0.01)
    times: list[float] = []
    with seeded(0):
        try:
            train_classifier(
                model.to(device), start, settings, seed=0, on_step=lambda _: times.append(time.perf_counter())
            )
        except ValueError:
            return 0.0, 0.0
    before = time.perf_counter()
    error_rate(model, start.test_inputs, start.test_labels)
    evaluation = time.perf_counter() - before
    return min((later - earlier for earlier, later in pairwise(times[1:])), default=0.0), evaluation


def _checked_norms(norms: Sequence[str] | None, shape: tuple[int, ...]) -> tuple[str, ...]:
    rows = len(shape) == 1
    chosen = tuple(dict.fromkeys(norms if norms is not None else NORMS[: 3 if rows else 4]))
    for norm in chosen:
        if norm not in NORMS:
            raise ValueError(f"normalization {norm!r} is not one of {', '.join(NORMS)}")
    if rows and "instance" in chosen:
        raise ValueError("instance normalization of a table's rows would normalize single numbers; leave it out")
    if not chosen:
        raise ValueError(f"norms is empty; give some of {', '.join(NORMS)}")
    return chosen


def _checked_sizes(batch_sizes: Sequence[int], real_batch: bool) -> tuple[int, ...]:
    sizes = tuple(sorted(set(batch_sizes), reverse=True))
    if not sizes or sizes[-1] < 1:
        raise ValueError(f"batch_sizes={list(batch_sizes)} must be whole numbers of at least 1")
    odd = [size for size in sizes if sizes[0] % size]
    if odd and not real_batch:
        raise ValueError(
            f"batch size {odd[0]} does not divide {sizes[0]}, the batch of a step; give sizes that do, or a real batch"
        )
    return sizes


def _model_name(model: str | Callable[..., nn.Module], shape: tuple[int, ...]) -> str:
    if model == "auto":
        return "small-conv" if len(shape) == 3 else "mlp"
    return model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)


def _checksum(data: LabelledData) -> str:
    digest = hashlib.sha256()
    for part in (data, data.test):
        if part is not None:
            digest.update(part.inputs.contiguous().numpy().tobytes())
            digest.update(part.labels.numpy().tobytes())
    return digest.hexdigest()[:16]


def _moved(parts: Parts, device: str) -> Parts:
    if device == "cpu":
        return parts
    return Parts(
        parts.inputs.to(device), parts.labels.to(device), parts.test_inputs.to(device), parts.test_labels.to(device)
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
