"""For any shape, layout, dtype, activation and sum, the layers compute what torch.nn's compute in float64."""

import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from tenfold.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    BatchRenorm,
    CrossProcessBatchNorm,
    FrozenBatchNorm,
    GhostBatchNorm,
    GroupNorm,
    batch_norm,
    group_norm,
)
from type_checking import unchecked_annotations

ACTIVATIONS = {None: lambda z: z, "relu": torch.relu, "silu": nn.functional.silu, "gelu": nn.functional.gelu}
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
OF_DTYPE = dict(zip(TOLERANCES, ("gelu", "silu", "relu", "silu"), strict=True))  # each pair compiles kernels of its own
LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced", "expanded", "shifted")
BY_RANK = {
    2: (BatchNorm1d, nn.BatchNorm1d),
    3: (BatchNorm1d, nn.BatchNorm1d),
    4: (BatchNorm2d, nn.BatchNorm2d),
    5: (BatchNorm3d, nn.BatchNorm3d),
}


def numbers(shape, layout, dtype):
    """Random numbers, many of them views of other tensors."""
    if layout == "channels_last" and len(shape) in (4, 5):
        form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        return torch.randn(shape).to(dtype).contiguous(memory_format=form)
    if layout == "transposed":
        return torch.randn(shape[::-1]).to(dtype).permute(*reversed(range(len(shape))))
    if layout == "sliced":
        return torch.randn([2 * size + 1 for size in shape]).to(dtype)[tuple(slice(1, None, 2) for _ in shape)]
    if layout == "expanded":  # not along the batch: a batch of equal samples has no variance to speak of
        return torch.randn((*shape[:-1], 1)).to(dtype).expand(shape) if len(shape) > 2 else torch.randn(shape).to(dtype)
    if layout == "shifted":  # not on a line of the caches
        return torch.randn(torch.Size(shape).numel() + 3).to(dtype)[3:].view(shape)
    return torch.randn(shape).to(dtype)


def lies(tensor):
    """Strides along the axes that have any."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def close(name, found, wanted, dtype):
    """Within the dtype's rounding, relative to the largest number."""
    error = (found.double() - wanted).abs().max() / (1.0 + wanted.abs().max())
    assert error < TOLERANCES[dtype], f"{name}: {float(error):.2g}"


@st.composite
def cases(draw):
    """A shape, kinds of the tensors, and settings."""
    channels = draw(st.integers(1, 9))
    positions = draw(st.lists(st.integers(1, 5), max_size=3))
    dtype = draw(st.sampled_from(list(TOLERANCES)))
    return {
        "shape": (draw(st.integers(1, 5)), channels, *positions),
        "groups": draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0])),
        "layout": draw(st.sampled_from(LAYOUTS)),
        "upstream": draw(st.sampled_from(LAYOUTS)),
        "dtype": dtype,
        "activation": draw(st.sampled_from([None, OF_DTYPE[dtype]])),
        "add": draw(st.booleans()),
        "affine": draw(st.booleans()),
        "seed": draw(st.integers(0, 999)),
    }


