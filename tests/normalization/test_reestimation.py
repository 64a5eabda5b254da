"""Population statistics: against float64 moments of all the data, in any split, over processes, and without a trace of errors."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from two_processes import run_in_two_processes

from tenfold.normalization.reestimation import reestimate

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def rows(count=53, features=6, seed=0, dtype=torch.float64):
    x = torch.randn(count, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[:, 0] = x[:, 0] * 0.01 + 1000  # a channel whose mean is far above its spread
    return x.to(dtype)


def images(count=23, seed=0):
    return torch.randn(count, 3, 7, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 + 5


def deep_net():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(12, 5), nn.BatchNorm1d(5),
    ).double()  # fmt: skip


def statistics(model):
    return {name: b.clone() for name, b in model.named_buffers() if "running" in name}


SPLITS = [[23], [1, 22], [5, 1, 3, 14], [10, 10, 3], [1] * 23]


@pytest.mark.parametrize("split", SPLITS)
def test_first_layer_is_the_pooled_moment_of_numpy(split):
    x = images()
    layer = nn.BatchNorm2d(3).double()
    reestimate(layer, x.split(split))
    flat = x.numpy().transpose(1, 0, 2, 3).reshape(3, -1)
    np.testing.assert_allclose(layer.running_mean.numpy(), flat.mean(1), rtol=1e-10)
    np.testing.assert_allclose(layer.running_var.numpy(), flat.var(1, ddof=1), rtol=1e-10)


@pytest.mark.parametrize("split", SPLITS)
def test_deep_net_has_the_statistics_of_one_step_on_all_data(split):
    """The reference is torch's own training mode on the whole data as one batch, with momentum 1."""
    x = images()
    net = deep_net()
    whole = copy.deepcopy(net)
    for layer in whole:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 1.0
    whole.train()(x)
    result = reestimate(net, x.split(split))
    for name, value in statistics(whole).items():
        torch.testing.assert_close(statistics(net)[name], value, **EXACT)
    assert result.report.samples == 23
    assert result.report.batches == len(split)
    assert result.report.passes == 3
    # The gap is gone: evaluation equals training on the whole data, but for n / (n - 1) in the variances.
    assert result.model is net


def test_order_of_rows_does_not_matter():
    x = images()
    one, other = deep_net(), deep_net()
    reestimate(one, x.split(7))
    reestimate(other, x[torch.randperm(23, generator=torch.Generator().manual_seed(3))].split(4))
    for name, value in statistics(one).items():
        torch.testing.assert_close(statistics(other)[name], value, **EXACT)


def test_update_bn_of_torch_is_off_where_we_are_exact():
    """swa_utils.update_bn averages batches as if they were equally large, and the variances within them: off by 2 to 32 %."""
    x = rows()
    split = [1, 40, 2, 10]
    right_mean, right_variance = x.mean(0), x.var(0)
    ours, peer = nn.BatchNorm1d(6).double(), nn.BatchNorm1d(6).double()
    reestimate(ours, x.split(split))
    torch.testing.assert_close(ours.running_mean, right_mean, **EXACT)
    torch.testing.assert_close(ours.running_var, right_variance, **EXACT)
    torch.optim.swa_utils.update_bn([part for part in x.split(split) if len(part) > 1], peer)
    error = ((peer.running_var - right_variance) / right_variance).abs()
    assert error.max() > 0.02


def test_large_mean_in_float32_keeps_its_variance():
    """fvcore's E[x^2] - E[x]^2 in float32 is 5 % off at a mean of 1000."""
    x = rows(dtype=torch.float32)
    layer = nn.BatchNorm1d(6)
    reestimate(layer, x.split([3, 50]))
    torch.testing.assert_close(layer.running_var.double(), x.double().var(0), rtol=1e-6, atol=0)
    one_pass = (x**2).mean(0) - x.mean(0) ** 2
    assert (one_pass[0] / x[:, 0].double().var() - 1).abs() > 0.05


