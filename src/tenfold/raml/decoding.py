r"""From a network to sequences: greedy decoding, beam search, and samples of the model.

Beam search keeps the ``beam_size`` best prefixes of each source. Of all their continuations the best ``beam_size`` are
looked at: those that end join the finished hypotheses, and the best others go on. A source is done when it has
``beam_size`` finished hypotheses, or at ``max_length`` tokens, where only the end is allowed. The result is the finished
hypothesis of the highest

.. math:: \log p(y|x) / (|y| + 1)^\alpha

where ``|y| + 1`` counts `EOS`: without the division (``alpha`` = 0) longer outputs always lose. With one beam this is
greedy decoding. `PAD`, `BOS` and `UNK` are never put out; the probabilities are those of the model, not renormalized.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tenfold.raml.seq2seq import BOS, EOS, PAD, UNK, check_sizes


class Decoded(NamedTuple):
    """Sequences without `BOS` and `EOS`, padded with `PAD`.

    Args:
        ids: (rows, width).
        lengths: (rows,).
        scores: (rows,), log-probability with `EOS`, divided as in beam search.
    """

    ids: Int64[Tensor, "rows width"]
    lengths: Int64[Tensor, " rows"]
    scores: Float[Tensor, " rows"]


@torch.no_grad()
def greedy(
    network: Any, source: Int64[Tensor, "batch source"], lengths: Int64[Tensor, " batch"], max_length: int
) -> Decoded:
    """The most probable token at each step; at most ``max_length`` tokens.

    Args:
        network: An `AttentionGRU` or `SmallTransformer`, in evaluation mode.
        source: Source ids.
        lengths: Their lengths, at least 1.
        max_length: Most tokens of an output.

    Returns:
        The sequences; scores are log-probabilities, without an `EOS` where ``max_length`` cut one off.
    """
    check_sizes(max_length=max_length)
    memory = network.encode(source, lengths)
    return _walk(network, memory, max_length, None)


@torch.no_grad()
def sample(
    network: Any,
    source: Int64[Tensor, "batch source"],
    lengths: Int64[Tensor, " batch"],
    max_length: int,
    n: int = 1,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Decoded:
    """``n`` sequences from the model for each source, the samples of a source next to each other.

    Args:
        network: An `AttentionGRU` or `SmallTransformer`.
        source: Source ids.
        lengths: Their lengths, at least 1.
        max_length: Most tokens of a sample.
        n: Samples a source.
        temperature: Divides the logits; positive.
        generator: Of the random numbers.

    Raises:
        ValueError: A count below 1, or a temperature that is not positive.
    """
    check_sizes(max_length=max_length, n=n)
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be a positive number")
    memory = network.encode(source, lengths).repeated(n)
    return _walk(network, memory, max_length, (temperature, generator))


def _walk(network: Any, memory: Any, max_length: int, chance: tuple[float, torch.Generator | None] | None) -> Decoded:
    """One token after another, the likeliest or, by chance, any, until every row has ended."""
    rows, device = len(memory.values), memory.values.device
    tokens = torch.full((rows,), BOS, device=device)
    alive = torch.ones(rows, dtype=torch.bool, device=device)
    scores = memory.values.new_zeros(rows)
    state, steps = memory.state, []
    for _ in range(max_length):
        logits, state = network.step(tokens, state, memory)
        log_prob = _allowed(logits)
        if chance is None:
            tokens = log_prob.argmax(-1)
        else:
            temperature, generator = chance
            tokens = torch.multinomial((log_prob / temperature).softmax(-1), 1, generator=generator)[:, 0]
        scores = scores + torch.where(alive, log_prob.gather(-1, tokens[:, None])[:, 0], 0.0)
        alive = alive & (tokens != EOS)
        steps.append(torch.where(alive, tokens, PAD))
        if not bool(alive.any()):
            break
    ids = torch.stack(steps, 1)
    lengths = (ids != PAD).sum(1)
    return Decoded(ids[:, : max(1, int(lengths.max()))], lengths, scores)


def _allowed(logits: Tensor) -> Tensor:
    """Log-probabilities, and minus infinity for what is never put out."""
    log_prob = logits.float().log_softmax(-1)
    log_prob[..., [PAD, BOS, UNK]] = -math.inf
    return log_prob


@torch.no_grad()
def beam_search(
    network: Any,
    source: Int64[Tensor, "batch source"],
    lengths: Int64[Tensor, " batch"],
    max_length: int,
    beam_size: int = 5,
    *,
    length_penalty: float = 1.0,
) -> Decoded:
    """The best finished hypothesis of each source.

    Args:
        network: An `AttentionGRU` or `SmallTransformer`, in evaluation mode.
        source: Source ids.
        lengths: Their lengths, at least 1.
        max_length: Most tokens of an output.
        beam_size: Prefixes that are kept.
        length_penalty: The exponent alpha; 0 compares log-probabilities, 1 those of the average token.

    Raises:
        ValueError: A count below 1, or an exponent that is negative or not finite.
    """
    check_sizes(max_length=max_length, beam_size=beam_size)
    if not 0 <= length_penalty < math.inf:
        raise ValueError(f"length_penalty={length_penalty} must be a number of at least 0")
    memory = network.encode(source, lengths)
    batch, device = len(source), source.device
    wide = memory.repeated(beam_size)
    state = wide.state
    first = torch.arange(batch, device=device)[:, None] * beam_size  # of each source, its first row among all beams
    prefixes = torch.full((batch, beam_size, 1), BOS, device=device)
    scores = torch.full((batch, beam_size), -math.inf, device=device)
    scores[:, 0] = 0.0  # the beams start alike: all but one wait
    finished = torch.zeros(batch, dtype=torch.long, device=device)
    best = torch.full((batch,), -math.inf, device=device)
    found = torch.full((batch, max_length), PAD, device=device)
    found_lengths = torch.zeros(batch, dtype=torch.long, device=device)
    for length in range(max_length + 1):  # tokens before the one that is looked for
        logits, state = network.step(prefixes[..., -1].flatten(), state, wide)
        log_prob = _allowed(logits)
        if length == max_length:
            log_prob[..., torch.arange(log_prob.shape[-1], device=device) != EOS] = -math.inf
        total = (scores[..., None] + log_prob.unflatten(0, (batch, beam_size))).flatten(1)
        # a beam ends in one way only, so among twice as many there are enough that go on
        values, places = total.topk(2 * beam_size, 1)
        beams, tokens = places // log_prob.shape[-1], places % log_prob.shape[-1]
        ends = (tokens == EOS) & (values > -math.inf)
        ends[:, beam_size:] = False
        ends &= (finished < beam_size)[:, None]
        ended = torch.where(ends, values / (length + 1) ** length_penalty, -math.inf)
        top, column = ended.max(1)
        better = top > best
        best = torch.where(better, top, best)
        found_lengths = torch.where(better, length, found_lengths)
        chosen = prefixes[torch.arange(batch, device=device), beams.gather(1, column[:, None])[:, 0], 1:]
        found[:, :length] = torch.where(better[:, None], chosen, found[:, :length])
        finished = finished + ends.sum(1)
        if length == max_length or bool((finished >= beam_size).all()):
            break
        going_on = values.masked_fill(tokens == EOS, -math.inf)
        scores, order = going_on.topk(beam_size, 1)
        beams, tokens = beams.gather(1, order), tokens.gather(1, order)
        prefixes = torch.cat([prefixes.gather(1, beams[..., None].expand(-1, -1, length + 1)), tokens[..., None]], -1)
        rows = (first + beams).flatten()
        state = tuple(part[rows] for part in state)
    columns = torch.arange(max_length, device=device)
    found = found.masked_fill(columns >= found_lengths[:, None], PAD)
    return Decoded(found[:, : max(1, int(found_lengths.max()))], found_lengths, best)
