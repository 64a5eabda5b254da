"""Samples of the Hamming payoff."""

import math

import numpy as np

from tenfold.numerics import inlined, kernel, log64
from tenfold.raml.kernels.streams import GOLDEN, UNIT, is_fixed, mixed, next_uniform, other_token, stream


@inlined
def _replaced(token, counter, rate, stretch, size):
    """The token or, with probability rate, another one. One random number decides and, where it is small, chooses."""
    u = np.int64(mixed(counter) >> np.uint64(11)) * UNIT
    draw = min(np.int64(u * stretch), size - 2)
    draw += np.int64(draw >= token)
    return draw if u < rate else token


@kernel
def _replace_row(tokens, out, key, rate, size):
    stretch = (size - 1) / rate
    for i in range(tokens.size):
        out[i] = _replaced(tokens[i], key + np.uint64(i) * GOLDEN, rate, stretch, size)


@kernel
def _replace_flat(tokens, out, counters, rate, size):
    stretch = (size - 1) / rate
    for i in range(tokens.size):
        out[i] = _replaced(tokens[i], counters[i], rate, stretch, size)


@kernel
def short_hamming_rows(ids, lengths, seeds, rate, size, pad, out, start, stop):
    """As `hamming_rows` for one sample of each row and no excluded ids: lanes run across the ends of rows."""
    width = ids.shape[1]
    group = max(1, 512 // width)
    counters = np.empty(group * width, np.uint64)
    steps = np.empty(width, np.uint64)
    for i in range(width):
        steps[i] = np.uint64(i) * GOLDEN
    flat, flat_out = ids.reshape(-1), out.reshape(-1)
    for first in range(start, stop, group):
        last = min(first + group, stop)
        for row in range(first, last):
            key = stream(seeds[row], 0)
            place = (row - first) * width
            for i in range(width):
                counters[place + i] = key + steps[i]
        here, there = first * width, last * width
        _replace_flat(flat[here:there], flat_out[here:there], counters, rate, size)
        for row in range(first, last):
            for i in range(lengths[row], width):
                out[row, i] = pad


@kernel
def hamming_rows(ids, lengths, seeds, n, rate, size, alphabet, rank, pad, dense, out, start, stop):
    """Fill rows start..stop-1 of the samples, (batch * n, width): each free token is replaced with probability rate."""
    state = np.empty(1, np.uint64)
    log_keep = math.log1p(-rate)
    for row in range(start, stop):
        source, length = ids[row // n], lengths[row // n]
        key = stream(seeds[row // n], row % n)
        target = out[row]
        if dense and rank.size == 0:
            _replace_row(source[:length], target[:length], key, rate, size)
        else:
            for i in range(length):
                target[i] = source[i]
            state[0] = key
            # the number of tokens up to the next replaced one is geometric
            gap = log64(next_uniform(state)) / log_keep
            i = 0
            while gap < length - i:
                i += np.int64(gap)
                if rank.size == 0 or not is_fixed(source[i], rank):
                    target[i] = other_token(state, source[i], size, alphabet, rank)
                i += 1
                gap = log64(next_uniform(state)) / log_keep
        for i in range(length, out.shape[1]):
            target[i] = pad
