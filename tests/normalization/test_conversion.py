"""Conversion: weights and statistics come along, the output is the same where it can be, and the report says where it cannot."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tenfold.normalization.batch_normalization import BatchNorm1d, BatchNorm2d
from tenfold.normalization.conversion import convert
from tenfold.normalization.cross_process import CrossProcessBatchNorm
from tenfold.normalization.folding import fold
from tenfold.normalization.frozen import FrozenBatchNorm
from tenfold.normalization.ghost import GhostBatchNorm
from tenfold.normalization.group_normalization import GroupNorm
from tenfold.normalization.renorm import BatchRenorm

DOUBLE = torch.float64


class Block(nn.Module):
    """A residual block as in the papers: one ReLU for all its places, and a function at the end."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        h += x
        return self.relu(h)


def images(count=48, seed=0):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) + 1


def net():
    """A small residual net as after training: statistics of data, gamma and beta spread."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), Block(16), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4),
    ).double()  # fmt: skip
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.weight.data.uniform_(-1.5, 1.5)
            module.bias.data.normal_()
            module.momentum = None
    for part in images().split(12):
        model(part)
    return model.eval()


def layers(model, kind):
    return [m for m in model.modules() if isinstance(m, kind)]


EXACT = {
    "frozen": (FrozenBatchNorm, {}),
    "cross_process": (CrossProcessBatchNorm, {}),
    "ghost": (GhostBatchNorm, {"virtual_batch_size": 8}),
    "renorm": (BatchRenorm, {}),
}


@pytest.mark.parametrize("to", EXACT)
def test_kinds_of_batch_normalization_compute_the_same_in_evaluation(to):
    model, x = net(), images(seed=1)
    kind, options = EXACT[to]
    result = convert(model, to, [x], **options)
    assert len(layers(result.model, kind)) == 6
    assert len(layers(model, nn.modules.batchnorm._BatchNorm)) == 6  # the given model stays
    torch.testing.assert_close(result.model(x), model(x), rtol=1e-10, atol=1e-10)
    assert result.report.output_change < 1e-10
    assert not result.report.needs_fine_tuning
    assert result.report.layers[0].name == "1"
    assert result.report.layers[0].before == "BatchNorm2d(16)"
    back = convert(result.model, "batch", [x]).model
    assert len(layers(back, BatchNorm2d)) == 5
    assert len(layers(back, BatchNorm1d)) == 1
    torch.testing.assert_close(back(x), model(x), rtol=1e-10, atol=1e-10)


def test_frozen_layers_do_not_thaw():
    # pytorch#86590, mmdetection#346
    frozen = convert(net(), "frozen").model.train()
    before = {name: b.clone() for name, b in frozen.named_buffers()}
    frozen(images())
    assert all(torch.equal(b, before[name]) for name, b in frozen.named_buffers())


@pytest.mark.parametrize(("to", "groups"), [("group", 8), ("layer", 1), ("instance", 16)])
def test_normalization_by_sample_needs_fine_tuning_and_says_so(to, groups):
    # GroupNorm-reproduce#2, Res2Net#74, lerobot PR 1887
    model = net()
    result = convert(model, to)
    assert layers(result.model, GroupNorm)[0].num_groups == groups
    assert result.report.needs_fine_tuning
    assert "fine-tune" in str(result.report)
    assert result.report.output_change is None
    assert "no calibration data" in str(result.report)
    assert torch.equal(result.model[1].weight, model[1].weight)
    assert torch.equal(result.model[1].bias, model[1].bias)


def channel_statistics(model, layer, x):
    seen = []
    handle = layer.register_forward_hook(lambda module, args, output: seen.append(output.detach().clone()))
    with torch.no_grad():
        model(x)
    handle.remove()
    rows = torch.cat(seen).movedim(1, 0).flatten(1)
    return rows.mean(1), rows.std(1, correction=0)


def test_calibration_keeps_mean_and_deviation_of_every_channel_in_every_layer():
    model, x = net(), images()
    result = convert(model, "group", x.split(10))
    for name in ("1", "3.bn1", "3.bn2", "4.bn1", "4.bn2", "8"):
        old = channel_statistics(model, model.get_submodule(name), x)
        new = channel_statistics(result.model, result.model.get_submodule(name), x)
        torch.testing.assert_close(new[0], old[0], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(new[1], old[1], rtol=1e-8, atol=1e-8)
        assert torch.equal(result.model.get_submodule(name).weight.sign(), model.get_submodule(name).weight.sign())
    assert result.report.output_change < result.report.uncalibrated_change
    # By hand: root mean square change relative to the root mean square.
    change = (result.model(x) - model(x)).square().sum() / model(x).square().sum()
    assert result.report.output_change == pytest.approx(change.sqrt().item(), rel=1e-9)


def test_calibration_batches_may_be_tuples_dictionaries_or_one_tensor():
    model, x = net(), images(20)
    want = convert(model, "group", [x]).model(x)
    for batches in (x, [(x, torch.zeros(20))], iter([{"input": x}])):
        torch.testing.assert_close(convert(model, "group", batches).model(x), want)
    limited = convert(model, "group", [(x, 0), (x * 9, 0)], max_samples=20)
    torch.testing.assert_close(limited.model(x), want)


def test_calibration_keeps_accuracy_but_does_not_replace_fine_tuning():
    digits = load_digits()
    x, y = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        for rows in torch.randperm(1200).split(48):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()

    def accuracy(net):
        with torch.no_grad():
            return (net.eval()(x[1200:]).argmax(1) == y[1200:]).double().mean().item()

    bare = convert(model, "group").model
    calibrated = convert(model, "group", x[:400].split(100)).model
    assert accuracy(bare) + 0.03 < accuracy(calibrated) < accuracy(model)


def test_change_is_measured_batch_by_batch_where_a_loader_shuffles():
    model = net()
    loader = DataLoader(TensorDataset(images()), batch_size=10, shuffle=True)
    assert convert(model, "frozen", loader).report.output_change < 1e-10


def test_groups_that_do_not_divide_name_the_layer():
    model = net()
    with pytest.raises(ValueError, match=r"layer 1: groups=32 does not divide num_channels=16; .*groups=16"):
        convert(model, "group", groups=32)
    assert layers(convert(model, "group", groups=4).model, GroupNorm)[0].num_groups == 4
    assert layers(convert(model, "group", channels_per_group=8).model, GroupNorm)[-1].num_groups == 1
    with pytest.raises(ValueError, match='go with to="group"'):
        convert(model, "layer", groups=4)
    with pytest.raises(ValueError, match=r"to='grp' is not known; it is one of group, layer"):
        convert(model, "grp")


def test_default_groups_are_the_papers_where_they_divide():
    assert convert(nn.BatchNorm2d(64), "group").model.num_groups == 32
    assert convert(nn.BatchNorm2d(96), "group").model.num_groups == 32
    assert convert(nn.BatchNorm2d(48), "group").model.num_groups == 24


def test_modes_dtype_trainability_and_shared_layers_are_kept():
    norm = nn.BatchNorm2d(4, eps=1e-3)
    norm.weight.requires_grad_(False)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.Conv2d(4, 4, 1), norm).bfloat16()
    norm.eval()
    for to, kind in (("group", GroupNorm), ("ghost", GhostBatchNorm), ("fused", BatchNorm2d)):
        options = {"virtual_batch_size": 4} if to == "ghost" else {}
        new = convert(model, to, **options).model
        assert new[1] is new[3]
        assert type(new[1]) is kind
        assert new[1].weight.dtype == torch.bfloat16
        assert not new[1].weight.requires_grad
        assert new[1].bias.requires_grad
        assert new[1].eps == 1e-3
        assert not new[1].training
        assert new.training


def test_reused_layer_is_calibrated_for_all_its_calls_together():
    norm = nn.BatchNorm2d(3)
    model = nn.Sequential(norm, nn.Conv2d(3, 3, 1), norm).double()
    model(images())
    assert "called 2 times" in str(convert(model, "group", [images()], groups=1).report)


def test_layer_without_affine_parameters_gets_them_by_calibration():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False)).double()
    model(images())
    assert convert(model, "group").model[1].weight is None
    calibrated = convert(model, "group", [images()]).model
    old = channel_statistics(model.eval(), model[1], images())
    new = channel_statistics(calibrated, calibrated[1], images())
    torch.testing.assert_close(new[1], old[1], rtol=1e-8, atol=1e-8)


def test_instance_normalization_of_rows_is_warned_of():
    result = convert(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "instance")
    assert "the output is beta whatever the input" in str(result.report)


def test_group_to_batch_takes_statistics_from_the_data():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4)).double()
    x = images()
    result = convert(model, "batch", x.split(9))
    assert type(result.model[1]) is BatchNorm2d
    hidden = model[0](x)
    torch.testing.assert_close(result.model[1].running_mean, hidden.mean((0, 2, 3)), rtol=1e-10, atol=1e-10)
    assert result.report.needs_fine_tuning
    with pytest.raises(ValueError, match=r"layer 1 \(GroupNorm\) takes inputs of any rank.*give calibration data"):
        convert(model, "batch")


@pytest.mark.parametrize("data", [None, "data"])
def test_fused_layers_take_the_activation_behind_them(data):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.SiLU()).double()
    model(images())
    model.eval()
    result = convert(model, "fused", None if data is None else [images()])
    assert type(result.model) is nn.Sequential
    assert type(result.model[1]) is BatchNorm2d
    assert (result.model[1].activation, result.model[3].activation) == ("relu", "silu")
    assert isinstance(result.model[2], nn.Identity)
    assert result.model.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(result.model(images()), model(images()), rtol=1e-10, atol=1e-10)
    assert not result.report.needs_fine_tuning
    assert "with relu" in str(result.report)


def test_fused_residual_net_is_rewritten_with_sums_and_shared_activations():
    model, x = net(), images(6)
    result = convert(model, "fused", [x])
    assert result.model.state_dict().keys() == model.state_dict().keys()
    assert result.model.get_submodule("3.bn2").activation == "relu"
    assert "the residual sum and relu" in str(result.report)
    ops = [str(node.target) for node in result.model.graph.nodes]
    assert not any("relu" in op or "add" in op for op in ops)
    torch.testing.assert_close(result.model(x), model(x), rtol=1e-10, atol=1e-10)
    # In training too, with gradients and statistics.
    model.train()
    result.model.train()
    y = x.clone().requires_grad_()
    z = x.clone().requires_grad_()
    model(y).square().sum().backward()
    result.model(z).square().sum().backward()
    torch.testing.assert_close(y.grad, z.grad, rtol=1e-8, atol=1e-8)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value)
    plain = convert(net(), "fused")  # without data the shapes of sums are not known
    assert plain.model.get_submodule("3.bn1").activation == "relu"
    assert plain.model.get_submodule("3.bn2").activation is None
    torch.testing.assert_close(plain.model(x), net()(x), rtol=1e-10, atol=1e-10)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.norm(self.conv(x))) if x.sum() > 0 else self.conv(x)


def test_fusing_what_cannot_be_traced_needs_data():
    model = Branching().double().eval()
    with pytest.raises(ValueError, match="give example data"):
        convert(model, "fused")
    result = convert(model, "fused", [images()])
    assert result.model.norm.activation == "relu"
    torch.testing.assert_close(result.model(images()), model(images()), rtol=1e-10, atol=1e-10)


def test_rewriting_that_changes_the_output_is_refused():
    class Aliased(nn.Module):
        """Its sum is written into a tensor with a second name, which a graph of torch.fx does not know."""

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            y = x * 1.0
            other = y
            y += self.norm(x).relu()
            return y + other

    model = Aliased().double().eval()
    with pytest.raises(ArithmeticError, match="the converted model's output differs"):
        convert(model, "fused", [images()])


def test_models_that_draw_random_numbers_in_evaluation_are_not_failed():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(nn.functional.dropout(x, 0.5, training=True)))

    model = Noisy().double()
    assert convert(model, "frozen", [images()]).report.output_change > 0.1
    assert fold(model, images()).report.output_change > 0.1


def test_activation_that_others_use_too_is_not_taken():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)
            self.relu = nn.ReLU()

        def forward(self, x):
            h = self.norm(x)
            return self.relu(h) + h + self.relu(x)

    model = Net().double().eval()
    result = convert(model, "fused")
    assert result.model.norm.activation is None
    torch.testing.assert_close(result.model(images()), model(images()))


def test_nothing_to_convert_and_layers_that_stay():
    assert "no layer to convert" in str(convert(nn.Linear(3, 4), "group").report)
    stateless = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False))
    assert "left as it is" in str(convert(stateless, "frozen").report)


def test_subclasses_that_compute_more_are_left_and_lost_hooks_are_said():
    class WithActivation(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    class Renamed(nn.BatchNorm2d):
        pass

    hooked = nn.BatchNorm2d(4)
    hooked.register_forward_hook(lambda module, args, output: None)
    result = convert(nn.Sequential(WithActivation(4), Renamed(4), hooked), "group")
    assert [type(layer) for layer in result.model] == [WithActivation, GroupNorm, GroupNorm]
    assert "0 is a subclass" in str(result.report)
    assert "2 had hooks" in str(result.report)


def test_lazy_layers_are_refused_and_the_given_model_keeps_its_layers():
    stateless = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="lazy"):
        convert(nn.Sequential(nn.LazyBatchNorm2d()), "group")
    before = copy.deepcopy(stateless.state_dict())
    convert(stateless, "group")
    assert stateless.state_dict().keys() == before.keys()
