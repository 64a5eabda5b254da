"""Folding: exact for every linear map, only where the data really flows so, and the report says what stayed and why."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tenfold.normalization.folding import fold

DOUBLE = torch.float64


def trained(model):
    """Statistics and parameters as after training, so that nothing is the identity by chance."""
    generator = torch.Generator().manual_seed(4)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor, low, high in (
                (module.running_mean, -1, 1), (module.running_var, 0.3, 2), (module.weight, -2, 2), (module.bias, -1, 1),
            ):  # fmt: skip
                if tensor is not None:
                    tensor.data.uniform_(low, high, generator=generator)
    return model.double().eval()


def norms(model):
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


LAYERS = {
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d, (2, 4, 9)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d, (2, 4, 9, 9)),
    "Conv2d grouped, dilated, reflected": (
        lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2, padding=3, padding_mode="reflect"), nn.BatchNorm2d, (2, 4, 9, 9),
    ),
    "Conv2d depthwise, same": (lambda: nn.Conv2d(6, 6, 3, groups=6, padding="same"), nn.BatchNorm2d, (2, 6, 9, 9)),
    "Conv3d": (lambda: nn.Conv3d(4, 6, (1, 3, 2)), nn.BatchNorm3d, (2, 4, 4, 5, 6)),
    "Linear": (lambda: nn.Linear(5, 6), nn.BatchNorm1d, (3, 5)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), nn.BatchNorm1d, (2, 4, 7)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, output_padding=1, bias=False), nn.BatchNorm2d, (2, 4, 5, 5)),
    "ConvTranspose2d of 2 groups": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d, (2, 4, 5, 5)),
    "ConvTranspose2d depthwise": (lambda: nn.ConvTranspose2d(6, 6, 2, groups=6), nn.BatchNorm2d, (2, 6, 5, 5)),
    "ConvTranspose3d of 2 groups": (lambda: nn.ConvTranspose3d(4, 6, 2, groups=2), nn.BatchNorm3d, (2, 4, 3, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("affine", [True, False])
def test_every_linear_map_is_exact(name, affine):
    layer, norm, shape = LAYERS[name]
    net = trained(nn.Sequential(layer(), norm(6, affine=affine), nn.ReLU()))
    x = torch.randn(shape, dtype=DOUBLE)
    for example in (None, x):
        result = fold(net, example)
        assert not norms(result.model)
        assert result.report.folded == (("1", "0"),)
        assert result.report.layer_error < 1e-12
        torch.testing.assert_close(result.model(x), net(x), rtol=1e-12, atol=1e-12)
        if example is not None:
            assert result.report.output_change < 1e-12


def test_grouped_transposed_convolution_where_torch_fails():
    # pytorch#180995, executorch PR 22517, ultralytics PR 25364
    net = trained(nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)))
    x = torch.randn(2, 4, 5, 5, dtype=DOUBLE)
    try:
        peer = fuse_conv_bn_eval(net[0], net[1], transpose=True)(x)
        assert not torch.allclose(peer, net(x))
    except RuntimeError as error:  # the weight has 3 columns of outputs a group, the scale has 6
        assert "size" in str(error)  # noqa: PT017 - either way of failing shows the report
    # By hand: output channel o is scaled by a_o, whichever group made it.
    scale = net[1].weight / (net[1].running_var + 1e-5).sqrt()
    folded = fold(net).model[0].weight
    for i in range(4):
        for o in range(3):
            group = i // 2
            torch.testing.assert_close(folded[i, o], net[0].weight[i, o] * scale[group * 3 + o])


class Residual(nn.Module):
    """Registered in another order than called, with a skip connection, a shared activation and a nested branch."""

    def __init__(self):
        super().__init__()
        self.norm2 = nn.BatchNorm2d(6)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.short = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x))))) + self.short(x))


@pytest.mark.parametrize("with_example", [True, False])
def test_pairs_follow_the_data_and_not_the_order_of_registration(with_example):
    net = trained(nn.Sequential(Residual()))
    x = torch.randn(2, 3, 6, 6, dtype=DOUBLE)
    result = fold(net, x if with_example else None)
    assert set(result.report.folded) == {("0.norm1", "0.conv1"), ("0.norm2", "0.conv2"), ("0.short.1", "0.short.0")}
    torch.testing.assert_close(result.model(x), net(x), rtol=1e-11, atol=1e-11)


def test_the_given_model_is_not_changed():
    net = trained(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))).train()
    before = copy.deepcopy(net.state_dict())
    result = fold(net, torch.randn(2, 3, 5, 5, dtype=DOUBLE))
    assert net.training
    assert isinstance(net[1], nn.BatchNorm2d)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not result.model.training
    assert "evaluation mode" in str(result.report)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


class Custom(nn.Module):
    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.run(self, x)


KEPT = {
    "the output is read by a skip connection": (
        lambda m, x: (lambda h: m.norm(h) + h)(m.conv(x)), "conv is read elsewhere too",
    ),
    "the output is returned too": (lambda m, x: (lambda h: (m.norm(h), h))(m.conv(x)), "conv is read elsewhere too"),
    "an activation lies between": (lambda m, x: m.norm(m.conv(x).relu()), "does not directly follow"),
    "an in-place activation lies between": (lambda m, x: m.norm(m.conv(x).relu_()), "elsewhere|does not directly follow"),
    "normalization comes first": (lambda m, x: m.conv(m.norm(x)), "does not directly follow"),
    "it is never called": (lambda m, x: m.conv(x), "never called|does not reach"),
    "the convolution runs twice, the norm once": (lambda m, x: m.norm(m.conv(x)) + m.conv(x), "conv is shared or read"),
    "the norm runs twice": (lambda m, x: m.norm(m.norm(m.conv(x))), "does not directly follow"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("with_example", [True, False])
def test_what_may_not_be_folded_is_kept_and_said(name, with_example):
    run, reason = KEPT[name]
    net = trained(Custom(run, conv=nn.Conv2d(4, 4, 3, padding=1), norm=nn.BatchNorm2d(4)))
    x = torch.randn(2, 4, 6, 6, dtype=DOUBLE)
    result = fold(net, x if with_example else None)
    ((kept, why),) = result.report.kept
    assert kept == "norm"
    assert any(part in why for part in reason.split("|"))
    torch.testing.assert_close(result.model(x), net(x), rtol=0, atol=0)


def test_shared_convolution_with_a_norm_for_each_level_is_kept():
    def run(m, x):
        return m.norm1(m.conv(x)) + m.norm2(m.conv(x * 2))

    net = trained(Custom(run, conv=nn.Conv2d(3, 4, 3), norm1=nn.BatchNorm2d(4), norm2=nn.BatchNorm2d(4)))
    x = torch.randn(2, 3, 6, 6, dtype=DOUBLE)
    result = fold(net, x)
    assert {name for name, _ in result.report.kept} == {"norm1", "norm2"}
    assert all("conv is shared" in reason for _, reason in result.report.kept)
    torch.testing.assert_close(result.model(x), net(x), rtol=0, atol=0)


def test_shared_norm_behind_two_convolutions_is_kept():
    def run(m, x):
        return m.norm(m.a(x)) + m.norm(m.b(x))

    net = trained(Custom(run, a=nn.Conv2d(3, 4, 3), b=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4)))
    result = fold(net)
    assert result.report.kept == (("norm", "it is shared: it follows a, b"),)


@pytest.mark.parametrize("with_example", [True, False])
def test_shared_pair_is_folded_once(with_example):
    head = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
    net = trained(nn.Sequential(head, nn.ReLU(), head))
    x = torch.randn(2, 3, 6, 6, dtype=DOUBLE)
    result = fold(net, x if with_example else None)
    assert result.report.folded == (("0.1", "0.0"),)
    assert "run together 2 times" in str(result.report)
    assert result.model[0] is result.model[2]
    torch.testing.assert_close(result.model(x), net(x), rtol=1e-11, atol=1e-11)


def test_tied_weights_hooks_parametrizations_and_subclasses_are_kept():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            return nn.functional.conv2d(x, self.weight - self.weight.mean(), self.bias)

    class Scaled(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x) * 2

    def reason(conv, norm, other=None):
        layers = [conv, norm] if other is None else [conv, norm, other]
        net = trained(nn.Sequential(*layers))
        x = torch.randn(2, 3, 8, 8, dtype=DOUBLE)
        result = fold(net, x)
        torch.testing.assert_close(result.model(x), net(x), rtol=0, atol=0)
        ((_, why),) = result.report.kept
        return why

    twin = nn.Conv2d(3, 3, 3)
    tied = nn.Conv2d(3, 3, 3)
    tied.weight = twin.weight
    hooked = nn.Conv2d(3, 3, 3)
    hooked.register_forward_hook(lambda module, args, output: output * 2)
    assert "shares its weight or bias" in reason(tied, nn.BatchNorm2d(3), twin)
    assert "hooks" in reason(hooked, nn.BatchNorm2d(3))
    assert "parametrization" in reason(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 3)), nn.BatchNorm2d(3))
    assert "does not directly follow" in reason(Standardised(3, 3, 3), nn.BatchNorm2d(3))
    assert "subclass" in reason(nn.Conv2d(3, 3, 3), Scaled(3))
    assert "no running statistics" in reason(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3, track_running_stats=False))


def test_linear_over_a_sequence_whose_channels_are_its_steps_is_kept():
    """(N, L, F) through BatchNorm1d normalises the steps, L of them; with L = F only the example shows it."""
    net = trained(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)))
    x = torch.randn(3, 4, 5, dtype=DOUBLE)
    result = fold(net, x)
    assert "channels are not the output channels" in str(result.report)
    torch.testing.assert_close(result.model(x), net(x), rtol=0, atol=0)
    assert "rows of features" in str(fold(net).report)


def test_a_layer_reached_by_a_list_is_not_applied_twice():
    net = trained(Custom(lambda m, x: m.layers[0](m.conv(x)), conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4)))
    net.layers = [net.norm]
    with pytest.raises(ValueError, match="norm is called through a reference"):
        fold(net)
    with pytest.raises(ValueError, match="norm is called through a reference"):
        fold(net, torch.randn(2, 3, 5, 5, dtype=DOUBLE))


def branching(m, x):
    return m.norm(m.conv(x)) if x.sum() > 0 else m.norm(x)


def test_model_that_cannot_be_traced_gets_a_clear_answer():
    net = trained(Custom(branching, conv=nn.Conv2d(4, 4, 1), norm=nn.BatchNorm2d(4)))
    with pytest.raises(ValueError, match=r"cannot be traced by torch.fx \(.*control flow.*\).*give example data"):
        fold(net)
    x = torch.rand(2, 4, 5, 5, dtype=DOUBLE)
    result = fold(net, x)
    assert result.report.folded == (("norm", "conv"),)
    torch.testing.assert_close(result.model(x), net(x), rtol=1e-12, atol=1e-12)


def test_named_and_several_arguments():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x, scale=1.0):
            return {"out": self.norm(self.a(x)) * scale}

    net = trained(Pair())
    x = torch.randn(5, 3, dtype=DOUBLE)
    for example in ((x, torch.tensor(2.0).double()), {"x": x, "scale": 3.0}):
        assert fold(net, example).report.output_change < 1e-12


def test_float32_and_bfloat16_report_their_rounding():
    torch.manual_seed(0)
    net = trained(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4))
    )
    x = torch.randn(4, 3, 8, 8)
    single = fold(copy.deepcopy(net).float(), x)
    assert 0 < single.report.output_change < 1e-5
    assert single.model[0].weight.dtype == torch.float32
    half = fold(copy.deepcopy(net).bfloat16(), x.bfloat16())
    assert half.report.output_change < 0.1
    assert half.model[0].bias.dtype == torch.bfloat16


def test_memory_format_and_frozen_parameters_are_kept():
    net = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).to(memory_format=torch.channels_last)
    net[0].weight.requires_grad_(False)
    weight = fold(net).model[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.requires_grad


def test_cross_process_layers_of_torch_fold_without_processes():
    net = trained(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))))
    assert fold(net, torch.randn(2, 3, 5, 5, dtype=DOUBLE)).report.folded == (("1", "0"),)


def test_wrong_statistics_make_the_check_fail_instead_of_the_model():
    net = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    net[1].running_var[0] = float("nan")
    with pytest.raises(ArithmeticError, match="folding 1 into 0"):
        fold(net)
