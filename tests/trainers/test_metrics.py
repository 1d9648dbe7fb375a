"""Metrics of a stream, against figures worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accountant.errors import InvalidInput
from trainers.metrics import average_accuracy, average_forgetting, forgetting, learning_curve_area, worst_forgetting

# Three tasks. Task 0 was best after task 1 (0.95), task 1 right after it was learned (0.8).
STREAM = np.array([[0.9, math.nan, 0.0], [0.95, 0.8, 0.0], [0.6, 0.7, 0.5]])


def test_by_hand() -> None:
    stream = np.tril(np.nan_to_num(STREAM))
    assert average_accuracy(stream) == pytest.approx(0.6)
    assert forgetting(stream).tolist() == pytest.approx([0.35, 0.1])
    assert average_forgetting(stream) == pytest.approx(0.225)
    assert worst_forgetting(stream) == pytest.approx(0.35)


def test_what_is_above_the_diagonal_is_not_read() -> None:
    other = np.tril(np.nan_to_num(STREAM)) + np.triu(np.ones((3, 3)), 1)
    assert average_forgetting(other) == pytest.approx(0.225)
    assert average_accuracy(other) == pytest.approx(0.6)


def test_later_tasks_may_help() -> None:
    helped = np.array([[0.5, 0.0], [0.8, 0.9]])
    assert average_forgetting(helped) == pytest.approx(-0.3)
    assert worst_forgetting(helped) == pytest.approx(-0.3)


def test_a_single_task_forgets_nothing() -> None:
    one = np.array([[0.7]])
    assert (average_accuracy(one), average_forgetting(one), worst_forgetting(one)) == (0.7, 0.0, 0.0)


def test_learning_curves() -> None:
    """Z is 0.1, 0.4, 0.7 and 0.9 after 0, 1, 2 and 3 batches."""
    curves = np.array([[0.0, 0.2, 0.6, 0.8], [0.2, 0.6, 0.8, 1.0]])
    assert learning_curve_area(curves, batches=0) == pytest.approx(0.1)
    assert learning_curve_area(curves, batches=1) == pytest.approx(0.25)
    assert learning_curve_area(curves, batches=3) == pytest.approx(2.1 / 4)


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 3)), np.zeros(3), np.zeros((0, 0)), np.full((2, 2), 2.0), -np.eye(2), STREAM * math.nan]
)
def test_what_is_no_stream_is_refused(bad: np.typing.NDArray[np.float64]) -> None:
    for metric in (average_accuracy, average_forgetting, worst_forgetting):
        with pytest.raises(InvalidInput, match=r"^accuracy"):
            metric(bad)


@pytest.mark.parametrize("batches", [-1, 4])
def test_a_curve_has_as_many_points_as_batches(batches: int) -> None:
    with pytest.raises(InvalidInput, match=r"^curves"):
        learning_curve_area(np.zeros((2, 4)), batches=batches)