def agree(case, layer, peer):
    """Outputs, gradients and buffers of a layer and of its peer in float64."""
    dtype, shape = case["dtype"], case["shape"]
    with torch.no_grad():
        for values in layer.parameters():
            values.uniform_(0.5, 1.5)
        for name, values in layer.named_buffers():
            if values.is_floating_point():
                values.uniform_(0.5, 1.5) if name == "running_var" else values.normal_()
    layer.double() if dtype == torch.float64 else layer.float()
    peer.load_state_dict(layer.state_dict())
    x = numbers(shape, case["layout"], dtype).requires_grad_()
    add = numbers(shape, case["upstream"], dtype).requires_grad_() if case["add"] else None
    wide, wide_add = (None if t is None else t.detach().double().requires_grad_() for t in (x, add))
    y, z = layer(x, add), peer(wide)
    wanted = ACTIVATIONS[case["activation"]](z if wide_add is None else z + wide_add)
    dy = numbers(shape, case["upstream"], dtype)
    y.backward(dy)
    wanted.backward(dy.double())
    assert y.dtype == dtype
    assert x.grad.dtype == dtype
    if case["layout"] in ("contiguous", "channels_last"):
        assert lies(y) == lies(x)
        assert lies(x.grad) == lies(x)
    close("y", y, wanted, dtype)
    close("dx", x.grad, wide.grad, dtype)
    if add is not None:
        close("dadd", add.grad, wide_add.grad, dtype)
    for (name, own), other in zip(layer.named_parameters(), peer.parameters(), strict=True):
        close(name, own.grad, other.grad, dtype)
    for (name, own), other in zip(layer.named_buffers(), peer.buffers(), strict=True):
        close(name, own, other.double(), dtype)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_group_norm_is_that_of_torch(case):
    torch.manual_seed(case["seed"])
    shape, groups = case["shape"], case["groups"]
    assume(
        torch.Size(shape).numel() > shape[0] * groups
    )  # else a set of one value: noise over noise, and torch refuses
    layer = GroupNorm(groups, shape[1], eps=1e-2, affine=case["affine"], activation=case["activation"])
    agree(case, layer, nn.GroupNorm(groups, shape[1], eps=1e-2, affine=case["affine"], dtype=torch.float64))


@settings(max_examples=30, deadline=None)
@given(cases(), st.booleans())
def test_batch_norm_is_that_of_torch(case, training):
    torch.manual_seed(case["seed"])
    shape = case["shape"]
    assume(not training or torch.Size(shape).numel() > shape[1])
    own, other = BY_RANK[len(shape)]
    layer = own(shape[1], eps=1e-2, affine=case["affine"], activation=case["activation"]).train(training)
    agree(case, layer, other(shape[1], eps=1e-2, affine=case["affine"], dtype=torch.float64).train(training))


LAYERS = {
    "group": lambda **options: GroupNorm(2, 4, **options),
    "batch": lambda **options: BatchNorm2d(4, **options),
    "ghost": lambda **options: GhostBatchNorm(4, virtual_batch_size=2, **options),
    "renorm": lambda **options: BatchRenorm(4, **options),
    "cross_process": lambda **options: CrossProcessBatchNorm(4, **options),
    "frozen": lambda **options: FrozenBatchNorm(4),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_numbers_without_digits_after_the_point_are_refused(kind, dtype):
    message = r"takes floating-point values, not torch\.(int64|bool|complex64)"
    with unchecked_annotations(), pytest.raises(TypeError, match=message):
        LAYERS[kind]()(torch.ones(2, 4, 3, 3).to(dtype))


@pytest.mark.parametrize("kind", ["group", "batch", "ghost", "renorm", "cross_process"])
def test_gamma_without_beta(kind):
    layer = LAYERS[kind](bias=False)
    whole = LAYERS[kind]()
    x = torch.randn(4, 4, 3, 3)
    layer(x).square().sum().backward()
    assert layer.bias is None
    assert layer.weight.grad is not None
    assert "bias" not in layer.state_dict()
    assert torch.equal(layer(x), whole(x)) or kind == "renorm"  # renorm has moved its population by now
    frozen = FrozenBatchNorm(4)
    if kind == "batch":  # a checkpoint without beta
        frozen.load_state_dict(layer.state_dict())
        assert torch.equal(frozen(x), layer.eval()(x))


def test_layers_take_the_arguments_of_torch_in_its_order():
    assert GroupNorm(2, 4, 1e-3, True, "cpu", torch.float64).weight.dtype == torch.float64
    assert BatchNorm2d(4, 1e-3, 0.2, True, True, "cpu", torch.float64).weight.dtype == torch.float64


@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 4, 0)])
def test_nothing_is_normalized_to_nothing(shape):
    layer = GroupNorm(2, 4, activation="relu")
    x = torch.randn(shape, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.shape == shape
    assert layer.weight.grad.tolist() == layer.bias.grad.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": torch.ones(3)}, r"weight has shape \(3,\); the input has 4 channels"),
        ({"bias": torch.ones(4, 1)}, r"bias has shape \(4, 1\)"),
        ({"running_mean": torch.ones(3), "running_var": torch.ones(3)}, r"running_mean has shape \(3,\)"),
        ({"running_mean": torch.ones(4)}, "give both or neither"),
        ({"add": torch.ones(2, 4, 1)}, r"add has shape \(2, 4, 1\); the input has \(2, 4, 3\)"),
        ({"x": torch.ones(4)}, r"input has shape \(4,\)"),
        ({"x": torch.ones(1, 4)}, "batch_norm needs more than 1 value a channel"),
        ({"training": False}, "evaluation needs running_mean and running_var"),
    ],
)
def test_arguments_of_the_function_that_do_not_fit(arguments, message):
    with unchecked_annotations(), pytest.raises(ValueError, match=message):
        batch_norm(**{"x": torch.randn(2, 4, 3), "training": True, **arguments})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_a_layer_whose_tensors_were_changed_reads_nothing_behind_their_end(name, training):
    layer = BatchNorm2d(4).train(training)
    setattr(layer, name, nn.Parameter(torch.ones(3)) if name in ("weight", "bias") else torch.ones(3))
    with unchecked_annotations(), pytest.raises(ValueError, match=r"\(3,\)"):
        layer(torch.randn(2, 4, 3, 3))


