"""Certificates: what is promised of one release, signed, with proof that the ledger has it. Checked offline.

A certificate is an in-toto statement (`accountant.envelopes`) about an artifact. Its predicate, `dp-release/v1`, says
what the release alone costs anybody at most, what is promised for life, by which mechanism and events, what was found
against it and what was looked at to find that, and where the ledger has it: the entries of its hold and of its end
under a head, the head under a checkpoint that the same key signed. It says how many datapoints were charged, and never
which.

`verify` takes bytes and keys and returns a verdict with named reasons; it raises nothing whatever the bytes are. It
shows that the signer said this and that the ledger has these entries. It does not show that what was declared is what
was run (docs/evidence.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from accountant import chain, envelopes
from accountant.audit.standing import Looked
from accountant.chain import Head, HeadProof
from accountant.envelopes import Document, IsSigned, Opened
from accountant.errors import AccountantError, Refused
from accountant.events import Adjacency, Composed, Event, counted
from accountant.filters import Cost, Filter
from accountant.guarantees import Guarantee, ProofStatus, Unit, rounded_up
from accountant.merkle import leaf_hash, verify_inclusion
from accountant.sealed import collapse

PREDICATE_TYPE: Final = "urn:stint:predicate:dp-release/v1"
#: How a subject names an entry of the ledger, where there is no artifact to name: its hash, as docs/ledger.md has it.
ENTRY_ALGORITHM: Final = "stint.entry.v1"
ALONE: Final = "this release alone, for any one {unit} of the population"
LIFELONG: Final = "everything ever released about any one {unit} of the population"
#: On what a guarantee rests that no proof can show.
DECLARED: Final = "it was run as it was declared"
ACCEPTED: Final = (
    "every release is run as it was declared, and no policy accepts a mechanism that is less than {status}"
)
Outcome: TypeAlias = Literal["genuine", "consistent", "broken"]

# Beyond these an event is charged by its curve, and the ε of that is what is certified.
MAX_LEAVES: Final = 100_000
MAX_KINDS: Final = 20
MAX_TOUCHES: Final = 16
_DIGITS: Final = 7
_MAX_STEPS: Final = 64  # of a Merkle path
_HASH: Final = re.compile(r"[0-9a-f]{64}")

#: Every reason for which a certificate is refused; docs/evidence.md lists them.
REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **envelopes.REASONS,
        "predicate.fields": "a part of dp-release/v1 is missing, or has a form that it never has",
        "guarantee": "an ε is not a number that may be promised: no upper bound, or not proved",
        "guarantee.words": "the words of a guarantee, or an ε that is only claimed, do not go with its numbers",
        "checkpoint.unreadable": "the checkpoint cannot be read",
        "checkpoint.signature": "the checkpoint was not signed by the signer of the certificate",
        "ledger.head": "the head of the population is not under the checkpoint",
        "ledger.entry": "an entry of the release is not under the head of its population",
        "artifact.subject": "the subjects do not have the digests that the predicate names",
        "artifact.none": "a file was given, and the certificate is of a release without an artifact",
        "artifact.other": "the file that was given is not the artifact: it has another SHA-256",
    }
)


# ---------------------------------------------------------------- what is certified


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What one release does to whoever is in certain of its scopes: their events together, and what that costs."""

    event: Composed
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """A guarantee with what proved it."""

    guarantee: Guarantee
    engine: str
    engine_version: str
    of: str
    condition: str

    def to_json(self) -> dict[str, Any]:
        """As a predicate holds it. What is not proved is no upper bound, and stands under another name."""
        given = self.guarantee
        proved = given.proof_status == "proved"
        epsilon = given.epsilon if math.isfinite(given.epsilon) else None
        return {
            "of": self.of,
            "condition": self.condition,
            "bound": "upper" if proved else "none",
            "epsilon_upper": epsilon if proved else None,
            "epsilon_claimed": None if proved else epsilon,
            "delta": given.delta,
            "unit": given.unit,
            "adjacency": given.adjacency,
            "proof_status": given.proof_status,
            "engine": self.engine,
            "engine_version": self.engine_version,
            "text": in_words(given),
        }


