"""Training of the mixture autoencoder: a LightningModule and one function from features to a trained model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from lightning.pytorch import LightningModule
from torch import Tensor

from tenfold.mixture.vae import MixtureVAE
from tenfold.training import SeededLoader, seed_everything, seeded_generator, train

OBJECTIVES = ("elbo", "stratified")
FEWEST_STEPS, FEWEST_EPOCHS = 2_000, 20  # of a run whose length the user leaves open
STEPS_BETWEEN_VALIDATIONS = 50  # at least; epochs of small data are shorter
MOST_MEASURED = 10_000  # training rows on which the bound is measured when training is done

WIDE = 64  # features from which on the wider networks pay
WORTH_THREADS = 10**8  # multiplications a step


class MixtureVAETraining(LightningModule):
    """Maximises a bound on ``log p(x)``, divided by the number of features so that rates carry over between data sets.

    Args:
        vae: The model.
        objective: ``"elbo"`` (samples of the mixture with pathwise gradients, Graves 2016) or ``"stratified"``.
        num_samples: Samples a row; of the mixture, or of each component.
        learning_rate: Of Adam, at the start; falls to zero along a cosine over ``total_steps``.
        total_steps: Optimizer steps in all.
    """

    def __init__(
        self, vae: MixtureVAE, *, objective: str, num_samples: int, learning_rate: float, total_steps: int
    ) -> None:
        super().__init__()
        self.vae = vae
        self.objective = objective
        self.num_samples = num_samples
        self.learning_rate = learning_rate
        self.total_steps = total_steps

    def bound(self, x: Tensor) -> Tensor:
        """The chosen bound, averaged over the rows, in nats."""
        estimate = self.vae.elbo if self.objective == "elbo" else self.vae.stratified_bound
        return estimate(x, self.num_samples).mean()

    def training_step(self, batch: Tensor) -> Tensor:
        """Loss of a batch; where somebody logs, also the bound in nats."""
        bound = self.bound(batch)
        if self.trainer.loggers:  # else it would cost a fifth of a small step, for nobody
            self.log("bound", bound.detach())
        return -bound / self.vae.num_features

    def validation_step(self, batch: Tensor) -> None:
        """Logs the bound of rows that training does not see."""
        self.log("val_bound", self.bound(batch).detach(), batch_size=len(batch))

    def configure_optimizers(self) -> Any:
        """Adam with a cosine that ends at zero."""
        fused = self.trainer.precision != "16-mixed"  # with float16 it would unscale by itself, which excludes clipping
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate, fused=fused)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.total_steps)))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(
    values: Float[Tensor, "rows features"],
    *,
    latent_dim: int = 2,
    num_components: int = 4,
    hidden: tuple[int, ...] | None = None,
    likelihood: str = "bernoulli",
    objective: str = "elbo",
    num_samples: int = 4,
    epochs: int | None = None,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    validation: float = 0.1,
    image_shape: tuple[int, ...] | None = None,
    names: tuple[str, ...] | None = None,
    seed: int = 0,
    **trainer: Any,
) -> tuple[MixtureVAE, dict[str, float]]:
    """Train a `MixtureVAE` on rows of features.

    Args:
        values: Data; from 0 to 1 for the Bernoulli likelihood, finite.
        latent_dim: Length of a code.
        num_components: Components of the posterior.
        hidden: Widths of the encoder's hidden layers; None: `default_hidden`.
        likelihood: ``"bernoulli"`` or ``"gaussian"``.
        objective: ``"elbo"`` or ``"stratified"``.
        num_samples: Samples a row and step.
        epochs: Passes over the data; None: as many as make 2,000 steps, at least 20. Small data need the steps: with 600
            the ELBO of unseen rows was 0.9 nats lower on digits (1,438 rows), 1.0 on the iris table (120 rows).
        batch_size: Rows a step.
        learning_rate: Adam's, at the start.
        validation: Share of the rows kept for validation, chosen by the seed; 0 keeps none.
        image_shape: Shape of an image, if rows are images.
        names: Names of the features.
        seed: Of everything random.
        trainer: Passed on to `tenfold.training.train` (device, checkpoint_dir, resume, logger, progress ...).

    Returns:
        The model in evaluation mode on the CPU, and its bound in nats a row, the objective with ``num_samples``: ``bound``
        on the rows of training (10,000 of them at most) and, with validation, ``val_bound`` on the others.

    Raises:
        ValueError: Too few rows, values outside [0, 1] for Bernoulli, options out of range.
    """
    for name, size in (("num_samples", num_samples), ("epochs", epochs), ("batch_size", batch_size)):
        if size is not None and size < 1:
            raise ValueError(f"{name}={size} must be at least 1")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate={learning_rate} must be a positive number")
    _check(values, likelihood=likelihood, objective=objective, validation=validation)
    seed_everything(seed)
    vae = MixtureVAE(
        values.shape[1],
        latent_dim,
        num_components,
        list(default_hidden(values.shape[1]) if hidden is None else hidden),
        likelihood,
        image_shape and list(image_shape),
        names and list(names),
    )
    order = torch.randperm(len(values), generator=seeded_generator(seed, 1))
    held_out = round(validation * len(values))
    rows, kept = values[order[held_out:]], values[order[:held_out]]
    vae.standardize(rows)
    loader = SeededLoader(rows, min(batch_size, len(rows)), seed=seed)
    if epochs is None:
        epochs = max(FEWEST_EPOCHS, math.ceil(FEWEST_STEPS / len(loader)))
    module = MixtureVAETraining(
        vae, objective=objective, num_samples=num_samples, learning_rate=learning_rate, total_steps=epochs * len(loader)
    )
    validation_loader = SeededLoader(kept, batch_size, seed=seed, shuffle=False) if held_out else None
    train(
        module,
        loader,
        val_data=validation_loader,
        validate_every=max(1, STEPS_BETWEEN_VALIDATIONS // len(loader)),
        seed=seed,
        max_epochs=epochs,
        gradient_clip=1.0,
        **trainer,
    )
    vae.cpu().eval()
    estimate = vae.elbo if objective == "elbo" else vae.stratified_bound
    generator = seeded_generator(seed, 2)
    bounds = {}
    for name, part in (("bound", rows[:MOST_MEASURED]), ("val_bound", kept)):
        if len(part):
            pieces = part.to(vae.center.dtype).split(1_024)
            with torch.no_grad():
                bounds[name] = float(
                    torch.cat([estimate(piece, num_samples, generator=generator) for piece in pieces]).double().mean()
                )
    return vae, bounds


@torch.no_grad()
def evaluate(
    vae: MixtureVAE,
    values: Float[Tensor, "rows features"],
    *,
    num_samples: int = 64,
    batch_size: int | None = None,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Bounds on ``log p(x)`` in nats a row, each with its standard error over the rows.

    Args:
        vae: The model.
        values: Data of the model's number of features.
        num_samples: Samples a row; the stratified bound takes as many in all, at least one a component.
        batch_size: Rows at once; None: as many as make about 16,384 samples.
        seed: Of the samples.

    Returns:
        ``elbo``, ``importance_bound`` and ``stratified_bound``: (mean, standard error).
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} must be at least 1")
    batch_size = batch_size or max(1, 16_384 // num_samples)
    generator = seeded_generator(seed)
    each = max(1, num_samples // vae.num_components)
    parts: dict[str, list[Tensor]] = {"elbo": [], "importance_bound": [], "stratified_bound": []}
    for batch in values.split(batch_size):
        parts["elbo"].append(vae.elbo(batch, num_samples, generator=generator))
        parts["importance_bound"].append(vae.importance_bound(batch, num_samples, generator=generator))
        parts["stratified_bound"].append(vae.stratified_bound(batch, each, generator=generator))
    results = {}
    for name, pieces in parts.items():
        rows = torch.cat(pieces).double()
        results[name] = (float(rows.mean()), float(rows.std() / len(rows) ** 0.5) if len(rows) > 1 else math.nan)
    return results


def default_hidden(num_features: int) -> tuple[int, ...]:
    """Widths of hidden layers: narrow tables have too few columns for the wide ones to pay.

    >>> default_hidden(13), default_hidden(784)
    ((64, 32), (256, 128))
    """
    return (64, 32) if num_features < WIDE else (256, 128)


def is_worth_threads(layers: Sequence[int], samples: int) -> bool:
    """Whether a step multiplies enough for several threads; below, they wait for each other longer than they work.

    Args:
        layers: Widths from the features to the means.
        samples: Rows of a step times samples a row.
    """
    return samples * sum(before * after for before, after in pairwise(layers)) >= WORTH_THREADS


def check_rows(count: int, validation: float) -> None:
    """Whether so many rows are enough to train on.

    Raises:
        ValueError: Fewer than two are left when the share for validation is taken away.

    >>> check_rows(1, 0.1)
    Traceback (most recent call last):
    ...
    ValueError: 1 row is too few with validation=0.1: training needs 2
    """
    if count - round(validation * count) < 2:
        rows = "1 row is" if count == 1 else f"{count} rows are"
        raise ValueError(f"{rows} too few with validation={validation:g}: training needs 2")


def _check(values: Tensor, *, likelihood: str, objective: str, validation: float) -> None:
    if objective not in OBJECTIVES:
        raise ValueError(f"objective={objective!r} is not one of {', '.join(map(repr, OBJECTIVES))}")
    if not 0 <= validation < 1:
        raise ValueError(f"validation={validation} must be at least 0 and below 1")
    check_rows(len(values), validation)
    if not bool(values.isfinite().all()):
        raise ValueError("values must be finite")
    if likelihood == "bernoulli" and not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(
            f"likelihood='bernoulli' needs values from 0 to 1; these range from {values.min():g} to {values.max():g}: "
            "use likelihood='gaussian'"
        )
