"""Measurements behind the claims of Ioffe & Szegedy 2015, and of Cooijmans et al. 2016: how fast networks train with BN.

Each is a function of seed and scale. At scale smoke the images are 300 digits of 8 x 8 pixels and a few steps are made,
which tells nothing about a claim; at the others they are 5,000 digits of MNIST, 4,000 of them to train on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tenfold.claims import Curve, Measurement, Plot
from tenfold.normalization.batch_normalization import BatchNorm1d
from tenfold.normalization.data import Parts
from tenfold.normalization.recurrent import BatchNormLSTM, SequenceBatchNormLSTM
from tenfold.normalization.training import Settings, error_rate, train_classifier

Digits = tuple[Tensor, Tensor, Tensor, Tensor]

TARGET = 0.9  # accuracy on the test part
EVERY = 25  # steps between evaluations
RATES = (0.8, 1.6, 3.2, 6.4)  # each side's best is among them, as a wider grid by factors of 4 shows
LARGE_RATE = 12.8
DROPOUT = 0.2
RECURRENT_TARGET = 0.5
RECURRENT_EVERY = 10


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
    model: nn.Module, data: Digits, *, rate: float, limit: int, generator: torch.Generator
) -> tuple[float, list[float]]:
    """Steps of SGD (batch of 60, no momentum) to the target on the test part, or the limit; and the accuracies on the way."""
    inputs, labels, test_inputs, test_labels = data
    optimizer = torch.optim.SGD(model.parameters(), rate)
    accuracies: list[float] = []
    for step in range(1, limit + 1):
        chosen = torch.randint(len(labels), (60,), generator=generator)
        loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            accuracies.append(_accuracy(model, test_inputs, test_labels))
            if accuracies[-1] >= TARGET:
                return step, accuracies
    return limit, accuracies


def _curve(accuracies: list[float], every: int = EVERY) -> Curve:
    return Curve([every * (number + 1) for number in range(len(accuracies))], [100 * value for value in accuracies])


def _run(
    data: Digits, hidden_layers: int, seed: int, *, normalized: bool, rate: float, limit: int
) -> tuple[float, list[float]]:
    """Steps to the target, or the limit, and accuracies of the sigmoid network, with the same batches on both sides."""
    torch.manual_seed(seed)
    model = _sigmoid_net(data[0].shape[1], hidden_layers, normalized=normalized)
    return _steps_to_target(model, data, rate=rate, limit=limit, generator=torch.Generator().manual_seed(seed + 1))


def fewer_steps(seed: int, scale: str) -> Measurement:
    """Steps to 90 % with and without BN: at rate 0.2, and for each at the best of a grid of rates."""
    data = digits(seed, scale)
    limits = {0.2: 4000} | dict.fromkeys(RATES, 1500)
    if scale == "smoke":
        limits = dict.fromkeys(limits, EVERY)
    steps = {
        normalized: {
            rate: _run(data, 3, seed, normalized=normalized, rate=rate, limit=limit)[0]
            for rate, limit in limits.items()
        }
        for normalized in (False, True)
    }
    best = {normalized: min(steps[normalized][rate] for rate in RATES) for normalized in (False, True)}
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
            "ratio_each_at_best": best[False] / best[True],
            "ratio_at_0.2": steps[False][0.2] / steps[True][0.2],
            "steps_plain_at_best": best[False],
            "steps_normalized_at_best": best[True],
            "steps_plain_at_0.2": steps[False][0.2],
            "steps_normalized_at_0.2": steps[True][0.2],
        },
        {"steps": plot},
    )


def large_rate(seed: int, scale: str) -> Measurement:
    """Best accuracy within 1,500 steps at rate 12.8, with and without BN."""
    data = digits(seed, scale)
    limit = {"smoke": EVERY, "quick": 1500, "full": 5000}[scale]
    runs = {
        normalized: _run(data, 3, seed, normalized=normalized, rate=LARGE_RATE, limit=limit)[1]
        for normalized in (False, True)
    }
    return _compared("Learning rate 12.8", runs, "Each run ends at 90 %. Ten classes: chance is about 10 %.")


def deep_sigmoid(seed: int, scale: str) -> Measurement:
    """Seven hidden layers of sigmoid units: best accuracy within 400 steps, at the best of three rates."""
    data = digits(seed, scale)
    limit = {"smoke": EVERY, "quick": 400, "full": 3000}[scale]
    runs = {
        normalized: max(
            (_run(data, 7, seed, normalized=normalized, rate=rate, limit=limit)[1] for rate in (0.2, 0.8, 3.2)),
            key=max,
        )
        for normalized in (False, True)
    }
    return _compared(
        "Seven layers of sigmoid units",
        runs,
        "Each at the best of three rates; a run ends at 90 %. Ten classes: chance is about 10 %.",
    )


def _compared(title: str, runs: dict[bool, list[float]], caption: str) -> Measurement:
    plot = Plot(
        title,
        "steps",
        "right answers (%)",
        {"without": _curve(runs[False]), "with batch normalization": _curve(runs[True])},
        caption=caption,
    )
    numbers = {"accuracy_plain": 100 * max(runs[False]), "accuracy_normalized": 100 * max(runs[True])}
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


def _learned_by_heart(seed: int, scale: str, *, normalized: bool, dropout: float, rate: float) -> tuple[float, float]:
    """Errors (%) in 1,000 digits of training and in all others after training until the former are known by heart."""
    inputs, labels, test_inputs, test_labels = digits(seed, scale)
    size = min(1000, len(labels))
    data = Parts(
        inputs=inputs[:size],
        labels=labels[:size],
        test_inputs=torch.cat([inputs[size:], test_inputs]),
        test_labels=torch.cat([labels[size:], test_labels]),
    )
    epochs = {"smoke": 1, "quick": 25, "full": 100}[scale]
    settings = Settings(epochs=epochs, batch_size=50, learning_rate=rate, weight_decay=0.0)
    torch.manual_seed(seed)
    model = _rectifier_net(inputs.shape[1], normalized=normalized, dropout=dropout)
    errors = train_classifier(model, data, settings, seed=seed).errors
    return 100 * error_rate(model, data.inputs, data.labels), 100 * errors[-1]


def regularizes(seed: int, scale: str) -> Measurement:
    """Errors on unseen digits with and without BN, both without an error in training."""
    learned, errors = zip(
        *(_learned_by_heart(seed, scale, normalized=normalized, dropout=0.0, rate=0.1) for normalized in (False, True)),
        strict=True,
    )
    return Measurement(
        {
            "gain": errors[0] - errors[1],
            "error_plain": errors[0],
            "error_normalized": errors[1],
            "training_error_plain": learned[0],
            "training_error_normalized": learned[1],
        }
    )


def dropout_helps_less(seed: int, scale: str) -> Measurement:
    """What dropout takes off the error on unseen digits, with and without BN."""
    errors = {
        normalized: [
            _learned_by_heart(seed, scale, normalized=normalized, dropout=dropout, rate=0.03)[1]
            for dropout in (0.0, DROPOUT)
        ]
        for normalized in (False, True)
    }
    gains = {normalized: errors[normalized][0] - errors[normalized][1] for normalized in (False, True)}
    plot = Plot(
        "Errors on unseen digits",
        "",
        "error (%)",
        {
            name: Curve((0, 1), [errors[False][number], errors[True][number]])
            for number, name in enumerate(("no dropout", f"dropout {DROPOUT:g}"))
        },
        kind="bar",
        ticks=("without BN", "with BN"),
    )
    return Measurement(
        {"difference": gains[False] - gains[True], "gain_plain": gains[False], "gain_normalized": gains[True]},
        {"errors": plot},
    )


def recurrent(seed: int, scale: str) -> Measurement:
    """Digits of 7 x 7 read pixel by pixel by an LSTM: steps to 50 % with BN in the recurrence, on the input, and without."""
    data = digits(seed, scale, side=7)
    limit = {"smoke": 10, "quick": 300, "full": 1500}[scale]
    accuracies = {name: _read_by_pixel(name, data, seed, limit) for name in ("plain", "sequence-wise", "recurrent")}
    steps = {name: RECURRENT_EVERY * len(values) for name, values in accuracies.items()}
    plot = Plot(
        "Digits read pixel by pixel",
        "steps",
        "right answers (%)",
        {name: _curve(values, RECURRENT_EVERY) for name, values in accuracies.items()},
        caption="Each run ends at 50 %, or at 300 steps (1,500 at scale full).",
    )
    return Measurement(
        {
            "ratio_recurrent": steps["plain"] / steps["recurrent"],
            "ratio_sequence_wise": steps["plain"] / steps["sequence-wise"],
            "steps_plain": steps["plain"],
            "steps_recurrent": steps["recurrent"],
        },
        {"accuracy": plot},
    )


def _read_by_pixel(name: str, data: Digits, seed: int, limit: int) -> list[float]:
    """Accuracies on the way to 50 %, with Adam and batches of 64."""
    inputs, labels, test_inputs, test_labels = data
    torch.manual_seed(seed)
    model = _PixelReader(name, steps=inputs.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(seed + 1)
    accuracies: list[float] = []
    for step in range(1, limit + 1):
        chosen = torch.randint(len(labels), (64,), generator=generator)
        loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % RECURRENT_EVERY == 0:
            accuracies.append(_accuracy(model, test_inputs[:500], test_labels[:500]))
            if accuracies[-1] >= RECURRENT_TARGET:
                break
    return accuracies


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
