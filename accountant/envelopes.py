"""Signed statements that anybody can check without us: in-toto statements in DSSE envelopes, one spelling each.

A statement says something (its predicate) about things known by their digests (its subjects). Its canonical bytes are
the payload of an envelope, which is itself spelled canonically, so that no byte of it can change without notice. The
predicate carries the public key of its signer: with that alone, an envelope is *consistent*, and who signed is not
known. It is *genuine* if the key is one that the reader trusts already.

Nothing here holds a key or draws anything: the bytes to sign come out, a signature comes in, and whoever checks brings
the function that checks Ed25519. Formats: in-toto Statement v1 (github.com/in-toto/attestation, spec/v1), DSSE v1
(github.com/secure-systems-lab/dsse); docs/evidence.md has them with all checks.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from accountant.canonical import canonical, from_canonical
from accountant.chain import pre_authentication_encoding
from accountant.errors import InvalidDocument, InvalidInput, Refused

Document: TypeAlias = Mapping[str, Any]
#: Whether a signature (second) of a message (third) was made with the secret of a public key (first), by Ed25519.
IsSigned: TypeAlias = Callable[[bytes, bytes, bytes], bool]

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
REPORT_TYPE: Final = "urn:stint:predicate:period-report/v1"
MAX_BYTES: Final = 2**20
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

#: Why an envelope is refused, before anybody asks what its statement is about.
REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "envelope.unreadable": "it is not canonical JSON (RFC 8785), or longer than 1 MiB",
        "envelope.fields": "it has other fields than payload, payloadType and one signature with keyid and sig",
        "envelope.type": f"its payload type is not {PAYLOAD_TYPE}",
        "envelope.encoding": "payload or signature are not base64 in its one spelling",
        "statement.unreadable": "its payload is not canonical JSON",
        "statement.type": f"its payload is not an in-toto statement of type {STATEMENT_TYPE}",
        "statement.predicate_type": "its predicate is of another type than the one that is asked for",
        "statement.subject": "its subjects are not a list of names with digests",
        "signer.key": "its statement names no public key, or another one than the envelope",
        "signature": "its signature is not genuine: something was changed, or somebody else signed",
        "signer.other": "its signature is genuine, and made with a key that is not trusted",
    }
)
#: Why a document that was signed as a whole is refused.
DOCUMENT_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {**REASONS, "document.other": "the document is not the one that was signed: it has another SHA-256"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A statement whose signature is genuine, by whose key, and whether the reader trusts that key."""

    subjects: Sequence[Document]
    predicate: Document
    signer: bytes
    is_trusted: bool


