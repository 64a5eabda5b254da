"""GaussianMixture as a torch distribution: its contract, its law, what users reported of others, and every bad argument."""

import copy
import math
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    constraints,
)
from torch.distributions.transforms import ExpTransform

from tenfold.mixture import GaussianMixture
from tenfold.mixture.pathwise import ESTIMATORS
from type_checking import unchecked_annotations

DOUBLE = torch.float64


def parameters(*batch, components=3, dims=2, dtype=DOUBLE, full=False):
    logits = torch.randn(*batch, components, dtype=dtype)
    loc = 1.5 * torch.randn(*batch, components, dims, dtype=dtype)
    scale = 0.5 + torch.rand(*batch, components, dims, dtype=dtype)
    if full:
        scale = torch.diag_embed(scale) + 0.5 * torch.randn(*batch, components, dims, dims, dtype=dtype).tril(-1)
    return {"logits": logits, "loc": loc, "scale_tril" if full else "scale": scale}


def mixture(*batch, grad=False, estimator="responsibility", **options):
    theta = {name: p.requires_grad_(grad) for name, p in parameters(*batch, **options).items()}
    return GaussianMixture(**theta, estimator=estimator)


# ------------------------------------------------------------------------------------------- contract of a distribution


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize(
    ("sample_shape", "batch"),
    [((), ()), ((5,), ()), ((3, 2), (4,)), ((), (2, 3)), ((0,), ()), ((0, 2), (3,)), ((), (0,)), ((5,), (2, 0))],
)
def test_every_shape_is_sample_batch_event(full, dims, batch, sample_shape):
    # pyro#3274: support, shapes with sample_shape (3, 2), batch (4,), event D
    m = mixture(*batch, dims=dims, full=full, grad=True)
    assert m.batch_shape == batch
    assert m.event_shape == (dims,)
    assert m.support is constraints.real_vector
    x = m.rsample(sample_shape)
    assert x.shape == (*sample_shape, *batch, dims)
    x.sum().backward()
    assert m.loc.grad.shape == m.loc.shape
    assert m.log_prob(x.detach()).shape == (*sample_shape, *batch)
    assert m.component_log_prob(x.detach()).shape == m.responsibilities(x.detach()).shape == (*sample_shape, *batch, 3)
    drawn, k = m.sample_with_component(sample_shape)
    assert drawn.shape == x.shape
    assert k.shape == (*sample_shape, *batch)
    assert k.dtype == torch.int64
    assert m.mean.shape == m.variance.shape == m.stddev.shape == (*batch, dims)
    assert m.covariance.shape == (*batch, dims, dims)
    assert m.covariance_matrix.shape == m.scale_tril.shape == (*batch, 3, dims, dims)
    assert m.scale.shape == (*batch, 3, dims)
    assert m.entropy_lower_bound().shape == m.entropy_upper_bound().shape == m.entropy_monte_carlo(3).shape == batch


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_expand_is_the_same_law_over_more_batch_elements(full, estimator):
    m = mixture(3, full=full, estimator=estimator, grad=True)
    wide = m.expand((2, 3))
    assert wide.batch_shape == (2, 3)
    assert wide.estimator == estimator
    assert type(wide) is GaussianMixture
    x = m.sample((2,))
    torch.testing.assert_close(wide.log_prob(x), m.log_prob(x))
    assert wide.loc.data_ptr() == m.loc.data_ptr()
    y = wide.rsample((4,))
    y.cos().sum().backward()
    assert m.loc.grad.shape == m.loc.shape
    assert m.expand((0, 3)).rsample().shape == (0, 3, 2)
    assert wide.expand((5, 2, 3)).mean.shape == (5, 2, 3, 2)


def test_expanded_and_strided_parameters_get_the_gradients_of_contiguous_ones():
    theta = {name: p.requires_grad_() for name, p in parameters(4, components=3, dims=2).items()}
    strided = {
        "logits": theta["logits"].detach().mT.contiguous().mT.requires_grad_(),
        "loc": theta["loc"].detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_(),
        "scale": theta["scale"].detach().flip(0).contiguous().flip(0).requires_grad_(),
    }
    for options in (theta, strided):
        x = GaussianMixture(**options).rsample((6,), generator=torch.Generator().manual_seed(1))
        x.mT.cos().cumsum(0).sum().backward()
    for name in theta:
        torch.testing.assert_close(strided[name].grad, theta[name].grad, rtol=1e-12, atol=1e-13)


def test_constraints_hold_for_the_parameters_they_name():
    for full in (False, True):
        m = mixture(2, full=full)
        assert set(m.arg_constraints) == {"logits", "loc", "scale_tril" if full else "scale"}
        for name, constraint in m.arg_constraints.items():
            held = constraint.check(getattr(m, name))
            assert held.shape == (2,)
            assert held.all()
    assert GaussianMixture.has_rsample


