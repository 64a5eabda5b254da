"""Measurements behind the claims of the mixture's paper: each a function of seed and scale that returns numbers and plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tenfold.claims import Curve, Measurement, Plot
from tenfold.mixture.combined import combined_expectation, pathwise_gradients, score_gradients
from tenfold.mixture.gaussian_mixture import GaussianMixture
from tenfold.mixture.implicit import monte_carlo_pathwise
from tenfold.mixture.pathwise import ESTIMATORS, Estimator, move_with_parameters

DOUBLE = torch.float64
MIXTURES = 20  # random mixtures a seed, over which a bias is judged


def _draws(scale: str) -> int:
    return {"smoke": 500, "quick": 10_000, "full": 100_000}[scale]


def _random_mixture(components: int, dims: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    logits = 0.5 * torch.randn(components, dtype=DOUBLE, generator=generator)
    loc = torch.randn(components, dims, dtype=DOUBLE, generator=generator)
    scale = 0.7 + 0.6 * torch.rand(components, dims, dtype=DOUBLE, generator=generator)
    return logits, loc, scale


def _exact_gradients(logits: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Gradients of ``E sum_d cos x_d``, which is ``sum_k pi_k sum_d cos(mu_kd) exp(-s_kd^2 / 2)``."""
    theta = [p.clone().requires_grad_() for p in (logits, loc, scale)]
    pi = torch.softmax(theta[0], -1)
    value = (pi * (theta[1].cos() * (-0.5 * theta[2].square()).exp()).sum(-1)).sum()
    return torch.autograd.grad(value, theta)


