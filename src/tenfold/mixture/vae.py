r"""A variational autoencoder whose approximate posterior is a mixture of Gaussians.

The model is ``p(z) = N(0, I)``, ``p(x|z)`` from a decoder network; the encoder gives, for each ``x``, a `GaussianMixture`
``q(z|x) = sum_k pi_k(x) N(z; mu_k(x), diag s_k(x)^2)``. Graves 2016 (arXiv 1607.05690) makes the samples of ``q``
differentiable in its weights too, so the evidence lower bound

.. math:: \mathrm{ELBO} = E_{q(z|x)}[\log p(x|z) + \log p(z) - \log q(z|x)]

is trained like that of a plain autoencoder. The bound by itself tends to give up components (Morningstar et al. 2020,
arXiv 2003.01687); with ``T`` samples *of each component* the stratified importance bound

.. math:: L_T = E \log \tfrac1T \sum_t \sum_k \pi_k \frac{p(x, z_{kt})}{q(z_{kt}|x)}, \qquad z_{kt} \sim N_k,

is tighter and keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tenfold.mixture.arguments import check_count, require
from tenfold.mixture.gaussian_mixture import GaussianMixture
from tenfold.training import ModelFolder

LIKELIHOODS = ("bernoulli", "gaussian")
SMALLEST_SCALE = 1e-3
SMALLEST_NOISE = 1e-2  # of a feature's spread: without a limit a column that is exactly predictable has no finite bound


class MixtureVAE(nn.Module, ModelFolder):
    """Variational autoencoder with a mixture posterior, for vectors of features.

    Args:
        num_features: Length F of a data vector (all pixels of an image in a row).
        latent_dim: Length D of a code.
        num_components: Components K of the posterior; 1 is the usual autoencoder.
        hidden: Widths of the encoder's hidden layers; the decoder has them in reverse.
        likelihood: ``"bernoulli"`` for binary features or intensities from 0 to 1, ``"gaussian"`` for real features (each
            with a noise deviation of its own that is learned, at least a hundredth of the feature's spread).
        image_shape: (height, width) or (height, width, channels) if a data vector is an image; for drawing samples.
        names: Names of the features, for tables of samples.

    Raises:
        TypeError: A size that is no integer, or ``hidden`` that is no sequence.
        ValueError: A size below 1, an unknown likelihood, or an image shape that does not hold F values.

    >>> vae = MixtureVAE(num_features=16, latent_dim=2, num_components=3, hidden=[8])
    >>> vae.posterior(torch.zeros(5, 16)).batch_shape, vae.elbo(torch.zeros(5, 16), num_samples=4).shape
    (torch.Size([5]), torch.Size([5]))
    """

    card_text = """
    A variational autoencoder whose posterior is a mixture of Gaussians. At the command line, with data of the same kind:

    ```
    tenfold mixture embed this/folder DATA --out codes.parquet
    tenfold mixture sample this/folder
    tenfold mixture evaluate this/folder DATA
    tenfold mixture plot this/folder DATA
    ```
    """

    center: Tensor
    width: Tensor

    def __init__(
        self,
        num_features: int,
        latent_dim: int = 2,
        num_components: int = 4,
        hidden: Sequence[int] = (256, 128),
        likelihood: str = "bernoulli",
        image_shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        sizes = {"num_features": num_features, "latent_dim": latent_dim, "num_components": num_components}
        given: Any = hidden
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise TypeError(f"hidden={hidden!r} must be a sequence of widths, one a hidden layer, such as (256, 128)")
        hidden = list(hidden)
        for name, size in (*sizes.items(), *((f"hidden[{i}]", width) for i, width in enumerate(hidden))):
            check_count(name, size)
        if likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood={likelihood!r} is not one of {', '.join(map(repr, LIKELIHOODS))}")
        if image_shape is not None and not isinstance(image_shape, Iterable):
            raise TypeError(f"image_shape={image_shape!r} must be (height, width) or (height, width, channels)")
        if image_shape is not None and math.prod(image_shape) != num_features:
            raise ValueError(
                f"image_shape={tuple(image_shape)} holds {math.prod(image_shape)} values, num_features={num_features}"
            )
        if names is not None and len(names) != num_features:
            raise ValueError(f"names has {len(names)} entries, num_features={num_features}")
        self.num_features, self.latent_dim, self.num_components = num_features, latent_dim, num_components
        self.likelihood = likelihood
        self.image_shape = None if image_shape is None else tuple(image_shape)
        self.names = None if names is None else tuple(names)
        self.encoder = _layers([num_features, *hidden])
        top = hidden[-1] if len(hidden) else num_features
        self.to_logits = nn.Linear(top, num_components)
        self.to_loc = nn.Linear(top, num_components * latent_dim)
        self.to_scale = nn.Linear(top, num_components * latent_dim)
        first = hidden[-1] if len(hidden) else latent_dim
        start = [nn.Linear(latent_dim, first), nn.ReLU()] if len(hidden) else []
        self.decoder = nn.Sequential(
            *start, *_layers(list(reversed(hidden))), nn.Linear(hidden[0] if len(hidden) else first, num_features)
        )
        # Noise of real features relative to their own spread; features are centred and scaled on the way in.
        self.log_noise = nn.Parameter(torch.zeros(num_features)) if likelihood == "gaussian" else None
        self.register_buffer("center", torch.zeros(num_features))
        self.register_buffer("width", torch.ones(num_features))
        with torch.no_grad():
            self.to_loc.bias.normal_(std=1.0)  # components that start at different places
            self.to_scale.bias.fill_(0.5)

    def standardize(self, values: Float[Tensor, "N F"]) -> None:
        """Take centre and spread of real features from data; constant features keep a spread of one."""
        if self.likelihood == "gaussian":
            self._check_data(values.to(self.center.dtype))
            spread = values.double().std(0, correction=0)
            self.center.copy_(values.double().mean(0))
            self.width.copy_(torch.where(values.amax(0) > values.amin(0), spread, 1.0))

    def posterior(self, x: Float[Tensor, "N F"]) -> GaussianMixture:
        """The approximate posterior ``q(z|x)`` of each row, a `GaussianMixture` of batch shape (N,).

        Raises:
            TypeError: Rows that are no tensor, or of more precision than the model's weights.
            ValueError: Another shape than (N, F), values that are not finite, or outside 0 to 1 for the Bernoulli
                likelihood; the bounds and ``embed`` raise the same.
        """
        self._check_data(x)
        features = self.encoder((x.to(self.center.dtype) - self.center) / self.width)
        shape = (x.shape[0], self.num_components, self.latent_dim)
        scale = functional.softplus(self.to_scale(features)).reshape(shape) + SMALLEST_SCALE
        return GaussianMixture(
            logits=self.to_logits(features), loc=self.to_loc(features).reshape(shape), scale=scale, validate_args=False
        )

    def forward(self, x: Float[Tensor, "N F"]) -> GaussianMixture:
        """The posterior of each row."""
        return self.posterior(x)

    def decode(self, z: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape F"]:
        """Mean of the features given codes: probabilities (Bernoulli) or values in the data's units (Gaussian)."""
        self._check_codes(z)
        output = self.decoder(z)
        return torch.sigmoid(output) if self.log_noise is None else output * self.width + self.center

    def log_likelihood(self, x: Float[Tensor, "N F"], z: Float[Tensor, "*sample N D"]) -> Float[Tensor, "*sample N"]:
        """``log p(x|z)`` in nats, summed over the features."""
        self._check_codes(z, rows=len(x))
        output = self.decoder(z)
        if self.log_noise is None:
            return (x * output - functional.softplus(output)).sum(-1)
        log_noise = self._log_deviation()
        deviation = ((x - self.center) / self.width - output) * (-log_noise).exp()
        log_normalizer = log_noise + self.width.log() + 0.5 * math.log(2 * math.pi)
        return -(0.5 * deviation.square() + log_normalizer).sum(-1)

    def log_joint(self, x: Float[Tensor, "N F"], z: Float[Tensor, "*sample N D"]) -> Float[Tensor, "*sample N"]:
        """``log p(x|z) + log p(z)`` in nats."""
        log_prior = -0.5 * (z.square().sum(-1) + self.latent_dim * math.log(2 * math.pi))
        return self.log_likelihood(x, z) + log_prior

    def elbo(
        self, x: Float[Tensor, "N F"], num_samples: int = 1, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "N"]:
        """Unbiased estimate of the evidence lower bound of each row in nats, from samples of the whole mixture."""
        check_count("num_samples", num_samples)
        q = self.posterior(x)
        z = q.rsample((num_samples,), generator=generator)
        return (self.log_joint(x, z) - q.log_prob(z)).mean(0)

    def stratified_bound(
        self, x: Float[Tensor, "N F"], num_samples: int = 1, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "N"]:
        """The stratified importance bound ``L_T`` of each row in nats, from ``num_samples`` samples of each component."""
        check_count("num_samples", num_samples)
        q = self.posterior(x)
        shape = (num_samples, *q.loc.shape)
        eps = torch.randn(shape, dtype=q.loc.dtype, device=q.loc.device, generator=generator)
        z = (q.loc + q.scale * eps).movedim(2, 1)  # (T, K, N, D)
        log_weights = self.log_joint(x, z) - q.log_prob(z) + torch.log_softmax(q.logits, -1).T
        return torch.logsumexp(log_weights, (0, 1)) - math.log(num_samples)

    def importance_bound(
        self, x: Float[Tensor, "N F"], num_samples: int = 64, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "N"]:
        """The importance-weighted bound of Burda et al. 2016 in nats, from samples of the whole mixture."""
        check_count("num_samples", num_samples)
        q = self.posterior(x)
        z = q.rsample((num_samples,), generator=generator)
        return torch.logsumexp(self.log_joint(x, z) - q.log_prob(z), 0) - math.log(num_samples)

    @torch.no_grad()
    def embed(
        self, x: Float[Tensor, "N F"], *, batch_size: int = 4096
    ) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N K"]]:
        """Code of each row, the mean of its most probable component, and the probabilities of all components.

        The mean of the whole mixture would lie between its modes, where the posterior has no mass.

        Args:
            x: Rows of features.
            batch_size: Rows at once.
        """
        check_count("batch_size", batch_size)
        self._check_data(x)
        codes, probs = [], []
        for rows in x.split(batch_size):
            q = self.posterior(rows)
            best = q.probs.argmax(-1)
            codes.append(q.loc[torch.arange(len(best), device=best.device), best])
            probs.append(q.probs)
        return torch.cat(codes), torch.cat(probs)

    @torch.no_grad()
    def sample(
        self, num_samples: int, *, mean: bool = True, generator: torch.Generator | None = None
    ) -> Float[Tensor, "num_samples F"]:
        """Features at codes drawn from the prior.

        Args:
            num_samples: How many.
            mean: Means of the features (smooth images); else draws from ``p(x|z)``, with the spread of the data.
            generator: Source of random numbers.
        """
        check_count("num_samples", num_samples, least=0)
        z = torch.randn(
            (num_samples, self.latent_dim), dtype=self.center.dtype, device=self.center.device, generator=generator
        )
        values = self.decode(z)
        if mean:
            return values
        if self.log_noise is None:
            return torch.bernoulli(values, generator=generator)
        noise = torch.randn(values.shape, dtype=values.dtype, device=values.device, generator=generator)
        return values + self._log_deviation().exp() * self.width * noise

    def _check_data(self, x: Any) -> None:
        """Raise one sentence about data that is not what this model takes."""
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor of shape (N, {self.num_features}), not {type(x).__name__}")
        if x.dim() != 2 or x.shape[-1] != self.num_features:
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but this model takes (N, {self.num_features}): rows of num_features="
                f"{self.num_features} values"
            )
        if torch.promote_types(x.dtype, self.center.dtype) != self.center.dtype:
            raise TypeError(
                f"x is {x.dtype} and the model {self.center.dtype}; pass x.to({self.center.dtype}), or call the model's "
                ".double()"
            )
        if torch.compiler.is_compiling() or x.is_meta:
            return
        if self.likelihood == "bernoulli":
            rule = "must lie between 0 and 1 for likelihood='bernoulli'; likelihood='gaussian' takes real values"
            require((x >= 0) & (x <= 1), x, "x", rule)
        else:
            require(x.isfinite(), x, "x", "must be finite")

    def _check_codes(self, z: Any, rows: int | None = None) -> None:
        """Raise one sentence about codes of another length, or for another number of rows."""
        wanted = (self.latent_dim,) if rows is None else (rows, self.latent_dim)
        if not isinstance(z, Tensor) or tuple(z.shape[-len(wanted) :]) != wanted:
            given = f"has shape {tuple(z.shape)}" if isinstance(z, Tensor) else f"is a {type(z).__name__}"
            raise ValueError(f"z {given}, but codes of this model need the shape (.., {', '.join(map(str, wanted))})")

    def _log_deviation(self) -> Float[Tensor, "F"]:
        """Logarithm of the noise of real features, relative to their spread."""
        assert self.log_noise is not None
        return torch.logaddexp(self.log_noise, torch.full_like(self.log_noise, math.log(SMALLEST_NOISE)))


def _layers(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[Any] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)
