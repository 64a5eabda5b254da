"""``MixtureSameFamily`` with pathwise gradients, taking the same two arguments as torch's class."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, MultivariateNormal, Normal

from tenfold.mixture.gaussian_mixture import GaussianMixture
from tenfold.mixture.implicit import has_differentiable_cdf, implicit_rsample
from tenfold.mixture.pathwise import Estimator


class PathwiseMixture(MixtureSameFamily):
    """Drop-in for ``torch.distributions.MixtureSameFamily`` whose samples are differentiable in all parameters.

    Normal, ``Independent(Normal(..), 1)`` and ``MultivariateNormal`` components go through `GaussianMixture`; any other
    scalar family with a differentiable ``cdf`` through Eq. 6 of Graves 2016 (`implicit_rsample`). ``has_rsample`` is True
    exactly where ``rsample`` works.

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
        super().__init__(mixture_distribution, component_distribution, validate_args=validate_args)
        self.estimator = estimator
        self._gaussian = _as_gaussian(mixture_distribution, component_distribution, estimator)

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

    def rsample(self, sample_shape: Any = ()) -> Float[Tensor, "..."]:
        """Samples of shape ``sample_shape + batch_shape + event_shape`` with pathwise gradients.

        Raises:
            NotImplementedError: Discrete components, or a family without a differentiable cdf.
        """
        if self._gaussian is not None:
            return self._gaussian.rsample(sample_shape).reshape(self._extended_shape(torch.Size(sample_shape)))
        return implicit_rsample(self, sample_shape)


def _as_gaussian(
    mixture: Categorical, component: Distribution, estimator: Estimator
) -> GaussianMixture | None:
    """The same density as a `GaussianMixture` where the components are Gaussian."""
    inner = component.base_dist if isinstance(component, Independent) else component
    if isinstance(inner, MultivariateNormal) and inner is component:
        return GaussianMixture(
            logits=mixture.logits, loc=inner.loc, scale_tril=inner.scale_tril, estimator=estimator, validate_args=False
        )
    if type(inner) is not Normal or len(component.event_shape) > 1:
        return None
    loc, scale = inner.loc, inner.scale
    if len(component.event_shape) == 0:
        loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
    return GaussianMixture(logits=mixture.logits, loc=loc, scale=scale, estimator=estimator, validate_args=False)
