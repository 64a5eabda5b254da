"""Implicit reparameterisation of scalar densities: against the usual one, against -(dF/dtheta)/f, and by samples alone."""

import math

import mpmath
import pytest
import torch
import torch.distributions as D  # noqa: N812
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.distributions import transforms

from tenfold.mixture import implicit_rsample, monte_carlo_pathwise
from tenfold.mixture.implicit import has_differentiable_cdf, log_density, newton_attach, tails
from type_checking import unchecked_annotations

DOUBLE = torch.float64


def logistic(loc, scale):
    sigmoid = transforms.SigmoidTransform().inv
    uniform = D.Uniform(torch.zeros_like(loc), torch.ones_like(loc))
    return D.TransformedDistribution(uniform, [sigmoid, transforms.AffineTransform(loc, scale)])


FAMILIES = {
    "Normal": (D.Normal, (0.3, 1.4)),
    "Laplace": (D.Laplace, (0.3, 1.4)),
    "Logistic": (logistic, (0.3, 1.4)),
    "Cauchy": (D.Cauchy, (0.3, 1.4)),
    "Gumbel": (D.Gumbel, (0.3, 1.4)),
    "LogNormal": (D.LogNormal, (0.3, 0.7)),
    "Exponential": (D.Exponential, (1.7,)),
    "HalfNormal": (D.HalfNormal, (1.7,)),
    "HalfCauchy": (D.HalfCauchy, (1.7,)),
    "Weibull": (D.Weibull, (1.3, 2.1)),
    "Pareto": (D.Pareto, (1.3, 2.1)),
    "Kumaraswamy": (D.Kumaraswamy, (1.6, 2.3)),
    "Uniform": (D.Uniform, (-0.4, 1.6)),
    "ContinuousBernoulli": (D.ContinuousBernoulli, (0.8,)),
}


