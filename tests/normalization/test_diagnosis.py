"""Training against evaluation: measured by hand, and each fault that users report is named at the layer that has it."""

import copy
import math

import polars
import pytest
import torch
from torch import nn

from tenfold.errors import InputError
from tenfold.normalization.diagnosis import diagnose
from tenfold.normalization.reestimation import reestimate


def images(count=64, seed=0):
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 + 1


def net():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5),
    ).double()  # fmt: skip
    reestimate(model, images().split(16))
    return model


def rows_by_name(diagnosis):
    return {row.name: row for row in diagnosis.rows}


def test_a_model_with_right_statistics_has_no_findings():
    diagnosis = diagnose(net(), images().split(16))
    assert diagnosis.findings == []
    assert diagnosis.samples == 64
    assert diagnosis.batches == 4
    rows = rows_by_name(diagnosis)
    assert list(rows) == ["1", "4", "8"]
    assert max(row.drift for row in diagnosis.rows[:1]) < 1e-3  # n / (n - 1) remains
    assert all(row.gap < 0.5 for row in diagnosis.rows)
    assert "no findings" in str(diagnosis)


def test_gap_drift_and_noise_against_float64_by_hand():
    torch.manual_seed(0)
    layer = nn.BatchNorm1d(4, eps=1e-3).double()
    layer.weight.data.uniform_(0.5, 2)
    layer.bias.data.normal_()
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    layer.num_batches_tracked.fill_(3)
    x = torch.randn(30, 4, dtype=torch.float64) * 3 + 1
    parts = x.split([7, 23])
    (row,) = diagnose(layer, parts).rows

    def normal(part, mean, variance):
        return (part - mean) / (variance + 1e-3).sqrt()

    running = (layer.running_mean, layer.running_var)
    whole = (x.mean(0), x.var(0, correction=0))
    drift = (normal(x, *whole) - normal(x, *running)).square().mean().sqrt()
    by_batch = torch.cat([normal(part, part.mean(0), part.var(0, correction=0)) for part in parts])
    noise = (by_batch - normal(x, *whole)).square().mean().sqrt()
    trained = by_batch * layer.weight + layer.bias
    gap = (by_batch - normal(x, *running)).mul(layer.weight).square().sum() / (trained - trained.mean(0)).square().sum()
    assert row.drift == pytest.approx(drift.item(), rel=1e-10)
    assert row.batch_noise == pytest.approx(noise.item(), rel=1e-10)
    assert row.gap == pytest.approx(gap.sqrt().item(), rel=1e-10)
    assert row.worst_channel == (normal(x, *whole) - normal(x, *running)).square().mean(0).argmax()


def test_the_layer_at_fault_is_named_and_not_those_behind_it():
    # pytorch#5406, pytorch#4741: evaluation far worse than training
    model = net()
    model[1].running_mean.add_(3.0)
    rows = rows_by_name(diagnose(model, images().split(16)))
    assert "stale" in rows["1"].findings[0]
    assert rows["1"].drift > 1
    assert not rows["4"].findings
    assert rows["4"].drift < 0.2
    assert rows["4"].gap > 0.5  # the fault reaches it all the same


def test_the_model_is_left_as_it_was():
    model = net().train()
    model[4].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    diagnose(model, images().split(16))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes

    def broken(module, batch):
        module(batch)
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        diagnose(model, images().split(16), forward=broken)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_never_updated_statistics():
    model = net()
    model[4].reset_running_stats()
    rows = rows_by_name(diagnose(model, images().split(16)))
    assert "never updated" in rows["4"].findings[0]
    assert rows["4"].updates == 0


def test_statistics_that_are_not_finite():
    # pytorch#1206
    model = net()
    model[1].running_var[2] = float("nan")
    row = rows_by_name(diagnose(model, images().split(16)))["1"]
    assert "not finite in 1 places" in row.findings[0]
    assert row.gap == math.inf
    assert row.worst_channel == 2


