"""Backbones: configuration, digests, and features that depend on one row alone, from the cache or not."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from accountant import InvalidInput
from tests.trainers import tiny_backbones
from trainers import backbones
from trainers.backbones import Backbone, BackboneProblem, Entry, chosen, configured, entry, option
from trainers.ports import Rows

TINY = Entry(name="tiny", factory="tests.trainers.tiny_backbones:tiny", size=16, shift=(127.0,), scale=(128.0,))


def images(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(256, size=(count, 12, 12, 3)).astype(np.float32)


# Configuration


def test_a_configuration_file_names_backbones(tmp_path: Path) -> None:
    torch.save(tiny_backbones.tiny(size=16).state_dict(), tmp_path / "tiny.pth")
    table = {"factory": TINY.factory, "weights": "tiny.pth", "size": 16, "shift": 127, "scale": [128, 127, 126]}
    (tmp_path / "b.json").write_text(json.dumps({"backbones": {"tiny": table, "efficientnet-lite0": {}}}))
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    (tmp_path / "b.toml").write_text("\n".join(["[backbones.tiny]", *lines, "[backbones.efficientnet-lite0]", ""]))
    for path in (tmp_path / "b.json", tmp_path / "b.toml"):
        found = configured(path)
        assert [*found] == ["tiny", "efficientnet-lite0"]
        assert found["tiny"].entry.weights == tmp_path / "tiny.pth"
        assert found["tiny"].entry.scale == (128.0, 127.0, 126.0)
        assert found["tiny"].features(images(3)).shape == (3, 16)
        assert found["efficientnet-lite0"].entry.shift == (127.0,)
    assert option("tiny=" + TINY.factory + ",size=16,shift=127,scale=128") == TINY


@pytest.mark.parametrize(
    ("name", "table", "argument"),
    [
        ("Tiny", {"factory": "a:b"}, "backbones"),
        ("../tiny", {"factory": "a:b"}, "backbones"),
        ("tiny", {}, "backbones.tiny.factory"),
        ("tiny", {"factory": "a.b"}, "backbones.tiny.factory"),
        ("tiny", {"factory": "a:b", "sizes": 3}, "backbones.tiny.sizes"),
        ("tiny", {"factory": "a:b", "size": -1}, "backbones.tiny.size"),
        ("tiny", {"factory": "a:b", "scale": 0}, "backbones.tiny.scale"),
        ("tiny", {"factory": "a:b", "shift": [1, 2]}, "backbones.tiny.shift"),
        ("tiny", "a:b", "backbones.tiny"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_named(name: str, table: object, argument: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        entry(name, table)
    assert caught.value.argument == argument


def test_a_job_can_name_only_what_the_worker_has() -> None:
    have = {"tiny": Backbone(TINY)}
    assert chosen(have, "tiny", digest=have["tiny"].digest) is have["tiny"]
    for name in ("other", "os:system", ""):
        with pytest.raises(BackboneProblem) as caught:
            chosen(have, name)
        assert caught.value.code == "backbone.unknown"
    with pytest.raises(BackboneProblem) as caught:
        chosen(have, "tiny", digest="sha256:" + "0" * 64)
    assert caught.value.code == "backbone.changed"


def test_the_digest_is_of_code_weights_and_preparation(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.pth", "two.pth", "three.pth")]
    weights = tiny_backbones.tiny(size=16).state_dict()
    torch.save(weights, paths[0])
    shutil.copy(paths[0], paths[1])
    torch.save({**weights, "0.bias": weights["0.bias"] + 1}, paths[2])
    one, two, three = (Backbone(replace(TINY, weights=path)) for path in paths)
    assert one.digest == two.digest  # wherever the file lies
    others = [Backbone(replace(one.entry, **change)) for change in ({"size": 8}, {"shift": (0.0,)}, {"scale": (1.0,)})]
    assert len({each.digest for each in (one, three, Backbone(TINY), *others)}) == 6
    assert not np.array_equal(one.features(images(2)), three.features(images(2)))


@pytest.mark.parametrize("fault", ["absent", "pinned", "lacking"])
def test_weights_that_do_not_fit_stop_a_run(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "w.pth"
    state = tiny_backbones.tiny(size=16).state_dict()
    if fault != "absent":
        torch.save({key: value for key, value in state.items() if fault != "lacking" or key != "0.bias"}, path)
    pinned = "0" * 64 if fault == "pinned" else None
    with pytest.raises(BackboneProblem) as caught:
        Backbone(replace(TINY, weights=path, weights_sha256=pinned)).features(images(1))
    assert caught.value.code == "backbone.weights"


def test_statistics_of_a_batch_are_refused_and_those_of_the_backbone_are_not_touched() -> None:
    with pytest.raises(BackboneProblem) as caught:
        Backbone(replace(TINY, factory="tests.trainers.tiny_backbones:batch_statistics")).features(images(1))
    assert caught.value.code == "backbone.statistics"
    frozen = Backbone(replace(TINY, factory="tests.trainers.tiny_backbones:frozen_statistics"))
    before = {name: value.clone() for name, value in frozen.module.state_dict().items()}
    frozen.features(images(100))
    assert all(torch.equal(before[name], value) for name, value in frozen.module.state_dict().items())


@pytest.mark.parametrize("kind", ["mean_of_the_batch", "attention_over_the_batch", "chance", "place"])
def test_features_that_are_not_of_one_row_alone_are_refused(kind: str) -> None:
    """Whatever mixes rows, before any but public ones are looked at: also for an empty task."""
    mixing = Backbone(Entry(name="mixing", factory=f"tests.trainers.tiny_backbones:{kind}"))
    for rows in (np.ones((3, 16), dtype=np.float32), np.ones((0, 16), dtype=np.float32)):
        with pytest.raises(BackboneProblem) as caught:
            mixing.features(rows)
        assert caught.value.code == "backbone.statistics"
    with pytest.raises(BackboneProblem):
        mixing.width([16])
    along = Backbone(Entry(name="along", factory="tests.trainers.tiny_backbones:attention_along_a_row"))
    assert along.features(np.ones((3, 16), dtype=np.float32)).shape == (3, 16)


def test_without_a_file_the_digest_is_of_the_weights_that_were_made() -> None:
    random = Entry(name="random", factory="tests.trainers.tiny_backbones:drawn_anew")
    one, two = Backbone(random), Backbone(random)
    assert one.digest != two.digest
    with pytest.raises(BackboneProblem) as caught:
        chosen({"random": two}, "random", digest=one.digest)
    assert caught.value.code == "backbone.changed"
    assert Backbone(TINY).digest == Backbone(TINY).digest


# Features


def test_features_depend_on_one_row_alone() -> None:
    """To the bit: another neighbour, another place, or none at all."""
    backbone = Backbone(TINY)
    x = images(150)
    features = backbone.features(x)
    order = np.random.default_rng(1).permutation(150)
    assert np.array_equal(backbone.features(x[order])[:70], features[order][:70])
    assert np.array_equal(
        np.concatenate([backbone.features(x[place : place + 1]) for place in (0, 77)]), features[[0, 77]]
    )
    assert backbone.features(x[:0]).shape == (0, 16)


def test_channels_may_come_first_or_last() -> None:
    x = images(4)
    assert np.array_equal(Backbone(TINY).features(x), Backbone(TINY).features(x.transpose(0, 3, 1, 2)))
    for wrong in (x[..., :2], x.reshape(4, -1)):
        with pytest.raises(BackboneProblem) as caught:
            Backbone(TINY).features(wrong)
        assert caught.value.code == "backbone.shape"


def test_rows_without_finite_features_are_null() -> None:
    backbone = Backbone(Entry(name="reciprocal", factory="tests.trainers.tiny_backbones:reciprocal"))
    x = np.array([[1, 2], [0, 1], [4, 5]], dtype=np.float32)
    assert np.array_equal(backbone.features(x)[:, 0], np.array([1, 0, 0.25], dtype=np.float32))
    rows = Rows(slots=9, unit=np.array([2, 5, 7]), x=x, y=np.array(["a", "b", "c"]))
    featured = backbone.featured(rows)
    assert (featured.slots, featured.unit.tolist(), featured.y.tolist()) == (9, [2, 7], ["a", "c"])


def test_the_cache_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(90)
    truth = Backbone(TINY).features(x)
    cached = Backbone(TINY, cache=tmp_path / "features")
    assert np.array_equal(cached.features(x[:40]), truth[:40])
    computed: list[int] = []
    real = Backbone._computed

    def counted(self: Backbone, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        computed.append(len(rows))
        return real(self, rows)

    monkeypatch.setattr(Backbone, "_computed", counted)
    again = Backbone(TINY, cache=tmp_path / "features")
    assert np.array_equal(again.features(np.concatenate([x, x[:5]])), np.concatenate([truth, truth[:5]]))
    assert computed == [50]  # what was new
    assert np.array_equal(again.features(x), truth)
    assert computed == [50]


def test_the_cache_is_for_the_worker_alone_and_may_break(tmp_path: Path) -> None:
    x = images(10)
    backbone = Backbone(TINY, cache=tmp_path)
    truth = backbone.features(x)
    [folder] = tmp_path.iterdir()
    [file] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    file.write_bytes(file.read_bytes()[:200])
    assert np.array_equal(backbone.features(x), truth)
    Backbone(replace(TINY, shift=(0.0,)), cache=tmp_path).features(x)
    assert len([*tmp_path.iterdir()]) == 2  # another digest, another folder


@pytest.mark.parametrize("rows", [0, 1, 10])
@pytest.mark.parametrize("blocked", ["a file in place of the folder", "a full disk"])
def test_a_cache_that_cannot_be_written_to_ends_no_job(
    blocked: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end one only where somebody is there, and so tell of them."""
    x, cache = images(rows), tmp_path / "features"
    if blocked == "a full disk":

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "no space left on device")

        monkeypatch.setattr(np, "save", full)
    else:
        cache.write_text("in the way", encoding="utf-8")
    assert np.array_equal(Backbone(TINY, cache=cache).features(x), Backbone(TINY).features(x))
    assert [path for path in tmp_path.rglob("*") if path.suffix in {".npy", ".partial"}] == []


