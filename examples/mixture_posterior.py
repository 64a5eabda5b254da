"""Fit a mixture to a density that is known up to a constant only: a ring, by gradient descent through samples.

Minimises the Kullback-Leibler divergence KL(q || ring) = E_q[log q(x) - log ring(x)] over weights, means and deviations
of q. Every gradient passes through `rsample`; nothing else is needed than an optimizer of torch.
"""

import math

import torch
from torch import Tensor

from tenfold.mixture import GaussianMixture

RADIUS, WIDTH = 2.0, 0.4


def log_ring(x: Tensor) -> Tensor:
    """Log density of the ring, but for a constant: a Gaussian in the distance from the centre."""
    radius = x.square().sum(-1).add(1e-12).sqrt()
    return -0.5 * ((radius - RADIUS) / WIDTH).square()


def fit(components: int, *, steps: int = 300, samples: int = 128, seed: int = 0) -> tuple[GaussianMixture, float]:
    """The fitted mixture, and its Kullback-Leibler divergence from the ring in nats.

    Args:
        components: Number of Gaussians.
        steps: Of Adam.
        samples: Drawn in each step.
        seed: For the start and the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.zeros(components, requires_grad=True)
    loc = torch.randn(components, 2, generator=generator).requires_grad_()
    log_scale = torch.zeros(components, 2, requires_grad=True)
    optimizer = torch.optim.Adam([logits, loc, log_scale], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        q = GaussianMixture(logits=logits, loc=loc, scale=log_scale.exp(), validate_args=False)
        x = q.rsample((samples,), generator=generator)
        loss = (q.log_prob(x) - log_ring(x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    # integral of the ring over the plane, to better than a millionth: 2 pi r exp(-(r - R)^2 / 2 W^2) from 0 to infinity
    log_normalizer = math.log(2 * math.pi * RADIUS * WIDTH * math.sqrt(2 * math.pi))
    with torch.no_grad():
        q = GaussianMixture(logits=logits, loc=loc, scale=log_scale.exp())
        x = q.sample((20_000,), generator=generator)
        return q, float((q.log_prob(x) - log_ring(x)).mean()) + log_normalizer


def main(steps: int = 300) -> None:
    """Compare one Gaussian with four and with twelve."""
    for components in (1, 4, 12):
        _, divergence = fit(components, steps=steps)
        print(f"{components:2d} components: KL(q || ring) = {divergence:.3f} nats")


if __name__ == "__main__":
    main()
