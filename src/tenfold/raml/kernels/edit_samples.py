"""Samples of the edit payoff: paths of independent edits, until one is greedy."""

import numpy as np

from tenfold.numerics import inlined, kernel, log64
from tenfold.raml.kernels.greedy_paths import DELETE, INSERT, NONE, SUBSTITUTE, path_verdict, write_path
from tenfold.raml.kernels.streams import any_token, is_fixed, next_uniform, other_token, stream


@inlined
def push(edits, count, position, kind, token):
    """Store an edit."""
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
            push(edits, count, i, SUBSTITUTE, other_token(state, tokens[i], size, ids, rank))
            count += 1
        elif kind <= delete:
            push(edits, count, i, DELETE, NONE)
            count += 1
        else:
            more = True
            while more:
                if count >= room:
                    return -1
                push(edits, count, i, INSERT, other_token(state, tokens[i], size, ids, rank))
                count += 1
                more = next_uniform(state) <= again
        i += 1
    if at_end:
        while next_uniform(state) <= again_at_end:
            if count >= room:
                return -1
            push(edits, count, end, INSERT, any_token(state, size, ids))
            count += 1
    return count


@kernel
def exact_stretch(
    tokens, begin, end, at_end, chances, size, ids, rank, allowed, edits, first, out, place, front, state
):
    """Draw paths until one is greedy. Returns the end of its edits in ``edits``, or -1 if a buffer is too small."""
    while True:
        last = draw_path(tokens, begin, end, at_end, chances, size, ids, rank, edits, first, state)
        if last < 0:
            return -1
        verdict = path_verdict(tokens, begin, end, edits, first, last, allowed, out, place, front)
        if verdict < 0:
            return -1
        if verdict == 1:
            return last


@kernel
def exact_path(tokens, begin, end, leaf, chances, size, ids, rank, allowed, edits, first, out, place, front, state):
    """As `exact_stretch`, with the end, for references of any length.

    A part of a greedy path is greedy. So where a whole path would hardly ever be, both halves are drawn until they are,
    and together accepted if the whole is: the same distribution, and the time grows as a power of the length, not
    exponentially. (A stack of the stretches that are being drawn: numba cannot keep recursive functions on disk.)
    """
    if end - begin <= leaf:
        return exact_stretch(
            tokens, begin, end, True, chances, size, ids, rank, allowed, edits, first, out, place, front, state
        )
    stack = np.empty((64, 4), np.int64)  # begin, end, first edit, halves that are done
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = begin, end, first, 0
    depth, last = 0, first
    while depth >= 0:
        low, high, done = stack[depth, 0], stack[depth, 1], stack[depth, 3]
        if high - low <= leaf:
            last = exact_stretch(
                tokens, low, high, high == end, chances, size, ids, rank, allowed, edits, stack[depth, 2], out, place,
                front, state,
            )  # fmt: skip
            if last < 0:
                return -1
            depth -= 1
        elif done < 2:
            middle = (low + high) // 2
            stack[depth, 3] = done + 1
            depth += 1
            stack[depth, 0], stack[depth, 1] = (low, middle) if done == 0 else (middle, high)
            stack[depth, 2], stack[depth, 3] = stack[depth - 1, 2] if done == 0 else last, 0
        else:
            verdict = path_verdict(tokens, low, high, edits, stack[depth, 2], last, allowed, out, place, front)
            if verdict < 0:
                return -1
            stack[depth, 3] = 0  # again, unless it is greedy
            depth -= verdict
    return last


@kernel
def edit_row(tokens, leaf, chances, size, ids, rank, allowed, exact, edits, out, place, front, state):
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
                    tokens, begin, end, leaf, chances, size, ids, rank, allowed, edits, count, out, place, front, state
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
def edit_rows(references, lengths, seeds, n, leaf, chances, size, ids, rank, allowed, exact, start, stop):
    """Rows start..stop-1 of (batch * n): all their tokens in one array, their lengths, their numbers of edits."""
    expected = lengths[start // n : (stop - 1) // n + 1].sum() * min(n, stop - start)
    out = np.empty(expected + expected // 8 + 2 * (stop - start) + 64, np.int64)
    edits = np.empty((64, 3), np.int64)
    front = np.empty(2 * 64 + 3, np.int64)
    state = np.empty(1, np.uint64)
    written, distances = np.empty(stop - start, np.int64), np.empty(stop - start, np.int64)
    place = 0
    for row in range(start, stop):
        tokens = references[row // n, : lengths[row // n]]
        while True:
            state[0] = stream(seeds[row // n], row % n)
            reached, count = edit_row(
                tokens, leaf, chances, size, ids, rank, allowed, exact, edits, out, place, front, state
            )
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
def tally_paths(tokens, draws, seed, chances, size, allowed, most):
    """How many of the drawn paths have 0..most edits, and how many of these are greedy."""
    drawn, greedy = np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64)
    everything = np.empty(0, np.int32)
    edits, out = np.empty((most + 1, 3), np.int64), np.empty(tokens.size + most + 1, np.int64)
    front, state = np.empty(2 * most + 5, np.int64), np.empty(1, np.uint64)
    state[0] = stream(seed, 0)
    for _ in range(draws):
        count = draw_path(tokens, 0, tokens.size, True, chances, size, everything, everything, edits, 0, state)
        if 0 <= count <= most:
            drawn[count] += 1
            greedy[count] += path_verdict(tokens, 0, tokens.size, edits, 0, count, allowed, out, 0, front)
    return drawn, greedy
