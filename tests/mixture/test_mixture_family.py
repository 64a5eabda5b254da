"""PathwiseMixture takes the place of torch's MixtureSameFamily, with samples that carry gradients."""

import copy

import pytest
import torch
import torch.distributions as D  # noqa: N812
from torch.autograd import grad

from tenfold.mixture import GaussianMixture, PathwiseMixture
from tenfold.mixture.pathwise import ESTIMATORS
from type_checking import unchecked_annotations

DOUBLE = torch.float64


def positive(*shape):
    return torch.rand(*shape, dtype=DOUBLE) + 0.5


def normal(*shape):
    return torch.randn(*shape, dtype=DOUBLE)


def covariance(*shape):
    root = normal(*shape, shape[-1])
    return root @ root.mT + torch.eye(shape[-1], dtype=DOUBLE)


# what makes the components of batch shape (*batch, K), and the event shape
COMPONENTS = {
    "Normal": (lambda *s: D.Normal(normal(*s), positive(*s)), ()),
    "Independent Normal": (lambda *s: D.Independent(D.Normal(normal(*s, 2), positive(*s, 2)), 1), (2,)),
    "Independent Normal of nothing": (lambda *s: D.Independent(D.Normal(normal(*s), positive(*s)), 0), ()),
    "MultivariateNormal": (lambda *s: D.MultivariateNormal(normal(*s, 2), covariance(*s, 2)), (2,)),
    "MultivariateNormal precision": (
        lambda *s: D.MultivariateNormal(normal(*s, 2), precision_matrix=covariance(*s, 2)),
        (2,),
    ),
    "Laplace": (lambda *s: D.Laplace(normal(*s), positive(*s)), ()),
    "Cauchy": (lambda *s: D.Cauchy(normal(*s), positive(*s)), ()),
    "Gumbel": (lambda *s: D.Gumbel(normal(*s), positive(*s)), ()),
    "Exponential": (lambda *s: D.Exponential(positive(*s)), ()),
    "LogNormal": (lambda *s: D.LogNormal(normal(*s), positive(*s)), ()),
    "Weibull": (lambda *s: D.Weibull(positive(*s), positive(*s)), ()),
    "Kumaraswamy": (lambda *s: D.Kumaraswamy(1 + positive(*s), 1 + positive(*s)), ()),
}
REFUSED = {
    "Gamma": lambda *s: D.Gamma(positive(*s), positive(*s)),
    "Beta": lambda *s: D.Beta(positive(*s), positive(*s)),
    "StudentT": lambda *s: D.StudentT(2 + positive(*s)),
    "Poisson": lambda *s: D.Poisson(positive(*s)),
    "Bernoulli": lambda *s: D.Bernoulli(logits=normal(*s)),
    "Dirichlet": lambda *s: D.Dirichlet(positive(*s, 3)),
    "Independent Laplace": lambda *s: D.Independent(D.Laplace(normal(*s, 2), positive(*s, 2)), 1),
    "Independent Normal of matrices": lambda *s: D.Independent(D.Normal(normal(*s, 2, 2), positive(*s, 2, 2)), 2),
    "LowRankMultivariateNormal": lambda *s: D.LowRankMultivariateNormal(
        normal(*s, 2), normal(*s, 2, 1), positive(*s, 2)
    ),
}


def both(make, *batch, components=3, **options):
    torch.manual_seed(1)
    logits = normal(*batch, components).requires_grad_()
    component = make(*batch, components)
    ours = PathwiseMixture(D.Categorical(logits=logits), component, **options)
    return ours, D.MixtureSameFamily(D.Categorical(logits=logits), component), logits