def test_another_program_under_the_same_digest_has_another_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version of a library computes something else, and must not meet what the old one left."""
    x = images(5)
    torch.save(tiny_backbones.tiny(size=16).state_dict(), tmp_path / "tiny.pth")
    fixed = replace(TINY, weights=tmp_path / "tiny.pth")
    before = Backbone(fixed, cache=tmp_path / "features")
    truth = before.features(x)
    other = tiny_backbones.tiny(size=16, normalised=lambda channels: nn.GroupNorm(4, channels))
    monkeypatch.setattr(tiny_backbones, "tiny", lambda **_: other)
    changed = Backbone(fixed, cache=tmp_path / "features")
    assert changed.digest == before.digest
    assert np.array_equal(changed.features(x), Backbone(fixed).features(x))
    assert not np.array_equal(changed.features(x), truth)


def test_efficientnet_lite0_is_the_published_one(shared_data: Path) -> None:
    weights = shared_data / "efficientnet_lite0" / "efficientnet-lite0-57934424.pth"
    sha256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    table = {"weights": str(weights), "weights_sha256": sha256, "size": 64}
    backbone = Backbone(entry("efficientnet-lite0", table))
    x = images(6)
    features = backbone.features(x)
    assert features.shape == (6, 1280)
    assert np.array_equal(backbone.features(x[3:4]), features[3:4])
    assert sum(each.numel() for each in backbone.module.parameters()) == 4_652_008 - 1281 * 1000
    assert backbones.BUILT_IN["efficientnet-lite0"]["size"] == 224
