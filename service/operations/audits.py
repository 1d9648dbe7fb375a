"""Audits of releases: what is known is gathered, the checklist decides, and findings are entries of the ledger.

A finding that was told to somebody is a fact of the population's history, like a refusal: so it stands in the log,
where nobody can take it back. An audit that finds what the last one found writes nothing. Where the service has no
file, a client that has it may say what it found there: that is written as its word, under its key, and never as a look
of the service's own (`accountant.audit.standing`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant.audit import checklist
from accountant.audit.findings import RULES, Finding, Rule
from accountant.audit.manifests import text_of
from accountant.audit.standing import REPORTABLE, against
from accountant.canonical import from_canonical
from service import pre_release
from service.errors import NotFound, Problem
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
    from accountant.book import Body, Book, Release
    from accountant.chain import Link
    from service.schemas import Opened
    from service.store.books import Books
    from service.store.database import Database

MOST_ENTRIES: Final = 1000  # of one release: a proposal, its end, and audits that found something new
_RELEASE: Final = re.compile(r"rel_[0-9A-Z]{26}")
_ENTRIES = text("SELECT number, body FROM entry WHERE release = :release ORDER BY number")


def entries_of(database: Database, release: str) -> list[tuple[int, dict[str, Any]]]:
    """All entries of a release with their numbers, oldest first; the first is its proposal. There are not many."""
    with database.transaction() as connection:
        rows = connection.execute(_ENTRIES, {"release": release}).all()
    return [(row.number, from_canonical(bytes(row.body))) for row in rows]


def findings_of(entries: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[Finding, ...]:
    """What stands against a release, from its entries."""
    return against(body for _, body in entries).findings


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
        """The whole checklist; `since` are the entries of the release after its proposal, newest first."""
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


def body_of_audit(
    release: str,
    audited: Audited,
    *,
    policy: int,
    artifact: Mapping[str, Any] | None,
    report: Mapping[str, Any] | None,
) -> Body:
    """What an audit found as an entry has it; `artifact` is the file that the service opened, `report` a client's."""
    body: Body = {
        "kind": "release.audited",
        "release": release,
        "findings": [finding.to_record() for finding in audited.findings],
        "checked": list(audited.checked),
        "policy": policy,
    }
    body |= {} if artifact is None else {"artifact": dict(artifact)}
    return body | ({} if report is None else {"reported": dict(report)})


def record(
    body: Body, *, by: str, entries: Sequence[tuple[int, Mapping[str, Any]]], shown: Mapping[str, Any]
) -> Decide:
    """Write down what was found, unless the last audit among these entries says the same, and `by` has said its part.

    What a client says of a file is written only if that file is the artifact, or may still become it.
    """
    made = [each for _, each in entries if each["kind"] == "release.audited"]
    report = body.get("reported")
    is_new = (
        not made
        or any(made[-1].get(name) != body.get(name) for name in ("findings", "artifact", "policy"))
        or (report is not None and (by, report) not in [(each["actor"], each.get("reported")) for each in made])
    )
    if is_new and len(made) >= MOST_ENTRIES:
        message = f"There are {MOST_ENTRIES:,} audits of release {body['release']} already, each with other findings."
        raise Problem("conflict", message)

    def decide(book: Book, _at: datetime, _connection: Connection | None) -> Outcome:
        if report is not None:
            _must_be_the_artifact(book.releases[body["release"]], report["artifact"]["sha256"])

        def respond(links: Sequence[Link]) -> dict[str, Any]:
            return {**shown, "entry": entry(links[-1] if links else book.chain.link)}

        return Outcome(bodies=[body] if is_new else [], status=200, respond=respond)

    return decide


def _must_be_the_artifact(known: Release, digest: str) -> None:
    if known.artifact is not None and known.artifact["sha256"] != digest:
        message = f"The file has SHA-256 {digest}, and the artifact of release {known.id} {known.artifact['sha256']}."
        raise Problem("conflict", message, "found.sha256")
    if known.status == "held" and known.expires_at is None:
        message = f"Release {known.id} belongs to a job, and its worker opens what it makes: there is no file yet."
        raise Problem("conflict", message, "found")


# ---------------------------------------------------------------- what a client found


def report_from(found: Opened) -> dict[str, Any]:
    """What a client says of a file, as an entry has it: its own word, in findings of rules that look into files.

    Severity and words are those of our rules, and evidence is what those words have a place for: what a client sends
    is read by others, so there is no room for a text of its own beside it.
    """
    records = []
    for place, each in enumerate(found.findings):
        names = {name for _, name, _, _ in Formatter().parse(_reportable(each.code, f"findings.{place}").message)}
        if strange := sorted(set(each.evidence) - names):
            message = f"{each.code} has no evidence {strange[0]!r}."
            raise Problem("invalid", message, f"found.findings.{place}.evidence")
        finding = Finding(
            code=each.code, basis="attested", severity=RULES[each.code].severity, message="", evidence=each.evidence
        )
        records.append(finding.to_record())
    for place, code in enumerate(found.checked):
        _reportable(code, f"checked.{place}")
    if missing := sorted({each.code for each in found.findings} - set(found.checked)):
        raise Problem("invalid", f"{missing[0]} was found, and is not among the rules that were checked.", "found")
    artifact = {"sha256": found.sha256} | ({} if found.bytes is None else {"bytes": found.bytes})
    return {"artifact": artifact, "findings": records, "checked": [code for code in RULES if code in found.checked]}


def _reportable(code: str, where: str) -> Rule:
    if code not in REPORTABLE:
        message = f"{code!r} is no rule of this version that looks into a file (docs/audits.md)."
        raise Problem("invalid", message, f"found.{where}")
    return RULES[code]
