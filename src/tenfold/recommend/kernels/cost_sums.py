"""Compiled sums that make up the cost, over entries and over factors, in float64."""

import numpy as np

from tenfold.numerics import kernel
from tenfold.numerics.row_products import four_products
from tenfold.numerics.vectors import BYTES


@kernel
def weighted_squares(weights, factors):
    """``sum_i weights_i |factors_i|^2`` in float64."""
    result = 0.0
    for row in range(weights.size):
        square = 0.0
        for j in range(factors.shape[1]):
            square += np.float64(factors[row, j]) * np.float64(factors[row, j])
        result += weights[row] * square
    return result


@kernel
def loss_rows(start, stop, indptr, indices, values, scale, left, right):
    """``sum c (p - s)^2`` and ``sum s^2`` over the entries of the rows ``start`` to ``stop``, in float64; s = left . right."""
    observed = 0.0
    squares = 0.0
    width = left.shape[1]
    slope, offset, _ = scale
    whole = width % (BYTES // left.itemsize) == 0  # vectors; other widths go row by row
    scores = np.empty(4)
    for row in range(start, stop):
        factors = left[row]
        last = indptr[row + 1] - 1
        for first in range(indptr[row], indptr[row + 1], 4):
            if whole:
                numbers = (
                    np.int64(indices[first]),
                    np.int64(indices[min(first + 1, last)]),
                    np.int64(indices[min(first + 2, last)]),
                    np.int64(indices[min(first + 3, last)]),
                )
                scores[0], scores[1], scores[2], scores[3] = four_products(right, numbers, width, factors)
            else:
                for i in range(min(4, last + 1 - first)):
                    score = left.dtype.type(0)
                    for j in range(width):
                        score += factors[j] * right[indices[first + i], j]
                    scores[i] = score
            for i in range(min(4, last + 1 - first)):
                value = np.float64(values[first + i])
                error = (1.0 if value > 0 else 0.0) - scores[i]
                observed += (offset + slope * abs(value)) * error * error
                squares += scores[i] * scores[i]
    return observed, squares
