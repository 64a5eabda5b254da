"""Compiled half steps of alternating least squares: many small regularised systems that share one table of factors.

For a row with entries t (factors ``z_t`` of the fixed side, confidence ``c_t``, preference ``p_t`` in {0, 1}, excess weight
``w_t = c_t - base``, target ``b_t = c_t p_t``) and a positive diagonal ``d``, each function finds ``x`` with
``(diag(d) + sum_t w_t z_t z_t^T) x = sum_t b_t z_t``. The table is rotated beforehand (module ``solvers``) so that what all
rows share is diagonal. Rows are independent, so every row has the same bits whatever thread solves it. Widths are padded to
whole vectors with zero columns, whose diagonal is 1.

- `direct_rows` forms the matrix by rank updates and factors it: the cheapest exact way for long rows.
- `dual_rows` solves a system as large as the row has entries: with ``B = sqrt(W) Z diag(d)^(-1/2)`` (n x k),
  ``x = diag(d)^(-1/2) B^T (I + B B^T)^{-1} W^(-1/2) b``. The cheapest exact way for short rows.
- `conjugate_gradient_rows` takes a few steps from the previous factors.
- `subspace_rows` solves for one block of coordinates after the other (iALS++).

Confidence and preference arrive as one signed number an entry: ``c`` where the preference is 1, ``-c`` where it is 0.
"""

import numpy as np

from tenfold.numerics import kernel, rank_update, solve_definite
from tenfold.numerics.row_products import accumulate_four, four_adds, four_dots, four_products, gather_four, weigh_row
from tenfold.numerics.vectors import BYTES

BLOCK = 6144  # numbers of a gathered block: two of them stay in the first-level cache
AHEAD = 8  # entries between the one at work and the one whose factors are asked for


@kernel
def _add_scaled(values, factor, other):
    for j in range(values.size):
        values[j] += factor * other[j]


