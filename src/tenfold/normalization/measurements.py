"""Measurements behind the claims of the two papers, on real digits: each a function of seed and scale.

At scale smoke every measurement runs a few steps only, which tells nothing about a claim. At scales quick and full the
images are 5,000 digits of MNIST; full trains longer or more networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tenfold.claims import Curve, Measurement, Plot
from tenfold.normalization.batch_normalization import BatchNorm1d
from tenfold.normalization.data import Parts, dataset, split
from tenfold.normalization.group_normalization import GroupNorm
from tenfold.normalization.models import norm_layer, small_conv
from tenfold.normalization.recurrent import BatchNormLSTM, SequenceBatchNormLSTM
from tenfold.normalization.training import Settings, error_rate, train_classifier

Digits = tuple[Tensor, Tensor, Tensor, Tensor]

TARGET = 0.9  # accuracy on the test part
EVERY = 25  # steps between evaluations
RATES = (0.8, 3.2, 12.8)  # each side's best is among them, as a grid from 0.05 by factors of 4 shows
SPLITS = (32, 16, 8, 4, 2)


def digits(seed: int, scale: str, *, side: int = 28) -> Digits:
    """Grey images in 0..1, flat, and labels: 4,000 to train on and 1,000 to test on; at scale smoke 300 of 8 x 8 pixels."""
    from tenfold import datasets

    given = datasets.digits() if scale == "smoke" else datasets.mnist_5k()
    images = torch.from_numpy(np.asarray(given.images, dtype=np.float32))
    images = images / images.max()
    if scale != "smoke" and side != images.shape[-1]:
        images = nn.functional.avg_pool2d(images.unsqueeze(1), images.shape[-1] // side).squeeze(1)
    labels = torch.from_numpy(np.asarray(given.labels, dtype=np.int64))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = (order[:200], order[200:300]) if scale == "smoke" else (order[:4000], order[4000:])
    flat = images.flatten(1)
    return flat[train], labels[train], flat[test], labels[test]


def _accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    accuracy = 1 - error_rate(model, inputs, labels)
    model.train()
    return accuracy


def _sigmoid_net(inputs: int, hidden_layers: int, *, normalized: bool) -> nn.Sequential:
    """The network of Ioffe & Szegedy, section 4.1: hidden layers of 100 sigmoid units, small Gaussian weights."""
    layers: list[nn.Module] = []
    before = inputs
    for number in range(hidden_layers):
        linear = nn.Linear(before, 100, bias=not normalized)
        nn.init.normal_(linear.weight, std=0.05 if number == 0 else 0.1)
        if not normalized:
            nn.init.zeros_(linear.bias)
        layers += [linear, *([BatchNorm1d(100)] if normalized else []), nn.Sigmoid()]
        before = 100
    last = nn.Linear(before, 10)
    nn.init.normal_(last.weight, std=0.1)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


def _steps_to_target(
    model: nn.Module, data: Digits, *, rate: float, limit: int, generator: torch.Generator, stop: bool = True
) -> tuple[float, list[float]]:
    """Steps of SGD (batch of 60, no momentum) to the target on the test part, or the limit; and the accuracies on the way."""
    inputs, labels, test_inputs, test_labels = data
    optimizer = torch.optim.SGD(model.parameters(), rate)
    accuracies: list[float] = []
    reached = math.inf
    for step in range(1, limit + 1):
        chosen = torch.randint(len(labels), (60,), generator=generator)
        loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            accuracies.append(_accuracy(model, test_inputs, test_labels))
            if accuracies[-1] >= TARGET and math.isinf(reached):
                reached = step
                if stop:
                    break
    return min(reached, limit), accuracies


def _curve(accuracies: list[float], every: int = EVERY) -> Curve:
    return Curve([every * (number + 1) for number in range(len(accuracies))], [100 * value for value in accuracies])


def fewer_steps(seed: int, scale: str) -> Measurement:
    """Steps to 90 % with and without BN: at rate 0.2, and for each at the best of a grid of rates."""
    data = digits(seed, scale)
    limits = {0.2: 4000} | dict.fromkeys(RATES, 1500)
    if scale == "smoke":
        limits = dict.fromkeys(limits, 50)
    steps: dict[bool, dict[float, float]] = {False: {}, True: {}}
    best: dict[bool, dict[float, list[float]]] = {False: {}, True: {}}
    for normalized in (False, True):
        for rate, limit in limits.items():
            torch.manual_seed(seed)
            model = _sigmoid_net(data[0].shape[1], 3, normalized=normalized)
            generator = torch.Generator().manual_seed(seed + 1)
            steps[normalized][rate], best[normalized][rate] = _steps_to_target(
                model, data, rate=rate, limit=limit, generator=generator
            )
    fastest = {normalized: min(RATES, key=lambda rate: steps[normalized][rate]) for normalized in (False, True)}
    plot = Plot(
        "Steps to 90 % of right answers",
        "learning rate",
        "steps",
        {
            name: Curve(list(limits), [steps[normalized][rate] for rate in limits])
            for name, normalized in (("without", False), ("with batch normalization", True))
        },
        x_log=True,
        y_log=True,
        caption="Where the target was not reached, the limit stands: 4,000 steps at rate 0.2, else 1,500.",
    )
    return Measurement(
        {
            "ratio_each_at_best": steps[False][fastest[False]] / steps[True][fastest[True]],
            "ratio_at_0.2": steps[False][0.2] / steps[True][0.2],
            "steps_plain_at_0.2": steps[False][0.2],
            "steps_normalized_at_0.2": steps[True][0.2],
            "accuracy_plain_at_12.8": 100 * max(best[False][12.8]),
            "accuracy_normalized_at_12.8": 100 * max(best[True][12.8]),
        },
        {"steps": plot},
    )


def deep_sigmoid(seed: int, scale: str) -> Measurement:
    """Seven hidden layers of sigmoid units: accuracy after 600 steps, at the best of three rates."""
    data = digits(seed, scale)
    limit = {"smoke": 25, "quick": 600, "full": 3000}[scale]
    best: dict[bool, list[float]] = {}
    for normalized in (False, True):
        runs = []
        for rate in (0.2, 0.8, 3.2):
            torch.manual_seed(seed)
            model = _sigmoid_net(data[0].shape[1], 7, normalized=normalized)
            generator = torch.Generator().manual_seed(seed + 1)
            runs.append(
                _steps_to_target(model, data, rate=rate, limit=limit, generator=generator, stop=scale != "full")[1]
            )
        best[normalized] = max(runs, key=max)
    plot = Plot(
        "Seven layers of sigmoid units",
        "steps",
        "right answers (%)",
        {"without": _curve(best[False]), "with batch normalization": _curve(best[True])},
        caption="Each at the best of three rates. Ten classes: chance is about 10 %.",
    )
    numbers = {"accuracy_plain": 100 * max(best[False]), "accuracy_normalized": 100 * max(best[True])}
    return Measurement(numbers, {"accuracy": plot})


def _rectifier_net(inputs: int, *, normalized: bool, dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = inputs
    for _ in range(3):
        linear = nn.Linear(before, 128)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, *([BatchNorm1d(128)] if normalized else []), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
        before = 128
    return nn.Sequential(*layers, nn.Linear(before, 10))


def regularizes(seed: int, scale: str) -> Measurement:
    """1,000 training digits learned by heart: errors on others with and without BN, and with dropout of 0.3 besides."""
    inputs, labels, test_inputs, test_labels = digits(seed, scale)
    size = min(1000, len(labels))
    data = Parts(
        inputs=inputs[:size],
        labels=labels[:size],
        test_inputs=torch.cat([inputs[size:], test_inputs]),
        test_labels=torch.cat([labels[size:], test_labels]),
    )
    settings = Settings(
        epochs={"smoke": 1, "quick": 25, "full": 100}[scale], batch_size=50, learning_rate=0.1, weight_decay=0.0
    )
    errors: dict[tuple[bool, float], float] = {}
    learned: dict[bool, float] = {}
    for normalized in (False, True):
        for dropout in (0.0, 0.3):
            torch.manual_seed(seed)
            model = _rectifier_net(inputs.shape[1], normalized=normalized, dropout=dropout)
            errors[normalized, dropout] = 100 * train_classifier(model, data, settings, seed=seed).errors[-1]
            if not dropout:
                learned[normalized] = 100 * error_rate(model, data.inputs, data.labels)
    plot = Plot(
        "Errors on unseen digits",
        "",
        "error (%)",
        {
            name: Curve((0, 1), [errors[False, dropout], errors[True, dropout]])
            for name, dropout in (("no dropout", 0.0), ("dropout 0.3", 0.3))
        },
        kind="bar",
        ticks=("without", "with batch normalization"),
    )
    gains = {normalized: errors[normalized, 0.0] - errors[normalized, 0.3] for normalized in (False, True)}
    return Measurement(
        {
            "gain": errors[False, 0.0] - errors[True, 0.0],
            "training_error_plain": learned[False],
            "training_error_normalized": learned[True],
            "dropout_gain_difference": gains[False] - gains[True],
            "dropout_gain_plain": gains[False],
            "dropout_gain_normalized": gains[True],
        },
        {"errors": plot},
    )


def _image_parts(seed: int, scale: str) -> Parts:
    """14 x 14 digits, split as by the study; at scale smoke the 8 x 8 ones."""
    return split(dataset("digits" if scale == "smoke" else "mnist_5k"), seed=seed)


def _trained(parts: Parts, norm: Callable[[int], nn.Module], settings: Settings, seed: int) -> float:
    torch.manual_seed(seed)
    model = small_conv(tuple(parts.inputs.shape[1:]), 10, norm)
    return 100 * train_classifier(model, parts, settings, seed=seed).errors[-1]


def batch_sizes(seed: int, scale: str) -> Measurement:
    """Errors of the study's network by normalization, and of BN by the number of samples that give its statistics."""
    parts = _small_images(_image_parts(seed, scale))
    settings = Settings(epochs={"smoke": 1, "quick": 4, "full": 16}[scale])
    others = {
        name: _trained(parts, lambda channels, name=name: norm_layer(name, channels), settings, seed)
        for name in ("group", "layer", "instance")
    }
    batch = {
        size: _trained(parts, lambda channels, size=size: norm_layer("batch", channels, split=size), settings, seed)
        for size in SPLITS
    }
    worst = max(abs(batch[32] - batch[8]), 1e-9)
    plot = Plot(
        "Error by samples that are normalized together",
        "samples",
        "error (%)",
        {
            "batch normalization": Curve(list(SPLITS), [batch[size] for size in SPLITS]),
            "group normalization": Curve(list(SPLITS), [others["group"]] * len(SPLITS)),
            "layer normalization": Curve(list(SPLITS), [others["layer"]] * len(SPLITS)),
        },
        x_log=True,
        y_log=True,
        caption="The optimizer's batch is 32 throughout. Group and layer normalization do not see the split.",
    )
    return Measurement(
        {
            "group_minus_batch_at_32": others["group"] - batch[32],
            "layer_minus_group": others["layer"] - others["group"],
            "instance_minus_group": others["instance"] - others["group"],
            "rise_from_32_to_4": batch[4] - batch[32],
            "rise_from_32_to_2": batch[2] - batch[32],
            "rise_from_32_to_8": math.copysign(worst, batch[8] - batch[32]),
            "crossover": _crossover(batch, others["group"]),
            **{f"error_batch_{size}": value for size, value in batch.items()},
            **{f"error_{name}": value for name, value in others.items()},
        },
        {"errors": plot},
    )


