"""The runner of the benchmarks finds what it should and says what there is."""

from pathlib import Path

import pytest

from benchmarks.__main__ import names, run


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
