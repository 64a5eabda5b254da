"""Trains one classifier for the study: SGD with momentum along a cosine, every random number from the seed.

Wu & He 2018, section 4.1, keep the batch of the optimizer and take batch normalization's statistics over the part of it
that lies on one GPU; the learning rate follows a real batch in proportion (Goyal et al. 2017). The loop is plain: the
networks are small, and a step must cost little beside what torch computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from tenfold.normalization.data import Parts
from tenfold.training import seeded_generator

EVALUATED_AT_ONCE = 500  # examples


@dataclass(frozen=True)
class Settings:
    """How a network is trained.

    Args:
        epochs: Passes over the training part.
        batch_size: Examples a step; what does not fill a batch is left out of that pass.
        learning_rate: At the start; it falls to zero along half a cosine.
        momentum: Of SGD.
        weight_decay: On all parameters, gamma and beta too, as in the paper.
    """

    epochs: int
    batch_size: int = 32
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4


@dataclass(frozen=True)
class History:
    """What came of a training run.

    Args:
        errors: Share of wrong answers in the test part after each epoch, in evaluation mode.
        losses: Mean loss of each epoch.
        diverged: The step, from 1, at which the loss was no longer finite and training stopped; None where it never was.
    """

    errors: tuple[float, ...]
    losses: tuple[float, ...]
    diverged: int | None = None


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Batches that a pass over so many examples fills.

    Raises:
        ValueError: Not even one.

    >>> steps_per_epoch(1000, 32)
    31
    """
    if examples < batch_size:
        raise ValueError(f"{examples} examples to train on do not fill a batch of {batch_size}")
    return examples // batch_size


def train_classifier(
    model: nn.Module, parts: Parts, settings: Settings, *, seed: int, on_step: Callable[[int], Any] | None = None
) -> History:
    """Trains a network in place by cross-entropy.

    Args:
        model: Gives a score a class; on the device of the parts.
        parts: What is trained on and tested on.
        settings: How.
        seed: Of the order of the examples; the network's own weights are the caller's.
        on_step: Called as ``on_step(1)`` after each step.

    Raises:
        ValueError: Too few examples for one batch.

    >>> from tenfold.normalization.data import dataset, split
    >>> from tenfold.normalization.models import small_conv, norm_layer
    >>> _ = torch.manual_seed(0)
    >>> net = small_conv((1, 8, 8), 10, lambda channels: norm_layer("group", channels))
    >>> history = train_classifier(net, split(dataset("digits")), Settings(epochs=2), seed=0)
    >>> history.errors[1] < 0.15
    True
    """
    size = settings.batch_size
    steps = steps_per_epoch(len(parts.labels), size)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    errors: list[float] = []
    losses: list[float] = []
    done = 0
    for epoch in range(settings.epochs):
        order = torch.randperm(len(parts.labels), generator=seeded_generator(seed, 1, epoch)).to(parts.labels.device)
        model.train()
        total = 0.0
        for chosen in order[: steps * size].view(steps, size):
            share = done / (steps * settings.epochs)
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
            loss = nn.functional.cross_entropy(model(parts.inputs[chosen]), parts.labels[chosen])
            value = loss.item()
            done += 1
            if on_step is not None:
                on_step(1)
            if not math.isfinite(value):
                errors.append(error_rate(model, parts.test_inputs, parts.test_labels))
                return History((*errors,), (*losses,), done)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += value
        losses.append(total / steps)
        errors.append(error_rate(model, parts.test_inputs, parts.test_labels))
    return History(tuple(errors), tuple(losses))


def error_rate(model: nn.Module, inputs: Float[Tensor, "examples ..."], labels: Int64[Tensor, " examples"]) -> float:
    """Share of wrong answers in evaluation mode; a score that is no number is wrong.

    >>> error_rate(nn.Identity(), torch.tensor([[0.0, 1.0], [2.0, 1.0], [float("nan"), 1.0]]), torch.tensor([1, 1, 0]))
    0.6666666666666666
    """
    model.eval()
    wrong = 0
    with torch.no_grad():
        for batch, wanted in zip(inputs.split(EVALUATED_AT_ONCE), labels.split(EVALUATED_AT_ONCE), strict=True):
            scores = model(batch)
            right = (scores.argmax(1) == wanted) & scores.isfinite().all(1)
            wrong += int((~right).sum())
    return wrong / len(labels)
