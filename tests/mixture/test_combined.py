"""The combined estimator of an expectation: unbiased, never much worse than the better of its two parts, honest at its edges."""

import math

import pytest
import torch

from tenfold.mixture import GaussianMixture
from tenfold.mixture.combined import combined_expectation, overlap, pathwise_gradients, pathwise_weight, score_gradients
from tenfold.mixture.pathwise import ESTIMATORS
from tenfold.mixture.probes import place_probes

DOUBLE = torch.float64
FUNCTIONS = {
    "x": (lambda x: x.squeeze(-1), lambda m: m),
    "cos": (lambda x: x.cos().squeeze(-1), lambda m: math.exp(-0.5) * m.cos()),
}


def two_modes(separation, repeats=1, dtype=DOUBLE):
    """``repeats`` copies of two modes of unit deviation, each with logits of its own."""
    logits = torch.zeros(repeats, 2, dtype=dtype, requires_grad=True)
    loc = torch.tensor([[-separation / 2 + 0.3], [separation / 2 + 0.3]], dtype=dtype)
    return GaussianMixture(logits=logits, loc=loc, scale=torch.ones(2, 1, dtype=dtype)), logits


def exact_gradient(name, separation):
    """``pi_k (E_k f - E f)`` with E_k the expectation under component k."""
    means = FUNCTIONS[name][1](torch.tensor([-separation / 2 + 0.3, separation / 2 + 0.3], dtype=DOUBLE))
    return 0.5 * (means - means.mean())


def estimates(name, separation, samples, repeats):
    """Gradients of ``repeats`` independent estimates: combined, pathwise, and score with the leave-one-out baseline."""
    mixture, logits = two_modes(separation, repeats)
    torch.manual_seed(0)
    mixture.expectation(FUNCTIONS[name][0], (samples,)).sum().backward()
    torch.manual_seed(0)
    x = mixture.sample((samples,)).requires_grad_()
    values = FUNCTIONS[name][0](x)
    (slope,) = torch.autograd.grad(values.sum(), x)
    x, pi = x.detach(), mixture.probs.detach()
    pathwise = pathwise_gradients(slope, x, logits.detach(), mixture.loc, mixture.scale)
    score = score_gradients(values.detach(), mixture.responsibilities(x).detach(), pi)
    return logits.grad, pathwise.mean(0), score.mean(0)


def spread(gradient):
    return float(gradient.var(0).sum())


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("separation", "samples"), [(0.5, 2), (2, 4), (4, 5), (6, 4), (1, 64), (4, 64), (8, 64)])
def test_logits_gradient_is_unbiased(name, separation, samples):
    repeats = 10_000 if samples < 64 else 1000
    combined, _, _ = estimates(name, separation, samples, repeats)
    error = combined.std(0) / repeats**0.5
    z = (combined.mean(0) - exact_gradient(name, separation)) / error
    assert z.abs().max() < 4.5


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("samples", [64, 1000])
@pytest.mark.parametrize("separation", [0.5, 1, 2, 4, 6, 8, 10])
def test_variance_is_never_much_above_the_better_part(name, samples, separation):
    combined, pathwise, score = estimates(name, separation, samples, 2000 if samples == 64 else 300)
    better = min(spread(pathwise), spread(score))
    assert spread(combined) <= 1.1 * better
    if name == "x" and samples == 1000 and 1 <= separation <= 4:
        assert 5 * spread(combined) <= better


@pytest.mark.parametrize("weights", [(0.9, 0.1), (0.98, 0.02)])
def test_samples_without_one_of_the_rare_mode_do_not_make_it_trust_the_pathwise_gradient(weights):
    # with modes 10 apart only the score is of use; most sets of 16 samples hold no sample of the second mode
    logits = torch.tensor(weights, dtype=DOUBLE).log().expand(4000, 2).clone().requires_grad_()
    loc = torch.tensor([[-4.7], [5.3]], dtype=DOUBLE)
    m = GaussianMixture(logits=logits, loc=loc, scale=torch.ones(2, 1, dtype=DOUBLE))
    torch.manual_seed(0)
    m.expectation(FUNCTIONS["cos"][0], (16,)).sum().backward()
    torch.manual_seed(0)
    x = m.sample((16,))
    score = score_gradients(FUNCTIONS["cos"][0](x), m.responsibilities(x).detach(), m.probs.detach()).mean(0)
    assert spread(logits.grad) <= 1.1 * spread(score)