def _per_sample(x: Tensor, theta: Sequence[Tensor], moved: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """Gradients of ``sum_d cos x_d`` for each sample by itself: every sample gets its own copy of the parameters."""
    copies = [p.expand(len(x), *p.shape).clone().requires_grad_() for p in theta]
    return torch.autograd.grad(moved(x, *copies).cos().sum(), copies, materialize_grads=True)


def _mean_square_z(gradients: Tensor, exact: Tensor) -> float:
    """Mean square of the deviation of a mean of samples from the exact value, in standard errors; 1 if there is no bias."""
    error = gradients.std(0) / len(gradients) ** 0.5
    z = ((gradients.mean(0) - exact) / error.clamp(min=1e-300))[error > 0]
    return float(z.square().mean())


def one_component(seed: int, scale: str) -> Measurement:
    """K = 1: the mixture's gradients beside the usual reparameterisation ``x = mu + s eps``."""
    generator = torch.Generator().manual_seed(seed)
    rows = {"smoke": 50, "quick": 2_000, "full": 20_000}[scale]
    logits = torch.randn(rows, 1, dtype=DOUBLE, generator=generator)
    loc = torch.randn(rows, 1, 8, dtype=DOUBLE, generator=generator)
    deviation = 0.1 + torch.rand(rows, 1, 8, dtype=DOUBLE, generator=generator)
    g = torch.randn(rows, 8, dtype=DOUBLE, generator=generator)
    numbers = {}
    for estimator in ESTIMATORS:
        theta = [p.clone().requires_grad_() for p in (logits, loc, deviation)]
        x = GaussianMixture(logits=theta[0], loc=theta[1], scale=theta[2], estimator=estimator).rsample(
            generator=generator
        )
        grad_logits, grad_loc, grad_scale = torch.autograd.grad(x, theta, g)
        eps = ((x - loc.squeeze(1)) / deviation.squeeze(1)).detach()
        numbers[f"difference_{estimator}"] = max(
            float((grad_loc.squeeze(1) - g).abs().max()),
            float((grad_scale.squeeze(1) - g * eps).abs().max()),
            float(grad_logits.abs().max()),
        )
    return Measurement(numbers)


def means_and_deviations(seed: int, scale: str) -> Measurement:
    """K = 3, D = 4: three estimators for means and deviations, their bias in standard errors and their variance."""
    generator = torch.Generator().manual_seed(seed)
    fields: dict[str, Estimator | None] = {
        "drawn component": None,
        "responsibility": "responsibility",
        "quantile": "quantile",
    }
    squares: dict[str, list[float]] = {name: [] for name in fields}
    variances = {name: torch.zeros(2, dtype=DOUBLE) for name in squares}
    for _ in range(MIXTURES):
        theta = _random_mixture(3, 4, generator)
        mixture = GaussianMixture(logits=theta[0], loc=theta[1], scale=theta[2])
        x, k = mixture.sample_with_component((_draws(scale),), generator=generator)
        exact = _exact_gradients(*theta)
        for name, estimator in fields.items():
            _, grad_loc, grad_scale = _per_sample(x, theta, _drawn(k) if estimator is None else _field(estimator))
            both = torch.cat([grad_loc.flatten(1), grad_scale.flatten(1)], 1)
            squares[name].append(_mean_square_z(both, torch.cat([exact[1].flatten(), exact[2].flatten()])))
            variances[name] += torch.stack([grad_loc.var(0).sum(), grad_scale.var(0).sum()]) / MIXTURES
    numbers = {f"z2_{name.replace(' ', '_')}": sum(values) / MIXTURES for name, values in squares.items()}
    numbers["variance_ratio"] = float(variances["responsibility"].sum() / variances["drawn component"].sum())
    plot = Plot(
        "Variance of one sample's gradient",
        "parameter",
        "sum of variances",
        {name: Curve((0, 1), values.tolist()) for name, values in variances.items()},
        kind="bar",
        ticks=("means", "deviations"),
        caption=f"{MIXTURES} mixtures, K = 3, D = 4, f = sum of cosines. Averaging over the component never adds variance.",
    )
    return Measurement(numbers, {"variance": plot})


def _field(estimator: Estimator) -> Callable[..., Tensor]:
    def moved(x: Tensor, logits: Tensor, loc: Tensor, deviation: Tensor) -> Tensor:
        return move_with_parameters(x.unsqueeze(0), logits, loc, deviation, estimator).squeeze(0)

    return moved


def _drawn(k: Tensor) -> Callable[..., Tensor]:
    def moved(x: Tensor, logits: Tensor, loc: Tensor, deviation: Tensor) -> Tensor:
        row = torch.arange(len(x))
        eps = ((x - loc[row, k]) / deviation[row, k]).detach()
        return loc[row, k] + deviation[row, k] * eps

    return moved


def _gumbel_softmax(
    theta: Sequence[Tensor], gumbel: Tensor, eps: Tensor, temperature: float, straight_through: bool
) -> Tensor:
    """The mean gradient of the logits when the choice of the component is relaxed."""
    logits = theta[0].expand_as(gumbel).clone().requires_grad_()
    weights = torch.softmax((torch.log_softmax(logits, -1) + gumbel) / temperature, -1)
    if straight_through:
        hard = functional.one_hot(weights.argmax(-1), weights.shape[-1]).to(weights.dtype)
        weights = hard + weights - weights.detach()
    sample = weights @ theta[1] + (weights @ theta[2]) * eps
    return torch.autograd.grad(sample.cos().sum(), logits)[0].mean(0)


def logits_bias(seed: int, scale: str) -> Measurement:
    """K = 3, D = 2: bias of the logits gradient by the quantile transform and by Gumbel-softmax at several temperatures."""
    generator = torch.Generator().manual_seed(seed)
    draws = _draws(scale)
    temperatures = [0.1, 0.2, 0.5, 1.0]
    squares = []
    norm = own = 0.0
    biases = {name: [0.0] * len(temperatures) for name in ("soft", "straight-through")}
    for _ in range(MIXTURES):
        theta = _random_mixture(3, 2, generator)
        exact = _exact_gradients(*theta)[0]
        x = GaussianMixture(logits=theta[0], loc=theta[1], scale=theta[2]).sample((draws,), generator=generator)
        quantile = _per_sample(x, theta, _field("quantile"))[0]
        squares.append(_mean_square_z(quantile, exact))
        norm += float(exact.square().sum())
        own += float((quantile.mean(0) - exact).square().sum())
        uniform = torch.rand(draws, 3, dtype=DOUBLE, generator=generator).clamp(1e-300)
        gumbel, eps = -(-uniform.log()).log(), torch.randn(draws, 2, dtype=DOUBLE, generator=generator)
        for name, values in biases.items():
            for i, temperature in enumerate(temperatures):
                mean = _gumbel_softmax(theta, gumbel, eps, temperature, name == "straight-through")
                values[i] += float((mean - exact).square().sum())
    curves = {name: Curve(temperatures, [math.sqrt(v / norm) for v in values]) for name, values in biases.items()}
    curves["quantile transform"] = Curve(temperatures, [math.sqrt(own / norm)] * len(temperatures))
    plot = Plot(
        "Bias of the logits gradient",
        "temperature of the relaxation",
        "bias relative to the gradient",
        curves,
        x_log=True,
        y_log=True,
        caption=f"{MIXTURES} mixtures, {draws} samples each; what is left of the quantile transform's is Monte Carlo error.",
    )
    return Measurement(
        {
            "z2_quantile": sum(squares) / MIXTURES,
            "bias_quantile": math.sqrt(own / norm),
            "bias_gumbel_softmax": math.sqrt(biases["soft"][2] / norm),
        },
        {"bias": plot},
    )


def sampling_estimator(seed: int, scale: str) -> Measurement:
    """Relative error of the gradient from samples alone, for a growing number of samples."""
    generator = torch.Generator().manual_seed(seed)
    logits, loc, deviation = _random_mixture(3, 1, generator)
    draws = {"smoke": 100, "quick": 2000, "full": 20_000}[scale]
    theta = [p.expand(draws, 3).clone().requires_grad_() for p in (logits, loc.squeeze(-1), deviation.squeeze(-1))]
    counts = [10, 30, 100, 300, 1000] + ([3000, 10_000] if scale == "full" else [])
    errors = []
    torch.manual_seed(seed)
    for count in counts:
        family = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(logits=theta[0]), torch.distributions.Normal(theta[1], theta[2])
        )
        x = monte_carlo_pathwise(family, num_samples=count)
        estimate = torch.cat(torch.autograd.grad(x.sum(), theta), 1)
        mixture = (theta[0], theta[1].unsqueeze(-1), theta[2].unsqueeze(-1))
        moved = move_with_parameters(x.detach().unsqueeze(-1), *mixture, estimator="quantile")
        exact = torch.cat(torch.autograd.grad(moved.sum(), theta), 1)
        errors.append(float(((estimate - exact).norm(dim=1) / exact.norm(dim=1)).median()))
    logs = torch.tensor([counts, errors], dtype=DOUBLE).log()
    centred = logs - logs.mean(1, keepdim=True)
    slope = float((centred[0] * centred[1]).sum() / centred[0].square().sum())
    ideal = [errors[0] * (counts[0] / count) ** 0.5 for count in counts]
    plot = Plot(
        "Error of the sampling estimator",
        "samples M",
        "median relative error of dx/dtheta",
        {"measured": Curve(counts, errors), "1/sqrt(M)": Curve(counts, ideal)},
        x_log=True,
        y_log=True,
        caption="A mixture of three normals of which only the log density and a sampler are used.",
    )
    return Measurement({"slope": slope, "error_at_1000": errors[4]}, {"error": plot})


