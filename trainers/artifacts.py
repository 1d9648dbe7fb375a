"""Artifacts: the tensors of a release with what there is to know of them, and a model card, as files of a folder.

`model.safetensors` is what is released; its digest is in the ledger. Nothing is pickled, so to read one runs no code.
`card.json` and `card.md` are its model card.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from accountant.canonical import MAX_BYTES, canonical, from_canonical
from accountant.errors import InvalidInput
from trainers import cards, inspection
from trainers.ports import Made
from trainers.safetensors_headers import has_too_many_parts

MODEL: Final = cards.MODEL
CARD: Final = "card.json"
READABLE: Final = "card.md"
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file by its content."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An artifact that was read back; a `Released`."""

    release: str
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    facts: Mapping[str, Any]


def write(folder: Path, made: Made, card: Mapping[str, Any], *, releasable: bool) -> Artifact:
    """The files of a release, on disk when this returns; or `InvalidInput` if what there is to say does not fit there.

    Of what was drawn from repeatable noise the file itself says that it is not to be released, and who commits looks.
    """
    # Each with memory of its own, or one under two names would be refused.
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in made.tensors.items()
    }
    facts = canonical(dict(made.facts))
    said = {"stint": facts.decode(), "releasable": "true" if releasable else "false"}
    save_file(tensors, folder / MODEL, metadata=said)
    artifact = measured(folder / MODEL)
    if len(facts) > MAX_BYTES or has_too_many_parts(facts) or not inspection.is_readable(folder / MODEL):
        raise InvalidInput("artifact", f"{len(facts):,} bytes of facts", "what a header has room for, and readers take")
    whole = cards.of_file(card, sha256=artifact.sha256, size=artifact.bytes, releasable=releasable)
    (folder / CARD).write_text(json.dumps(whole, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    (folder / READABLE).write_text(cards.readable(whole), encoding="utf-8")
    for path in (folder / MODEL, folder / CARD, folder / READABLE, folder):
        _sync(path)
    return artifact


def read(path: Path, *, release: str, sha256: str | None = None) -> Stored:
    """The artifact in a file, or `InvalidInput` if it is not there, not whole, or not the one with this digest."""
    try:
        if sha256 is not None and measured(path).sha256 != sha256:
            raise InvalidInput("artifact", release, "the file whose digest was committed")
        with safe_open(path, framework="pt") as file:
            facts = from_canonical((file.metadata() or {})["stint"].encode())
            return Stored(release=release, tensors={name: file.get_tensor(name) for name in file.keys()}, facts=facts)  # noqa: SIM118 - it is no mapping
    except (OSError, KeyError, SafetensorError):
        raise InvalidInput("artifact", release, "a release whose artifact is here and whole") from None


def measured(path: Path) -> Artifact:
    """Digest and size of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return Artifact(sha256=digest.hexdigest(), bytes=size)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
