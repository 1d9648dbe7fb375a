"""Whether attempts could run on this machine as a worker is set up: `python -m service.equipment DEVICE [BACKBONES]`.

What every attempt would stumble over is said once, before a job is taken: each would else use up its attempts. It is
asked in a process of its own, which alone imports torch; that ends with what is wrong, in one line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from trainers.backbones import configured


def main(device: str, backbones: str = "") -> str | None:
    """What is wrong, and what to do; None if nothing is."""
    try:
        torch.zeros(1, device=device).item()
    except Exception as problem:  # noqa: BLE001 - drivers and builds of torch fail in their own ways
        advice = "start it with --device cpu, or where torch can use that device"
        return f"torch cannot use {device} on this machine ({_line(problem)}): {advice}"
    try:
        if backbones:
            configured(Path(backbones))
    except Exception as problem:  # noqa: BLE001 - no file, another format, or a table that makes no sense
        return f"STINT_BACKBONES: {backbones} cannot be read as docs/backbones.md says ({_line(problem)})"
    return None


def _line(problem: Exception) -> str:
    """The first line of what an exception says: torch goes on with advice on its own source."""
    return str(problem).partition("\n")[0].rstrip(".") or type(problem).__name__


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