def separation(seed: int, scale: str) -> Measurement:
    """Two equal modes drawn apart: variance of the logits gradient by pathwise, score and their combination."""
    generator = torch.Generator().manual_seed(seed)
    repeats = {"smoke": 100, "quick": 1000, "full": 4000}[scale]
    samples = {"smoke": 100, "quick": 500, "full": 1000}[scale]
    distances = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
    curves: dict[str, list[float]] = {"pathwise": [], "score": [], "combined": []}
    for distance in distances:
        logits = torch.zeros(repeats, 2, dtype=DOUBLE, requires_grad=True)
        loc = torch.tensor([[-distance / 2], [distance / 2]], dtype=DOUBLE).expand(repeats, 2, 1).contiguous()
        ones = torch.ones_like(loc)
        mixture = GaussianMixture(logits=logits, loc=loc, scale=ones)
        x = mixture.sample((samples,), generator=generator)
        with torch.no_grad():
            pathwise = pathwise_gradients(torch.ones_like(x), x, logits, loc, ones)
            score = score_gradients(x.squeeze(-1), mixture.responsibilities(x), mixture.probs)
        value = combined_expectation(lambda x: x.squeeze(-1), x, logits, loc, ones)
        (combined,) = torch.autograd.grad(value.sum(), logits)
        for name, gradient in (("pathwise", pathwise.mean(0)), ("score", score.mean(0)), ("combined", combined)):
            curves[name].append(float(gradient[:, 0].var()) * samples)
    better = [min(p, s) for p, s in zip(curves["pathwise"], curves["score"], strict=True)]
    gains = [b / c for b, c in zip(better, curves["combined"], strict=True)]
    plot = Plot(
        "Variance of the logits gradient of E[x], one sample",
        "distance of the two modes [standard deviations]",
        "variance",
        {name: Curve(distances, values) for name, values in curves.items()},
        y_log=True,
        caption="Mass that moves between modes has to cross the gap: the pathwise variance grows like one over its density.",
    )
    numbers = {
        "worst_ratio_to_the_better": max(1 / gain for gain in gains),
        "least_gain_from_1_to_4": min(gains[1:5]),
        "pathwise_over_score_at_8": curves["pathwise"][-1] / curves["score"][-1],
    }
    return Measurement(numbers, {"variance": plot})


