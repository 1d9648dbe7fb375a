"""What stands against a release, and what was looked at to find it: both follow from the entries of its ledger.

Absence of a finding tells something only where somebody looked. So a finding goes away for one reason alone: somebody
looked again and did not find it. What was found in a file is taken back only by whoever opened that very file again;
what a client says that it found in a file stays as long as that file is the artifact, since nobody can tell whether the
next client looked as closely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from accountant.audit.findings import RULES, Finding, finding_from

Document: TypeAlias = Mapping[str, Any]
OpenedBy: TypeAlias = Literal["worker", "service", "client"]

#: Rules that look into a file, if there is one: what they found in one is not taken back without it.
IN_FILES: Final = frozenset(
    {code for code in RULES if code.startswith(("artifact.", "noise."))} - {"artifact.unopened"}
    | {"label_space.mismatch", "label_space.unchecked", "label_space.contradicted"}
    | {"empty_task.no_classifier", "metrics.undeclared"}
)
#: What a client may say of a file. Whether it is the artifact is for the ledger to say.
REPORTABLE: Final = IN_FILES - {"artifact.digest"}
#: What it takes another file to find: that may be gone when somebody looks again.
_COMPARED: Final = frozenset({"noise.repeated"})
_TELLING: Final = frozenset({"findings", "checked", "reported"})
UNOPENED: Final = "artifact.unopened"


class Coded(Protocol):
    """A finding, or as little of one as somebody keeps."""

    @property
    def code(self) -> str:
        """Its rule."""


F = TypeVar("F", bound=Coded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing(Generic[F]):
    """What stands against a release after some of its entries; `findings` is all of it, each once."""

    findings: tuple[F, ...] = ()
    own: tuple[tuple[F, str | None], ...] = ()  # that the service or a worker found, and in which file, if in one
    reported: tuple[tuple[str, F], ...] = ()  # that clients found, each in the file with this digest
    opened: tuple[str, ...] = ()  # digests of files that anybody opened
    artifact: str | None = None
    offered: str | None = None  # the last file that a client opened, which may become the artifact

    def after(self, document: Document, read: Callable[[Document, str | None], F]) -> Standing[F]:
        """The same after one more entry; `read` makes a finding of its record, and of whose word it is."""
        artifact = artifact_in(document) or self.artifact
        if not _TELLING & document.keys():  # thousands of them may come in a second
            return self if artifact == self.artifact else _listed(replace(self, artifact=artifact))
        opened, report = opened_in(document), document.get("reported")
        again, is_it = frozenset(document.get("checked", ())), opened is not None and artifact in {None, opened}
        own = [
            (each, file)
            for each, file in self.own
            if each.code not in again
            or (file is not None and (not is_it or (file == opened and each.code in _COMPARED)))
        ]
        for record in document.get("findings", ()):
            found = read(record, None), opened if record["code"] in IN_FILES else None
            own += [found] if found not in own else []
        reported, files, offered = list(self.reported), [*self.opened, opened], self.offered
        if report is not None:
            offered = report["artifact"]["sha256"]
            files.append(offered)
            for record in report["findings"]:
                told = offered, read(record, str(document["actor"]))
                reported += [told] if told not in reported else []
        known = tuple(dict.fromkeys(each for each in files if each is not None))
        changed = replace(
            self, own=tuple(own), reported=tuple(reported), opened=known, artifact=artifact, offered=offered
        )
        return _listed(changed)

    @property
    def file(self) -> str | None:
        """The digest of the artifact; until there is one, of the file that may become it."""
        return self.artifact or self.offered


def _listed(standing: Standing[F]) -> Standing[F]:
    own = [each for each, _ in standing.own if each.code != UNOPENED or standing.file not in standing.opened]
    found: list[F] = []
    for each in (*own, *(told for digest, told in standing.reported if digest == standing.file)):
        found += [each] if each not in found else []
    return replace(standing, findings=tuple(found))


def against(entries: Iterable[Document]) -> Standing[Finding]:
    """What stands against a release, from its entries, oldest first; findings in the order of the rules."""
    standing: Standing[Finding] = Standing()
    for document in entries:
        standing = standing.after(document, finding_by)
    order = {code: place for place, code in enumerate(RULES)}
    findings = sorted(standing.findings, key=lambda each: order.get(each.code, len(order)))
    return replace(standing, findings=tuple(findings))


def finding_by(record: Document, by: str | None) -> Finding:
    """A finding as an entry has it, and by whose word, if it is somebody's."""
    found = finding_from(record)
    return found if by is None else replace(found, by=by)


