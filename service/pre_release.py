"""What is known of a release before it leaves, gathered for the checklist: from a manifest, or from a ledger's book.

Files are opened here, and nothing is decided. No framework is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accountant.audit.checklist import AT_PROPOSAL, Facts, Mechanism, Population, audit, counts_on_poisson
from accountant.audit.manifests import statement, text_of, texts_of
from accountant.errors import InvalidInput
from accountant.events import Gaussian, PoissonSampled, adjacency_of, event_from_json
from trainers import inspection
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from accountant.audit.contents import Contents, Earlier
    from accountant.audit.findings import Finding
    from accountant.audit.manifests import Manifest
    from accountant.book import Book
    from accountant.events import Adjacency, Event
    from trainers.row_copies import Rows

MAX_EARLIER: Final = 100  # releases that an artifact is compared with, newest first
MAX_EARLIER_BYTES: Final = 1 << 28  # of their files, together

# ---------------------------------------------------------------- from a manifest


def from_manifest(
    manifest: Manifest,
    *,
    artifact: Path | None = None,
    book: Book | None = None,
    labels: Sequence[str] | None = None,
    accepts: Sequence[str] | None = None,
    earlier: Sequence[Path] = (),
    public: Sequence[Path] = (),
    rows: Rows | None = None,
) -> Facts:
    """What a manifest, a file and perhaps an export of a ledger say. `labels` is the set that was released or prior.

    `public` are files that anybody can get.
    """
    said = manifest.population
    noisy = noisy_tensors(manifest.declared)
    contents = None if artifact is None else inspection.opened(artifact, keep=noisy, rows=rows)
    known = (book.adjacency if book is not None else said.get("adjacency")) or manifest.adjacency or "add_remove"
    mechanism = None if manifest.mechanism is None else catalogued(manifest.mechanism, adjacency=adjacency_of(known))
    charged = tuple(manifest.charges)
    if not charged and mechanism is not None and mechanism.price is not None:
        charged = mechanism.price
    declared_labels = texts_of(manifest.declared, "label_space", "labels")
    digest = text_of(manifest.declared, "label_space", "digest")
    expected = manifest.artifact.get("sha256")
    others = [inspection.earlier(path.name, path, keep=noisy) for path in earlier]
    return Facts(
        kind=manifest.kind,
        declared=manifest.declared,
        unit=manifest.unit,
        adjacency=manifest.adjacency,
        population=_population(book, manifest.task) if book is not None else Population(
            unit=said.get("unit"),
            adjacency=said.get("adjacency"),
            delta=said.get("delta"),
            datapoints=said.get("datapoints"),
        ),
        mechanism=mechanism,
        nearest=None if manifest.mechanism is None else nearest(str(manifest.mechanism["name"])),
        accepts=tuple(accepts) if accepts is not None else ("proved",) if book is None else book.policy.accepts,
        charged=charged,
        statuses=None if book is None else {each.id: each.status for each in book.releases.values()},
        labels=labels if labels is not None else declared_labels,
        label_digests=frozenset() if digest is None else frozenset({digest}),
        overlapping=None if book is None else _overlapping(book, {manifest.task} if manifest.task else set()),
        unknown_tasks=int(book is not None and manifest.task is not None and manifest.task not in book.tasks),
        metrics=bool(manifest.metrics),
        contents=contents,
        digests={} if expected is None else {"the manifest": expected},
        earlier=[each for each in others if each is not None],
        builds_on=frozenset(manifest.artifact.get("builds_on", ())),
        head=manifest.artifact.get("head"),
        public=tuple(manifest.artifact.get("public", ())),
        public_digests=frozenset(each.digest for path in public for each in inspection.opened(path).tensors),
    )  # fmt: skip


def catalogued(named: Mapping[str, Any], *, adjacency: Adjacency) -> Mechanism | None:
    """What the catalog says of a mechanism with these parameters; None if it has none of this name."""
    found = CATALOG.get(str(named.get("name")))
    if found is None:
        return None
    price, charges_memory = None, False
    if adjacency in found.adjacencies:
        quoted = found.quote(named.get("parameters", {}), adjacency=adjacency)
        price = tuple(each.event for each in quoted.charges)
        charges_memory = any(each.part is not None or each.task is not None for each in quoted.charges)
    return Mechanism(
        name=found.name,
        proof_status=found.proof_status,
        adjacencies=tuple(found.adjacencies),
        price=price,
        charges_memory=charges_memory,
    )


def nearest(name: str) -> str | None:
    """The mechanism of the catalog that is perhaps meant by a name that is none; None if it is one, or far from all.

    >>> nearest("DP_SGD"), nearest("dp-sgdd"), nearest("dp-sgd"), nearest("our-own")
    ('dp-sgd', 'dp-sgd', None, None)
    """
    if name in CATALOG:
        return None
    plain = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    close = get_close_matches(plain, list(CATALOG), n=1, cutoff=0.8)
    return close[0] if close else None


def labels_in(path: Path) -> list[str] | None:
    """The labels that a file tells: the artifact of a label release, or a JSON list; None if it tells none."""
    told = inspection.labels_in(path)
    if told is not None:
        return told
    try:
        listed = json.loads(path.read_bytes())
    except (ValueError, RecursionError, MemoryError):
        return None
    is_list = isinstance(listed, list) and all(isinstance(each, str) for each in listed)
    return listed if is_list else None


# ---------------------------------------------------------------- from a ledger


def at_proposal(
    book: Book,
    *,
    kind: str,
    declared: Mapping[str, Any],
    charged: Sequence[Event],
    tasks: set[str],
    is_ours: bool,
) -> tuple[Finding, ...]:
    """What can be found against a proposal, by its words and the book alone."""
    if not declared:  # thousands of them may come in a second, all alike
        delta, poisson = book.policy.budget.delta, any(map(counts_on_poisson, charged))
        return _of_nothing_said(kind, is_ours, poisson, delta if delta * book.size >= 1 else None)
    facts = _facts(book, kind=kind, declared=declared, charged=tuple(charged), tasks=tasks, is_ours=is_ours)
    return audit(facts, codes=AT_PROPOSAL).findings


@lru_cache(maxsize=256)
def _of_nothing_said(kind: str, is_ours: bool, poisson: bool, large_delta: float | None) -> tuple[Finding, ...]:  # noqa: FBT001 - a key
    """What can be found against charges without a word: all that it depends on is here."""
    facts = Facts(
        kind=kind,
        is_ours=is_ours,
        charged=(PoissonSampled(sampling_probability=0.5, event=Gaussian(noise_multiplier=1.0)),) if poisson else (),
        population=Population(delta=large_delta, datapoints=None if large_delta is None else 1 << 32),
        statuses={},
    )
    return audit(facts, codes=AT_PROPOSAL).findings


def at_commit(*, metrics: object, evaluation: Mapping[str, Any] | None) -> tuple[Finding, ...]:
    """What can be found against the commit of an outside pipeline, by its words alone."""
    if not metrics and evaluation is None:
        return ()
    declared = {} if evaluation is None else {"evaluation": evaluation}
    facts = Facts(declared=declared, metrics=bool(metrics))
    return audit(
        facts, codes=("metrics.private", "metrics.undeclared", "statement.unknown", "statement.incomplete")
    ).findings


def of_release(
    book: Book,
    body: Mapping[str, Any],
    *,
    contents: Contents | None,
    recipe: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    builds_on: frozenset[str] = frozenset(),
    earlier: Sequence[Earlier] = (),
    statements: Mapping[str, Any] | None = None,
    metrics: bool = False,
) -> Facts:
    """All that is known of a release that was proposed; `body` is its entry, `statements` came with its commit.

    `labels` are those of all releases that it builds on; None if one of them is not at hand, and nobody knows.
    """
    release = book.releases[body["release"]]
    declared = {**body["declared"], **(statements or {})}
    is_ours = "job" in declared
    facts = _facts(
        book,
        kind=body["release_kind"],
        declared=_with_own_noise(declared) if is_ours else declared,
        charged=tuple(event_from_json(charge["event"]) for charge in body["charges"]),
        tasks=set(release.tasks),
        is_ours=is_ours,
    )
    mechanism = declared.get("mechanism")
    try:
        priced = catalogued(mechanism, adjacency=book.adjacency) if isinstance(mechanism, Mapping) else None
    except InvalidInput:  # parameters that this version of the mechanism no longer takes
        priced = facts.mechanism
    told = {each.release: each.labels for each in earlier}
    if labels and len(builds_on) == 1:  # its file may have been too large to compare with
        told |= dict.fromkeys(builds_on, labels)
    promised = _own_labels(recipe or {}, told) if is_ours else _said_labels(declared, told)
    digest = text_of(declared, "label_space", "digest")
    artifact = release.artifact
    return Facts(
        kind=facts.kind,
        declared=facts.declared,
        is_ours=is_ours,
        unit=facts.unit,
        adjacency=facts.adjacency,
        population=facts.population,
        mechanism=priced,
        accepts=facts.accepts,
        charged=facts.charged,
        statuses=facts.statuses,
        labels=promised if labels is not None or not is_ours else None,
        also=frozenset(labels or ()) if is_ours else frozenset(),
        # A job's digest is over its rules too, which are its recipe's: its names are known.
        label_digests=frozenset() if digest is None or is_ours else frozenset({digest}),
        overlapping=facts.overlapping,
        metrics=metrics,
        contents=contents,
        digests={} if artifact is None else {"the ledger": artifact["sha256"]},
        earlier=earlier,
        builds_on=builds_on | release.leans_on,
    )


def _own_labels(recipe: Mapping[str, Any], told: Mapping[str, Sequence[str] | None]) -> Sequence[str] | None:
    """The labels that the recipe of a job fixes; None if nobody knows them."""
    match recipe.get("label_source"):
        case "prior":
            return list(recipe["label_names"])
        case "released":
            return told.get(recipe["labels_release"])
        case _:
            return None


def _said_labels(declared: Mapping[str, Any], told: Mapping[str, Sequence[str] | None]) -> Sequence[str] | None:
    """The labels of the release that a pipeline names, if its file is here; else those that it says itself."""
    named = text_of(declared, "label_space", "release") if statement(declared, "label_space") == "released" else None
    known = None if named is None else told.get(named)
    return known if known is not None else texts_of(declared, "label_space", "labels")


def _facts(
    book: Book,
    *,
    kind: str,
    declared: Mapping[str, Any],
    charged: tuple[Event, ...],
    tasks: set[str],
    is_ours: bool,
) -> Facts:
    named = declared.get("mechanism")
    found = CATALOG.get(str(named.get("name"))) if isinstance(named, Mapping) else None
    unit, adjacency = declared.get("unit"), declared.get("adjacency")
    return Facts(
        kind=kind,
        declared=declared,
        is_ours=is_ours,
        unit=unit if isinstance(unit, str) else None,
        adjacency=adjacency if isinstance(adjacency, str) else None,
        population=_population(book, next(iter(tasks)) if len(tasks) == 1 else None),
        mechanism=None if found is None else Mechanism(
            name=found.name, proof_status=found.proof_status, adjacencies=found.adjacencies
        ),
        accepts=book.policy.accepts,
        charged=charged,
        statuses=_Statuses(book),
        overlapping=_overlapping(book, tasks) if statement(declared, "composition") == "parallel" else None,
    )  # fmt: skip


class _Statuses(Mapping[str, str]):
    """The statuses of a book's releases, without a copy of them."""

    def __init__(self, book: Book) -> None:
        self._releases = book.releases

    def __getitem__(self, name: str) -> str:
        return self._releases[name].status

    def __iter__(self) -> Any:
        return iter(self._releases)

    def __len__(self) -> int:
        return len(self._releases)


def _population(book: Book, task: str | None) -> Population:
    known = book.tasks.get(task) if task is not None else None
    return Population(
        unit=book.unit,
        adjacency=book.adjacency,
        delta=book.policy.budget.delta,
        datapoints=book.size,
        task_datapoints=None if known is None else len(known.members),
    )


def _overlapping(book: Book, tasks: set[str]) -> int | None:
    """How many other tasks share datapoints with these; None if no task is named."""
    known = [book.tasks[name] for name in tasks if name in book.tasks]
    if not known:
        return None
    return len({other.name for task in known for other, _ in book.overlaps(task)})


def _with_own_noise(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Where our own mechanism has noise of a known scale in every row of a tensor, the checklist may count on it."""
    match declared.get("mechanism"):
        case {"name": "cosine-classifier", "parameters": {"noise_multiplier": float() | int() as scale}}:
            return {**declared, "noise": {"source": "fresh", "scale": scale, "tensor": "sums"}}
        case _:
            return dict(declared)


def noisy_tensors(declared: Mapping[str, Any]) -> tuple[str, ...]:
    """The tensors whose numbers the checklist compares."""
    name = text_of(_with_own_noise(declared) if "job" in declared else declared, "noise", "tensor")
    return () if name is None else (name,)
