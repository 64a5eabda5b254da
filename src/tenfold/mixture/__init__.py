"""Pathwise gradients through the samples of mixtures (Graves 2016, arXiv 1607.05690)."""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.mixture.gaussian_mixture import GaussianMixture
    from tenfold.mixture.implicit import implicit_rsample, monte_carlo_pathwise
    from tenfold.mixture.mixture_family import PathwiseMixture
    from tenfold.mixture.vae import MixtureVAE

__all__ = ["GaussianMixture", "MixtureVAE", "PathwiseMixture", "implicit_rsample", "monte_carlo_pathwise"]

_HOMES = {
    "GaussianMixture": "gaussian_mixture",
    "MixtureVAE": "vae",
    "PathwiseMixture": "mixture_family",
    "implicit_rsample": "implicit",
    "monte_carlo_pathwise": "implicit",
}

__getattr__ = lazy_names(__name__, _HOMES)