def test_repr_names_every_parameter_with_its_shape():
    assert repr(mixture(4)) == "GaussianMixture(logits: (4, 3), loc: (4, 3, 2), scale: (4, 3, 2))"
    assert repr(mixture(full=True)) == "GaussianMixture(logits: (3,), loc: (3, 2), scale_tril: (3, 2, 2))"


def test_copies_draw_the_same_samples():
    m = mixture(2, estimator="quantile")
    for other in (copy.deepcopy(m), copy.copy(m), pickle.loads(pickle.dumps(m))):
        assert other.estimator == "quantile"
        one, two = (d.rsample((3,), generator=torch.Generator().manual_seed(0)) for d in (m, other))
        assert torch.equal(one, two)


def test_works_inside_torchs_own_wrappers():
    m = mixture(3, grad=True)
    whole = Independent(m, 1)
    assert whole.has_rsample
    assert whole.log_prob(whole.rsample((2,))).shape == (2,)
    positive = TransformedDistribution(m, [ExpTransform()])
    x = positive.rsample((2,))
    x.sum().backward()
    assert positive.log_prob(x.detach()).shape == (2, 3)
    assert m.loc.grad.abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_parameters(dtype):
    m = mixture(2, dtype=dtype, dims=1)
    x = m.sample((3,))
    results = (x, m.rsample(), m.log_prob(x), m.cdf(x), m.icdf(m.cdf(x)), m.mean, m.variance, m.covariance, m.probs)
    bounds = (m.entropy_lower_bound(), m.entropy_upper_bound(), m.entropy_monte_carlo(3))
    assert {t.dtype for t in results + bounds} == {dtype}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_mixed_dtypes_are_promoted_and_gradients_return_in_their_own(full, which):
    theta = list(parameters(2, full=full, dtype=torch.float32).items())
    theta[which] = (theta[which][0], theta[which][1].double())
    theta = {name: p.requires_grad_() for name, p in theta}
    m = GaussianMixture(**theta)
    x = m.rsample((3,))
    (x.cos().sum() + m.log_prob(x).sum()).backward()
    assert x.dtype == torch.float64
    assert all(p.grad.dtype == p.dtype and p.grad.isfinite().all() for p in theta.values())


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_parameter_alone_gets_the_gradient_that_it_gets_among_all(full, estimator, which):
    theta = parameters(2, full=full)
    gradients = []
    for chosen in ([which], [0, 1, 2]):
        leaves = {name: p.clone().requires_grad_(i in chosen) for i, (name, p) in enumerate(theta.items())}
        x = GaussianMixture(**leaves, estimator=estimator).rsample((5,), generator=torch.Generator().manual_seed(2))
        x.cos().sum().backward()
        gradients.append(list(leaves.values())[which].grad)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_nothing_is_recorded_without_gradients():
    m = mixture(2, dims=1, grad=True)
    with torch.no_grad():
        assert not m.rsample((2,)).requires_grad
    with torch.inference_mode():
        x = m.rsample((2,))
        assert not m.log_prob(x).requires_grad
        assert m.icdf(m.cdf(x)).shape == x.shape
    assert not m.sample().requires_grad
    assert m.rsample().requires_grad


def test_wrong_values_pass_only_where_validation_is_off():
    theta = parameters()
    theta["scale"][0, 0] = -1.0
    with pytest.raises(ValueError, match="must be positive"):
        GaussianMixture(**theta)
    with pytest.raises(ValueError, match="must be positive"):
        GaussianMixture(**theta, validate_args=True)
    GaussianMixture(**theta, validate_args=False)
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        GaussianMixture(**theta)
    finally:
        torch.distributions.Distribution.set_default_validate_args(True)


def test_values_of_wrong_shape_or_nan_are_refused():
    m = mixture(4)
    with pytest.raises(ValueError, match="right-most size of value must match event_shape"):
        m.log_prob(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="to be within the support"):
        m.log_prob(torch.full((4, 2), torch.nan))


# ------------------------------------------------------------------------------------------------------------- the law


@pytest.mark.parametrize("full", [False, True])
def test_moments_equal_the_formula_and_those_of_many_samples(full):
    m = mixture(full=full, components=4, dims=3)
    pi = torch.softmax(m.logits, -1)
    mean = sum(p * loc for p, loc in zip(pi, m.loc, strict=True))
    second = sum(p * (c + torch.outer(a, a)) for p, c, a in zip(pi, m.covariance_matrix, m.loc, strict=True))
    torch.testing.assert_close(m.mean, mean)
    torch.testing.assert_close(m.covariance, second - torch.outer(mean, mean))
    torch.testing.assert_close(m.variance, m.covariance.diagonal())
    x = m.sample((200_000,))
    assert ((x.mean(0) - m.mean).abs() < 4.5 * (m.variance / len(x)).sqrt()).all()
    products = (x - mean).unsqueeze(-1) * (x - mean).unsqueeze(-2)
    assert ((products.mean(0) - m.covariance).abs() < 4.5 * products.std(0) / len(x) ** 0.5).all()


