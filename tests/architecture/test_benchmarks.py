"""The runner of the benchmarks finds what it should and says what there is."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import labels, prototypes, trainers
from benchmarks.__main__ import names, run
from benchmarks.streams import Task, blurred


def test_a_benchmark_is_a_module_that_defines_main(tmp_path: Path) -> None:
    (tmp_path / "speed.py").write_text("def main() -> None: ...\n", encoding="utf-8")
    (tmp_path / "shapes.py").write_text("raise RuntimeError('listing must not run this')\n", encoding="utf-8")
    (tmp_path / "__main__.py").write_text("def main() -> None: ...\n", encoding="utf-8")
    assert names(tmp_path) == ["speed"]


def test_an_unknown_name_gets_the_list(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["no such benchmark"]) == 2
    said = capsys.readouterr().err
    assert "no such benchmark" in said
    assert all(name in said for name in names(checkout / "benchmarks"))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_blurred_tasks_hold_every_row_once(share: float) -> None:
    """Where classes are dealt out to all tasks nobody is lost, nobody is in two, and each task has all labels."""
    tasks = [
        Task(
            x=np.arange(100 * pair, 100 * (pair + 1), dtype=np.float32)[:, None],
            y=2 * pair + np.arange(100) % 2,
            test_x=np.zeros((1, 1), dtype=np.float32),
            test_y=np.array([2 * pair]),
        )
        for pair in range(5)
    ]
    made = blurred(tasks, share)
    rows = np.concatenate([task.x[:, 0] for task in made])
    assert np.array_equal(np.sort(rows), np.arange(500))
    assert all(np.array_equal(task.y // 2, task.x[:, 0] // 100) for task in made)
    assert {len(np.unique(task.y)) for task in made} == {10 if share else 2}


def test_label_release_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With few records, so that the benchmark is known to run."""
    monkeypatch.setattr(labels, "RECORDS", 20_000)
    monkeypatch.setattr(labels, "LABELS", 50)
    labels.main()
    assert "20,000 records, 50 labels, 50 of them carried" in capsys.readouterr().out


def test_steps_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a small head, in every way that there is a column for."""
    head = trainers.Case(
        name="head", recipe={"model": "linear", "hidden": [], "shape": [8]}, outputs=3, target=1e9, steps=2
    )
    for name, value in {"CASES": (head,), "BATCHES": (16,), "ROWS": 64, "REPEATS": 1}.items():
        monkeypatch.setattr(trainers, name, value)
    trainers.step_times()
    _, _, row, verdict = capsys.readouterr().out.splitlines()
    assert row.split()[:2] == ["head", "16"]
    assert row.count("x") == len(trainers.HEADINGS) - 3
    assert verdict.startswith("met     head at 16")


def test_prototypes_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"ROWS": 100, "LABELS": (3, 50), "SIZE": 8}.items():
        monkeypatch.setattr(prototypes, name, value)
    prototypes.main()
    assert "50 labels × 8 ÷ drawing the noise" in capsys.readouterr().out