def in_words(guarantee: Guarantee) -> str:
    """A guarantee as a certificate spells it: part of the format, so that a reader of words reads the numbers."""
    if guarantee.proof_status == "proved":
        return str(guarantee)
    return f"No bound is proved: the mechanism is {guarantee.proof_status}"


def told(guarantee: Guarantee) -> str:
    """A guarantee in words that need no format: for documents that nobody compares with their numbers."""
    return guarantee.in_words() if guarantee.proof_status == "proved" else in_words(guarantee)


def alone(
    exposures: Iterable[Exposure], *, promise: Filter, unit: Unit, adjacency: Adjacency, proof_status: ProofStatus
) -> Certified:
    """What this release alone costs anybody at most, at the δ of the promise.

    Whoever is in several scopes is exposed to the composition of their events, so the worst of the exposures bounds
    everybody. For each there are two proofs, and the smaller ε counts: an engine's bound on the composed event, and the
    reading of the filter for what was charged (T4 of docs/accounting.md with a life of one release), which always
    exists. Both round up.
    """
    found = list(exposures)
    bounds = [_bound(each, promise, adjacency, by_engine=len(found) <= MAX_TOUCHES) for each in found]
    epsilon, engine, version = max(bounds)
    guarantee = Guarantee(
        epsilon=epsilon, delta=promise.delta, unit=unit, adjacency=adjacency, proof_status=proof_status
    )
    return Certified(
        guarantee=guarantee, engine=engine, engine_version=version, of=ALONE.format(unit=unit), condition=DECLARED
    )


def _bound(exposure: Exposure, promise: Filter, adjacency: Adjacency, *, by_engine: bool) -> tuple[float, str, str]:
    reading = promise.meter(exposure.cost)
    bounds = [(float(rounded_up(reading, digits=_DIGITS)) if math.isfinite(reading) else reading, "filter", "1")]
    event = exposure.event
    if by_engine and promise.delta > 0 and event.shape.leaves <= MAX_LEAVES and len(counted(event)) <= MAX_KINDS:
        proved = collapse(event, delta=promise.delta, adjacency=adjacency)
        if proved is not None:
            bounds.append((proved.epsilon, proved.engine, proved.version))
    return min(bounds)


def exposure(events: Sequence[Event], cost: Cost) -> Exposure:
    """The exposure of whoever is in the scopes of these events, and was charged so much for it."""
    return Exposure(event=Composed(events=tuple(events)), cost=cost)


def lifelong(*, promise: Filter, unit: Unit, adjacency: Adjacency, accepted: Collection[ProofStatus]) -> Certified:
    """What is promised for life: the budget of the filter, as sure as the least sure mechanism that was accepted.

    The theorem of the filter holds if every release costs what it was charged; `accepted` are the statuses of proof
    that policies of the population have accepted so far.
    """
    order: tuple[ProofStatus, ...] = ("refuted", "claimed", "proved")
    guarantee = Guarantee(
        epsilon=promise.epsilon,
        delta=promise.delta,
        unit=unit,
        adjacency=adjacency,
        proof_status=next(status for status in order if status in accepted),
    )
    return Certified(
        guarantee=guarantee,
        engine="filter",
        engine_version="1",
        of=LIFELONG.format(unit=unit),
        condition=ACCEPTED.format(status=guarantee.proof_status),
    )


def payload(*, predicate: Document, signer: bytes) -> bytes:
    """The bytes to sign: a statement about the artifact and its label set, or about the ledger's entry without one."""
    return envelopes.statement(
        subjects=subjects(predicate), predicate_type=PREDICATE_TYPE, predicate=predicate, signer=signer
    )


