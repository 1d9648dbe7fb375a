"""One attempt at a job or an audit, in a process of its own: `python -m service.attempt FD`.

It is the only process with private rows; an audit has none.

Standard input brings the document, then answers to its questions; when that ends, so does this process. What it reports
to FD is how far it is, which keys it wants looked up, and at the end a code. An exception's text may hold what it was
computed from, so it goes to standard error, which the worker keeps to itself.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import queue
import re
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pyroaring import BitMap

from accountant.book import bitmap_from
from accountant.errors import AccountantError
from trainers import artifacts
from trainers.backbones import Backbone, BackboneProblem, configured
from trainers.cards import card
from trainers.catalog import mechanism as find_mechanism
from trainers.catalog.data_documents import data_document
from trainers.catalog.parameters import read
from trainers.data import DataProblem, open_data
from trainers.noise import Noise
from trainers.ports import Run

_REPORT_SECONDS: Final = 0.1
_KEYS_AT_ONCE: Final = 1_000  # of 1,000 signs each, and each sign in up to 12 bytes: within the longest line
_ORPHANED: Final = 75
#: How torch says it where it raises no exception of its own: its allocator, C++ (for small pieces), cuBLAS.
_OUT_OF_MEMORY: Final = re.compile("can't allocate memory|bad_alloc|out of memory|ALLOC_FAILED")


class InputMissing(Exception):
    """A release that the recipe builds on is not here as it was committed."""


class Line:
    """The two pipes to the worker."""

    def __init__(self, answers: IO[bytes], reports: IO[bytes]) -> None:
        self._answers, self._reports = answers, reports
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._last = 0.0
        threading.Thread(target=self._hear, name="line", daemon=True).start()

    def _hear(self) -> None:
        while line := self._answers.readline():
            self._told.put(json.loads(line))
        os._exit(_ORPHANED)  # the worker is gone: nobody could commit what this makes

    def told(self) -> Any:
        """The next document from the worker."""
        return self._told.get()

    def report(self, document: Mapping[str, Any]) -> None:
        """A line to the worker."""
        self._reports.write(json.dumps(document).encode() + b"\n")
        self._reports.flush()

    def progress(self, done: int, of: int) -> None:
        """How far it is; not more often than anybody looks."""
        now = time.monotonic()
        if done >= of or now - self._last >= _REPORT_SECONDS:
            self._last = now
            self.report({"step": [int(done), int(of)]})

    def ordinals_of(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Whose these keys are, by the worker's knowledge."""
        found: list[int] = []
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self.report({"keys": list(keys[start : start + _KEYS_AT_ONCE])})
            found += self.told()
        return np.array(found, dtype=np.int64)


def main(descriptor: int) -> None:
    """Run what standard input says, and report how it ended."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the rows
    os.umask(0o077)
    line = Line(sys.stdin.buffer, os.fdopen(descriptor, "wb"))
    ended: dict[str, Any] = {"ended": ""}
    try:
        document = line.told()
        if "audit" in document:
            ended["found"] = audited(document, progress=line.progress)
        else:
            make(document, progress=line.progress, ordinals_of=line.ordinals_of)
    except Exception as problem:  # noqa: BLE001 - whatever it is, its code is all that leaves
        ended = {"ended": code_of(problem)}
        with suppress(MemoryError):  # of which there may be none left to say more
            traceback.print_exc()
    sys.stderr.flush()
    line.report(ended)
    os._exit(0)  # the thread that listens cannot be woken, and there is nothing left to put away


def code_of(problem: BaseException) -> str:
    """What may be said of a failure."""
    match problem:
        case DataProblem() | BackboneProblem():
            return str(problem.code)
        case InputMissing():
            return "input.missing"
        case MemoryError() | torch.OutOfMemoryError() | OSError(errno=errno.ENOMEM):
            return "memory"
        case RuntimeError() if _OUT_OF_MEMORY.search(str(problem)):
            return "memory"
        case AccountantError():
            return "recipe.invalid"
        case _:
            return "internal"


def make(
    document: Mapping[str, Any],
    *,
    progress: Callable[[int, int], None],
    ordinals_of: Callable[[Sequence[str]], NDArray[np.int64]],
) -> artifacts.Artifact:
    """Read the admitted rows, run the mechanism, and stage what it makes."""
    mechanism = find_mechanism(document["mechanism"])
    parameters = read("parameters", mechanism.parameters, document["parameters"])
    assert mechanism.module is not None, f"{mechanism.name} has no module"
    inputs = {}
    for name, known in document["inputs"].items():
        try:
            inputs[name] = artifacts.read(Path(known["path"]), release=known["release"], sha256=known["sha256"])
        except AccountantError:
            raise InputMissing(known["release"]) from None
    mechanism.check_data(data_document(document["data"]))
    data = open_data(
        document["data"],
        allowed=document["allowed"],
        ordinals_of=ordinals_of,
        size=document["datapoints"],
        **document["rules"],
    )
    rows = [
        data.rows(proposed=BitMap(bitmap_from(charge["proposed"])), admitted=BitMap(bitmap_from(charge["admitted"])))
        for charge in document["charges"]
    ]
    seed = document["seed"]
    noise = Noise.fresh() if seed is None else Noise.repeatable(seed)
    run = Run(
        parameters=parameters,
        recipe=mechanism.cooked(document["recipe"]),
        adjacency=document["adjacency"],
        rows=rows,
        noise=noise,
        inputs=inputs,
        backbones=_backbones(document),
        device=document["device"],
        progress=progress,
    )
    made = importlib.import_module(mechanism.module).run(run)
    said = card(
        mechanism,
        release=document["release"],
        population=document["population"],
        unit=document["unit"],
        adjacency=document["adjacency"],
        parameters=parameters,
        recipe=document["recipe"],
        events=[charge["event"] for charge in document["charges"]],
        promise=document["promise"],
    )
    return artifacts.write(Path(document["folder"]), made, said, releasable=noise.releasable)


def audited(document: Mapping[str, Any], *, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Carry out a planned audit, on rows that are made up: what it found. No job needs what is imported for it.

    Its chance is that of its plan, so that another attempt finds the same.
    """
    registry, watching = map(importlib.import_module, ("trainers.attacks.registry", "trainers.attacks.watching"))
    [audit] = [each for each in registry.AUDITS[document["mechanism"]] if each.name == document["audit"]]
    samples = document["samples"]
    progress(0, samples)
    noise = Noise.repeatable(int(document["seed"], 16))
    with watching.heard(progress):
        outcome = registry.conduct(audit, samples=samples, noise=noise, confidence=document["confidence"])
    progress(samples, samples)
    found: dict[str, Any] = outcome.document()
    return found


def _backbones(document: Mapping[str, Any]) -> Mapping[str, Backbone]:
    """Those of the worker's configuration; none is loaded before a mechanism asks for it."""
    if document["backbones"] is None:
        return {}
    return configured(Path(document["backbones"]), cache=Path(document["cache"]), device=document["device"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
