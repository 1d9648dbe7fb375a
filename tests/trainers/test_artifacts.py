"""Artifacts: what is written can be read back, says whether it may be released, and runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from accountant.errors import InvalidInput
from service.staging import Staging, Unreleasable
from trainers import artifacts, cards, inspection
from trainers.catalog.label_spaces import tellable
from trainers.ports import Made

CARD: dict[str, Any] = {
    "release": "rel_1", "population": "clinic-a", "unit": "user", "adjacency": "add_remove", "paper": "somebody",
    "mechanism": {"name": "dp-sgd", "title": "Descent", "parameters": {"steps": 3}}, "recipe": {},
    "proof_status": "proved", "proof_note": "it holds.", "events": [],
    "guarantee": {"bound": "upper", "epsilon_upper": 0.5, "delta": 1e-6, "engine": "prv"},
    "promise": {"epsilon": 3.0, "delta": 1e-6},
}  # fmt: skip
MADE = Made(tensors={"w": torch.arange(6.0).reshape(2, 3).T}, facts={"labels": ["ä", "b"], "n": 1.5})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    made = artifacts.write(tmp_path, MADE, CARD, releasable=True)
    assert artifacts.measured(tmp_path / artifacts.MODEL) == made
    found = artifacts.read(tmp_path / artifacts.MODEL, release="rel_1", sha256=made.sha256)
    assert torch.equal(found.tensors["w"], MADE.tensors["w"])
    assert found.facts == MADE.facts
    card = json.loads((tmp_path / artifacts.CARD).read_text(encoding="utf-8"))
    assert card["artifact"] == {"sha256": made.sha256, "bytes": made.bytes}
    text = (tmp_path / artifacts.READABLE).read_text(encoding="utf-8")
    assert "ε ≤ 0.5" in text
    assert made.sha256 in text
    assert "Not to be released" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "most"),
    [
        ("{:035}", 900_000, 900_000),
        ("[{{,,,{}", 700_000, 700_000),
        ("{}", 1_000_001, 1_000_000),
        ("-9{:018}", 1_000_000, 1_000_000),
        ('{:06}"\\\t\x01' + "ü" * 180, 160_000, 60_000_000 // 393),
    ],
    ids=["long", "brackets", "many", "numbers", "signs"],
)
def test_as_many_labels_as_can_be_told_are_read_by_everybody(name: str, count: int, most: int, tmp_path: Path) -> None:
    """Whoever reads a file has the same limits as who writes it, whatever stands in the names."""
    names = [name.format(number) for number in range(count)]
    assert tellable(names) == most
    told = names[:most]
    staging = Staging(tmp_path)
    folder = staging.folder("job_" + "0" * 26, 1)
    written = artifacts.write(folder, Made(tensors={}, facts={"labels": told}), CARD, releasable=True)
    assert staging.measured("job_" + "0" * 26, 1)["sha256"] == written.sha256
    assert inspection.opened(folder / artifacts.MODEL).labels == told
    assert artifacts.read(folder / artifacts.MODEL, release="rel_1").facts["labels"] == told


def test_what_a_header_has_no_room_for_is_refused_before_anybody_is_told_of_a_file(tmp_path: Path) -> None:
    facts: dict[str, Any]
    for facts in ({"labels": ["a" * 200] * 350_000}, {"numbers": [[]] * 600_000}):
        with pytest.raises(InvalidInput, match="room"):
            artifacts.write(tmp_path, Made(tensors={}, facts=facts), CARD, releasable=True)
    assert not (tmp_path / artifacts.CARD).exists()


@pytest.mark.parametrize("content", [None, b"", b"\x80\x04pickle", b"\xff" * 64])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / artifacts.MODEL
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match="whole"):
        artifacts.read(path, release="rel_1")


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    made = artifacts.write(tmp_path, MADE, CARD, releasable=True)
    path = tmp_path / artifacts.MODEL
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(InvalidInput, match="digest"):
        artifacts.read(path, release="rel_1", sha256=made.sha256)


@pytest.mark.parametrize("releasable", [True, False])
def test_a_worker_measures_only_what_may_be_released(tmp_path: Path, *, releasable: bool) -> None:
    staging = Staging(tmp_path / "artifacts")
    folder = staging.folder("job_" + "0" * 26, 1)
    assert folder.stat().st_mode & 0o077 == 0
    made = artifacts.write(folder, MADE, CARD, releasable=releasable)
    if releasable:
        assert staging.measured("job_" + "0" * 26, 1) == {"sha256": made.sha256, "bytes": made.bytes}
    else:
        assert "Not to be released" in (folder / artifacts.READABLE).read_text(encoding="utf-8")
        with pytest.raises(Unreleasable):
            staging.measured("job_" + "0" * 26, 1)
        (folder / artifacts.MODEL).write_bytes(b"no header")
        with pytest.raises(Unreleasable):
            staging.measured("job_" + "0" * 26, 1)


def test_a_card_promises_no_less_than_was_proved() -> None:
    """Six digits of an upper bound, rounded up."""
    guarantee = CARD["guarantee"] | {"epsilon_upper": 0.12345649, "delta": 1.0000001e-6}
    said = CARD | {"guarantee": guarantee, "promise": {"epsilon": 3.00000001, "delta": 1e-6}}
    text = cards.readable(cards.of_file(said, sha256="0" * 64, size=1, releasable=True))
    assert "(ε ≤ 0.123457, δ = 1.00001e-06)-DP" in text
    assert "more than ε = 3.00001 at δ = 1e-06." in text


def test_a_card_has_its_recipe_and_long_lists_cut() -> None:
    said = CARD | {"recipe": {"radius": 2.5, "label_names": [str(each) for each in range(1000)]}}
    text = cards.readable(cards.of_file(said, sha256="0" * 64, size=1, releasable=True))
    assert "- radius: `2.5`" in text
    assert '"19"]` and 980 more' in text