WIDER_FUNCTIONS = {
    "x": (lambda x: x, torch.ones_like),
    "cos": (torch.cos, lambda x: -x.sin()),
    "square": (torch.square, lambda x: 2 * x),
    "cube": (lambda x: x**3, lambda x: 3 * x**2),
    "step of width 1/5": (lambda x: torch.sigmoid(5 * x), lambda x: 5 * torch.sigmoid(5 * x) * torch.sigmoid(-5 * x)),
    "sin 3x": (lambda x: (3 * x).sin(), lambda x: 3 * (3 * x).cos()),
    "bump in the gap": (lambda x: (-2 * x**2).exp(), lambda x: -4 * x * (-2 * x**2).exp()),
}


def exact_variances(f, slope, weight, separation, samples):
    """``samples`` times the variance of the first logit's mean gradient, by quadrature: score, pathwise, covariance."""
    x = torch.linspace(-separation / 2 - 9, separation / 2 + 9, 40_001, dtype=DOUBLE)
    normal = torch.distributions.Normal(torch.tensor([-separation / 2, separation / 2], dtype=DOUBLE), 1.0)
    density = normal.log_prob(x.unsqueeze(-1)).exp() * torch.tensor([weight, 1 - weight], dtype=DOUBLE)
    p, r = density.sum(-1), density[:, 0] / density.sum(-1)

    def mean(h):
        return (h * p).sum() * (x[1] - x[0])

    # Eq. 6 for two modes, on the side where the distribution functions do not cancel
    side = torch.where(x < 0, 1.0, -1.0).to(DOUBLE)
    phi = torch.special.ndtr(side.unsqueeze(-1) * (x.unsqueeze(-1) - normal.loc))
    pathwise = -slope(x) * weight * (1 - weight) * side * (phi[:, 0] - phi[:, 1]) / p
    centred = f(x) - mean(f(x))
    score = centred * (r - weight)
    gradient = mean(score)
    of_baseline = (gradient**2 + mean(centred**2) * mean((r - weight) ** 2)) / (samples - 1)  # a U-statistic's
    torch.testing.assert_close(mean(pathwise), gradient, rtol=1e-6, atol=1e-9)
    return (
        mean(score**2) - gradient**2 + of_baseline,
        mean(pathwise**2) - gradient**2,
        mean(score * pathwise) - gradient**2,
    )


@pytest.mark.parametrize("name", WIDER_FUNCTIONS)
@pytest.mark.parametrize("samples", [16, 64, 1000])
@pytest.mark.parametrize("weight", [0.5, 0.8, 0.95, 0.99])
def test_weight_of_every_setting_is_as_good_as_the_better_part(name, samples, weight):
    f, slope = WIDER_FUNCTIONS[name]
    separation = torch.tensor([0.5, 1, 2, 3, 4, 5, 6, 8, 10], dtype=DOUBLE)
    loc = torch.stack([-separation / 2, separation / 2], -1).unsqueeze(-1)
    logits = torch.tensor([weight, 1 - weight], dtype=DOUBLE).log().expand(9, 2)
    chosen = pathwise_weight(lambda x: f(x.squeeze(-1)), torch.Size([9]), logits, loc, torch.ones_like(loc), samples)
    for distance, part in zip(separation.tolist(), chosen.squeeze(-1), strict=True):
        of_score, of_pathwise, covariance = exact_variances(f, slope, weight, distance, samples)
        combined = part**2 * of_pathwise + (1 - part) ** 2 * of_score + 2 * part * (1 - part) * covariance
        assert combined <= 1.02 * min(of_score, of_pathwise)


