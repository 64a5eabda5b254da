"""Compiled lists of the best: scores of a block of items merged into what each user has so far."""

import numpy as np

from tenfold.numerics import kernel


@kernel
def _largest(values):
    result = values[0]
    for i in range(values.size):
        result = max(result, values[i])
    return result


@kernel
def merge_top(scores, ids, top_scores, top_ids):
    """Merge scores (users, items) of the items ``ids`` into each user's best list; of equal scores the lower id comes first."""
    users, items = scores.shape
    n = top_ids.shape[1]
    for user in range(users):
        best, names = top_scores[user], top_ids[user]
        for first in range(0, items, 64):
            chunk = scores[user, first : min(first + 64, items)]
            if not _largest(chunk) >= best[n - 1]:
                continue
            for offset in range(chunk.size):
                value, name = chunk[offset], ids[first + offset]
                if value < best[n - 1] or value == -np.inf or (value == best[n - 1] and names[n - 1] < name):
                    continue
                place = n - 1
                while place > 0 and (best[place - 1] < value or (best[place - 1] == value and names[place - 1] > name)):
                    best[place] = best[place - 1]
                    names[place] = names[place - 1]
                    place -= 1
                best[place] = value
                names[place] = name
