"""Samples of the payoff distribution for the targets of a file, as a table with each sample's distance and log q."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenfold.errors import InputError
from tenfold.files.limits import require_file
from tenfold.raml.data import Pairs, Vocabulary, is_dictionary, join, padded, read_pairs, read_sources, token_rows
from tenfold.raml.edit import EditPayoff
from tenfold.raml.hamming import HammingPayoff
from tenfold.raml.sampled_targets import stream_seeds
from tenfold.raml.seq2seq import BOS, EOS, PAD, UNK
from tenfold.raml.training import PAYOFFS

SPECIAL = (PAD, BOS, EOS, UNK)


@dataclass(frozen=True)
class Augmented:
    """Samples as columns, and what they were drawn from.

    Args:
        columns: ``source`` (of pairs only), ``reference``, ``sample``, ``distance`` and ``log_q`` in nats.
        payoff: The distribution.
        alphabet: Number of tokens that may appear.
        tokens: Of all references.
    """

    columns: dict[str, np.ndarray]
    payoff: EditPayoff | HammingPayoff
    alphabet: int
    tokens: int


def read_targets(path: str | os.PathLike[str], *, stress: bool = False) -> tuple[Pairs, bool]:
    """Targets of a file, one a line; of pairs or a dictionary the second column. And whether there are sources.

    Raises:
        InputError: As `tenfold.raml.data.read_pairs`.
    """
    file = require_file(path)
    if is_dictionary(file) or _has_tab(file):
        return read_pairs(file, stress=stress), True
    try:
        texts, lines = read_sources(file)
    except InputError as error:
        raise InputError(error.message.replace("source", "target"), path=error.path, line=error.line) from None
    return Pairs(tuple(texts), tuple(texts), file, tuple(lines)), False


def _has_tab(file: Any) -> bool:
    import gzip

    with gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb") as stream:
        return b"\t" in stream.readline()


def make_payoff(
    kind: str,
    vocab_size: int,
    *,
    tau: float | None = None,
    error_rate: float | None = None,
    scale: str = "paper",
    operations: tuple[str, ...] = ("substitute", "insert", "delete"),
    max_edits: int | None = None,
) -> EditPayoff | HammingPayoff:
    """A payoff over a vocabulary whose ids 0 to 3 are special, from its temperature or from its rate of errors.

    Args:
        kind: ``"edit"`` or ``"hamming"``.
        vocab_size: With the special ids.
        tau: Temperature; None takes the error rate.
        error_rate: Mean edits a token.
        scale: Of the temperature.
        operations: Of the edit payoff.
        max_edits: Of the edit payoff.

    Raises:
        ValueError: Both or neither of temperature and rate, an unknown kind, or what the payoff refuses.

    >>> round(make_payoff("hamming", 43, error_rate=0.1).rate, 9)
    0.1
    """
    if kind not in PAYOFFS:
        raise ValueError(f"payoff={kind!r} is not one of {', '.join(map(repr, PAYOFFS))}")
    if (tau is None) == (error_rate is None):
        raise ValueError("give a temperature or a rate of errors, one of the two")
    known: dict[str, Any] = {"scale": scale, "exclude_ids": SPECIAL}
    payoff: Any = HammingPayoff
    if kind == "edit":
        payoff = EditPayoff
        known["operations"] = operations
    elif max_edits is not None or set(operations) != {"substitute", "insert", "delete"}:
        raise ValueError("operations and max_edits are those of the edit payoff; the Hamming payoff substitutes")
    if tau is None:
        tau = payoff.from_error_rate(vocab_size, error_rate, **known).tau
    if kind == "edit":
        known["max_edits"] = max_edits
    return payoff(vocab_size, tau, **known)


def augment(
    pairs: Pairs,
    tokens: str,
    *,
    samples: int = 1,
    seed: int = 0,
    with_sources: bool = False,
    **payoff: Any,
) -> Augmented:
    """Draws samples for each target; a line's samples depend on its number and the seed, and on the file's vocabulary.

    Args:
        pairs: Targets as text.
        tokens: ``"character"``, ``"space"`` or ``"regex:..."``.
        samples: For each target.
        seed: Of the draws.
        with_sources: Whether the table has the sources, too.
        payoff: For `make_payoff`, without the size.

    Raises:
        InputError: Names the line of a target that cannot be used.
        ValueError: What `make_payoff` refuses; a vocabulary of less than two tokens.
    """
    rows = token_rows(pairs, "target", tokens)
    vocabulary = Vocabulary.of(rows)
    made = make_payoff(payoff.pop("kind"), len(vocabulary), **payoff)
    ids, lengths = padded([vocabulary.encode(row) for row in rows])
    numbers = range(len(rows)) if pairs.lines is None else pairs.lines
    drawn, counts = made.sample(ids, lengths, samples, seeds=stream_seeds(seed, 0, numbers), pad_id=PAD)
    references, reference_lengths = ids.repeat_interleave(samples, 0), lengths.repeat_interleave(samples)
    distance = made.distance(drawn, references, counts, reference_lengths)
    log_q = made.log_prob(drawn, references, counts, reference_lengths)
    texts = [
        join(vocabulary.decode(row[:count]), tokens) for row, count in zip(drawn.tolist(), counts.tolist(), strict=True)
    ]
    columns = {"source": np.repeat(np.array(pairs.sources), samples)} if with_sources else {}
    columns |= {
        "reference": np.repeat(np.array(pairs.targets), samples),
        "sample": np.array(texts),
        "distance": distance.numpy().astype(np.int64),
        "log_q": log_q.numpy(),
    }
    return Augmented(columns, made, len(vocabulary.tokens), int(lengths.sum()))
