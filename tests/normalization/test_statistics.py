"""Population statistics, policies and messages that all layers of this library share."""

import copy
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from tenfold.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchRenorm,
    CrossProcessBatchNorm,
    FrozenBatchNorm,
    GhostBatchNorm,
    mask_from_lengths,
    name_layers,
)
from tenfold.normalization.statistics import masked_moments, update_running
from type_checking import unchecked_annotations

VARIANTS = {
    "batch": BatchNorm1d,
    "ghost": lambda channels, **options: GhostBatchNorm(channels, virtual_batch_size=4, **options),
    "renorm": BatchRenorm,
    "cross_process": CrossProcessBatchNorm,
}


@pytest.fixture(params=VARIANTS)
def make(request):
    return VARIANTS[request.param]


class Block(nn.Module):
    """A layer that is not registered by the name of a place in a list."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x)


def test_the_error_for_one_value_finds_the_layer_in_the_model(make):
    # fastai#1352, pytorch#4534: dozens of models fail in their last batch, and the message did not say where
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), Block(make(3))))
    with pytest.raises(
        ValueError, match=r"1\.1\.norm \(\w+\) needs more than 1 value a channel.*shape \(1, 3\).*drop_last"
    ):
        model(torch.randn(1, 2))
    name_layers(model)
    model[1][1].norm.layer_name = "the last one"
    with pytest.raises(ValueError, match=r"the last one \(\w+\) needs"):
        model(torch.randn(1, 2))
    assert model.eval()(torch.randn(1, 2)).shape == (1, 3)


def test_one_value_is_normalized_by_the_population_where_that_is_asked_for(make):
    layer = make(2, on_single="running").double()
    layer(torch.randn(8, 2, dtype=torch.float64) * 3 + 1)
    buffers = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    x = torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
    copied = copy.deepcopy(layer).eval()
    y = layer(x)
    torch.testing.assert_close(y, copied(x))
    assert torch.autograd.grad(y.sum(), x)[0].all()
    for name in ("running_var", "running_std"):  # SparseConvNet#190: one value has no variance
        if name in buffers:
            assert torch.equal(getattr(layer, name), buffers[name])


def test_one_valid_position_is_one_value_too(make):
    mask = mask_from_lengths(torch.tensor([0, 1]), 4)
    with pytest.raises(ValueError, match="needs more than 1 value"):
        make(2)(torch.randn(2, 2, 4), mask=mask)


def test_no_valid_position_changes_no_statistic(make):
    layer = make(2)
    before = [buffer.clone() for buffer in layer.buffers()]
    x = torch.randn(2, 2, 4, requires_grad=True)
    y = layer(x, lengths=torch.tensor([0, 0]))
    y.sum().backward()
    assert not y.any()
    assert not x.grad.any()
    assert layer(torch.randn(0, 2, 4)).shape == (0, 2, 4)
    assert all(torch.equal(one, two) for one, two in zip(before, layer.buffers(), strict=True))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_batch_that_is_not_finite_is_left_out_and_counted(make, bad):
    # pytorch#1206: the running variance stayed NaN for ever
    model = nn.Sequential(make(2))
    model(torch.randn(4, 2))
    assert model[0].skipped_updates == 0
    before = [buffer.clone() for buffer in model.buffers()]
    with pytest.warns(UserWarning, match=r"0 \(\w+\): the statistics of a batch are not finite"):
        model(torch.tensor([[1.0, bad], [2.0, 0.0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.tensor([[bad, 1.0], [2.0, 0.0]]))
    assert model[0].skipped_updates == 2
    assert all(torch.equal(one, two) for one, two in zip(before, model.buffers(), strict=True))
    assert "skipped_updates" not in model.state_dict()


def test_a_refused_part_of_a_ghost_batch_leaves_no_trace_of_the_others():
    layer = GhostBatchNorm(2, virtual_batch_size=2)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match="needs more than 1 value"):
        layer(torch.randn(4, 2, 3), lengths=torch.tensor([3, 2, 1, 0]))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_padding_of_the_summand_counts_as_little_as_that_of_the_input(make):
    # tensorflow#30161, deepspeech.pytorch#312
    lengths = torch.tensor([3, 1, 2, 3])
    padding = ~mask_from_lengths(lengths, 3).unsqueeze(1)
    layer = make(2, activation="silu").double()
    x, add = (torch.randn(4, 2, 3, dtype=torch.float64) for _ in range(2))
    filled = [t.masked_fill(padding, float("nan")).requires_grad_() for t in (x, add)]
    zeros = [t.masked_fill(padding, 0.0).requires_grad_() for t in (x, add)]
    results = []
    for pair in (filled, zeros):
        y = copy.deepcopy(layer)(*pair, lengths=lengths)
        results.append((y, *torch.autograd.grad(y.square().sum(), pair)))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
        assert not one.masked_select(padding).any()


def test_padding_is_zero_in_evaluation_and_in_frozen_layers(make):
    lengths = torch.tensor([3, 1])
    mask = mask_from_lengths(lengths, 3)
    x = torch.randn(2, 2, 3).masked_fill(~mask.unsqueeze(1), float("nan"))
    layer = make(2).eval()
    nn.init.normal_(layer.bias)
    for evaluated in (layer, FrozenBatchNorm.from_module(layer)):
        y = evaluated(x, lengths=lengths)
        assert not y.masked_select(~mask.unsqueeze(1)).any()
        torch.testing.assert_close(y, evaluated(x.nan_to_num(), mask=mask), rtol=0, atol=0)
        assert y.isfinite().all()


@pytest.mark.parametrize("shape", [(8, 3), (8, 3, 4), (8, 3, 2, 2), (4, 3, 2, 2, 2), (4, 3, 1, 2, 1, 2)])
@pytest.mark.parametrize("kind", ["ghost", "renorm", "cross_process"])
def test_inputs_of_any_rank(kind, shape):
    x = torch.randn(shape, dtype=torch.float64)
    layer, flat = (VARIANTS[kind](3).double() for _ in range(2))
    torch.testing.assert_close(layer(x), flat(x.flatten(2) if x.dim() > 2 else x).view(shape), rtol=1e-12, atol=1e-12)


def test_layout_of_channels_last_is_kept_forward_and_backward():
    # pytorch#111824
    x = torch.randn(8, 3, 4, 2).to(memory_format=torch.channels_last).requires_grad_()
    for name in ("ghost", "renorm", "cross_process"):
        y = VARIANTS[name](3)(x)
        (dx,) = torch.autograd.grad(y.square().sum(), x)
        for tensor in (y, dx):
            assert tensor.is_contiguous(memory_format=torch.channels_last), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_one_rounding_of_the_exact_result(make, dtype):
    x = (torch.randn(8, 2, 16) + 20).to(dtype)
    layer = make(2, activation="relu")
    exact = copy.deepcopy(layer).double()(x.double())
    y = layer(x)
    assert y.dtype == dtype
    assert layer.running_mean.dtype == torch.float32
    torch.testing.assert_close(y, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_keras_conventions_of_every_layer(make):
    # keras#8982, EfficientNet-PyTorch#3
    kind = type(make(2))
    options = {"virtual_batch_size": 4} if kind is GhostBatchNorm else {}
    layer = kind.from_keras(2, momentum=0.9, epsilon=1e-2, **options).double()
    x = torch.randn(4, 2, dtype=torch.float64)
    layer(x)
    variance = x.var(0, correction=0)  # Keras's moving variance is the biased one
    if kind is BatchRenorm:
        torch.testing.assert_close(layer.running_std, 0.9 + 0.1 * torch.sqrt(variance + 1e-2))
    else:
        torch.testing.assert_close(layer.running_var, 0.9 + 0.1 * variance)
    torch.testing.assert_close(layer.running_mean, 0.1 * x.mean(0))


def test_a_momentum_of_keras_is_warned_of_and_the_last_batch_alone_is_not(make):
    # ludwig PR 2100
    with pytest.warns(UserWarning, match=r"momentum=0\.99 is the weight of the new batch.*0\.01 here"):
        make(2, momentum=0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for momentum in (0.5, 1.0, None):
            make(2, momentum=momentum)


def test_cumulative_average_weighs_all_batches_alike():
    layer = BatchNorm1d(1, momentum=None).double()
    batches = torch.randn(3, 5, 1, dtype=torch.float64)
    for batch in batches:
        layer(batch)
    torch.testing.assert_close(layer.running_mean, batches.mean((0, 1)))
    torch.testing.assert_close(layer.running_var, batches.var(1).mean(0))  # the mean of unbiased variances


def test_torchs_own_layers_are_moved_as_torch_moves_them():
    ours, torchs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    for _ in range(2):
        x = torch.randn(4, 3, 5, 5)
        torchs(x)
        moments = masked_moments(x)
        assert update_running(ours, moments.mean, moments.variance, moments.count)
    for one, two in zip(ours.buffers(), torchs.buffers(), strict=True):
        torch.testing.assert_close(one, two)


def test_population_of_a_forward_pass_is_kept_for_its_backward_pass():
    """Evaluation, then a training step that moves the buffers, then the first backward pass."""
    layer = BatchNorm2d(2).double()
    x = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    y = layer.eval()(x)
    layer.train()(torch.randn(3, 2, 2, 2, dtype=torch.float64))
    (dx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dx, torch.full_like(dx, (1 + 1e-5) ** -0.5))


def test_frozen_layer_reads_checkpoints_without_scales_and_of_renorm():
    # pytorch#86590, indexnet_matting#35, chemprop PR 952
    plain = nn.BatchNorm1d(3, affine=False)
    plain(torch.randn(9, 3))
    renorm = BatchRenorm(3)
    renorm(torch.randn(9, 3) * 2)
    x = torch.randn(4, 3)
    for layer in (plain, renorm):
        frozen = FrozenBatchNorm.from_module(layer)
        torch.testing.assert_close(frozen(x), layer.eval()(x))
    loaded = FrozenBatchNorm(3)
    loaded.load_state_dict(plain.state_dict())
    torch.testing.assert_close(loaded(x), plain(x))
    renewed = FrozenBatchNorm(3, eps=1e-3)
    renewed.load_state_dict(renorm.state_dict())
    torch.testing.assert_close(renewed(x), renorm(x))


def test_frozen_layer_stays_frozen_whatever_is_called():
    # mmdetection#346, gt-pyg#112
    frozen = FrozenBatchNorm.from_module(BatchNorm1d(3))
    model = nn.Sequential(frozen)
    before = copy.deepcopy(model.state_dict())
    model.train(True).requires_grad_(True)
    frozen.training = True  # from outside, as some loops set it
    optimizer_gets = list(model.parameters())
    x = torch.randn(8, 3, requires_grad=True)
    y = model(x)
    assert optimizer_gets == []
    (dx,) = torch.autograd.grad(y.sum(), x)  # gradients pass through
    torch.testing.assert_close(dx, torch.full_like(dx, (1 + 1e-5) ** -0.5))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_wrong_shapes_of_frozen_layers_are_named():
    for arguments, message in (
        ((torch.zeros(2, 4),), r"give \(batch, 3, ...\)"),
        ((torch.zeros(2, 3), torch.zeros(3, 3)), "add has shape"),
    ):
        with unchecked_annotations(), pytest.raises(ValueError, match=message):
            FrozenBatchNorm(3)(*arguments)


COMPILED = """
import copy
import torch
from tenfold.normalization import BatchRenorm, GhostBatchNorm

x = torch.randn(6, 2, 3)
for eager, options in (
    (BatchRenorm(2), {}),
    (GhostBatchNorm(2, virtual_batch_size=3), {"lengths": torch.tensor([3, 1, 0, 2, 3, 3])}),
):
    traced = copy.deepcopy(eager)
    found = []
    for layer in (eager, torch.compile(traced, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        y = layer(leaf, **options)
        y.pow(3).sum().backward()
        found.append((y.detach(), leaf.grad))
    for one, two in zip((*found[0], *eager.buffers()), (*found[1], *traced.buffers()), strict=True):
        torch.testing.assert_close(one, two)
"""


def test_compiled_layers_have_the_same_outputs_gradients_and_statistics():
    """In a process of its own: torch.compile does not read the checks of shapes that the tests put in."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
