"""Training on pairs: it learns, it repeats itself, and its objectives are what they say."""

import os
import random
import signal

import pytest
import torch
from torch.nn import functional

from tenfold.errors import InputError
from tenfold.raml.data import Vocabulary
from tenfold.raml.edit import EditPayoff
from tenfold.raml.hamming import HammingPayoff
from tenfold.raml.model import Seq2SeqModel
from tenfold.raml.objective import raml_loss
from tenfold.raml.seq2seq import AttentionGRU
from tenfold.raml.training import OBJECTIVES, Seq2SeqModule, fit_pairs, shifted
from tenfold.training import Interrupted
from tenfold.training.checkpoints import list_checkpoints

QUICK = {"device": "cpu", "progress": False, "validation": 0.0}
SMALL = {**QUICK, "width": 12, "batch_size": 8, "epochs": 3}


def words(count, longest=5, seed=0, letters="abcdef"):
    drawn = random.Random(seed)
    return ["".join(drawn.choices(letters, k=drawn.randint(1, longest))) for _ in range(count)]


def reversals(count=40, **options):
    return [(word, word[::-1].upper()) for word in words(count, **options)]


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("network", ["gru", "transformer"])
def test_words_are_learnt_backwards(network):
    pairs = reversals(24, longest=4)
    model, scores = fit_pairs(
        pairs,
        network=network,
        width=32,
        steps=250,
        batch_size=24,
        learning_rate=1e-2 if network == "gru" else 3e-3,
        **QUICK,
    )
    assert [output.text for output in model.predict([word for word, _ in pairs])] == [target for _, target in pairs]
    assert scores["loss"] < 0.1
    assert not model.training


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_lowers_the_loss_of_the_targets(objective):
    pairs = reversals(16, longest=3)
    options = {
        "objective": objective,
        "tau": 0.5,
        "width": 16,
        "batch_size": 16,
        "learning_rate": 1e-2,
        "candidates": 3,
    }
    before, after = (fit_pairs(pairs, steps=steps, **options, **QUICK)[1]["loss"] for steps in (1, 60))
    assert after < before - 0.4


