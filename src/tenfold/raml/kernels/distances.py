"""Edit distances with a choice of operations and with ids that stay."""

import math

import numpy as np

from tenfold.numerics import kernel
from tenfold.raml.kernels.greedy_paths import FAR
from tenfold.raml.kernels.streams import is_fixed


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
def log_path_mass(tokens, written, weight, substitutes, inserts, deletes):
    """Logarithms of the weight of all paths of independent edits from tokens to written; -inf where there is none."""
    m, n = tokens.size, written.size
    now, then, pending = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    now[0], log_scale = 1.0, 0.0
    for i in range(m):
        for j in range(n + 1):
            then[j], pending[j] = 0.0, 0.0
        highest = 0.0
        for j in range(n + 1):
            if inserts and j > 0 and written[j - 1] != tokens[i]:
                pending[j] = (now[j - 1] + pending[j - 1]) * weight
            if deletes:
                then[j] += now[j] * weight
            if j < n:
                if written[j] == tokens[i]:
                    then[j + 1] += now[j] + pending[j]
                elif substitutes:
                    then[j + 1] += now[j] * weight
        for j in range(n + 1):
            highest = max(highest, then[j])
        if highest == 0.0:
            return -np.inf
        for j in range(n + 1):
            now[j] = then[j] / highest
        log_scale += math.log(highest)
    total, power = 0.0, 1.0
    for j in range(n, -1, -1):
        total += now[j] * power
        power *= weight if inserts else 0.0
    return log_scale + math.log(total) if total > 0.0 else -np.inf


@kernel
def anchored_rows(ys, lengths, references, reference_lengths, rank, weight, allowed, distances, masses):
    """Edit distances of rows, where excluded ids stay and edits happen in between; infinite where none lead there.

    For a positive weight also the logarithms of the weights of all paths.
    """
    substitutes, inserts, deletes = allowed
    front = np.empty(2 * (ys.shape[1] + references.shape[1]) + 5, np.int64)
    for row in range(ys.shape[0]):
        k = row if references.shape[0] > 1 else 0
        y, reference = ys[row, : lengths[row]], references[k, : reference_lengths[k]]
        i, j, total, mass, alone, reachable = 0, 0, 0, 0.0, True, True
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
                if weight > 0.0 and reachable:
                    mass += log_path_mass(reference[i:i_end], y[j:j_end], weight, substitutes, inserts, deletes)
            if i_end == reference.size or j_end == y.size:
                reachable = reachable and i_end == reference.size and j_end == y.size
                break
            reachable = reachable and reference[i_end] == y[j_end]
            i, j, alone = i_end + 1, j_end + 1, False
        distances[row] = total if reachable else np.inf
        masses[row] = mass if reachable else -np.inf
