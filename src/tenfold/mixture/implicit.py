r"""Pathwise gradients for any one-dimensional density, through its distribution function or through samples alone.

Graves 2016 (arXiv 1607.05690), Eq. 6: at a fixed uniform ``u = F(x; theta)``,

.. math:: \frac{\partial x}{\partial\theta} = -\frac{1}{f(x)} \frac{\partial F(x; \theta)}{\partial\theta}
          = -\frac{1}{f(x)} \int_{-\infty}^x \frac{\partial f(t)}{\partial\theta} dt.

``implicit_rsample`` uses the first form. The second is an expectation over the density itself,
``E_t[1{t <= x} d log f(t)/d theta]``, which ``monte_carlo_pathwise`` estimates for densities of which only the log
density and a sampler are known. Since ``E d log f = 0``, any number that does not depend on ``t`` may be subtracted
from the indicator; the share of the *other* samples below ``x`` keeps the estimate unbiased and its variance low in both
tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import (
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Kumaraswamy,
    Laplace,
    MixtureSameFamily,
    Normal,
    TransformedDistribution,
    Uniform,
    constraints,
)
from torch.distributions.transforms import SigmoidTransform

from tenfold.mixture.arguments import check_count, sample_size
from tenfold.mixture.pathwise import first_derivative_only
from tenfold.mixture.quantile import normal_cdf

_SQRT_HALF = math.sqrt(0.5)


def newton_attach(
    x: Float[Tensor, "*shape"],
    distribution: Callable[[Tensor], Tensor],
    log_density: Callable[[Tensor], Tensor],
    target: Float[Tensor, "*#shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """The root ``x`` of ``F(x; theta) = target`` as a differentiable function of ``theta`` and of ``target``.

    Two Newton steps from the known root leave its value and carry its derivatives: each step doubles the order up to
    which they are exact, so first, second and third derivatives are right.

    Args:
        x: The root, without gradients.
        distribution: F, or F less a constant.
        log_density: log of |F'|.
        target: The value of F at the root; the value that F has there, held constant, if None.
    """
    root = x.detach()
    for _ in range(2):
        value = distribution(root)
        residual = value - (value.detach() if target is None else target)
        if target is not None:
            residual = residual - residual.detach()  # the root is exact to rounding; only its derivative is wanted
        root = root - residual * torch.exp(-log_density(root))
    return root


def tails(dist: Distribution, x: Float[Tensor, "..."]) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """``(F(x), 1 - F(x))``, each without cancellation in its own tail where the family has a formula for it.

    A point outside of the support has the mass 0 below or above it, so that it may lie in that of another component.

    >>> tails(torch.distributions.Normal(torch.tensor(0.0), 1.0), torch.tensor([-9.0, 9.0]))
    (tensor([1.1286e-19, 1.0000e+00]), tensor([1.0000e+00, 1.1286e-19]))
    """
    if isinstance(dist, MixtureSameFamily):
        weights = dist.mixture_distribution.probs
        lower, upper = tails(dist.component_distribution, x.unsqueeze(-1))
        return (weights * lower).sum(-1), (weights * upper).sum(-1)
    if isinstance(dist, Normal):
        z = (x - dist.loc) / dist.scale
        return normal_cdf(z), normal_cdf(-z)
    if isinstance(dist, HalfNormal):
        z = x.clamp(min=0) / dist.scale
        return torch.erf(z * _SQRT_HALF), 2 * normal_cdf(-z)
    if isinstance(dist, Exponential):
        hazard = dist.rate * x.clamp(min=0)
        return -torch.expm1(-hazard), torch.exp(-hazard)
    if isinstance(dist, Laplace):
        z = (x - dist.loc) / dist.scale
        tail = 0.5 * torch.exp(-z.abs())
        return torch.where(z > 0, 1 - tail, tail), torch.where(z > 0, tail, 1 - tail)
    if isinstance(dist, Cauchy):
        scale = dist.scale.expand_as(x - dist.loc)
        return torch.atan2(scale, dist.loc - x) / torch.pi, torch.atan2(scale, x - dist.loc) / torch.pi
    if isinstance(dist, HalfCauchy):
        scale, x = torch.broadcast_tensors(dist.scale, x.clamp(min=0))
        return 2 * torch.atan2(x, scale) / torch.pi, 2 * torch.atan2(scale, x) / torch.pi
    if isinstance(dist, Gumbel):
        hazard = torch.exp((dist.loc - x) / dist.scale)
        return torch.exp(-hazard), -torch.expm1(-hazard)
    if isinstance(dist, Kumaraswamy):
        log_upper = dist.concentration0 * torch.log1p(-x.pow(dist.concentration1))
        return -torch.expm1(log_upper), torch.exp(log_upper)
    if isinstance(dist, Uniform):
        width = dist.high - dist.low
        return ((x - dist.low) / width).clamp(0, 1), ((dist.high - x) / width).clamp(0, 1)
    if _is_transformed(dist):
        increasing = torch.ones((), dtype=torch.bool, device=x.device)
        for transform in reversed(dist.transforms):
            before, x = x, transform.inv(x)
            increasing = increasing == (torch.as_tensor(transform.sign, device=x.device) > 0)
        lower, upper = tails(dist.base_dist, x)
        if isinstance(dist.base_dist, Uniform) and isinstance(dist.transforms[0].inv, SigmoidTransform):
            # Logistic: the logit of a uniform variable, which has no digits left close to 1.
            upper = (torch.sigmoid(-before) - (1 - dist.base_dist.high)) / (dist.base_dist.high - dist.base_dist.low)
        return torch.where(increasing, lower, upper), torch.where(increasing, upper, lower)
    lower = dist.cdf(x)
    return lower, 1 - lower


def log_density(dist: Distribution, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """``log_prob``, in which a component of a mixture whose support does not hold ``x`` has no density there.

    >>> from torch.distributions import Categorical, MixtureSameFamily, Uniform
    >>> apart = Uniform(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 4.0]))
    >>> log_density(MixtureSameFamily(Categorical(torch.ones(2)), apart), torch.tensor([0.5, 3.0])).exp()
    tensor([0.5000, 0.2500])
    """
    if not isinstance(dist, MixtureSameFamily):
        return dist.log_prob(x)
    component, x = dist.component_distribution, x.unsqueeze(-1)
    inside: Tensor = component.support.check(x)  # type: ignore[union-attr]  # a density has a support
    if bool(inside.all()):
        log_components = log_density(component, x)
    else:  # a point of its own support stands in, so that no derivative is NaN
        log_components = torch.where(
            inside, log_density(component, torch.where(inside, x, component.sample())), -torch.inf
        )
    return torch.logsumexp(torch.log_softmax(dist.mixture_distribution.logits, -1) + log_components, -1)


def implicit_rsample(dist: Distribution, sample_shape: Any = ()) -> Float[Tensor, "..."]:
    """Samples of a one-dimensional density with pathwise gradients in all of its parameters (Eq. 6).

    Args:
        dist: A continuous scalar distribution (``event_shape == ()``) with ``sample``, ``log_prob`` and a ``cdf`` that
            is differentiable in its parameters; mixtures (``MixtureSameFamily``) too.
        sample_shape: Leading shape of independent draws.

    Returns:
        Samples of shape ``sample_shape + batch_shape``, with derivatives up to the third order.

    Raises:
        NotImplementedError: A discrete or multivariate distribution, or one without a differentiable cdf
            (``monte_carlo_pathwise`` needs none).

    >>> loc = torch.tensor(0.5, requires_grad=True)
    >>> implicit_rsample(torch.distributions.Laplace(loc, 2.0)).backward()
    >>> loc.grad  # a location moves its samples one to one
    tensor(1.)
    """
    shape = sample_size(sample_shape)
    _require_scalar_density(dist)
    if not has_differentiable_cdf(dist):
        raise NotImplementedError(
            f"{_describe(dist)} has no cdf that torch can differentiate; "
            "monte_carlo_pathwise needs only log_prob and sample"
        )
    x = dist.sample(shape)
    with torch.no_grad():
        lower, upper = tails(dist, x)
    above = lower > upper

    def mass(t: Tensor) -> Tensor:
        """F(t) or F(t) - 1, whichever is smaller: neither cancels in its own tail."""
        lower, upper = tails(dist, t)
        return torch.where(above, -upper, lower)

    return newton_attach(x, mass, lambda t: log_density(dist, t))


def monte_carlo_pathwise(dist: Distribution, sample_shape: Any = (), *, num_samples: int = 100) -> Float[Tensor, "..."]:
    """Samples whose pathwise gradient is itself estimated from samples: needs only ``log_prob`` and ``sample``.

    Unbiased for every ``num_samples >= 2``; its error falls as 1/sqrt(num_samples). First derivatives only.

    Args:
        dist: A continuous scalar distribution (``event_shape == ()``).
        sample_shape: Leading shape of independent draws.
        num_samples: Samples M that estimate the integral, shared by all draws of a batch element.

    Raises:
        ValueError: ``num_samples`` below 2.
        NotImplementedError: A discrete or multivariate distribution, or one whose support moves with a parameter that
            requires a gradient: its log density does not know of the edge.

    >>> scale = torch.tensor(2.0, requires_grad=True)
    >>> x = monte_carlo_pathwise(torch.distributions.Normal(0.0, scale), num_samples=10_000)
    >>> x.backward()
    >>> bool((scale.grad - x.detach() / 2).abs() < 0.2)  # exactly z for a normal
    True
    """
    shape = sample_size(sample_shape)
    _require_scalar_density(dist)
    if _support_moves(dist.support):
        raise NotImplementedError(
            f"the support of {_describe(dist)} moves with its parameters, which the log density does not show; "
            "use implicit_rsample"
        )
    check_count("num_samples", num_samples, least=2)
    x = dist.sample(shape)
    t = dist.sample(torch.Size((num_samples,)))
    density = dist.log_prob(x).detach().exp()
    # sum_m (1{t_m <= x} - share of the others below x) log f(t_m), all draws of a batch element at once
    flat_x = x.reshape(shape.numel(), *dist.batch_shape)
    below = (t.unsqueeze(1) <= flat_x.unsqueeze(0)).to(x.dtype)
    others = (below.sum(0, keepdim=True) - below) / (num_samples - 1)
    integral = ((below - others) * dist.log_prob(t).unsqueeze(1)).mean(0).reshape(x.shape)
    moved: Tensor = _AttachFirstDerivative.apply(x, -integral / density)
    return moved


class _AttachFirstDerivative(torch.autograd.Function):
    """The value of the first argument with the derivative of the second; a second derivative is refused, not wrong."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, carrier: Tensor) -> Tensor:
        ctx.save_for_backward(carrier)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        message = "monte_carlo_pathwise has no second derivative: the samples of the integral would have to move, too"
        (carrier,) = ctx.saved_tensors
        return None, first_derivative_only(g, carrier, message)