# nematus#40: risk training from a random start collapses; the reward-augmented objective needs no start
def test_reward_augmented_loss_falls_from_a_random_start():
    torch.manual_seed(0)
    source, target = torch.randint(4, 10, (32, 5)), torch.randint(4, 10, (32, 5))
    lengths = torch.full((32,), 5)
    network, payoff = AttentionGRU(10, 10, width=16), EditPayoff(10, 0.6, exclude_ids=(0, 1, 2, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(50):
        ids, counts = payoff.sample(target, lengths, 1, generator)
        inputs, labels = shifted(ids, counts)
        loss = raml_loss(network(source, lengths, inputs, counts + 1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < sum(losses[:5]) / 5 - 0.4


def module(objective, **options):
    torch.manual_seed(1)
    vocabulary = Vocabulary("abcdef")
    trained = Seq2SeqModule(Seq2SeqModel(vocabulary, vocabulary, width=8), objective=objective, **options)
    trained.trainer = Idle()
    return trained


class Idle:
    """What a module asks its trainer for."""

    training, loggers, global_step, current_epoch = True, (), 0, 0


def batch():
    torch.manual_seed(0)
    source, target = torch.randint(4, 10, (6, 5)), torch.randint(4, 10, (6, 4))
    lengths, target_lengths = torch.tensor([5, 1, 3, 2, 5, 4]), torch.tensor([4, 2, 1, 3, 4, 2])
    return (
        source.masked_fill(torch.arange(5) >= lengths[:, None], 0),
        lengths,
        target.masked_fill(torch.arange(4) >= target_lengths[:, None], 0),
        target_lengths,
        torch.arange(6),
    )


def test_at_temperature_zero_the_objective_is_maximum_likelihood_bit_for_bit():
    for payoff in (EditPayoff, HammingPayoff):
        raml = module("raml", payoff=payoff(10, 0.0, exclude_ids=(0, 1, 2, 3)))
        moved = raml.on_before_batch_transfer(batch(), 0)
        assert torch.equal(raml.training_step(moved), module("ml").training_step(batch()))


def test_smoothing_is_torchs_on_the_targets():
    trained = module("smoothing", smoothing=0.2)
    source, lengths, target, target_lengths, _ = batch()
    inputs, labels = shifted(target, target_lengths)
    logits = trained.model(source, lengths, inputs)
    rows, columns = (labels != -100).nonzero(as_tuple=True)
    expected = functional.cross_entropy(logits[rows, columns], labels[rows, columns], label_smoothing=0.2)
    torch.testing.assert_close(trained.training_step(batch()), expected)


def test_drawn_targets_depend_on_seed_epoch_and_example_alone():
    payoff = EditPayoff(10, 0.9, exclude_ids=(0, 1, 2, 3))
    trained = module("raml", payoff=payoff, samples=2, seed=5)
    _, _, target, lengths, number = batch()

    def texts(rows):
        ids, counts = trained.drawn(target[rows], lengths[rows], number[rows])
        return [row[:count] for row, count in zip(ids.tolist(), counts.tolist(), strict=True)]

    whole = texts(torch.arange(6))
    mixed = torch.tensor([4, 0, 5, 2])
    assert texts(mixed) == [whole[2 * row + sample] for row in mixed.tolist() for sample in range(2)]
    trained.trainer.current_epoch = 1
    assert texts(torch.arange(6)) != whole
    trained.trainer.current_epoch, trained.seed = 0, 6
    assert texts(torch.arange(6)) != whole


# neuralmonkey#739, OpenNMT-tf#90: a temperature that changes while training
def test_a_schedule_sets_the_temperature_of_each_step():
    seen = []

    def schedule(step):
        seen.append(step)
        return 0.0 if step >= 3 else 0.9

    trained = module("raml", payoff=EditPayoff(10, 0.9, exclude_ids=(0, 1, 2, 3)), schedule=schedule)
    _, _, target, lengths, number = batch()
    for step, same in ((0, False), (3, True)):
        trained.trainer.global_step = step
        ids, counts = trained.drawn(target, lengths, number)
        assert (torch.equal(ids, target) and torch.equal(counts, lengths)) == same
    assert seen == [0, 3]


def test_validation_targets_are_not_drawn():
    trained = module("raml", payoff=EditPayoff(10, 0.9, exclude_ids=(0, 1, 2, 3)))
    trained.trainer.training = False
    moved = trained.on_before_batch_transfer(batch(), 0)
    assert torch.equal(moved[2], batch()[2])
    trained.trainer = Idle()


def test_batches_lose_the_padding_that_no_row_needs():
    source, lengths, target, target_lengths, number = batch()
    wide = (functional.pad(source, (0, 7)), lengths, functional.pad(target, (0, 9)), target_lengths, number)
    for one, other in zip(module("ml").on_before_batch_transfer(wide, 0), batch(), strict=True):
        assert torch.equal(one, other)


def test_risk_is_between_no_error_and_the_worst_candidate():
    trained = module("risk", candidates=4)
    loss = trained.training_step(batch())
    assert 0 < float(loss.detach()) < 10
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in trained.model.parameters())
    assert trained.model.training


def test_risk_starts_with_maximum_likelihood():
    trained = module("risk", warm_steps=2)
    assert torch.equal(trained.training_step(batch()), module("ml").training_step(batch()))


@pytest.mark.parametrize("objective", ["ml", "raml", "risk"])
def test_same_seed_same_weights_other_seed_others(objective):
    first, again, other = (
        weights(fit_pairs(reversals(16), objective=objective, seed=seed, candidates=2, **SMALL)[0])
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("objective", ["raml", "risk"])
def test_interrupted_training_resumes_to_the_same_weights(tmp_path, monkeypatch, objective):
    options = {**SMALL, "objective": objective, "candidates": 2, "dropout": 0.1}
    pairs = reversals(20)
    whole = weights(fit_pairs(pairs, checkpoint_dir=tmp_path / "whole", **options)[0])
    step, calls = Seq2SeqModule.training_step, []

    def interrupting(self, batch):
        calls.append(None)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Seq2SeqModule, "training_step", interrupting)
        with pytest.raises(Interrupted, match="Ctrl-C") as stop:
            fit_pairs(pairs, checkpoint_dir=tmp_path / "stopped", **options)
    assert stop.value.saved in list_checkpoints(tmp_path / "stopped")
    model, _ = fit_pairs(pairs, checkpoint_dir=tmp_path / "stopped", resume=True, **options)
    assert torch.equal(weights(model), whole)


def test_all_targets_of_a_source_are_in_one_part():
    pairs = [pair for word in dict.fromkeys(words(30)) for pair in ((word, "A"), (word, "AB"))]
    model, scores = fit_pairs(pairs, **{**SMALL, "validation": 0.3, "steps": 40})
    assert scores.keys() == {"loss", "val_loss", "val_error_rate"}
    outputs = {output.text for output in model.predict([word for word, _ in pairs])}
    if outputs <= {"A", "AB"}:  # each is one of the two right answers
        assert scores["val_error_rate"] == 0
    else:
        assert scores["val_error_rate"] > 0


def test_rare_tokens_become_one():
    pairs = [*reversals(20, letters="ab"), ("abz", "ZBA")]
    model, _ = fit_pairs(pairs, min_count=2, **SMALL)
    assert "z" not in model.source_vocabulary
    assert "a" in model.source_vocabulary
    assert len(model.predict(["axyz"])) == 1
    with pytest.raises(InputError, match="has no 'x'"):
        fit_pairs(pairs, **SMALL)[0].predict(["axyz"])


def test_a_trained_model_survives_its_folder(tmp_path):
    model, _ = fit_pairs(reversals(12), source_tokens="regex:[a-f]", **SMALL)
    model.save_pretrained(tmp_path / "model")
    again = Seq2SeqModel.from_pretrained(tmp_path / "model")
    assert again.predict(["abc", "f"]) == model.predict(["abc", "f"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "mle"}, "objective='mle' is not one of 'ml', 'raml', 'smoothing', 'risk'"),
        ({"payoff": "bleu"}, "payoff='bleu' is not one of 'edit', 'hamming'"),
        ({"samples": 0}, "samples=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"smoothing": 1.0}, r"smoothing=1\.0"),
        ({"validation": 1.0}, r"validation=1\.0"),
        ({"learning_rate": 0.0}, r"learning_rate=0\.0"),
        ({"objective": "raml", "tau": -1.0}, "tau"),
        ({"objective": "raml", "tau": 5.0}, "tau"),  # no distribution over all strings
        ({"validation": 0.99}, "pairs are too few with validation=0.99"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fit_pairs(reversals(4), **{**SMALL, **options})
