"""The mixture room beside its peers: right values by formula or 40-digit arithmetic, where the peers' were found wrong."""

import mpmath
import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from tenfold.mixture import GaussianMixture, PathwiseMixture
from tenfold.mixture.pathwise import ESTIMATORS, move_with_parameters

DOUBLE = torch.float64


def at_sample(x, estimator="quantile", dtype=torch.float32):
    logits = torch.zeros(2, dtype=dtype, requires_grad=True)
    loc = torch.tensor([[0.0], [1.0]], dtype=dtype)
    move_with_parameters(
        torch.tensor([x], dtype=dtype), logits, loc, torch.ones(2, 1, dtype=dtype), estimator
    ).backward()
    return logits.grad


@pytest.mark.parametrize("x", [5.0, 6.0, 7.0, 9.0])
def test_upper_tail_in_float32_is_right_where_tensorflow_probability_cancels(x):
    # TensorFlow Probability 0.25.0 in float32: -0.11572 at 5, -0.0625 and +0.125 at 6, 0 from 7 on
    with mpmath.workdps(40):  # -(dF/da)/f for two unit normals at 0 and 1 with equal weights
        density = (mpmath.npdf(x) + mpmath.npdf(x - 1)) / 2
        upper = [mpmath.ncdf(-x), mpmath.ncdf(1 - x)]
        exact = float((upper[0] - sum(upper) / 2) / 2 / density)
    gradient = at_sample(x)
    torch.testing.assert_close(gradient, torch.tensor([exact, -exact]), rtol=2e-5, atol=0)


@pytest.mark.parametrize("offset", [0.0, 1.0, 2.0, 3.0])
def test_gradient_that_is_zero_by_symmetry_stays_zero_wherever_the_means_lie(offset):
    # Pyro 1.9.2, means +-m moved aside by 0, 1, 2, 3: -0.0001, +0.024, -0.0016, -0.118 for an exact gradient of 0
    repeats = 200
    logits = torch.zeros(repeats, 2, dtype=DOUBLE, requires_grad=True)
    aside = offset * torch.tensor([-0.6, 0.8], dtype=DOUBLE)
    loc = torch.stack([torch.tensor([0.8, 0.6], dtype=DOUBLE), torch.tensor([-0.8, -0.6], dtype=DOUBLE)]) + aside
    x = GaussianMixture(logits=logits, loc=loc, scale=torch.ones(2, 2, dtype=DOUBLE)).rsample((500,))
    # f depends on the distance to the middle alone, so that both components have the same expectation
    (-(x - aside).square().sum(-1)).exp().mean(0).sum().backward()
    z = logits.grad.mean(0) / (logits.grad.std(0) / repeats**0.5)
    assert z.abs().max() < 4.5


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dims", [64, 128, 512, 1000])
def test_gradients_are_finite_in_float32_where_pyro_gives_nan(estimator, dims):
    # Pyro 1.9.2, MixtureOfDiagNormals with K = 4: NaN in all three gradients at these D
    theta = [p.requires_grad_() for p in (torch.randn(4), torch.randn(4, dims), torch.rand(4, dims) + 0.5)]
    x = GaussianMixture(logits=theta[0], loc=theta[1], scale=theta[2], estimator=estimator).rsample((3,))
    x.cos().sum().backward()
    assert all(p.grad.isfinite().all() for p in theta)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_two_equal_means_are_no_special_case(estimator):
    # Pyro 1.9.2: NaN at this usual initialisation
    theta = [p.requires_grad_() for p in (torch.zeros(3), torch.zeros(3, 2), torch.ones(3, 2))]
    GaussianMixture(logits=theta[0], loc=theta[1], scale=theta[2], estimator=estimator).rsample((9,)).sum().backward()
    assert all(p.grad.isfinite().all() for p in theta)


def test_gradient_is_unbiased_in_two_dimensions_with_shared_scale_where_pyro_is_not():
    # E x_1 x_2 = sum_k pi_k loc_k1 loc_k2; the line through the means passes the origin at a distance
    repeats = 400
    logits = torch.tensor([0.3, -0.2], dtype=DOUBLE).expand(repeats, 2).clone().requires_grad_()
    loc = torch.tensor([[1.5, 0.2], [0.3, 1.4]], dtype=DOUBLE)
    x = GaussianMixture(logits=logits, loc=loc, scale=torch.ones(2, 2, dtype=DOUBLE)).rsample((500,))
    x.prod(-1).mean(0).sum().backward()
    pi = torch.softmax(logits[0].detach(), -1)
    products = loc.prod(-1)
    exact = pi * (products - (pi * products).sum())
    z = (logits.grad.mean(0) - exact) / (logits.grad.std(0) / repeats**0.5)
    assert z.abs().max() < 4.5


def test_log_prob_mean_and_variance_equal_torchs_mixture_for_many_shapes():
    for batch, components, dims in (((), 1, 1), ((3,), 4, 2), ((2, 5), 3, 7), ((1,), 16, 3)):
        logits = torch.randn(*batch, components, dtype=DOUBLE)
        loc, scale = torch.randn(2, *batch, components, dims, dtype=DOUBLE)
        scale = scale.exp()
        peer = MixtureSameFamily(Categorical(logits=logits), Independent(Normal(loc, scale), 1))
        for ours in (
            GaussianMixture(logits=logits, loc=loc, scale=scale),
            PathwiseMixture(Categorical(logits=logits), Independent(Normal(loc, scale), 1)),
        ):
            x = peer.sample((6,))
            torch.testing.assert_close(ours.log_prob(x), peer.log_prob(x))
            torch.testing.assert_close(ours.mean, peer.mean)
            torch.testing.assert_close(ours.variance, peer.variance)
