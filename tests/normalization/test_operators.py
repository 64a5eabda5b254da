"""The operators of torch: opcheck, torch.compile, export, functional transforms, and what is called where."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from tenfold.normalization import GroupNorm, group_norm, layouts
from tenfold.normalization.compiled import GELU, IDENTITY, RELU, SILU
from tenfold.normalization.operators import (
    batch_norm_backward_operator,
    batch_norm_operator,
    group_norm_backward_operator,
    group_norm_operator,
)

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def example(layout=torch.contiguous_format, dtype=torch.float32, grad=True):
    x, add = (torch.randn(2, 8, 5, 5).to(dtype).to(memory_format=layout) for _ in range(2))
    weight, bias = torch.randn(8), torch.randn(8)
    if grad:
        for tensor in (x, add, weight, bias):
            tensor.requires_grad_()
    return x, weight, bias, add


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("activation", [IDENTITY, RELU, SILU, GELU])
def test_operators_pass_torchs_own_checks(layout, activation):
    x, weight, bias, add = example(layout)
    torch.library.opcheck(group_norm_operator, (x, weight, bias, None, 4, 1e-5, activation), test_utils=CHECKS)
    torch.library.opcheck(batch_norm_operator, (x, weight, bias, add, None, None, 1e-5, activation), test_utils=CHECKS)


def test_backward_operators_and_given_statistics_pass_too():
    x, weight, bias, add = example(grad=False)
    dy = torch.randn_like(x)
    known = torch.rand(2, 8, dtype=torch.float64) + 0.5
    sets = torch.rand(2, 2, 4, dtype=torch.float64) + 0.5
    torch.library.opcheck(batch_norm_operator, (x, None, bias, None, known[0], known[1], 1e-5, SILU), test_utils=CHECKS)
    torch.library.opcheck(
        group_norm_backward_operator, (dy, x, weight, bias, add, sets, 4, SILU), test_utils=CHECKS[:1] + CHECKS[2:3]
    )
    torch.library.opcheck(
        batch_norm_backward_operator,
        (dy, x, weight, None, None, known, 1e-5, RELU, True),
        test_utils=CHECKS[:1] + CHECKS[2:3],
    )


def test_operator_and_direct_call_are_the_same():
    x, weight, bias, add = example()
    dy = torch.randn_like(x)
    one = group_norm(x, 4, weight, bias, activation="silu", add=add)
    two = group_norm_operator(x, weight, bias, add, 4, 1e-5, SILU)[0]
    assert torch.equal(one, two)
    for first, second in zip(
        torch.autograd.grad(one, (x, weight, bias, add), dy),
        torch.autograd.grad(two, (x, weight, bias, add), dy),
        strict=True,
    ):
        assert torch.equal(first, second)


TRACED = """
import copy, shutil
import torch
from torch import nn
from tenfold.normalization import BatchNorm2d, GroupNorm, group_norm

model = nn.Sequential(
    nn.Conv2d(3, 8, 3), GroupNorm(2, 8, activation="silu"), nn.Conv2d(8, 8, 3), BatchNorm2d(8, activation="relu")
)
x = torch.randn(2, 3, 12, 12)
compilers = ["aot_eager", *(["inductor"] if shutil.which("g++") or shutil.which("clang++") else [])]
for backend in compilers:  # in training, with gradients and running statistics
    eager, traced = copy.deepcopy(model), copy.deepcopy(model)
    compiled = torch.compile(traced, backend=backend)
    for net, function in ((eager, eager), (traced, compiled)):
        function(x).square().sum().backward()
    for one, two in zip(eager.parameters(), traced.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-4)
    for one, two in zip(eager.buffers(), traced.buffers(), strict=True):
        torch.testing.assert_close(one, two)
model.eval()
torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))
program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))
assert any("tenfold" in str(node.target) for node in program.graph.nodes)
more = torch.randn(5, 3, 12, 12)
torch.testing.assert_close(program.module()(more), model(more))
print(*compilers)
"""


def test_compiled_and_exported_models_are_the_eager_one():
    """In a process of its own: the shape checks that the tests install cannot be traced."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    if "inductor" not in done.stdout:
        pytest.skip("inductor needs a C++ compiler (g++ or clang++); all but inductor was tested")


def test_functional_transforms_go_through_torch():
    weight = torch.randn(4, dtype=torch.float64)
    x = torch.randn(2, 4, 3, dtype=torch.float64)

    def loss(weight):
        return group_norm(x, 2, weight, activation="silu").square().sum()

    leaf = weight.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(weight), torch.autograd.grad(loss(leaf), leaf)[0])
    mapped = torch.vmap(lambda part: group_norm(part, 2, activation="relu"))(x.unsqueeze(1))
    torch.testing.assert_close(mapped.squeeze(1), group_norm(x, 2, activation="relu"))


def test_shapes_without_numbers():
    with torch.device("meta"):
        layer, x = GroupNorm(2, 8, activation="silu"), torch.empty(4, 8, 6, 6)
    assert layer(x).shape == (4, 8, 6, 6)


def test_is_watched_only_while_somebody_follows():
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(str(function))
            return function(*arguments, **(options or {}))

    assert not layouts.is_watched()
    with Mode():
        assert layouts.is_watched()
        group_norm(torch.randn(1, 4, 3), 2)
    assert any("tenfold.group_norm" in name for name in seen)
    assert not layouts.is_watched()


def test_state_dicts_go_both_ways():
    ours, torchs = GroupNorm(2, 8, activation="silu"), nn.GroupNorm(2, 8)
    assert isinstance(ours, nn.GroupNorm)
    with torch.no_grad():
        torchs.weight.normal_()
        torchs.bias.normal_()
    ours.load_state_dict(torchs.state_dict(), strict=True)
    x = torch.randn(3, 8, 5)
    torch.testing.assert_close(ours(x), nn.functional.silu(torchs(x)))
    torchs.load_state_dict(ours.state_dict(), strict=True)