def has_differentiable_cdf(dist: Distribution) -> bool:
    """Whether the family has a cdf which torch can differentiate in all parameters."""
    if isinstance(dist, MixtureSameFamily):
        return has_differentiable_cdf(dist.component_distribution)
    if _is_transformed(dist):
        return all(t.bijective for t in dist.transforms) and has_differentiable_cdf(dist.base_dist)
    # torch's incomplete gamma function has no derivative in its first argument; Chi2 is a Gamma.
    return not (_is_discrete(dist) or isinstance(dist, Gamma) or _overrides_nothing(dist, "cdf"))


def _is_transformed(dist: Distribution) -> TypeGuard[TransformedDistribution]:
    """Whether torch computes the cdf by inverting transforms."""
    return isinstance(dist, TransformedDistribution) and type(dist).cdf is TransformedDistribution.cdf


def _support_moves(support: object) -> bool:
    return any(
        _support_moves(bound)
        if isinstance(bound, constraints.Constraint)
        else isinstance(bound, Tensor) and bound.requires_grad
        for bound in vars(support).values()
    )


def _overrides_nothing(dist: Distribution, method: str) -> bool:
    return getattr(type(dist), method) is getattr(Distribution, method)


def _describe(dist: Distribution) -> str:
    if isinstance(dist, MixtureSameFamily):
        return f"a mixture of {_describe(dist.component_distribution)}"
    return type(dist).__name__


def _require_scalar_density(dist: Any) -> None:
    if not isinstance(dist, Distribution):
        given = f"the class {dist.__name__}" if isinstance(dist, type) else type(dist).__name__
        raise TypeError(f"dist must be an instance of torch.distributions.Distribution, not {given}")
    if len(dist.event_shape) != 0:
        raise NotImplementedError(
            f"{_describe(dist)} has event shape {tuple(dist.event_shape)}; only scalar densities (event shape ()) are "
            "supported: vectors of Gaussians are drawn by GaussianMixture"
        )
    if _is_discrete(dist):
        raise NotImplementedError(f"{_describe(dist)} is discrete: its samples have no pathwise gradient")


def _is_discrete(dist: Distribution) -> bool:
    try:
        return bool(dist.support.is_discrete)  # type: ignore[union-attr]  # None raises NotImplementedError in torch
    except NotImplementedError:
        return False
