"""Gradients through samples of Gaussian mixtures: Tenfold, Pyro, and PyTorch's single Normal as the floor.

Every mixture of the batch has parameters of its own, as the posterior of a variational autoencoder has; one sample of
each is drawn and a given gradient is taken back to the parameters. Distributions are built in the timed call, because
parameters change at every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.case import Case, Peer

if TYPE_CHECKING:
    from torch import Tensor

    Parameters = dict[str, Tensor]


def _parameters(batch: int, components: int, dimensions: int) -> Parameters:
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (batch, components, dimensions)
    return {
        "logits": torch.randn(batch, components, generator=generator).requires_grad_(),
        "loc": torch.randn(shape, generator=generator).requires_grad_(),
        "scale": torch.rand(shape, generator=generator).add_(0.5).requires_grad_(),
        "upstream": torch.randn(batch, dimensions, generator=generator),
    }


def _gradients(x: Tensor, parameters: Parameters, *names: str) -> object:
    import torch

    return torch.autograd.grad(x, [parameters[name] for name in names], parameters["upstream"])


def _responsibility(parameters: Parameters) -> object:
    from tenfold.mixture import GaussianMixture

    mixture = GaussianMixture(logits=parameters["logits"], loc=parameters["loc"], scale=parameters["scale"])
    return _gradients(mixture.rsample(), parameters, "logits", "loc", "scale")


def _quantile(parameters: Parameters) -> object:
    from tenfold.mixture import GaussianMixture

    mixture = GaussianMixture(
        logits=parameters["logits"], loc=parameters["loc"], scale=parameters["scale"], estimator="quantile"
    )
    return _gradients(mixture.rsample(), parameters, "logits", "loc", "scale")


def _location_and_scale(parameters: Parameters) -> object:
    from tenfold.mixture import GaussianMixture

    mixture = GaussianMixture(logits=parameters["logits"].detach(), loc=parameters["loc"], scale=parameters["scale"])
    return _gradients(mixture.rsample(), parameters, "loc", "scale")


def _pyro(parameters: Parameters) -> object:
    from pyro.distributions import MixtureOfDiagNormals

    mixture = MixtureOfDiagNormals(parameters["loc"], parameters["scale"], parameters["logits"])
    return _gradients(mixture.rsample(), parameters, "logits", "loc", "scale")


def _drawn_component(parameters: Parameters) -> object:
    """The usual reparameterisation of the component that was drawn: no gradient for the logits."""
    import torch

    component = torch.distributions.Categorical(logits=parameters["logits"].detach()).sample()
    index = component[:, None, None].expand(-1, 1, parameters["loc"].shape[-1])
    loc, scale = (parameters[name].gather(1, index).squeeze(1) for name in ("loc", "scale"))
    return _gradients(torch.distributions.Normal(loc, scale).rsample(), parameters, "loc", "scale")


def _single(parameters: Parameters) -> Parameters:
    """The first component alone."""
    first = {name: parameters[name].detach()[:, 0].clone().requires_grad_() for name in ("loc", "scale")}
    return {**first, "upstream": parameters["upstream"]}


def _normal(parameters: Parameters) -> object:
    import torch

    normal = torch.distributions.Normal(parameters["loc"], parameters["scale"])
    return _gradients(normal.rsample(), parameters, "loc", "scale")


PYRO = Peer(_pyro, package="pyro-ppl", module="pyro")
NORMAL = Peer(_normal, package="torch", prepare=_single)
BIASED = "Pyro's gradient for the logits is biased; one Normal has K times less to do and no logits"


def _full(batch: int, components: int, dimensions: int, *, quick: bool = False) -> Case:
    return Case(
        f"all gradients, {batch} mixtures, K={components}, D={dimensions}",
        lambda: _parameters(batch, components, dimensions),
        _responsibility,
        {"tenfold, quantile": _quantile, "pyro": PYRO, "one Normal (K=1)": NORMAL},
        quick=quick,
        goal={"pyro": 0.5},
        note=BIASED,
    )


CASES = [
    _full(1024, 8, 32, quick=True),
    _full(1024, 8, 2),
    _full(1024, 3, 8),
    _full(64, 8, 128),
    _full(64, 4, 1000),
    Case(
        "means and deviations only, 1024 mixtures, K=8, D=32",
        lambda: _parameters(1024, 8, 32),
        _location_and_scale,
        {"drawn component": _drawn_component},
        goal={"drawn component": 2.0},
        note="both are unbiased; Tenfold's variance is never larger",
    ),
]
