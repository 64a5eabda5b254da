"""Exactness of the layers against the formulas in float64 NumPy: offsets, scales, types, layouts, and the peer's faults."""

import numpy as np
import pytest
import torch
from torch import nn

from tenfold.normalization import BatchNorm1d, BatchNorm2d, GroupNorm, batch_norm, group_norm

LAST = torch.channels_last
EPS = 1e-5


def group_reference(x, groups, eps=EPS):
    grouped = x.reshape(x.shape[0], groups, -1)
    mean, variance = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
    return ((grouped - mean) / np.sqrt(variance + eps)).reshape(x.shape)


def batch_reference(x, eps=EPS):
    return (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + eps)


def rounding_of_input(x, reference):
    """What half a unit in the last place of x makes of the output: the error that even exact arithmetic on it has."""
    exact = x.double().numpy()
    nearby = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) / 2
    deviation = np.abs(reference(exact + nearby * np.where(np.arange(exact.size).reshape(exact.shape) % 2, 1, -1)))
    return np.abs(deviation - np.abs(reference(exact))).max()


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("offset", [0.0, 1.0, 100.0, 1000.0, 10000.0])
def test_error_is_of_the_order_of_the_rounding_of_the_input(offset, layout):  # pytorch#40302, #54293
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(2, 64, 32, 32, generator=generator) + offset).to(memory_format=layout)
    for got, reference in (
        (group_norm(x, 8), lambda values: group_reference(values, 8)),
        (batch_norm(x, training=True), batch_reference),
    ):
        error = np.abs(got.double().numpy() - reference(x.double().numpy())).max()
        assert error <= 2 * max(rounding_of_input(x, reference), 3e-7)


def test_torchs_channels_last_group_norm_loses_all_digits_at_a_large_mean():  # pytorch#40302: why we do not call it
    x = (torch.randn(2, 64, 32, 32, generator=torch.Generator().manual_seed(0)) + 1000).to(memory_format=LAST)
    wanted = group_reference(x.double().numpy(), 8)
    torchs = np.abs(nn.functional.group_norm(x, 8).double().numpy() - wanted).max()
    ours = np.abs(group_norm(x, 8).double().numpy() - wanted).max()
    assert ours < 2e-4
    assert torchs > 1000 * ours


def test_small_deviation_beside_the_mean():  # pytorch#54293: N(0, 1) / 100 + 100
    x = torch.randn(4, 8, 16, 16) * 0.01 + 100
    got = batch_norm(x, training=True, eps=0.0).double().numpy()
    assert np.abs(got - batch_reference(x.double().numpy(), 0.0)).max() < 1e-6


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_scales_keep_all_digits_forward_and_backward(scale, layout):  # pytorch#162489, PR 178123
    x = (torch.randn(2, 8, 6, 6) * scale).to(memory_format=layout).requires_grad_()
    dy = torch.randn(2, 8, 6, 6)
    unit = (x.detach().double() / scale).requires_grad_()
    for ours, arrange in (
        (lambda x: group_norm(x, 4, eps=0.0), lambda x: x.reshape(8, -1)),
        (lambda x: batch_norm(x, training=True, eps=0.0), lambda x: x.transpose(0, 1).reshape(8, -1)),
    ):
        sets = arrange(unit)
        variance, mean = torch.var_mean(sets, 1, correction=0, keepdim=True)
        places = arrange(torch.arange(unit.numel()).reshape(unit.shape)).flatten()
        wanted = ((sets - mean) / variance.sqrt()).flatten()[places.argsort()].reshape(unit.shape)
        y = ours(x)
        torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=2e-6)
        (dx,), (exact,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(wanted, unit, dy.double())
        torch.testing.assert_close(dx.double() * scale, exact, rtol=1e-4, atol=1e-5)


def test_one_outlier_first():
    """Sums run around the first number of a set, which may be the worst choice."""
    x = torch.randn(1, 4, 50, 50)
    x[0, ::2, 0, 0] = 1e6
    wanted = group_reference(x.double().numpy(), 2)
    assert np.abs(group_norm(x, 2).double().numpy() - wanted).max() < 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_bfloat16_within_one_rounding(offset, layout):
    x = (torch.randn(2, 64, 16, 16) + offset).bfloat16().to(memory_format=layout)
    for got, wanted in (
        (group_norm(x, 8), group_reference(x.double().numpy(), 8)),
        (batch_norm(x, training=True), batch_reference(x.double().numpy())),
    ):
        assert got.dtype == torch.bfloat16
        ideal = torch.from_numpy(wanted).bfloat16()
        step = torch.maximum(ideal.abs().float() * 2.0**-7, torch.tensor(2.0**-20))
        assert bool(((got.float() - ideal.float()).abs() <= step).all())


def test_variance_of_a_group_is_the_biased_one():  # pytorch#22617
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 10.0]]])  # mean 4, biased variance 10
    y = group_norm(x, 1, eps=0.0)
    torch.testing.assert_close(y, (x - 4) / 10**0.5)


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_activations_over_their_range(activation):
    """z from -30 to 30 by given statistics, in both precisions of arithmetic."""
    formulas = {
        "relu": lambda z: z.clamp(min=0),
        "silu": lambda z: z / (1 + torch.exp(-z)),
        "gelu": lambda z: 0.5 * z * torch.special.erfc(-z * 0.5**0.5),
    }
    zero, one = torch.zeros(1), torch.ones(1)
    for dtype, error, tiny in ((torch.float64, 2e-15, 1e-300), (torch.float32, 6e-7, 1e-36)):
        z = torch.linspace(-30, 30, 4001, dtype=dtype).reshape(-1, 1)
        got = batch_norm(z, zero, one, eps=0.0, activation=activation).double()
        exact = formulas[activation](z.double())
        relative = error * (1 + (z.double() ** 2 if activation == "gelu" else 0))  # the exponent z^2 / 2 is rounded
        assert bool(((got - exact).abs() <= relative * exact.abs() + tiny).all())


def test_nan_and_infinity_stay_visible():
    for bad in (float("nan"), float("inf")):
        x = torch.randn(2, 4, 5, 5)
        x[0, 0, 0, 0] = bad
        for activation in (None, "relu", "silu", "gelu"):
            y = group_norm(x, 2, activation=activation)
            assert bool(y[0, :2].isnan().all())
            assert bool(y[0, 2:].isfinite().all())
            assert bool(y[1].isfinite().all())


def test_few_positions_and_many():
    """Slices shorter than a register, and just longer: every length from 1 to 40."""
    for size in range(1, 41):
        x = torch.randn(3, 4, size)
        torch.testing.assert_close(group_norm(x, 2), torch.from_numpy(group_reference(x.double().numpy(), 2)).float())
        layer = BatchNorm1d(4, activation="silu")
        wanted = nn.functional.silu(nn.functional.batch_norm(x.double(), None, None, training=True)).float()
        torch.testing.assert_close(layer(x).detach(), wanted, rtol=2e-6, atol=2e-6)


def test_running_statistics_are_exact_at_a_large_mean():
    x = torch.randn(16, 3, 8, 8) + 1000
    layer = BatchNorm2d(3, momentum=1.0)
    layer(x)
    np.testing.assert_allclose(layer.running_var.numpy(), x.double().numpy().var((0, 2, 3), ddof=1), rtol=1e-6)


def test_output_is_the_same_for_any_split_of_the_batch():
    layer = GroupNorm(4, 16, activation="silu")
    x = torch.randn(8, 16, 9, 9)
    for memory in (x, x.to(memory_format=LAST)):
        assert torch.equal(layer(memory), torch.cat([layer(part) for part in memory.split([3, 1, 4])]))
