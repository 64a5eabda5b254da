"""How good outputs are: token and word error rates, the share of wrong outputs, BLEU, each with a bootstrap interval.

Every score is a function of sums over the outputs, so that resampling the outputs needs the sums again and nothing else.
Where a source has several right answers, edits are counted to the closest, and BLEU clips by all (Papineni et al. 2002).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tenfold.raml.metrics import closest_reference, edit_distance

ORDER = 4  # longest n-grams of BLEU
REPLICATES = 1_000
AT_ONCE = 2**24  # numbers of a bootstrap that are in memory together
SCORES = ("error_rate", "word_error_rate", "wrong", "bleu")


class Score(NamedTuple):
    """A score and its 95 % interval.

    Args:
        value: Of all outputs.
        low: Lower end, of the resampled outputs' scores the 2.5th percentile.
        high: Upper end.
    """

    value: float
    low: float
    high: float


def scores(
    references: Sequence[Sequence[Sequence[str]]],
    hypotheses: Sequence[Sequence[str]],
    *,
    join: Callable[[Sequence[str]], str] = " ".join,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[str, Score]:
    """Scores of outputs, with percentile intervals of a bootstrap over the outputs.

    Args:
        references: For each output its right answers, one at least, as tokens.
        hypotheses: The outputs, as tokens.
        join: From tokens to text; words are what white space separates in it.
        replicates: Resamplings; 0 gives intervals of no width.
        seed: Of the resampling.

    Returns:
        ``error_rate``, edits a token of the closest answers; ``word_error_rate``, the same of words; ``wrong``, the share
        of outputs that are no right answer (what pronunciation research calls the word error rate); ``bleu``, from 0 to
        100, of tokens up to n-grams of four, smoothed as sacrebleu does.

    Raises:
        ValueError: Nothing to score, not as many outputs as references, or an output without an answer.

    Papineni et al. 2002 (BLEU); Koehn 2004 (bootstrap).

    >>> found = scores([[["T", "IY"]], [["B", "IY"], ["B", "IH"]]], [["T", "AY"], ["B", "IH"]])
    >>> found["error_rate"].value, found["wrong"].value
    (0.25, 0.5)
    """
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"there are {len(references)} references and {len(hypotheses)} outputs; one each is needed")
    rows = np.array([_counts(*pair, join) for pair in zip(references, hypotheses, strict=True)], float)
    found = _scores(rows.sum(0, keepdims=True))
    generator = np.random.default_rng(seed)
    part = max(1, AT_ONCE // len(rows))
    resampled = [
        _scores(
            generator.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), min(part, replicates - done)) @ rows
        )
        for done in range(0, replicates, part)
    ]
    result = {}
    for name, (value,) in found.items():
        draws = np.concatenate([one[name] for one in resampled]) if resampled else np.array([value])
        low, high = np.quantile(draws, [0.025, 0.975])
        result[name] = Score(float(value), float(low), float(high))
    return result


def _counts(
    references: Sequence[Sequence[str]], output: Sequence[str], join: Callable[[Sequence[str]], str]
) -> list[int]:
    """Everything that the scores are made of, of one output."""
    if not references:
        raise ValueError("an output has no reference; one right answer at least is needed")
    hypothesis, known = list(output), [list(reference) for reference in references]
    counts = []
    for candidate, right in ((hypothesis, known), (join(hypothesis).split(), [join(one).split() for one in known])):
        closest = closest_reference(right, candidate)
        counts += [edit_distance(closest, candidate), len(closest)]
    counts.append(int(all(reference != hypothesis for reference in known)))
    counts.append(1)
    counts.append(len(hypothesis))
    counts.append(min((abs(len(one) - len(hypothesis)), len(one)) for one in known)[1])
    for n in range(1, ORDER + 1):
        grams = _grams(hypothesis, n)
        most: Counter[tuple[str, ...]] = Counter()
        for reference in known:
            most |= _grams(reference, n)
        counts += [(grams & most).total(), grams.total()]
    return counts


def _grams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))


def _scores(sums: Float[np.ndarray, "samples counts"]) -> dict[str, Float[np.ndarray, " samples"]]:
    edits, tokens, word_edits, words, wrong, outputs = sums.T[:6]
    return {
        "error_rate": _rate(edits, tokens),
        "word_error_rate": _rate(word_edits, words),
        "wrong": wrong / outputs,
        "bleu": np.array([_bleu(row[6], row[7], row[8::2], row[9::2]) for row in sums]),
    }


def _rate(edits: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Edits by length; the number of edits where all references are empty, as `tenfold.raml.metrics.error_rate`."""
    return np.where(length > 0, edits / np.maximum(length, 1), edits)


def _bleu(length: float, reference_length: float, matches: np.ndarray, totals: np.ndarray) -> float:
    """Corpus BLEU; an order without a match counts half a match, the next such order a quarter."""
    if not matches.any() or not totals.all():
        return 0.0
    missing, logarithm = 1.0, 0.0
    for matched, total in zip(matches, totals, strict=True):
        if matched == 0:
            missing *= 2
        logarithm += math.log((matched or 1 / missing) / total) / ORDER
    brevity = min(0.0, 1 - reference_length / length)
    return 100 * math.exp(brevity + logarithm)
