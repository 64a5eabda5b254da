"""``MixtureSameFamily`` with pathwise gradients, taking the same two arguments as torch's class."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    constraints,
)

from tenfold.mixture.arguments import sample_size
from tenfold.mixture.gaussian_mixture import GaussianMixture
from tenfold.mixture.implicit import has_differentiable_cdf, implicit_rsample, log_density, tails
from tenfold.mixture.pathwise import ESTIMATORS, Estimator


class PathwiseMixture(MixtureSameFamily):
    """Drop-in for ``torch.distributions.MixtureSameFamily`` whose samples are differentiable in all parameters.

    Normal, ``Independent(Normal(..), 1)`` and ``MultivariateNormal`` components go through `GaussianMixture`; any other
    scalar family with a differentiable ``cdf`` through Eq. 6 of Graves 2016 (`implicit_rsample`). ``has_rsample`` is
    True exactly where ``rsample`` works.

    Args:
        mixture_distribution: Categorical over the K components, batch shape ``(*batch)``.
        component_distribution: Components, batch shape ``(*batch, K)``.
        validate_args: As in torch.
        estimator: Field of means and deviations for Gaussian components, see `GaussianMixture`.

    >>> from torch.distributions import Categorical, Normal
    >>> logits = torch.zeros(2, requires_grad=True)
    >>> mixture = PathwiseMixture(Categorical(logits=logits), Normal(torch.tensor([-1.0, 1.0]), torch.ones(2)))
    >>> mixture.rsample((5,)).sum().backward()
    >>> bool(logits.grad.abs().sum() > 0)
    True
    """

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
        *,
        estimator: Estimator = "responsibility",
    ) -> None:
        if estimator not in ESTIMATORS:
            raise ValueError(f"estimator={estimator!r} is not one of {', '.join(map(repr, ESTIMATORS))}")
        mixture_distribution, component_distribution = _broadcast(mixture_distribution, component_distribution)
        super().__init__(mixture_distribution, component_distribution, validate_args=validate_args)
        self.estimator = estimator
        self._gaussian = _as_gaussian(mixture_distribution, component_distribution, estimator)

    def __repr__(self) -> str:
        return f"PathwiseMixture(\n  {self.mixture_distribution},\n  {self.component_distribution})"

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]  # torch declares a class attribute
        """Whether the components are a family with pathwise gradients."""
        component = self.component_distribution
        return self._gaussian is not None or (len(component.event_shape) == 0 and has_differentiable_cdf(component))

    def expand(self, batch_shape: Any, _instance: Any = None) -> PathwiseMixture:
        """The same mixture with its batch shape broadcast to ``batch_shape``."""
        new = self._get_checked_instance(PathwiseMixture, _instance)
        super().expand(batch_shape, _instance=new)
        new.estimator = self.estimator
        new._gaussian = None if self._gaussian is None else self._gaussian.expand(batch_shape)
        return new

    @property
    def support(self) -> constraints.Constraint:
        """Where at least one component has density (torch's class asks for all of them)."""
        return _AnyComponent(self.component_distribution.support)

    def log_prob(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Log density; components whose support does not hold ``x`` have no part in it."""
        if self._validate_args:
            self._validate_sample(x)
        return super().log_prob(x) if self.event_shape else log_density(self, x)

    def cdf(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Distribution function of scalar components, ``sum_k pi_k F_k(x)``.

        Raises:
            NotImplementedError: Vector components.
        """
        if self.event_shape:
            raise NotImplementedError(f"cdf needs scalar components; these have event shape {tuple(self.event_shape)}")
        if self._validate_args:
            self._validate_sample(x)
        return tails(self, x)[0]

    def sample(self, sample_shape: Any = ()) -> Float[Tensor, "..."]:
        """Samples without gradients, of shape ``sample_shape + batch_shape + event_shape``."""
        shape = sample_size(sample_shape)
        if shape.numel() * self.batch_shape.numel() == 0:  # torch's Categorical refuses to draw nothing
            nothing: Tensor = self.component_distribution.sample(shape).select(-1 - self._event_ndims, 0)
            return nothing
        return super().sample(shape)

    def rsample(self, sample_shape: Any = ()) -> Float[Tensor, "..."]:
        """Samples of shape ``sample_shape + batch_shape + event_shape`` with pathwise gradients.

        Raises:
            NotImplementedError: Discrete components, or a family without a differentiable cdf.
        """
        shape = sample_size(sample_shape)
        if self._gaussian is not None:
            return self._gaussian.rsample(shape).reshape(self._extended_shape(shape))
        if self.event_shape:
            component = self.component_distribution
            name = type(component.base_dist if isinstance(component, Independent) else component).__name__
            raise NotImplementedError(
                f"a mixture of {name} components that has event shape {tuple(self.event_shape)} has no pathwise gradient; "
                "vectors need Independent(Normal(..), 1) or MultivariateNormal components, scalars any family with a "
                "differentiable cdf"
            )
        return implicit_rsample(self, shape)

    def entropy(self) -> Tensor:
        """Not available: the entropy of a mixture has no closed form.

        Raises:
            NotImplementedError: Always; says how to estimate it.
        """
        raise NotImplementedError(
            "the entropy of a mixture has no closed form; estimate it by -mixture.log_prob(mixture.sample((1000,))).mean(0), "
            "with rsample for its gradient"
        )

    def icdf(self, value: Tensor) -> Tensor:
        """Not available for mixtures of any family.

        Raises:
            NotImplementedError: Always; names the mixture that has it.
        """
        raise NotImplementedError(
            "the quantiles of a mixture have no closed form; GaussianMixture has icdf where D = 1"
        )


class _AnyComponent(constraints.MixtureSameFamilyConstraint):
    def check(self, value: Tensor) -> Tensor:
        held: Tensor = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return held.any(-1)


def _broadcast(mixture: Any, component: Any) -> tuple[Any, Any]:
    """Both with the same batch shape, which torch's class assumes when it samples but does not see to."""
    if not isinstance(mixture, Categorical) or not isinstance(component, Distribution):
        return mixture, component  # torch says what it needs
    if len(component.batch_shape) == 0:
        raise ValueError("component_distribution has batch shape (); its last batch axis must hold the K components")
    given = mixture.batch_shape, component.batch_shape[:-1]
    try:
        batch = torch.broadcast_shapes(*given)
    except RuntimeError:
        raise ValueError(
            f"mixture_distribution has batch shape {tuple(given[0])} and component_distribution {tuple(given[1])} "
            "before its last axis (the K components): they do not broadcast"
        ) from None
    return (
        mixture if batch == given[0] else mixture.expand(batch),
        component if batch == given[1] else component.expand((*batch, component.batch_shape[-1])),
    )


def _as_gaussian(mixture: Categorical, component: Distribution, estimator: Estimator) -> GaussianMixture | None:
    """The same density as a `GaussianMixture` where the components are Gaussian."""
    # A Categorical that was given probs clamps them in its logits: a weight of exactly 0 would be drawn now and then.
    weights = {"probs": mixture.probs} if "probs" in vars(mixture) else {"logits": mixture.logits}
    inner = component.base_dist if isinstance(component, Independent) else component
    if isinstance(inner, MultivariateNormal) and inner is component:
        return GaussianMixture(
            **weights, loc=inner.loc, scale_tril=inner.scale_tril, estimator=estimator, validate_args=False
        )
    if type(inner) is not Normal or len(component.event_shape) > 1:
        return None
    loc, scale = inner.loc, inner.scale
    if len(component.event_shape) == 0:
        loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
    return GaussianMixture(**weights, loc=loc, scale=scale, estimator=estimator, validate_args=False)
