"""Edit distance and error rates of sequences: lists of tokens, or strings, which are sequences of code points.

Strings are compared as they are: an accented letter written as one code point and as two are two edits apart; normalize
first (``unicodedata.normalize``) where that matters. Tokens are equal where Python calls them equal. Distances are
rapidfuzz's, over strings: it would compare the elements of a list by their hash, so that the integers 0 and 2**61 - 1, or
``"a"`` and 97, were one token.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain

import numpy as np
from jaxtyping import Int64
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cpdist
from torch import Tensor

Tokens = Sequence[Hashable] | np.ndarray | Tensor
Rows = Sequence[Tokens] | np.ndarray | Tensor


def edit_distance(reference: Tokens, hypothesis: Tokens) -> int:
    """Fewest insertions, deletions and substitutions of tokens that make one sequence the other.

    Args:
        reference: A string; or a list, tuple, one-dimensional array or tensor of tokens.
        hypothesis: The same kind.

    Raises:
        TypeError: One is a string and the other is not, or one is no sequence.

    >>> edit_distance("kitten", "sitting"), edit_distance(["K", "AE", "T"], []), edit_distance("", "")
    (3, 3, 0)
    """
    return int(Levenshtein.distance(*_spelled(reference, hypothesis)))


def edit_distances(references: Rows, hypotheses: Rows) -> Int64[np.ndarray, " pairs"]:
    """The edit distance of each pair.

    Args:
        references: What is right, one a row.
        hypotheses: What was put out, one a row.

    Raises:
        ValueError: Not as many hypotheses as references.
        TypeError: As `edit_distance`.

    >>> edit_distances([[1, 2, 3], [4]], [[1, 3], [4]]).tolist()
    [1, 0]
    """
    _check_counts(references, hypotheses)
    pairs = [_spelled(*pair) for pair in zip(references, hypotheses, strict=True)]
    if not pairs:
        return np.zeros(0, np.int64)
    first, second = zip(*pairs, strict=True)
    return cpdist(first, second, scorer=Levenshtein.distance, dtype=np.int32).astype(np.int64)


def error_rate(references: Rows, hypotheses: Rows) -> float:
    """Edits of all pairs divided by the length of all references; as phone, character or word error rate.

    Where all references are empty, nothing can be divided by: the rate is the number of edits, so 0 if all hypotheses
    are empty too, and the number of inserted tokens otherwise.

    Args:
        references: What is right, one a row; a string is a row of characters, and a single string is one row.
        hypotheses: What was put out, one a row.

    Returns:
        At least 0; above 1 where hypotheses are much too long.

    Raises:
        ValueError: Not as many hypotheses as references.
        TypeError: A string beside a list of tokens, or rows that are no sequences.

    >>> error_rate(["abcd", ""], ["abc", "x"]), error_rate([""], [""]), error_rate([""], ["xyz"])
    (0.5, 0.0, 3.0)
    >>> error_rate("kitten", "sitting"), error_rate([["K", "AE", "T"]], [["K", "T"]]) == 1 / 3
    (0.5, True)
    """
    if isinstance(references, str) and isinstance(hypotheses, str):
        references, hypotheses = [references], [hypotheses]
    edits = int(edit_distances(references, hypotheses).sum())
    length = sum(len(reference) for reference in references)
    return edits / length if length else float(edits)


def closest_reference(references: Sequence[Tokens], hypothesis: Tokens) -> Tokens:
    """Of several right answers (pronunciations of a word) the one with the fewest edits from the hypothesis; the first of
    equals.

    Raises:
        ValueError: No reference is given.

    >>> closest_reference([["T", "EH", "R"], ["T", "IH", "R"]], ["T", "IH", "R", "Z"])
    ['T', 'IH', 'R']
    """
    if not len(references):
        raise ValueError("references is empty; one right answer at least is needed")
    return min(references, key=lambda reference: edit_distance(reference, hypothesis))


def _spelled(reference: Tokens, hypothesis: Tokens) -> tuple[str, str]:
    """Both as strings with one letter for each different token."""
    if isinstance(reference, str) and isinstance(hypothesis, str):
        return reference, hypothesis
    if isinstance(reference, str) or isinstance(hypothesis, str):
        raise TypeError(
            f"reference is a {type(reference).__name__} and hypothesis a {type(hypothesis).__name__}: "
            "give two strings or two lists of tokens"
        )
    plain = [
        tokens if type(tokens) is list else _as_list(name, tokens)
        for name, tokens in (("reference", reference), ("hypothesis", hypothesis))
    ]
    try:  # ids are letters as they are
        return "".join(map(chr, plain[0])), "".join(map(chr, plain[1]))
    except (TypeError, ValueError, OverflowError):  # words, or numbers that no letter has
        letters = {token: chr(i) for i, token in enumerate(dict.fromkeys(chain(*plain)))}
        return "".join(map(letters.__getitem__, plain[0])), "".join(map(letters.__getitem__, plain[1]))


def _as_list(name: str, tokens: Tokens) -> list[Hashable]:
    if not isinstance(tokens, Sequence | np.ndarray | Tensor):
        raise TypeError(f"{name} is a {type(tokens).__name__}: give a string or a list of tokens")
    return tokens.tolist() if isinstance(tokens, np.ndarray | Tensor) else list(tokens)


def _check_counts(references: Rows, hypotheses: Rows) -> None:
    if isinstance(references, str) or isinstance(hypotheses, str):
        raise TypeError("references and hypotheses must be lists of rows, or both a single string")
    if len(references) != len(hypotheses):
        raise ValueError(f"there are {len(references)} references and {len(hypotheses)} hypotheses; one each is needed")
