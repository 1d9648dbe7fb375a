"""The README's examples are executed as they stand."""

import doctest
import re
from pathlib import Path


def test_the_examples_do_what_they_show(checkout: Path) -> None:
    text = (checkout / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    # One name space for all, since a reader goes from top to bottom.
    names: dict[str, object] = {}
    report: list[str] = []
    for block in blocks:
        example = doctest.DocTestParser().get_doctest(block, names, "README.md", "README.md", 0)
        assert example.examples
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append, clear_globs=False)
        names = example.globs
    assert not report, "".join(report)
