"""Compiled samplers of the payoff distributions and the checks of the exact one. Plain arrays; nothing of torch.

Randomness is counted, not shared: the stream of sample k of a row starts at a mixed (seed, k) and moves on by a constant
that a finaliser turns into 64 random bits (Steele et al. 2014, SplitMix). So neither threads nor batches matter.

A draw of the edit sampler is a list of edits in the order of the output, by (position in the reference, kind, token):
a substitution or deletion is of the token at its position, an insertion is before it. All other tokens are kept.
"""

import math

import numpy as np

from tenfold.numerics import inlined, kernel, log64

SUBSTITUTE, DELETE, INSERT = 0, 1, 2
NONE = -(2**62)  # no token
FAR = 2**40  # no point of a diagonal
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


@inlined
def _replace_all_alike(tokens, out, key, rate, size):
    """Each token replaced with probability rate, in lanes: one random number decides and, where small, is the token."""
    stretch = (size - 1) / rate
    for i in range(tokens.size):
        u = np.int64(mixed(key + np.uint64(i) * GOLDEN) >> np.uint64(11)) * UNIT
        token = tokens[i]
        draw = min(np.int64(u * stretch), size - 2)
        draw += np.int64(draw >= token)
        out[i] = draw if u < rate else token


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
            _replace_all_alike(source[:length], target[:length], key, rate, size)
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


@inlined
def _push(edits, count, position, kind, token):
    edits[count, 0] = position
    edits[count, 1] = kind
    edits[count, 2] = token


@kernel
def draw_path(tokens, begin, end, at_end, chances, size, ids, rank, edits, count, state):
    """Draw the edits of positions begin..end-1, each independent of the others, and behind them if ``at_end``.

    ``chances``: 1 / ln P(keep), the cumulated chances of a substitution and a deletion given an edit, the chance of
    one more insertion before a kept token, and at the end. Returns the number of edits, or -1 if they do not fit.
    """
    inverse_log_keep, substitute, delete, again, again_at_end = chances
    room = edits.shape[0]
    i = begin
    while True:
        gap = log64(next_uniform(state)) * inverse_log_keep
        if not gap < end - i:
            break
        i += np.int64(gap)
        kind = next_uniform(state)
        if count >= room:
            return -1
        if kind <= substitute:
            _push(edits, count, i, SUBSTITUTE, other_token(state, tokens[i], size, ids, rank))
            count += 1
        elif kind <= delete:
            _push(edits, count, i, DELETE, NONE)
            count += 1
        else:
            more = True
            while more:
                if count >= room:
                    return -1
                _push(edits, count, i, INSERT, other_token(state, tokens[i], size, ids, rank))
                count += 1
                more = next_uniform(state) <= again
        i += 1
    if at_end:
        while next_uniform(state) <= again_at_end:
            if count >= room:
                return -1
            _push(edits, count, end, INSERT, any_token(state, size, ids))
            count += 1
    return count


@kernel
def judge(tokens, end, edits, first, last, substitutes, inserts, deletes):
    """Look at the edits first..last-1 alone: 0 they are no greedy path, 1 they are the greedy path, 2 not yet known."""
    counts = np.zeros(3, np.int64)
    following = np.int64(NONE)
    for k in range(last - 1, first - 1, -1):
        position, kind = edits[k, 0], edits[k, 1]
        counts[kind] += 1
        if kind == DELETE:
            # a deleted token must differ from the token that is written next: the path keeps where it can
            if k + 1 < last and edits[k + 1, 0] == position + 1:
                next_kind = edits[k + 1, 1]
                if next_kind != DELETE:
                    if substitutes:  # and it substitutes before it deletes
                        return 0
                    following = edits[k + 1, 2]
            elif position + 1 < end:
                following = tokens[position + 1]
            else:
                following = NONE
            if following == tokens[position]:
                return 0
    if counts[SUBSTITUTE] == 0 and (counts[DELETE] == 0 or counts[INSERT] == 0):
        return 1  # as many edits as the lengths differ by
    if counts[DELETE] == 0 and counts[INSERT] == 0 and (counts[SUBSTITUTE] <= 2 or not (inserts and deletes)):
        return 1
    return 2


@kernel
def write_path(tokens, begin, end, edits, first, last, out, place):
    """Write what the edits make of tokens[begin:end] to out[place:]; returns where it ends, or -1 if it does not fit."""
    if place + (end - begin) + (last - first) > out.size:
        return -1
    i = begin
    for k in range(first, last):
        position, kind = edits[k, 0], edits[k, 1]
        while i < position:
            out[place] = tokens[i]
            i += 1
            place += 1
        if kind != DELETE:
            out[place] = edits[k, 2]
            place += 1
        if kind != INSERT:
            i += 1
    while i < end:
        out[place] = tokens[i]
        i += 1
        place += 1
    return place


