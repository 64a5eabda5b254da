"""The gradient of a mixture's sample: against numerical inversion, 600-digit arithmetic, and the law it must be unbiased for."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import conditional_cdf, conditional_cdf_full, exact_scalar_gradients, invert
from torch.autograd import gradcheck, gradgradcheck

from tenfold.mixture import GaussianMixture
from tenfold.mixture.pathwise import ESTIMATORS, move_with_parameters, torch_gradients

DOUBLE = torch.float64


def parameters(*batch, components, dims, dtype=DOUBLE, full=False):
    logits = torch.randn(*batch, components, dtype=dtype)
    loc = 1.5 * torch.randn(*batch, components, dims, dtype=dtype)
    scale = 0.5 + torch.rand(*batch, components, dims, dtype=dtype)
    if full:
        scale = torch.diag_embed(scale) + 0.5 * torch.randn(*batch, components, dims, dims, dtype=dtype).tril(-1)
    return [p.requires_grad_() for p in (logits, loc, scale)]


@pytest.mark.parametrize("dims", [1, 3])
def test_first_and_second_derivative_of_the_transform_are_exact(dims):
    logits, loc, scale = parameters(2, components=3, dims=dims)
    u = torch.rand(1, 2, dims, dtype=DOUBLE)

    def sample(*theta):
        return move_with_parameters(invert(u, conditional_cdf, *theta), *theta, "quantile")

    assert gradcheck(sample, (logits, loc, scale), atol=1e-7)
    assert gradgradcheck(sample, (logits, loc, scale), atol=1e-6, fast_mode=True)


def test_first_and_second_derivative_with_full_covariance_are_exact():
    logits, loc, scale_tril = parameters(components=2, dims=3, full=True)
    u = torch.rand(1, 3, dtype=DOUBLE)

    def sample(logits, loc, scale_tril):
        theta = (logits, loc, scale_tril.tril())
        return move_with_parameters(invert(u, conditional_cdf_full, *theta), *theta, "quantile")

    assert gradcheck(sample, (logits, loc, scale_tril), atol=1e-7, fast_mode=True)
    assert gradgradcheck(sample, (logits, loc, scale_tril), atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("x", [-40.0, -12.0, -3.0, 0.3, 5.0, 6.0, 7.0, 9.0, 30.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("path", ["kernel", "torch"])
def test_tails_to_40_deviations_match_600_digit_arithmetic(x, dtype, tolerance, path):
    theta = ([0.3, -0.2, 0.0], [0.0, 1.0, -0.5], [1.0, 1.0, 0.75])
    expected = exact_scalar_gradients(x, *theta)
    logits, loc, scale = (torch.tensor([v], dtype=dtype) for v in theta)
    arguments = (
        torch.ones(1, 1, 1, dtype=dtype),
        torch.tensor([[[x]]], dtype=dtype),
        logits,
        loc[..., None],
        scale[..., None],
    )
    compute = torch.ops.tenfold.mixture_gradients if path == "kernel" else torch_gradients
    for value, right in zip(compute(*arguments, "quantile", True), expected, strict=True):
        right = torch.tensor(right, dtype=DOUBLE)
        error = (value.double().flatten() - right).abs()
        # relative to the largest entry: a component far away has a gradient that is zero to rounding
        assert (error <= tolerance * right.abs().max()).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize(
    ("samples", "batch", "components", "dims"),
    [(1, 1, 1, 1), (1, 37, 3, 5), (3, 40, 8, 4), (50, 1, 5, 3), (20, 17, 2, 1), (2, 16, 64, 2), (0, 3, 2, 2)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-4)])
def test_kernel_equals_its_torch_twin(estimator, recursive, samples, batch, components, dims, dtype, tolerance):
    if estimator == "quantile" and not recursive:
        recursive = True  # the quantile field always needs the recursion
    theta = [p.detach() for p in parameters(batch, components=components, dims=dims, dtype=dtype)]
    x, g = (2 * torch.randn(samples, batch, dims, dtype=dtype) for _ in range(2))
    compiled = torch.ops.tenfold.mixture_gradients(g, x, *theta, estimator, recursive)
    reference = torch_gradients(g, x, *theta, estimator, recursive)
    for value, right in zip(compiled, reference, strict=True):
        assert value.shape == right.shape
        torch.testing.assert_close(
            value, right, rtol=tolerance, atol=tolerance * float(right.abs().max() if right.numel() else 1)
        )


def test_kernel_gives_the_same_bits_for_any_number_of_threads_and_any_batch():
    theta = [p.detach() for p in parameters(1024, components=4, dims=16, dtype=torch.float32)]
    x, g = (torch.randn(2, 1024, 16) for _ in range(2))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(torch.ops.tenfold.mixture_gradients(g, x, *theta, "quantile", True))
    finally:
        torch.set_num_threads(before)
    alone = torch.ops.tenfold.mixture_gradients(
        g[:, 700:737], x[:, 700:737], *(p[700:737] for p in theta), "quantile", True
    )
    for one, two, three, part in zip(*results, alone, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
        # lanes are samples or batch elements depending on the counts, so rows of another batch agree to rounding
        whole = one[:, 700:737] if one.shape[0] == 2 else one[700:737]
        torch.testing.assert_close(whole, part, rtol=1e-5, atol=1e-6)


def test_many_dimensions_in_float32_agree_with_float64():
    # pyro#3452: backward passes underflow in float32
    for scale_value in (0.05, 1.0):
        loc = scale_value * torch.randn(4, 1000, dtype=DOUBLE)
        logits, scale = torch.randn(4, dtype=DOUBLE), torch.full((4, 1000), scale_value, dtype=DOUBLE)
        x = GaussianMixture(logits=logits, loc=loc, scale=scale).sample((8,))
        results = []
        for dtype in (torch.float64, torch.float32):
            theta = [p.clone().to(dtype).requires_grad_() for p in (logits, loc, scale)]
            move_with_parameters(x.to(dtype), *theta, "quantile").cos().sum().backward()
            results.append([p.grad.double() for p in theta])
        for right, value in zip(*results, strict=True):
            assert value.isfinite().all()
            assert (value - right).abs().max() <= 1e-4 * right.abs().max()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_memory_of_the_backward_pass_grows_with_BKD_not_with_DD(estimator):
    # 64 samples, K = 8: a D x D Jacobian per sample would need 64 * 4 MB = 256 MB at D = 1000
    import resource

    logits, loc, scale = parameters(64, components=8, dims=1000, dtype=torch.float32)
    mixture = GaussianMixture(logits=logits, loc=loc, scale=scale, estimator=estimator)
    mixture.rsample().sum().backward()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mixture.rsample().sum().backward()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_components_get_equal_gradients_and_no_nan(estimator):
    logits = torch.zeros(3, requires_grad=True)
    loc = torch.zeros(3, 2, requires_grad=True)
    scale = torch.ones(3, 2, requires_grad=True)
    x = GaussianMixture(logits=logits, loc=loc, scale=scale, estimator=estimator).rsample((100,))
    x.square().sum().backward()
    assert logits.grad.abs().max() < 1e-3  # moving weight between equal components moves nothing
    torch.testing.assert_close(loc.grad[0], loc.grad[1], rtol=1e-4, atol=1e-4)
    assert all(p.grad.isfinite().all() for p in (logits, loc, scale))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weight_of_exactly_zero_gets_gradient_zero(estimator):
    # numpyro#1870, #2221, #2224
    probs = torch.tensor([0.0, 0.5, 0.5], dtype=DOUBLE, requires_grad=True)
    loc = torch.tensor([[9.0], [-1.0], [1.0]], dtype=DOUBLE, requires_grad=True)
    mixture = GaussianMixture(probs=probs, loc=loc, scale=torch.ones(3, 1, dtype=DOUBLE), estimator=estimator)
    x = mixture.rsample((50,))
    (x.square().sum() + mixture.log_prob(x).sum()).backward()
    assert probs.grad[0] == 0
    assert loc.grad[0] == 0
    assert probs.grad.isfinite().all()
    assert probs.grad[1:].abs().min() > 0


def test_one_component_equals_the_usual_reparameterization():
    # the question of the paper's reviewer
    for estimator in ESTIMATORS:
        logits, loc, scale = parameters(5, components=1, dims=3)
        mixture = GaussianMixture(logits=logits, loc=loc, scale=scale, estimator=estimator)
        x = mixture.rsample((7,))
        g = torch.randn_like(x)
        x.backward(g)
        z = ((x - loc.squeeze(-2)) / scale.squeeze(-2)).detach()
        torch.testing.assert_close(loc.grad.squeeze(-2), g.sum(0), rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(scale.grad.squeeze(-2), (g * z).sum(0), rtol=1e-13, atol=1e-13)
        assert logits.grad.abs().max() < 1e-13


def expected_square_cosine(logits, loc, scale):
    """``E sum_d (x_d^2 + cos x_d)`` in closed form."""
    pi = torch.softmax(logits, -1).unsqueeze(-1)
    return (pi * (loc.square() + scale.square() + loc.cos() * (-0.5 * scale.square()).exp())).sum()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_gradient_is_unbiased(estimator, full, seed):
    # pytorch#18125; z-scores of 40 000 samples against the closed form
    torch.manual_seed(seed)
    logits, loc, scale = (p.detach() for p in parameters(components=3, dims=2, full=full))
    loc = 0.5 * loc  # overlapping modes, where the pathwise gradient has finite and moderate variance
    exact = [p.clone().requires_grad_() for p in (logits, loc, scale)]
    covariance = exact[2] @ exact[2].mT if full else None
    deviations = covariance.diagonal(dim1=-2, dim2=-1).sqrt() if full else exact[2]
    expected_square_cosine(exact[0], exact[1], deviations).backward()
    repeats, n = 40, 1000
    stacked = [p.expand(repeats, *p.shape).clone().requires_grad_() for p in (logits, loc, scale)]
    spread = {"scale_tril" if full else "scale": stacked[2]}
    x = GaussianMixture(logits=stacked[0], loc=stacked[1], **spread, estimator=estimator).rsample((n,))
    ((x.square() + x.cos()).sum(-1).mean(0)).sum().backward()
    for theta, right in zip(stacked, exact, strict=True):
        mean, error = theta.grad.mean(0), theta.grad.std(0) / repeats**0.5
        free = error > 0
        assert (((mean - right.grad)[free] / error[free]).abs() < 4.5).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_hessian_of_an_expectation_is_unbiased(estimator):
    theta = [torch.tensor(v, dtype=DOUBLE) for v in ([0.2, -0.1], [[-0.5], [0.7]], [[0.9], [1.1]])]
    flat = torch.cat([p.flatten() for p in theta])

    def unflatten(v):
        return v[:2], v[2:4].unsqueeze(-1), v[4:].unsqueeze(-1)

    exact = torch.autograd.functional.hessian(lambda v: expected_square_cosine(*unflatten(v)), flat)
    estimates = []
    for _ in range(60):

        def estimate(v):
            logits, loc, scale = unflatten(v)
            x = GaussianMixture(logits=logits, loc=loc, scale=scale, estimator=estimator, validate_args=False).rsample(
                (500,)
            )
            return (x.square() + x.cos()).sum(-1).mean()

        estimates.append(torch.autograd.functional.hessian(estimate, flat))
    estimates = torch.stack(estimates)
    error = estimates.std(0) / len(estimates) ** 0.5
    assert ((estimates.mean(0) - exact).abs() < 4.5 * error + 1e-9).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_translation_permutation_and_scaling_leave_the_gradient_in_place(estimator):
    logits, loc, scale = parameters(4, components=3, dims=5)
    x = GaussianMixture(logits=logits, loc=loc, scale=scale).sample((6,))
    g = torch.randn_like(x)
    base = torch.autograd.grad(move_with_parameters(x, logits, loc, scale, estimator), (logits, loc, scale), g)
    shift = torch.randn(5, dtype=DOUBLE) * 100
    moved = torch.autograd.grad(
        move_with_parameters(x + shift, logits, loc + shift, scale, estimator), (logits, loc, scale), g
    )
    order = torch.tensor([2, 0, 1])
    permuted = torch.autograd.grad(
        move_with_parameters(x, logits[:, order], loc[:, order], scale[:, order], estimator), (logits, loc, scale), g
    )
    stretched = torch.autograd.grad(
        move_with_parameters(8 * x, logits, 8 * loc, 8 * scale, estimator), (logits, loc, scale), g
    )
    for value, right in zip(moved, base, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-9)
    for value, right in zip(permuted, base, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-11)
    for value, right, power in zip(stretched, base, (8, 8, 8), strict=True):
        torch.testing.assert_close(value, right * power, rtol=1e-9, atol=1e-9)


def test_diagonal_given_as_cholesky_factor_has_the_same_gradients():
    # tensorflow/probability#1548
    logits, loc, scale = parameters(3, components=4, dims=3)
    x = GaussianMixture(logits=logits, loc=loc, scale=scale).sample((5,))
    for estimator in ESTIMATORS:
        diagonal = torch.autograd.grad(
            move_with_parameters(x, logits, loc, scale, estimator).cos().sum(), (logits, loc, scale)
        )
        full = torch.autograd.grad(
            move_with_parameters(x, logits, loc, torch.diag_embed(scale), estimator).cos().sum(), (logits, loc, scale)
        )
        for value, right in zip(full, diagonal, strict=True):
            torch.testing.assert_close(value, right, rtol=1e-10, atol=1e-12)


def test_covariance_matrix_chains_through_its_cholesky_factor():
    logits, loc, scale_tril = (p.detach() for p in parameters(components=2, dims=3, full=True))
    covariance = (scale_tril @ scale_tril.mT).requires_grad_()
    mixture = GaussianMixture(logits=logits, loc=loc, covariance_matrix=covariance)
    torch.manual_seed(0)
    mixture.rsample((64,)).cos().sum().backward()
    factor = torch.linalg.cholesky(covariance.detach()).requires_grad_()
    torch.manual_seed(0)
    GaussianMixture(logits=logits, loc=loc, scale_tril=factor).rsample((64,)).cos().sum().backward()
    root = covariance.detach().requires_grad_()
    torch.linalg.cholesky(root).backward(factor.grad)
    torch.testing.assert_close(covariance.grad, root.grad)


def test_full_covariance_in_64_dimensions_is_finite_and_its_last_mean_gradient_is_the_responsibility():
    logits, loc, scale_tril = parameters(256, components=8, dims=64, full=True, dtype=torch.float32)
    mixture = GaussianMixture(logits=logits, loc=loc, scale_tril=scale_tril, estimator="quantile")
    x = mixture.rsample()
    x[:, -1].sum().backward()
    assert all(p.grad.isfinite().all() for p in (logits, loc, scale_tril))
    r = mixture.responsibilities(x).detach()
    torch.testing.assert_close(loc.grad[..., -1], r, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_computed_in_float32(dtype):
    logits, loc, scale = (p.detach().to(dtype).requires_grad_() for p in parameters(3, components=4, dims=5))
    x = GaussianMixture(logits=logits, loc=loc, scale=scale).rsample((2,))
    x.sum().backward()
    assert x.dtype == loc.grad.dtype == dtype
    assert all(p.grad.isfinite().all() for p in (logits, loc, scale))


def test_vmap_of_grad_equals_a_loop():
    theta = [p.detach() for p in parameters(6, components=3, dims=4)]
    x = torch.randn(6, 5, 4, dtype=DOUBLE)

    def loss(x, *theta):
        return move_with_parameters(x, *theta, "responsibility").cos().sum()

    mapped = torch.vmap(torch.func.grad(loss, argnums=(1, 2, 3)))(x, *theta)
    for i in range(6):
        for value, right in zip(
            mapped, torch.func.grad(loss, argnums=(1, 2, 3))(x[i], *(p[i] for p in theta)), strict=True
        ):
            torch.testing.assert_close(value[i], right, rtol=1e-12, atol=1e-13)


def test_gradient_through_a_vmapped_sampler_equals_the_batched_one():
    theta = parameters(6, components=3, dims=4)
    x = torch.randn(5, 6, 4, dtype=DOUBLE)
    batched = torch.autograd.grad(move_with_parameters(x, *theta).cos().sum(), theta)
    mapped = torch.vmap(move_with_parameters, in_dims=(1, 0, 0, 0), out_dims=1)(x, *theta)
    for value, right in zip(torch.autograd.grad(mapped.cos().sum(), theta), batched, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-13)


def test_rsample_maps_over_parameters_with_vmap():
    theta = [p.detach() for p in parameters(6, components=3, dims=2)]

    def sample(logits, loc, scale):
        return GaussianMixture(logits=logits, loc=loc, scale=scale, validate_args=False).rsample((7,))

    assert torch.vmap(sample, randomness="different")(*theta).shape == (6, 7, 2)


def test_operator_passes_torchs_own_checks():
    theta = [p.detach() for p in parameters(3, components=2, dims=2)]
    x, g = (torch.randn(4, 3, 2, dtype=DOUBLE) for _ in range(2))
    torch.library.opcheck(torch.ops.tenfold.mixture_gradients.default, (g, x, *theta, "quantile", True))


COMPILED = """
import torch
from tenfold.mixture import GaussianMixture
from tenfold.mixture.pathwise import move_with_parameters

