"""A house that runs: `stint run` with its worker, real data in the folder that the worker may read, and a client."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image

from service.client import Stint
from tests.service.harness import fresh
from tests.service.terminal import command, lines_until, short_folder, stop
from trainers import artifacts
from trainers.artifacts import Stored

SECONDS = 90.0


@dataclass(frozen=True)
class House:
    """Everything is done over HTTP, as a pipeline does it; artifacts are read where their URI says."""

    stint: Stint
    folder: Path
    committed: list[str] = field(default_factory=list)  # the mechanisms of jobs that were, in their order

    def arrays(self, **arrays: Any) -> str:
        """A file of the worker's side."""
        path = self.folder / "inputs" / f"{fresh('rows')}.npz"
        np.savez(path, **arrays)
        return f"file://{path}"

    def table(self, **columns: Any) -> str:
        """The same as Parquet."""
        path = self.folder / "inputs" / f"{fresh('rows')}.parquet"
        pq.write_table(pa.table(columns), path)
        return f"file://{path}"

    def population(self, count: int, *, epsilon: float = 8.0, delta: float = 1e-5, **more: Any) -> str:
        """So many datapoints under one promise."""
        name = fresh("people")
        self.stint.create_population(name, unit=more.pop("unit", "record"), epsilon=epsilon, delta=delta, **more)
        if count:
            self.stint.register_count(name, count)
        return name

    def tasks(self, population: str, sizes: Sequence[int], **parts: Sequence[Any]) -> list[str]:
        """Neighbouring tasks of these sizes, with these parts."""
        start, names = 0, []
        for number, size in enumerate(sizes):
            name = f"task-{number + 1}"
            members = {"ranges": [[start, start + size]]}
            chosen = {part: scopes[number] for part, scopes in parts.items()}
            self.stint.create_task(population, name, members=members, parts=chosen)
            names.append(name)
            start += size
        return names

    def made(self, population: str, mechanism: str, parameters: Mapping[str, Any], **job: Any) -> Stored:
        """What a job makes, once it is committed, from the file whose digest the ledger has."""
        job.setdefault("recipe", {})
        submitted = self.stint.submit(
            population=population, mechanism={"name": mechanism, "parameters": dict(parameters)}, **job
        )
        ended = submitted.wait(seconds=SECONDS)
        assert ended["status"] == "committed", (ended["error"], self.stint.job_lines(submitted.id))
        assert ended["progress"]["step"] == ended["progress"]["steps"] > 0
        release = self.stint.release(submitted.release)
        assert release["status"] == "committed"
        assert release["artifact"]["sha256"] == ended["artifact"]["sha256"]
        path = self.folder / urlparse(ended["artifact"]["uri"]).path
        card = json.loads((path.parent / "card.json").read_text(encoding="utf-8"))
        assert card["mechanism"]["name"] == mechanism
        assert card["guarantee"]["bound"] == "upper"
        self.committed.append(release["declared"]["mechanism"]["name"])  # as the ledger has it
        return artifacts.read(path, release=submitted.release, sha256=ended["artifact"]["sha256"])

    def spent(self, population: str, ordinal: int) -> float:
        """The meter of one datapoint."""
        reading: float = self.stint.datapoint(population, ordinal)["epsilon"]["spent"]
        return reading

    def charges(self, population: str, ordinal: int) -> int:
        """How many releases touched one datapoint."""
        return len(self.stint.datapoint(population, ordinal)["charges"])


@contextmanager
def house(data: Path) -> Iterator[House]:
    """Started as `python3 dev.py run` starts it, but for the demo, with a backbone that jobs may name."""
    with short_folder() as folder, (folder / "errors").open("w", encoding="utf-8") as errors:
        (folder / "inputs").mkdir()
        weights = data / "efficientnet_lite0" / "efficientnet-lite0-57934424.pth"
        backbones = folder / "backbones.toml"
        backbones.write_text(f'[backbones.efficientnet-lite0]\nweights = "{weights}"\nsize = 48\n', encoding="utf-8")
        variables = {"OMP_NUM_THREADS": "1", "STINT_BACKBONES": str(backbones)}
        process = command(folder, "run", "--no-demo", "--json", variables=variables, errors=errors)
        try:
            started = json.loads(lines_until(process, "started")[0])
            with Stint(started["url"], started["key"]) as client:
                yield House(stint=client, folder=folder)
        finally:
            stop(process)


# ---------------------------------------------------------------- real data


def images(folder: Path, kind: str, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The first images of a set in the form of MNIST, averaged over 4 × 4 pixels: 49 values in [0, 1]."""
    with gzip.open(folder / f"{kind}-images-idx3-ubyte.gz") as file:
        file.read(16)
        pixels = np.frombuffer(file.read(count * 784), dtype=np.uint8).reshape(count, 7, 4, 7, 4)
    with gzip.open(folder / f"{kind}-labels-idx1-ubyte.gz") as file:
        file.read(8)
        labels = np.frombuffer(file.read(count), dtype=np.uint8).astype(np.int64)
    return (pixels.mean(axis=(2, 4)) / 255).reshape(count, 49).astype(np.float32), labels


def photographs(folder: Path, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The first photographs of CIFAR-10, 32 × 32 × 3."""
    with Image.open(folder / "cifar10_12k" / "test_2000.webp") as sheet:
        tiles = np.asarray(sheet.convert("RGB")).reshape(40, 32, 50, 32, 3)
    with np.load(folder / "cifar10_12k" / "labels.npz") as archive:
        labels = archive["test"].astype(np.int64)
    return tiles.transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)[:count], labels[:count]


def encounters(folder: Path, count: int) -> tuple[list[str], list[str], NDArray[np.float32]]:
    """The first hospital encounters: patient, primary ICD-9 code, and eight counts of what was done, in [0, 1]."""
    counts = ["time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications", "number_outpatient",
              "number_emergency", "number_inpatient", "number_diagnoses"]  # fmt: skip
    with zipfile.ZipFile(folder / "diabetes130_icd9" / "dataset_diabetes.zip") as archive:
        [name] = [each for each in archive.namelist() if each.endswith("diabetic_data.csv")]
        with archive.open(name) as raw:
            rows = [row for _, row in zip(range(count), csv.DictReader(io.TextIOWrapper(raw, "utf-8")), strict=False)]
    features = np.array([[float(row[each]) for each in counts] for row in rows], dtype=np.float32) / np.float32(100)
    return [row["patient_nbr"] for row in rows], [row["diag_1"] for row in rows], features