def findings_in(document: Document) -> list[Finding]:
    """All findings that one entry tells, those of a client under the name of its key."""
    report = document.get("reported") or {"findings": ()}
    return [finding_from(each) for each in document.get("findings", ())] + [
        finding_by(each, str(document["actor"])) for each in report["findings"]
    ]


def artifact_in(document: Document) -> str | None:
    """The digest of the artifact, if this is the entry that tells it."""
    if document["kind"] in {"release.committed", "artifact.attached"} and (artifact := document.get("artifact")):
        digest: str | None = artifact.get("sha256")
        return digest
    return None


def opened_in(document: Document) -> str | None:
    """The digest of the file that the service or a worker opened for this entry, if any."""
    match document:
        case {"kind": "release.audited", "artifact": {"sha256": str(digest)}}:
            return digest
        case {"kind": "release.committed", "artifact": {"sha256": str(digest)}, "checked": _}:  # by a worker of ours
            return digest
        case _:
            return None


# ---------------------------------------------------------------- what was looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was looked at of a release, in all of its audits together.

    `made` is None where nothing says whether there was an audit: workers of older versions opened what they made, and
    the ledger does not say so.
    """

    made: bool | None
    entry: int | None = None  # the last in which somebody looked
    checked: tuple[str, ...] = ()  # rules that the service or a worker checked
    reported: tuple[str, ...] = ()  # rules that a client says it checked in the artifact
    opened_by: OpenedBy | None = None  # who opened the artifact itself; the most trusted of them

    def to_json(self) -> dict[str, Any]:
        """As an answer, in words as well."""
        return {
            "made": self.made,
            "text": self.text,
            "entry": self.entry,
            "checked": list(self.checked),
            "reported": list(self.reported),
            "artifact_opened": self.opened_by is not None,
            "opened_by": self.opened_by,
        }

    @property
    def text(self) -> str:
        """In words, of which none says that nothing was found where nobody looked."""
        if self.made is None:
            return "Not stated: nothing says whether anybody looked."
        if not self.made:
            return "Not audited: no file was opened; only what was declared was checked."
        looked = f"Audited, last in entry {self.entry}: {len(self.checked)} rules were checked"
        match self.opened_by:
            case "worker":
                return f"{looked}, and the worker that made the artifact opened it before it left."
            case "service":
                return f"{looked}, and the service opened the artifact."
            case "client":
                return (
                    f"{looked}. The service did not open the artifact; a client did, and by its word "
                    f"{len(self.reported)} rules were checked there."
                )
            case None:
                return f"{looked}. Nobody opened the artifact."


_BY_TRUST: Final[tuple[OpenedBy, ...]] = ("worker", "service", "client")


def looked_at(entries: Sequence[tuple[int, Document]]) -> Looked:
    """What was looked at, from the entries of a release with their numbers, oldest first."""
    standing = against(each for _, each in entries)
    has_left = any(each["kind"] in {"release.committed", "release.expired"} for _, each in entries)
    file = standing.artifact if has_left else standing.file  # of what left, nobody knows that it is the file on offer
    last: int | None = None
    checked, reported, openers = set[str](), set[str](), set[OpenedBy]()
    for number, document in entries:
        if document["kind"] != "release.audited" and not ("checked" in document and opened_in(document)):
            continue
        last, opened = number, opened_in(document)
        is_other = opened is not None and opened != file
        checked |= set(document["checked"]) - (IN_FILES if is_other else frozenset())
        if opened is not None and not is_other:
            openers.add("service" if document["kind"] == "release.audited" else "worker")
        report = document.get("reported")
        if report is not None and report["artifact"]["sha256"] == file:
            reported |= set(report["checked"])
            openers.add("client")
    if last is None:
        first = entries[0][1] if entries else {}
        is_job = first.get("kind") == "release.held" and "expires_at" not in first
        return Looked(made=None if is_job and file is not None else False)
    return Looked(
        made=True,
        entry=last,
        checked=_ordered(checked),
        reported=_ordered(reported),
        opened_by=next((each for each in _BY_TRUST if each in openers), None),
    )


def _ordered(codes: set[str]) -> tuple[str, ...]:
    """In the order of the rules; those that this version does not know come last."""
    return (*(code for code in RULES if code in codes), *sorted(codes - set(RULES)))