def test_single_pass_normalises_each_batch_by_its_own_moments():
    x = images()
    net = deep_net()
    result = reestimate(net, x.split([10, 13]), passes="single")
    assert result.report.passes == 1
    hidden = [net[0](part) for part in x.split([10, 13])]
    torch.testing.assert_close(net[1].running_var, torch.cat(hidden).var((0, 2, 3)), **EXACT)
    second = []
    for part in hidden:
        variance, mean = torch.var_mean(part, (0, 2, 3), correction=0, keepdim=True)
        normal = (part - mean) / (variance + 1e-5).sqrt() * net[1].weight[:, None, None] + net[1].bias[:, None, None]
        second.append(net[3](normal.relu()))
    torch.testing.assert_close(net[4].running_mean, torch.cat(second).mean((0, 2, 3)), **EXACT)


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.norm(self.linear(self.norm(x)))


@pytest.mark.parametrize("split", [[53], [3, 50], [20, 20, 13]])
def test_reused_layer_pools_all_its_calls(split):
    torch.manual_seed(0)
    net = Reused().double()
    x = rows()
    result = reestimate(net, x.split(split))
    variance, mean = torch.var_mean(x, 0, correction=0)
    second = net.linear((x - mean) / (variance + 1e-5).sqrt())
    both = torch.cat([x, second])
    torch.testing.assert_close(net.norm.running_mean, both.mean(0), **EXACT)
    torch.testing.assert_close(net.norm.running_var, both.var(0), **EXACT)
    assert "called 2 times" in str(result.report)


def test_buffers_stay_the_same_tensors_and_modes_and_momentum_stay():
    net = deep_net()
    net[1].eval()
    net[4].momentum = None
    before = dict(net.named_buffers())
    modes = [m.training for m in net.modules()]
    weights = [p.clone() for p in net.parameters()]
    reestimate(net, images().split(6))
    assert all(b is before[name] for name, b in net.named_buffers())
    assert [m.training for m in net.modules()] == modes
    assert net[4].momentum is None
    assert net[1].momentum == 0.1
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True))
    assert net[1].num_batches_tracked == 4
    assert not net[1]._forward_pre_hooks


@pytest.mark.parametrize("passes", ["exact", "single"])
def test_after_an_error_all_is_as_before(passes):
    net = deep_net()
    net(images())
    before = copy.deepcopy(net.state_dict())

    def fail_at_the_third(model, batch):
        seen.append(1)
        model(batch)
        if len(seen) == 3:
            raise KeyError("the user's own")

    seen = []
    with pytest.raises(KeyError, match="the user's own"):
        reestimate(net, images().split(5), forward=fail_at_the_third, passes=passes)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())


def test_dictionary_and_tuple_batches_autocast_and_device():
    # fvcore#97
    x = rows()
    for batches in (
        [(part, torch.zeros(len(part))) for part in x.split(9)],
        [{"image": part, "label": torch.zeros(len(part), dtype=torch.long)} for part in x.split(9)],
        [{"input": part, "other": 1} for part in x.split(9)],
        iter([[part] for part in x.split(9)]),
    ):
        layer = nn.BatchNorm1d(6).double()
        reestimate(layer, batches, device="cpu")
        torch.testing.assert_close(layer.running_var, x.var(0), **EXACT)
    layer = nn.BatchNorm1d(6).double()
    reestimate(layer, [{"a": part, "b": part} for part in x.split(9)], forward=lambda model, batch: model(batch["b"]))
    torch.testing.assert_close(layer.running_mean, x.mean(0), **EXACT)
    with pytest.raises(ValueError, match=r"dictionary of 'a', 'b'.*give forward="):
        reestimate(layer, [{"a": x, "b": x}])


def test_under_autocast_the_moments_are_of_the_rounded_values_in_float64():
    # pytorch#50945
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    x = rows(dtype=torch.float32)[:, :] % 7
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = net[0](x)
        reestimate(net, x.split(8))
    assert hidden.dtype == torch.bfloat16
    assert net[1].running_mean.dtype == torch.float32
    torch.testing.assert_close(net[1].running_var, hidden.double().var(0).float())


def test_max_samples_cuts_the_last_batch():
    x = rows()
    layer = nn.BatchNorm1d(6).double()
    result = reestimate(layer, [(part, part[:, 0]) for part in x.split(9)], max_samples=20)
    assert result.report.samples == 20
    torch.testing.assert_close(layer.running_mean, x[:20].mean(0), **EXACT)
    short = reestimate(layer, x.split(9), max_samples=1000)  # a loader with fewer rows is no error
    assert short.report.samples == 53
    with pytest.raises(ValueError, match="at least 1"):
        reestimate(layer, [x], max_samples=0)