def test_batches_that_were_skipped_in_training_are_reported():
    model = net()
    model[1].skipped_updates = 3  # as the layers of this library count them
    row = rows_by_name(diagnose(model, images().split(16)))["1"]
    assert row.findings == ("3 training batches had statistics that are not finite and were left out of the average",)


def test_dead_channels_by_constant_input_and_by_zero_weight():
    model = net()
    model[0].weight.data[5] = 0
    model[1].weight.data[2] = 0
    model[1].running_mean[5] = model[0].bias.data[5]
    row = rows_by_name(diagnose(model, images().split(16)))["1"]
    assert row.dead_channels == (2, 5)
    assert any("2 of 8 channels are dead (constant): 2, 5" in finding for finding in row.findings)


def test_channels_that_are_never_positive_are_counted():
    model = net()
    model[4].bias.data[1] = -50
    assert rows_by_name(diagnose(model, images().split(16)))["4"].never_positive == 1


def test_reused_layer():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.norm(x) * 3 + 1)

    model = Twice().double()
    reestimate(model, images().split(16))
    (row,) = diagnose(model, images().split(16)).rows
    assert row.calls == 2
    assert row.values == 2 * 64 * 36
    assert any("called 2 times" in finding for finding in row.findings)


def test_momentum_of_another_framework():
    # ludwig PR 2100, EfficientNet-PyTorch#3
    model = net()
    model[1].momentum = 0.99
    row = rows_by_name(diagnose(model, images().split(16)))["1"]
    assert any("momentum is 0.99" in finding and "Keras" in finding for finding in row.findings)


def test_small_batches_and_batches_of_one():
    model = net()
    rows = rows_by_name(diagnose(model, images().split(2)))
    assert any("too small" in finding for finding in rows["8"].findings)
    assert not rows["1"].findings  # 32 values a channel there
    ones = rows_by_name(diagnose(model, images(3).split(1)))
    assert any("one value in each channel" in finding for finding in ones["8"].findings)


def test_layers_without_statistics_and_never_called_ones():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stateless = nn.BatchNorm2d(3, track_running_stats=False, affine=False)
            self.spare = nn.BatchNorm2d(3)

        def forward(self, x):
            return self.stateless(x)

    rows = rows_by_name(diagnose(Net().double(), images().split(16)))
    assert "depends on the batch in evaluation" in rows["stateless"].findings[0]
    assert rows["stateless"].drift is None
    assert rows["spare"].findings == ("it was never called",)


def test_empty_loader_and_models_without_such_layers():
    with pytest.raises(ValueError, match="no batches"):
        diagnose(net(), [])
    diagnosis = diagnose(nn.GroupNorm(1, 3).double(), images())
    assert diagnosis.rows == ()
    assert "no layer" in str(diagnosis)
    assert diagnosis.to_frame().height == 0


def test_frame_and_plot(tmp_path):
    model = net()
    model[1].running_mean.add_(3.0)
    diagnosis = diagnose(model, images().split(16))
    frame = diagnosis.to_frame()
    assert frame["name"].to_list() == ["1", "4", "8"]
    assert frame["drift"].dtype == polars.Float64
    assert "stale" in frame["findings"][0]
    for suffix in (".png", ".svg", ".pdf"):
        diagnosis.plot(tmp_path / f"layers{suffix}")
        assert (tmp_path / f"layers{suffix}").stat().st_size > 2000
    first = (tmp_path / "layers.svg").read_bytes()
    diagnosis.plot(str(tmp_path / "layers.svg"))
    assert (tmp_path / "layers.svg").read_bytes() == first
    assert b"standard deviations" in first or b"glyph" in first
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        diagnosis.plot(tmp_path / "layers.jpg")
    with pytest.raises(InputError, match="nothing to draw"):
        diagnose(nn.Identity(), images()).plot(tmp_path / "none.png")