@kernel
def direct_rows(order, indptr, indices, confidence, base, table, diagonal, shift, width, out):
    """Solve the rows listed in ``order``; returns the first row whose matrix is not positive definite, or -1.

    Args:
        order: Rows to solve.
        indptr: Start of each row's entries, (rows + 1,).
        indices: Row of ``table`` of each entry.
        confidence: ``c`` of each entry, negative where the preference is 0.
        base: What an unobserved cell already weighs in the shared part.
        table: (items, K), K padded.
        diagonal: (K,).
        shift: What each row adds to the diagonal, (rows,).
        width: Columns that are not padding.
        out: (rows, K), written.
    """
    padded_width = table.shape[1]
    block = max(8, BLOCK // padded_width)
    dtype = table.dtype
    weighted, plain = np.empty((block, padded_width), dtype), np.empty((block, padded_width), dtype)
    matrix = np.empty((padded_width, padded_width), dtype)
    solution, forward = np.empty(padded_width, dtype), np.empty(padded_width, dtype)
    zero = dtype.type(0)
    for row in order:
        matrix[:] = 0
        solution[:] = 0
        count = 0
        for t in range(indptr[row], indptr[row + 1]):
            signed = confidence[t]
            weight, target = abs(signed) - base, max(signed, zero)
            weigh_row(table, indices[t], padded_width, weight, target, plain, weighted, count, solution)
            count += 1
            if count == block:
                rank_update(weighted, plain, count, matrix)
                count = 0
        rank_update(weighted, plain, count, matrix)
        for j in range(padded_width):
            matrix[j, j] += diagonal[j] + shift[row] if j < width else 1
        if not solve_definite(matrix, solution, forward):
            return row
        out[row] = solution
    return -1


@kernel
def _gather_column(column, stride, factors, roots, factor, buffer):
    for j in range(factors.size):
        buffer[j * stride + column] = factor * factors[j] * roots[j]


@kernel
def dual_rows(order, indptr, indices, confidence, base, table, diagonal, shift, width, out):
    """The same through systems of the size of each row; every weight must be positive."""
    padded_width = table.shape[1]
    dtype = table.dtype
    one = dtype.type(1)
    lanes = BYTES // table.itemsize
    longest = 0
    for row in order:
        longest = max(longest, indptr[row + 1] - indptr[row])
    longest = (longest + lanes - 1) // lanes * lanes
    columns = np.empty(padded_width * longest, dtype)
    gram = np.empty(longest * longest, dtype)
    roots, right, forward = np.empty(padded_width, dtype), np.empty(longest, dtype), np.empty(longest, dtype)
    for row in order:
        start, count = indptr[row], indptr[row + 1] - indptr[row]
        solution = out[row]
        solution[:] = 0
        if count == 0:
            continue
        padded_count = (count + lanes - 1) // lanes * lanes
        flat = columns[: padded_width * padded_count]
        if padded_count > count:
            flat[:] = 0
        for j in range(padded_width):
            roots[j] = one / np.sqrt(diagonal[j] + shift[row]) if j < width else one
        right[:padded_count] = 0
        for t in range(count):
            signed = confidence[start + t]
            root = np.sqrt(abs(signed) - base)
            _gather_column(t, padded_count, table[indices[start + t]], roots, root, flat)
            right[t] = max(signed, dtype.type(0)) / root
        transposed = flat.reshape(padded_width, padded_count)
        square = gram[: padded_count * padded_count].reshape(padded_count, padded_count)
        square[:] = 0
        rank_update(transposed, transposed, padded_width, square)
        for t in range(padded_count):
            square[t, t] += one
        if not solve_definite(square, right[:padded_count], forward[:padded_count]):
            return row
        for j in range(padded_width):
            total = dtype.type(0)
            for t in range(padded_count):
                total += transposed[j, t] * right[t]
            solution[j] = total * roots[j]
    return -1


@kernel
def _dot(a, b):
    result = a.dtype.type(0)
    for j in range(a.size):
        result += a[j] * b[j]
    return result


@kernel
def _apply(rows, count, weights, x, result):
    """``result = x + sum_t w_t z_t (z_t . x)``, four of the gathered rows at a time."""
    width = x.size
    for j in range(width):
        result[j] = x[j]
    for t in range(0, count, 4):
        p, q, r, s = four_dots(rows, t, width, x)
        factors = (weights[t] * p, weights[t + 1] * q, weights[t + 2] * r, weights[t + 3] * s)
        four_adds(rows, t, width, factors, result)


@kernel
def _curvature(rows, count, weights, x):
    """``x . (x + sum_t w_t z_t (z_t . x))``."""
    result = _dot(x, x)
    for t in range(0, count, 4):
        p, q, r, s = four_dots(rows, t, x.size, x)
        result += weights[t] * p * p + weights[t + 1] * q * q + weights[t + 2] * r * r + weights[t + 3] * s * s
    return result


@kernel
def conjugate_gradient_rows(
    order, indptr, indices, confidence, base, table, diagonal, shift, width, steps, tolerance, out
):
    """At most ``steps`` steps from the factors in ``out``, in coordinates in which ``d`` is the identity.

    A Jacobi preconditioner of the whitened system is used where the excess weights are large enough to need one. A row stops when
    its residual is below ``tolerance`` times the first one.
    """
    padded_width = table.shape[1]
    dtype = table.dtype
    one, zero = dtype.type(1), dtype.type(0)
    longest = 1
    for row in order:
        longest = max(longest, indptr[row + 1] - indptr[row])
    longest = (longest + 3) // 4 * 4
    gathered, row_weights = np.empty((longest, padded_width), dtype), np.empty(longest, dtype)
    roots, x, residual, direction = (
        np.empty(padded_width, dtype),
        np.empty(padded_width, dtype),
        np.empty(padded_width, dtype),
        np.empty(padded_width, dtype),
    )
    product, scaling, scaled = (
        np.empty(padded_width, dtype),
        np.empty(padded_width, dtype),
        np.empty(padded_width, dtype),
    )
    signed = np.empty(4, dtype)
    for row in order:
        start, count = indptr[row], indptr[row + 1] - indptr[row]
        solution = out[row]
        if count == 0:
            solution[:] = 0
            continue
        for j in range(padded_width):
            roots[j] = one / np.sqrt(diagonal[j] + shift[row]) if j < width else one
            x[j] = solution[j] / roots[j]
        residual[:] = -x
        scaling[:] = 1
        last = start + count - 1
        # one pass: gather, and what the entries add to right-hand side, residual and diagonal; beyond the last entry
        # it is repeated with weight 0
        for t in range(0, count, 4):
            here = start + t
            numbers = (
                np.int64(indices[here]),
                np.int64(indices[min(here + 1, last)]),
                np.int64(indices[min(here + 2, last)]),
                np.int64(indices[min(here + 3, last)]),
            )
            ahead = here + AHEAD
            following = (
                np.int64(indices[min(ahead, last)]),
                np.int64(indices[min(ahead + 1, last)]),
                np.int64(indices[min(ahead + 2, last)]),
                np.int64(indices[min(ahead + 3, last)]),
            )
            similarity = gather_four(table, numbers, padded_width, roots, x, gathered, t, following)
            for i in range(4):
                signed[i] = confidence[here + i] if here + i <= last else zero
                row_weights[t + i] = abs(signed[i]) - base if here + i <= last else zero
            weights = (row_weights[t], row_weights[t + 1], row_weights[t + 2], row_weights[t + 3])
            factors = (
                max(signed[0], zero) - weights[0] * similarity[0],
                max(signed[1], zero) - weights[1] * similarity[1],
                max(signed[2], zero) - weights[2] * similarity[2],
                max(signed[3], zero) - weights[3] * similarity[3],
            )
            accumulate_four(gathered, t, padded_width, factors, weights, residual, scaling)
        for j in range(padded_width):
            scaling[j] = one / scaling[j] if scaling[j] > zero else one
            scaled[j] = scaling[j] * residual[j]
            direction[j] = scaled[j]
        energy = _dot(residual, scaled)
        size = _dot(residual, residual)
        for step in range(steps):
            if not _dot(residual, residual) > tolerance * tolerance * size:
                break
            if step == steps - 1:  # no residual is needed after it
                length = energy / _curvature(gathered, count, row_weights, direction)
                if length > zero:
                    _add_scaled(x, length, direction)
                break
            _apply(gathered, count, row_weights, direction, product)
            curvature = _dot(direction, product)
            if not curvature > zero:
                break
            length = energy / curvature
            for j in range(padded_width):
                x[j] += length * direction[j]
                residual[j] -= length * product[j]
                scaled[j] = scaling[j] * residual[j]
            following = _dot(residual, scaled)
            _direct(direction, following / energy, scaled)
            energy = following
        for j in range(padded_width):
            solution[j] = x[j] * roots[j]
    return -1


@kernel
def _direct(direction, factor, scaled):
    for j in range(direction.size):
        direction[j] = scaled[j] + factor * direction[j]


@kernel
def _copy_block(plain, weighted, factors, weight):
    for j in range(plain.size):
        plain[j] = factors[j]
        weighted[j] = weight * factors[j]


@kernel
def subspace_rows(order, indptr, indices, confidence, base, table, diagonal, shift, width, block, out):
    """One pass over blocks of ``block`` coordinates from the factors in ``out``: each solved with the others held fixed.

    The products of the row's factors with its entries are kept and updated. Because what all rows share is diagonal, the
    blocks are coupled by the row's own entries alone.
    """
    padded_width = table.shape[1]
    dtype = table.dtype
    zero, one = dtype.type(0), dtype.type(1)
    longest = 1
    for row in order:
        longest = max(longest, indptr[row + 1] - indptr[row])
    products, weights = np.empty(longest, dtype), np.empty(longest, dtype)
    plain, weighted = np.empty((longest, block), dtype), np.empty((longest, block), dtype)
    matrix = np.empty((block, block), dtype)
    change, forward = np.empty(block, dtype), np.empty(block, dtype)
    for row in order:
        start, count = indptr[row], indptr[row + 1] - indptr[row]
        x = out[row]
        if count == 0:
            x[:] = 0
            continue
        for t in range(count):
            products[t] = _dot(table[indices[start + t]], x)
            weights[t] = abs(confidence[start + t]) - base
        for first in range(0, padded_width, block):
            last = min(first + block, padded_width)
            matrix[:] = 0
            change[:] = 0
            if last - first < block:
                plain[:] = 0
                weighted[:] = 0
            for j in range(first, last):
                change[j - first] = -(diagonal[j] + shift[row]) * x[j] if j < width else zero
            for t in range(count):
                factors = table[indices[start + t], first:last]
                _copy_block(plain[t, : last - first], weighted[t, : last - first], factors, weights[t])
                residual = max(confidence[start + t], zero) - weights[t] * products[t]
                _add_scaled(change[: last - first], residual, plain[t, : last - first])
            rank_update(weighted, plain, count, matrix)
            for j in range(block):
                matrix[j, j] += diagonal[first + j] + shift[row] if first + j < width else one
            if not solve_definite(matrix, change, forward):
                return row
            for j in range(first, last):
                x[j] += change[j - first]
            for t in range(count):
                products[t] += _dot(plain[t], change)
    return -1


@kernel
def smallest_confidences(indptr, confidence):
    """The smallest ``c`` of each row; infinity where there are no entries."""
    result = np.empty(indptr.size - 1, confidence.dtype)
    for row in range(result.size):
        smallest = confidence.dtype.type(np.inf)
        for t in range(indptr[row], indptr[row + 1]):
            smallest = min(smallest, abs(confidence[t]))
        result[row] = smallest
    return result


@kernel
def column_weights(indices, confidence, base, columns):
    """``sum w`` over the entries of each column, in float64."""
    result = np.zeros(columns)
    for t in range(indices.size):
        result[indices[t]] += abs(np.float64(confidence[t])) - base
    return result


@kernel
def loss_rows(start, stop, indptr, indices, confidence, left, right):
    """``sum c (p - s)^2`` and ``sum s^2`` over the entries of the rows ``start`` to ``stop``, in float64; s = left . right."""
    observed = 0.0
    squares = 0.0
    width = left.shape[1]
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
                    scores[i] = _dot(factors, right[indices[first + i]])
            for i in range(min(4, last + 1 - first)):
                signed = np.float64(confidence[first + i])
                error = (1.0 if signed > 0 else 0.0) - scores[i]
                observed += abs(signed) * error * error
                squares += scores[i] * scores[i]
    return observed, squares


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
