"""Certificates of releases that left the house: what the book and the log say of one, signed (docs/evidence.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant import certificates, envelopes
from accountant.audit.contents import label_digest
from accountant.audit.manifests import texts_of
from accountant.audit.standing import Looked, against, looked_at
from accountant.book import Book, Release
from accountant.canonical import canonical, from_canonical
from accountant.certificates import Certified, Exposure
from accountant.ledger import LIFELONG
from service.errors import Problem
from service.operations import evidence
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from accountant.audit.findings import Finding
    from accountant.audit.series import PlannedAudit
    from accountant.events import Adjacency
    from accountant.filters import Filter
    from accountant.guarantees import ProofStatus, Unit
    from service.signing import Secrets
    from service.store.database import Database

CERTIFIED: Final = ("committed", "expired")
#: Parameters that say which ordinals of a stream were touched: of whom a certificate says nothing.
PLACES: Final = frozenset({"chain", "offset"})
_LONGEST: Final = 4096  # of an event or of parameters, spelled; what is longer is known by its digest
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_POLICIES = text(
    "SELECT body FROM entry WHERE population_id = (SELECT id FROM population WHERE name = :name) "
    "AND number <= :upto AND kind IN ('population.created', 'policy.changed') ORDER BY number"
)
_KINDS: Final = frozenset({"release.held", "release.committed", "release.expired", "artifact.attached"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a book says of a release, read under its lock: enough to certify it without the book."""

    known: Release
    population: str
    unit: Unit
    adjacency: Adjacency
    promise: Filter
    body: Mapping[str, Any]
    exposures: tuple[Exposure, ...]
    counts: tuple[int, ...]  # of datapoints, for each charge
    violations: tuple[PlannedAudit, ...] = ()  # that audits found of its mechanism, lifted ones included
    lifted: tuple[str, ...] = ()  # audits that the policy lifted
    stands: bool = False  # whether one of the violations does
    life_stands: bool = False  # whether one does of any mechanism that touched this population


def facts(book: Book, release: str, body: Mapping[str, Any]) -> Facts:
    """The release as it stands in its book, or a conflict if nothing of it has left the house."""
    known = book.releases[release]
    if known.status not in CERTIFIED:
        raise Problem(
            "conflict", f"Release {release} is {known.status}: only what was committed or expired is certified."
        )
    held = book.held_from(body)
    touches = [[int(number) for number in part.touch.decode().split(",")] for part in held.parts]
    return Facts(
        known=known,
        population=book.name,
        unit=book.unit,
        adjacency=book.adjacency,
        promise=book.promise,
        body=body,
        exposures=tuple(
            certificates.exposure([held.charges[number].event for number in touch], dict(part.spending)[LIFELONG])
            for touch, part in zip(touches, held.parts, strict=True)
        ),
        counts=tuple(
            sum(len(part.scope) for touch, part in zip(touches, held.parts, strict=True) if number in touch)
            for number in range(len(held.charges))
        ),
        violations=tuple(
            audit
            for audit in book.audits.values()
            if audit.verdict == "violation" and audit.mechanism == known.mechanism
        ),
        lifted=book.policy.lifted,
        stands=bool(book.violations(known.mechanism)) if known.mechanism is not None else False,
        life_stands=bool(book.violations()),
    )


def certificate(
    database: Database,
    secrets: Secrets,
    given: Facts,
    *,
    entries: Sequence[tuple[int, Mapping[str, Any]]],
    labels_of: Callable[[str], str | None],
) -> bytes:
    """The signed certificate, as the bytes of its envelope. Asked again, they are the same if nothing was added.

    `entries` are all of the release, oldest first: an artifact that is attached later changes what they say, and so
    does an audit. `labels_of` finds the digest of a label set by the release that told it. The engines may take
    seconds, and so this asks for no book.
    """
    release = given.known.id
    looked, found = looked_at(entries), against(body for _, body in entries).findings
    own = [(number, body) for number, body in entries if body["kind"] in _KINDS]
    named = [(number, body) for number, body in entries if body["kind"] in _KINDS or number == looked.entry]
    last, ended = named[-1], own[1][1]
    sure = accepted(database, given.population, own[-1][0])
    seen = evidence.covering(database, secrets, population=given.population, number=last[0], at=last[1]["at"])
    proved = evidence.prove_entries(
        database, population=given.population, numbers=[number for number, _ in named], seen=seen
    )
    for shown, (_, body) in zip(proved["entries"], named, strict=True):
        shown |= {"kind": body["kind"], "at": body["at"]}
    by_number = {shown["number"]: shown for shown in proved["entries"]}
    proved["entries"] = [by_number[number] for number, _ in own]
    artifact = next((body["artifact"] for _, body in reversed(own) if body.get("artifact")), None)
    decision = given.body["decision"]
    predicate = {
        "release": {
            "id": release,
            "population": given.population,
            "kind": given.known.kind,
            "status": given.known.status,
            "proposed_at": given.known.at,
            "ended_at": ended["at"],
            # The hold of a job has no end of its own.
            "run_by": "pipeline" if given.known.expires_at is not None else "worker",
            "builds_on": sorted(given.known.leans_on)[:1000],
        },
        "guarantee": {
            "release": own_guarantee(given).to_json(),
            "lifelong": certificates.lifelong(
                promise=given.promise,
                unit=given.unit,
                adjacency=given.adjacency,
                accepted=["refuted"] if given.life_stands else sure,
            ).to_json(),
        },
        "mechanism": _mechanism(given.body),
        "charges": [
            {"event": shortened(charge["event"]), "datapoints": count}
            for charge, count in zip(given.body["charges"], given.counts, strict=True)
        ],
        "datapoints": given.known.datapoints,
        "trimmed": decision["trimmed"],
        "policy": {
            "version": given.body["policy"],
            "epsilon": decision["epsilon"]["budget"],
            "delta": decision["epsilon"]["delta"],
        },
        "artifact": None if artifact is None else {"sha256": artifact["sha256"], "bytes": artifact.get("bytes")},
        "label_space": _label_space(given.body, labels_of),
        "findings": [_finding(each) for each in found],
        "ledger": proved,
    }
    if looked.made is not None:
        predicate["audit"] = _audit(looked, by_number) if looked.made else None
    if given.violations:
        predicate["violations"] = [_violation(audit, given) for audit in given.violations]
    payload = certificates.payload(predicate=predicate, signer=secrets.public_key)
    signature = secrets.signing.sign(envelopes.signed_bytes(payload))
    return envelopes.envelope(payload, signature=signature, signer=secrets.public_key)


