"""Scores of outputs beside sacrebleu, and sums worked by hand; held-out pairs."""

import numpy as np
import pytest
import sacrebleu

from tenfold.raml.comparison import Run, held_out, planned
from tenfold.raml.data import Pairs
from tenfold.raml.scores import scores


def made_up(generator, rows, spread):
    """References and outputs of few different words, so that n-grams meet."""
    sentences = [[f"w{k}" for k in generator.integers(0, spread, generator.integers(1, 12))] for _ in range(rows)]
    outputs = [[word for word in sentence if generator.random() < 0.8] or ["w0"] for sentence in sentences]
    return sentences, outputs


@pytest.mark.parametrize("spread", [3, 9, 400])
def test_bleu_is_sacrebleus(spread):
    generator = np.random.default_rng(spread)
    sentences, outputs = made_up(generator, 20, spread)
    others, _ = made_up(generator, 20, spread)
    texts = [" ".join(output) for output in outputs]
    for answers in ([sentences], [sentences, others]):
        peer = sacrebleu.corpus_bleu(texts, [[" ".join(one) for one in side] for side in answers], tokenize="none")
        own = scores(list(zip(*answers, strict=True)), outputs, replicates=0)["bleu"].value
        assert own == pytest.approx(peer.score, abs=1e-9)


def test_bleu_without_a_match_of_four_is_smoothed_as_sacrebleus():
    sentences, outputs = [["a", "b", "c", "d", "e"]], [["a", "b", "x", "d", "e"]]
    peer = sacrebleu.corpus_bleu(["a b x d e"], [["a b c d e"]], tokenize="none").score
    assert scores([sentences], outputs, replicates=0)["bleu"].value == pytest.approx(peer)
    assert scores([[["a"]]], [["b"]], replicates=0)["bleu"].value == 0
    assert scores([[["a"]]], [[]], replicates=0)["bleu"].value == 0


def test_edits_are_to_the_closest_answer_and_words_are_those_of_the_text():
    found = scores([[list("no tea"), list("no")], [list("ab")]], [list("no"), list("b a")], join="".join, replicates=0)
    assert found["error_rate"].value == 3 / 4  # "no" is right; "b a" is three edits from "ab"
    assert found["word_error_rate"].value == 2 / 2
    assert found["wrong"].value == 0.5


def test_intervals_are_those_of_resampled_outputs():
    generator = np.random.default_rng(0)
    wrong = generator.random(400) < 0.3
    outputs = [["b"] if one else ["a"] for one in wrong]
    found = scores([[["a"]]] * 400, outputs, replicates=2000, seed=1)["wrong"]
    assert found.value == wrong.mean()
    half = 1.96 * np.sqrt(wrong.mean() * (1 - wrong.mean()) / 400)  # the binomial's, which the bootstrap approaches
    assert found.low == pytest.approx(found.value - half, abs=0.01)
    assert found.high == pytest.approx(found.value + half, abs=0.01)
    assert found == scores([[["a"]]] * 400, outputs, replicates=2000, seed=1)["wrong"]


def test_nothing_to_score_is_refused():
    for references, outputs in (([], []), ([[["a"]]], []), ([[]], [["a"]])):
        with pytest.raises(ValueError, match="reference"):
            scores(references, outputs)


def test_sources_are_never_on_both_sides():
    pairs = Pairs(tuple("abcabcde"), tuple("12345678"), None, None)
    train, judged = held_out(pairs, 0.4, seed=3)
    assert not set(train.sources) & set(judged.sources)
    assert len(train) + len(judged) == len(pairs)
    assert len(set(judged.sources)) == 2


def test_runs_are_planned_seed_by_seed():
    assert planned(["raml", "ml"], [0.6], 2, 5) == [
        Run("raml", 0.6, 5),
        Run("ml", None, 5),
        Run("raml", 0.6, 6),
        Run("ml", None, 6),
    ]
    for objectives, taus in ((["ml", "ml"], [0.6]), (["raml"], []), ([], [0.6]), (["raml"], [0.6, 0.6])):
        with pytest.raises(ValueError, match=r"give|empty|twice"):
            planned(objectives, taus, 1)
