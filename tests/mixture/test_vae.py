"""The mixture autoencoder: its bounds beside numerical integration, its gradients, its folder."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.errors import InputError
from tenfold.mixture import MixtureVAE
from tenfold.mixture.training import OBJECTIVES, evaluate
from type_checking import unchecked_annotations

LIKELIHOODS = ("bernoulli", "gaussian")


def small_vae(likelihood="bernoulli", latent_dim=1, num_components=3, features=4):
    """A model in double precision whose weights are large enough for posteriors with several modes."""
    torch.manual_seed(3)
    vae = MixtureVAE(features, latent_dim, num_components, [8], likelihood).double()
    with torch.no_grad():
        for parameter in vae.decoder.parameters():
            parameter.mul_(3)
    return vae.eval()


def rows(likelihood, count=5, features=4):
    x = torch.rand(count, features, dtype=torch.float64)
    return x.round() if likelihood == "bernoulli" else 2 * x - 1


def log_evidence(vae, x):
    """log p(x) by the trapezoid rule over the prior's mass, in one or two latent dimensions."""
    line = torch.linspace(-9, 9, 1201 if vae.latent_dim == 1 else 301, dtype=torch.float64)
    z = torch.cartesian_prod(*[line] * vae.latent_dim).reshape(-1, vae.latent_dim)
    log_joint = vae.log_joint(x, z.unsqueeze(1).expand(-1, len(x), -1))
    return torch.logsumexp(log_joint, 0) + vae.latent_dim * math.log(18 / (len(line) - 1))


@pytest.mark.parametrize(("likelihood", "latent_dim"), list(product(LIKELIHOODS, (1, 2))))
@torch.no_grad()
def test_bounds_are_ordered_below_the_integrated_evidence(likelihood, latent_dim):
    vae, x = small_vae(likelihood, latent_dim), rows(likelihood)
    evidence = log_evidence(vae, x)
    repeats = x.repeat_interleave(400, 0)
    means, errors = [], []
    for estimate in (vae.elbo(repeats), vae.importance_bound(repeats, 8), vae.importance_bound(repeats, 64)):
        by_row = estimate.reshape(len(x), -1)
        means.append(by_row.mean(1))
        errors.append(4 * by_row.std(1) / 400**0.5)
    for (lower, e), (upper, f) in zip(
        zip(means, errors, strict=True), [*zip(means[1:], errors[1:], strict=True), (evidence, 0.0)], strict=True
    ):
        assert (lower <= upper + e + f).all()
    assert ((evidence - means[2]) < 0.5).all()  # and the tightest is near


@pytest.mark.parametrize(("likelihood", "bound"), list(product(LIKELIHOODS, ("importance_bound", "stratified_bound"))))
@torch.no_grad()
def test_importance_weights_average_to_the_evidence(likelihood, bound):
    vae, x = small_vae(likelihood), rows(likelihood)
    log_weights = getattr(vae, bound)(x.repeat_interleave(300, 0), 100).reshape(len(x), -1)
    ratio = (log_weights - log_evidence(vae, x).unsqueeze(1)).exp()
    assert ((ratio.mean(1) - 1).abs() < 5 * ratio.std(1) / 300**0.5 + 1e-3).all()


@torch.no_grad()
def test_elbo_is_the_integral_over_the_posterior():
    vae, x = small_vae(), rows("bernoulli")
    line = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    z = line.reshape(-1, 1, 1).expand(-1, len(x), 1)
    log_q = vae.posterior(x).log_prob(z)
    exact = (log_q.exp() * (vae.log_joint(x, z) - log_q)).sum(0) * (18 / 4000)
    estimates = vae.elbo(x.repeat_interleave(2000, 0)).reshape(len(x), -1)
    assert ((estimates.mean(1) - exact).abs() < 5 * estimates.std(1) / 2000**0.5).all()