def build(name, dtype=DOUBLE):
    family, values = FAMILIES[name]
    theta = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in values]
    return family(*theta), theta


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_equals_the_usual_reparameterisation(name):
    """The usual one is the inverse distribution function at the u of the sample."""
    dist, theta = build(name)
    x = implicit_rsample(dist, (20,))
    u = tails(dist, x.detach())[0].detach()
    usual = {
        "Logistic": lambda a, b: a + b * torch.logit(u),
        "Gumbel": lambda a, b: a - b * torch.log(-torch.log(u)),
        "LogNormal": lambda a, b: (a + b * torch.special.ndtri(u)).exp(),
        "Weibull": lambda a, b: a * (-torch.log1p(-u)) ** (1 / b),
        "Pareto": lambda a, b: a * (1 - u) ** (-1 / b),
        "Kumaraswamy": lambda a, b: (1 - (1 - u) ** (1 / b)) ** (1 / a),
    }.get(name, lambda *_: dist.icdf(u))(*theta)
    torch.testing.assert_close(usual.detach(), x.detach(), rtol=1e-9, atol=1e-12)
    for mine, right in zip(grad(x.cos().sum(), theta, retain_graph=True), grad(usual.cos().sum(), theta), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", FAMILIES)
def test_second_derivative_equals_the_derivative_of_minus_dF_over_f(name):
    """``x'' = d/dtheta [-(dF/dtheta)/f]`` along the path, term by term for each parameter."""
    dist, theta = build(name)
    x = implicit_rsample(dist)
    for i, parameter in enumerate(theta):
        (first,) = grad(x, parameter, create_graph=True)
        second = grad(first, parameter, retain_graph=True)[0]

        def field(t, value, i=i):
            family, _ = FAMILIES[name]
            arguments = [p if j != i else value for j, p in enumerate([p.detach() for p in theta])]
            moved = family(*arguments)
            (slope,) = grad(tails(moved, t)[0], value, create_graph=True)
            return -slope / moved.log_prob(t).exp()

        t = x.detach().clone().requires_grad_()
        value = parameter.detach().clone().requires_grad_()
        v = field(t, value)
        assert math.isclose(first.item(), v.item(), rel_tol=1e-9, abs_tol=1e-12)
        by_value, by_t = grad(v, (value, t), allow_unused=True, materialize_grads=True)
        assert math.isclose(second.item(), (by_value + by_t * v).item(), rel_tol=1e-7, abs_tol=1e-9)


def mixture_of(family, *parameters, weights=(0.6, -0.3)):
    theta = [torch.tensor(weights, dtype=DOUBLE), *(torch.tensor(p, dtype=DOUBLE) for p in parameters)]
    theta = [p.requires_grad_() for p in theta]
    return D.MixtureSameFamily(D.Categorical(logits=theta[0]), family(*theta[1:])), theta


MIXTURES = {
    "Normal": (D.Normal, (0.0, 1.0), (1.0, 0.7)),
    "Laplace": (D.Laplace, (0.0, 1.0), (1.0, 0.7)),
    "Logistic": (logistic, (0.0, 1.0), (1.0, 0.7)),
    "Cauchy": (D.Cauchy, (0.0, 1.0), (1.0, 0.7)),
    "Gumbel": (D.Gumbel, (0.0, 1.0), (1.0, 0.7)),
    "Exponential": (D.Exponential, (0.5, 2.0)),
    "Weibull": (D.Weibull, (1.0, 2.0), (1.5, 0.8)),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_numerical_inversion_is_differentiated_exactly_twice_and_a_third_time(name):
    family, *values = MIXTURES[name]
    _, theta = mixture_of(family, *values)
    u = torch.tensor([0.07, 0.93], dtype=DOUBLE)
    start = (0.0, 60.0) if name in {"Exponential", "Weibull"} else (-60.0, 60.0)

    def quantile(*theta):
        dist = D.MixtureSameFamily(D.Categorical(logits=theta[0]), family(*theta[1:]))
        with torch.no_grad():
            low, high = torch.full_like(u, start[0]), torch.full_like(u, start[1])
            for _ in range(70):
                middle = (low + high) / 2
                below = tails(dist, middle)[0] < u
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return newton_attach(high, lambda t: tails(dist, t)[0], lambda t: log_density(dist, t))

    assert gradcheck(quantile, theta, eps=1e-5, atol=1e-6)

    def slope(*theta):
        return grad(quantile(*theta).sum(), theta, create_graph=True)

    assert gradcheck(slope, theta, eps=1e-5, atol=1e-5)

    if name not in {"Normal", "Weibull"}:
        return  # the third derivative takes its time

    def curvature(*theta):
        return grad(sum(s.sum() for s in slope(*theta)), theta, create_graph=True)

    assert gradcheck(curvature, theta, eps=1e-5, atol=1e-4)


TAILS = {
    "Normal": (lambda z: mpmath.ncdf(z), lambda z: mpmath.npdf(z), D.Normal),
    "Laplace": (
        lambda z: mpmath.exp(-abs(z)) / 2 if z < 0 else 1 - mpmath.exp(-z) / 2,
        lambda z: mpmath.exp(-abs(z)) / 2,
        D.Laplace,
    ),
    "Logistic": (lambda z: 1 / (1 + mpmath.exp(-z)), lambda z: mpmath.exp(-z) / (1 + mpmath.exp(-z)) ** 2, logistic),
    "Cauchy": (lambda z: mpmath.atan(z) / mpmath.pi + 0.5, lambda z: 1 / (mpmath.pi * (1 + z * z)), D.Cauchy),
    "Gumbel": (lambda z: mpmath.exp(-mpmath.exp(-z)), lambda z: mpmath.exp(-z - mpmath.exp(-z)), D.Gumbel),
}


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("x", [-9.0, -2.0, 0.5, 9.0, 20.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-3)])
def test_mixture_gradient_at_nine_deviations_matches_60_digit_arithmetic(name, x, dtype, tolerance):
    cdf, pdf, family = TAILS[name]
    if name == "Gumbel" and x == -9.0:
        x = -4.0  # exp(-exp(9)) is 0 in any float
    logits, loc, scale = (0.6, -0.3), (0.0, 1.0), (1.0, 0.75)
    if name == "Normal" and (x == 20.0) and dtype == torch.float32:
        pytest.skip("the density itself is 0 in float32; GaussianMixture covers this tail")
    with mpmath.workdps(250):
        top = [mpmath.exp(mpmath.mpf(a)) for a in logits]
        pi = [t / sum(top) for t in top]
        z = [(mpmath.mpf(x) - m) / mpmath.mpf(s) for m, s in zip(loc, scale, strict=True)]
        f_k = [pdf(v) / s for v, s in zip(z, scale, strict=True)]
        f = sum(p * n for p, n in zip(pi, f_k, strict=True))
        total = sum(p * cdf(v) for p, v in zip(pi, z, strict=True))
        right = [
            [float(-p * (cdf(v) - total) / f) for p, v in zip(pi, z, strict=True)],
            [float(p * n / f) for p, n in zip(pi, f_k, strict=True)],
            [float(p * n * v / f) for p, n, v in zip(pi, f_k, z, strict=True)],
        ]
    theta = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (logits, loc, scale)]
    dist = D.MixtureSameFamily(D.Categorical(logits=theta[0]), family(*theta[1:]))
    point = torch.tensor(x, dtype=dtype)
    above = float(total) > 0.5
    attached = newton_attach(
        point, lambda t: -tails(dist, t)[1] if above else tails(dist, t)[0], lambda t: log_density(dist, t)
    )
    for value, expected in zip(grad(attached, theta), right, strict=True):
        expected = torch.tensor(expected, dtype=DOUBLE)
        assert (value.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
def test_both_tails_add_up_to_one_and_agree_with_torch(name):
    dist, _ = build(name)
    x = dist.sample((200,))
    lower, upper = (t.detach() for t in tails(dist, x))
    torch.testing.assert_close(lower + upper, torch.ones_like(x), rtol=1e-12, atol=0)
    torch.testing.assert_close(lower, dist.cdf(x).detach(), rtol=1e-6, atol=1e-9)


def test_decreasing_and_vector_valued_transforms_keep_their_orientation():
    scale = torch.tensor([-2.0, 3.0], dtype=DOUBLE, requires_grad=True)
    base = D.Normal(torch.zeros(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))
    dist = D.TransformedDistribution(base, [transforms.AffineTransform(torch.tensor(1.0, dtype=DOUBLE), scale)])
    x = implicit_rsample(dist, (5,))
    (value,) = grad(x.sum(), scale)
    torch.testing.assert_close(value, ((x - 1) / scale).sum(0).detach())
    lower, upper = tails(dist, torch.tensor([1 + 18.0, 1 - 27.0], dtype=DOUBLE))  # both at -9 deviations of the base
    torch.testing.assert_close(
        torch.stack([upper[0], lower[1]]), torch.full((2,), 1.1285884059538406e-19, dtype=DOUBLE)
    )


@pytest.mark.parametrize("sample_shape", [(), (3,), (0,), (2, 4)])
@pytest.mark.parametrize("sampler", [implicit_rsample, monte_carlo_pathwise])
def test_samples_have_the_sample_shape_before_the_batch_shape(sample_shape, sampler):
    for batch in ((), (3,), (2, 3), (0,)):
        rate = torch.rand(batch, dtype=DOUBLE) + 0.5
        rate.requires_grad_()
        x = sampler(D.Exponential(rate), sample_shape)
        assert x.shape == (*sample_shape, *batch)
        assert x.dtype == DOUBLE
        x.sum().backward()
        assert rate.grad.shape == batch


def test_components_with_supports_of_their_own_are_allowed():
    # tensorflow/probability#1377, #1413: one component has no density at the sample
    low = torch.tensor([0.0, 2.0, 0.5], dtype=DOUBLE, requires_grad=True)
    high = torch.tensor([1.0, 3.0, 2.5], dtype=DOUBLE, requires_grad=True)
    logits = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    dist = D.MixtureSameFamily(D.Categorical(logits=logits), D.Uniform(low, high))
    x = implicit_rsample(dist, (50,))
    gradients = grad(x.sum(), (low, high, logits))
    assert all(g.isfinite().all() for g in gradients)
    # the sum of all means: E x = mean (low + high) / 2, so each edge moves the mean by 1/6
    many = implicit_rsample(dist, (20_000,)).mean()
    assert abs(float(grad(many, high)[0].sum()) - 0.5) < 0.05


REFUSED = {
    "Gamma": (
        lambda: D.Gamma(torch.tensor(2.0), 1.0),
        "Gamma has no cdf that torch can",
    ),
    "Chi2": (lambda: D.Chi2(torch.tensor(2.0)), "Chi2 has no cdf"),
    "InverseGamma": (lambda: D.InverseGamma(torch.tensor(2.0), torch.tensor(1.0)), "InverseGamma has no cdf"),
    "StudentT": (lambda: D.StudentT(torch.tensor(3.0)), "StudentT has no cdf"),
    "log StudentT": (
        lambda: D.TransformedDistribution(D.StudentT(torch.tensor(3.0)), [transforms.ExpTransform()]),
        "TransformedDistribution has no cdf",
    ),
    "folded": (
        lambda: D.TransformedDistribution(D.Normal(torch.tensor(0.5), 1.0), [transforms.AbsTransform()]),
        "TransformedDistribution has no cdf",
    ),
    "RelaxedBernoulli": (
        lambda: D.RelaxedBernoulli(torch.tensor(0.5), torch.tensor(0.2)),
        "RelaxedBernoulli has no cdf",
    ),
    "Beta": (lambda: D.Beta(torch.tensor(2.0), torch.tensor(1.0)), "Beta has no cdf"),
    "VonMises": (lambda: D.VonMises(torch.tensor(2.0), torch.tensor(1.0)), "VonMises has no cdf"),
    "Bernoulli": (
        lambda: D.Bernoulli(torch.tensor(0.5)),
        "Bernoulli is discrete: its samples have no pathwise gradient",
    ),
    "Poisson": (lambda: D.Poisson(torch.tensor(0.5)), "Poisson is discrete"),
    "mixture of Poisson": (
        lambda: D.MixtureSameFamily(D.Categorical(torch.ones(2)), D.Poisson(torch.ones(2))),
        "a mixture of Poisson is discrete",
    ),
    "mixture of Gamma": (
        lambda: D.MixtureSameFamily(D.Categorical(torch.ones(2)), D.Gamma(torch.ones(2), torch.ones(2))),
        "a mixture of Gamma has no cdf",
    ),
    "Dirichlet": (lambda: D.Dirichlet(torch.ones(3)), r"Dirichlet has event shape \(3,\); only scalar densities"),
    "MultivariateNormal": (
        lambda: D.MultivariateNormal(torch.zeros(2), torch.eye(2)),
        r"MultivariateNormal has event shape \(2,\); only scalar densities \(event shape \(\)\) are supported",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_implicit_gradient_is_refused_by_name(name):
    make, message = REFUSED[name]
    with pytest.raises(NotImplementedError, match=message):
        implicit_rsample(make())
    if "no cdf" in message:
        assert not has_differentiable_cdf(make())


# ------------------------------------------------------------------------------------------------ by samples alone


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda a, b: D.Normal(a, b), (0.3, 1.4)),
        (lambda a, b: D.Gamma(a, b), (2.5, 1.4)),
        (lambda a, b: D.Beta(a, b), (2.5, 1.4)),
        (lambda a, b: D.StudentT(torch.tensor(6.0, dtype=DOUBLE), a, b), (0.3, 1.4)),
        (lambda a, b: D.Weibull(a, b), (1.3, 2.1)),
    ],
    ids=["Normal", "Gamma", "Beta", "StudentT", "Weibull"],
)
def test_sampling_estimator_is_unbiased_for_the_gradient_of_the_mean(make, values):
    exact = [torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in values]
    make(*exact).mean.backward()
    right = torch.stack([torch.zeros(()) if p.grad is None else p.grad for p in exact])
    theta = [torch.full((1000,), v, dtype=DOUBLE, requires_grad=True) for v in values]
    x = monte_carlo_pathwise(make(*theta), (20,), num_samples=200)
    estimates = torch.stack([g / 20 for g in grad(x.sum(), theta)], -1)
    z = (estimates.mean(0) - right) / (estimates.std(0) / 1000**0.5)
    assert z.abs().max() < 4.5


