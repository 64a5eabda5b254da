"""Moments and normalization in blocks: any cut of the rows gives the same, with first and second derivatives."""

import numpy as np
import pytest
import torch

from tenfold.normalization import high_precision, mask_from_lengths
from tenfold.normalization.high_precision import plainly_normalized
from tenfold.normalization.statistics import masked_moments, normalized


@pytest.fixture(params=[1, 40, 1 << 19])
def block(request, monkeypatch):
    """One row a block, a few, and all in one."""
    monkeypatch.setattr(high_precision, "BLOCK", request.param)


def double(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 5), (5, 2, 3, 4), (2, 2, 2, 2, 3)])
def test_moments_of_blocks_are_those_of_the_whole(shape):
    x = torch.randn(shape) * 3 + 50
    moments = masked_moments(x)
    axes = (0, *range(2, x.ndim))
    exact = x.double().numpy()
    np.testing.assert_allclose(moments.mean.numpy(), exact.mean(axes), rtol=1e-14)
    np.testing.assert_allclose(moments.variance.numpy(), exact.var(axes), rtol=1e-12)
    assert moments.count == x.numel() // x.shape[1]


@pytest.mark.usefixtures("block")
def test_masked_moments_count_valid_values_only():
    # deepspeech.pytorch#312: rows without any valid position are in it, and a row of NaN
    lengths = torch.tensor([4, 0, 1, 0, 3])
    mask = mask_from_lengths(lengths, 4)
    x = torch.randn(5, 2, 4).masked_fill(~mask.unsqueeze(1), float("nan"))
    moments = masked_moments(x, mask)
    valid = x.permute(0, 2, 1)[mask].double().numpy()
    assert moments.count == 8
    np.testing.assert_allclose(moments.mean.numpy(), valid.mean(0), rtol=1e-14)
    np.testing.assert_allclose(moments.variance.numpy(), valid.var(0), rtol=1e-12)


def test_no_values_have_moments_of_zero():
    for x, mask in ((torch.zeros(0, 3, 2), None), (torch.ones(2, 3), torch.zeros(2, dtype=torch.bool))):
        moments = masked_moments(x.requires_grad_(), mask)
        assert (moments.mean.tolist(), moments.variance.tolist(), moments.count) == ([0.0] * 3, [0.0] * 3, 0)
        moments.variance.sum().backward()
        assert not x.grad.any()


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("masked", [False, True])
def test_derivatives_of_moments(masked):
    x = double(4, 2, 3)
    mask = mask_from_lengths(torch.tensor([3, 1, 0, 2]), 3) if masked else None

    def both(x):
        moments = masked_moments(x, mask)
        return moments.mean, moments.variance

    assert torch.autograd.gradcheck(both, (x,))
    assert torch.autograd.gradgradcheck(both, (x,))


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("affine", [False, True])
def test_derivatives_of_normalization_by_everything(affine):
    inputs = [double(4, 2, 3), double(2), double(2).detach().square().requires_grad_()]
    inputs += [double(2), double(2)] if affine else [None, None]

    def normalize(*tensors):
        return normalized(*tensors, eps=0.1)

    assert torch.autograd.gradcheck(normalize, inputs)
    assert torch.autograd.gradgradcheck(normalize, inputs)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("masked", [False, True])
def test_second_derivatives_of_batch_normalization(masked):
    mask = mask_from_lengths(torch.tensor([3, 1, 2]), 3) if masked else None

    def batch_normalize(x, weight, bias):
        moments = masked_moments(x, mask)
        return normalized(x, moments.mean, moments.variance, weight, bias, 1e-2)

    inputs = (double(3, 2, 3), double(2), double(2))
    assert torch.autograd.gradcheck(batch_normalize, inputs)
    assert torch.autograd.gradgradcheck(batch_normalize, inputs)


def test_only_the_input_is_kept_for_backward():
    kept = []
    x = torch.randn(64, 4, 8, requires_grad=True)
    weight = torch.ones(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        moments = masked_moments(x)
        normalized(x, moments.mean, moments.variance, weight, None, 1e-5)
    assert {t.data_ptr() for t in kept if t.numel() > 4} == {x.data_ptr()}


@pytest.mark.usefixtures("block")
def test_layout_of_the_input_is_that_of_output_and_gradient():
    # pytorch#111824, #59168: also for a gradient that arrives in another layout
    x = torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last).requires_grad_()
    moments = masked_moments(x)
    y = normalized(x, moments.mean, moments.variance, None, None, 1e-5)
    y.backward(torch.randn(4, 3, 5, 2))
    for tensor in (y, x.grad):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_mean_far_above_the_deviation_costs_no_digits(offset, layout):
    # pytorch#40302, #54293: the result is the float64 one of the same float32 input
    x = (torch.randn(2, 64, 8, 8) + offset).to(memory_format=layout)
    exact = x.double()
    variance, mean = torch.var_mean(exact, (0, 2, 3), correction=0)
    moments = masked_moments(x)
    got = normalized(x, moments.mean, moments.variance, None, None, 1e-5)
    want = plainly_normalized(exact, mean, variance, None, None, 1e-5)
    assert (got.double() - want).abs().max() < 4e-7  # half a unit of float32 at 4 to 8


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_gradients_at_the_edges_of_float32(scale):
    # pytorch#162489: the squares lie outside of float32
    x = (torch.randn(8, 2, 4) * scale).requires_grad_()
    wide = (x.detach().double() / scale).requires_grad_()
    for values, eps in ((x, 0.0), (wide, 0.0)):
        moments = masked_moments(values)
        normalized(values, moments.mean, moments.variance, None, None, eps).pow(3).sum().backward()
    torch.testing.assert_close(x.grad.double() * scale, wide.grad, rtol=1e-5, atol=1e-6)


def test_gradients_under_function_transforms():
    x = double(6, 2)

    def loss(x):
        moments = masked_moments(x)
        return normalized(x, moments.mean, moments.variance, None, None, 1e-5).pow(3).sum()

    want = torch.autograd.grad(loss(x), x)[0]
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), want)