@torch.no_grad()
def test_stratified_bound_of_one_component_is_the_importance_bound():
    vae, x = small_vae(num_components=1), rows("bernoulli")
    q = vae.posterior(x)
    eps = torch.randn((6, len(x), 1, 1), dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    z = (q.loc + q.scale * eps).squeeze(-2)
    expected = torch.logsumexp(vae.log_joint(x, z) - q.log_prob(z), 0) - math.log(6)
    stratified = vae.stratified_bound(x, 6, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(stratified, expected)


@torch.no_grad()
def test_stratified_bound_is_tighter_than_the_elbo_on_average():
    vae, x = small_vae(), rows("bernoulli", 200)
    assert vae.stratified_bound(x, 4).mean() > vae.elbo(x, 12).mean()


@torch.no_grad()
def test_log_likelihood_is_that_of_the_distribution():
    for likelihood in LIKELIHOODS:
        vae, x = small_vae(likelihood), rows(likelihood)
        vae.standardize(3 * x + 7)
        z = torch.randn(2, len(x), 1, dtype=torch.float64)
        if likelihood == "bernoulli":
            p = torch.distributions.Bernoulli(vae.decode(z))
        else:
            p = torch.distributions.Normal(vae.decode(z), 1.01 * vae.width)  # noise at the start, and its floor
        torch.testing.assert_close(vae.log_likelihood(x, z), p.log_prob(x).sum(-1))


def test_density_of_real_features_is_in_the_units_of_the_data():
    x = rows("gaussian", 50)
    bounds = []
    for unit in (1.0, 1000.0):
        vae = small_vae("gaussian")
        vae.standardize(unit * x)
        bounds.append(vae.elbo(unit * x, 4, generator=torch.Generator().manual_seed(1)).detach())
    torch.testing.assert_close(bounds[1], bounds[0] - 4 * math.log(1000))


@pytest.mark.parametrize(("likelihood", "objective"), list(product(LIKELIHOODS, OBJECTIVES)))
def test_gradients_of_every_weight_are_finite_and_not_all_zero(likelihood, objective):
    vae = MixtureVAE(4, 2, 3, [8], likelihood)
    x = rows(likelihood).float()
    (vae.elbo(x, 2) if objective == "elbo" else vae.stratified_bound(x, 2)).mean().backward()
    for name, parameter in vae.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_bounds_stay_finite_far_from_the_training_data():
    vae = MixtureVAE(4, 2, 3, [8], "gaussian")
    x = torch.full((2, 4), 1e4)
    bound = vae.elbo(x)
    bound.sum().backward()
    assert bound.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in vae.parameters())


def test_constant_column_leaves_bound_and_gradients_finite():
    x = torch.rand(150, 3)
    x[:, 1] = 0.1  # whose mean in floating point is not exactly 0.1
    vae = MixtureVAE(3, 1, 2, [4], "gaussian")
    vae.standardize(x)
    assert vae.width[1] == 1
    assert vae.elbo(x).isfinite().all()


def test_noise_of_a_predictable_column_has_a_floor():
    vae = small_vae("gaussian")
    with torch.no_grad():
        vae.log_noise.fill_(-100.0)
        z = torch.zeros(1, 1, dtype=torch.float64)
        best = vae.log_likelihood(vae.decode(z), z)
    assert best.item() == pytest.approx(4 * (math.log(100) - 0.5 * math.log(2 * math.pi)))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 7), st.permutations(range(12)))
def test_code_of_a_row_depends_on_no_other_row(batch_size, order):
    vae, x = small_vae(), rows("bernoulli", 12)
    codes, probs = vae.embed(x)
    codes_again, probs_again = vae.embed(x[order], batch_size=batch_size)
    torch.testing.assert_close(codes_again, codes[order])
    torch.testing.assert_close(probs_again, probs[order])


def test_code_is_the_mean_of_the_most_probable_component():
    vae, x = small_vae(latent_dim=2), rows("bernoulli")
    q = vae.posterior(x)
    codes, probs = vae.embed(x)
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(x), dtype=torch.float64))
    for i in range(len(x)):
        assert torch.equal(codes[i], q.loc[i, probs[i].argmax()])


def test_dtype_follows_the_model():
    for dtype in (torch.float32, torch.float64):
        vae, x = small_vae().to(dtype), rows("bernoulli").to(dtype)
        assert (
            vae.elbo(x).dtype == vae.stratified_bound(x).dtype == vae.sample(2).dtype == vae.embed(x)[0].dtype == dtype
        )