def test_measured_variance_is_the_one_by_quadrature():
    # the rare mode has 5 % and the samples are few: a weight estimated from them was up to ten times worse
    weight, separation, samples, repeats = 0.95, 3.0, 16, 20_000
    logits = torch.tensor([weight, 1 - weight], dtype=DOUBLE).log().expand(repeats, 2).clone().requires_grad_()
    loc = torch.tensor([[-separation / 2], [separation / 2]], dtype=DOUBLE)
    mixture = GaussianMixture(logits=logits, loc=loc, scale=torch.ones(2, 1, dtype=DOUBLE))
    f, slope = WIDER_FUNCTIONS["x"]
    mixture.expectation(lambda x: f(x.squeeze(-1)), (samples,)).sum().backward()
    of_score, of_pathwise, _ = exact_variances(f, slope, weight, separation, samples)
    assert samples * logits.grad[:, 0].var() <= 1.05 * min(of_score, of_pathwise)


def test_weight_does_not_depend_on_the_samples():
    mixture, logits = two_modes(2.0)
    theta = (mixture.logits, mixture.loc, mixture.scale)
    f = FUNCTIONS["cos"][0]
    weight = pathwise_weight(f, torch.Size([1]), *(t.detach() for t in theta), 40)
    assert 0 < weight < 1
    for _ in range(2):
        x = mixture.sample((40,))
        logits.grad = None
        combined_expectation(f, x, *theta).sum().backward()
        moved = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(f(moved).sum(), moved)
        pathwise = pathwise_gradients(slope, x, *(t.detach() for t in theta))
        score = score_gradients(f(x), mixture.responsibilities(x).detach(), mixture.probs.detach())
        expected = (weight * pathwise + (1 - weight) * score).mean(0)
        torch.testing.assert_close(logits.grad, expected, rtol=1e-12, atol=1e-14)


def test_function_that_is_no_number_in_the_gap_still_has_a_gradient():
    mixture, logits = two_modes(12.0)
    mixture.expectation(lambda x: (x.squeeze(-1).abs() - 1).sqrt(), (50,)).sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() > 0


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("components", "dims"), [(2, 1), (3, 1), (2, 2), (3, 3)])
def test_probes_average_to_the_moments_of_the_mixture(components, dims, full):
    loc = 2 * torch.randn(4, components, dims, dtype=DOUBLE)
    scale = 0.5 + torch.rand(4, components, dims, dtype=DOUBLE)
    name = "scale_tril" if full else "scale"
    if full:
        scale = torch.diag_embed(scale) + 0.3 * torch.randn(4, components, dims, dims, dtype=DOUBLE).tril(-1)
    mixture = GaussianMixture(logits=torch.randn(4, components, dtype=DOUBLE), loc=loc, **{name: scale})
    y, weight, responsibility = place_probes(mixture.logits, loc, scale, 4096)
    torch.testing.assert_close(responsibility, mixture.responsibilities(y), rtol=1e-6, atol=1e-12)
    weight = weight.unsqueeze(-1)
    deviation = mixture.variance.sqrt()
    torch.testing.assert_close(weight.sum(0), torch.ones(4, 1, dtype=DOUBLE))
    assert (((weight * y).sum(0) - mixture.mean) / deviation).abs().max() < 0.05
    assert ((weight * (y - mixture.mean) ** 2).sum(0) / mixture.variance - 1).abs().max() < 0.1


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("full", [False, True])
def test_value_and_every_other_gradient_are_those_of_rsample(estimator, full):
    logits, loc = torch.randn(3, 4, dtype=DOUBLE), torch.randn(3, 4, 2, dtype=DOUBLE)
    spread_ = torch.rand(3, 4, 2, dtype=DOUBLE) + 0.5
    name = "scale_tril" if full else "scale"
    if full:
        spread_ = torch.diag_embed(spread_) + torch.randn(3, 4, 2, 2, dtype=DOUBLE).tril(-1)
    results = []
    for combined in (True, False):
        theta = [p.clone().requires_grad_() for p in (logits, loc, spread_)]
        weight = torch.tensor(1.7, dtype=DOUBLE, requires_grad=True)
        mixture = GaussianMixture(logits=theta[0], loc=theta[1], **{name: theta[2]}, estimator=estimator)
        generator = torch.Generator().manual_seed(5)

        def f(x, weight=weight):
            return (weight * x).cos().sum(-1)

        if combined:
            value = mixture.expectation(f, (10,), generator=generator)
        else:
            value = f(mixture.rsample((10,), generator=generator)).mean(0)
        assert value.shape == (3,)
        value.sum().backward()
        results.append((value, theta[1].grad, theta[2].grad, weight.grad))
        assert theta[0].grad.isfinite().all()
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


