"""The compiled layers against torch's own in float64: layouts, types, sums, gradients, threads, memory."""

import copy
import platform

import pytest
import torch
from numba import njit
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from tenfold.normalization import BatchNorm2d, BatchNorm3d, GroupNorm, batch_norm, compiled, group_norm, layouts
from tenfold.normalization.kernels import channel_runs, programs
from tenfold.numerics.vectors import WIDE
from tenfold.runtime import threads
from type_checking import unchecked_annotations

LAST = torch.channels_last
ACTIVATIONS = {None: lambda z: z, "relu": torch.relu, "silu": nn.functional.silu, "gelu": nn.functional.gelu}
FORMATS = [torch.contiguous_format, LAST]


def dense(shape, layout, dtype=torch.float32, generator=None):
    return torch.randn(shape, generator=generator).to(dtype).to(memory_format=layout)


def derivatives(function, tensors, dy):
    leaves = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in tensors]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


CASES = [  # each is compiled anew: every activation, every type, with and without a sum, not all of their products
    (torch.float32, None, False),
    (torch.float32, "relu", False),
    (torch.float32, "relu", True),
    (torch.float32, "silu", False),
    (torch.float32, "gelu", True),
    (torch.float64, "silu", True),
    (torch.float64, "gelu", False),
    (torch.bfloat16, "silu", False),
]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(("dtype", "activation", "summed"), CASES)
def test_gradients_are_torchs(dtype, layout, activation, summed):
    x, other, dy = (dense((2, 12, 5, 7), layout, dtype) for _ in range(3))
    weight, bias = torch.randn(12).to(dtype), torch.randn(12).to(dtype)
    given = (x, weight, bias, *([other] if summed else []))
    precise = [tensor.double() for tensor in given]
    error = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 4e-2}[dtype]

    def peer(normalized, add):
        return ACTIVATIONS[activation](normalized if add is None else normalized + add)

    for ours, torchs in (
        (
            lambda x, w, b, add=None: group_norm(x, 3, w, b, activation=activation, add=add),
            lambda x, w, b, add=None: peer(nn.functional.group_norm(x, 3, w, b), add),
        ),
        (
            lambda x, w, b, add=None: batch_norm(x, None, None, w, b, True, activation=activation, add=add),
            lambda x, w, b, add=None: peer(nn.functional.batch_norm(x, None, None, w, b, True), add),
        ),
    ):
        for got, wanted in zip(derivatives(ours, given, dy), derivatives(torchs, precise, dy.double()), strict=True):
            assert got.dtype == dtype
            scale = float(wanted.abs().max())
            torch.testing.assert_close(got.double(), wanted, rtol=error, atol=error * scale)


@pytest.mark.parametrize("layer", [GroupNorm(4, 32, activation="silu"), BatchNorm2d(32, activation="relu")])
def test_output_and_gradient_keep_the_layout_and_any_layout_of_dy_is_taken(layer):  # pytorch#111824, PR 194616, #59168
    x = dense((4, 32, 24, 24), LAST)
    one, two, three = (x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(3))
    dy = torch.randn(4, 32, 24, 24)
    y = layer(one)
    assert y.is_contiguous(memory_format=LAST)
    y.backward(dy)
    layer(two).backward(dy.to(memory_format=LAST))
    assert one.grad.is_contiguous(memory_format=LAST)
    assert torch.equal(one.grad, two.grad)
    layer(three).backward(dy.transpose(2, 3).contiguous().transpose(2, 3))
    assert torch.equal(one.grad, three.grad)


def test_a_dense_input_of_another_layout_and_a_slice_are_taken_too():
    x = torch.randn(6, 8, 9, 10)
    for odd in (x.transpose(2, 3), x[:, :, ::2], x[::2], x.expand(6, 8, 9, 10)[:, :, 1:]):
        torch.testing.assert_close(group_norm(odd, 2), nn.functional.group_norm(odd, 2), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            batch_norm(odd, training=True),
            nn.functional.batch_norm(odd, None, None, training=True),
            rtol=1e-5,
            atol=1e-5,
        )