def test_draws_have_the_spread_of_noise_and_means_do_not():
    vae = small_vae("gaussian")
    vae.standardize(100 + 10 * rows("gaussian", 50))
    with torch.no_grad():
        for parameter in vae.decoder.parameters():
            parameter.zero_()
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(vae.sample(5), vae.center.expand(5, -1))
    draws = vae.sample(20_000, mean=False, generator=generator)
    torch.testing.assert_close(draws.std(0), 1.01 * vae.width, rtol=0.03, atol=0)
    binary = small_vae().sample(100, mean=False, generator=generator)
    assert set(binary.flatten().tolist()) == {0.0, 1.0}


def test_same_generator_seed_same_bounds():
    vae, x = small_vae(), rows("bernoulli")
    for bound in (vae.elbo, vae.stratified_bound, vae.importance_bound):
        first, second = (bound(x, 3, generator=torch.Generator().manual_seed(9)) for _ in range(2))
        assert torch.equal(first, second)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_features": 6, "image_shape": [2, 3], "hidden": [5, 4]},
        {"num_features": 2, "likelihood": "gaussian", "names": ["a", "b"], "hidden": []},
    ],
)
def test_folder_gives_the_same_model_back(tmp_path, arguments):
    vae = MixtureVAE(**arguments)
    vae.standardize(torch.rand(9, vae.num_features))
    vae.save_pretrained(tmp_path / "model")
    again = MixtureVAE.from_pretrained(tmp_path / "model")
    for name, tensor in vae.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert (again.image_shape, again.names, again.likelihood) == (vae.image_shape, vae.names, vae.likelihood)
    x = torch.rand(4, vae.num_features)
    assert torch.equal(again.embed(x)[0], vae.embed(x)[0])


def test_folder_keeps_double_precision(tmp_path):
    small_vae().save_pretrained(tmp_path / "model")
    assert MixtureVAE.from_pretrained(tmp_path / "model").center.dtype == torch.float64


def test_model_card_tells_how_to_load_and_use_it(tmp_path):
    MixtureVAE(6, hidden=[5]).save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "from tenfold.mixture import MixtureVAE" in card
    assert "tenfold mixture embed" in card
    assert "More Information Needed" not in card


def test_folder_of_another_class_is_refused(tmp_path):
    MixtureVAE(6, hidden=[5]).save_pretrained(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"MixtureVAE"', '"Other"'))
    with pytest.raises(InputError, match="folder of a Other"):
        MixtureVAE.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_features": 0}, "num_features=0"),
        ({"num_features": 4, "latent_dim": 0}, "latent_dim=0"),
        ({"num_features": 4, "num_components": -1}, "num_components=-1"),
        ({"num_features": 4, "hidden": [8, 0]}, r"hidden\[1\]=0"),
        ({"num_features": 4, "likelihood": "poisson"}, "'poisson' is not one of 'bernoulli', 'gaussian'"),
        ({"num_features": 4, "image_shape": [2, 3]}, r"image_shape=\(2, 3\) holds 6 values, num_features=4"),
        ({"num_features": 4, "names": ["a"]}, "names has 1 entries, num_features=4"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MixtureVAE(**arguments)


def test_evaluation_agrees_with_the_integrated_evidence():
    vae, x = small_vae(), rows("bernoulli", 40)
    results = evaluate(vae, x, num_samples=300)
    exact = log_evidence(vae, x)
    assert results["importance_bound"][0] == pytest.approx(exact.mean().item(), abs=0.02)
    assert results["stratified_bound"][0] == pytest.approx(exact.mean().item(), abs=0.02)
    assert results["importance_bound"][1] == pytest.approx((exact.std() / 40**0.5).item(), rel=0.1)
    assert results["elbo"][0] < results["importance_bound"][0]


CALLS_ON_DATA = ("posterior", "forward", "elbo", "stratified_bound", "importance_bound", "embed")


@pytest.mark.parametrize("call", CALLS_ON_DATA)
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.rand(5, 3), ValueError, r"x has shape \(5, 3\), but this model takes \(N, 4\): rows of num_features=4"),
        (torch.rand(4), ValueError, r"x has shape \(4,\), but this model takes \(N, 4\)"),
        (torch.rand(2, 5, 4), ValueError, r"x has shape \(2, 5, 4\), but this model takes \(N, 4\)"),
        (
            torch.rand(5, 4).double(),
            TypeError,
            r"x is torch.float64 and the model torch.float32; pass x.to\(torch.float32\)",
        ),
        ([[0.0] * 4], TypeError, r"x must be a tensor of shape \(N, 4\), not list"),
        (
            torch.tensor([[0, 1, 0, 1.5]]),
            ValueError,
            r"x\[0, 3\] = 1.5 must lie between 0 and 1 for likelihood='bernoulli'",
        ),
        (torch.tensor([[0, -1, 0, 1.0]]), ValueError, r"x\[0, 1\] = -1 must lie between 0 and 1"),
        (torch.tensor([[0, math.nan, 0, 1]]), ValueError, r"x\[0, 1\] = nan must lie between 0 and 1"),
    ],
)
def test_data_of_another_kind_is_one_sentence(call, x, error, message):
    vae = MixtureVAE(4, hidden=[8])
    with unchecked_annotations(), pytest.raises(error, match=message) as raised:
        getattr(vae, call)(x)
    assert "\n" not in str(raised.value)