def subjects(predicate: Document) -> list[dict[str, Any]]:
    """What a predicate is about."""
    found = []
    if (artifact := predicate["artifact"]) is not None:
        found.append(envelopes.subject("artifact", digest=artifact["sha256"]))
    if (labels := predicate["label_space"]) is not None and labels["sha256"] is not None:
        found.append(envelopes.subject("label-set", digest=labels["sha256"]))
    if artifact is None:
        entry = predicate["ledger"]["entries"][-1]
        found.insert(0, envelopes.subject(predicate["release"]["id"], digest=entry["hash"], algorithm=ENTRY_ALGORITHM))
    return found


# ---------------------------------------------------------------- verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a certificate is refused: a stable code of `REASONS`, and a sentence with what was found."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of checking a certificate: genuine, consistent with an unknown signer, or broken for named reasons."""

    reasons: tuple[Reason, ...]
    signer: bytes | None
    is_trusted: bool
    predicate: Document | None

    @property
    def outcome(self) -> Outcome:
        """One word for all of it; only `genuine` may be relied on."""
        if self.reasons:
            return "broken"
        return "genuine" if self.is_trusted else "consistent"

    def to_json(self) -> dict[str, Any]:
        """The verdict, with what the certificate says if it is not broken."""
        said = None if self.predicate is None else {
            name: self.predicate[name] for name in ("release", "guarantee", "artifact", "label_space", "findings")
        } | {"audit": looked(self.predicate).to_json(), "violations": self.predicate.get("violations", [])}  # fmt: skip
        return {
            "outcome": self.outcome,
            "text": _IN_WORDS[self.outcome],
            "reasons": [{"code": each.code, "message": each.message} for each in self.reasons],
            "signer": None if self.signer is None else self.signer.hex(),
            "certificate": said,
        }


def looked(predicate: Document) -> Looked:
    """What a certificate says was looked at; those of older versions say nothing of it."""
    if "audit" not in predicate:
        return Looked(made=None)
    if (audit := predicate["audit"]) is None:
        return Looked(made=False)
    return Looked(
        made=True,
        entry=audit["entry"]["number"],
        checked=tuple(audit["checked"]),
        reported=tuple(audit["reported"]),
        opened_by=audit["opened_by"],
    )


_IN_WORDS: Final[Mapping[Outcome, str]] = MappingProxyType(
    {
        "genuine": "Genuine: signed with a key that is trusted here, and nothing was changed.",
        "consistent": "Consistent, signer unknown: nothing was changed since it was signed, but no key was trusted.",
        "broken": "Broken: it proves nothing.",
    }
)


def verify(
    given: bytes, *, is_signed: IsSigned, trusted: Collection[bytes] = (), artifact_sha256: str | None = None
) -> Verdict:
    """Check a certificate from its bytes alone. Whatever the bytes are, the answer is a verdict and no exception.

    `trusted` are the public keys that the reader trusts, however they came to be trusted; without any, the best that
    can be said is *consistent*. `artifact_sha256` is the digest of the file that the certificate came with.
    """
    try:
        opened = envelopes.open_envelope(given, predicate_type=PREDICATE_TYPE, is_signed=is_signed, trusted=trusted)
        _check_predicate(opened.predicate)
        _check_ledger(opened, is_signed)
        _check_artifact(opened, artifact_sha256)
    except Refused as refusal:
        reason = Reason(code=refusal.code, message=refusal.message)
        return Verdict(reasons=(reason,), signer=None, is_trusted=False, predicate=None)
    return Verdict(reasons=(), signer=opened.signer, is_trusted=opened.is_trusted, predicate=opened.predicate)