def _finding(found: Finding) -> dict[str, Any]:
    """A finding without its evidence; what a client says that it found is marked as such, and not by whose key."""
    shown = {"code": found.code, "basis": found.basis, "severity": found.severity}
    return shown if found.by is None else shown | {"by": "client"}


def _audit(looked: Looked, entries: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What was looked at, with the entry that says so."""
    assert looked.entry is not None
    return {
        "entry": dict(entries[looked.entry]),
        "checked": list(looked.checked),
        "reported": list(looked.reported),
        "artifact_opened": looked.opened_by is not None,
        "opened_by": looked.opened_by,
    }


def _violation(audit: PlannedAudit, given: Facts) -> dict[str, Any]:
    """An audit that speaks against the mechanism of a release, by numbers that are public."""
    assert audit.bound is not None
    return {
        "audit": audit.id,
        "mechanism": audit.mechanism,
        "promise": {"epsilon": audit.epsilon, "delta": audit.delta, "by": audit.by},
        "epsilon_lower": audit.bound.epsilon_lower,
        "confidence": audit.confidence,
        "entry": audit.ended,
        "lifted": audit.id in given.lifted,
    }


def own_guarantee(given: Facts) -> Certified:
    """What the release alone costs anybody at most; nothing, if an audit's violation stands against its mechanism."""
    return certificates.alone(
        given.exposures,
        promise=given.promise,
        unit=given.unit,
        adjacency=given.adjacency,
        proof_status="refuted" if given.stands else proof_status(given.body),
    )


def proof_status(body: Mapping[str, Any]) -> ProofStatus:
    """How sure it is that the release costs what its events cost: as sure as the mechanism that it declares.

    Whoever declares events and no mechanism says that those are what happens; of events the engines have proofs. A
    mechanism that this version does not know has only the word of the version that admitted it.
    """
    match body["declared"].get("mechanism"):
        case {"name": name}:
            return CATALOG[name].proof_status if name in CATALOG else "claimed"
        case _:
            return "proved"


def accepted(database: Database, population: str, upto: int) -> list[ProofStatus]:
    """Every status of proof that a policy has accepted so far."""
    with database.transaction() as connection:
        bodies = connection.execute(_POLICIES, {"name": population, "upto": upto}).scalars().all()
    return [status for body in bodies for status in from_canonical(bytes(body))["policy"]["accepts"]]


def _mechanism(body: Mapping[str, Any]) -> dict[str, Any] | None:
    declared = body["declared"].get("mechanism")
    if declared is None:
        return None
    parameters = {name: value for name, value in declared["parameters"].items() if name not in PLACES}
    known = CATALOG.get(declared["name"])
    return {
        "name": declared["name"],
        "title": None if known is None else known.title,
        "parameters": shortened(parameters),
        "withheld": sorted(PLACES & set(declared["parameters"])),
        "paper": None if known is None else known.paper,
        "proof_status": proof_status(body),
        "proof_note": None if known is None else known.proof_note,
    }


def shortened(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document, or the digest of one that is too long to be carried about."""
    spelled = canonical(dict(document))
    if len(spelled) <= _LONGEST:
        return dict(document)
    kind = {"kind": document["kind"]} if isinstance(document.get("kind"), str) else {}
    return {**kind, "sha256": sha256(spelled).hexdigest(), "bytes": len(spelled)}


def _label_space(body: Mapping[str, Any], labels_of: Callable[[str], str | None]) -> dict[str, Any] | None:
    """Where the labels come from, with the digest of their set where one is known; the pipeline's word.

    The digest is that of the release which told them, else the one that is declared, else that of the names: of a set
    that was fixed or released before, since one that was taken from the data would be told by its digest.
    """
    declared = body["declared"]
    match declared.get("label_space"):
        case {"source": str(source), **more}:
            release = more.get("release") if source == "released" else None
            told = labels_of(release) if isinstance(release, str) else None
            found = _DIGEST.fullmatch(str(more.get("digest", "")))
            labels = texts_of(declared, "label_space", "labels") if source in {"prior", "released"} else None
            named = label_digest(labels).removeprefix("sha256:") if labels else None
            return {
                "source": source[:100],
                "release": release[:100] if isinstance(release, str) else None,
                "sha256": told or (named if found is None else found[1]),
            }
        case _:
            return None
