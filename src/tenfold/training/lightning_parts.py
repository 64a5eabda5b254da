"""What `train` hangs into Lightning: the step boundary, where everything is saved and restored; the guard against a
loss that is not finite; the display of progress; and the writer of checkpoints.

**Why a boundary.** A checkpoint must hold the state between two steps: after the last hook of step n, before anything
is read or drawn for step n + 1. No callback runs there (a module's own ``on_train_batch_end``, where moving averages
live, runs after every callback's, and ``on_train_batch_start`` after batches are read and augmented). The one place is
just before the next batch is fetched, which Lightning tells its profiler. At the same place, and nowhere else, a
resumed run gets its random state back. The start of an epoch is such a place too, so that a checkpoint "at the end of
an epoch" is taken when validation and schedulers are done.
"""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops import _FitLoop, _Loop
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor

from tenfold.console.progress import Progress, progress
from tenfold.training.checkpoints import checkpoint_path, list_checkpoints, read_checkpoint, write_checkpoint
from tenfold.training.interruption import Stop, StopSignals
from tenfold.training.seeds import derived_seed, random_state, restore_random_state, seed_everything

SAVING = 0.05  # share of the time that checkpoints at the ends of epochs may take
EVERY = 10  # steps between two looks at the clock, the signals and the loss on a GPU, which has to be waited for


class SafeCheckpointIO(CheckpointIO):
    """Writes and reads checkpoints as safetensors instead of pickles."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Writes a checkpoint atomically."""
        write_checkpoint(Path(path), checkpoint)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads a checkpoint onto the CPU; Lightning moves what must be elsewhere."""
        return read_checkpoint(path)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Deletes a checkpoint."""
        Path(path).unlink(missing_ok=True)


class EpochwiseFitLoop(_FitLoop):
    """A run whose last epoch was complete goes on with the next, with `max_steps` as with `max_epochs`.

    Lightning would repeat the end of the epoch if there is a `max_steps`.
    """

    @property
    def restarting(self) -> bool:
        """Whether the run goes on within an epoch."""
        return bool(_FitLoop.restarting.fget(self))

    @restarting.setter
    def restarting(self, restarting: bool) -> None:
        epoch: Any = self.epoch_progress.current
        within = not epoch.ready == epoch.started == epoch.processed
        _Loop.restarting.fset(self, restarting and within)  # type: ignore[attr-defined]