@kernel
def is_greedy(tokens, begin, end, edits, first, last, written, front, substitutes, inserts, deletes):
    """Whether the edits are the greedy optimal path from tokens[begin:end] to ``written``.

    ``front[d]`` is, on diagonal d, the smallest position from which the rest of the reference becomes the rest of the
    output by ``level`` edits. Edit ``last - 1 - level`` must not be within reach of ``level`` edits, and neither may be
    the points to which an edit of higher rank (substitution, deletion, insertion) would lead from where it is made.
    """
    m, n, total = end - begin, written.size, last - first
    shift = n - m
    middle = total + 1 - shift  # front[middle + d] belongs to diagonal d = (place in output) - (place in reference)
    for d in range(2 * total + 3):
        front[d] = FAR
    diagonal = shift
    for level in range(total):
        low, high = max(shift - level, level - total), min(shift + level, total - level)
        before = front[middle + low - 1]  # of the previous level
        for d in range(low, high + 1):
            here, above = front[middle + d], front[middle + d + 1]
            if level == 0:
                reached = edits[last - 1, 0] - begin + (edits[last - 1, 1] != INSERT)  # all behind the last edit is kept
                reached = reached if d == shift else FAR
            else:
                reached = here
                if substitutes:
                    reached = min(reached, here - 1)
                if deletes:
                    reached = min(reached, before - 1)
                if inserts:
                    reached = min(reached, above)
            before = here
            if reached <= m:
                reached = max(reached, 0, -d)
                while reached > 0 and reached + d > 0 and tokens[begin + reached - 1] == written[reached + d - 1]:
                    reached -= 1
                front[middle + d] = reached
            else:
                front[middle + d] = FAR
        k = last - 1 - level
        position, kind = edits[k, 0] - begin, edits[k, 1]
        if kind == INSERT:
            diagonal -= 1
        elif kind == DELETE:
            diagonal += 1
        # now the diagonal on which the edit is made
        if low <= diagonal <= high:
            ahead = position + (kind != SUBSTITUTE and substitutes and position < m and position + diagonal < n)
            if front[middle + diagonal] <= ahead:
                return False
        if kind == INSERT and deletes and position < m and low <= diagonal - 1 <= high:
            if front[middle + diagonal - 1] <= position + 1:
                return False
    return True


@kernel
def exact_path(tokens, begin, end, at_end, chances, size, ids, rank, allowed, edits, first, out, place, front, state):
    """Draw paths until one is greedy. Returns the number of edits in ``edits``, or -1 if a buffer is too small."""
    substitutes, inserts, deletes = allowed
    while True:
        last = draw_path(tokens, begin, end, at_end, chances, size, ids, rank, edits, first, state)
        if last < 0:
            return -1
        verdict = judge(tokens, end, edits, first, last, substitutes, inserts, deletes)
        if verdict == 2:
            stop = write_path(tokens, begin, end, edits, first, last, out, place)
            if stop < 0:
                return -1
            written = out[place:stop]
            greedy = is_greedy(tokens, begin, end, edits, first, last, written, front, substitutes, inserts, deletes)
            verdict = 1 if greedy else 0
        if verdict == 1:
            return last


@kernel
def edit_row(tokens, chances, size, ids, rank, allowed, exact, edits, out, place, front, state):
    """Draw one row: every run of free tokens between excluded ones is a reference of its own.

    Returns (where the row ends in out, number of edits), or (-1, 0) if a buffer is too small.
    """
    length, count, begin, alone = tokens.size, 0, 0, True
    while True:
        end = begin
        if rank.size == 0:
            end = length
        else:
            while end < length and not is_fixed(tokens[end], rank):
                end += 1
        last = count
        if end > begin or (alone and end == length):  # nothing is written between two excluded ids that are neighbours
            if exact:
                last = exact_path(
                    tokens, begin, end, True, chances, size, ids, rank, allowed, edits, count, out, place, front, state
                )
            else:
                last = draw_path(tokens, begin, end, True, chances, size, ids, rank, edits, count, state)
            if last < 0:
                return -1, 0
            place = write_path(tokens, begin, end, edits, count, last, out, place)
            if place < 0:
                return -1, 0
        count = last
        if end == length:
            return place, count
        if place >= out.size:
            return -1, 0
        out[place] = tokens[end]
        place += 1
        begin, alone = end + 1, False