def test_error_of_the_sampling_estimator_falls_as_one_over_root_m():
    # a mixture at one point of it, against -(dF/dlogits)/f; two sample sizes a factor 64 apart
    torch.manual_seed(3)
    logits, loc = (0.6, -0.3), torch.tensor([0.0, 2.0], dtype=DOUBLE)
    errors = {}
    for m in (16, 1024):
        theta = torch.tensor(logits, dtype=DOUBLE).expand(300, 2).clone().requires_grad_()
        dist = D.MixtureSameFamily(D.Categorical(logits=theta), D.Normal(loc.expand(300, 2), 1.0))
        seed = torch.get_rng_state()
        (estimate,) = grad(monte_carlo_pathwise(dist, num_samples=m).sum(), theta, retain_graph=True)
        torch.set_rng_state(seed)
        (right,) = grad(implicit_rsample(dist).sum(), theta)
        errors[m] = float((estimate - right).square().mean().sqrt())
    slope = math.log(errors[1024] / errors[16]) / math.log(64)
    assert -0.6 < slope < -0.4


def test_samples_for_the_integral_are_at_least_two():
    with pytest.raises(ValueError, match="num_samples=1 must be at least 2"):
        monte_carlo_pathwise(D.Normal(0.0, 1.0), num_samples=1)