class StepBoundary(PassThroughProfiler):
    """Calls `Keeper.boundary` before each training batch is fetched."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self.keeper = keeper

    def start(self, action_name: str) -> None:
        """Told by Lightning what it is about to do."""
        if action_name.endswith("train_dataloader_next"):
            self.keeper.boundary()


class LossGuard(Callback):
    """Stops training at the first loss that is not finite, and names the step.

    In a single process on the CPU it raises before the weights are touched. Elsewhere that would make the GPU wait, or
    leave the other processes waiting for ever; so the first bad step is noted where the loss is, and looked up, by all
    processes together, every few steps and before each checkpoint.
    """

    def __init__(self) -> None:
        self.first: Tensor | None = None  # step of the first bad loss, counted from 1; 0 for none

    def on_before_backward(self, trainer: Trainer, module: LightningModule, loss: Tensor) -> None:
        """Looks at the loss."""
        step = trainer.global_step + 1
        if trainer.world_size == 1 and loss.device.type == "cpu":
            if not torch.isfinite(loss.detach()).all():
                raise not_finite(step, trainer.current_epoch, loss.detach().flatten()[0].item())
            return
        self.note(loss.detach(), step)

    def note(self, loss: Tensor, step: int) -> None:
        """Notes a bad loss where it is, without reading it."""
        bad = ~torch.isfinite(loss).all()
        if self.first is None:
            self.first = torch.zeros((), dtype=torch.int64, device=loss.device)
        self.first = torch.where(bad & (self.first == 0), step, self.first)

    def first_bad_step(self) -> int:
        """Step of the first loss that was not finite, or 0."""
        return 0 if self.first is None else int(self.first.item())


def not_finite(step: int, epoch: int, value: float = math.nan) -> FloatingPointError:
    """The error that says where training went wrong."""
    return FloatingPointError(
        f"the loss is {value} at step {step} (epoch {epoch + 1}); a lower learning rate or gradient_clip may help, "
        "and the data may hold values that are not finite"
    )


class Keeper(Callback):
    """Saves and restores everything that the rest of the run depends on, at step boundaries.

    Args:
        folder: Where checkpoints go, or None.
        minutes: Between two checkpoints within an epoch.
        keep: How many of the newest are kept.
        seed: Of the run.
        signals: Whether somebody asked to stop.
        guard: Whether the loss was finite.
    """

    def __init__(
        self, folder: Path | None, *, minutes: float | int, keep: int, seed: int, signals: StopSignals, guard: LossGuard
    ) -> None:
        self.folder = folder
        self.minutes = minutes
        self.keep = keep
        self.seed = seed
        self.signals = signals
        self.guard = guard
        self.saved: Path | None = None
        self.trainer: Trainer | None = None
        self._restore: dict[str, Any] | None = None
        self._clock = time.monotonic()
        self._cost = 0.0  # seconds that the last checkpoint took
        self._ended = False

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Gets to know the trainer, in each process."""
        self.trainer = trainer

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Takes the signals over from Lightning, which has just taken SIGTERM, and gives each process random numbers
        of its own.

        A resumed run gets its random state back at the first boundary.
        """
        self.signals.take_over()
        seed_everything(derived_seed(self.seed, trainer.global_rank))
        self._clock = time.monotonic()

    def boundary(self) -> None:
        """Between two steps: restore, or look whether to save or to stop."""
        trainer = self.trainer
        assert trainer is not None
        if self._restore is not None:
            self._resume(trainer, self._restore)
            self._restore = None
            return
        progress_now = trainer.fit_loop.epoch_loop.batch_progress.current
        epoch_starts = progress_now.completed == 0
        waits = trainer.strategy.root_device.type != "cpu"
        if waits and not epoch_starts and progress_now.completed % EVERY:
            return
        stop, due, affordable = self._look(trainer)
        accumulating = (
            progress_now.completed % trainer.accumulate_grad_batches != 0
        )  # gradients are not in a checkpoint
        wanted = stop or due or (epoch_starts and affordable)
        if wanted and not accumulating and (epoch_starts or self._resumable(trainer)):
            self.save(trainer)
        if stop:
            raise Stop

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """The last checkpoint, from which a longer run can go on."""
        self._look(trainer)
        self._ended = True
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Writes a checkpoint unless this step has one, and deletes those beyond `keep`."""
        step = trainer.global_step
        if self.folder is None or (step == 0 and not self._ended):
            return
        path = checkpoint_path(self.folder, step)
        start = time.monotonic()
        if self.saved != path or self._ended:
            trainer.save_checkpoint(path)
            self.saved = path
            if trainer.is_global_zero:
                for old in list_checkpoints(self.folder)[: -self.keep]:
                    old.unlink(missing_ok=True)
        self._clock = time.monotonic()
        self._cost = self._clock - start

    def state_dict(self) -> dict[str, Any]:
        """Random states of all processes, the seed, and the step of the loggers."""
        trainer = self.trainer
        assert trainer is not None
        states: list[Any] = [random_state()]
        if trainer.world_size > 1:
            states = [None] * trainer.world_size
            torch.distributed.all_gather_object(states, random_state())
        return {"seed": self.seed, "random": states, "logged": trainer.fit_loop.epoch_loop._batches_that_stepped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the state for the first boundary."""
        self._restore = state_dict

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A run that ended within an epoch (``max_steps``) is written down as within it, so that a longer one goes on
        there.

        Lightning has counted the epoch as done by now; what its hooks at the end of an epoch did stays done.
        """
        epoch_loop = trainer.fit_loop.epoch_loop
        if self._ended and 0 < epoch_loop.batch_progress.current.completed < trainer.num_training_batches:
            for count in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
                count["processed"] -= 1
                count["completed"] -= 1

    def _resume(self, trainer: Trainer, state: dict[str, Any]) -> None:
        states, rank = state["random"], trainer.global_rank
        if rank < len(states):
            restore_random_state(states[rank])
        else:  # resumed on more processes than before
            seed_everything(derived_seed(self.seed, rank, trainer.global_step))
        trainer.fit_loop.epoch_loop._batches_that_stepped = state["logged"]
        trainer.fit_loop._restarting = False  # else ReduceLROnPlateau is passed over at the end of this epoch

    def _look(self, trainer: Trainer) -> tuple[bool, bool, bool]:
        """Whether any process was asked to stop, whether a checkpoint is due, and whether one at the end of an epoch
        keeps to its share of the time; raises if a loss was not finite.
        """
        since = time.monotonic() - self._clock
        due, affordable = since >= 60 * self.minutes, self._cost <= SAVING * since
        flags = [int(self.signals.requested is not None), int(due), int(affordable), self.guard.first_bad_step()]
        if trainer.world_size > 1:  # all must decide alike
            there = torch.tensor(flags, device=trainer.strategy.root_device)
            flags = trainer.strategy.reduce(there, reduce_op="max").tolist()
        if flags[3]:
            raise not_finite(flags[3], trainer.current_epoch)
        return bool(flags[0]), bool(flags[1]), bool(flags[2])

    def _resumable(self, trainer: Trainer) -> bool:
        """Whether the training data can go on within an epoch; if not, there are checkpoints at its start only."""
        combined = trainer.fit_loop._combined_loader
        loaders = [] if combined is None else combined.flattened
        return all(hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") for loader in loaders)


class ProgressDisplay(Callback):
    """Shows steps, time left and the loss on standard error."""

    def __init__(self, description: str) -> None:
        self.description = description
        self._stack = contextlib.ExitStack()
        self._display: Progress | None = None
        self._shown = -math.inf
        self._waiting = 0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Opens the display, for the batches that are left."""
        if not trainer.is_global_zero:
            return
        batches = trainer.num_training_batches
        left = math.inf if trainer.max_epochs in (-1, None) else trainer.max_epochs * batches
        left -= trainer.fit_loop.epoch_loop.batch_progress.total.completed
        if trainer.max_steps != -1:
            left = min(left, (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches)
        self._display = self._stack.enter_context(progress(self.description, left if math.isfinite(left) else None))

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts the batch; reads the loss a few times a second only, because that makes a GPU wait."""
        if self._display is None:
            return
        self._waiting += 1
        now = time.monotonic()
        if now - self._shown > 0.2:
            fields: dict[str, Any] = {"epoch": trainer.current_epoch + 1}
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if isinstance(loss, Tensor) and loss.numel() == 1:
                fields["loss"] = float(loss) * trainer.accumulate_grad_batches
            self._display.advance(self._waiting, **fields)
            self._waiting, self._shown = 0, now

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Closes the display."""
        self.close()

    def close(self) -> None:
        """Takes the display away."""
        if self._display is not None and self._waiting:
            self._display.advance(self._waiting)
        self._waiting = 0
        self._display = None
        self._stack.close()