def sample(logits, loc, scale):
    return GaussianMixture(logits=logits, loc=loc, scale=scale).rsample((5,))

def loss(x, *theta):
    return move_with_parameters(x, *theta).cos().sum()

theta = [p.requires_grad_() for p in (torch.randn(3, 2), torch.randn(3, 2, 4), torch.rand(3, 2, 4) + 0.5)]
x = torch.compile(sample, backend="aot_eager", fullgraph=True)(*theta)
assert x.shape == (5, 3, 4)
compiled = torch.autograd.grad(x.cos().sum(), theta)
eager = torch.autograd.grad(loss(x.detach(), *theta), theta)
for value, right in zip(compiled, eager):
    torch.testing.assert_close(value, right)
"""


def test_rsample_compiles_without_a_graph_break_and_with_the_same_gradients():
    # in a process of its own: the shape checks that the tests install cannot be traced
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 6), st.floats(-6, 6), st.booleans(), st.booleans())
def test_no_parameters_give_nan(seed, components, dims, log_range, equal, drop):
    """Equal means, zero weights, deviations that differ by a million: every gradient stays finite in float32."""
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(40, components, generator=generator)
    loc = 3 * torch.randn(40, components, dims, generator=generator)
    scale = 10 ** (log_range / 2 * torch.rand(40, components, dims, generator=generator))
    if equal:
        loc[:] = loc[:, :1]
    if drop and components > 1:
        logits[:, 0] = -torch.inf
    theta = [p.requires_grad_() for p in (logits, loc, scale)]
    for estimator in ESTIMATORS:
        x = GaussianMixture(logits=logits, loc=loc, scale=scale, estimator=estimator).rsample((2,), generator=generator)
        gradients = torch.autograd.grad(x.sum(), theta)
        assert all(g.isfinite().all() for g in gradients)


def test_a_point_far_from_every_component_stays_finite():
    logits, loc, scale = torch.zeros(2), torch.tensor([[0.0], [1.0]]), torch.ones(2, 1)
    for value in (1e3, -1e4):
        theta = [p.clone().requires_grad_() for p in (logits, loc, scale)]
        move_with_parameters(torch.tensor([value]), *theta, "quantile").sum().backward()
        assert all(p.grad.isfinite().all() for p in theta)