def test_real_features_must_be_finite_and_may_be_anything_else():
    vae = MixtureVAE(4, hidden=[8], likelihood="gaussian")
    assert vae.elbo(torch.tensor([[-3.0, 0.0, 1.5, 1e3]])).isfinite().all()
    with pytest.raises(ValueError, match=r"x\[0, 2\] = inf must be finite"):
        vae.elbo(torch.tensor([[0.0, 0.0, math.inf, 0.0]]))
    with unchecked_annotations(), pytest.raises(ValueError, match=r"x has shape \(4,\)"):
        vae.standardize(torch.zeros(4))


def test_binary_data_may_be_integers_or_booleans():
    vae = MixtureVAE(4, hidden=[8])
    data = torch.tensor([[0, 1, 1, 0]])
    for x in (data, data.bool(), data.half()):
        with unchecked_annotations():
            torch.testing.assert_close(vae(x).logits, vae(data.float()).logits)


@pytest.mark.parametrize("bound", ["elbo", "stratified_bound", "importance_bound"])
def test_number_of_samples_is_a_positive_integer(bound):
    vae = MixtureVAE(4, hidden=[8])
    with pytest.raises(ValueError, match=r"num_samples=0 must be at least 1"):
        getattr(vae, bound)(torch.rand(2, 4), num_samples=0)
    with unchecked_annotations(), pytest.raises(TypeError, match=r"num_samples=1.5 must be an integer, at least 1"):
        getattr(vae, bound)(torch.rand(2, 4), num_samples=1.5)


def test_counts_below_their_least_are_named():
    vae = MixtureVAE(4, hidden=[8])
    with pytest.raises(ValueError, match=r"num_samples=-1 must be at least 0"):
        vae.sample(-1)
    with pytest.raises(ValueError, match=r"batch_size=0 must be at least 1"):
        vae.embed(torch.rand(2, 4), batch_size=0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hidden": 8}, TypeError, r"hidden=8 must be a sequence of widths, one a hidden layer, such as \(256, 128\)"),
        ({"hidden": "8"}, TypeError, r"hidden='8' must be a sequence of widths"),
        ({"hidden": [8, 2.5]}, TypeError, r"hidden\[1\]=2.5 must be an integer, at least 1"),
        ({"hidden": [8, 0]}, ValueError, r"hidden\[1\]=0 must be at least 1"),
        ({"latent_dim": 2.0}, TypeError, r"latent_dim=2.0 must be an integer, at least 1"),
        ({"image_shape": 4}, TypeError, r"image_shape=4 must be \(height, width\) or \(height, width, channels\)"),
    ],
)
def test_sizes_of_another_kind_are_one_sentence(options, error, message):
    with unchecked_annotations(), pytest.raises(error, match=message):
        MixtureVAE(4, **options)


def test_codes_of_another_length_or_number_are_named():
    vae = MixtureVAE(4, latent_dim=2, hidden=[8])
    with unchecked_annotations():
        with pytest.raises(ValueError, match=r"z has shape \(3, 5\), but codes of this model need the shape \(.., 2\)"):
            vae.decode(torch.zeros(3, 5))
        with pytest.raises(
            ValueError, match=r"z has shape \(3, 2\), but codes of this model need the shape \(.., 6, 2\)"
        ):
            vae.log_joint(torch.zeros(6, 4), torch.zeros(3, 2))
