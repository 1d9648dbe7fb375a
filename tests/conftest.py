"""What all tests share: how hard hypothesis searches, and where real data lies."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The default is derandomised, so that the same code always gets the same verdict;
# the full profile draws new examples each time and is where surprises are looked for.
settings.register_profile("quick", max_examples=10, deadline=None, derandomize=True)
settings.register_profile("default", max_examples=40, deadline=None, derandomize=True)
settings.register_profile("full", max_examples=1000, deadline=None, print_blob=True)

PROFILE = os.environ.get("STINT_HYPOTHESIS", "default")
if PROFILE not in {"quick", "default", "full"}:
    raise pytest.UsageError(f"STINT_HYPOTHESIS is {PROFILE!r}; it must be quick, default or full.")
settings.load_profile(PROFILE)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, which the repository does not carry: STINT_SHARED_DATA, or ../shared/data."""
    folder = Path(os.environ.get("STINT_SHARED_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("real data is absent: point STINT_SHARED_DATA at it")
    return folder
