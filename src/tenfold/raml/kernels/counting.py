"""Numbers of strings by edit distance; the method is described in the module ``distance_counts``."""

import numpy as np

from tenfold.numerics import inlined, kernel
from tenfold.raml.kernels.greedy_paths import NONE


@inlined
def _next_column(column, width, shift, reference, token, cap, substitutes, inserts, deletes, result):
    """The column behind one more token. Entry k of a column belongs to the prefix of length shift + k (now) or one more."""
    m = reference.size
    above = cap
    for k in range(width):
        i = shift + 1 + k
        value = cap
        if 0 <= i <= m:
            if inserts and k + 1 < width:
                value = min(value, column[k + 1] + 1)
            if deletes:
                value = min(value, above + 1)
            if i > 0:
                if reference[i - 1] == token:
                    value = min(value, np.int64(column[k]))
                elif substitutes:
                    value = min(value, column[k] + 1)
            value = min(value, cap)
        result[k] = value
        above = value


@kernel
def _find_or_add(columns, used, column, width, table, stamp):
    """Index of a column among the first ``used``; ``used`` itself where it is new (and then stored)."""
    key = np.uint64(stamp)
    for k in range(width):
        key = (key ^ np.uint64(column[k])) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    mask = np.uint64(table.shape[0] - 1)
    slot = key & mask
    while table[slot, 0] == stamp:
        index = table[slot, 1]
        same = True
        for k in range(width):
            if columns[index, k] != column[k]:
                same = False
                break
        if same:
            return index
        slot = (slot + np.uint64(1)) & mask
    table[slot, 0], table[slot, 1] = stamp, used
    for k in range(width):
        columns[used, k] = column[k]
    return used


@kernel
def count_by_distance(reference, vocab_size, most, substitutes, inserts, deletes, prime, max_states):
    """(complete, counts of strings at distances 0..most), modulo the prime, or 2^64 for prime 0."""
    m, width, cap = reference.size, 2 * most + 1, most + 1
    counts = np.zeros(most + 1, np.uint64)
    room = 256
    now, new = np.empty((room, width), np.uint8), np.empty((room, width), np.uint8)
    ways, new_ways = np.zeros(room, np.uint64), np.zeros(room, np.uint64)
    table = np.full((4 * room, 2), -1, np.int64)
    column, seen = np.empty(width, np.int64), np.empty(width + 1, np.int64)
    for k in range(width):
        i = k - most
        now[0, k] = i if i == 0 or (0 < i <= m and deletes) else cap
    ways[0], used, visited = np.uint64(1), 1, 0
    for length in range(m + most + 1):
        shift = length - most
        final = m - shift
        if 0 <= final < width:
            for state in range(used):
                if now[state, final] <= most:
                    counts[now[state, final]] += ways[state]
                    if prime > 0:
                        counts[now[state, final]] %= prime
        new_used = 0
        for state in range(used):
            if new_used + width + 1 > room:
                room *= 2
                larger = np.empty((room, width), np.uint8)
                larger[:new_used] = new[:new_used]
                new = larger
                larger_ways = np.zeros(room, np.uint64)
                larger_ways[:new_used] = new_ways[:new_used]
                new_ways = larger_ways
                table = np.full((4 * room, 2), -1, np.int64)
                for known in range(new_used):
                    _find_or_add(new, known, new[known], width, table, length)
            distinct = 0
            for k in range(width + 1):
                # the tokens that match somewhere in the window, and at the end (k == width) all others at once
                if k < width:
                    i = shift + 1 + k
                    if not 0 < i <= m or now[state, k] > most:
                        continue
                    token = reference[i - 1]
                    known_token = False
                    for earlier in range(distinct):
                        known_token = known_token or seen[earlier] == token
                    if known_token:
                        continue
                    seen[distinct] = token
                    distinct += 1
                    multiplicity = np.uint64(1)
                else:
                    if vocab_size <= distinct:
                        continue
                    token = np.int64(NONE)
                    multiplicity = np.uint64(vocab_size - distinct)
                _next_column(now[state], width, shift, reference, token, cap, substitutes, inserts, deletes, column)
                alive = False
                for entry in range(width):
                    alive = alive or column[entry] <= most
                if not alive:
                    continue
                index = _find_or_add(new, new_used, column, width, table, length)
                if index == new_used:
                    new_used += 1
                    new_ways[index] = np.uint64(0)
                new_ways[index] += ways[state] * multiplicity
                if prime > 0:
                    new_ways[index] %= prime
            if visited + new_used > max_states:
                return False, counts
        visited += new_used
        now, new = new, now
        ways, new_ways = new_ways, ways
        used = new_used
        if new.shape[0] < room:
            new, new_ways = np.empty((room, width), np.uint8), np.zeros(room, np.uint64)
    return True, counts