def test_one_row_batches_are_pooled_too():
    layer = nn.BatchNorm1d(6).double()
    x = rows()
    reestimate(layer, x.split(1))
    torch.testing.assert_close(layer.running_var, x.var(0), **EXACT)


def test_what_cannot_be_estimated_is_said():
    layer = nn.BatchNorm1d(6).double()
    with pytest.raises(ValueError, match="no batches"):
        reestimate(layer, [])
    with pytest.raises(ValueError, match="single value"):
        reestimate(layer, [rows(1)])
    bad = rows()
    bad[3, 2] = float("inf")
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match=r"layer \(the model itself\) received values that are not finite"):
        reestimate(layer, bad.split(10))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    with pytest.raises(ValueError, match='"exact" or "single"'):
        reestimate(layer, [rows()], passes="twice")


def test_layers_without_statistics_and_never_called_ones_are_noted():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.BatchNorm1d(6)
            self.spare = nn.BatchNorm1d(6)
            self.stateless = nn.BatchNorm1d(6, track_running_stats=False)

        def forward(self, x):
            return self.stateless(self.used(x))

    net = Net().double()
    report = reestimate(net, rows().split(10)).report
    assert [layer.name for layer in report.layers] == ["used"]
    assert "spare was never called" in str(report)
    assert "stateless keeps no running statistics" in str(report)
    assert torch.equal(net.spare.running_var, torch.ones(6).double())
    assert "no layer with running statistics" in str(reestimate(nn.GroupNorm(2, 6).double(), [rows()]).report)


def test_dropout_is_off_and_the_generator_is_not_touched():
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(6)).double()
    x = rows()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    reestimate(net, x.split(10))
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(net[1].running_mean, x.mean(0), **EXACT)


def test_report_says_how_far_the_statistics_moved():
    layer = nn.BatchNorm1d(2, eps=0.0).double()  # old: mean 0, variance 1
    report = reestimate(layer, [torch.tensor([[0.0, 3.0], [4.0, 7.0]]).double()]).report
    (change,) = report.layers
    assert change.values == 2
    assert change.mean_shift == pytest.approx(((2**2 + 5**2) / 2) ** 0.5)
    assert change.variance_ratio == pytest.approx(4.0)  # biased variance 4 in both channels


def over_two(rank):
    net = deep_net()
    x = images(11)
    part = x[:3].split(2) if rank == 0 else x[3:].split(3)
    reestimate(net, part)
    one_empty = deep_net()
    reestimate(one_empty, x.split(4) if rank else [])
    single = deep_net()
    reestimate(single, [] if rank else [x], passes="single")
    failures = []
    before = {name: value.clone() for name, value in single.state_dict().items()}
    for passes in ("exact", "single"):
        try:
            reestimate(single, [x if rank else x * float("nan")], passes=passes)
        except (ValueError, RuntimeError) as error:
            failures.append(f"{type(error).__name__}: {error}")
    unchanged = all(torch.equal(value, before[name]) for name, value in single.state_dict().items())
    wrapped = nn.parallel.DistributedDataParallel(deep_net())
    reestimate(wrapped, part)
    return {
        "pooled": statistics(net),
        "empty": statistics(one_empty),
        "single": statistics(single),
        "wrapped": statistics(wrapped.module),
        "failures": failures,
        "unchanged": unchanged,
    }


def test_two_processes_with_3_and_8_samples_agree_on_the_pooled_value(tmp_path):
    # fvcore#152, detectron2#5398, detectron2#5409
    first, second = run_in_two_processes(over_two, tmp_path)
    net = deep_net()
    reestimate(net, images(11).split(5))
    single = deep_net()
    reestimate(single, [images(11)], passes="single")
    for kind, right in (("pooled", net), ("empty", net), ("wrapped", net), ("single", single)):
        for name, value in statistics(right).items():
            assert torch.equal(first[kind][name], second[kind][name])  # to the last bit
            torch.testing.assert_close(first[kind][name], value, **EXACT)
    for error in first["failures"]:
        assert error.startswith("ValueError: layer 1 received values that are not finite")
    for error in second["failures"]:
        assert error.startswith("RuntimeError: process 0 failed")
    assert len(first["failures"]) == len(second["failures"]) == 2
    assert first["unchanged"]
    assert second["unchanged"]