def test_groups_that_were_changed_must_divide():
    layer = GroupNorm(2, 4)
    layer.num_groups = 3
    with pytest.raises(ValueError, match="num_groups=3 does not divide num_channels=4"):
        layer(torch.randn(2, 4, 3, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_of_two_types_is_of_the_wider(dtype):
    x, add = torch.randn(2, 4, 3, 3).to(dtype), torch.randn(2, 4, 3, 3, requires_grad=True)
    for y in (group_norm(x, 2, add=add), batch_norm(x, training=True, add=add)):
        assert y.dtype == torch.float32
        (gradient,) = torch.autograd.grad(y.sum(), add)
        assert torch.equal(gradient, torch.ones_like(add))


@pytest.mark.parametrize("kind", ["group", "batch", "frozen"])
def test_shapes_are_found_without_data(kind):
    layer = LAYERS[kind]().to("meta")
    assert layer(torch.empty(2, 4, 3, 3, device="meta")).shape == (2, 4, 3, 3)


def test_training_inside_inference_mode_and_after_it():
    layer = BatchNorm2d(4, activation="relu")
    x = torch.randn(3, 4, 2, 2)
    with torch.inference_mode():
        layer(x)
    layer(x.requires_grad_()).sum().backward()
    assert layer.num_batches_tracked == 2


GRAPH = """
import sys
import torch
from tenfold.normalization import BatchNorm2d, GhostBatchNorm

kind, momentum = sys.argv[1], None if sys.argv[2] == "None" else float(sys.argv[2])
made = [BatchNorm2d(4, momentum=momentum) if kind == "batch" else GhostBatchNorm(4, momentum=momentum, virtual_batch_size=2)
        for _ in range(2)]
layer, compiled = made
run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
x = torch.randn(4, 4, 3, 3)
for scale in (1.0, 2.0):
    own, other = (x * scale).requires_grad_(), (x * scale).requires_grad_()
    y, z = layer(own), run(other)
    y.square().sum().backward()
    z.square().sum().backward()
    assert torch.equal(y, z)
    assert torch.allclose(own.grad, other.grad)
run(torch.full_like(x, torch.nan))  # leaves the population as it is
for (name, expected), found in zip(layer.named_buffers(), compiled.buffers(), strict=True):
    assert torch.allclose(expected, found), name
"""


@pytest.mark.parametrize(("kind", "momentum"), [("batch", "0.1"), ("batch", "None"), ("ghost", "0.1")])
def test_a_step_of_training_is_one_compiled_graph(kind, momentum):
    # in a process of its own: the compiler cannot look through the checks of annotations
    done = subprocess.run([sys.executable, "-c", GRAPH, kind, momentum], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
