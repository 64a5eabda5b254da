"""Independent edits along a reference, and why rejection makes them an exact sampler of the edit payoff.

Let ``w = exp(-1 / tau_raw)`` and V the size of the alphabet. At each position of the reference, independently, a token is

    kept                                          weight 1
    substituted by one of the others              (V - 1) w
    deleted                                       w
    kept behind g >= 1 inserted other tokens      ((V - 1) w)^g

and g >= 0 arbitrary tokens follow the end, (V w)^g. The total weight of all such *paths* is

    Z_path = K^m / (1 - V w),   K = 1 + (V - 1) w + w + (V - 1) w / (1 - (V - 1) w).

Drawing a path costs a few random numbers for each edit: the gap to the next edited position is geometric.

Among the shortest edit scripts from y* to y, call *greedy* the one that, from left to right, keeps a token wherever
it can, and otherwise makes the first of substitution, deletion, insertion that still leads to a shortest script. There
is one for each y, it is one of the paths above (a substitution behind an insertion or a deletion could come first, an
insertion beside a deletion is a substitution, and a token equal to the next of the reference is kept, not inserted),
and its weight is ``w^d(y, y*)``. So a path that is drawn, and accepted only if it is the greedy one of its string, is a
sample of ``q(y) = w^d(y, y*) / Z`` exactly, and Z = Z_path * P(accept).

Whether a path is greedy needs no table of all prefixes: by induction from the end, ``front(s, d)``, the smallest
position on diagonal d from which s edits suffice, answers it for one edit after the other, in O(edits^2) steps
(the diagonals of Ukkonen 1985, "Algorithms for approximate string matching").

With fewer operations the same holds with the moves that are left: d is then the least number of these operations, and y
ranges over the strings that they reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class PathWeights:
    """The weights of the paths of one payoff.

    Args:
        size: V, at least 2.
        weight: w, positive; below 1 / V where insertions are allowed.
        substitutes, inserts, deletes: The operations that are allowed.
    """

    size: int
    weight: float
    substitutes: bool = True
    inserts: bool = True
    deletes: bool = True

    @property
    def substitution(self) -> float:
        """(V - 1) w, for all tokens together."""
        return (self.size - 1) * self.weight if self.substitutes else 0.0

    @property
    def deletion(self) -> float:
        """W."""
        return self.weight if self.deletes else 0.0

    @property
    def more(self) -> float:
        """(V - 1) w, the weight of one more inserted token before a kept one."""
        return (self.size - 1) * self.weight if self.inserts else 0.0

    @property
    def more_at_end(self) -> float:
        """V w, the weight of one more token behind the end."""
        return self.size * self.weight if self.inserts else 0.0

    @property
    def edited(self) -> float:
        """K - 1, the weight of all edits at a position."""
        return self.substitution + self.deletion + self.more / (1 - self.more)

    def chances(self) -> tuple[float, float, float, float, float]:
        """What the sampler needs: 1 / ln P(keep), chances of the kinds of an edit, cumulated, and of one more insertion."""
        substitute = self.substitution / self.edited
        delete = (self.substitution + self.deletion) / self.edited if self.inserts else 1.0
        if not (self.inserts or self.deletes):
            substitute = 1.0
        return (-1 / math.log1p(self.edited), substitute, delete, self.more, self.more_at_end)

    def log_normalizer(self, length: int, ends: int = 1) -> float:
        """The logarithm of Z_path for ``length`` tokens in ``ends`` references.

        >>> import math
        >>> math.isclose(PathWeights(2, 0.25).log_normalizer(1), math.log((1 + 0.25 + 0.25 + 1 / 3) * 2))
        True
        """
        return length * math.log1p(self.edited) - ends * math.log1p(-self.more_at_end)

    def mean_edits(self, length: int) -> float:
        """Mean number of edits of a path over a reference of that length.

        >>> PathWeights(2, 0.1, inserts=False, deletes=False).mean_edits(11)  # one of eleven tokens
        1.0
        """
        return length * self.mean_edits_per_token() + self.more_at_end / (1 - self.more_at_end)

    def mean_edits_per_token(self) -> float:
        """W K'(w) / K(w)."""
        inserted = self.more / (1 - self.more) ** 2
        return (self.substitution + self.deletion + inserted) / (1 + self.edited)

    def coefficients(self, most: int) -> tuple[Float[np.ndarray, " edits"], Float[np.ndarray, " edits"]]:
        """Weights of 0, ..., most edits at one position, and behind the end."""
        edits = np.arange(most + 1)
        inside = np.where(edits == 0, 1.0, self.more**edits) if self.inserts else (edits == 0).astype(float)
        if most >= 1:
            inside[1] += self.substitution + self.deletion
        behind = self.more_at_end**edits if self.inserts else (edits == 0).astype(float)
        return inside, behind