@kernel
def edit_rows(references, lengths, seeds, n, chances, size, ids, rank, allowed, exact, start, stop):
    """Rows start..stop-1 of (batch * n): all their tokens in one array, their lengths, their numbers of edits."""
    out = np.empty(2 * n * np.int64(lengths[start // n : (stop - 1) // n + 1].sum()) // 2 + 64 + (stop - start), np.int64)
    edits = np.empty((64, 3), np.int64)
    front = np.empty(2 * 64 + 3, np.int64)
    state = np.empty(1, np.uint64)
    written, distances = np.empty(stop - start, np.int64), np.empty(stop - start, np.int64)
    place = 0
    for row in range(start, stop):
        tokens = references[row // n, : lengths[row // n]]
        while True:
            state[0] = stream(seeds[row // n], row % n)
            reached, count = edit_row(tokens, chances, size, ids, rank, allowed, exact, edits, out, place, front, state)
            if reached >= 0:
                break
            # the same draw again, with more room
            edits = np.empty((2 * edits.shape[0], 3), np.int64)
            front = np.empty(2 * edits.shape[0] + 3, np.int64)
            longer = np.empty(out.size + out.size // 2 + 64, np.int64)
            longer[:place] = out[:place]
            out = longer
        written[row - start], distances[row - start] = reached - place, count
        place = reached
    return out[:place], written, distances


@kernel
def pad_rows(flat, lengths, pad, out):
    """Spread rows that lie one behind the other over the rows of ``out``."""
    place = 0
    for row in range(lengths.size):
        for i in range(lengths[row]):
            out[row, i] = flat[place + i]
        place += lengths[row]
        for i in range(lengths[row], out.shape[1]):
            out[row, i] = pad


@kernel
def least_edits(tokens, written, front, substitutes, inserts, deletes):
    """The least number of edits from tokens to written, or -1 where the allowed ones do not lead there."""
    m, n = tokens.size, written.size
    shift, total = n - m, n + m
    middle = total + 1 - shift
    low_end, high_end = -m, n
    for level in range(total + 1):
        low, high = max(shift - level, low_end), min(shift + level, high_end)
        # the two diagonals that this level adds, and their neighbours, begin beyond reach
        front[middle + shift - level - 1] = FAR
        front[middle + shift + level + 1] = FAR
        if level == 0:
            front[middle + shift] = FAR
        before = front[middle + low - 1] if low > low_end else np.int64(FAR)
        for d in range(low, high + 1):
            here, above = front[middle + d], front[middle + d + 1]
            if level == 0:
                reached = m
            else:
                reached = here
                if substitutes:
                    reached = min(reached, here - 1)
                if deletes:
                    reached = min(reached, before - 1)
                if inserts and d < high_end:
                    reached = min(reached, above)
            before = here
            if reached <= m:
                reached = max(reached, 0, -d)
                while reached > 0 and reached + d > 0 and tokens[reached - 1] == written[reached + d - 1]:
                    reached -= 1
                front[middle + d] = reached
            else:
                front[middle + d] = FAR
        if low <= 0 <= high and front[middle] == 0:
            return level
    return -1


@kernel
def anchored_distances(ys, lengths, references, reference_lengths, rank, substitutes, inserts, deletes, out):
    """Edit distances of rows, where excluded ids stay and edits happen in between; infinite where none lead there."""
    front = np.empty(2 * (ys.shape[1] + references.shape[1]) + 5, np.int64)
    for row in range(ys.shape[0]):
        k = row if references.shape[0] > 1 else 0
        y, reference = ys[row, : lengths[row]], references[k, : reference_lengths[k]]
        i, j, total, alone, reachable = 0, 0, 0, True, True
        while reachable:
            i_end, j_end = i, j
            if rank.size == 0:
                i_end, j_end = reference.size, y.size
            else:
                while i_end < reference.size and not is_fixed(reference[i_end], rank):
                    i_end += 1
                while j_end < y.size and not is_fixed(y[j_end], rank):
                    j_end += 1
            if i_end == i and not (alone and i_end == reference.size):
                reachable = j_end == j
            else:
                edits = least_edits(reference[i:i_end], y[j:j_end], front, substitutes, inserts, deletes)
                reachable = edits >= 0
                total += edits
            if i_end == reference.size or j_end == y.size:
                reachable = reachable and i_end == reference.size and j_end == y.size
                break
            reachable = reachable and reference[i_end] == y[j_end]
            i, j, alone = i_end + 1, j_end + 1, False
        out[row] = total if reachable else np.inf


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
    ways[0], used = np.uint64(1), 1
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
            if new_used > max_states:
                return False, counts
        now, new = new, now
        ways, new_ways = new_ways, ways
        used = new_used
        if new.shape[0] < room:
            new, new_ways = np.empty((room, width), np.uint8), np.zeros(room, np.uint64)
    return True, counts
