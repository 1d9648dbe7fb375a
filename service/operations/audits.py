"""Audits of releases: what is known is gathered, the checklist decides, and findings are entries of the ledger.

A finding that was told to somebody is a fact of the population's history, like a refusal: so it stands in the log,
where nobody can take it back. An audit that finds what the last one found writes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant.audit import checklist
from accountant.audit.findings import RULES, Finding, finding_from
from accountant.audit.manifests import text_of
from accountant.canonical import canonical, from_canonical
from service import pre_release
from service.errors import NotFound
from service.operations import jobs
from service.operations.populations import entry
from service.store.writer import Decide, Outcome
from trainers import inspection
from trainers.cards import MODEL
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from accountant.audit.checklist import Audited
    from accountant.audit.contents import Contents, Earlier
    from accountant.book import Body, Book
    from accountant.chain import Link
    from service.store.books import Books
    from service.store.database import Database

_MOST_ENTRIES: Final = 10_000  # of one release: a proposal, its end, and audits that found something new
_RELEASE: Final = re.compile(r"rel_[0-9A-Z]{26}")
_ENTRIES = text(
    "SELECT body FROM entry WHERE release = :release AND kind IN ('release.held', 'release.denied', "
    "'release.committed', 'release.voided', 'artifact.attached', 'release.audited') ORDER BY number DESC LIMIT :most"
)


def bodies(database: Database, release: str) -> list[dict[str, Any]]:
    """The entries of a release that may hold findings, newest first; the last is its proposal."""
    with database.transaction() as connection:
        found = connection.execute(_ENTRIES, {"release": release, "most": _MOST_ENTRIES}).scalars().all()
    return [from_canonical(bytes(body)) for body in found]


def findings_of(entries: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What stands against a release: what its last audit found, and what was found since; newest entries first."""
    found: dict[bytes, Finding] = {}
    for body in entries:
        for record in body.get("findings", ()):
            found.setdefault(canonical(record), finding_from(record))
        if body["kind"] == "release.audited":
            break
    order = {code: place for place, code in enumerate(RULES)}
    return sorted(found.values(), key=lambda each: order.get(each.code, len(order)))


class Gathered:
    """What an audit looks at outside of the book: files of the artifacts folder, and the recipe of a job."""

    def __init__(self, database: Database, books: Books, folder: Path, body: Mapping[str, Any]) -> None:
        self.body, self.release, self._folder = body, str(body["release"]), folder
        job = body["declared"].get("job")
        self.recipe: Mapping[str, Any] = {}
        if isinstance(job, Mapping):
            self.recipe = from_canonical(jobs.find(database, str(job["id"]))["recipe"].encode())
        self._noisy = pre_release.noisy_tensors(body["declared"])
        population = _population_of(database, self.release)
        with books.read(population) as book:
            before = [each.id for each in book.releases.values() if each.number < body_number(book, self.release)]
            committed = [name for name in before if book.releases[name].artifact is not None]
        self.population = population
        self.builds_on = frozenset(self._named())
        self._others = list(dict.fromkeys([*self.builds_on, *reversed(committed)]))[: pre_release.MAX_EARLIER]

    def _named(self) -> list[str]:
        """The releases that the run built on, by its recipe or by its word."""
        declared = self.body["declared"]
        mechanism = CATALOG.get(str((declared.get("mechanism") or {}).get("name")))
        found = [
            named
            for statement in ("label_space", "pretraining")
            if (named := text_of(declared, statement, "release")) is not None
        ]
        for name in () if mechanism is None else mechanism.releases:
            match self.recipe.get(name):
                case list(several):
                    found += map(str, several)
                case str(one) if one:
                    found.append(one)
        return [name for name in found if _RELEASE.fullmatch(name)]  # a name becomes a path

    def file(self, release: str) -> Path:
        """Where the artifact of a release lies, if a worker of ours made it."""
        return self._folder / release / MODEL

    def opened(self, path: Path) -> Contents:
        """What is in a file, or `OSError`."""
        return inspection.opened(path, keep=self._noisy)

    def earlier(self) -> list[Earlier]:
        """The releases of the population before this one whose files are here, newest first, within limits."""
        found: list[Earlier] = []
        left = pre_release.MAX_EARLIER_BYTES
        for name in self._others:
            path = self.file(name)
            try:
                status = os.stat(path)  # noqa: PTH116 - what it says of the file is the key of what is remembered
            except OSError:
                continue
            left -= status.st_size
            if left < 0:
                break
            one = _earlier(name, path, status.st_mtime_ns, status.st_size, self._noisy)
            found += [one] if one is not None else []
        return found

    def labels(self) -> list[str] | None:
        """The labels of all releases that the run built on; None if the file of one of them is not here."""
        if not all(self.file(name).is_file() for name in self.builds_on):
            return None
        told = [inspection.labels_in(self.file(name)) for name in self.builds_on]
        return sorted({label for each in told if each for label in each})

    def audit(
        self,
        book: Book,
        contents: Contents | None,
        *,
        earlier: Sequence[Earlier],
        labels: Sequence[str] | None,
        since: Sequence[Mapping[str, Any]] = (),
    ) -> Audited:
        """The whole checklist; `since` are the entries of the release after its proposal."""
        said = [each["declared"] for each in since if "declared" in each]
        artifacts = [each["artifact"] for each in since if "artifact" in each and each["kind"] != "release.audited"]
        facts = pre_release.of_release(
            book,
            self.body,
            contents=contents,
            recipe=self.recipe,
            labels=labels,
            builds_on=self.builds_on,
            earlier=earlier,
            statements=said[0] if said else None,
            metrics=any(each.get("metrics") for each in artifacts),
        )
        return checklist.audit(facts)


def body_number(book: Book, release: str) -> int:
    """The entry in which a release was proposed."""
    return book.releases[release].number


@lru_cache(maxsize=128)
def _earlier(release: str, path: Path, _changed: int, _size: int, keep: tuple[str, ...]) -> Earlier | None:
    """A published file is never written again, so what was seen of it stays true."""
    return inspection.earlier(release, path, keep=keep)


_OWNER = text(
    "SELECT population.name FROM release JOIN population ON population.id = release.population_id "
    "WHERE release.id = :id"
)


def _population_of(database: Database, release: str) -> str:
    with database.transaction() as connection:
        name = connection.execute(_OWNER, {"id": release}).scalar_one_or_none()
    if name is None:
        raise NotFound("release", release)
    return str(name)


def record(
    *,
    release: str,
    audited: Audited,
    artifact: Mapping[str, Any] | None,
    last: Mapping[str, Any] | None,
    shown: Mapping[str, Any],
) -> Decide:
    """Write down what was found, unless the last audit, in the body `last`, found the same in the same file."""

    def decide(book: Book, _at: datetime, _connection: Connection | None) -> Outcome:
        body: Body = {
            "kind": "release.audited",
            "release": release,
            "findings": [finding.to_record() for finding in audited.findings],
            "checked": list(audited.checked),
            "policy": book.policy.version,
        }
        if artifact is not None:
            body["artifact"] = dict(artifact)
        is_new = last is None or any(last.get(name) != body.get(name) for name in ("findings", "artifact", "policy"))

        def respond(links: Sequence[Link]) -> dict[str, Any]:
            return {**shown, "entry": entry(links[-1] if links else book.chain.link)}

        return Outcome(bodies=[body] if is_new else [], status=200, respond=respond)

    return decide
