"""Two processes with a layer over both, in one start of processes: each scenario against the whole batch in this process."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from two_processes import run_in_two_processes

from tenfold.normalization import BatchNorm1d, CrossProcessBatchNorm

CUT = 3  # of eight rows: three for the first process, five for the second


def rows(seed, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def own(x, rank):
    return x[:CUT] if rank == 0 else x[CUT:]


def lengths():
    return torch.tensor([3, 1, 0, 2, 3, 3, 0, 1])


def network(norm):
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(2, 4), norm(4), nn.Tanh(), nn.Linear(4, 3), norm(3)).double()


def penalized(layer, x):
    """The gradient of a gradient's square, as in a gradient penalty."""
    (dx,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(dx.square().sum(), x)
    return second


def scenarios(rank):
    found = {}
    found["second"] = penalized(CrossProcessBatchNorm(2).double(), own(rows(1, 8, 2), rank).requires_grad_())

    layer = CrossProcessBatchNorm(2, momentum=None).double()
    x = own(rows(2, 8, 2, 3), rank).requires_grad_()
    y = layer(x, lengths=own(lengths(), rank))
    y.pow(3).sum().backward()
    found["masked"] = [y.detach(), x.grad, layer.running_mean, layer.running_var]

    found["a row each"] = CrossProcessBatchNorm(2).double()(rows(3, 2, 2)[rank : rank + 1]).detach()

    model = nn.Sequential(CrossProcessBatchNorm(2))
    try:
        model(torch.randn(1 - rank, 2))  # a row in the first process, none in the second
    except ValueError as error:
        found["a row in all"] = str(error)

    layer = CrossProcessBatchNorm(2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        layer(torch.full((2, 2), float("inf") if rank == 1 else 1.0))
    found["not finite"] = [len(seen), layer.skipped_updates, layer.running_mean, layer.running_var]

    groups = [dist.new_group([0]), dist.new_group([1])]
    alone = copy.deepcopy(CrossProcessBatchNorm(2, process_group=groups[rank]).double())
    found["a group of one"] = alone(own(rows(4, 8, 2), rank)).detach()
    both = dist.new_group([0, 1])
    copied = copy.deepcopy(nn.Sequential(CrossProcessBatchNorm(2, process_group=both).double()))
    found["copied"] = copied(own(rows(4, 8, 2), rank)).detach()
    found["same group"] = copied[0].process_group is both

    layer = CrossProcessBatchNorm(2).double().eval()
    found["evaluation"] = layer(own(rows(5, 8, 2), rank)).detach() if rank else torch.zeros(0)  # one process alone

    parallel = nn.parallel.DistributedDataParallel(network(CrossProcessBatchNorm))
    (parallel(own(rows(6, 8, 2), rank)).pow(3).sum() / 8).backward()
    found["data parallel"] = [parameter.grad for parameter in parallel.parameters()]

    wide = CrossProcessBatchNorm(2)
    found["offset"] = wide((own(rows(7, 8, 2), rank) + 1e4).float()).detach()
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_in_two_processes(scenarios, tmp_path_factory.mktemp("processes"))


def joined(results, name):
    return torch.cat([result[name] for result in results])


def close(one, two, tolerance=1e-11):
    torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def test_second_derivatives_go_through_all_processes(results):
    close(joined(results, "second"), penalized(BatchNorm1d(2).double(), rows(1, 8, 2).requires_grad_()), 1e-9)


def test_masks_of_each_process(results):
    whole = BatchNorm1d(2, momentum=None).double()
    x = rows(2, 8, 2, 3).requires_grad_()
    y = whole(x, lengths=lengths())
    y.pow(3).sum().backward()
    for i, want in enumerate((y.detach(), x.grad)):
        close(torch.cat([result["masked"][i] for result in results]), want)
    for result in results:
        close(result["masked"][2], whole.running_mean)
        close(result["masked"][3], whole.running_var)


def test_a_row_in_each_process_is_a_batch(results):
    close(joined(results, "a row each"), BatchNorm1d(2).double()(rows(3, 2, 2)).detach())


def test_one_row_in_all_is_the_same_error_in_each_process(results):
    for result in results:
        assert "0 (CrossProcessBatchNorm) needs more than 1 value a channel" in result["a row in all"]


def test_one_bad_process_keeps_all_statistics_as_they_were(results):
    # pytorch#1206, fvcore#152: no process may move on alone
    for result in results:
        warned, skipped, mean, variance = result["not finite"]
        assert (warned, skipped) == (1, 1)
        assert (mean.tolist(), variance.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_groups_are_kept_by_copies_and_bound_the_batch(results):
    x = rows(4, 8, 2)
    for rank, result in enumerate(results):
        close(result["a group of one"], BatchNorm1d(2).double()(own(x, rank)).detach())
        assert result["same group"]
    close(joined(results, "copied"), BatchNorm1d(2).double()(x).detach())


def test_evaluation_waits_for_nobody(results):
    close(results[1]["evaluation"], BatchNorm1d(2).double().eval()(own(rows(5, 8, 2), 1)).detach())


def test_a_network_under_data_parallel_has_the_gradients_of_the_whole_batch(results):
    # pytorch PR 104250, mmagic#133: the mean over processes, so half of the sum
    whole = network(BatchNorm1d)
    (whole(rows(6, 8, 2)).pow(3).sum() / 8).backward()
    for result in results:
        for found, parameter in zip(result["data parallel"], whole.parameters(), strict=True):
            close(found * 2, parameter.grad, 1e-10)


def test_a_mean_far_above_the_deviation_costs_no_digits(results):
    # pytorch#40302
    exact = (rows(7, 8, 2) + 1e4).float().double()
    variance, mean = torch.var_mean(exact, 0, correction=0)
    want = (exact - mean) / torch.sqrt(variance + 1e-5)
    assert (joined(results, "offset").double() - want).abs().max() < 4e-7
