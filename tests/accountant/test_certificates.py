"""Certificates: what is certified is proved, and whatever is changed in one is refused for a named reason."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from accountant import certificates, chain, envelopes
from accountant.canonical import canonical
from accountant.certificates import REASONS, alone, exposure, lifelong, verify
from accountant.engines import account
from accountant.errors import InvalidInput, Refused
from accountant.events import Composed, Gaussian, PureDP, Repeated
from accountant.filters import Filter
from accountant.merkle import inclusion_proof, leaf_hash

STORED = Path(__file__).parent / "certificate-v1.json"
OURS = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
THEIRS = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
ARTIFACT, LABELS = "ab" * 32, "cd" * 32


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def predicate_of(signer: Ed25519PrivateKey = OURS) -> dict[str, Any]:
    """A release in a ledger of its own, with everything that a certificate says of it."""
    log = chain.begin("clinic-a")
    links = []
    for number in range(7):
        log = log.append(canonical({"kind": "entry", "number": number}))
        links.append(log.link)
    heads = [log.head, chain.begin("clinic-b").append(canonical({"kind": "other"})).head]
    seen = chain.checkpoint(heads, at="2026-11-18T00:00:00.000000Z")
    place = chain.prove_head(heads, population="clinic-a")
    leaves = [leaf_hash(link.hash) for link in links]
    entries = [
        {
            "kind": kind,
            "number": number,
            "at": "2026-11-17T00:00:00.000000Z",
            "hash": links[number - 1].hash.hex(),
            "path": [step.hex() for step in inclusion_proof(leaves, index=number - 1)],
        }
        for number, kind in ((4, "release.held"), (5, "release.committed"), (7, "artifact.attached"))
    ]
    promise = Filter.of(epsilon=3.0, delta=1e-6)
    event = Gaussian(noise_multiplier=4.0)
    own = alone(
        [exposure([event], promise.price(event, "add_remove"))],
        promise=promise,
        unit="user",
        adjacency="add_remove",
        proof_status="proved",
    )
    life = lifelong(promise=promise, unit="user", adjacency="add_remove", accepted=["proved"])
    return {
        "release": {"id": "rel_1", "population": "clinic-a", "kind": "weights", "status": "committed"},
        "guarantee": {"release": own.to_json(), "lifelong": life.to_json()},
        "mechanism": {"name": "noisy-sum", "parameters": {"noise_multiplier": 4.0}},
        "charges": [{"event": {"kind": "gaussian", "noise_multiplier": 4.0}, "datapoints": 50}],
        "policy": {"version": 1},
        "artifact": {"sha256": ARTIFACT},
        "label_space": {"source": "prior", "sha256": LABELS},
        "findings": [],
        "ledger": {
            "entries": entries,
            "head": {
                "population": "clinic-a",
                "number": log.head.number,
                "hash": log.head.hash.hex(),
                "root": log.head.root.hex(),
            },
            "head_index": place.index,
            "head_path": [step.hex() for step in place.path],
            "checkpoint": {
                "payload_type": chain.CHECKPOINT_TYPE,
                "payload": seen.payload.decode(),
                "signature": signer.sign(seen.signed_bytes).hex(),
            },
        },
    }


def signed(payload: bytes, key: Ed25519PrivateKey = OURS) -> bytes:
    signature = key.sign(envelopes.signed_bytes(payload))
    return envelopes.envelope(payload, signature=signature, signer=public(key))


def certificate(change: Callable[[dict[str, Any]], object] = lambda _: None, key: Ed25519PrivateKey = OURS) -> bytes:
    """A certificate whose predicate was changed before it was signed."""
    document = predicate_of(key)
    change(document)
    return signed(certificates.payload(predicate=document, signer=public(key)), key)


def statement_with(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A certificate whose whole statement was changed before it was signed."""
    document = json.loads(certificates.payload(predicate=predicate_of(), signer=public(OURS)))
    change(document)
    return signed(canonical(document))