def test_components_are_drawn_by_their_weights_and_samples_by_their_component():
    # numpyro#1123: the component index with the sample
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=DOUBLE)
    loc = torch.tensor([[0.0], [100.0], [10.0], [20.0]], dtype=DOUBLE)
    m = GaussianMixture(probs=probs, loc=loc, scale=torch.tensor([[0.5], [1.0], [1.0], [2.0]], dtype=DOUBLE))
    x, k = m.sample_with_component((50_000,))
    counts = np.bincount(k.numpy(), minlength=4)
    assert counts[1] == 0
    expected = probs[[0, 2, 3]].numpy() * len(k)
    assert scipy.stats.chisquare(counts[[0, 2, 3]], expected).pvalue > 1e-4
    z = ((x - m.loc[k]) / m.scale[k]).squeeze(-1)
    for component in (0, 2, 3):
        assert scipy.stats.kstest(z[k == component].numpy(), "norm").pvalue > 1e-4


def test_each_batch_element_draws_from_its_own_weights_and_covariance():
    logits = torch.tensor([[9.0, -9.0], [-9.0, 9.0]], dtype=DOUBLE)
    m = GaussianMixture(
        logits=logits, **{k: v for k, v in parameters(2, components=2, full=True).items() if k != "logits"}
    )
    x, k = m.sample_with_component((40_000,))
    assert k[:, 0].float().mean() < 1e-3
    assert k[:, 1].float().mean() > 1 - 1e-3
    for row, component in ((0, 0), (1, 1)):
        sample = torch.cov(x[:, row].mT)
        assert (sample - m.covariance_matrix[row, component]).abs().max() < 0.05 * m.covariance_matrix.abs().max()


