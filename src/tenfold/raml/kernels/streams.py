"""Random numbers that are counted, not shared.

The stream of sample k of a row starts at a mixed (seed, k) and moves on by a constant, and a finaliser turns each place
into 64 random bits (Steele et al. 2014, SplitMix). So neither threads nor batches matter.
"""

import numpy as np

from tenfold.numerics import inlined, kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LEAP = np.uint64(0xD1342543DE82EF95)  # between the samples of a row
UNIT = 2.0**-53


@inlined
def mixed(z):
    """64 bits out of a counter (the finaliser of SplitMix64, variant 13 of Stafford)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def stream(seed, sample):
    """Where the stream of a row's sample begins."""
    return mixed(mixed(seed + GOLDEN) + np.uint64(sample) * LEAP)


@inlined
def next_uniform(state):
    """A number in (0, 1] of 53 bits."""
    state[0] += GOLDEN
    return (np.int64(mixed(state[0]) >> np.uint64(11)) + 1) * UNIT


@inlined
def next_below(state, bound):
    """A whole number in 0..bound - 1, for bound <= 2^32, without bias (Lemire 2019)."""
    limit = np.uint64(bound)
    mask = np.uint64(0xFFFFFFFF)
    state[0] += GOLDEN
    product = (mixed(state[0]) >> np.uint64(32)) * limit
    if (product & mask) < limit:
        rejected = (np.uint64(1 << 32) - limit) % limit
        while (product & mask) < rejected:
            state[0] += GOLDEN
            product = (mixed(state[0]) >> np.uint64(32)) * limit
    return np.int64(product >> np.uint64(32))


@inlined
def other_token(state, token, size, ids, rank):
    """One of the size - 1 tokens of the alphabet that differ from a token of it."""
    draw = next_below(state, size - 1)
    if rank.size == 0:
        return draw + (draw >= token)
    draw += draw >= rank[token]
    return np.int64(ids[draw])


@inlined
def any_token(state, size, ids):
    """One of the tokens of the alphabet."""
    draw = next_below(state, size)
    return draw if ids.size == 0 else np.int64(ids[draw])


@inlined
def is_fixed(token, rank):
    """Whether the token is excluded; what lies outside of the vocabulary was found excluded before."""
    return token < 0 or token >= rank.size or rank[token] < 0


@kernel
def spread_seed(seed, rows):
    """One seed for each row."""
    seeds = np.empty(rows, np.uint64)
    for row in range(rows):
        seeds[row] = mixed(seed + np.uint64(row) * GOLDEN)
    return seeds


@kernel
def row_outside(ids, lengths, vocab_size):
    """The first row with an id outside of the vocabulary, or the number of rows."""
    bound = np.uint64(vocab_size)
    for row in range(ids.shape[0]):
        highest = np.uint64(0)
        for i in range(lengths[row]):
            highest = max(highest, np.uint64(ids[row, i]))  # negative ids turn out large
        if highest >= bound and lengths[row] > 0:
            return row
    return ids.shape[0]