def _small_images(parts: Parts) -> Parts:
    """Images of 28 x 28 as 14 x 14, so that the last maps are one pixel after four convolutions."""
    if parts.inputs.shape[-1] != 28:
        return parts
    return replace(
        parts,
        inputs=nn.functional.avg_pool2d(parts.inputs, 2),
        test_inputs=nn.functional.avg_pool2d(parts.test_inputs, 2),
    )


def _crossover(batch: dict[int, float], other: float) -> float:
    """The number of samples at which BN's error crosses the other's, between sizes along their logarithm.

    Where BN is better at every size, the smallest size stands; where it is worse at every size, the largest.
    """
    sizes = sorted(batch, reverse=True)
    if batch[sizes[0]] >= other:
        return float(sizes[0])
    for larger, smaller in pairwise(sizes):
        if batch[smaller] > other:
            share = (other - batch[larger]) / (batch[smaller] - batch[larger])
            return float(2 ** (math.log2(larger) + share * (math.log2(smaller) - math.log2(larger))))
    return float(sizes[-1])


def batch_independence(seed: int, scale: str) -> Measurement:
    """One batch through a network with GN, whole and in parts: outputs bit for bit, and gradients summed over the parts."""
    parts = _image_parts(seed, scale)
    torch.manual_seed(seed)
    images = parts.inputs[:32]
    differing = 0.0
    for size in SPLITS[1:]:
        layer = GroupNorm(4, 32, activation="relu")
        features = nn.functional.conv2d(images, torch.randn(32, images.shape[1], 3, 3) / 3)
        whole = layer(features)
        pieces = torch.cat([layer(piece) for piece in features.split(size)])
        differing += float((whole != pieces).sum())
    batch = norm_layer("batch", 32)
    spread = (batch(features) - torch.cat([batch(piece) for piece in features.split(2)])).abs().max()
    return Measurement({"differing_outputs": differing, "difference_of_batch_norm": float(spread)})


