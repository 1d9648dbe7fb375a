"""A window that slides a thousand times: nobody's life costs more than was promised, and the ledger is the witness.

Each step is a job over HTTP that a real worker takes from the queue and makes of real hospital encounters.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.acceptance.house import SECONDS, encounters, house

pytestmark = pytest.mark.slow

Document = dict[str, Any]
K, PANE = 2, 2  # a window of three panes
EPSILON, DELTA = 0.7, 0.0  # of a life, whose noise is pure
CIRCULATORY: Final = range(390, 460)  # a chapter of ICD-9
RECIPE: Final[Document] = {
    "shape": [8], "modulus": 0.5, "iterations": 5, "label_source": "prior", "label_names": ["0", "1"],
}  # fmt: skip


@pytest.mark.parametrize(
    "steps", [pytest.param(40), pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
)
def test_every_window_is_a_job_and_every_life_stays_within_the_budget(steps: int, shared_data: Path) -> None:
    """Each step is priced, held, queued, run, staged and committed; the budget is that of one life and no more."""
    people = PANE * (2**K - 1 + steps)
    _, codes, x = encounters(shared_data, people)
    y = np.array([int(code[:3].isdigit() and int(code[:3]) in CIRCULATORY) for code in codes])
    with house(shared_data) as running:
        stint, uri = running.stint, running.arrays(x=x, y=y)
        budget = {"epsilon": EPSILON, "delta": DELTA, "preset": "pure"}
        stint.create_population("stream", unit="record", epsilon=EPSILON, delta=DELTA, budget=budget)
        stint.register_count("stream", people)
        digests, previous = set(), dict[str, Any]()
        began = time.monotonic()
        for step in range(steps):
            parameters = {"k": K, "w0": PANE, "epsilon": EPSILON, "step": step}
            job = stint.submit(
                population="stream",
                mechanism={"name": "sliding-window", "parameters": parameters},
                recipe=RECIPE | previous,
                data={"uri": uri, "x": "x", "y": "y"},
            )
            ended = job.wait(seconds=SECONDS)
            assert (ended["status"], ended["error"], ended["attempt"]) == ("committed", None, 1)
            digests.add(ended["artifact"]["sha256"])
            previous = {"previous": [job.release]}
        print(f"{steps} windows in {time.monotonic() - began:.0f} s")  # noqa: T201 - for whoever runs it by hand
        assert len(digests) == steps, "noise is fresh, in every process that was forked"

        # The meters, at the ends and all the way between them.
        lives = {
            ordinal: stint.datapoint("stream", ordinal)["epsilon"]
            for ordinal in {*range(20), *range(0, people, 101), *range(people - 20, people)}
        }
        assert all(0 <= life["spent"] <= EPSILON and life["held"] == 0 for life in lives.values())
        worst = max(lives, key=lambda ordinal: lives[ordinal]["spent"])
        assert lives[worst]["spent"] >= 0.99 * EPSILON
        assert stint.budget("stream")["worst_off"]["spent"] == lives[worst]["spent"]
        print(f"the worst life spent {lives[worst]['spent']} of {EPSILON}")  # noqa: T201

        # The ledger: all of it was committed with what was made, and adds up when it is checked from the start.
        committed = list(stint.releases("stream", status="committed"))
        assert len(committed) == steps
        assert {each["artifact"]["sha256"] for each in committed} == digests
        assert stint.verify("stream")["ok"]

        # Whoever is worst off has nothing left for anybody else.
        more: Document = {"charges": [{"scope": {"ranges": [[worst, worst + 1]]},
                             "event": {"kind": "pure_dp", "epsilon": 0.01 * EPSILON + 1e-6}}]}  # fmt: skip
        assert stint.propose(population="stream", kind="weights", **more)["status"] == "denied"