@pytest.mark.parametrize("name", COMPONENTS)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_everything_torchs_class_computes_is_the_same(name, batch):
    make, event = COMPONENTS[name]
    ours, peer, _ = both(make, *batch)
    assert isinstance(ours, D.MixtureSameFamily)
    assert (ours.batch_shape, ours.event_shape) == (peer.batch_shape, peer.event_shape) == (batch, event)
    torch.manual_seed(3)
    x = ours.sample((5,))
    torch.manual_seed(3)
    assert torch.equal(x, peer.sample((5,)))
    torch.testing.assert_close(ours.log_prob(x), peer.log_prob(x))
    torch.testing.assert_close(ours.mean, peer.mean, equal_nan=True)
    torch.testing.assert_close(ours.variance, peer.variance, equal_nan=True)
    if not event and "nothing" not in name:
        torch.testing.assert_close(ours.cdf(x), peer.cdf(x), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", COMPONENTS)
@pytest.mark.parametrize("sample_shape", [(), (6,), (2, 3), (0,)])
def test_samples_carry_gradients_to_every_parameter(name, sample_shape):
    # numpyro#2106: has_rsample tells the truth
    make, event = COMPONENTS[name]
    ours, _, logits = both(make, 4)
    assert ours.has_rsample is True
    x = ours.rsample(sample_shape)
    assert x.shape == (*sample_shape, 4, *event)
    x.sum().backward()
    assert logits.grad.shape == (4, 3)
    assert logits.grad.isfinite().all()
    assert (logits.grad.abs().max() > 0) == (x.numel() > 0)


@pytest.mark.parametrize("name", REFUSED)
def test_families_without_a_pathwise_gradient_say_so_before_and_when_asked(name):
    # numpyro#2106
    ours, peer, _ = both(REFUSED[name])
    assert ours.has_rsample is False
    with pytest.raises(NotImplementedError, match=r"is discrete|has no cdf|has event shape"):
        ours.rsample()
    x = ours.sample((2,))
    torch.testing.assert_close(ours.log_prob(x), peer.log_prob(x))


@pytest.mark.parametrize("name", COMPONENTS)
def test_expand_is_the_same_law_over_more_batch_elements(name):
    make, event = COMPONENTS[name]
    ours, _, logits = both(make, 3, estimator="quantile")
    wide = ours.expand((2, 3))
    assert type(wide) is PathwiseMixture
    assert wide.estimator == "quantile"
    assert wide.has_rsample
    x = wide.rsample((5,))
    assert x.shape == (5, 2, 3, *event)
    x.sum().backward()
    assert logits.grad.isfinite().all()
    torch.testing.assert_close(wide.log_prob(x.detach()), ours.log_prob(x.detach()))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", ["Independent Normal", "MultivariateNormal"])
def test_gaussian_components_have_the_gradients_of_the_gaussian_mixture(name, estimator):
    logits, loc = normal(3).requires_grad_(), normal(3, 2).requires_grad_()
    scale = positive(3, 2).requires_grad_()
    matrix = covariance(3, 2).requires_grad_()
    results = []
    for ours in (True, False):
        torch.manual_seed(0)
        if name == "MultivariateNormal":
            component, spread, leaf = D.MultivariateNormal(loc, matrix), {"covariance_matrix": matrix}, matrix
        else:
            component, spread, leaf = D.Independent(D.Normal(loc, scale), 1), {"scale": scale}, scale
        if ours:
            mixture = PathwiseMixture(D.Categorical(logits=logits), component, estimator=estimator)
        else:
            mixture = GaussianMixture(logits=logits, loc=loc, **spread, estimator=estimator)
        results.append(grad(mixture.rsample((10,)).cos().sum(), (logits, loc, leaf)))
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right)


def test_scalar_and_vector_normals_agree():
    logits, loc, scale = (p.requires_grad_() for p in (normal(4, 3), normal(4, 3), positive(4, 3)))
    gradients = []
    for component in (D.Normal(loc, scale), D.Independent(D.Normal(loc.unsqueeze(-1), scale.unsqueeze(-1)), 1)):
        torch.manual_seed(0)
        mixture = PathwiseMixture(D.Categorical(logits=logits), component)
        gradients.append(grad(mixture.rsample((5,)).sin().sum(), (logits, loc, scale)))
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_diagonal_multivariate_normal_is_accepted_as_well_as_independent_normals():
    # tensorflow/probability#1548
    loc, scale, logits = normal(3, 2), positive(3, 2), normal(3).requires_grad_()
    gradients = []
    components = (D.Independent(D.Normal(loc, scale), 1), D.MultivariateNormal(loc, scale_tril=torch.diag_embed(scale)))
    for component in components:
        torch.manual_seed(0)
        gradients += grad(PathwiseMixture(D.Categorical(logits=logits), component).rsample((50,)).cos().sum(), logits)
    torch.testing.assert_close(*gradients)