def test_full_covariance_is_unbiased_for_a_product():
    # E x_1 x_2 of component k is its covariance entry plus the product of its means
    logits = torch.zeros(4000, 2, dtype=DOUBLE, requires_grad=True)
    loc = torch.tensor([[0.5, 0.0], [-0.5, 1.0]], dtype=DOUBLE)
    scale_tril = torch.tensor([[[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [-0.5, 1.0]]], dtype=DOUBLE)
    mixture = GaussianMixture(logits=logits, loc=loc, scale_tril=scale_tril)
    mixture.expectation(lambda x: x.prod(-1), (32,)).sum().backward()
    moments = torch.tensor([0.6, -1.0], dtype=DOUBLE)
    exact = 0.5 * (moments - moments.mean())
    z = (logits.grad.mean(0) - exact) / (logits.grad.std(0) / 4000**0.5)
    assert z.abs().max() < 4.5


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x > 0).squeeze(-1),
        lambda x: (x > 0).to(x.dtype).squeeze(-1),
        lambda x: ((x.sign() + 1) / 2).squeeze(-1),
        lambda x: (x.detach() > 0).squeeze(-1).double(),
    ],
)
def test_step_functions_get_the_score_gradient_not_zero(f):
    # P(x > 0): the derivative that autograd finds is 0 or absent, and the pathwise gradient with it
    mixture, logits = two_modes(1.0, repeats=200)
    mixture.expectation(f, (100,)).sum().backward()
    above = 0.5 * (1 + torch.erf(mixture.loc[0].squeeze(-1) / 2**0.5))
    exact = 0.5 * (above - above.mean())
    z = (logits.grad.mean(0) - exact) / (logits.grad.std(0) / 200**0.5)
    assert z.abs().max() < 4.5


def test_constant_functions_have_gradient_zero():
    for f in (lambda x: torch.ones(x.shape[:-1]), lambda x: 0 * x.sum(-1), lambda x: torch.full(x.shape[:-1], 3)):
        mixture, logits = two_modes(2.0)
        value = mixture.expectation(f, (10,))
        value.sum().backward()
        assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_parameters_of_a_function_that_ignores_x_get_their_gradient():
    mixture, logits = two_modes(2.0)
    c = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    mixture.expectation(lambda x: (c**2).expand(x.shape[:-1]), (10,)).sum().backward()
    assert c.grad == 4
    assert logits.grad.abs().max() == 0


def test_function_that_returns_another_shape_is_named():
    mixture, _ = two_modes(1.0, repeats=3)
    with pytest.raises(
        ValueError, match=r"f returned the shape \(8, 3, 1\) for samples \(8, 3, 1\); one value a sample"
    ):
        mixture.expectation(lambda x: x, (8,))
    with pytest.raises(ValueError, match=r"f returned the shape \(\)"):
        mixture.expectation(lambda x: x.sum(), (8,))


@pytest.mark.parametrize("sample_shape", [(), (1,), (0,), (1, 1)])
def test_fewer_than_two_samples_are_refused(sample_shape):
    mixture, _ = two_modes(1.0)
    with pytest.raises(ValueError, match=r"sample_shape holds \d samples; at least 2 are needed, for the baseline"):
        mixture.expectation(FUNCTIONS["x"][0], sample_shape)


def test_second_derivative_is_refused():
    loc = torch.tensor([[-1.0], [1.0]], requires_grad=True)
    logits = torch.zeros(2, requires_grad=True)
    mixture = GaussianMixture(logits=logits, loc=loc, scale=torch.ones(2, 1))
    value = mixture.expectation(FUNCTIONS["cos"][0], (8,))
    first = torch.autograd.grad(value, (logits, loc), create_graph=True)
    for gradient in first:  # the upstream gradient is the constant 1, where once_differentiable says nothing
        with pytest.raises(RuntimeError, match=r"expectation has no second derivative; f\(mixture.rsample\(..\)\) has"):
            gradient.sum().backward(retain_graph=True)


def test_one_component_has_a_logits_gradient_of_zero():
    logits = torch.zeros(1, requires_grad=True)
    loc = torch.zeros(1, 2, requires_grad=True)
    GaussianMixture(logits=logits, loc=loc, scale=torch.ones(1, 2)).expectation(lambda x: x.exp().sum(-1)).backward()
    assert logits.grad.abs().max() < 1e-6
    assert loc.grad.abs().min() > 0


