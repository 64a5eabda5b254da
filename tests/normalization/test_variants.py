"""Ghost, renormalized, cross-process and accumulated batch statistics against worked references."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from two_processes import run_in_two_processes

from tenfold.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchRenorm,
    CrossProcessBatchNorm,
    GhostBatchNorm,
    papers_schedule,
    pooled_statistics,
)


def standardized(x, eps=1e-5):
    axes = (0, *range(2, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


# --- ghost batches --------------------------------------------------------------------------------------------------


def test_ghost_parts_have_their_own_statistics_and_a_ragged_tail():
    x = torch.randn(11, 3, 2, dtype=torch.float64)
    layer = GhostBatchNorm(3, virtual_batch_size=4, momentum=0.5).double()
    expected = np.concatenate([standardized(part) for part in (x[:4].numpy(), x[4:8].numpy(), x[8:].numpy())])
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-12)
    mean = np.zeros(3)
    for part in (x[:4], x[4:8], x[8:]):
        mean = 0.5 * mean + 0.5 * part.numpy().mean((0, 2))
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, atol=1e-12)
    assert layer.num_batches_tracked.item() == 3


def test_a_last_row_alone_joins_the_part_before_it():
    x = torch.randn(9, 3, dtype=torch.float64)
    layer = GhostBatchNorm(3, virtual_batch_size=4).double()
    expected = np.concatenate([standardized(x[:4].numpy()), standardized(x[4:].numpy())])
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-12)


def test_evaluation_knows_no_parts():  # tensorflow#23050, keras#15790
    layer = GhostBatchNorm(3, virtual_batch_size=32).double()
    layer(torch.randn(64, 3, dtype=torch.float64))
    layer.eval()
    x = torch.randn(5, 3, dtype=torch.float64)
    whole = nn.BatchNorm1d(3).double().eval()
    whole.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), whole(x))


def test_ghost_gradients():
    layer = GhostBatchNorm(2, virtual_batch_size=3, track_running_stats=False, activation="silu").double()
    x = torch.randn(7, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


# --- renormalization ------------------------------------------------------------------------------------------------


def test_renorm_by_hand():
    layer = BatchRenorm(1, eps=0.0, rmax=1.5, dmax=0.25, momentum=0.1).double()
    layer.running_mean.fill_(1.0)
    layer.running_std.fill_(0.5)
    x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)  # mean 2, deviation 1: r = 2 -> 1.5, d = 2 -> 0.25
    y = layer(x)
    torch.testing.assert_close(y.flatten(), torch.tensor([-1.5 + 0.25, 1.5 + 0.25], dtype=torch.float64))
    assert layer.running_mean.item() == pytest.approx(0.9 * 1.0 + 0.1 * 2.0)
    assert layer.running_std.item() == pytest.approx(0.9 * 0.5 + 0.1 * 1.0)  # the deviation, not the variance


def test_renorm_without_correction_is_batch_normalization_and_without_bounds_is_evaluation():
    x = torch.randn(8, 3, 4, dtype=torch.float64)
    plain, peer = BatchRenorm(3, rmax=1.0, dmax=0.0).double(), nn.BatchNorm1d(3, eps=1e-3).double()
    torch.testing.assert_close(plain(x), peer(x))
    free = BatchRenorm(3, rmax=math.inf, dmax=math.inf).double()
    free.running_mean.normal_()
    free.running_std.uniform_(0.5, 2.0)
    expected = free.eval()(x)
    torch.testing.assert_close(free.train()(x), expected)


def test_r_and_d_carry_no_gradient():
    layer = BatchRenorm(2, rmax=3.0, dmax=5.0).double()
    layer.running_std.fill_(0.7)
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    mean, deviation = x.mean(0), torch.sqrt(x.var(0, correction=0) + 1e-3)
    r = (deviation / 0.7).clamp(1 / 3, 3).detach()
    d = (mean / 0.7).clamp(-5, 5).detach()
    expected = torch.autograd.grad((((x - mean) / deviation) * r + d).pow(3).sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(layer(x).pow(3).sum(), x)[0], expected)


def test_schedule_of_the_paper():
    assert papers_schedule(5_000) == (1.0, 0.0)
    assert papers_schedule(15_000) == (pytest.approx(1 + 2 * 10 / 35), 2.5)
    assert papers_schedule(25_000)[1] == 5.0
    assert papers_schedule(10**6) == (3.0, 5.0)
    layer = BatchRenorm(1, schedule=lambda step: (1.0 + step, float(step)))
    assert layer.bounds() == (1.0, 0.0)
    layer(torch.randn(4, 1))
    assert layer.bounds() == (2.0, 1.0)


def test_renorm_reads_a_checkpoint_of_batch_normalization():
    source = nn.BatchNorm1d(3, eps=1e-3)
    source(torch.randn(10, 3))
    layer = BatchRenorm(3)
    layer.load_state_dict(source.state_dict(), strict=True)
    x = torch.randn(5, 3)
    torch.testing.assert_close(layer.eval()(x), source.eval()(x))


# --- across processes -----------------------------------------------------------------------------------------------

ROWS = {2: (3, 8), 3: (4, 0, 7)}


def rows_of(rank, counts):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(sum(counts), 3, 2, dtype=torch.float64, generator=generator)
    dy = torch.randn(sum(counts), 3, 2, dtype=torch.float64, generator=generator)
    start = sum(counts[:rank])
    return x[start : start + counts[rank]], dy[start : start + counts[rank]]


def cross_process_step(rank):
    counts = ROWS[torch.distributed.get_world_size()]
    x, dy = rows_of(rank, counts)
    torch.manual_seed(0)
    layer = CrossProcessBatchNorm(3, activation="silu").double()
    torch.nn.init.normal_(layer.weight)
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(dy)
    return [y.detach(), x.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var]


@pytest.mark.parametrize("size", [2, 3])
def test_processes_are_one_batch(size, tmp_path):  # pytorch PR 78081, 104250, mmagic#133, InternImage#296
    """On gloo and CPU, with unequal parts, and with a process that has no rows."""
    results = run_in_two_processes(cross_process_step, tmp_path, size)
    x, dy = (torch.cat(parts) for parts in zip(*(rows_of(r, ROWS[size]) for r in range(size)), strict=True))
    torch.manual_seed(0)
    whole = BatchNorm1d(3, activation="silu").double()
    torch.nn.init.normal_(whole.weight)
    x.requires_grad_()
    y = whole(x)
    y.backward(dy)
    joined = [torch.cat([result[i] for result in results]) for i in range(2)]
    torch.testing.assert_close(joined[0], y.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(joined[1], x.grad, rtol=1e-10, atol=1e-12)
    for i, wanted in ((2, whole.weight.grad), (3, whole.bias.grad)):
        torch.testing.assert_close(sum(result[i] for result in results), wanted, rtol=1e-10, atol=1e-12)
    for result in results:
        torch.testing.assert_close(result[4], whole.running_mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(result[5], whole.running_var, rtol=1e-12, atol=1e-12)
        assert torch.equal(result[4], results[0][4])


def test_without_a_group_it_is_ordinary_batch_normalization():
    layer, peer = CrossProcessBatchNorm(3).double(), nn.BatchNorm2d(3).double()
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    torch.testing.assert_close(layer(x), peer(x))
    torch.testing.assert_close(layer.running_var, peer.running_var)


# --- accumulation ---------------------------------------------------------------------------------------------------


def small_net():
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        BatchNorm2d(4, activation="silu"),
        nn.Flatten(),
        nn.Linear(36, 3),
        nn.BatchNorm1d(3),
    )
    return net.double()


def test_accumulated_parts_are_the_whole_batch():  # pytorch#46516, runai#14
    """9 rows as 5 + 1 + 3: outputs, running statistics and the gradients of all parameters."""
    x = torch.randn(9, 2, 3, 3, dtype=torch.float64)
    target = torch.randn(9, 3, dtype=torch.float64)
    whole, parted = small_net(), small_net()
    y = whole(x)
    (y - target).square().sum().backward()
    cuts = (slice(0, 5), slice(5, 6), slice(6, 9))
    outputs = []
    parts = [x[cut] for cut in cuts]
    with pooled_statistics(parted, parts):
        for part, cut in zip(parts, cuts, strict=True):
            outputs.append(parted(part))
            (outputs[-1] - target[cut]).square().sum().backward()
    torch.testing.assert_close(torch.cat(outputs), y, rtol=1e-10, atol=1e-10)
    for (name, one), (_, two) in zip(whole.named_parameters(), parted.named_parameters(), strict=True):
        torch.testing.assert_close(
            two.grad, one.grad, rtol=1e-8, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
    for one, two in zip(whole.buffers(), parted.buffers(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-10)


def test_fixed_statistics_leave_out_their_share_of_the_gradient():
    x = torch.randn(6, 2, 3, 3, dtype=torch.float64)
    whole, parted = small_net(), small_net()
    whole(x).pow(3).sum().backward()
    for output in pooled_statistics(parted, [x[:2], x[2:]], gradients="fixed"):
        output.pow(3).sum().backward()
    torch.testing.assert_close(parted[7].weight.grad, whole[7].weight.grad)  # above the last statistics
    assert not torch.allclose(parted[0].weight.grad, whole[0].weight.grad, rtol=1e-3)


def test_an_error_in_a_part_leaves_the_statistics_as_they_were():
    net = small_net()
    before = [buffer.clone() for buffer in net.buffers()]
    with pytest.raises(RuntimeError, match="mine"), pooled_statistics(net, [torch.randn(4, 2, 3, 3).double()]):
        raise RuntimeError("mine")
    assert all(torch.equal(one, two) for one, two in zip(before, net.buffers(), strict=True))
    assert "forward" not in net[1].__dict__
    assert net.training


def test_moments_of_the_whole_batch_are_there_to_be_read():
    layer = BatchNorm1d(2).double()
    x = torch.randn(9, 2, dtype=torch.float64)
    with pooled_statistics(layer, [x[:5], x[5:6], x[6:]]) as pooled:
        moments = pooled.moments()
    np.testing.assert_allclose(moments.mean.numpy(), x.numpy().mean(0), atol=1e-14)
    np.testing.assert_allclose(moments.variance().numpy(), x.numpy().var(0), atol=1e-14)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(GhostBatchNorm(2)), "GhostBatchNorm"),
        (nn.BatchNorm1d(2, track_running_stats=False), "track_running_stats"),
    ],
)
def test_layers_that_cannot_be_pooled_are_named(module, message):
    with pytest.raises(ValueError, match=message):
        pooled_statistics(module, [torch.randn(4, 2)])


def test_a_layer_called_twice_and_no_parts_are_refused():
    layer = nn.BatchNorm1d(2)
    with (
        pytest.raises(ValueError, match="called 2 times"),
        pooled_statistics(nn.Sequential(layer, layer), [torch.randn(4, 2)]),
    ):
        pass
    with pytest.raises(ValueError, match="parts is empty"):
        pooled_statistics(layer, [])