def multimodal_target(seed: int, scale: str) -> Measurement:
    """Eight Gaussians on a ring: how close the evidence lower bound comes to log Z = 0 with one and with eight components."""
    steps = {"smoke": 60, "quick": 600, "full": 3000}[scale]
    angles = torch.arange(8) * (math.pi / 4)
    ring = GaussianMixture(
        logits=torch.zeros(8), loc=2.0 * torch.stack([angles.cos(), angles.sin()], -1), scale=torch.full((8, 2), 0.5)
    )
    gaps, curves = {}, {}
    for components in (1, 8):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.zeros(components, requires_grad=True)
        loc = torch.randn(components, 2, generator=generator).requires_grad_()
        log_scale = torch.zeros(components, 2, requires_grad=True)
        optimizer = torch.optim.Adam([logits, loc, log_scale], lr=0.03)
        history = []
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 0.03 * 0.5 * (1 + math.cos(math.pi * step / steps))
            q = GaussianMixture(logits=logits, loc=loc, scale=log_scale.exp(), validate_args=False)
            x = q.rsample((256,), generator=generator)
            gap = (q.log_prob(x) - ring.log_prob(x)).mean()
            optimizer.zero_grad()
            gap.backward()
            optimizer.step()
            history.append(float(gap.detach()))
        with torch.no_grad():
            x = q.sample((100_000,), generator=generator)
            gaps[components] = float((q.log_prob(x) - ring.log_prob(x)).mean())
        width = max(1, steps // 60)
        blocks = [sum(history[i : i + width]) / width for i in range(0, steps - width + 1, width)]
        curves[f"K = {components}"] = Curve([i * width for i in range(len(blocks))], blocks)
    plot = Plot(
        "Gap to the evidence during fitting",
        "step",
        "log Z - ELBO [nats]",
        curves,
        caption="Target: eight Gaussians on a ring.",
    )
    return Measurement({"gap_1": gaps[1], "gap_8": gaps[8], "gain": gaps[1] - gaps[8]}, {"gap": plot})


def _digits_gain(seed: int, scale: str, objective: str, latent_dim: int, quick_epochs: int = 40) -> Measurement:
    """Held-out bounds of autoencoders with one and with four components on binarised digits."""
    import numpy as np

    from tenfold.datasets import digits
    from tenfold.mixture.training import evaluate, fit

    images = torch.from_numpy((digits().images.reshape(-1, 64) >= 8).astype(np.float32))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = images[order[:1500]], images[order[1500:]]
    epochs = {"smoke": 2, "quick": quick_epochs, "full": 300}[scale]
    bounds = {}
    for components in (1, 4):
        vae, _ = fit(
            train,
            latent_dim=latent_dim,
            num_components=components,
            hidden=(128,),
            objective=objective,
            num_samples=8 if objective == "elbo" else 8 // components,
            epochs=epochs,
            batch_size=256,
            learning_rate=3e-3,
            validation=0.0,
            seed=seed,
            device="cpu",
            progress=False,
        )
        bounds[components] = evaluate(vae, test, num_samples=128, seed=seed)
    names = {"elbo": "ELBO", "importance_bound": "importance bound", "stratified_bound": "stratified bound"}
    curves = {f"K = {k}": Curve((0, 1, 2), [values[name][0] for name in names]) for k, values in bounds.items()}
    plot = Plot(
        "Digits that training has not seen",
        "",
        "bound [nats], higher is better",
        curves,
        kind="bar",
        ticks=tuple(names.values()),
        caption=f"297 images of 8 x 8, binarised, codes of length {latent_dim}, 128 samples an image.",
    )
    measured = "elbo" if objective == "elbo" else "stratified_bound"
    return Measurement(
        {
            "gain": bounds[4][measured][0] - bounds[1][measured][0],
            "bound_1": bounds[1][measured][0],
            "bound_4": bounds[4][measured][0],
        },
        {"bounds": plot},
    )


def digits_elbo(seed: int, scale: str) -> Measurement:
    """Trained on the ELBO, codes of length 1."""
    return _digits_gain(seed, scale, "elbo", latent_dim=1, quick_epochs=80)


def digits_stratified(seed: int, scale: str) -> Measurement:
    """Trained on the stratified bound, codes of length 1."""
    return _digits_gain(seed, scale, "stratified", latent_dim=1)


def digits_elbo_two_dimensions(seed: int, scale: str) -> Measurement:
    """Trained on the ELBO, codes of length 2."""
    return _digits_gain(seed, scale, "elbo", latent_dim=2)