def envelope_with(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(GENUINE)
    change(document)
    return canonical(document)


def code_of(content: bytes, **more: Any) -> str:
    """The one reason for which it is refused, or how else it stands."""
    verdict = verify(content, is_signed=is_signed, **{"trusted": [public(OURS)], **more})
    assert len(verdict.reasons) <= 1
    assert (verdict.outcome == "broken") is bool(verdict.reasons)
    if verdict.reasons:
        assert verdict.predicate is None
        assert verdict.to_json()["certificate"] is None
        assert verdict.reasons[0].message
        return verdict.reasons[0].code
    return verdict.outcome


GENUINE = certificate()


# ---------------------------------------------------------------- genuine, consistent, somebody else's


def test_a_certificate_is_genuine_under_a_trusted_key_and_consistent_without_one() -> None:
    assert code_of(GENUINE) == "genuine"
    assert code_of(GENUINE + b"\n") == "genuine"
    assert code_of(GENUINE, trusted=[public(THEIRS), public(OURS)], artifact_sha256=ARTIFACT) == "genuine"
    unknown = verify(GENUINE, is_signed=is_signed)
    assert (unknown.outcome, unknown.is_trusted, unknown.signer) == ("consistent", False, public(OURS))
    assert "signer unknown" in unknown.to_json()["text"]
    assert code_of(certificate(key=THEIRS), trusted=()) == "consistent"
    assert code_of(certificate(key=THEIRS)) == "signer.other"


def test_a_certificate_of_the_first_version_verifies_for_ever() -> None:
    stored = STORED.read_bytes()
    assert code_of(stored, artifact_sha256=ARTIFACT) == "genuine"
    assert stored == GENUINE + b"\n"  # and is what this version writes


def test_without_an_artifact_the_entry_is_the_subject() -> None:
    def expired(document: dict[str, Any]) -> None:
        document["artifact"], document["label_space"] = None, None
        document["release"]["status"] = "expired"
        document["ledger"]["entries"][1]["kind"] = "release.expired"
        del document["ledger"]["entries"][2]

    content = certificate(expired)
    assert code_of(content) == "genuine"
    assert code_of(content, artifact_sha256=ARTIFACT) == "artifact.none"
    [subject] = json.loads(base64.b64decode(json.loads(content)["payload"]))["subject"]
    assert set(subject["digest"]) == {certificates.ENTRY_ALGORITHM}


# ---------------------------------------------------------------- what was looked at


def audited(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """A predicate whose entry 6 is an audit that opened the artifact."""

    def change(document: dict[str, Any]) -> None:
        log = chain.begin("clinic-a")
        links = []
        for number in range(7):
            log = log.append(canonical({"kind": "entry", "number": number}))
            links.append(log.link)
        path = inclusion_proof([leaf_hash(link.hash) for link in links], index=5)
        entry = {
            "kind": "release.audited",
            "number": 6,
            "at": "2026-11-17T00:00:00.000000Z",
            "hash": links[5].hash.hex(),
            "path": [step.hex() for step in path],
        }
        document["audit"] = {
            "entry": entry | changes.pop("entry", {}),
            "checked": ["state.raw", "artifact.batch_norm"],
            "reported": [],
            "artifact_opened": True,
            "opened_by": "service",
        } | changes

    return change


def said_of(content: bytes) -> Any:
    return verify(content, is_signed=is_signed, trusted=[public(OURS)]).to_json()["certificate"]["audit"]


def test_it_says_what_was_looked_at_and_old_certificates_do_not_state_it() -> None:
    assert said_of(STORED.read_bytes())["text"] == "Not stated: nothing says whether anybody looked."
    nobody = said_of(certificate(lambda document: document.update(audit=None)))
    assert (nobody["made"], nobody["artifact_opened"]) == (False, False)
    assert nobody["text"].startswith("Not audited: no file was opened; only what was declared was checked.")
    seen = said_of(certificate(audited()))
    assert (seen["made"], seen["entry"], seen["opened_by"], len(seen["checked"])) == (True, 6, "service", 2)
    unopened = said_of(certificate(audited(artifact_opened=False, opened_by=None)))
    assert unopened["text"].endswith("Nobody opened the artifact.")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"artifact_opened": False}, "predicate.fields"),
        ({"opened_by": None}, "predicate.fields"),
        ({"opened_by": "somebody"}, "predicate.fields"),
        ({"checked": [1]}, "predicate.fields"),
        ({"reported": None}, "predicate.fields"),
        ({"entry": {"kind": "release.voided"}}, "predicate.fields"),
        ({"entry": {"hash": "00" * 32}}, "ledger.entry"),
        ({"entry": {"kind": "release.committed"}}, "ledger.entry"),
    ],
)
def test_what_was_looked_at_has_one_form_and_an_entry_in_the_ledger(changes: dict[str, Any], code: str) -> None:
    assert code_of(certificate(audited(**changes))) == code


