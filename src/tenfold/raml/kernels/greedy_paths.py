"""Which edit paths are greedy: the one designated shortest script of the string that they make.

A path is a list of edits in the order of the output, (position in the reference, kind, token): a substitution or
deletion is of the token at its position, an insertion is before it. All other tokens are kept.
"""

import numpy as np

from tenfold.numerics import inlined, kernel

SUBSTITUTE, DELETE, INSERT = 0, 1, 2
NONE = -(2**62)  # no token
FAR = 2**40  # no point of a diagonal


@inlined
def judge(tokens, end, edits, first, last, substitutes, inserts, deletes):
    """Look at the edits first..last-1 alone: 0 they are no greedy path, 1 they are the greedy path, 2 not yet known."""
    substituted, deleted, inserted = 0, 0, 0
    following = np.int64(NONE)
    for k in range(last - 1, first - 1, -1):
        position, kind = edits[k, 0], edits[k, 1]
        substituted += kind == SUBSTITUTE
        inserted += kind == INSERT
        if kind == DELETE:
            deleted += 1
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
    if substituted == 0 and (deleted == 0 or inserted == 0):
        return 1  # as many edits as the lengths differ by
    if deleted == 0 and inserted == 0 and (substituted <= 2 or not (inserts and deletes)):
        return 1  # another script of this length deletes and inserts as often, at least once
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
                reached = (
                    edits[last - 1, 0] - begin + (edits[last - 1, 1] != INSERT)
                )  # all behind the last edit is kept
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
        deletable = kind == INSERT and deletes and position < m and low <= diagonal - 1 <= high
        if deletable and front[middle + diagonal - 1] <= position + 1:
            return False
    return True


@kernel
def path_verdict(tokens, begin, end, edits, first, last, allowed, out, place, front):
    """1 if the edits first..last-1 are the greedy path of the string that they make of tokens[begin:end], 0 if not.

    ``out`` behind ``place`` is scratch; -1 if the string does not fit there.
    """
    substitutes, inserts, deletes = allowed
    verdict = judge(tokens, end, edits, first, last, substitutes, inserts, deletes)
    if verdict == 2:
        stop = write_path(tokens, begin, end, edits, first, last, out, place)
        if stop < 0:
            return -1
        written = out[place:stop]
        greedy = is_greedy(tokens, begin, end, edits, first, last, written, front, substitutes, inserts, deletes)
        verdict = 1 if greedy else 0
    return verdict
