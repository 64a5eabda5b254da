"""Rewards of a hypothesis against a reference: what `ImportanceWeighted` turns into a distribution over targets.

A reward is any callable ``reward(hypothesis, reference)`` of two lists of token ids that returns a number, more for
better hypotheses. Here are the negative edit distance, and BLEU and chrF of single sentences, which the package sacrebleu
(of the extra ``raml``) computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tenfold.errors import MissingExtraError
from tenfold.raml.metrics import edit_distance

Reward = Callable[[Sequence[int], Sequence[int]], float]
Decode = Callable[[Sequence[int]], str]


def negative_edit_distance(hypothesis: Sequence[int], reference: Sequence[int]) -> float:
    """Minus the number of edits; 0 is best.

    >>> negative_edit_distance([1, 2, 3], [1, 3])
    -1.0
    """
    return -float(edit_distance(reference, hypothesis))


class SentenceBLEU:
    """BLEU of one sentence, from 0 to 1 (Papineni et al. 2002; as sacrebleu computes it, Post 2018, arXiv 1804.08771).

    Orders that a sentence is too short for are left out, and orders without a match are smoothed (``"exp"``). Two empty
    sentences are equal: 1; one empty sentence: 0.

    Args:
        decode: From ids to text, which is then tokenized as sacrebleu's "13a" does. None: the ids are the words.
        max_order: Longest n-grams.

    Raises:
        MissingExtraError: sacrebleu is not installed.
        ValueError: An order below 1.

    >>> bleu = SentenceBLEU(max_order=2)
    >>> bleu([7, 8, 9], [7, 8, 9]), round(bleu([7, 8, 5], [7, 8, 9]) ** 2, 6)  # 2/3 of the words, 1/2 of the pairs
    (1.0, 0.333333)
    """

    def __init__(self, decode: Decode | None = None, *, max_order: int = 4) -> None:
        _check_order("max_order", max_order, 1)
        self.decode = decode
        self._metric = _sacrebleu().BLEU(
            tokenize="none" if decode is None else "13a",
            max_ngram_order=max_order,
            effective_order=True,
            force=True,  # without its warning of text that looks tokenized: ids always do
        )

    def __call__(self, hypothesis: Sequence[int], reference: Sequence[int]) -> float:
        """BLEU of the hypothesis."""
        return _scored(self._metric, self.decode or _spelled, hypothesis, reference)


class SentenceChrF:
    """chrF of one sentence, from 0 to 1 (Popovic 2015, character n-grams; as sacrebleu computes it).

    Two texts without characters are equal: 1; one such text: 0.

    Args:
        decode: From ids to text.
        char_order: Longest n-grams of characters.
        word_order: Longest n-grams of words; 2 is chrF++.

    Raises:
        MissingExtraError: sacrebleu is not installed.
        ValueError: ``char_order`` below 1 or ``word_order`` below 0.

    >>> chrf = SentenceChrF(lambda ids: "".join(map(chr, ids)))
    >>> chrf([97, 98], [97, 98]), chrf([97, 98], [99])
    (1.0, 0.0)
    """

    def __init__(self, decode: Decode, *, char_order: int = 6, word_order: int = 0) -> None:
        _check_order("char_order", char_order, 1)
        _check_order("word_order", word_order, 0)
        self.decode = decode
        self._metric = _sacrebleu().CHRF(char_order=char_order, word_order=word_order)

    def __call__(self, hypothesis: Sequence[int], reference: Sequence[int]) -> float:
        """The hypothesis's chrF."""
        return _scored(self._metric, self.decode, hypothesis, reference)


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError:
        raise MissingExtraError("sacrebleu", "raml") from None
    return sacrebleu


def _spelled(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def _scored(metric: Any, decode: Decode, hypothesis: Sequence[int], reference: Sequence[int]) -> float:
    candidate, right = decode(hypothesis), decode(reference)
    if not candidate.strip() or not right.strip():
        return float(not candidate.strip() and not right.strip())  # sacrebleu says 0 for two empty sentences
    return min(float(metric.sentence_score(candidate, [right]).score) / 100, 1.0)  # rounding takes it above 1


def _check_order(name: str, order: int, least: int) -> None:
    if isinstance(order, bool) or not isinstance(order, int) or order < least:
        raise ValueError(f"{name}={order!r} must be an integer of at least {least}")