def _check_predicate(predicate: Document) -> None:
    match predicate:
        case {
            "release": {"id": str(), "population": str(), "kind": str(), "status": "committed" | "expired"},
            "guarantee": {"release": dict(release), "lifelong": dict(life)},
            "mechanism": None | {"name": str(), "parameters": dict()},
            "charges": [{"event": dict(), "datapoints": int()}, *_],
            "policy": {"version": int()},
            "findings": list(findings),
            "artifact": None | {"sha256": str()},
            "label_space": None | {"source": str(), "sha256": None | str()},
            "ledger": dict(),
        } if all(map(_is_finding, findings)):
            pass
        case _:
            raise Refused("predicate.fields", "A part of dp-release/v1 is missing, or has a form that it never has.")
    violations = predicate.get("violations", [])
    if not isinstance(violations, list) or not all(map(_is_violation, violations)):
        raise Refused("predicate.fields", "Its part `violations` has a form that it never has.")
    _check_audit(predicate)
    for name, given in (("release", release), ("lifelong", life)):
        _check_guarantee(name, given)


def _is_finding(given: object) -> bool:
    match given:
        case {"code": str(), "basis": str(), "severity": str()}:
            return True
        case _:
            return False


def _is_violation(given: object) -> bool:
    match given:
        case {"audit": str(), "lifted": bool()}:
            return True
        case _:
            return False


def _check_audit(predicate: Document) -> None:
    """What was looked at is said in one way, and nobody opened an artifact that is not there."""
    match predicate.get("audit"):
        case None:
            return
        case {
            "entry": {"kind": "release.audited" | "release.committed", "number": int()},
            "checked": list(checked),
            "reported": list(reported),
            "artifact_opened": bool(opened),
            "opened_by": None | "worker" | "service" | "client" as by,
        } if (
            all(isinstance(code, str) for code in (*checked, *reported))
            and opened is (by is not None)
            and not (opened and predicate["artifact"] is None)
        ):
            return
        case _:
            raise Refused("predicate.fields", "Its part `audit` is missing something, or has a form that it never has.")


def _check_guarantee(name: str, given: Document) -> None:
    """A number under `epsilon_upper` is one that may be promised, and it says of what."""
    match given:
        case {"proof_status": "proved", "bound": "upper", "epsilon_upper": int() | float() as epsilon}:
            fine = type(epsilon) is not bool and epsilon >= 0
        case {"proof_status": "claimed" | "refuted", "bound": "none", "epsilon_upper": None}:
            epsilon, fine = math.inf, True
        case _:
            epsilon, fine = math.inf, False
    match given:
        case {
            "of": str(),
            "condition": str(),
            "engine": str(),
            "engine_version": str(),
            "delta": int() | float() as delta,
            "unit": "record" | "user" as unit,
            "adjacency": "add_remove" | "replace_one" as adjacency,
            "proof_status": proof_status,
        } if fine and type(delta) is not bool and 0 <= delta < 1:
            pass
        case _:
            raise Refused(
                "guarantee", f"The guarantee of the {name} is no upper bound that is proved, with all that it needs."
            )
    numbers = Guarantee(
        epsilon=float(epsilon), delta=float(delta), unit=unit, adjacency=adjacency, proof_status=proof_status
    )
    of, condition = (ALONE, DECLARED) if name == "release" else (LIFELONG, ACCEPTED)
    words = (in_words(numbers), of.format(unit=unit), condition.format(status=proof_status))
    if (given.get("text"), given["of"], given["condition"]) != words:
        raise Refused("guarantee.words", f"The words of the guarantee of the {name} are not those of its numbers.")
    claimed = given.get("epsilon_claimed")
    if claimed is not None and (
        proof_status == "proved" or type(claimed) not in {int, float} or not 0 <= claimed < math.inf
    ):
        raise Refused(
            "guarantee.words", f"The guarantee of the {name} claims an ε beside what it proves, or no number."
        )