def batch_of_one(seed: int, scale: str) -> Measurement:
    """Training with one image a step: BN has only that image's statistics to train with, GN always had."""
    parts = _small_images(_image_parts(seed, scale))
    size = {"smoke": 50, "quick": 2000, "full": 4000}[scale]
    few = replace(parts, inputs=parts.inputs[:size], labels=parts.labels[:size])
    settings = Settings(epochs=1, batch_size=1, learning_rate=0.003)
    errors = {
        name: _trained(few, lambda channels, name=name: _single(name, channels), settings, seed)
        for name in ("batch", "group")
    }
    plot = Plot(
        "Error after training one image at a time",
        "",
        "error (%)",
        {"error": Curve((0, 1), [errors["batch"], errors["group"]])},
        kind="bar",
        ticks=("batch normalization", "group normalization"),
    )
    return Measurement({"error_batch": errors["batch"], "error_group": errors["group"]}, {"errors": plot})


class _SingleImageBatchNorm(nn.BatchNorm2d):
    """BN as a batch of one leaves it: the image's own statistics, and beta alone where a channel has one value."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return (self.weight * 0 * x.flatten(1) + self.bias).view_as(x)
        return super().forward(x)


def _single(name: str, channels: int) -> nn.Module:
    return _SingleImageBatchNorm(channels) if name == "batch" else norm_layer(name, channels)


def recurrent(seed: int, scale: str) -> Measurement:
    """Digits of 7 x 7 read pixel by pixel by an LSTM: steps to 55 % with BN in the recurrence, on the input, and without."""
    inputs, labels, test_inputs, test_labels = digits(seed, scale, side=7)
    steps = {"smoke": 5, "quick": 200, "full": 1500}[scale]
    every = 5 if scale == "smoke" else 10
    accuracies: dict[str, list[float]] = {}
    for name in ("plain", "sequence-wise", "recurrent"):
        torch.manual_seed(seed)
        model = _PixelReader(name, steps=inputs.shape[1])
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        generator = torch.Generator().manual_seed(seed + 1)
        accuracies[name] = []
        for step in range(1, steps + 1):
            chosen = torch.randint(len(labels), (64,), generator=generator)
            loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % every == 0:
                accuracies[name].append(_accuracy(model, test_inputs, test_labels))
    reached = {name: _first(values, 0.5, every) for name, values in accuracies.items()}
    plot = Plot(
        "Digits read pixel by pixel",
        "steps",
        "right answers (%)",
        {name: _curve(values, every) for name, values in accuracies.items()},
    )
    return Measurement(
        {
            "ratio_recurrent": reached["plain"] / reached["recurrent"],
            "ratio_sequence_wise": reached["plain"] / reached["sequence-wise"],
            "gain_recurrent": 100 * (accuracies["recurrent"][-1] - accuracies["plain"][-1]),
        },
        {"accuracy": plot},
    )


def _first(accuracies: list[float], target: float, every: int) -> float:
    """Steps to the target; where it was not reached, the last step."""
    reached = [number for number, value in enumerate(accuracies, 1) if value >= target]
    return float(every * (reached[0] if reached else len(accuracies)))


class _PixelReader(nn.Module):
    """An LSTM of 48 units over a sequence of grey values, and a linear layer on its last state."""

    def __init__(self, name: str, *, steps: int) -> None:
        super().__init__()
        self.lstm: Any
        if name == "recurrent":
            self.lstm = BatchNormLSTM(1, 48, max_length=steps, initial_noise=0.1)
        elif name == "sequence-wise":
            self.lstm = SequenceBatchNormLSTM(1, 48)
        else:
            self.lstm = nn.LSTM(1, 48)
            for weight in (self.lstm.weight_ih_l0, self.lstm.weight_hh_l0):
                for block in weight.data.chunk(4):
                    nn.init.orthogonal_(block)
            nn.init.zeros_(self.lstm.bias_ih_l0)
            nn.init.zeros_(self.lstm.bias_hh_l0)
        bias = self.lstm.bias_ih_l0 if name == "plain" else self.lstm.bias
        bias.data[48:96] = 1.0  # of the forget gate: remember at first
        self.output = nn.Linear(48, 10)

    def forward(self, images: Tensor) -> Tensor:
        _, (h, _) = self.lstm(images.T.unsqueeze(-1))
        return self.output(h.reshape(-1, 48))
