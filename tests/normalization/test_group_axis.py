"""One group is Layer Normalization over channels and positions, a group a channel is Instance Normalization."""

import numpy as np
import pytest
import torch
from torch import nn

from tenfold.normalization import GroupNorm

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def both(ours, peer, x):
    """Outputs and input gradients of two layers, for one gradient of the output."""
    results = []
    dy = torch.randn(x.shape, dtype=x.dtype)
    for layer in (ours, peer):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        y = layer(leaf)
        results.append((y, *torch.autograd.grad(y, leaf, dy)))
    return results


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_group_is_layer_normalization(layout):
    x = torch.randn(3, 6, 4, 5, dtype=torch.float64).to(memory_format=layout)
    mine, theirs = both(GroupNorm(1, 6).double(), nn.LayerNorm([6, 4, 5]).double(), x)
    for one, two in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_group_a_channel_is_instance_normalization_and_keeps_the_layout(layout):
    # pytorch#111824, #59168, PR 194616: torch's returns another layout than it was given
    x = torch.randn(3, 6, 4, 5, dtype=torch.float64).to(memory_format=layout)
    ours = GroupNorm(6, 6).double()
    nn.init.normal_(ours.weight)
    peer = nn.InstanceNorm2d(6, affine=True).double()
    peer.load_state_dict(ours.state_dict())
    mine, theirs = both(ours, peer, x)
    for one, two in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-12)
        assert one.is_contiguous(memory_format=layout)


def test_the_variance_is_the_biased_one():
    # pytorch#22617: (1, 1, 5) by hand, deviation sqrt(2) and not sqrt(2.5)
    y = GroupNorm(1, 1, eps=0.0).double()(torch.arange(1.0, 6.0, dtype=torch.float64).view(1, 1, 5))
    np.testing.assert_allclose(y.detach().numpy().ravel(), np.arange(-2, 3) / np.sqrt(2), rtol=1e-12)


def test_instances_of_one_position_are_beta():
    layer = GroupNorm(4, 4)
    nn.init.normal_(layer.bias)
    torch.testing.assert_close(layer(torch.randn(3, 4)), layer.bias.expand(3, 4))