def test_generator_reproduces_samples_and_leaves_the_global_one_alone():
    m = mixture(3, grad=True)
    before = torch.get_rng_state()
    draws = [m.rsample((4,), generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    draws.append(m.sample_with_component((4,), generator=torch.Generator().manual_seed(7))[0])
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    one = m.sample((2,))
    torch.manual_seed(1)
    assert torch.equal(one, m.sample((2,)))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("value_shape", [(2,), (5, 2), (5, 1, 2), (6, 5, 2), (4, 5, 2)])
def test_log_prob_equals_torchs_for_every_broadcast(full, value_shape):
    # pytorch#151317, pyro#3419: parameters with batch dimensions
    m = mixture(5, full=full, grad=True)
    component = MultivariateNormal(m.loc, scale_tril=m.scale_tril)
    if not full:
        component = Independent(Normal(m.loc, m.scale), 1)
    peer = MixtureSameFamily(Categorical(logits=m.logits), component)
    value = torch.randn(value_shape, dtype=DOUBLE)
    torch.testing.assert_close(m.log_prob(value), peer.log_prob(value))
    joint = torch.log_softmax(m.logits, -1) + component.log_prob(value.unsqueeze(-2))
    torch.testing.assert_close(m.responsibilities(value), torch.softmax(joint, -1))
    torch.testing.assert_close(m.component_log_prob(value), component.log_prob(value.unsqueeze(-2)))


def test_density_integrates_to_one_and_gives_the_cdf():
    m = mixture(dims=1)

    def density(t):
        return m.log_prob(torch.tensor([t], dtype=DOUBLE)).exp().item()

    assert math.isclose(scipy.integrate.quad(density, -30, 30, limit=200)[0], 1, rel_tol=1e-7)
    for t in (-1.0, 0.4, 2.0):
        assert math.isclose(
            scipy.integrate.quad(density, -30, t, limit=200)[0],
            m.cdf(torch.tensor([t], dtype=DOUBLE)).item(),
            rel_tol=1e-7,
        )


@pytest.mark.parametrize("full", [False, True])
def test_log_prob_passes_gradcheck_twice(full):
    theta = {name: p.requires_grad_() for name, p in parameters(2, full=full).items()}
    value = torch.randn(3, 2, 2, dtype=DOUBLE, requires_grad=True)

    def log_prob(value, *values):
        given = dict(zip(theta, values, strict=True))
        if full:
            given["scale_tril"] = given["scale_tril"].tril()
        return GaussianMixture(**given, validate_args=False).log_prob(value)

    assert gradcheck(log_prob, (value, *theta.values()))
    assert gradgradcheck(log_prob, (value, *theta.values()), fast_mode=True)


# ------------------------------------------------------------------------------------------------- what users reported


def test_samples_of_a_scalar_mixture_carry_the_exact_gradients():
    # pytorch#39178: rsample on a mixture of two normals; values of 60-digit arithmetic at the sample
    theta = {"logits": (0.0, 0.4), "loc": (-1.0, 1.5), "scale": (1.0, 0.6)}
    leaves = {name: torch.tensor(v, dtype=DOUBLE, requires_grad=True) for name, v in theta.items()}
    m = GaussianMixture(
        logits=leaves["logits"],
        loc=leaves["loc"].unsqueeze(-1),
        scale=leaves["scale"].unsqueeze(-1),
        estimator="quantile",
    )
    x = m.rsample()
    x.sum().backward()
    with mpmath.workdps(60):
        t = mpmath.mpf(x.item())
        top = [mpmath.exp(mpmath.mpf(a)) for a in theta["logits"]]
        pi = [v / sum(top) for v in top]

        def distribution(i, name, value):
            moved = {key: list(values) for key, values in theta.items()}
            moved[name][i] = value
            e = [mpmath.exp(a) for a in moved["logits"]]
            terms = zip(e, moved["loc"], moved["scale"], strict=True)
            return sum(w / sum(e) * mpmath.ncdf((t - a) / s) for w, a, s in terms)

        f = sum(p * mpmath.npdf(t, a, s) for p, a, s in zip(pi, theta["loc"], theta["scale"], strict=True))
        for name, leaf in leaves.items():
            for i in range(2):
                slope = mpmath.diff(lambda v, i=i, name=name: distribution(i, name, v), theta[name][i])
                assert math.isclose(leaf.grad[i].item(), float(-slope / f), rel_tol=1e-9)


def test_logits_receive_a_gradient_that_is_not_zero():
    # pytorch#18125: the one-hot draw by hand lets nothing back to the logits (unbiasedness: test_pathwise)
    m = mixture(grad=True)
    m.rsample((10,)).square().sum().backward()
    assert m.logits.grad.abs().min() > 0


def test_batched_components_score_their_own_samples():
    # pytorch#151317, pyro#3419
    m = mixture(10, components=5, dims=3)
    assert m.log_prob(m.sample()).shape == (10,)
    assert m.log_prob(m.sample((7,))).isfinite().all()


def test_cdf_is_the_weighted_sum_in_one_dimension_and_refused_in_more():
    # pytorch#33406
    m = mixture(4, dims=1)
    x = m.sample((6,))
    expected = (m.probs * Normal(m.loc.squeeze(-1), m.scale.squeeze(-1)).cdf(x)).sum(-1)
    torch.testing.assert_close(m.cdf(x), expected)
    full = GaussianMixture(logits=m.logits, loc=m.loc, scale_tril=torch.diag_embed(m.scale))
    torch.testing.assert_close(full.cdf(x), expected)
    for name in ("cdf", "icdf"):
        with (
            unchecked_annotations(),
            pytest.raises(NotImplementedError, match=f"{name} needs D = 1; this mixture has D = 2"),
        ):
            getattr(mixture(), name)(torch.zeros(2, dtype=DOUBLE))


def test_diagonal_and_full_parameterisations_are_one_law():
    # tensorflow/probability#1548 (gradients: test_pathwise)
    theta = parameters(3)
    diagonal = GaussianMixture(**theta)
    tril = torch.diag_embed(theta["scale"])
    value = torch.randn(5, 3, 2, dtype=DOUBLE)
    for spread in ({"scale_tril": tril}, {"covariance_matrix": tril @ tril}):
        full = GaussianMixture(logits=theta["logits"], loc=theta["loc"], **spread)
        torch.testing.assert_close(full.log_prob(value), diagonal.log_prob(value))
        torch.testing.assert_close(full.scale, diagonal.scale)
        torch.testing.assert_close(full.variance, diagonal.variance)
        one, two = (d.sample((4,), generator=torch.Generator().manual_seed(0)) for d in (full, diagonal))
        torch.testing.assert_close(one, two)


def test_component_without_density_at_a_point_leaves_everything_finite():
    # tensorflow/probability#1377, #1413
    loc = torch.tensor([[0.0], [1e25]], requires_grad=True)
    scale = torch.ones(2, 1, requires_grad=True)
    logits = torch.zeros(2, requires_grad=True)
    m = GaussianMixture(logits=logits, loc=loc, scale=scale)
    value = torch.tensor([0.3])
    assert m.component_log_prob(value)[1] == -torch.inf
    m.log_prob(value).backward()
    assert m.log_prob(value).isfinite()
    assert logits.grad.isfinite().all()
    assert torch.equal(m.responsibilities(value), torch.tensor([1.0, 0.0]))


def test_log_prob_in_500_dimensions_does_not_underflow():
    # pyro#1917
    m = mixture(components=4, dims=500, dtype=torch.float32, grad=True)
    value = m.log_prob(m.sample((3,)) + 5)
    value.sum().backward()
    assert value.isfinite().all()
    assert value.max() < -500
    assert all(p.grad.isfinite().all() for p in (m.logits, m.loc, m.scale))


def test_thousand_narrow_dimensions_in_float32_give_finite_gradients():
    # pyro#3452
    logits = torch.zeros(2, 3, requires_grad=True)
    loc = torch.zeros(2, 3, 1000, requires_grad=True)
    scale = torch.full((2, 3, 1000), 0.05, requires_grad=True)
    m = GaussianMixture(logits=logits, loc=loc, scale=scale)
    x = m.rsample((4,))
    (x.square().sum() + m.log_prob(x).sum()).backward()
    assert all(p.grad.isfinite().all() for p in (logits, loc, scale))


def test_weights_of_exactly_zero_have_finite_gradients():
    # numpyro#1870, #2221, #2224
    for weights in ({"probs": torch.tensor([0.0, 0.5, 0.5])}, {"logits": torch.tensor([-torch.inf, 0.0, 0.0])}):
        (leaf,) = (w.requires_grad_() for w in weights.values())
        m = GaussianMixture(**weights, loc=torch.tensor([[3.0], [-1.0], [1.0]]), scale=torch.ones(3, 1))
        assert m.probs[0] == 0
        x = m.rsample((100,))
        total = (
            x.square().sum()
            + m.log_prob(x).sum()
            + m.entropy_lower_bound()
            + m.entropy_upper_bound()
            + m.variance.sum()
        )
        (total + m.cdf(x.detach()).sum() + m.icdf(torch.tensor([0.1, 0.9])).sum()).backward()
        assert leaf.grad[0] == 0
        assert leaf.grad.isfinite().all()


def test_quantities_of_an_unused_component_do_not_matter():
    m = GaussianMixture(probs=torch.tensor([0.0, 1.0]), loc=torch.tensor([[50.0], [1.0]]), scale=torch.ones(2, 1))
    torch.testing.assert_close(m.icdf(torch.tensor(0.5)), torch.tensor([1.0]))
    exact = torch.tensor(0.5 * math.log(2 * math.pi * math.e))
    torch.testing.assert_close(m.entropy_lower_bound(), exact)
    torch.testing.assert_close(m.entropy_upper_bound(), exact)


# ------------------------------------------------------------------------------------------------ cdf, icdf and entropy


@pytest.mark.parametrize("z", [-37.0, -20.0, -9.0, -6.0, -1.0, 0.0, 2.0, 5.0])
def test_quantiles_invert_the_distribution_function_to_its_tails(z):
    m = GaussianMixture(
        probs=torch.tensor([0.3, 0.7], dtype=DOUBLE),
        loc=torch.tensor([[0.0], [1.0]], dtype=DOUBLE),
        scale=torch.tensor([[1.0], [0.5]], dtype=DOUBLE),
    )
    x = torch.tensor([z], dtype=DOUBLE)
    with mpmath.workdps(60):
        exact = mpmath.mpf(0.3) * mpmath.ncdf(z) + mpmath.mpf(0.7) * mpmath.ncdf((z - 1) / 0.5)
    assert math.isclose(m.cdf(x).item(), float(exact), rel_tol=1e-12)
    torch.testing.assert_close(m.icdf(m.cdf(x)), x, rtol=1e-9, atol=1e-12)


def test_quantiles_at_the_edges_are_infinite_without_nan_in_any_gradient():
    m = mixture(dims=1, grad=True)
    p = torch.tensor([0.0, 0.5, 1.0], dtype=DOUBLE, requires_grad=True)
    x = m.icdf(p)
    assert x[0] == -torch.inf
    assert x[2] == torch.inf
    x[1].sum().backward()
    assert p.grad[[0, 2]].eq(0).all()
    assert all(t.grad.isfinite().all() for t in (p, m.logits, m.loc, m.scale))


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_quantile_of_no_probability_is_named(bad):
    with pytest.raises(ValueError, match=rf"value\[1\] = {bad} must lie between 0 and 1"):
        mixture(dims=1).icdf(torch.tensor([0.5, bad], dtype=DOUBLE))


def test_quantiles_pass_gradcheck_twice():
    theta = {name: p.requires_grad_() for name, p in parameters(2, components=2, dims=1).items()}
    p = torch.tensor([1e-3, 0.99], dtype=DOUBLE, requires_grad=True)

    def icdf(p, *values):
        return GaussianMixture(**dict(zip(theta, values, strict=True)), validate_args=False).icdf(p)

    assert icdf(p, *theta.values()).shape == (2, 1)
    assert gradcheck(icdf, (p, *theta.values()), eps=1e-7, atol=1e-5, rtol=1e-4)
    assert gradgradcheck(icdf, (p, *theta.values()), eps=1e-7, atol=1e-3, rtol=1e-3, fast_mode=True)


def test_gradient_of_a_quantile_in_the_upper_tail_keeps_its_digits():
    p = torch.tensor(1 - 2.0**-50, dtype=DOUBLE)
    logits = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    loc = torch.tensor([[0.0], [1.0]], dtype=DOUBLE)
    x = GaussianMixture(logits=logits, loc=loc, scale=torch.ones(2, 1, dtype=DOUBLE)).icdf(p)
    x.sum().backward()
    with mpmath.workdps(60):
        t = mpmath.mpf(x.item())
        upper = [mpmath.ncdf(-t), mpmath.ncdf(1 - t)]
        density = (mpmath.npdf(t) + mpmath.npdf(t - 1)) / 2
        exact = float((upper[1] - sum(upper) / 2) / 2 / density)
    assert math.isclose(logits.grad[1].item(), exact, rel_tol=1e-10)


def test_entropy_bounds_bracket_an_estimate():
    for full in (False, True):
        for components in (2, 5):
            m = mixture(6, components=components, dims=3, full=full)
            estimate = m.entropy_monte_carlo(20_000)
            assert (m.entropy_lower_bound() <= estimate + 0.05).all()
            assert (m.entropy_upper_bound() >= estimate - 0.05).all()
            assert (m.entropy_lower_bound() <= m.entropy_upper_bound() + 1e-12).all()


@pytest.mark.parametrize("full", [False, True])
def test_entropy_bounds_are_exact_for_one_component_equal_ones_and_far_ones(full):
    def normal_entropy(m):
        return MultivariateNormal(m.loc, scale_tril=m.scale_tril).entropy()

    one = mixture(components=1, dims=3, full=full)
    theta = parameters(components=1, dims=3, full=full)
    equal = GaussianMixture(**{k: v.repeat_interleave(4, 0) for k, v in theta.items()})
    apart = parameters(components=3, dims=3, full=full)
    apart["loc"] = apart["loc"] + 1e3 * torch.arange(3, dtype=DOUBLE).unsqueeze(-1)
    apart = GaussianMixture(**apart)
    weights = -(apart.probs * apart.probs.log()).sum()
    cases = (
        (one, normal_entropy(one)[0]),
        (equal, normal_entropy(equal)[0]),
        (apart, (apart.probs * normal_entropy(apart)).sum() + weights),
    )
    for m, exact in cases:
        torch.testing.assert_close(m.entropy_lower_bound(), exact, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(m.entropy_upper_bound(), exact, rtol=1e-10, atol=1e-10)


def test_entropy_bounds_of_a_diagonal_mixture_equal_those_of_its_cholesky_factors():
    theta = parameters(3, components=4, dims=5)
    diagonal = GaussianMixture(**theta)
    full = GaussianMixture(logits=theta["logits"], loc=theta["loc"], scale_tril=torch.diag_embed(theta["scale"]))
    torch.testing.assert_close(diagonal.entropy_lower_bound(), full.entropy_lower_bound())
    torch.testing.assert_close(diagonal.entropy_upper_bound(), full.entropy_upper_bound())


def test_entropy_itself_names_what_there_is_instead():
    with pytest.raises(
        NotImplementedError, match=r"use entropy_lower_bound\(\), entropy_upper_bound\(\) or entropy_monte_carlo"
    ):
        mixture().entropy()


# ------------------------------------------------------------------------------------------------------- bad arguments

LOC, SCALE = torch.zeros(3, 2), torch.ones(3, 2)
GOOD = {"logits": torch.zeros(3), "loc": LOC, "scale": SCALE}


def changed(name, index, value):
    tensor = GOOD[name].clone()
    tensor[index] = value
    return {**GOOD, name: tensor}


def with_probs(*values):
    return {"probs": torch.tensor(values), "loc": LOC, "scale": SCALE}


def with_covariance(*rows, name="covariance_matrix"):
    matrix = torch.eye(2).repeat(3, 1, 1)
    matrix[1] = torch.tensor(rows)
    return {"logits": torch.zeros(3), "loc": LOC, name: matrix}


BAD = [
    (
        {**GOOD, "logits": torch.zeros(4)},
        ValueError,
        "logits has shape (4,), so K = 4 (last axis), but loc has shape (3, 2), so K = 3",
    ),
    (
        {**GOOD, "scale": torch.ones(4, 2)},
        ValueError,
        "scale has shape (4, 2) and loc (3, 2): the last axes of scale must be (K, D) = (3, 2)",
    ),
    ({**GOOD, "scale": torch.ones(3, 3)}, ValueError, "scale has shape (3, 3) and loc (3, 2)"),
    ({**GOOD, "scale": torch.ones(2)}, ValueError, "scale has shape (2,), but needs the axes (.., K, D)"),
    ({**GOOD, "loc": torch.zeros(3)}, ValueError, "loc has shape (3,), but needs the axes (.., K, D)"),
    ({**GOOD, "logits": torch.tensor(0.0)}, ValueError, "logits has shape (), but needs the axes (.., K)"),
    (
        {**with_covariance((1.0, 0.0), (0.0, 1.0)), "covariance_matrix": torch.ones(3, 2, 3)},
        ValueError,
        "must be (K, D, D) = (3, 2, 2)",
    ),
    (
        {"logits": torch.zeros(0), "loc": torch.zeros(0, 2), "scale": torch.ones(0, 2)},
        ValueError,
        "at least one component and one dimension",
    ),
    (
        {"logits": torch.zeros(3), "loc": torch.zeros(3, 0), "scale": torch.ones(3, 0)},
        ValueError,
        "at least one component and one dimension",
    ),
    (
        {"logits": torch.zeros(5, 3), "loc": torch.zeros(4, 3, 2), "scale": SCALE},
        ValueError,
        "the batch shapes logits (5,), loc (4,) and scale () do not broadcast",
    ),
    (changed("scale", (1, 0), 0.0), ValueError, "scale[1, 0] = 0 must be positive"),
    (changed("scale", (2, 1), -0.5), ValueError, "scale[2, 1] = -0.5 must be positive"),
    (changed("scale", (2, 1), math.nan), ValueError, "scale[2, 1] = nan must be finite"),
    (changed("scale", (0, 1), math.inf), ValueError, "scale[0, 1] = inf must be finite"),
    (changed("loc", (0, 1), math.nan), ValueError, "loc[0, 1] = nan must be finite"),
    (changed("loc", (0, 1), -math.inf), ValueError, "loc[0, 1] = -inf must be finite"),
    (changed("logits", (1,), math.nan), ValueError, "logits[1] = nan must be finite, or -inf for weight zero"),
    (changed("logits", (1,), math.inf), ValueError, "logits[1] = inf must be finite, or -inf for weight zero"),
    (
        {**GOOD, "logits": torch.full((3,), -math.inf)},
        ValueError,
        "logits[0] = -inf lies in a row without a component of positive weight",
    ),
    (with_probs(0.5, 0.3, 0.3), ValueError, "probs.sum(-1) = 1.1 must be 1"),
    (with_probs(0.5, 0.7, -0.2), ValueError, "probs[2] = -0.2 must be at least 0"),
    (with_probs(0.5, math.nan, 0.5), ValueError, "probs[1] = nan must be at least 0"),
    (with_probs(0.0, 0.0, 0.0), ValueError, "probs.sum(-1) = 0 must be 1"),
    ({**GOOD, "probs": torch.ones(3) / 3}, ValueError, "give exactly one of logits, probs; given: logits, probs"),
    ({"loc": LOC, "scale": SCALE}, ValueError, "give exactly one of logits, probs; given: none"),
    (
        {"logits": torch.zeros(3), "loc": LOC},
        ValueError,
        "give exactly one of scale, scale_tril, covariance_matrix; given: none",
    ),
    ({**GOOD, "scale_tril": torch.eye(2).repeat(3, 1, 1)}, ValueError, "given: scale, scale_tril"),
    (
        {**GOOD, "loc": torch.zeros(3, 2, dtype=torch.long)},
        TypeError,
        "loc must be a floating-point tensor, not torch.int64",
    ),
    ({**GOOD, "scale": [[1.0, 1.0]] * 3}, TypeError, "scale must be a floating-point tensor, not list"),
    (
        with_covariance((1.0, 0.5), (0.2, 1.0)),
        ValueError,
        "covariance_matrix[1, 0, 1] = 0.5 must equal its mirror image",
    ),
    (
        with_covariance((1.0, 2.0), (2.0, 1.0)),
        ValueError,
        "covariance_matrix[1] must be positive definite; its leading minor of order 2",
    ),
    (with_covariance((1.0, math.nan), (0.0, 1.0)), ValueError, "covariance_matrix[1, 0, 1] = nan must be finite"),
    (
        with_covariance((1.0, 0.5), (0.0, 1.0), name="scale_tril"),
        ValueError,
        "scale_tril[1, 0, 1] = 0.5 must be 0 above the diagonal",
    ),
    (
        with_covariance((1.0, 0.0), (0.5, -1.0), name="scale_tril"),
        ValueError,
        "scale_tril diagonal[1, 1] = -1 must be positive",
    ),
    (
        {**GOOD, "estimator": "reinforce"},
        ValueError,
        "estimator='reinforce' is not one of 'responsibility', 'quantile'",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD, ids=[message[:50] for _, _, message in BAD])
def test_bad_arguments_are_named_with_what_was_given(arguments, error, message):
    with unchecked_annotations(), pytest.raises(error) as caught:
        GaussianMixture(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(*(st.lists(st.integers(1, 3), max_size=3) for _ in range(3))),
    st.tuples(*(st.integers(1, 4) for _ in range(3))),
    st.tuples(*(st.integers(1, 3) for _ in range(2))),
)
def test_shapes_are_accepted_exactly_where_they_fit(batches, components, dims):
    given_shapes = (
        (*batches[0], components[0]),
        (*batches[1], components[1], dims[0]),
        (*batches[2], components[2], dims[1]),
    )
    try:
        batch = torch.broadcast_shapes(*(tuple(b) for b in batches))
        fits = len(set(components)) == 1 and len(set(dims)) == 1
    except RuntimeError:
        fits = False
    make = {name: torch.ones(shape) for name, shape in zip(("logits", "loc", "scale"), given_shapes, strict=True)}
    with unchecked_annotations():
        if fits:
            m = GaussianMixture(**make)
            assert m.batch_shape == batch
            assert m.rsample().shape == (*batch, dims[0])
        else:
            with pytest.raises(ValueError, match="shape"):
                GaussianMixture(**make)


def test_rounding_is_no_error():
    for components in (3, 10, 1000):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            probs = torch.softmax(torch.randn(components, dtype=dtype), -1)
            GaussianMixture(
                probs=probs, loc=torch.zeros(components, 1, dtype=dtype), scale=torch.ones(components, 1, dtype=dtype)
            )
    root = 1e5 * torch.randn(3, 4, 4, dtype=DOUBLE)
    covariance = root @ root.mT + torch.eye(4, dtype=DOUBLE)
    covariance[0, 0, 1] *= 1 + 1e-14  # symmetric to rounding, at entries of 1e10
    GaussianMixture(logits=torch.zeros(3), loc=torch.zeros(3, 4), covariance_matrix=covariance)


# --------------------------------------------------------------------------------------------- many workers, large sizes


def test_threads_draw_and_differentiate_side_by_side():
    def work(seed):
        theta = {name: p.requires_grad_() for name, p in THETA.items() for p in [p.clone()]}
        x = GaussianMixture(**theta).rsample((20,), generator=torch.Generator().manual_seed(seed))
        return torch.autograd.grad(x.cos().sum(), tuple(theta.values()))

    THETA = parameters(50, components=4, dims=3)
    alone = [work(seed) for seed in range(6)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(6)))
    for one, two in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


FORKED = """
import torch, torch.multiprocessing as mp
from tenfold.mixture import GaussianMixture

def work(i):
    torch.set_num_threads(1)
    loc = torch.zeros(40, 4, 3, requires_grad=True)
    GaussianMixture(logits=torch.zeros(4), loc=loc, scale=torch.ones(4, 3)).rsample((20,)).sum().backward()
    return loc.grad.sum().item()

if __name__ == "__main__":
    work(0)
    with mp.get_context("fork").Pool(2) as pool:
        assert all(abs(v - 2400) < 1e-2 for v in pool.map(work, range(4)))
"""


def test_forked_workers_differentiate_after_their_parent_has():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_units_of_the_data_do_not_matter(factor, dtype, estimator):
    theta = parameters(3, components=3, dims=4, dtype=dtype)
    gradients = []
    for unit in (1.0, factor):
        leaves = {name: (p if name == "logits" else unit * p).requires_grad_() for name, p in theta.items()}
        leaves = {name: p.detach().clone().requires_grad_() for name, p in leaves.items()}
        x = GaussianMixture(**leaves, estimator=estimator).rsample((5,), generator=torch.Generator().manual_seed(0))
        (x / unit).cos().sum().backward()
        gradients.append([leaves["logits"].grad, unit * leaves["loc"].grad, unit * leaves["scale"].grad])
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance * float(one.abs().max()))


@pytest.mark.parametrize("components", [1, 64, 1000])
def test_one_to_a_thousand_components(components):
    m = mixture(2, components=components, dims=3, dtype=torch.float32, grad=True)
    x = m.rsample((3,))
    (x.sum() + m.log_prob(x).sum()).backward()
    assert all(p.grad.isfinite().all() for p in (m.logits, m.loc, m.scale))
    torch.testing.assert_close(m.responsibilities(x.detach()).sum(-1), torch.ones(3, 2))


def test_mixed_precision_regions_leave_the_gradients_in_float32():
    for full in (False, True):
        m = mixture(3, dtype=torch.float32, full=full, grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = m.rsample((4,))
            loss = x.square().sum() + m.log_prob(x).sum()
        loss.backward()
        spread = m.scale_tril if full else m.scale
        assert x.dtype == torch.float32
        assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in (m.logits, m.loc, spread))


def test_sample_shape_that_is_none_is_one_sentence(wrong_sample_shape):
    sample_shape, error, message = wrong_sample_shape
    mixture = GaussianMixture(logits=torch.zeros(2), loc=torch.zeros(2, 1), scale=torch.ones(2, 1))
    calls = [mixture.sample, mixture.rsample, mixture.sample_with_component]
    for call in [*calls, lambda shape: mixture.expectation(lambda x: x.sum(-1), shape)]:
        with pytest.raises(error, match=message):
            call(sample_shape)


def test_entropy_from_no_samples_is_refused():
    mixture = GaussianMixture(logits=torch.zeros(2), loc=torch.zeros(2, 1), scale=torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"num_samples=0 must be at least 1"):
        mixture.entropy_monte_carlo(0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("dtype", "narrow"), [(torch.float32, 1e-18), (torch.float64, 1e-150)])
def test_deviation_far_below_the_distance_of_the_means_has_finite_gradients(estimator, dtype, narrow):
    theta = [
        torch.zeros(2, dtype=dtype, requires_grad=True),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=dtype, requires_grad=True),
        torch.tensor([[narrow, narrow], [1.0, 1.0]], dtype=dtype, requires_grad=True),
    ]
    mixture = GaussianMixture(logits=theta[0], loc=theta[1], scale=theta[2], estimator=estimator)
    x = mixture.rsample((50,))
    for value in (x.sum(), mixture.log_prob(x.detach()).sum()):
        assert all(g.isfinite().all() for g in torch.autograd.grad(value, theta, retain_graph=True))