def subject(name: str, *, digest: str, algorithm: str = "sha256") -> dict[str, Any]:
    """A thing that a statement is about, by its digest in hexadecimal digits."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidInput("digest", digest, "64 lower-case hexadecimal digits")
    return {"name": name, "digest": {algorithm: digest}}


def statement(*, subjects: Sequence[Document], predicate_type: str, predicate: Document, signer: bytes) -> bytes:
    """The payload: what is said about the subjects, with the public key of who says it."""
    if not subjects:
        raise InvalidInput("subjects", "none", "at least one: a statement is about something")
    issuer = {"public_key": signer.hex(), "key_id": key_id(signer)}
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [dict(each) for each in subjects],
            "predicateType": predicate_type,
            "predicate": dict(predicate) | {"issuer": issuer},
        }
    )


def key_id(public_key: bytes) -> str:
    """The name of a key: the SHA-256 of its 32 bytes."""
    return sha256(public_key).hexdigest()


def signed_bytes(payload: bytes) -> bytes:
    """What is signed of a statement."""
    return pre_authentication_encoding(PAYLOAD_TYPE, payload)


def envelope(payload: bytes, *, signature: bytes, signer: bytes) -> bytes:
    """The canonical bytes of the envelope."""
    return canonical(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": key_id(signer), "sig": base64.b64encode(signature).decode()}],
        }
    )


def open_envelope(given: bytes, *, predicate_type: str, is_signed: IsSigned, trusted: Collection[bytes] = ()) -> Opened:
    """The statement in an envelope, or `Refused` with the first reason against it.

    A newline at the end is all that may stand beside the canonical bytes, since editors and shells put one there.
    Without `trusted` keys, the one that the statement names is used, and `is_trusted` is false.
    """
    payload, name, signature = _envelope_parts(given.removesuffix(b"\n"))
    document = _read(payload, "statement.unreadable")
    match document:
        case {"_type": str(kind), "subject": subjects, "predicateType": said, "predicate": dict(predicate), **rest} if (
            kind == STATEMENT_TYPE and not rest
        ):
            pass
        case _:
            raise Refused("statement.type", f"It is no statement of type {STATEMENT_TYPE} and nothing else.")
    signer = _signer(predicate, name)
    if not is_signed(signer, signature, signed_bytes(payload)):
        raise Refused("signature", "The signature is not genuine: something was changed, or somebody else signed.")
    if trusted and signer not in trusted:
        raise Refused("signer.other", f"It was signed with the key {signer.hex()}, which is not trusted here.")
    if said != predicate_type:
        raise Refused("statement.predicate_type", f"It is not about {predicate_type}.")
    return Opened(subjects=_subjects(subjects), predicate=predicate, signer=signer, is_trusted=bool(trusted))


def document_statement(document: Document, *, predicate_type: str, about: Document, signer: bytes) -> bytes:
    """The payload of a statement about a whole document, known by the SHA-256 of its canonical bytes."""
    digest = sha256(canonical(dict(document))).hexdigest()
    subjects = [subject("document", digest=digest)]
    return statement(subjects=subjects, predicate_type=predicate_type, predicate=about, signer=signer)


def open_document(
    document: object, given: object, *, predicate_type: str, is_signed: IsSigned, trusted: Collection[bytes] = ()
) -> Opened:
    """What an envelope says of a document, or `Refused`; both may come in any spelling of their JSON."""
    try:
        spelled, digest = canonical(given), sha256(canonical(document)).hexdigest()
    except InvalidDocument as problem:
        raise Refused("envelope.unreadable", f"It cannot be read: expected {problem.expected}.") from None
    opened = open_envelope(spelled, predicate_type=predicate_type, is_signed=is_signed, trusted=trusted)
    if [dict(each) for each in opened.subjects] != [subject("document", digest=digest)]:
        raise Refused("document.other", "The document is not the one that was signed: it has another SHA-256.")
    return opened


def _envelope_parts(given: bytes) -> tuple[bytes, str, bytes]:
    """Payload, name of the key and signature, each from its only spelling."""
    if len(given) > MAX_BYTES:
        raise Refused("envelope.unreadable", f"It has {len(given):,} bytes; at most {MAX_BYTES:,} are read.")
    match _read(given, "envelope.unreadable"):
        case {
            "payload": str(payload),
            "payloadType": str(kind),
            "signatures": [{"keyid": str(name), "sig": str(signature), **more}],
            **rest,
        } if not rest and not more:
            if kind != PAYLOAD_TYPE:
                raise Refused("envelope.type", f"The type of its payload is not {PAYLOAD_TYPE}.")
            return _decoded(payload, "payload"), name, _decoded(signature, "signature")
        case _:
            wanted = "payload, payloadType and signatures with one keyid and sig, and nothing else"
            raise Refused("envelope.fields", f"An envelope has {wanted}.")


def _read(given: bytes, code: str) -> Any:
    try:
        return from_canonical(given)
    except InvalidDocument as problem:
        raise Refused(code, f"It cannot be read: expected {problem.expected}.") from None


def _decoded(text: str, what: str) -> bytes:
    """Base64, refused in all spellings but one: the last digit before the padding has bits that nobody reads."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found or base64.b64encode(found).decode() != text:
        raise Refused("envelope.encoding", f"Its {what} is not base64 in its one spelling.")
    return found


def _signer(predicate: Document, name: str) -> bytes:
    match predicate.get("issuer"):
        case {"public_key": str(written), "key_id": str(named), **rest} if not rest and _DIGEST.fullmatch(written):
            key = bytes.fromhex(written)
            if named == name == key_id(key):
                return key
    raise Refused("signer.key", "Statement and envelope do not name one and the same public key.")


def _subjects(given: object) -> list[dict[str, Any]]:
    if isinstance(given, list) and given:
        for each in given:
            match each:
                case {"name": str(), "digest": dict(digest), **rest} if not rest and len(digest) == 1:
                    if not all(isinstance(value, str) and _DIGEST.fullmatch(value) for value in digest.values()):
                        break
                case _:
                    break
        else:
            return given
    raise Refused("statement.subject", "Its subjects are not names with one digest of 64 digits each.")
