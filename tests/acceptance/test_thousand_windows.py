"""A window that slides a thousand times: nobody's life costs more than was promised, and the ledger is the witness."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from pyroaring import BitMap

from accountant.book import bitmap_to
from accountant.events import event_to_json
from service.attempt import make
from service.client import Stint
from tests.service.terminal import service
from trainers.artifacts import MODEL
from trainers.catalog import mechanism

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Document = dict[str, Any]
STEPS: Final = 1000
K, PANE = 2, 2  # a window of three panes
EPSILON, DELTA = 0.7, 0.0  # of a life, whose noise is pure
SIZE: Final = 4  # of a row
RECIPE: Final[Document] = {
    "shape": [SIZE], "modulus": 0.5, "iterations": 2, "label_source": "prior", "label_names": ["0", "1"],
}  # fmt: skip


def attempted(release: str, parameters: Document, file: Path, before: Document | None) -> Document:
    """What a worker's attempt at a held release makes, by the attempt's own code, with noise that nobody can repeat."""
    folder = file.parent / release
    charges = []
    for charge in mechanism("sliding-window").quote(parameters, adjacency="add_remove").charges:
        scope = bitmap_to(BitMap(range(charge.start or 0, charge.stop or 0)))
        charges.append({"proposed": scope, "admitted": scope, "event": event_to_json(charge.event)})
    folder.mkdir()
    made = make(
        {
            "release": release, "population": "stream", "unit": "record", "adjacency": "add_remove",
            "promise": {"epsilon": EPSILON, "delta": DELTA}, "mechanism": "sliding-window", "parameters": parameters,
            "recipe": RECIPE | ({"previous": [before["release"]]} if before else {}), "charges": charges,
            "inputs": {"previous.0": before} if before else {}, "data": {"uri": str(file), "x": "x", "y": "y"},
            "allowed": [f"file://{file.parent}"], "seed": None, "folder": str(folder), "backbones": None,
            "device": "cpu",
        },
        progress=lambda _done, _of: None,
        ordinals_of=lambda keys: np.full(len(keys), -1, dtype=np.int64),
    )  # fmt: skip
    return {"release": release, "path": str(folder / MODEL), "sha256": made.sha256}


def test_a_thousand_windows_over_http_keep_every_life_within_the_budget(tmp_path: Path) -> None:
    """Each step is priced, held, made, written and committed; the budget is that of one life and no more."""
    people = PANE * (2**K - 1 + STEPS)
    chance = np.random.default_rng(0)
    x = chance.normal(size=(people, SIZE)).astype(np.float32)
    file = tmp_path / "rows.npz"
    np.savez(file, x=x, y=(x[:, 0] > 0).astype(np.int64))
    with service() as running, Stint(running.url, running.key) as stint:
        budget = {"epsilon": EPSILON, "delta": DELTA, "preset": "pure"}
        stint.create_population("stream", unit="record", epsilon=EPSILON, delta=DELTA, budget=budget)
        stint.register_count("stream", people)
        before: Document | None = None
        digests = set()
        for step in range(STEPS):
            parameters = {"k": K, "w0": PANE, "epsilon": EPSILON, "step": step}
            with stint.hold(
                population="stream", mechanism={"name": "sliding-window", "parameters": parameters}
            ) as release:
                before = attempted(release.id, parameters, file, before)
                release.commit(artifact={"sha256": before["sha256"], "uri": f"file://{before['path']}"})
            digests.add(before["sha256"])
        assert len(digests) == STEPS, "noise is fresh"

        # The meters, at the ends and all the way between them.
        lives = {
            ordinal: stint.datapoint("stream", ordinal)["epsilon"]
            for ordinal in {*range(20), *range(0, people, 101), *range(people - 20, people)}
        }
        assert all(0 <= life["spent"] <= EPSILON and life["held"] == 0 for life in lives.values())
        worst = max(lives, key=lambda ordinal: lives[ordinal]["spent"])
        assert lives[worst]["spent"] >= 0.99 * EPSILON
        assert stint.budget("stream")["worst_off"]["spent"] == lives[worst]["spent"]

        # The ledger: all of it was committed with what was made, and adds up when it is checked from the start.
        committed = list(stint.releases("stream", status="committed"))
        assert len(committed) == STEPS
        assert {each["artifact"]["sha256"] for each in committed} == digests
        assert stint.verify("stream")["ok"]

        # Whoever is worst off has nothing left for anybody else.
        more: Document = {"charges": [{"scope": {"ranges": [[worst, worst + 1]]},
                             "event": {"kind": "pure_dp", "epsilon": 0.01 * EPSILON + 1e-6}}]}  # fmt: skip
        assert stint.propose(population="stream", kind="weights", **more)["status"] == "denied"
