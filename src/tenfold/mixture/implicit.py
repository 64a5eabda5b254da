r"""Pathwise gradients for any one-dimensional density, through its distribution function or through samples alone.

Graves 2016 (arXiv 1607.05690), Eq. 6: at a fixed uniform ``u = F(x; theta)``,

.. math:: \frac{\partial x}{\partial\theta} = -\frac{1}{f(x)} \frac{\partial F(x; \theta)}{\partial\theta}
          = -\frac{1}{f(x)} \int_{-\infty}^x \frac{\partial f(t)}{\partial\theta} dt.

``implicit_rsample`` uses the first form. The second is an expectation over the density itself,
``E_t[1{t <= x} d log f(t)/d theta]``, which ``monte_carlo_pathwise`` estimates for densities of which only the log
density and a sampler are known. Since ``E d log f = 0``, any number that does not depend on ``t`` may be subtracted from
the indicator; the share of the *other* samples below ``x`` keeps the estimate unbiased and its variance low in both tails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import (
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    HalfNormal,
    Laplace,
    MixtureSameFamily,
    Normal,
)


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
        distribution: F, or 1 - F with a density of negative sign (see ``implicit_rsample``).
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


def survival_function(dist: Distribution, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``1 - F(x)``, without cancellation for the families whose upper tail has a formula of its own.

    >>> survival_function(torch.distributions.Normal(torch.tensor(0.0), 1.0), torch.tensor(9.0))
    tensor(1.1286e-19)
    """
    if isinstance(dist, MixtureSameFamily):
        tails = survival_function(dist.component_distribution, x.unsqueeze(-1))
        return (dist.mixture_distribution.probs * tails).sum(-1)
    if isinstance(dist, Normal):
        return torch.special.ndtr((dist.loc - x) / dist.scale)
    if isinstance(dist, HalfNormal):
        return 2 * torch.special.ndtr(-x / dist.scale)
    if isinstance(dist, Exponential):
        return torch.exp(-dist.rate * x)
    if isinstance(dist, Laplace):
        z = (x - dist.loc) / dist.scale
        return torch.where(z > 0, 0.5 * torch.exp(-z.clamp(min=0)), 1 - 0.5 * torch.exp(z.clamp(max=0)))
    if isinstance(dist, Cauchy):
        return torch.atan2(dist.scale.expand_as(x), x - dist.loc) / torch.pi
    if isinstance(dist, Gumbel):
        return -torch.expm1(-torch.exp((dist.loc - x) / dist.scale))
    return 1 - dist.cdf(x)


def implicit_rsample(dist: Distribution, sample_shape: Any = ()) -> Float[Tensor, "..."]:
    """Samples of a one-dimensional density with pathwise gradients in all of its parameters (Eq. 6).

    Args:
        dist: A continuous scalar distribution (``event_shape == ()``) with ``sample``, ``log_prob`` and a ``cdf`` that is
            differentiable in its parameters; mixtures (``MixtureSameFamily``) too.
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
    _require_scalar_density(dist)
    if not has_differentiable_cdf(dist):
        raise NotImplementedError(
            f"{_describe(dist)} has no cdf that torch can differentiate; monte_carlo_pathwise needs only log_prob and sample"
        )
    x = dist.sample(torch.Size(sample_shape))
    upper = dist.cdf(x).detach() > 0.5
    # Each sample uses whichever of F and 1 - F is the smaller: neither cancels in its own tail.
    return newton_attach(x, lambda t: torch.where(upper, -survival_function(dist, t), dist.cdf(t)), dist.log_prob)


def monte_carlo_pathwise(dist: Distribution, sample_shape: Any = (), *, num_samples: int = 100) -> Float[Tensor, "..."]:
    """Samples whose pathwise gradient is itself estimated from samples: needs only ``log_prob`` and ``sample``.

    Unbiased for every ``num_samples >= 2``; its error falls as 1/sqrt(num_samples). First derivatives only.

    Args:
        dist: A continuous scalar distribution (``event_shape == ()``).
        sample_shape: Leading shape of independent draws.
        num_samples: Samples M that estimate the integral, shared by all draws of a batch element.

    Raises:
        ValueError: ``num_samples`` below 2.
        NotImplementedError: A discrete or multivariate distribution.

    >>> scale = torch.tensor(2.0, requires_grad=True)
    >>> x = monte_carlo_pathwise(torch.distributions.Normal(0.0, scale), num_samples=10_000)
    >>> x.backward()
    >>> bool((scale.grad - x.detach() / 2).abs() < 0.2)  # exactly z for a normal
    True
    """
    _require_scalar_density(dist)
    if num_samples < 2:
        raise ValueError(f"num_samples={num_samples}: at least 2 are needed")
    x = dist.sample(torch.Size(sample_shape))
    t = dist.sample(torch.Size((num_samples,)))
    density = dist.log_prob(x).detach().exp()
    # sum_m (1{t_m <= x} - share of the others below x) log f(t_m), all draws of a batch element at once
    batch = dist.batch_shape
    flat_x = x.reshape(-1, *batch)
    below = (t.unsqueeze(1) <= flat_x.unsqueeze(0)).to(x.dtype)
    others = (below.sum(0, keepdim=True) - below) / (num_samples - 1)
    integral = ((below - others) * dist.log_prob(t).unsqueeze(1)).mean(0).reshape(x.shape)
    moved: Tensor = _AttachFirstDerivative.apply(x, -integral / density)
    return moved


class _AttachFirstDerivative(torch.autograd.Function):
    """The value of the first argument with the derivative of the second; a second derivative is refused, not wrong."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, carrier: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, g


def has_differentiable_cdf(dist: Distribution) -> bool:
    """Whether the family has a cdf which torch can differentiate in all parameters."""
    if isinstance(dist, MixtureSameFamily):
        return has_differentiable_cdf(dist.component_distribution)
    # torch's incomplete gamma function has no derivative in its first argument; Chi2 is a Gamma.
    return not (_is_discrete(dist) or isinstance(dist, Gamma) or _overrides_nothing(dist, "cdf"))


def _overrides_nothing(dist: Distribution, method: str) -> bool:
    return getattr(type(dist), method) is getattr(Distribution, method)


def _describe(dist: Distribution) -> str:
    if isinstance(dist, MixtureSameFamily):
        return f"a mixture of {_describe(dist.component_distribution)}"
    return type(dist).__name__


def _require_scalar_density(dist: Distribution) -> None:
    if len(dist.event_shape) != 0:
        raise NotImplementedError(
            f"{_describe(dist)} has event shape {tuple(dist.event_shape)}; only scalar densities (event shape ()) are "
            "supported: use GaussianMixture or PathwiseMixture for vectors"
        )
    if _is_discrete(dist):
        raise NotImplementedError(f"{_describe(dist)} is discrete: its samples have no pathwise gradient")


def _is_discrete(dist: Distribution) -> bool:
    try:
        return bool(dist.support.is_discrete)  # type: ignore[union-attr]  # None raises NotImplementedError in torch
    except NotImplementedError:
        return False
