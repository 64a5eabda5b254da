"""Pathwise gradients through the samples of mixtures (Graves 2016, arXiv 1607.05690)."""

from tenfold.mixture.gaussian_mixture import GaussianMixture
from tenfold.mixture.implicit import implicit_rsample, monte_carlo_pathwise
from tenfold.mixture.mixture_family import PathwiseMixture
from tenfold.mixture.vae import MixtureVAE

__all__ = ["GaussianMixture", "MixtureVAE", "PathwiseMixture", "implicit_rsample", "monte_carlo_pathwise"]