def test_second_derivative_by_samples_is_refused_not_wrong():
    scale = torch.tensor(2.0, requires_grad=True)
    x = monte_carlo_pathwise(D.Gamma(scale, 1.0))
    (first,) = grad(x, scale, create_graph=True)  # the upstream gradient is a constant
    with pytest.raises(RuntimeError, match="monte_carlo_pathwise has no second derivative"):
        first.backward()


def test_edge_that_moves_with_a_parameter_is_refused_by_the_sampling_estimator():
    high = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(NotImplementedError, match="the support of Uniform moves with its parameters"):
        monte_carlo_pathwise(D.Uniform(0.0, high))
    with pytest.raises(NotImplementedError, match="the support of a mixture of Uniform moves"):
        monte_carlo_pathwise(D.MixtureSameFamily(D.Categorical(torch.ones(2)), D.Uniform(0.0, high.expand(2))))
    assert monte_carlo_pathwise(D.Uniform(0.0, high.detach())).shape == ()


@pytest.mark.parametrize("make", [lambda: D.Poisson(torch.tensor(1.0)), lambda: D.Dirichlet(torch.ones(3))])
def test_discrete_and_vector_distributions_are_refused_by_the_sampling_estimator(make):
    with pytest.raises(NotImplementedError, match=r"is discrete|only scalar densities"):
        monte_carlo_pathwise(make())