def test_weights_of_exactly_zero_are_never_drawn_and_get_finite_gradients():
    # numpyro#1870: torch's Categorical clamps probs in its logits
    probs = torch.tensor([0.0, 0.5, 0.5], requires_grad=True)
    loc = torch.tensor([[1e4, 1e4], [-1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    component = D.Independent(D.Normal(loc, torch.ones(3, 2)), 1)
    mixture = PathwiseMixture(D.Categorical(probs=probs), component)
    assert mixture._gaussian.probs[0] == 0
    x = mixture.rsample((1000,))
    assert x.abs().max() < 10
    (x.square().sum() + mixture.log_prob(x).sum()).backward()
    assert loc.grad[0].abs().max() == 0
    assert probs.grad.isfinite().all()


def test_one_component_equals_its_own_reparameterisation():
    for make in (D.Normal, D.Laplace, D.Cauchy, D.Gumbel):
        loc, scale = torch.zeros(1, dtype=DOUBLE).requires_grad_(), torch.full((1,), 2.0, dtype=DOUBLE).requires_grad_()
        x = PathwiseMixture(D.Categorical(logits=torch.zeros(1, dtype=DOUBLE)), make(loc, scale)).rsample((9,))
        by_loc, by_scale = grad(x.sum(), (loc, scale))
        torch.testing.assert_close(by_loc, torch.full((1,), 9.0, dtype=DOUBLE))
        torch.testing.assert_close(by_scale, (x.detach().sum() / 2).reshape(1))


@pytest.mark.parametrize("name", ["Laplace", "Normal"])
def test_gradient_of_the_mean_is_unbiased(name):
    make, _ = COMPONENTS[name]
    logits = normal(3).expand(400, 3).clone().requires_grad_()
    component = make(3).expand((400, 3))
    x = PathwiseMixture(D.Categorical(logits=logits), component).rsample((200,))
    (estimates,) = grad(x.cos().sum(), logits)
    exact = logits[:1].detach().clone().requires_grad_()
    points = component.expand((400, 3)).sample((5000,))[:, 0]  # E cos x of each component by itself, to 3 digits
    value = (torch.softmax(exact, -1) * points.cos().mean(0)).sum()
    (right,) = grad(value, exact)
    error = estimates.std(0) / 200 / 400**0.5
    assert ((estimates.mean(0) / 200 - right).abs() < 4.5 * error + 0.02).all()


def test_batch_shapes_are_broadcast():
    # torch's class samples wrongly, or not at all, unless both shapes agree
    for mixture_batch, component_batch in [((), (4,)), ((4,), (1,)), ((3, 1), (4,)), ((4,), ())]:
        for make in (COMPONENTS["Laplace"][0], COMPONENTS["Normal"][0]):
            mixture = PathwiseMixture(D.Categorical(logits=normal(*mixture_batch, 2)), make(*component_batch, 2))
            batch = torch.broadcast_shapes(mixture_batch, component_batch)
            assert mixture.batch_shape == batch
            assert mixture.sample((5,)).shape == mixture.rsample((5,)).shape == (5, *batch)
            assert mixture.log_prob(mixture.sample()).shape == mixture.mean.shape == batch


def test_components_with_supports_of_their_own_are_scored_where_they_lie():
    # tensorflow/probability#1377, #1413
    high = torch.tensor([1.0, 3.0], requires_grad=True)
    mixture = PathwiseMixture(D.Categorical(torch.ones(2)), D.Uniform(torch.tensor([0.0, 2.0]), high))
    x = torch.tensor([0.5, 2.5, 0.25])
    torch.testing.assert_close(mixture.log_prob(x).exp(), torch.full((3,), 0.5))
    torch.testing.assert_close(mixture.cdf(x), torch.tensor([0.25, 0.75, 0.125]))
    mixture.log_prob(x).sum().backward()
    torch.testing.assert_close(high.grad, torch.tensor([-2.0, -1.0]))
    assert mixture.has_rsample
    assert mixture.rsample((10,)).isfinite().all()
    with pytest.raises(ValueError, match="to be within the support"):
        mixture.log_prob(torch.tensor(1.5))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"mixture_distribution component` \(2\) does not equal"):
        PathwiseMixture(D.Categorical(torch.ones(2)), D.Normal(torch.zeros(3), 1.0))
    with pytest.raises(ValueError, match=r"batch shape \(4,\) and component_distribution \(5,\) before its last axis"):
        PathwiseMixture(D.Categorical(torch.ones(4, 3)), D.Normal(torch.zeros(5, 3), 1.0))
    with pytest.raises(
        ValueError, match=r"component_distribution has batch shape \(\); its last batch axis must hold the K"
    ):
        PathwiseMixture(D.Categorical(torch.ones(4, 3)), D.Normal(0.0, 1.0))
    with (
        unchecked_annotations(),
        pytest.raises(ValueError, match="estimator='score' is not one of 'responsibility', 'quantile'"),
    ):
        PathwiseMixture(D.Categorical(torch.ones(3)), D.Normal(torch.zeros(3), 1.0), estimator="score")
    mixture = PathwiseMixture(
        *(lambda c: (c.mixture_distribution, c.component_distribution))(both(COMPONENTS["Laplace"][0])[0])
    )
    with pytest.raises(ValueError, match="to be within the support"):
        mixture.log_prob(torch.tensor(torch.nan, dtype=DOUBLE))
    vectors, _, _ = both(COMPONENTS["MultivariateNormal"][0])
    with pytest.raises(NotImplementedError, match=r"cdf needs scalar components; these have event shape \(2,\)"):
        vectors.cdf(torch.zeros(2, dtype=DOUBLE))


def test_repr_and_copies_keep_the_class():
    mixture = PathwiseMixture(
        D.Categorical(torch.ones(3)), D.Normal(torch.zeros(3), torch.ones(3)), estimator="quantile"
    )
    assert repr(mixture).startswith("PathwiseMixture(\n  Categorical(")
    other = copy.deepcopy(mixture)
    assert type(other) is PathwiseMixture
    assert other.estimator == "quantile"
    torch.manual_seed(0)
    one = mixture.rsample((3,))
    torch.manual_seed(0)
    assert torch.equal(one, other.rsample((3,)))


def test_sample_shape_that_is_none_is_one_sentence(wrong_sample_shape):
    sample_shape, error, message = wrong_sample_shape
    weights = torch.distributions.Categorical(torch.ones(2))
    for family in (torch.distributions.Normal, torch.distributions.Laplace):
        mixture = PathwiseMixture(weights, family(torch.zeros(2), torch.ones(2)))
        for call in (mixture.sample, mixture.rsample):
            with pytest.raises(error, match=message):
                call(sample_shape)


def test_what_has_no_closed_form_says_so():
    for family in (torch.distributions.Normal, torch.distributions.Laplace):
        mixture = PathwiseMixture(torch.distributions.Categorical(torch.ones(2)), family(torch.zeros(2), torch.ones(2)))
        with pytest.raises(
            NotImplementedError, match=r"the entropy of a mixture has no closed form; estimate it by -mixture"
        ):
            mixture.entropy()
        with pytest.raises(NotImplementedError, match=r"no closed form; GaussianMixture has icdf where D = 1"):
            mixture.icdf(torch.tensor(0.5))


def test_vectors_of_another_family_are_not_sent_to_where_they_come_from():
    components = torch.distributions.Independent(torch.distributions.Laplace(torch.zeros(2, 3), torch.ones(2, 3)), 1)
    mixture = PathwiseMixture(torch.distributions.Categorical(torch.ones(2)), components)
    assert not mixture.has_rsample
    message = r"mixture of Laplace components that has event shape \(3,\) .*; vectors need Independent\(Normal"
    with pytest.raises(NotImplementedError, match=message) as raised:
        mixture.rsample()
    assert "PathwiseMixture" not in str(raised.value)
