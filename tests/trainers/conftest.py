"""What the tests of mechanisms share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Every device that a mechanism runs on: a test that takes this runs once on each that is here."""
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    return name
