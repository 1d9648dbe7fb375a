"""One release that each rule of the audit finds, and one that it does not: manifests and files of a pipeline."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from accountant.audit.contents import label_digest

LABELS = ["healthy", "ill", "unsure"]
CLEAN: dict[str, Any] = {
    "version": 1,
    "kind": "weights",
    "unit": "user",
    "adjacency": "add_remove",
    "population": {
        "name": "clinic-a", "unit": "user", "adjacency": "add_remove",
        "epsilon": 3.0, "delta": 1e-6, "datapoints": 5000,
    },
    "mechanism": {
        "name": "dp-sgd",
        "parameters": {"noise_multiplier": 1.1, "sampling_probability": 0.01, "steps": 2000, "clip_norm": 1.0},
    },
    "label_space": {"source": "prior", "labels": LABELS},
    "state": {"retained": "dp_only"},
    "tuning": {"source": "public"},
    "pretraining": {"data": "public", "name": "ImageNet-21k"},
    "preprocessing": {"normalisation": "public", "clip_norm": "public", "lipschitz": "unused", "vocabulary": "unused"},
    "sampling": {"scheme": "poisson"},
    "empty_task": {"answer": "same_program"},
    "evaluation": {"data": "public"},
    "noise": {"source": "fresh"},
}  # fmt: skip

GAUSSIAN = {"kind": "gaussian", "noise_multiplier": 1.0}


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensors(**more: Any) -> dict[str, Any]:
    return {"body.weight": noise((16, 8), 1), "head.weight": noise((3, 16), 2), "head.bias": noise((3,), 3), **more}


def file_of(made: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    whole: bytes = save(dict(made), metadata=None if metadata is None else dict(metadata))
    return whole


def header(document: object, data: bytes = b"") -> bytes:
    """A file with this header, whatever it says."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return struct.pack("<Q", len(text)) + text + data


def zipped(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return made.getvalue()


@dataclass(frozen=True)
class Release:
    """What `stint audit` is given."""

    manifest: dict[str, Any] = field(default_factory=lambda: deepcopy(CLEAN))
    artifact: bytes | None = field(default_factory=lambda: file_of(tensors()))
    labels: list[str] | None = None
    earlier: bytes | None = None
    ledger: str | None = None
    accepts: tuple[str, ...] = ("proved",)
    said: dict[str, Any] = field(default_factory=dict)  # in a proposal, which is not read as strictly as a manifest

    def write(self, folder: Path) -> dict[str, Path]:
        """Its files, by the options that name them."""
        found = {"manifest": folder / "manifest.json"}
        found["manifest"].write_text(json.dumps(self.manifest))
        for name, ending, content in (
            ("artifact", "safetensors", self.artifact),
            ("earlier", "safetensors", self.earlier),
            ("labels", "json", None if self.labels is None else json.dumps(self.labels).encode()),
            ("ledger", "ndjson", None if self.ledger is None else self.ledger.encode()),
            ("policy", "json", json.dumps({"accepts": list(self.accepts)}).encode()),
        ):
            if content is not None:
                found[name] = folder / f"{name}.{ending}"
                found[name].write_bytes(content)
        return found


def clean(**changes: Any) -> Release:
    """The clean release, with these parts of its manifest changed: None takes one out."""
    manifest = {**deepcopy(CLEAN), **changes}
    return Release(manifest={name: value for name, value in manifest.items() if value is not None})


def holding(made: Mapping[str, Any] | bytes, metadata: Mapping[str, str] | None = None, **changes: Any) -> Release:
    """The clean manifest with this file."""
    artifact = made if isinstance(made, bytes) else file_of(made, metadata)
    return Release(manifest=clean(**changes).manifest, artifact=artifact)


def proposed(**said: Any) -> Release:
    """The clean release with these words of a proposal."""
    return Release(said=said)


def noisy(rows: Any, *, scale: float = 1.0, earlier: bytes | None = None) -> Release:
    """Prototypes with noise of a declared scale."""
    release = holding(
        {"sums": rows},
        kind="prototypes",
        noise={"source": "fresh", "scale": scale, "tensor": "sums"},
        artifact={"head": "sums"},
    )
    return Release(manifest=release.manifest, artifact=release.artifact, earlier=earlier)


def ledger() -> str:
    """An exported ledger: two tasks that overlap and one that does not, a label release, and one that was denied."""
    from accountant import book
    from accountant.book import Book

    population = book.created(population="clinic-a", unit="user", adjacency="add_remove", epsilon=3.0, delta=1e-6)
    at, actor = "2026-01-01T00:00:00.000000Z", "key_1"
    first = book.spell(population, at=at, actor=actor)
    live = Book.of(first)
    lines = [(live.chain.link, first)]

    def add(body: dict[str, Any], **more: Any) -> None:
        spelled = live.append(body, at=at, actor=actor, **more)
        lines.append((live.chain.link, spelled))

    add({"kind": "datapoints.registered", "count": 5000, "keys": None})
    for name, start, stop in (("one", 0, 1000), ("two", 900, 2000), ("alone", 3000, 4000)):
        add(live.task(name=name, members={"ranges": [[start, stop]]}, parts={}, budget=None)[1])
    for release, ends in (("rel_labels", "release.committed"), ("rel_void", "release.voided")):
        charge, spelled = live.charge(
            {"scope": {"task": "one"}, "event": {"kind": "pure_dp", "epsilon": 0.1}}, path="charges[0]"
        )
        decision = live.propose(release=release, charges=[charge])
        body = live.held_body(
            decision, kind="labels", charges=[spelled], expires_at=None, declared={}, shown={"outcome": "admitted"}
        )
        add(body, held=decision.hold)
        add({"kind": ends, "release": release} | ({"reason": "stopped"} if ends == "release.voided" else {}))
    return "".join(
        json.dumps(
            {
                "number": link.number,
                "previous": link.previous.hex(),
                "hash": link.hash.hex(),
                "body": json.loads(body),
            }
        )
        + "\n"
        for link, body in lines
    )


def against_ledger(**changes: Any) -> Release:
    release = clean(**changes)
    return Release(manifest=release.manifest, artifact=release.artifact, ledger=ledger())


def _labels(source: str, **more: Any) -> dict[str, Any]:
    return {"source": source, **more}


def _charges(*events: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"event": dict(event)} for event in events]


