"""Batch normalization of 1, 2 and 3 axes against the formulas in float64 and against torch's layers."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from tenfold.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    CrossProcessBatchNorm,
    FrozenBatchNorm,
    GhostBatchNorm,
    batch_norm,
    mask_from_lengths,
    name_layers,
)
from type_checking import unchecked_annotations

LAYERS = [
    (BatchNorm1d, nn.BatchNorm1d, (6, 4)),
    (BatchNorm1d, nn.BatchNorm1d, (6, 4, 5)),
    (BatchNorm2d, nn.BatchNorm2d, (6, 4, 5, 3)),
    (BatchNorm3d, nn.BatchNorm3d, (6, 4, 2, 3, 3)),
]
ACTIVATIONS = {"relu": torch.relu, "silu": nn.functional.silu, "gelu": nn.functional.gelu, None: lambda y: y}


def randomized(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


@pytest.mark.parametrize(("ours", "torchs", "shape"), LAYERS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_three_steps_and_evaluation_are_torchs_then_sum_then_activation(ours, torchs, shape, activation, momentum):
    layer = randomized(ours(4, momentum=momentum, activation=activation).double())
    peer = torchs(4, momentum=momentum).double()
    peer.load_state_dict(layer.state_dict())
    for training in (True, True, True, False):
        layer.train(training)
        peer.train(training)
        x, other = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
        x2, other2 = x.clone().requires_grad_(), other.clone().requires_grad_()
        x.requires_grad_()
        other.requires_grad_()
        mine, theirs = layer(x, other), ACTIVATIONS[activation](peer(x2) + other2)
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        dy = torch.randn_like(mine)
        got = torch.autograd.grad(mine, (x, other, *layer.parameters()), dy)
        wanted = torch.autograd.grad(theirs, (x2, other2, *peer.parameters()), dy)
        for one, two in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-11)
    for one, two in zip(layer.buffers(), peer.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("ours", "torchs", "shape"), LAYERS)
def test_checkpoints_load_both_ways_and_types_are_torchs(ours, torchs, shape):
    layer, peer = randomized(ours(4)), randomized(torchs(4))
    assert isinstance(layer, torchs)
    layer.load_state_dict(peer.state_dict(), strict=True)
    x = torch.randn(shape)
    torch.testing.assert_close(layer.eval()(x), peer.eval()(x))
    peer.load_state_dict(randomized(layer).state_dict(), strict=True)
    torch.testing.assert_close(layer(x), peer(x))


def test_hand_worked_batch():
    layer = BatchNorm1d(1, eps=0.0, momentum=0.5)
    y = layer(torch.tensor([[1.0], [3.0], [8.0]]))  # mean 4, biased variance 26/3, unbiased 13
    deviation = (26 / 3) ** 0.5
    torch.testing.assert_close(y.flatten(), torch.tensor([-3 / deviation, -1 / deviation, 4 / deviation]))
    assert layer.running_mean.item() == pytest.approx(2.0)
    assert layer.running_var.item() == pytest.approx(0.5 + 6.5)


def test_running_variance_is_unbiased_or_biased_by_name():  # pytorch#19902, #77427, keras#8982
    x = torch.tensor([[1.0], [3.0], [8.0]])
    for name, variance in (("unbiased", 13.0), ("biased", 26 / 3)):
        layer = BatchNorm1d(1, momentum=1.0, running_variance=name)
        layer(x)
        assert layer.running_var.item() == pytest.approx(variance)


def test_keras_conventions():  # ludwig PR 2100, EfficientNet-PyTorch#3
    layer = BatchNorm2d.from_keras(3, momentum=0.99, epsilon=1e-3)
    assert (layer.eps, layer.running_variance) == (1e-3, "biased")
    assert layer.momentum == pytest.approx(0.01)
    x = torch.randn(4, 3, 5, 5)
    layer(x)
    torch.testing.assert_close(layer.running_var, 0.99 + 0.01 * x.var((0, 2, 3), correction=0))
    with pytest.warns(UserWarning, match=r"Keras's momentum=0.99 is 0.01 here"):
        BatchNorm2d(3, momentum=0.99)


@pytest.mark.parametrize("filler", [777.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [BatchNorm1d, GhostBatchNorm, CrossProcessBatchNorm])
def test_only_valid_positions_count(kind, filler):  # pytorch#25910, tensorflow#30161, Multilingual_Text_to_Speech#81
    lengths = torch.tensor([7, 3, 1, 5])
    valid = mask_from_lengths(lengths, 7)
    layer = kind(2, activation="silu", momentum=1.0).double()
    x = torch.randn(4, 2, 7, dtype=torch.float64)
    padded = x.masked_fill(~valid.unsqueeze(1), filler).requires_grad_()
    y = layer(padded, lengths=lengths)
    values = x.permute(0, 2, 1)[valid]  # 16 rows of 2 channels
    z = (values - values.mean(0)) / torch.sqrt(values.var(0, correction=0) + 1e-5)
    torch.testing.assert_close(y.permute(0, 2, 1)[valid], nn.functional.silu(z))
    assert bool((y.permute(0, 2, 1)[~valid] == 0).all())
    torch.testing.assert_close(layer.running_mean, values.mean(0))
    torch.testing.assert_close(layer.running_var, values.var(0))
    y.square().sum().backward()
    assert bool((padded.grad.permute(0, 2, 1)[~valid] == 0).all())
    again = kind(2, activation="silu").double()
    assert torch.equal(again(padded, mask=valid), y)


def test_gradient_of_masked_statistics():
    lengths = torch.tensor([3, 1, 2])
    layer = randomized(BatchNorm1d(2, activation="gelu", track_running_stats=False).double())
    x = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, lengths=lengths), (x,))


def test_a_mask_of_two_axes_serves_inputs_of_more():
    x = torch.randn(3, 2, 4, 5)
    mask = mask_from_lengths(torch.tensor([4, 1, 2]), 4)
    one, two = BatchNorm2d(2), BatchNorm2d(2)
    wide = mask.unsqueeze(-1).expand(3, 4, 5)
    assert torch.equal(one(x, mask=mask), two(x, mask=wide))
    assert torch.equal(one.running_var, two.running_var)


def test_one_value_a_channel_is_an_error_that_names_the_layer():  # fastai#1352, pytorch#4534
    model = name_layers(nn.Sequential(nn.Linear(2, 3), nn.Sequential(BatchNorm1d(3))))
    with pytest.raises(ValueError, match=r"1\.0 \(BatchNorm1d\) needs more than 1 value a channel in training"):
        model(torch.randn(1, 2))
    with pytest.raises(ValueError, match="BatchNorm1d needs more than 1 value"):
        BatchNorm1d(512)(torch.randn(1, 512))
    model.eval()
    assert model(torch.randn(1, 2)).shape == (1, 3)


def test_one_value_a_channel_by_population_statistics_where_asked():
    layer = BatchNorm1d(2, on_single="running", momentum=0.5)
    layer.running_mean.copy_(torch.tensor([1.0, 2.0]))
    layer.running_var.copy_(torch.tensor([4.0, 9.0]))
    y = layer(torch.tensor([[3.0, 8.0]]))
    assert bool(torch.isfinite(y).all())
    assert layer.running_mean.tolist() == [2.0, 5.0]  # one value has a mean
    assert layer.running_var.tolist() == [4.0, 9.0]  # and no variance
    # normalized by the statistics as they were before the value entered the mean
    torch.testing.assert_close(y, torch.tensor([[2.0 / 2, 6.0 / 3]]), rtol=1e-4, atol=1e-4)


def test_a_batch_that_is_not_finite_leaves_the_population_alone():  # pytorch#1206, SparseConvNet#190
    layer = BatchNorm2d(2)
    layer(torch.randn(4, 2, 3, 3))
    before = [buffer.clone() for buffer in layer.buffers()]
    bad = torch.randn(4, 2, 3, 3)
    bad[0, 0, 0, 0] = float("inf")
    with pytest.warns(UserWarning, match="not finite"):
        layer(bad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(bad)  # warns once
    assert layer.skipped_updates == 2
    assert all(torch.equal(one, two) for one, two in zip(before, layer.buffers(), strict=True))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scales_at_the_edges_of_float32(scale):  # pytorch#162489
    x = torch.randn(4, 2, 8, 8) * scale
    exact = x.double().numpy()
    mean, variance = exact.mean((0, 2, 3), keepdims=True), exact.var((0, 2, 3), keepdims=True)
    layer = BatchNorm2d(2, eps=0.0)
    got = layer(x).detach().double().numpy()
    assert np.abs(got - (exact - mean) / np.sqrt(variance)).max() < 1e-6
    assert bool(torch.isfinite(layer.running_var).all())


def test_functional_form_is_the_layer():
    x = torch.randn(5, 3, 4)
    mean, variance = torch.zeros(3), torch.ones(3)
    weight, bias = torch.randn(3), torch.randn(3)
    y = batch_norm(x, mean, variance, weight, bias, training=True, momentum=0.2, activation="relu", add=x)
    theirs_mean, theirs_variance = torch.zeros(3), torch.ones(3)
    theirs = nn.functional.batch_norm(x, theirs_mean, theirs_variance, weight, bias, True, 0.2)
    torch.testing.assert_close(y, torch.relu(theirs + x))
    torch.testing.assert_close(mean, theirs_mean)
    torch.testing.assert_close(variance, theirs_variance)
    with pytest.raises(ValueError, match="evaluation needs running_mean"):
        batch_norm(x)


def test_frozen_statistics_do_not_thaw():  # pytorch#86590, mmdetection#346, gt-pyg#112
    source = BatchNorm2d(3, activation="relu")
    source(torch.randn(4, 3, 5, 5))
    source.eval()
    model = nn.Sequential(FrozenBatchNorm.from_module(source))
    x = torch.randn(4, 3, 5, 5)
    before = [buffer.clone() for buffer in model.buffers()]
    expected = source(x)
    model.train()
    torch.testing.assert_close(model(x), expected)
    assert model.training
    assert not model[0].training
    assert not list(model.parameters())
    assert all(torch.equal(one, two) for one, two in zip(before, model.buffers(), strict=True))
    fresh = FrozenBatchNorm(3)
    fresh.load_state_dict(source.state_dict(), strict=True)  # torch's count of batches has no place in it
    torch.testing.assert_close(torch.relu(fresh(x)), expected)
    with pytest.raises(ValueError, match="no population statistics"):
        FrozenBatchNorm.from_module(nn.BatchNorm2d(3, track_running_stats=False))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchNorm2d(3)(torch.zeros(2, 3, 4)), "expected 4D input"),
        (lambda: BatchNorm2d(3)(torch.zeros(2, 4, 5, 5)), "the layer has 3 channels"),
        (lambda: BatchNorm2d(3)(torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 5)), "add has shape"),
        (lambda: BatchNorm1d(3, momentum=1.5), "momentum=1.5"),
        (lambda: BatchNorm1d(3, activation="tanh"), "activation='tanh'"),
        (lambda: BatchNorm1d(3, on_single="skip"), "on_single='skip'"),
        (lambda: BatchNorm1d(3, running_variance="n"), "running_variance='n'"),
        (lambda: BatchNorm1d(3, eps=-1.0), "eps=-1.0"),
        (lambda: BatchNorm1d(3)(torch.zeros(2, 3), lengths=torch.tensor([1, 1])), r"lengths are for inputs \(N, C, L"),
        (lambda: BatchNorm1d(3)(torch.zeros(2, 3, 4), lengths=torch.tensor([5, 1])), "the input has 4 positions"),
        (lambda: BatchNorm1d(3)(torch.zeros(2, 3, 4), lengths=torch.tensor([1])), "the input has 2 rows"),
        (lambda: BatchNorm1d(3)(torch.zeros(2, 3, 4), mask=torch.ones(2, 3, dtype=torch.bool)), "mask has shape"),
        (lambda: BatchNorm1d(3)(torch.zeros(2, 3, 4), mask=torch.ones(2, 4)), "give torch.bool"),
        (lambda: GhostBatchNorm(3, virtual_batch_size=0), "virtual_batch_size=0"),
        (lambda: GhostBatchNorm(0), "num_features=0"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with unchecked_annotations(), pytest.raises(ValueError, match=message):
        make()