def test_nobody_opened_an_artifact_that_is_not_there() -> None:
    def change(document: dict[str, Any]) -> None:
        audited()(document)
        document["artifact"] = None

    assert code_of(certificate(change)) == "predicate.fields"


# ---------------------------------------------------------------- every reason


def _spelled_otherwise(text: str) -> str:
    """Another base64 text of the same bytes: bits beside the padding that a lenient reader skips."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    body = text.rstrip("=")
    last = alphabet[alphabet.index(body[-1]) | 1]
    changed = body[:-1] + last + "=" * (len(text) - len(body))
    assert changed != text
    assert base64.b64decode(changed) == base64.b64decode(text)
    return changed


def _swapped(document: dict[str, Any]) -> None:
    entries = document["ledger"]["entries"]
    for name in ("number", "hash", "path"):
        entries[0][name], entries[1][name] = entries[1][name], entries[0][name]


def _of_another_population(document: dict[str, Any]) -> None:
    document["release"]["population"] = "clinic-b"


def _refuted(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """A release of a mechanism that is refuted, with its guarantee changed."""
    promise = Filter.of(epsilon=3.0, delta=1e-6)
    event = Gaussian(noise_multiplier=4.0)
    own = alone(
        [exposure([event], promise.price(event, "add_remove"))],
        promise=promise,
        unit="user",
        adjacency="add_remove",
        proof_status="refuted",
    )
    return lambda document: document["guarantee"].update(release=own.to_json() | changes)


BROKEN: list[tuple[str, bytes, dict[str, Any]]] = [
    ("envelope.unreadable", b"", {}),
    ("envelope.unreadable", b"[" * 100_000, {}),
    ("envelope.unreadable", b"9" * 5000, {}),
    ("envelope.unreadable", GENUINE + b" ", {}),
    ("envelope.unreadable", json.dumps(json.loads(GENUINE), indent=1).encode(), {}),
    ("envelope.unreadable", b"x" * (envelopes.MAX_BYTES + 1), {}),
    ("envelope.fields", b"null", {}),
    ("envelope.fields", envelope_with(lambda d: d.update(more=1)), {}),
    ("envelope.fields", envelope_with(lambda d: d["signatures"].append(d["signatures"][0])), {}),
    ("envelope.fields", envelope_with(lambda d: d["signatures"][0].update(cert="x")), {}),
    ("envelope.type", envelope_with(lambda d: d.update(payloadType="application/json")), {}),
    ("envelope.encoding", envelope_with(lambda d: d.update(payload="ä")), {}),
    (
        "envelope.encoding",
        envelope_with(lambda d: d["signatures"][0].update(sig=_spelled_otherwise(d["signatures"][0]["sig"]))),
        {},
    ),
    ("statement.unreadable", signed(b'{"a" :1}'), {}),
    ("statement.type", signed(b"[]"), {}),
    ("statement.type", statement_with(lambda d: d.update(_type="https://in-toto.io/Statement/v0.1")), {}),
    ("statement.type", statement_with(lambda d: d.update(more=1)), {}),
    ("statement.predicate_type", statement_with(lambda d: d.update(predicateType="urn:other")), {}),
    ("statement.subject", statement_with(lambda d: d.update(subject=[])), {}),
    ("statement.subject", statement_with(lambda d: d["subject"][0]["digest"].update(sha256="AB" * 32)), {}),
    ("signer.key", statement_with(lambda d: d["predicate"].pop("issuer")), {}),
    ("signer.key", statement_with(lambda d: d["predicate"]["issuer"].update(public_key="00" * 32)), {}),
    ("signer.key", envelope_with(lambda d: d["signatures"][0].update(keyid="00" * 32)), {}),
    ("signature", envelope_with(lambda d: d["signatures"][0].update(sig=base64.b64encode(b"x").decode())), {}),
    ("signature", envelope_with(lambda d: d["signatures"][0].update(sig=base64.b64encode(b"x" * 64).decode())), {}),
    ("signer.other", certificate(key=THEIRS), {}),
    ("predicate.fields", statement_with(lambda d: d["predicate"].pop("findings")), {}),
    ("predicate.fields", certificate(lambda d: d.update(findings=[1])), {}),
    ("predicate.fields", certificate(lambda d: d.update(findings=[{"code": "state.raw"}])), {}),
    ("predicate.fields", certificate(lambda d: d.update(violations={})), {}),
    ("predicate.fields", certificate(lambda d: d.update(violations=[{"audit": "aud_1"}])), {}),
    ("predicate.fields", certificate(lambda d: d["release"].update(status="held")), {}),
    ("predicate.fields", certificate(lambda d: d["release"].update(status="expired")), {}),
    ("predicate.fields", certificate(lambda d: d["ledger"]["head"].pop("root")), {}),
    ("predicate.fields", certificate(lambda d: d["ledger"]["entries"][0].pop("path")), {}),
    ("predicate.fields", certificate(lambda d: d["ledger"]["checkpoint"].update(signature="ff")), {}),
    ("guarantee", certificate(lambda d: d["guarantee"]["release"].update(bound="lower")), {}),
    ("guarantee", certificate(lambda d: d["guarantee"]["release"].update(epsilon_upper=None)), {}),
    ("guarantee", certificate(lambda d: d["guarantee"]["release"].update(epsilon_upper=-1)), {}),
    ("guarantee", certificate(lambda d: d["guarantee"]["release"].update(epsilon_upper=True)), {}),
    ("guarantee", certificate(lambda d: d["guarantee"]["release"].update(proof_status="refuted")), {}),
    ("guarantee", certificate(lambda d: d["guarantee"]["lifelong"].update(delta=1)), {}),
    ("guarantee", certificate(lambda d: d["guarantee"]["lifelong"].pop("unit")), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["release"].update(epsilon_upper=0.5)), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["release"].update(delta=1e-7)), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["lifelong"].update(epsilon_upper=2.98)), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["lifelong"].update(text="ε ≤ 0.01")), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["lifelong"].pop("text")), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["release"].update(of="everything")), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["release"].update(condition="none at all")), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["release"].update(unit="record")), {}),
    ("guarantee.words", certificate(lambda d: d["guarantee"]["release"].update(epsilon_claimed=0.01)), {}),
    ("guarantee.words", certificate(_refuted(epsilon_claimed="0.01")), {}),
    ("guarantee.words", certificate(_refuted(epsilon_claimed=-1)), {}),
    ("guarantee.words", certificate(_refuted(text="ε ≤ 0.01")), {}),
    ("checkpoint.unreadable", certificate(lambda d: d["ledger"]["checkpoint"].update(payload="{}")), {}),
    ("checkpoint.signature", certificate(lambda d: d["ledger"]["checkpoint"].update(signature="00" * 64)), {}),
    ("ledger.head", certificate(lambda d: d["ledger"].update(head_index=1)), {}),
    ("ledger.head", certificate(lambda d: d["ledger"]["head"].update(number=8)), {}),
    ("ledger.head", certificate(_of_another_population), {}),
    ("ledger.entry", certificate(lambda d: d["ledger"]["entries"][0].update(number=3)), {}),
    ("ledger.entry", certificate(lambda d: d["ledger"]["entries"][0].update(hash="00" * 32)), {}),
    ("ledger.entry", certificate(_swapped), {}),
    ("artifact.subject", statement_with(lambda d: d["subject"].pop()), {}),
    ("artifact.subject", statement_with(lambda d: d["predicate"]["artifact"].update(sha256="00" * 32)), {}),
    ("artifact.other", GENUINE, {"artifact_sha256": LABELS}),
    (
        "artifact.none",
        certificate(lambda d: d.update(artifact=None)),
        {"artifact_sha256": ARTIFACT},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("code", "content", "more"), BROKEN, ids=[f"{n}-{row[0]}" for n, row in enumerate(BROKEN)])
def test_what_is_wrong_is_named(code: str, content: bytes, more: dict[str, Any]) -> None:
    assert code_of(content, **more) == code


def test_what_is_refuted_is_certified_without_a_number() -> None:
    assert code_of(certificate(_refuted())) == "genuine"
    assert code_of(certificate(_refuted(epsilon_claimed=None))) == "genuine"  # its ε is not finite


def test_every_reason_is_reached() -> None:
    assert {row[0] for row in BROKEN} == set(REASONS)


# ---------------------------------------------------------------- one flipped bit, anywhere


def _flips(content: bytes, bits: Callable[[int], Iterator[int]]) -> Iterator[bytes]:
    for place in range(len(content)):
        for bit in bits(place):
            yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


@pytest.mark.parametrize("trusted", [[public(OURS)], []], ids=["a trusted key", "no key"])
def test_one_flipped_bit_in_any_byte_fails_with_a_named_reason(trusted: list[bytes]) -> None:
    content = GENUINE + b"\n"
    for changed in _flips(content, lambda place: iter((place * 5 % 8,))):
        assert code_of(changed, trusted=trusted) in REASONS


@pytest.mark.slow
def test_any_flipped_bit_fails_with_a_named_reason() -> None:
    for changed in _flips(GENUINE + b"\n", lambda _: iter(range(8))):
        assert code_of(changed, trusted=()) in REASONS


def test_whatever_is_cut_off_fails_with_a_named_reason() -> None:
    for length in range(0, len(GENUINE), 7):
        assert code_of(GENUINE[:length]) in REASONS


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    names = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for name in names:
        yield from _paths(document[name], (*path, name))


@pytest.mark.parametrize("value", [None, True, -1, 2.5, "", "00" * 32, [], [[]], {}, {"x": []}], ids=repr)
def test_a_signer_who_writes_nonsense_is_answered_with_a_reason_and_no_exception(value: Any) -> None:
    """Every value of the statement in turn, signed by the trusted key: what must be proved cannot be left out."""
    whole = json.loads(certificates.payload(predicate=predicate_of(), signer=public(OURS)))
    free = {"mechanism", "charges", "policy", "findings", "release", "artifact", "label_space"}
    words = {"engine", "engine_version", "at"}
    for path in _paths(whole):
        document = json.loads(canonical(whole))
        if path:
            target = document
            for name in path[:-1]:
                target = target[name]
            same = target[path[-1]] == value
            target[path[-1]] = value
        else:
            document, same = value, False
        code = code_of(signed(canonical(document)))
        if not same and not free & set(path[1:2]) and not words & set(path[-1:]):
            assert code in REASONS, path


@given(st.binary(max_size=300))
def test_any_bytes_get_a_verdict(content: bytes) -> None:
    assert code_of(content) in REASONS


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inside, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(json_values, json_values)
def test_any_document_gets_a_verdict(document: Any, part: Any) -> None:
    assert code_of(canonical(document)) in REASONS
    assert code_of(signed(canonical(document))) in REASONS
    assert code_of(certificate(lambda d: d.update(ledger=part))) in REASONS
    assert code_of(certificate(lambda d: d["guarantee"].update(release=part))) in REASONS


# ---------------------------------------------------------------- whole documents


@given(json_values.map(lambda each: {"report": each}), json_values)
def test_a_document_is_the_one_that_was_signed_or_refused(document: dict[str, Any], other: Any) -> None:
    kind = envelopes.REPORT_TYPE
    payload = envelopes.document_statement(document, predicate_type=kind, about={"kind": "x"}, signer=public(OURS))
    envelope = json.loads(signed(payload))

    def code(document: Any, envelope: Any, trusted: list[bytes]) -> str | bool:
        try:
            opened = envelopes.open_document(
                document, envelope, predicate_type=kind, is_signed=is_signed, trusted=trusted
            )
        except Refused as refusal:
            return envelopes.DOCUMENT_REASONS[refusal.code] and refusal.code
        return opened.is_trusted

    assert code(document, envelope, [public(OURS)]) is True
    assert code(document, envelope, []) is False
    assert code(document, envelope, [public(THEIRS)]) == "signer.other"
    assert code({**document, "more": 1}, envelope, [public(OURS)]) == "document.other"
    assert code(document, json.loads(GENUINE), [public(OURS)]) == "statement.predicate_type"
    assert isinstance(code(document, other, [public(OURS)]), str)
    assert code(object(), envelope, [public(OURS)]) == "envelope.unreadable"


def test_a_statement_is_about_something_that_has_a_digest() -> None:
    with pytest.raises(InvalidInput, match="about something"):
        envelopes.statement(subjects=[], predicate_type="urn:x", predicate={}, signer=public(OURS))
    with pytest.raises(InvalidInput, match="hexadecimal"):
        envelopes.subject("artifact", digest="AB" * 32)


# ---------------------------------------------------------------- what is certified is proved


def _alone(*parts: list[Any], epsilon: float = 10.0, delta: float = 1e-6, status: Any = "proved") -> Any:
    promise = Filter.of(epsilon=epsilon, delta=delta, preset="mixed" if delta else "pure")
    exposures = [exposure(events, promise.price(Composed(events=tuple(events)), "add_remove")) for events in parts]
    return alone(exposures, promise=promise, unit="user", adjacency="add_remove", proof_status=status)


@pytest.mark.parametrize(
    "events",
    [
        [Gaussian(noise_multiplier=2.0)],
        [Repeated(event=Gaussian(noise_multiplier=5.0), times=12), PureDP(epsilon=0.3)],
        [PureDP(epsilon=0.25), PureDP(epsilon=0.5)],
    ],
    ids=repr,
)
def test_the_epsilon_of_a_release_bounds_what_the_engines_know_of_it(events: list[Any]) -> None:
    own = _alone(events)
    truth = account(Composed(events=tuple(events)), delta=1e-6)
    assert truth.lower <= own.guarantee.epsilon
    assert own.guarantee.epsilon <= truth.upper * (1 + 1e-5) + 1e-9  # and is no looser than it must be
    shown = own.to_json()
    assert (shown["bound"], shown["epsilon_upper"], shown["delta"]) == ("upper", own.guarantee.epsilon, 1e-6)
    assert "alone" in shown["of"]


def test_whoever_is_in_several_scopes_is_exposed_to_all_of_them() -> None:
    one, other = [PureDP(epsilon=0.25)], [PureDP(epsilon=0.5)]
    apart, together = _alone(one, other, delta=0.0), _alone(one, other, one + other, delta=0.0)
    assert apart.guarantee.epsilon == 0.5
    assert together.guarantee.epsilon == 0.75
    assert together.engine == "filter"  # at δ = 0 no engine is asked
    assert Fraction(repr(_alone([PureDP(epsilon=0.1)] * 3, delta=0.0).guarantee.epsilon)) == Fraction("0.3")


def test_what_is_too_much_for_an_engine_is_bounded_by_what_was_charged() -> None:
    many = [Gaussian(noise_multiplier=40.0 + n) for n in range(certificates.MAX_KINDS + 1)]
    own = _alone(many)
    assert own.engine == "filter"
    assert own.guarantee.epsilon >= account(Composed(events=tuple(many)), delta=1e-6).lower
    assert own.guarantee.epsilon <= 10.0


def test_what_is_not_proved_has_no_upper_bound() -> None:
    shown = _alone([PureDP(epsilon=0.5)], status="claimed").to_json()
    assert (shown["bound"], shown["epsilon_upper"]) == ("none", None)
    assert 0.499 < shown["epsilon_claimed"] <= 0.5
    assert "upper" not in shown["text"]
    promise = Filter.of(epsilon=1.0, delta=1e-6)
    life = lifelong(promise=promise, unit="user", adjacency="add_remove", accepted=["proved", "refuted", "claimed"])
    assert life.to_json()["epsilon_upper"] is None
    assert life.guarantee.proof_status == "refuted"
    sure = lifelong(promise=promise, unit="user", adjacency="add_remove", accepted=["proved"])
    assert sure.to_json()["epsilon_upper"] == 1.0
