"""Runs one benchmark by name, or all of them: every module beside this one that defines `main()`."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path


def names(folder: Path) -> list[str]:
    """The benchmarks in `folder`, sorted; read from the source, so that listing them runs nothing."""
    return sorted(path.stem for path in folder.glob("[!_]*.py") if _defines_main(path))


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark named first, with the rest as its own arguments; run all when none is named."""
    known = names(Path(__file__).parent)
    chosen = [arguments[0]] if arguments else known
    if not known or not set(chosen) <= set(known):
        wish = f"There is no benchmark {chosen[0]!r}; " if arguments else ""
        print(f"{wish}there are: {', '.join(known) or 'none yet'}.", file=sys.stderr)
        return 2
    for name in chosen:
        sys.argv = [name, *arguments[1:]]
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


def _defines_main(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
