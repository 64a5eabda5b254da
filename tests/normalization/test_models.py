"""The study's networks: any size of input, any normalization, the same first weights whatever normalizes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tenfold.normalization.models import (
    MODELS,
    NORMS,
    ResidualBlock,
    norm_layer,
    offered_arguments,
    perceptron,
    residual_net,
    small_conv,
    without_input,
)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["small-conv", "resnet", "mlp"]),
    st.sampled_from(NORMS),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(2, 12),
)
def test_any_size_of_image_gives_a_score_a_class(model, norm, channels, height, width, classes):
    net = MODELS[model](
        (channels, height, width), classes, lambda c: norm_layer(norm, c, axes=0 if model == "mlp" else 2)
    )
    net.eval()
    assert net(torch.randn(3, channels, height, width)).shape == (3, classes)


@pytest.mark.parametrize(("size", "layers"), [(8, 3), (14, 4), (16, 4), (17, 5), (28, 5), (1, 3)])
def test_small_conv_ends_at_one_pixel(size, layers):
    net = small_conv((1, size, size), 10, lambda c: norm_layer("none", c))
    convolutions = [module for module in net if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == layers
    assert net[: 3 * layers](torch.zeros(1, 1, size, size)).shape == (1, 64, 1, 1)


def test_first_weights_do_not_depend_on_the_normalization():
    def weights(norm, split=None):
        torch.manual_seed(7)
        net = residual_net((1, 8, 8), 10, lambda c: norm_layer(norm, c, split=split))
        return [p for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear) for p in m.parameters()]

    for norm, split in (("group", None), ("batch", 2), ("layer", None), ("none", None)):
        for first, second in zip(weights("batch"), weights(norm, split), strict=True):
            assert torch.equal(first, second)


def test_weights_are_he_initialised_and_the_last_layer_is_torchs():
    torch.manual_seed(0)
    net = small_conv((3, 64, 64), 10, lambda c: norm_layer("batch", c))
    for layer in net:
        if isinstance(layer, nn.Conv2d):
            wanted = math.sqrt(2 / (layer.in_channels * 9))  # He et al. 2015, equation 10
            assert layer.weight.std().item() == pytest.approx(wanted, rel=0.15)
    assert net[-1].weight.abs().max() <= 1 / math.sqrt(64)


def test_a_block_starts_as_its_shortcut():
    # Wu & He 2018, section 4.1: gamma = 0 in the last normalization of each block
    for norm in ("batch", "group"):
        block = ResidualBlock(8, 8, 1, lambda c, norm=norm: norm_layer(norm, c))
        x = torch.randn(2, 8, 5, 5)
        assert torch.equal(block(x), x.relu())
        net = residual_net((1, 8, 8), 10, lambda c, norm=norm: norm_layer(norm, c))
        blocks = [module for module in net if isinstance(module, ResidualBlock)]
        assert [int(block.norm2.weight.abs().sum()) for block in blocks] == [0, 0, 0]
        assert all(block.norm1.weight.min() == 1 for block in blocks)


def test_a_block_without_normalization_is_left_as_it_is():
    assert ResidualBlock(8, 16, 2, lambda c: norm_layer("none", c))(torch.randn(2, 8, 5, 5)).shape == (2, 16, 3, 3)


@pytest.mark.parametrize(
    ("channels", "wanted", "groups"), [(64, 8, 8), (16, 16, 1), (12, 8, 3), (7, 8, 7), (48, 32, 3)]
)
def test_groups_always_divide(channels, wanted, groups):
    assert norm_layer("group", channels, channels_per_group=wanted).num_groups == groups


def test_layer_and_instance_normalization_are_the_ends_of_the_axis():
    x = torch.randn(3, 6, 4, 5, dtype=torch.float64)
    layer = norm_layer("layer", 6).double()(x)
    torch.testing.assert_close(layer, nn.functional.layer_norm(x, x.shape[1:]))
    torch.testing.assert_close(norm_layer("instance", 6).double()(x), nn.functional.instance_norm(x))


def test_statistics_over_parts_in_training_and_over_all_in_use():
    x = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    part = norm_layer("batch", 4, split=2).double()
    whole = norm_layer("batch", 4).double()
    expected = torch.cat([nn.functional.batch_norm(rows, None, None, training=True) for rows in x.split(2)])
    torch.testing.assert_close(part(x), expected)
    torch.testing.assert_close(whole(x), nn.functional.batch_norm(x, None, None, training=True))
    assert norm_layer("batch", 4, axes=0)(torch.randn(5, 4)).shape == (5, 4)
    with pytest.raises(ValueError, match="normalization 'batsch' is not one of batch, group, layer, instance, none"):
        norm_layer("batsch", 4)


def test_models_for_images_say_so():
    for build in (small_conv, residual_net):
        with pytest.raises(
            ValueError, match=r"is for images \(channels, height, width\); the inputs have shape \(4,\)"
        ):
            build((4,), 3, nn.BatchNorm2d)
    assert perceptron((3, 4), 2, nn.BatchNorm1d)(torch.zeros(2, 3, 4)).shape == (2, 2)


def test_sets_of_one_value_are_found_and_the_network_is_left_as_it_was():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(4, 4), nn.Dropout(), nn.Flatten(), nn.GroupNorm(2, 4))
    net.train()
    assert without_input(net, torch.zeros(2, 1, 3, 3)) == ("1",)
    assert net.training
    assert net[2].training
    assert not net[1]._forward_pre_hooks
    assert without_input(net[:2], torch.zeros(2, 1, 4, 3)) == ()


def test_functions_are_given_what_they_take():
    offers = {"num_classes": 10, "norm": nn.BatchNorm2d}
    assert offered_arguments(lambda: None, offers) == {}
    assert offered_arguments(lambda num_classes, *rest, width=3: None, offers) == {"num_classes": 10}
    assert offered_arguments(lambda **options: None, offers) == offers
    with pytest.raises(ValueError, match="needs the argument 'classes'; it is offered num_classes, norm"):
        offered_arguments(lambda classes: None, offers)
