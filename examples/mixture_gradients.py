"""Which estimator for which parameter? Variances of one sample's gradient, for components that overlap or lie apart.

The function is f(x) = sum_d cos(a_d x_d) with random a. The table in docs/areas/mixture.md is this program's output.
"""

import torch
from torch import Tensor

from tenfold.mixture import GaussianMixture

Gradients = tuple[Tensor, Tensor, Tensor]


def variance(gradients: Tensor) -> float:
    """Summed over the parameters; the first axis holds independent estimates."""
    return float(gradients.flatten(1).var(0).sum())


def compare(components: int, dims: int, deviation: float, *, repeats: int, seed: int = 0) -> dict[str, list[float]]:
    """Variance of the gradient in logits, means and deviations by each estimator, per sample.

    Args:
        components: Number of Gaussians.
        dims: Length of x.
        deviation: Standard deviation of every component; the means are standard normal.
        repeats: Independent estimates, of 32 samples each.
        seed: For the mixture and the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    logits, loc, slope = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((components,), (components, dims), (dims,))
    )
    samples = 32

    def f(x: Tensor) -> Tensor:
        return (slope * x).cos().sum(-1)

    def parameters() -> Gradients:  # a copy for each estimate, so that gradients of single estimates can be seen
        spread = torch.full_like(loc, deviation)
        copies = [tensor.expand(repeats, *tensor.shape).clone() for tensor in (logits, loc, spread)]
        return copies[0].requires_grad_(), copies[1].requires_grad_(), copies[2].requires_grad_()

    found: dict[str, list[float]] = {}
    for name, estimator in (
        ("quantile", "quantile"),
        ("responsibility", "responsibility"),
        ("expectation", "responsibility"),
    ):
        theta = parameters()
        mixture = GaussianMixture(logits=theta[0], loc=theta[1], scale=theta[2], estimator=estimator)
        if name == "expectation":
            value = mixture.expectation(f, (samples,), generator=generator)
        else:
            value = f(mixture.rsample((samples,), generator=generator)).mean(0)
        found[name] = [samples * variance(gradient) for gradient in torch.autograd.grad(value.sum(), theta)]

    theta = parameters()
    mixture = GaussianMixture(logits=theta[0], loc=theta[1], scale=theta[2])
    x, component = mixture.sample_with_component((samples,), generator=generator)
    chosen = component[..., None, None].expand(*component.shape, 1, dims)
    mean, spread = (tensor.expand(samples, *tensor.shape).gather(-2, chosen).squeeze(-2) for tensor in theta[1:])
    moved = mean + spread * ((x - mean) / spread).detach()
    log_weights = theta[0].log_softmax(-1).expand(samples, -1, -1)
    score = f(x).detach() * log_weights.gather(-1, component[..., None]).squeeze(-1)
    value = (f(moved) + score).mean(0)
    found["drawn component, REINFORCE"] = [samples * variance(g) for g in torch.autograd.grad(value.sum(), theta)]
    return found


def main(repeats: int = 2000) -> None:
    """Print the table of docs/areas/mixture.md."""
    print("| K, D, deviation | estimator | weights | means | deviations |\n|---|---|---|---|---|")
    for components, dims, deviation in ((3, 2, 1.0), (3, 2, 0.5), (3, 2, 0.2), (3, 5, 0.5)):
        for name, (weights, means, deviations) in compare(components, dims, deviation, repeats=repeats).items():
            print(f"| {components}, {dims}, {deviation} | {name} | {weights:.3g} | {means:.3g} | {deviations:.3g} |")


if __name__ == "__main__":
    main()