def test_weights_of_exactly_zero_get_gradient_zero():
    probs = torch.tensor([0.0, 0.5, 0.5], requires_grad=True)
    mixture = GaussianMixture(probs=probs, loc=torch.tensor([[5.0], [-1.0], [1.0]]), scale=torch.ones(3, 1))
    mixture.expectation(lambda x: x.squeeze(-1)).backward()
    assert probs.grad[0] == 0
    assert probs.grad[1] < 0 < probs.grad[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_many_components_in_every_dtype(dtype):
    logits = torch.zeros(5, 64, dtype=dtype, requires_grad=True)
    mixture = GaussianMixture(logits=logits, loc=torch.randn(64, 3, dtype=dtype), scale=torch.ones(64, 3, dtype=dtype))
    value = mixture.expectation(lambda x: x.square().sum(-1), (32,))
    value.sum().backward()
    assert value.dtype == dtype
    assert logits.grad.dtype == dtype
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() > 0


def test_nothing_is_recorded_without_gradients():
    mixture, _ = two_modes(1.0)
    seen = []

    def f(x):
        seen.append(x.requires_grad)
        return x.squeeze(-1)

    with torch.no_grad():
        assert not mixture.expectation(f, (8,)).requires_grad
    with torch.inference_mode():
        assert not mixture.expectation(f, (8,)).requires_grad
    constant = GaussianMixture(logits=torch.zeros(2), loc=torch.zeros(2, 1), scale=torch.ones(2, 1))
    assert not constant.expectation(f, (8,)).requires_grad
    assert seen == [False, False, False]


def test_samples_of_several_dimensions_and_empty_batches_are_allowed():
    mixture, logits = two_modes(1.0, repeats=3)
    value = mixture.expectation(FUNCTIONS["x"][0], (2, 5))
    assert value.shape == (3,)
    empty = GaussianMixture(
        logits=logits[:0], loc=torch.zeros(2, 1, dtype=DOUBLE), scale=torch.ones(2, 1, dtype=DOUBLE)
    )
    assert empty.expectation(FUNCTIONS["x"][0], (6,)).shape == (0,)


def test_same_generator_gives_the_same_estimate():
    gradients = []
    for _ in range(2):
        mixture, logits = two_modes(2.0)
        mixture.expectation(FUNCTIONS["cos"][0], (20,), generator=torch.Generator().manual_seed(3)).sum().backward()
        gradients.append(logits.grad)
    assert torch.equal(*gradients)


def uniform(count):
    return torch.full((count, 1, 1), 1 / count)


@pytest.mark.parametrize("components", [1, 2, 3, 7, 64])
def test_overlap_is_one_for_equal_components_and_zero_for_modes_apart(components):
    pi = torch.full((1, components), 1 / components)
    torch.testing.assert_close(overlap(pi.expand(20, 1, components), pi, uniform(20)), torch.ones(1))
    if components > 1:
        apart = torch.eye(components).repeat(3, 1).unsqueeze(1)
        assert 0 <= overlap(apart, pi, uniform(len(apart))) < 1e-6
        assert 0 <= overlap(apart[:1], pi, uniform(1)) < 1e-6  # samples of one mode alone say nothing of the others
        unused = torch.cat([apart, torch.zeros(len(apart), 1, 1)], -1)
        assert 0 <= overlap(unused, torch.cat([pi, torch.zeros(1, 1)], -1), uniform(len(unused))) < 1e-6


def test_overlap_of_two_components_is_their_shared_responsibility():
    r = torch.rand(50, 4, 1, dtype=DOUBLE)
    r = torch.cat([r, 1 - r], -1)
    pi = torch.softmax(torch.randn(4, 2, dtype=DOUBLE), -1)
    weight = torch.rand(50, 4, 1, dtype=DOUBLE)
    weight = weight / weight.sum(0)
    expected = ((weight.squeeze(-1) * r.prod(-1)).sum(0) / pi.prod(-1)).clamp(max=1)
    torch.testing.assert_close(overlap(r, pi, weight), expected, rtol=1e-10, atol=0)
