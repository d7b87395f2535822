"""Least squares for few columns, without numpy, which the daemon's decision does not import."""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = Sequence[tuple[float, tuple[float, float, float], float]]
"""Rows of a weight, three explanatory columns, and the explained value."""


def moment(rows: Rows, column: int) -> float:
    """The weighted sum of a column's squares."""
    return math.fsum(weight * apart[column] ** 2 for weight, apart, _ in rows)


def solve(
    rows: Rows,
    used: Sequence[int],
    freedom: int,
) -> dict[int, tuple[float, float]] | None:
    """Coefficients and their standard errors; None where the columns do not determine them."""
    size = len(used)
    scales = [math.sqrt(moment(rows, column)) for column in used]
    if freedom <= size or not all(scales):
        return None
    matrix = [
        [
            math.fsum(w * x[a] * x[b] for w, x, _ in rows) / (scales[i] * scales[j])
            for j, b in enumerate(used)
        ]
        for i, a in enumerate(used)
    ]
    right = [math.fsum(w * x[a] * y for w, x, y in rows) / scales[i] for i, a in enumerate(used)]
    inverse = _inverse(matrix)
    if inverse is None:
        return None
    solution = [math.fsum(a * b for a, b in zip(row, right, strict=True)) for row in inverse]
    left = math.fsum(
        w * (y - math.fsum(solution[i] / scales[i] * x[a] for i, a in enumerate(used))) ** 2
        for w, x, y in rows
    )
    error = max(left, 0.0) / (freedom - size)
    return {
        a: (
            solution[i] / scales[i],
            max(math.sqrt(error * max(inverse[i][i], 0.0)) / scales[i], 1e-300),
        )
        for i, a in enumerate(used)
    }


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]] | None:
    """Inverse of a small symmetric matrix with ones on its diagonal; None if nearly singular."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < 1e-4:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column][column]
        rows[column] = [row / lead for row in rows[column]]
        for row in range(size):
            if row != column and rows[row][column]:
                factor = rows[row][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [row[size:] for row in rows]
