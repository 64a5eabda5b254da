"""Parts of a batch under pooled statistics are the whole batch; what cannot be so is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from tenfold.normalization import BatchNorm1d, pooled_statistics

DOUBLE = torch.float64


def rows(*shape):
    return torch.randn(shape, dtype=DOUBLE)


def test_nine_rows_as_five_one_and_three_by_hand():
    # pytorch#46516: y, dx, dgamma and dbeta from the formulas of the paper in NumPy
    x, dy = rows(9, 2), rows(9, 2)
    layer = BatchNorm1d(2).double()
    nn.init.normal_(layer.weight)
    parts = [part.clone().requires_grad_() for part in x.split([5, 1, 3])]
    outputs = []
    with pooled_statistics(layer, parts):
        for part, steep in zip(parts, dy.split([5, 1, 3]), strict=True):
            outputs.append(layer(part))
            outputs[-1].backward(steep)
    values, steep, gamma = x.numpy(), dy.numpy(), layer.weight.detach().numpy()
    scale = 1 / np.sqrt(values.var(0) + 1e-5)
    z = (values - values.mean(0)) * scale
    d = steep * gamma
    want = scale * (d - d.mean(0) - z * (d * z).mean(0))
    np.testing.assert_allclose(torch.cat(outputs).detach().numpy(), z * gamma, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(torch.cat([part.grad for part in parts]).numpy(), want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(layer.weight.grad.numpy(), (steep * z).sum(0), rtol=1e-12)
    np.testing.assert_allclose(layer.bias.grad.numpy(), steep.sum(0), rtol=1e-12)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.9 + 0.1 * values.var(0, ddof=1), rtol=1e-12)
    assert layer.num_batches_tracked.item() == 1  # one step of the optimizer, one update


class Residual(nn.Module):
    """Two layers whose second input holds the first one's output twice over, and masks that go along."""

    def __init__(self):
        super().__init__()
        self.first = BatchNorm1d(3, activation="gelu")
        self.mix = nn.Conv1d(3, 3, 1)
        self.second = BatchNorm1d(3)

    def forward(self, batch):
        x, lengths = batch
        h = self.first(x, lengths=lengths)
        return self.second(self.mix(h), h, lengths=lengths)


class PairNet(nn.Module):
    """Takes tuples, as parts are given."""

    def __init__(self):
        super().__init__()
        self.inner = Residual()

    def forward(self, x, lengths=None):
        return self.inner((x, lengths))


def test_masked_parts_and_branches_are_the_whole_batch():
    # runai#14; padded sequences of accumulated parts
    torch.manual_seed(4)
    whole = PairNet().double()
    parted = PairNet().double()
    parted.load_state_dict(whole.state_dict())
    x, lengths = rows(7, 3, 4), torch.tensor([4, 1, 2, 3, 4, 0, 2])
    y = whole(x, lengths)
    y.pow(3).sum().backward()
    cuts = [slice(0, 2), slice(2, 6), slice(6, 7)]
    parts = [{"x": x[cut], "lengths": lengths[cut]} for cut in cuts]
    outputs = []
    with pooled_statistics(parted, parts):
        for part in parts:
            outputs.append(parted(**part))
            outputs[-1].pow(3).sum().backward()
    torch.testing.assert_close(torch.cat(outputs), y, rtol=1e-10, atol=1e-10)
    for one, two in zip(whole.parameters(), parted.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, rtol=1e-9, atol=1e-9)
    for one, two in zip(whole.buffers(), parted.buffers(), strict=True):
        torch.testing.assert_close(two, one)


def test_two_steps_of_an_optimizer_are_those_of_whole_batches():
    def net():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()

    whole, parted = net(), net()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in (whole, parted)]
    for _ in range(2):
        x = rows(8, 2)
        for optimizer in optimizers:
            optimizer.zero_grad()
        whole(x).square().mean().backward()
        for output in pooled_statistics(parted, x.split(3)):
            (output.square().sum() / 8).backward()
        for optimizer in optimizers:
            optimizer.step()
    for one, two in zip(whole.state_dict().values(), parted.state_dict().values(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-12)


def test_a_backward_pass_that_comes_too_late_is_refused():
    layer = BatchNorm1d(2).double()
    parts = rows(6, 2).requires_grad_().detach().split(3)
    with pooled_statistics(layer, parts):
        outputs = [layer(part) for part in parts]
    with pytest.raises(RuntimeError, match="comes after the end of pooled_statistics"):
        torch.cat(outputs).sum().backward()
    with pooled_statistics(layer, parts, gradients="fixed"):
        outputs = [layer(part) for part in parts]
    torch.cat(outputs).sum().backward()


def test_parts_with_a_history_are_refused():
    features = nn.Linear(2, 2).double()(rows(6, 2))
    layer = BatchNorm1d(2).double()
    with pytest.raises(ValueError, match="give the whole model and its inputs, detach"):
        pooled_statistics(layer, features.split(3))
    for output in pooled_statistics(layer, features.detach().split(3)):
        output.sum().backward()


def test_dropout_is_warned_of():
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))
    with pytest.warns(UserWarning, match="0 drops values at random"):
        pooled_statistics(model, [torch.randn(4, 2)])
    model[0].p = 0.0
    pooled_statistics(model, [torch.randn(4, 2)])


def test_a_loop_that_is_left_early_changes_nothing():
    layer = nn.BatchNorm1d(2)
    loop = iter(pooled_statistics(layer, torch.randn(6, 2).split(2)))
    next(loop)
    loop.close()
    assert layer.num_batches_tracked.item() == 0
    assert "forward" not in layer.__dict__


def test_layers_in_evaluation_stay_as_they_are():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    model[0].eval()
    before = model[0].running_mean.clone()
    for _ in pooled_statistics(model, torch.randn(6, 2).split(3)):
        pass
    assert torch.equal(model[0].running_mean, before)
    assert model[1].num_batches_tracked.item() == 1


def test_one_value_in_all_parts_together_names_the_layer():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with (
        pytest.raises(ValueError, match="1 has 1 value a channel in all parts"),
        pooled_statistics(model, [torch.randn(1, 2)]),
    ):
        pass
