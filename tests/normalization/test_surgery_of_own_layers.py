"""Re-estimation, diagnosis and folding of this library's own layers: every kind, masks, activations and sums."""

import pytest
import torch
from torch import nn
from two_processes import run_in_two_processes

from tenfold.normalization.batch_normalization import BatchNorm1d, BatchNorm2d
from tenfold.normalization.conversion import convert
from tenfold.normalization.cross_process import CrossProcessBatchNorm
from tenfold.normalization.diagnosis import diagnose
from tenfold.normalization.folded import Activation
from tenfold.normalization.folding import fold
from tenfold.normalization.frozen import FrozenBatchNorm
from tenfold.normalization.ghost import GhostBatchNorm
from tenfold.normalization.inventory import inference_affine, kind_of, layers_of, running_statistics
from tenfold.normalization.reestimation import reestimate
from tenfold.normalization.renorm import BatchRenorm

DOUBLE = torch.float64
KINDS = {
    "batch": lambda channels: BatchNorm2d(channels),
    "ghost": lambda channels: GhostBatchNorm(channels, virtual_batch_size=4),
    "renorm": lambda channels: BatchRenorm(channels),
    "cross_process": lambda channels: CrossProcessBatchNorm(channels),
    "frozen": lambda channels: FrozenBatchNorm.from_module(nn.BatchNorm2d(channels)),
}


def images(count=20, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, channels, 6, 5, generator=generator, dtype=DOUBLE) * 3 + 2


def spread(layer):
    """Statistics and parameters away from their first values."""
    layer = layer.double().eval()
    for name, low, high in (
        ("running_mean", -1, 1), ("running_var", 0.3, 2), ("running_std", 0.5, 2), ("weight", -2, 2), ("bias", -1, 1),
    ):  # fmt: skip
        if isinstance(tensor := getattr(layer, name, None), torch.Tensor):
            tensor.data.uniform_(low, high)
    return layer


@pytest.mark.parametrize("kind", KINDS)
def test_inventory_knows_what_each_kind_computes_in_evaluation(kind):
    layer = spread(KINDS[kind](3))
    assert kind_of(layer) == kind
    scale, shift = inference_affine(layer)
    x = images()
    want = x * scale[:, None, None] + shift[:, None, None]
    torch.testing.assert_close(layer(x), want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "frozen"])
def test_every_kind_gets_the_pooled_moments(kind):
    layer = spread(KINDS[kind](3)).train()
    x = images()
    reestimate(layer, x.split([1, 7, 12]))
    mean, variance = running_statistics(layer)
    torch.testing.assert_close(mean, x.mean((0, 2, 3)), rtol=1e-10, atol=1e-10)
    unbiased = 0 if kind == "renorm" else 1  # Batch Renormalization averages the batch's own deviation
    torch.testing.assert_close(variance, x.var((0, 2, 3), correction=unbiased), rtol=1e-10, atol=1e-10)
    assert layer.training


def test_biased_running_variance_by_name():
    # pytorch#106366, keras#8982
    layer = BatchNorm2d(3, running_variance="biased").double()
    x = images()
    reestimate(layer, x.split(7))
    torch.testing.assert_close(layer.running_var, x.var((0, 2, 3), correction=0), rtol=1e-10, atol=1e-10)


def test_frozen_layers_stay_frozen():
    model = nn.Sequential(spread(KINDS["frozen"](3)), BatchNorm2d(3)).double()
    before = {name: b.clone() for name, b in model[0].named_buffers()}
    report = reestimate(model, images().split(7)).report
    assert [layer.name for layer in report.layers] == ["1"]
    assert "0 is frozen" in str(report)
    assert all(torch.equal(b, before[name]) for name, b in model[0].named_buffers())
    row = diagnose(model, images().split(7)).rows[0]
    assert (row.kind, row.gap) == ("frozen", 0.0)
    assert row.drift > 0.5


@pytest.mark.parametrize("argument", ["mask", "lengths"])
def test_padding_is_not_counted(argument):
    # pytorch#70529, pytorch#25910: lengths 7, 3, 1, 5 padded with 777
    lengths = torch.tensor([7, 3, 1, 5])
    mask = torch.arange(7) < lengths[:, None]
    x = torch.randn(4, 3, 7, dtype=DOUBLE).masked_fill(~mask[:, None], 777.0)
    layer = BatchNorm1d(3).double()
    given = {"mask": mask, "lengths": lengths}[argument]
    batches = [(x[:1], given[:1]), (x[1:], given[1:])]
    reestimate(layer, batches, forward=lambda model, batch: model(batch[0], **{argument: batch[1]}))
    valid = x.movedim(1, -1)[mask]
    assert len(valid) == 16
    torch.testing.assert_close(layer.running_mean, valid.mean(0), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.running_var, valid.var(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_example", [True, False])
def test_every_kind_folds(kind, with_example):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), spread(KINDS[kind](4)), nn.ReLU()).double().eval()
    x = images()
    result = fold(model, x if with_example else None)
    assert result.report.folded == (("1", "0"),)
    torch.testing.assert_close(result.model(x), model(x), rtol=1e-10, atol=1e-10)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = spread(BatchNorm2d(3, activation="relu"))

    def forward(self, x):
        return self.norm(self.conv(x), add=x)


@pytest.mark.parametrize("with_example", [True, False])
def test_activation_and_sum_stay_when_the_layer_is_folded(with_example):
    model = Residual().double().eval()
    x = images()
    result = fold(model, x if with_example else None)
    assert isinstance(result.model.norm, Activation)
    assert result.model.norm.name == "relu"
    torch.testing.assert_close(result.model(x), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("with_example", [True, False])
def test_calls_with_a_mask_or_with_one_tensor_twice_are_kept(with_example):
    class Masked(nn.Module):
        def __init__(self, run):
            super().__init__()
            self.conv = nn.Conv1d(3, 3, 1)
            self.norm = spread(BatchNorm1d(3))
            self.run = run

        def forward(self, x):
            return self.run(self, self.conv(x))

    x = torch.randn(2, 3, 5, dtype=DOUBLE)
    lengths = torch.tensor([5, 2])
    for run, reason in (
        (lambda m, h: m.norm(h, lengths=lengths), "called with lengths"),
        (lambda m, h: m.norm(h, add=h), "one tensor as two arguments"),
    ):
        model = Masked(run).double().eval()
        result = fold(model, x if with_example else None)
        ((_, why),) = result.report.kept
        assert reason in why
        torch.testing.assert_close(result.model(x), model(x), rtol=0, atol=0)


def over_two(rank):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2)
    ).double()
    net = convert(net, "cross_process").model
    x = images(11)
    part = x[:3] if rank == 0 else x[3:]
    reestimate(net, [part])
    state = {name: value.clone() for name, value in net.state_dict().items() if "running" in name}
    for layer in layers_of(net).values():
        layer.momentum = 1.0
    net.train()(part)  # one step records the statistics of both processes' rows
    return state, {name: value for name, value in net.state_dict().items() if "running" in name}


def test_cross_process_training_step_and_re_estimation_agree(tmp_path):
    # pytorch PR 78081, fvcore#152
    (first, step), (second, _) = run_in_two_processes(over_two, tmp_path)
    for name, value in first.items():
        assert torch.equal(value, second[name])
        torch.testing.assert_close(step[name], value, rtol=1e-10, atol=1e-10)