def _check_ledger(opened: Opened, is_signed: IsSigned) -> None:
    """The entries are under the head, the head under the checkpoint, the checkpoint under the signer's key."""
    predicate = opened.predicate
    match predicate["ledger"]:
        case {
            "entries": [{"kind": "release.held"}, {"kind": "release.committed" | "release.expired"}, *more] as entries,
            "head": {"population": str(), "number": int(), "hash": str(), "root": str()} as head,
            "head_index": int(index),
            "head_path": list(path),
            "checkpoint": {"payload_type": chain.CHECKPOINT_TYPE, "payload": str(text), "signature": str(signature)},
        } if all(isinstance(each, dict) and each.get("kind") == "artifact.attached" for each in more):
            pass
        case _:
            raise Refused(
                "predicate.fields", "Its part `ledger` is missing something, or has a form that it never has."
            )
    if entries[1]["kind"].removeprefix("release.") != predicate["release"]["status"]:
        raise Refused("predicate.fields", "Its status is not that of the entry which ended its hold.")
    try:
        seen = chain.checkpoint_from_payload(text.encode())
    except (AccountantError, UnicodeEncodeError):
        raise Refused("checkpoint.unreadable", "The checkpoint cannot be read.") from None
    signed = chain.pre_authentication_encoding(chain.CHECKPOINT_TYPE, text.encode())
    if not is_signed(opened.signer, _hex(signature, 2 * envelopes.SIGNATURE_BYTES), signed):
        raise Refused("checkpoint.signature", "The checkpoint was not signed by the signer of the certificate.")
    try:
        under = Head(
            population=head["population"],
            number=head["number"],
            hash=_hex(head["hash"]),
            root=_hex(head["root"]),
        )
        chain.verify_head(seen, under, HeadProof(index=index, path=_path(path)))
    except AccountantError as problem:
        raise Refused("ledger.head", f"The head of the population is not under the checkpoint ({problem}).") from None
    if under.population != predicate["release"]["population"]:
        raise Refused("ledger.head", "The head is that of another population than the release's.")
    numbers = [_check_entry(each, under) for each in entries]
    if numbers != sorted(set(numbers)):
        raise Refused("ledger.entry", "The entries of the release do not follow one another.")
    if (audit := predicate.get("audit")) is not None:
        place = _check_entry(audit["entry"], under)
        if place <= numbers[0] or (audit["entry"]["kind"] == "release.committed" and place != numbers[1]):
            raise Refused("ledger.entry", "The entry of its audit is not one of this release.")


def _check_entry(entry: Document, head: Head) -> int:
    match entry:
        case {"number": int(number), "hash": str(digest), "path": list(path)}:
            try:
                verify_inclusion(
                    root=head.root,
                    size=head.number,
                    index=number - 1,
                    leaf=leaf_hash(_hex(digest)),
                    proof=_path(path),
                )
            except AccountantError as problem:
                raise Refused("ledger.entry", f"Entry {number} is not under the head ({problem}).") from None
            return number
    raise Refused("predicate.fields", "An entry has no number, hash or path.")


def _path(steps: Sequence[object]) -> tuple[bytes, ...]:
    if len(steps) > _MAX_STEPS:
        raise Refused("predicate.fields", f"A path has {len(steps)} hashes, where no tree is so deep.")
    return tuple(_hex(step) for step in steps)


def _hex(text: object, digits: int = 64) -> bytes:
    """Bytes from lower-case hexadecimal digits, of which each has one spelling."""
    if isinstance(text, str) and len(text) == digits and re.fullmatch(r"[0-9a-f]+", text):
        return bytes.fromhex(text)
    raise Refused("predicate.fields", f"Where {digits} lower-case hexadecimal digits belong, there is something else.")


def _check_artifact(opened: Opened, given: str | None) -> None:
    predicate = opened.predicate
    for part in (predicate["artifact"], predicate["label_space"]):
        if part is not None and part["sha256"] is not None and not _HASH.fullmatch(part["sha256"]):
            raise Refused("predicate.fields", "A digest is not 64 lower-case hexadecimal digits.")
    if list(opened.subjects) != subjects(predicate):
        raise Refused("artifact.subject", "The subjects are not what the predicate is about.")
    if given is None:
        return
    if predicate["artifact"] is None:
        raise Refused("artifact.none", "A file was given, but nothing is known of what left with this release.")
    if predicate["artifact"]["sha256"] != given:
        raise Refused(
            "artifact.other", f"The file has SHA-256 {given}, the artifact {predicate['artifact']['sha256']}."
        )
