"""Samples of the edit payoff within a number of edits: paths of a drawn number of edits, until one is greedy."""

import math

import numpy as np

from tenfold.numerics import inlined, kernel
from tenfold.raml.kernels.edit_samples import push
from tenfold.raml.kernels.greedy_paths import DELETE, INSERT, NONE, SUBSTITUTE, path_verdict, write_path
from tenfold.raml.kernels.streams import any_token, is_fixed, next_uniform, other_token, stream


@inlined
def _log_add(a, b):
    """Log-sum-exp ln(e^a + e^b)."""
    high, low = max(a, b), min(a, b)
    return high if low == -np.inf else high + math.log1p(math.exp(low - high))


@kernel
def position_weights(length, most, log_single, log_more):
    """Logarithms of the weight of all paths with c edits over r positions, for r = 0..length and c = 0..most.

    ``log_single``: of a substitution or deletion; ``log_more``: of one more insertion before a kept token.
    """
    table = np.full((length + 1, most + 1), -np.inf)
    table[0, 0] = 0.0
    for r in range(1, length + 1):
        inserted = -np.inf  # one or more insertions at this position
        for c in range(most + 1):
            total = table[r - 1, c]
            if c > 0:
                inserted = log_more + _log_add(table[r - 1, c - 1], inserted)
                total = _log_add(total, _log_add(log_single + table[r - 1, c - 1], inserted))
            table[r, c] = total
    return table


@kernel
def end_weights(ends, most, log_more_at_end):
    """Logarithms of the weight of c insertions behind b ends, for b = 0..ends and c = 0..most."""
    table = np.full((ends + 1, most + 1), -np.inf)
    table[0, 0] = 0.0
    for b in range(1, ends + 1):
        table[b, 0] = 0.0
        for c in range(1, most + 1):
            table[b, c] = _log_add(table[b - 1, c], log_more_at_end + table[b, c - 1])
    return table


@kernel
def _free_runs(tokens, rank, runs):
    """Beginnings and ends of the references between excluded ids, into ``runs``; returns their number."""
    begin, count = 0, 0
    while True:
        end = begin
        while end < tokens.size and not (rank.size > 0 and is_fixed(tokens[end], rank)):
            end += 1
        if end > begin or tokens.size == 0:
            runs[count, 0], runs[count, 1] = begin, end
            count += 1
        if end == tokens.size:
            return count
        begin = end + 1


@kernel
def _draw_limited(tokens, runs, run_count, inside, behind, logs, size, ids, rank, edits, ends, bounds, state):
    """Draw a path over all runs with its number of edits from the limited distribution; ``bounds``: edits by run."""
    log_substitute, log_delete, log_more, log_more_at_end = logs
    most = inside.shape[1] - 1
    free = 0
    for t in range(run_count):
        free += runs[t, 1] - runs[t, 0]
    # edits at positions and behind ends, together at most ``most``
    total = -np.inf
    for c in range(most + 1):
        for a in range(most + 1 - c):
            total = _log_add(total, inside[free, a] + behind[run_count, c])
    target, reached, budget, at_ends = next_uniform(state), 0.0, 0, 0
    for c in range(most + 1):
        for a in range(most + 1 - c):
            chance = math.exp(inside[free, a] + behind[run_count, c] - total)
            if chance > 0.0 and reached < target:
                budget, at_ends = a, c
            reached += chance
    for t in range(run_count):
        left = run_count - 1 - t
        target, reached, chosen = next_uniform(state), 0.0, 0
        for x in range(at_ends + 1):
            chance = (
                math.exp(x * log_more_at_end + behind[left, at_ends - x] - behind[left + 1, at_ends])
                if x
                else (math.exp(behind[left, at_ends] - behind[left + 1, at_ends]))
            )
            if chance > 0.0 and reached < target:
                chosen = x
            reached += chance
        ends[t] = chosen
        at_ends -= chosen
    count = 0
    for t in range(run_count):
        bounds[t] = count
        for i in range(runs[t, 0], runs[t, 1]):
            free -= 1
            if budget > 0:
                whole = inside[free + 1, budget]
                target = next_uniform(state) - math.exp(inside[free, budget] - whole)
                if target > 0.0 or inside[free, budget] == -np.inf:
                    rest = inside[free, budget - 1] - whole
                    substitute, delete = math.exp(log_substitute + rest), math.exp(log_delete + rest)
                    if target <= substitute:
                        push(edits, count, i, SUBSTITUTE, other_token(state, tokens[i], size, ids, rank))
                        count, budget = count + 1, budget - 1
                    elif target <= substitute + delete:
                        push(edits, count, i, DELETE, NONE)
                        count, budget = count + 1, budget - 1
                    else:
                        target -= substitute + delete
                        inserted, chosen = 0.0, 1
                        for x in range(1, budget + 1):
                            chance = math.exp(x * log_more + inside[free, budget - x] - whole)
                            if chance > 0.0 and (inserted < target or x == 1):
                                chosen = x
                            inserted += chance
                        for _ in range(chosen):
                            push(edits, count, i, INSERT, other_token(state, tokens[i], size, ids, rank))
                            count, budget = count + 1, budget - 1
        for _ in range(ends[t]):
            push(edits, count, runs[t, 1], INSERT, any_token(state, size, ids))
            count += 1
    bounds[run_count] = count


@kernel
def limited_rows(references, lengths, seeds, n, inside, behind, logs, size, ids, rank, allowed, start, stop):
    """Rows start..stop-1 of (batch * n): all their tokens in one array, their lengths, their numbers of edits."""
    most, width = inside.shape[1] - 1, references.shape[1]
    out = np.empty((stop - start) * (width + most) + 1, np.int64)
    edits, front = np.empty((most + 1, 3), np.int64), np.empty(2 * most + 5, np.int64)
    runs, ends, bounds = (
        np.empty((width + 1, 2), np.int64),
        np.empty(width + 1, np.int64),
        np.empty(width + 2, np.int64),
    )
    state = np.empty(1, np.uint64)
    written, distances = np.empty(stop - start, np.int64), np.empty(stop - start, np.int64)
    place = 0
    for row in range(start, stop):
        tokens = references[row // n, : lengths[row // n]]
        run_count = _free_runs(tokens, rank, runs)
        state[0] = stream(seeds[row // n], row % n)
        accepted = False
        while not accepted:
            _draw_limited(tokens, runs, run_count, inside, behind, logs, size, ids, rank, edits, ends, bounds, state)
            accepted = True
            for t in range(run_count):
                verdict = path_verdict(
                    tokens, runs[t, 0], runs[t, 1], edits, bounds[t], bounds[t + 1], allowed, out, place, front
                )
                if verdict != 1:
                    accepted = False
                    break
        stop_at = write_path(tokens, 0, tokens.size, edits, 0, bounds[run_count], out, place)
        written[row - start], distances[row - start] = stop_at - place, bounds[run_count]
        place = stop_at
    return out[:place], written, distances
