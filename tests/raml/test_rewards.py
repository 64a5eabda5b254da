"""Rewards against their definitions, and the message where sacrebleu is missing."""

import math
import sys

import pytest

from tenfold.errors import MissingExtraError
from tenfold.raml.rewards import SentenceBLEU, SentenceChrF, negative_edit_distance


def test_negative_edit_distance():
    assert negative_edit_distance([1, 2, 3], [1, 2, 3]) == 0
    assert negative_edit_distance([], [1, 2, 3]) == -3
    assert negative_edit_distance([9, 1, 3], [1, 2, 3]) == -2


def test_bleu_is_precision_of_n_grams_and_brevity():
    hypothesis, reference = [1, 2, 3, 9, 5], [1, 2, 3, 4, 5, 6]
    # 4 of 5 words, 2 of 4 pairs, 1 of 3 triples; four in a row never: exponential smoothing counts half of 1 of 2
    precisions = (4 / 5, 2 / 4, 1 / 3, 0.5 / 2)
    expected = math.exp(1 - 6 / 5) * math.prod(precisions) ** 0.25
    assert SentenceBLEU()(hypothesis, reference) == pytest.approx(expected, rel=1e-12)


def test_ids_are_whole_words():
    assert SentenceBLEU(max_order=1)([11, 12], [1, 2]) == 0  # not their digits


def test_bleu_of_decoded_text():
    words = ["the", "cat", "sat", "."]
    bleu = SentenceBLEU(lambda ids: " ".join(words[i] for i in ids), max_order=1)
    assert bleu([0, 1, 3], [0, 1, 3]) == 1
    assert bleu([0, 1], [0, 2]) == pytest.approx(0.5)


def test_chrf_is_an_f_score_of_character_n_grams():
    chrf = SentenceChrF(lambda ids: "".join(map(chr, ids)), char_order=1)
    # "abcd" and "abc": precision 3/4, recall 1; F of beta 2
    assert chrf(list(b"abcd"), list(b"abc")) == pytest.approx(5 * 0.75 * 1 / (4 * 0.75 + 1))


@pytest.mark.parametrize("reward", [SentenceBLEU(), SentenceChrF(lambda ids: "".join(map(chr, ids)))])
def test_empty_sentences(reward):
    assert reward([], []) == 1
    assert reward([], [97]) == reward([97], []) == 0


def test_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    for make in (SentenceBLEU, lambda: SentenceChrF(str)):
        with pytest.raises(MissingExtraError, match=r"sacrebleu: pip install 'tenfold\[raml\]'"):
            make()


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="max_order=0 must be an integer of at least 1"):
        SentenceBLEU(max_order=0)
    with pytest.raises(ValueError, match="word_order=-1"):
        SentenceChrF(str, word_order=-1)
