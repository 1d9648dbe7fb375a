"""What a stream of tasks was learned and forgotten, from accuracies that were measured on the way.

`accuracy[t, j]` is the accuracy on task j after training on task t, for j ≤ t; what stands above the diagonal is not
read. Definitions are those of A-GEM (Chaudhry et al. 2019, arXiv 1812.00420, section 3) unless said otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InvalidInput


def average_accuracy(accuracy: NDArray[np.floating]) -> float:
    """The mean accuracy over all tasks after the last.

    >>> average_accuracy(np.array([[0.9, 0.0], [0.7, 0.8]]))
    0.75
    """
    return float(np.mean(_matrix(accuracy)[-1]))


def forgetting(accuracy: NDArray[np.floating]) -> NDArray[np.float64]:
    """For every task but the last: its best accuracy before the last task was learned, less that after it.

    It is negative where later tasks helped.
    """
    matrix = _matrix(accuracy)
    tasks = len(matrix)
    best = np.array([matrix[task : tasks - 1, task].max() for task in range(tasks - 1)], dtype=np.float64)
    return best - matrix[-1, : tasks - 1]


def average_forgetting(accuracy: NDArray[np.floating]) -> float:
    """The mean of `forgetting`; 0 for a single task.

    >>> round(average_forgetting(np.array([[0.9, 0.0], [0.7, 0.8]])), 9)
    0.2
    """
    lost = forgetting(accuracy)
    return float(np.mean(lost)) if len(lost) else 0.0


def worst_forgetting(accuracy: NDArray[np.floating]) -> float:
    """The largest of `forgetting`; 0 for a single task (Chaudhry et al. 2019, supplement)."""
    lost = forgetting(accuracy)
    return float(np.max(lost)) if len(lost) else 0.0


def learning_curve_area(curves: NDArray[np.floating], *, batches: int) -> float:
    """LCA_β = (1 / (β + 1)) · Σ_{b=0}^{β} Z_b, with Z_b the mean over tasks of the accuracy after b batches of each.

    `curves[t, b]` is the accuracy on task t after b batches of it, from b = 0, before the first. β is `batches`.

    >>> learning_curve_area(np.array([[0.1, 0.5, 0.9]]), batches=2)
    0.5
    """
    array = np.asarray(curves, dtype=np.float64)
    if array.ndim != 2 or not len(array) or not 0 <= batches < array.shape[1] or not _shares(array):
        raise InvalidInput("curves", curves, "accuracies of every task after 0 to `batches` batches of it")
    return float(np.mean(array[:, : batches + 1]))


def _matrix(accuracy: NDArray[np.floating]) -> NDArray[np.float64]:
    matrix = np.asarray(accuracy, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix) or not _shares(np.tril(matrix)):
        raise InvalidInput("accuracy", accuracy, "a square of accuracies in [0, 1]")
    return matrix


def _shares(values: NDArray[np.float64]) -> bool:
    return bool(np.all((values >= 0) & (values <= 1)))
