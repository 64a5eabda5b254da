"""Training of the autoencoder: it learns, it repeats itself, and it refuses what it cannot use."""

import math
import os
import signal

import pytest
import torch

from tenfold.mixture import MixtureVAE
from tenfold.mixture.training import OBJECTIVES, evaluate, fit
from tenfold.training import Interrupted, seeded_generator
from tenfold.training.checkpoints import list_checkpoints

SMALL = {"hidden": (16,), "epochs": 3, "batch_size": 16, "device": "cpu", "progress": False}


def clusters(count=96):
    """Binary rows of two kinds, with a few bits turned."""
    kinds = torch.tensor([[1.0] * 6 + [0.0] * 6, [0.0] * 6 + [1.0] * 6])
    x = kinds[torch.arange(count) % 2]
    return (x - (torch.rand(count, 12) < 0.05).float()).abs()


def weights(vae):
    return torch.cat([parameter.detach().flatten() for parameter in vae.parameters()])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_raises_the_bound(objective):
    x = clusters()
    _, before = fit(x, objective=objective, **(SMALL | {"epochs": 1}))
    vae, after = fit(x, objective=objective, learning_rate=2e-2, **(SMALL | {"epochs": 15}))
    assert after["bound"] > before["bound"] + 2
    assert after["val_bound"] > before["val_bound"] + 2
    assert not vae.training
    # of 12 bits one is a coin for the kind, and each is turned with probability 0.05: about -3 nats at best
    assert -4.5 < evaluate(vae, clusters(500), num_samples=200)["importance_bound"][0] < -2.5


def test_same_seed_same_weights_other_seed_others():
    x = clusters(40)
    first, again, other = (weights(fit(x, seed=seed, **SMALL)[0]) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_small_data_get_two_thousand_steps_unless_told_otherwise(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "tenfold.mixture.training.train",
        lambda *_, max_epochs, validate_every, **__: seen.append((max_epochs, validate_every)),
    )
    for rows in (40, 128 * 5, 128 * 50, 128 * 400):
        fit(torch.zeros(rows, 1), validation=0.0, hidden=(2,))
    assert [epochs for epochs, _ in seen] == [2000, 400, 40, 20]
    assert [every for _, every in seen] == [50, 10, 1, 1]  # epochs from one validation to the next: 50 steps at least


def test_bounds_are_of_the_trained_model_on_its_two_parts_of_the_rows():
    x = clusters(200)
    vae, bounds = fit(x, validation=0.25, num_samples=64, **SMALL)
    order = torch.randperm(200, generator=seeded_generator(0, 1))
    for name, rows in (("bound", order[50:]), ("val_bound", order[:50])):
        mean, error = evaluate(vae, x[rows], num_samples=64, seed=5)["elbo"]
        assert bounds[name] == pytest.approx(mean, abs=3 * error)  # other samples of the same rows: closer than that


def test_random_state_of_the_caller_does_not_matter():
    x = clusters(40)
    torch.manual_seed(1)
    first = weights(fit(x, **SMALL)[0])
    torch.rand(7)
    assert torch.equal(first, weights(fit(x, **SMALL)[0]))


def test_interrupted_training_resumes_to_the_same_weights(tmp_path, monkeypatch):
    x = clusters(40)
    whole = weights(fit(x, checkpoint_dir=tmp_path / "whole", **SMALL)[0])
    step = MixtureVAE.elbo
    calls = []

    def interrupting(vae, *arguments, **options):
        calls.append(None)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step(vae, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MixtureVAE, "elbo", interrupting)
        with pytest.raises(Interrupted, match="Ctrl-C") as stop:
            fit(x, checkpoint_dir=tmp_path / "stopped", **SMALL)
    assert stop.value.saved in list_checkpoints(tmp_path / "stopped")
    vae, _ = fit(x, checkpoint_dir=tmp_path / "stopped", resume=True, **SMALL)
    assert torch.equal(weights(vae), whole)


def test_validation_rows_are_not_trained_on():
    x = clusters(40)
    _, bounds = fit(x, validation=0.0, **SMALL)
    assert set(bounds) == {"bound"}
    _, bounds = fit(x, validation=0.25, **SMALL)
    assert set(bounds) == {"bound", "val_bound"}
    order = torch.randperm(40, generator=seeded_generator(0, 1))
    changed = x.clone()
    changed[order[:10]] = 1 - changed[order[:10]]
    same, _ = fit(x, validation=0.25, **SMALL)
    assert torch.equal(weights(fit(changed, validation=0.25, **SMALL)[0]), weights(same))


def test_real_features_are_centred_on_the_training_rows():
    x = 1000 + 50 * torch.randn(64, 3)
    x[:, 2] = 7
    vae, bounds = fit(x, likelihood="gaussian", validation=0.0, **SMALL)
    torch.testing.assert_close(vae.center, x.mean(0))
    torch.testing.assert_close(vae.width[:2], x[:, :2].std(0, correction=0))
    assert vae.width[2] == 1
    assert math.isfinite(bounds["bound"])


def test_batches_larger_than_the_data_and_more_components_than_rows_are_fine():
    vae, _ = fit(clusters(3), num_components=9, **(SMALL | {"batch_size": 1000, "epochs": 1}))
    assert vae.embed(clusters(3))[1].shape == (3, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "iwae"}, "objective='iwae' is not one of 'elbo', 'stratified'"),
        ({"likelihood": "poisson"}, "likelihood='poisson' is not one of 'bernoulli', 'gaussian'"),
        ({"num_samples": 0}, "num_samples=0 must be at least 1"),
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be a positive number"),
        ({"learning_rate": math.nan}, "learning_rate=nan must be a positive number"),
        ({"validation": 1.0}, "validation=1.0 must be at least 0 and below 1"),
        ({"validation": 0.97}, "40 rows are too few with validation=0.97: training needs 2"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fit(clusters(40), **(SMALL | options))


def test_values_that_cannot_be_used_are_refused():
    with pytest.raises(ValueError, match=r"1 row is too few with validation=0\.1: training needs 2"):
        fit(clusters(1), **SMALL)
    with pytest.raises(ValueError, match=r"these range from 0 to 2: use likelihood='gaussian'"):
        fit(2 * clusters(40), **SMALL)
    with pytest.raises(ValueError, match="values must be finite"):
        fit(torch.tensor([[math.nan], [0.0], [1.0]]), **SMALL)


def test_evaluation_repeats_itself_and_counts_rows():
    vae, x = MixtureVAE(12, hidden=[8]).eval(), clusters(30)
    first, again = (evaluate(vae, x, num_samples=8, seed=4) for _ in range(2))
    assert first == again
    assert set(first) == {"elbo", "importance_bound", "stratified_bound"}
    assert evaluate(vae, x[:1], num_samples=1)["elbo"][1] is math.nan  # one row has no spread
    with pytest.raises(ValueError, match="num_samples=0"):
        evaluate(vae, x, num_samples=0)