def test_volumes_with_channels_last():
    x = dense((2, 6, 3, 4, 5), torch.channels_last_3d)
    y = BatchNorm3d(6)(x)
    assert y.is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(y, nn.BatchNorm3d(6)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", FORMATS)
def test_the_two_ends_of_the_group_axis(layout):  # pytorch PR 194616: groups of one channel
    x = dense((3, 8, 5, 6), layout)
    torch.testing.assert_close(group_norm(x, 8), nn.functional.instance_norm(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(group_norm(x, 1), nn.functional.layer_norm(x, x.shape[1:]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(
    "make", [lambda: GroupNorm(4, 32, activation="silu"), lambda: BatchNorm2d(32, activation="gelu")]
)
def test_the_bits_do_not_depend_on_the_number_of_threads(make, layout, monkeypatch):
    monkeypatch.setattr(layouts, "ALONE", 1)
    monkeypatch.setattr(layouts, "PART", 1000)
    monkeypatch.setattr(compiled, "CHUNK", 5000)
    layer = make()
    x, dy = dense((5, 32, 13, 11), layout), torch.randn(5, 32, 13, 11)
    results = []
    for count in (1, 2, 3):
        one = copy.deepcopy(layer)
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        with threads(count):
            y = one(leaf)
            y.backward(dy)
        results.append([y, leaf.grad, one.weight.grad, one.bias.grad, *one.buffers()])
    for other in results[1:]:
        assert all(torch.equal(first, second) for first, second in zip(results[0], other, strict=True))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(
    "make", [lambda: GroupNorm(4, 64, activation="silu"), lambda: BatchNorm2d(64, activation="relu")]
)
def test_results_that_go_around_the_caches_are_the_same(make, layout, monkeypatch):
    layer, x, dy = make(), dense((3, 64, 16, 16), layout), torch.randn(3, 64, 16, 16)
    results = []
    for large in (1 << 60, 1):
        monkeypatch.setattr(layouts, "LARGE", large)
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        y = copy.deepcopy(layer)(leaf)
        results.append((y, torch.autograd.grad(y, leaf, dy)[0]))
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


def kept_for_backward(model, x):
    """Bytes of the tensors that a forward pass saves, each memory once, the parameters' left out."""
    sizes, own = {}, {parameter.data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        if tensor.data_ptr() not in own:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        y = model(x)
    return sum(sizes.values()), y


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (GroupNorm(4, 32, activation="silu"), nn.Sequential(nn.GroupNorm(4, 32), nn.SiLU())),
        (BatchNorm2d(32, activation="gelu"), nn.Sequential(nn.BatchNorm2d(32), nn.GELU())),
        (BatchNorm2d(32, activation="relu"), nn.Sequential(nn.BatchNorm2d(32), nn.ReLU())),
    ],
)
def test_half_of_torchs_activations_are_kept(ours, torchs):
    x = torch.randn(4, 32, 20, 20, requires_grad=True)
    mine, _ = kept_for_backward(ours, x)
    theirs, _ = kept_for_backward(torchs, x)
    assert mine < x.nbytes * 1.02
    assert theirs > 1.95 * mine


def test_second_derivatives():
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    add = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    for activation in (None, "silu", "gelu"):
        for function in (
            lambda x, w, b, a, activation=activation: group_norm(x, 2, w, b, activation=activation, add=a),
            lambda x, w, b, a, activation=activation: batch_norm(
                x, None, None, w, b, True, activation=activation, add=a
            ),
        ):
            assert torch.autograd.gradcheck(function, (x, weight, bias, add))
            assert torch.autograd.gradgradcheck(function, (x, weight, bias, add))


def test_given_statistics_have_a_simpler_gradient():
    x = torch.randn(3, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    mean, variance = torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.5
    for layout in FORMATS:
        leaf = x.detach().to(memory_format=layout).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: batch_norm(x, mean, variance, activation="silu"), (leaf,))


def test_parameters_of_other_types_than_the_input():
    """As under autocast: bfloat16 inputs, float32 parameters; their gradients have the parameters' type."""
    layer = GroupNorm(2, 8, activation="silu")
    x = torch.randn(2, 8, 6, 6).bfloat16().requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, layer.weight.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    half = GroupNorm(2, 8, dtype=torch.bfloat16)
    half(torch.randn(2, 8, 6, 6)).sum().backward()
    assert half.weight.grad.dtype == torch.bfloat16


def test_an_empty_batch_and_no_positions():
    layer = GroupNorm(2, 4, activation="silu")
    for shape in ((0, 4, 5), (0, 4)):
        x = torch.randn(shape, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert y.shape == x.grad.shape == shape


def test_wrong_sizes_are_refused_before_a_kernel_reads_past_the_end():
    x = torch.randn(4, 6, 3)
    with unchecked_annotations():
        for wrong in ({"weight": torch.ones(3)}, {"bias": torch.ones(7)}, {"add": torch.ones(2, 6, 3)}):
            with pytest.raises(ValueError, match="shape"):
                batch_norm(x, training=True, **wrong)
            with pytest.raises(ValueError, match="shape"):
                group_norm(x, 2, **wrong)


def test_machine_code_works_on_whole_registers():
    size = 40
    x, y, ones = torch.randn(4 * size).numpy(), torch.empty(4 * size).numpy(), torch.ones(4).numpy()
    mean, rstd = torch.empty(2, 2, dtype=torch.float64).numpy()
    fresh = njit(error_model="numpy")(channel_runs.group_forward.py_func)  # code from the cache cannot be looked at
    fresh(x, None, y, ones, ones, mean, rstd, size, 2, 1e-5, programs.SILU, (), 0, 2)
    code = "".join(fresh.inspect_asm().values())
    if platform.machine() in ("x86_64", "AMD64"):
        assert ("zmm" if WIDE else "ymm") in code
    assert "expf" not in code