def _with_its_digest() -> Release:
    from hashlib import sha256

    content = file_of(tensors())
    return holding(content, artifact={"sha256": sha256(content).hexdigest()})


_PAIR = tuple[Callable[[], Release], Callable[[], Release]]
_SHARED = noise((1, 64), 5)
_POISSON = {"kind": "poisson_sampled", "sampling_probability": 0.01, "event": GAUSSIAN}
_DP_SGD_STEPS = {
    "kind": "repeated", "times": 2000,
    "event": {
        "kind": "poisson_sampled", "sampling_probability": 0.01, "event": {"kind": "gaussian", "noise_multiplier": 1.1},
    },
}  # fmt: skip
_MEMORY = {
    "name": "episodic-memory",
    "parameters": {
        "steps": 100, "train_probability": 0.01, "train_noise_multiplier": 1.1, "memory_probability": 0.01,
        "memory_noise_multiplier": 1.1, "clip_norm": 1.0, "memories": ["w1"],
    },
}  # fmt: skip
_WEAKER = {**_DP_SGD_STEPS, "times": 200}

#: Rule → a release that it finds, a release that it had to look at and does not find.
CASES: dict[str, _PAIR] = {
    "label_space.from_data": (lambda: clean(label_space=_labels("data")), clean),
    "label_space.undeclared": (lambda: clean(label_space=None), clean),
    "label_space.unreleased": (
        lambda: against_ledger(label_space=_labels("released", release="rel_void")),
        lambda: against_ledger(label_space=_labels("released", release="rel_labels")),
    ),
    "label_space.unknown_release": (
        lambda: against_ledger(label_space=_labels("released", release="rel_of_nobody")),
        lambda: against_ledger(label_space=_labels("released", release="rel_labels")),
    ),
    "label_space.mismatch": (
        lambda: clean(label_space=_labels("prior", labels=LABELS, digest=label_digest(["a", "b"]))),
        lambda: clean(label_space=_labels("prior", labels=LABELS, digest=label_digest(LABELS[::-1]))),
    ),
    "label_space.unchecked": (
        lambda: clean(label_space=_labels("released", release="rel_labels")),
        lambda: Release(manifest=clean(label_space=_labels("released")).manifest, labels=LABELS),
    ),
    "label_space.contradicted": (
        lambda: clean(label_space=_labels("none")),
        lambda: holding({"encoder.weight": noise((16, 8))}, label_space=_labels("none")),
    ),
    "artifact.labels": (
        lambda: holding(tensors(), {"labels": json.dumps(["healthy", "ill", "rare disease"])}),
        lambda: holding(tensors(), {"labels": json.dumps(LABELS)}),
    ),
    "artifact.head_width": (
        lambda: holding(tensors(**{"head.weight": noise((4, 16))})),
        lambda: holding(tensors(**{"head.weight": noise((3, 16))})),
    ),
    "artifact.head_missing": (
        lambda: clean(artifact={"head": "classifier.weight"}),
        lambda: clean(artifact={"head": "head.weight"}),
    ),
    "artifact.head_unknown": (
        lambda: holding({"proj.weight": noise((9, 16))}),
        lambda: holding({"score.weight": noise((3, 16))}),
    ),
    "empty_task.no_classifier": (lambda: clean(empty_task={"answer": "nothing"}), clean),
    "empty_task.undeclared": (lambda: clean(empty_task=None), clean),
    "state.raw": (lambda: clean(state={"retained": "raw"}), clean),
    "state.uncharged": (
        lambda: clean(state={"retained": "charged_memory"}),
        lambda: clean(state={"retained": "charged_memory"}, mechanism=_MEMORY),
    ),
    "state.undeclared": (lambda: clean(state=None), clean),
    "tuning.private": (lambda: clean(tuning={"source": "private"}), clean),
    "tuning.uncharged": (
        lambda: against_ledger(tuning={"source": "charged", "releases": ["rel_labels", "rel_void"]}),
        lambda: against_ledger(tuning={"source": "charged", "releases": ["rel_labels"]}),
    ),
    "tuning.undeclared": (lambda: clean(tuning=None), clean),
    "preprocessing.private": (lambda: clean(preprocessing={"vocabulary": "private"}), clean),
    "preprocessing.uncharged": (
        lambda: against_ledger(preprocessing={**CLEAN["preprocessing"], "vocabulary": "charged"}),
        lambda: against_ledger(
            preprocessing={**CLEAN["preprocessing"], "vocabulary": "charged", "releases": ["rel_labels"]}
        ),
    ),
    "preprocessing.undeclared": (lambda: clean(preprocessing=None), clean),
    "pretraining.private": (lambda: clean(pretraining={"data": "private"}), clean),
    "pretraining.uncharged": (
        lambda: against_ledger(pretraining={"data": "released", "release": "rel_void"}),
        lambda: against_ledger(pretraining={"data": "released", "release": "rel_labels"}),
    ),
    "pretraining.unknown_release": (
        lambda: against_ledger(pretraining={"data": "released", "release": "rel_of_nobody"}),
        lambda: against_ledger(pretraining={"data": "released", "release": "rel_labels"}),
    ),
    "pretraining.undeclared": (lambda: clean(pretraining=None), clean),
    "metrics.private": (lambda: clean(evaluation={"data": "private"}), clean),
    "metrics.uncharged": (
        lambda: against_ledger(evaluation={"data": "charged"}, metrics={"accuracy": 0.9}),
        lambda: against_ledger(evaluation={"data": "charged", "releases": ["rel_labels"]}, metrics={"accuracy": 0.9}),
    ),
    "metrics.undeclared": (
        lambda: clean(evaluation=None, metrics={"accuracy": 0.9}),
        lambda: clean(metrics={"accuracy": 0.9}),
    ),
    "statement.unknown": (
        lambda: proposed(tuning={"source": "by feeling"}),
        lambda: proposed(tuning={"source": "public"}),
    ),
    "statement.incomplete": (
        lambda: clean(tuning={"source": "charged"}),
        lambda: clean(tuning={"source": "charged", "releases": ["rel_labels"]}),
    ),
    "mechanism.proof_status": (
        lambda: clean(mechanism={"name": "fine-tuning", "parameters": {"steps": 10, "batch_size": 5}}),
        clean,
    ),
    "mechanism.misspelt": (lambda: clean(mechanism={"name": "dp-sgdd"}, charges=_charges(GAUSSIAN)), clean),
    "mechanism.unknown": (
        lambda: clean(mechanism={"name": "our-own"}, charges=_charges(GAUSSIAN), sampling=None),
        clean,
    ),
    "charges.missing": (
        lambda: clean(mechanism=None),
        lambda: clean(mechanism=None, charges=_charges(GAUSSIAN)),
    ),
    "charges.too_low": (
        lambda: clean(charges=_charges(_WEAKER)),
        lambda: clean(charges=_charges({**_DP_SGD_STEPS, "times": 2001})),
    ),
    "sampling.not_poisson": (lambda: clean(sampling={"scheme": "shuffled"}), clean),
    "sampling.undeclared": (lambda: clean(sampling=None), clean),
    "noise.repeatable": (
        lambda: holding(tensors(), {"releasable": "false"}),
        lambda: holding(tensors(), {"releasable": "true"}),
    ),
    "noise.repeated": (
        lambda: Release(earlier=file_of({"other.name": tensors()["head.weight"]})),
        lambda: Release(earlier=file_of({"head.weight": noise((3, 16), 77)})),
    ),
    "noise.shared": (
        lambda: noisy(np.concatenate([_SHARED, _SHARED + 0.01 * noise((1, 64), 9), noise((1, 64), 8)])),
        lambda: noisy(noise((3, 64), 6)),
    ),
    "population.adjacency": (lambda: clean(adjacency="replace_one"), clean),
    "population.unit": (lambda: clean(unit="record"), clean),
    "population.delta": (
        lambda: clean(population={**CLEAN["population"], "delta": 1 / 5000}),
        lambda: clean(population={**CLEAN["population"], "delta": 1 / 5001}),
    ),
    "tasks.overlap": (
        lambda: against_ledger(task="one", composition={"claim": "parallel"}),
        lambda: against_ledger(task="alone", composition={"claim": "parallel"}),
    ),
    "tasks.unknown": (
        lambda: against_ledger(task="no-such-task"),
        lambda: against_ledger(task="one"),
    ),
    "tasks.unchecked": (
        lambda: clean(task="one", composition={"claim": "parallel"}),
        lambda: against_ledger(task="alone", composition={"claim": "parallel"}),
    ),
    "artifact.unopened": (lambda: Release(artifact=None), clean),
    "artifact.pickle": (lambda: holding(pickle.dumps({"weight": [1.0]})), clean),
    "artifact.format": (lambda: holding(zipped("weight.npy", b"")), clean),
    "artifact.unreadable": (lambda: holding(file_of(tensors())[:-1]), clean),
    "artifact.digest": (
        lambda: clean(artifact={"sha256": "0" * 64}),
        _with_its_digest,
    ),
    "artifact.batch_norm": (
        lambda: holding(tensors(**{"norm.running_mean": noise((8,)), "norm.num_batches_tracked": np.array(7)})),
        lambda: holding(tensors(**{"norm.weight": noise((8,))})),
    ),
    "artifact.optimizer_state": (lambda: holding(tensors(**{"body.weight.exp_avg": noise((16, 8), 4)})), clean),
    "artifact.example_counts": (lambda: holding(tensors(class_counts=np.array([1, 2, 3]))), clean),
    "artifact.training_data": (lambda: holding(tensors(**{"memory.x": noise((5, 8))})), clean),
    "artifact.rows_like_data": (
        lambda: holding(tensors(embedding=noise((5000, 2)))),
        lambda: holding(tensors(embedding=noise((4999, 2)))),
    ),
    "artifact.not_finite": (lambda: holding(tensors(bias=np.array([1.0, np.nan]))), clean),
    "artifact.metadata": (
        lambda: holding(tensors(), {"notes": "trained on Tuesday"}),
        lambda: holding(tensors(), {"format": "pt"}),
    ),
    "artifact.declared_public": (lambda: clean(artifact={"public": ["body."]}), clean),
}