def test_gradients_agree_with_each_other_under_gradgradcheck():
    loc, scale = (torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in (0.3, 1.4))

    def sample(loc, scale):
        torch.manual_seed(0)
        return implicit_rsample(D.Normal(loc, scale), (4,))  # torch's own draw moves as the quantile does

    assert gradcheck(sample, (loc, scale))
    assert gradgradcheck(sample, (loc, scale))


def test_sample_shape_that_is_none_is_one_sentence(wrong_sample_shape):
    sample_shape, error, message = wrong_sample_shape
    for draw in (implicit_rsample, monte_carlo_pathwise):
        with pytest.raises(error, match=message):
            draw(torch.distributions.Laplace(0.0, 1.0), sample_shape)


@pytest.mark.parametrize("draw", [implicit_rsample, monte_carlo_pathwise])
@pytest.mark.parametrize(
    ("dist", "given"), [(5, "int"), (None, "NoneType"), (torch.distributions.Laplace, "the class Laplace")]
)
def test_something_else_than_a_distribution_is_named(draw, dist, given):
    with (
        unchecked_annotations(),
        pytest.raises(TypeError, match=rf"dist must be an instance of torch.distributions.Distribution, not {given}"),
    ):
        draw(dist)


def test_number_of_samples_that_is_no_integer_is_named():
    with unchecked_annotations(), pytest.raises(TypeError, match=r"num_samples=2.5 must be an integer, at least 2"):
        monte_carlo_pathwise(torch.distributions.Laplace(0.0, 1.0), num_samples=2.5)
