"""`train`: the one way in which Tenfold trains a network, over Lightning's Trainer.

It adds to Lightning what the rooms need alike: seeds, checkpoints that hold no code, resuming to the very same
weights, stopping by Ctrl-C between two steps, loggers by name, one display of progress, and quiet. What it promises of
a resumed run: with data from a `SeededLoader`, on the same machine, versions and devices, the weights are
bit-identical to those of a run that was never stopped (on a GPU with ``deterministic=True``). With any other loader a
run is resumed from the start of the epoch in which it stopped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tenfold.console.terminal import remark
from tenfold.errors import InputError, MissingExtraError
from tenfold.training.checkpoints import last_checkpoint, read_header, weight_shapes
from tenfold.training.interruption import Interrupted, Stop, StopSignals
from tenfold.training.seeds import seed_everything

LOGGERS = ("csv", "tensorboard", "mlflow")
SHARDED = ("fsdp", "deepspeed", "modelparallel")  # their checkpoints do not go through Lightning's CheckpointIO

# What Lightning says on every run, or about choices that are made here on purpose; all other warnings go through.
CHATTER = (
    r".*does not have many workers which may be a bottleneck",
    r".*is smaller than the logging interval",
    r".*srun. command is available on your system but is not used",
    r".*MPS available but not used",
    r".*GPU available but not used",
    r".*isinstance\(treespec, LeafSpec\).* is deprecated",  # torch's message for Lightning's own code
    r".*`training_step` returned `None`",
    r".*You defined a `validation_step` but have no `val_dataloader`",
)


def train(
    module: Any,
    data: Any,
    *,
    seed: int,
    max_epochs: int | None = None,
    max_steps: int | None = None,
    val_data: Any = None,
    validate_every: int = 1,
    device: str = "auto",
    precision: Any = "32-true",
    devices: int | str | list[int] = 1,
    num_nodes: int = 1,
    strategy: Any = "auto",
    checkpoint_dir: str | Path | None = None,
    checkpoint_minutes: float | int = 5.0,
    keep: int = 2,
    resume: bool | str | Path = False,
    logger: str | None = None,
    log_dir: str | Path | None = None,
    log_every: int = 10,
    gradient_clip: float | int | None = None,
    accumulate: int = 1,
    deterministic: bool = False,
    callbacks: Sequence[Any] = (),
    progress: bool = True,
    description: str = "training",
) -> Any:
    """Trains a LightningModule, with checkpoints from which a killed run goes on exactly.

    Checkpoints are written every `checkpoint_minutes`, after each epoch unless that would take more than a twentieth of
    the time (epochs of milliseconds), at the end, and when Ctrl-C or SIGTERM stops the run. Under DDP the script runs
    once in each process: write results only ``if trainer.is_global_zero``.

    Args:
        module: The LightningModule. Call `seed_everything` before building it, so that its first weights depend on the
            seed.
        data: A `SeededLoader`, another loader, or a LightningDataModule.
        seed: Of all random numbers in training. Each process draws its own.
        max_epochs: Passes over the data. One of this and `max_steps` is needed; with both, the first that is reached
            ends training.
        max_steps: Optimizer steps.
        val_data: A loader for validation.
        validate_every: Epochs from one validation to the next.
        device: ``"auto"`` (CUDA, else Apple's MPS, else the CPU), ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``.
        precision: Lightning's: ``"32-true"``, ``"bf16-mixed"``, ``"16-mixed"``, ``"64-true"`` and others.
        devices: Devices on each machine: a number, a list of their numbers, or ``"auto"`` for all.
        num_nodes: Machines.
        strategy: Lightning's: ``"auto"``, ``"ddp"``, ``"fsdp"`` and others. Sharded ones (FSDP) train without
            `checkpoint_dir` only.
        checkpoint_dir: Folder for the checkpoints; None writes none.
        checkpoint_minutes: Minutes between two checkpoints within an epoch; 0 writes one after each step.
        keep: How many of the newest checkpoints are kept.
        resume: True goes on from the newest checkpoint in `checkpoint_dir`, or starts at the beginning if there is
            none yet, and says so; a path goes on from that checkpoint.
        logger: Where ``self.log`` goes: ``"csv"``, ``"tensorboard"``, ``"mlflow"`` (the extra ``loggers``), or None.
        log_dir: Folder for the logger; ``checkpoint_dir/logs`` unless given. MLflow goes to the server that
            ``$MLFLOW_TRACKING_URI`` names instead.
        log_every: Steps between two logged values.
        gradient_clip: Largest norm of the whole gradient; None does not clip.
        accumulate: Batches whose gradients make one optimizer step.
        deterministic: Use deterministic GPU algorithms only; slower.
        callbacks: Further Lightning callbacks, such as EarlyStopping.
        progress: Show progress and time left on standard error.
        description: What the progress is called.

    Returns:
        Lightning's Trainer, when training is done. The module holds the trained weights; ``trainer.callback_metrics``
        the last values logged.

    Raises:
        InputError: An argument or checkpoint cannot be used, or `checkpoint_dir` holds an earlier run's checkpoints
            and `resume` is False.
        MissingExtraError: The logger's package is not installed.
        Interrupted: Ctrl-C or SIGTERM stopped the run; its `saved` is the checkpoint to resume from.
        FloatingPointError: The loss became infinite or NaN; the message names the step.

    >>> import torch
    >>> from lightning.pytorch import LightningModule
    >>> class Line(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.slope = torch.nn.Parameter(torch.zeros(()))
    ...     def training_step(self, batch):
    ...         x, y = batch
    ...         return ((self.slope * x - y) ** 2).mean()
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> from tenfold.training import SeededLoader
    >>> x, line = torch.linspace(-1, 1, 64), Line()
    >>> trainer = train(line, SeededLoader((x, 3 * x), 16, seed=0), seed=0, max_epochs=30, device="cpu", progress=False)
    >>> round(line.slope.item(), 2), trainer.global_step
    (3.0, 120)
    """
    _check(
        max_epochs=max_epochs,
        max_steps=max_steps,
        keep=keep,
        validate_every=validate_every,
        minutes=checkpoint_minutes,
        strategy=strategy,
        folder=checkpoint_dir,
    )
    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    start = _starting_point(folder, resume)
    if resume and start is None and progress:
        remark(f"there is no checkpoint to resume from in {folder}; training starts at the beginning")
    accelerator, devices = _device(device, devices)
    with _quiet():
        from lightning.pytorch import Trainer
        from lightning.pytorch.callbacks import Checkpoint
        from lightning.pytorch.plugins.environments import SLURMEnvironment

        from tenfold.training.lightning_parts import (
            EpochwiseFitLoop,
            Keeper,
            LossGuard,
            ProgressDisplay,
            SafeCheckpointIO,
            StepBoundary,
        )

        if start is not None:
            _check_weights(module, start)
        signals, guard = StopSignals(), LossGuard()
        keeper = Keeper(folder, minutes=checkpoint_minutes, keep=keep, seed=seed, signals=signals, guard=guard)
        keeper.saved = start
        display = ProgressDisplay(description)
        plugins: list[Any] = [SafeCheckpointIO()]
        if SLURMEnvironment.detect():
            plugins.append(SLURMEnvironment(auto_requeue=False))  # it would save in the middle of a step
        seed_everything(seed)
        trainer = Trainer(
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            strategy=strategy,
            precision=precision,
            max_epochs=-1 if max_epochs is None else max_epochs,
            max_steps=-1 if max_steps is None else max_steps,
            logger=_logger(logger, log_dir, folder),
            callbacks=[guard, *callbacks, *([display] if progress else []), keeper],
            plugins=plugins,
            profiler=StepBoundary(keeper),
            gradient_clip_val=gradient_clip,
            accumulate_grad_batches=accumulate,
            log_every_n_steps=log_every,
            check_val_every_n_epoch=validate_every,
            deterministic=deterministic,
            default_root_dir=folder,
            num_sanity_val_steps=0,
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit_loop.__class__ = EpochwiseFitLoop
        stopped = False
        try:
            with signals:
                trainer.fit(module, data, val_data, ckpt_path=start)
        except Stop:
            stopped = True
        finally:
            display.close()
    if stopped or signals.requested is not None:
        raise _interrupted(signals.requested, trainer.global_step, keeper.saved)
    return trainer


def _check(
    *,
    max_epochs: int | None,
    max_steps: int | None,
    keep: int,
    validate_every: int,
    minutes: float | int,
    strategy: Any,
    folder: str | Path | None,
) -> None:
    counts = {"max_epochs": max_epochs, "max_steps": max_steps, "keep": keep, "validate_every": validate_every}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    if max_epochs is None and max_steps is None:
        raise InputError("one of max_epochs and max_steps is needed: how long to train")
    if not minutes >= 0:
        raise InputError(f"checkpoint_minutes={minutes} must be 0 or more")
    kind = strategy if isinstance(strategy, str) else type(strategy).__name__
    if folder is not None and kind.lower().startswith(SHARDED):
        raise InputError(
            f"strategy={kind!r} shards the weights, and cannot be resumed here: checkpoint_dir must be None"
        )


def _starting_point(folder: Path | None, resume: bool | str | Path) -> Path | None:
    """The checkpoint to go on from, checked to be one; None to start at the beginning."""
    if not isinstance(resume, bool):
        read_header(resume)
        return Path(resume)
    if resume and folder is None:
        raise InputError("resume needs checkpoint_dir, the folder of the run to go on with")
    last = None if folder is None else last_checkpoint(folder)
    if last is not None and not resume:
        raise InputError(
            "this folder holds checkpoints of an earlier run: resume it, or give another folder", path=folder
        )
    if not resume:
        return None
    if last is not None:
        read_header(last)
    return last


def _check_weights(module: Any, path: Path) -> None:
    """Names the first weight in which module and checkpoint differ."""
    from lightning.pytorch.utilities.model_helpers import is_overridden

    if is_overridden("configure_model", module):
        return  # its weights are made later
    saved = weight_shapes(path)
    wanted = {
        name: tuple(tensor.shape) for name, tensor in module.state_dict().items() if isinstance(tensor, torch.Tensor)
    }
    kind = type(module).__name__
    for name, shape in wanted.items():
        if name not in saved:
            raise InputError(f"the checkpoint is of another model: it has no {name!r}, which {kind} has", path=path)
        if saved[name] != shape:
            raise InputError(
                f"the checkpoint is of another model: {name!r} has shape {saved[name]}, in {kind} {shape}", path=path
            )
    for name in saved.keys() - wanted.keys():
        raise InputError(f"the checkpoint is of another model: {kind} has no {name!r}", path=path)


def _device(device: str, devices: int | str | list[int]) -> tuple[str, int | str | list[int]]:
    """Lightning's accelerator and devices for a torch device's name."""
    kind, _, number = device.partition(":")
    if device == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if kind not in ("cpu", "cuda", "mps") or (number and not (kind == "cuda" and number.isdecimal())):
        raise InputError(f"device={device!r} must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device={device!r}: torch sees {torch.cuda.device_count()} CUDA devices here; 'auto' takes what there is"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError("device='mps': torch sees no Apple GPU here; 'auto' takes what there is")
    if kind == "cpu" and devices == "auto":
        devices = 1
    return kind, [int(number)] if number else devices


def _logger(name: str | None, log_dir: str | Path | None, folder: Path | None) -> Any:
    if name is None:
        return False
    if name not in LOGGERS:
        raise InputError(f"logger={name!r} must be one of {', '.join(LOGGERS)}, or None")
    package = {"csv": None, "tensorboard": "tensorboard", "mlflow": "mlflow"}[name]
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingExtraError(package, "loggers")
    if name == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise InputError("logger='mlflow' needs the variable MLFLOW_TRACKING_URI, the address of an MLflow server")
    if name != "mlflow" and log_dir is None and folder is None:
        raise InputError(f"logger={name!r} needs log_dir or checkpoint_dir, the folder to write to")
    place = Path(log_dir) if log_dir is not None else Path(folder or "") / "logs"
    from lightning.pytorch import loggers

    if name == "csv":
        return loggers.CSVLogger(place, name="")
    if name == "tensorboard":
        return loggers.TensorBoardLogger(place, name="")
    return loggers.MLFlowLogger("tenfold", tracking_uri=os.environ["MLFLOW_TRACKING_URI"])


def _interrupted(how: str | None, step: int, saved: Path | None) -> Interrupted:
    kept = f"resume from {saved}" if saved is not None else "nothing was saved"
    return Interrupted(f"training was stopped at step {step} by {how or 'a signal'}; {kept}", saved)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Lightning's information and tips out of the log, and its habitual warnings out of the user's sight."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in CHATTER:
            warnings.filterwarnings("ignore", message)
        try:
            for logger in loggers:
                logger.setLevel(logging.WARNING)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
