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

Confidence and preference arrive as one signed number r an entry, positive where the preference is 1, and three numbers for all,
``scale = (slope, offset, base)`` in the dtype of the table: ``c = offset + slope |r|``.

Each function also writes what the solution of a row takes off its cost, ``gain = 2 b.x - x.A x`` in float64 with ``A x = b`` the
row's system: its cost is ``sum c p - gain``. Where ``A x = b`` exactly this is ``b.x``.
"""

import numpy as np

from tenfold.numerics import kernel, rank_update, solve_definite
from tenfold.numerics.row_products import accumulate_four, four_adds, four_dots, gather_four, weigh_row
from tenfold.numerics.vectors import BYTES

BLOCK = 6144  # numbers of a gathered block: two of them stay in the first-level cache
AHEAD = 8  # entries between the one at work and the one whose factors are asked for


@kernel
def _add_scaled(values, factor, other):
    for j in range(values.size):
        values[j] += factor * other[j]


@kernel
def _weight_and_target(value, scale):
    """``w`` and ``c p`` of an entry."""
    slope, offset, base = scale
    size = abs(value) * slope
    return size + (offset - base), size + offset if value > 0 else slope - slope  # zero in their dtype


@kernel
def _square(values):
    """``|v|^2`` in float64."""
    result = 0.0
    for j in range(values.size):
        result += np.float64(values[j]) * np.float64(values[j])
    return result


@kernel
def direct_rows(order, indptr, indices, values, scale, table, diagonal, shift, width, out, gains):
    """Solve the rows listed in ``order``; returns the first row whose matrix is not positive definite, or -1.

    Args:
        order: Rows to solve.
        indptr: Start of each row's entries, (rows + 1,).
        indices: Row of ``table`` of each entry.
        values: r of each entry.
        scale: (slope, offset, base), base being what an unobserved cell already weighs in the shared part.
        table: (items, K), K padded.
        diagonal: (K,).
        shift: What each row adds to the diagonal, (rows,).
        width: Columns that are not padding.
        out: (rows, K), written.
        gains: (rows,), written.
    """
    padded_width = table.shape[1]
    block = max(8, BLOCK // padded_width)
    dtype = table.dtype
    weighted, plain = np.empty((block, padded_width), dtype), np.empty((block, padded_width), dtype)
    matrix = np.empty((padded_width, padded_width), dtype)
    solution, forward = np.empty(padded_width, dtype), np.empty(padded_width, dtype)
    for row in order:
        matrix[:] = 0
        solution[:] = 0
        count = 0
        for t in range(indptr[row], indptr[row + 1]):
            weight, target = _weight_and_target(values[t], scale)
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
        gains[row] = _square(forward)  # with A = L L^T it is L^-1 b, and its square b.x
    return -1


@kernel
def _gather_column(column, stride, factors, roots, factor, buffer):
    for j in range(factors.size):
        buffer[j * stride + column] = factor * factors[j] * roots[j]


@kernel
def dual_rows(order, indptr, indices, values, scale, table, diagonal, shift, width, out, gains):
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
    targets = np.empty(longest, dtype)
    for row in order:
        start, count = indptr[row], indptr[row + 1] - indptr[row]
        solution = out[row]
        solution[:] = 0
        gains[row] = 0
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
            weight, target = _weight_and_target(values[start + t], scale)
            root = np.sqrt(weight)
            _gather_column(t, padded_count, table[indices[start + t]], roots, root, flat)
            right[t] = target / root
        targets[:padded_count] = right[:padded_count]
        transposed = flat.reshape(padded_width, padded_count)
        square = gram[: padded_count * padded_count].reshape(padded_count, padded_count)
        square[:] = 0
        rank_update(transposed, transposed, padded_width, square)
        for t in range(padded_count):
            square[t, t] += one
        if not solve_definite(square, right[:padded_count], forward[:padded_count]):
            return row
        for j in range(padded_width):
            total, liked = dtype.type(0), dtype.type(0)
            for t in range(padded_count):
                total += transposed[j, t] * right[t]
                liked += transposed[j, t] * targets[t]
            solution[j] = total * roots[j]
            gains[row] += np.float64(total) * np.float64(liked)
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
    order, indptr, indices, values, scale, table, diagonal, shift, width, steps, tolerance, out, gains
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
    targets = np.empty(4, dtype)
    for row in order:
        start, count = indptr[row], indptr[row + 1] - indptr[row]
        solution = out[row]
        gain = 0.0
        gains[row] = gain
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
                targets[i] = row_weights[t + i] = zero
                if here + i <= last:
                    row_weights[t + i], targets[i] = _weight_and_target(values[here + i], scale)
                gain += np.float64(targets[i]) * np.float64(similarity[i])
            weights = (row_weights[t], row_weights[t + 1], row_weights[t + 2], row_weights[t + 3])
            factors = (
                targets[0] - weights[0] * similarity[0],
                targets[1] - weights[1] * similarity[1],
                targets[2] - weights[2] * similarity[2],
                targets[3] - weights[3] * similarity[3],
            )
            accumulate_four(gathered, t, padded_width, factors, weights, residual, scaling)
        for j in range(padded_width):
            scaling[j] = one / scaling[j] if scaling[j] > zero else one
            scaled[j] = scaling[j] * residual[j]
            direction[j] = scaled[j]
        gain += _dot(x, residual)  # b.x + x.(b - A x)
        energy = _dot(residual, scaled)
        size = _dot(residual, residual)
        for step in range(steps):
            if not _dot(residual, residual) > tolerance * tolerance * size:
                break
            if step == steps - 1:  # no residual is needed after it
                length = energy / _curvature(gathered, count, row_weights, direction)
                if length > zero:
                    _add_scaled(x, length, direction)
                    gain += np.float64(length) * np.float64(energy)
                break
            _apply(gathered, count, row_weights, direction, product)
            curvature = _dot(direction, product)
            if not curvature > zero:
                break
            length = energy / curvature
            gain += np.float64(length) * np.float64(energy)
            for j in range(padded_width):
                x[j] += length * direction[j]
                residual[j] -= length * product[j]
                scaled[j] = scaling[j] * residual[j]
            following = _dot(residual, scaled)
            _direct(direction, following / energy, scaled)
            energy = following
        for j in range(padded_width):
            solution[j] = x[j] * roots[j]
        gains[row] = gain
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
def subspace_rows(order, indptr, indices, values, scale, table, diagonal, shift, width, block, out, gains):
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
    products, weights, targets = np.empty(longest, dtype), np.empty(longest, dtype), np.empty(longest, dtype)
    plain, weighted = np.empty((longest, block), dtype), np.empty((longest, block), dtype)
    matrix = np.empty((block, block), dtype)
    change, forward = np.empty(block, dtype), np.empty(block, dtype)
    for row in order:
        start, count = indptr[row], indptr[row + 1] - indptr[row]
        x = out[row]
        gains[row] = 0
        if count == 0:
            x[:] = 0
            continue
        for t in range(count):
            products[t] = _dot(table[indices[start + t]], x)
            weights[t], targets[t] = _weight_and_target(values[start + t], scale)
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
                residual = targets[t] - weights[t] * products[t]
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
        gain = 0.0
        for t in range(count):
            gain += products[t] * (2 * np.float64(targets[t]) - weights[t] * np.float64(products[t]))
        for j in range(width):
            gain -= np.float64(diagonal[j] + shift[row]) * np.float64(x[j]) * np.float64(x[j])
        gains[row] = gain
    return -1


@kernel
def smallest_weights(indptr, values, scale):
    """The smallest ``w`` of each row; infinity where there are no entries."""
    result = np.empty(indptr.size - 1)
    for row in range(result.size):
        smallest = np.inf
        for t in range(indptr[row], indptr[row + 1]):
            smallest = min(smallest, _weight_and_target(values[t], scale)[0])
        result[row] = smallest
    return result


@kernel
def column_weights(indices, values, scale, columns):
    """``sum w`` over the entries of each column, in float64."""
    result = np.zeros(columns)
    for t in range(indices.size):
        result[indices[t]] += _weight_and_target(values[t], scale)[0]
    return result
