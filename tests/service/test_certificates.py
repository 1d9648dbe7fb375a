"""Certificates of a running service: checked offline, by strangers, from the bytes alone."""

from __future__ import annotations

import base64
import json
import resource
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sqlalchemy import Connection

from accountant import certificates, envelopes
from accountant.book import Book
from accountant.engines import account
from accountant.events import Composed, event_from_json
from service import cli
from service.client import Stint, dp_sgd, sliding_window
from service.operations import releases
from service.signing import is_signed
from service.store.writer import Operation, Outcome
from service.sweeper import sweep
from tests.service.fixtures_behaviour import DP_ONLY, PRIOR, House, gaussian, pure, until

pytest_plugins = ("tests.service.fixtures_behaviour",)

SHA = "ab" * 32
SGD = dp_sgd(noise_multiplier=2.0, sampling_probability=0.01, steps=100, clip_norm=1.0)


def statement(content: bytes) -> Any:
    return json.loads(base64.b64decode(json.loads(content)["payload"]))


def certificate(house: House, release: str) -> bytes:
    answer = house.pipeline.ask("GET", f"/v1/releases/{release}/certificate", status=200)
    assert answer.headers["Content-Type"] == "application/vnd.dsse.envelope.v1+json"
    return answer.content


def genuine(house: House, content: bytes, **more: Any) -> Any:
    """What a certificate says, if it is genuine."""
    trusted = [house.parts.secrets.public_key]
    verdict = certificates.verify(content, is_signed=is_signed, trusted=trusted, **more)
    assert verdict.outcome == "genuine", verdict.reasons
    return verdict.predicate


def committed(house: House, name: str, **proposal: Any) -> str:
    answer = house.officer.post("/v1/releases", {"population": name, **proposal}, status=201)
    assert answer["status"] == "held", answer["decision"]["reasons"]
    house.officer.commit(answer["id"], sha256=SHA, uri="s3://secret-bucket/model", bytes=7, metrics={"loss": 0.123})
    return str(answer["id"])


@pytest.fixture(scope="module")
def name(house: House) -> str:
    made = house.population(100, epsilon=3.0)
    house.officer.post(f"/v1/populations/{made}/tasks", {"name": "w1", "members": {"next": 50}}, status=201)
    return made


@pytest.fixture(scope="module")
def release(house: House, name: str) -> str:
    return committed(house, name, task="w1", mechanism=SGD, label_space=PRIOR, state=DP_ONLY)


# ---------------------------------------------------------------- what it says


def test_a_committed_release_is_certified_with_its_own_epsilon_and_the_promise(
    house: House, name: str, release: str
) -> None:
    content = certificate(house, release)
    said = genuine(house, content, artifact_sha256=SHA)
    assert statement(content)["subject"] == [
        {"name": "artifact", "digest": {"sha256": SHA}},
        {"name": "label-set", "digest": {"sha256": "0" * 64}},
    ]
    own, life = said["guarantee"]["release"], said["guarantee"]["lifelong"]
    event = Composed(events=tuple(event_from_json(each["event"]) for each in said["charges"]))
    truth = account(event, delta=1e-6)
    assert truth.lower <= own["epsilon_upper"] <= truth.upper * (1 + 1e-5)
    assert (own["delta"], own["engine"], own["proof_status"], own["bound"]) == (1e-6, "prv", "proved", "upper")
    assert (life["epsilon_upper"], life["delta"], life["proof_status"]) == (3, 1e-6, "proved")
    assert all((each["unit"], each["adjacency"]) == ("user", "add_remove") for each in (own, life))
    assert "alone" in own["of"]
    assert "ever" in life["of"]
    assert said["mechanism"]["parameters"] == SGD["parameters"]
    assert [each["datapoints"] for each in said["charges"]] == [50]
    assert said["policy"]["version"] == 1
    shown = house.officer.get(f"/v1/releases/{release}")["findings"]
    assert said["findings"] == [{key: each[key] for key in ("code", "basis", "severity")} for each in shown]
    assert "tuning.undeclared" in {each["code"] for each in said["findings"]}
    numbers = {each["kind"]: (each["number"], each["hash"]) for each in said["ledger"]["entries"]}
    log = {each["number"]: each for each in house.auditor.get(f"/v1/populations/{name}/ledger")["items"]}
    assert all(log[number]["hash"] == digest for number, digest in numbers.values())
    assert log[numbers["release.committed"][0]]["body"]["artifact"]["sha256"] == SHA


def test_it_says_how_many_and_never_who_nor_where_nor_how_well(house: House) -> None:
    name = house.population(on_exhausted="trim", epsilon=1.0, named_scopes=True)
    keys = [f"patient-{n}" for n in range(40)]
    house.officer.post(f"/v1/populations/{name}/datapoints", {"keys": keys}, status=201)
    one = {"scope": {"keys": keys[3:5]}, "event": pure(0.9)}
    committed(house, name, charges=[one])
    two = [{"scope": {"ranges": [[0, 20]]}, "event": pure(0.4)}, {"scope": {"keys": keys[10:30]}, "event": pure(0.2)}]
    release = committed(house, name, charges=two)
    content = certificate(house, release)
    said = genuine(house, content)
    assert [each["datapoints"] for each in said["charges"]] == [18, 20]
    assert (said["datapoints"], said["trimmed"]) == (28, 2)
    assert 0.599 < said["guarantee"]["release"]["epsilon_upper"] <= 0.6  # of those who are in both
    text = json.dumps(statement(content))
    for private in ("scope", "ranges", "bitmap", "patient", "key_0", "actor", "s3:", "bucket", "loss", "0.123"):
        assert private not in text, private


def test_a_window_is_certified_without_its_place_in_the_stream(house: House) -> None:
    name = house.population(64, epsilon=5.0)
    first, second = (
        committed(house, name, mechanism=sliding_window(k=3, w0=8, step=step, epsilon=0.5)) for step in (0, 1)
    )
    said = genuine(house, certificate(house, second))
    assert said["release"]["builds_on"] == [first]
    assert said["mechanism"]["withheld"] == ["chain", "offset"]
    assert not {"chain", "offset"} & set(said["mechanism"]["parameters"])


def test_labels_that_were_released_are_a_subject_by_the_artifact_of_their_release(house: House, name: str) -> None:
    labels = committed(house, name, kind="labels", charges=[{"scope": {"task": "w1"}, "event": pure(0.1)}])
    event = {"scope": {"task": "w1"}, "event": gaussian(20.0)}
    weights = committed(house, name, charges=[event], label_space={"source": "released", "release": labels})
    assert genuine(house, certificate(house, weights))["label_space"] == {
        "source": "released", "release": labels, "sha256": SHA,
    }  # fmt: skip
    nobody = {"source": "released", "release": "rel_" + "0" * 26}
    unknown = committed(house, name, charges=[event], label_space=nobody)
    assert [each["name"] for each in statement(certificate(house, unknown))["subject"]] == ["artifact"]


def test_a_mechanism_that_is_not_proved_gets_no_upper_bound_and_neither_does_the_life(house: House) -> None:
    name = house.population(20, epsilon=3.0, accepts=["proved", "claimed"])
    event = {"scope": {"ranges": [[0, 20]]}, "event": gaussian(30.0)}
    proved = committed(house, name, charges=[event])
    said = genuine(house, certificate(house, proved))["guarantee"]
    assert said["release"]["proof_status"] == "proved"
    assert (said["lifelong"]["proof_status"], said["lifelong"]["epsilon_upper"]) == ("claimed", None)
    # A mechanism that this version does not know has only the word of the version that admitted it.
    gone = _planted(house, name, declared={"mechanism": {"name": "of-old", "parameters": {}}})
    said = genuine(house, certificate(house, gone))
    assert said["mechanism"]["name"] == "of-old"
    assert (said["guarantee"]["release"]["bound"], said["guarantee"]["release"]["epsilon_upper"]) == ("none", None)


def test_a_release_that_expired_is_certified_with_what_is_known(house: House, name: str) -> None:
    lost = house.officer.hold(name, ({"ranges": [[0, 9]]}, pure(0.1)), hold_seconds=1)
    until(lambda: sweep(house.parts) == 1)
    said = genuine(house, certificate(house, lost))
    assert (said["release"]["status"], said["artifact"]) == ("expired", None)
    refused = certificates.verify(
        certificate(house, lost), is_signed=is_signed, trusted=[house.parts.secrets.public_key], artifact_sha256=SHA
    )
    assert [each.code for each in refused.reasons] == ["artifact.none"]
    house.officer.commit(lost, sha256=SHA)  # late: the artifact is attached, and nothing else changes
    said = genuine(house, certificate(house, lost), artifact_sha256=SHA)
    assert (said["release"]["status"], len(said["ledger"]["entries"])) == ("expired", 3)


def test_what_has_not_left_the_house_is_not_certified(house: House, name: str) -> None:
    held = house.officer.hold(name, ({"ranges": [[0, 9]]}, pure(0.1)))
    denied = house.officer.propose(name, ({"ranges": [[0, 9]]}, pure(9.0)))["id"]
    for each in (held, denied):
        problem = house.officer.get(f"/v1/releases/{each}/certificate", status=409)
        assert problem["type"] == "urn:stint:problem:conflict"
    house.officer.post(f"/v1/releases/{held}/void", {"reason": "a test"})
    house.officer.get(f"/v1/releases/{held}/certificate", status=409)
    house.officer.get(f"/v1/releases/rel_{'0' * 26}/certificate", status=404)


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_made_once_if_none_covers_the_release(house: House, name: str) -> None:
    fresh = committed(house, name, charges=[{"scope": {"ranges": [[0, 9]]}, "event": pure(0.01)}])
    before = len(house.rows("checkpoint"))
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(certificate(house, fresh))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    assert len(house.rows("checkpoint")) == before + 1
    house.admin.post("/v1/checkpoints", status=201)
    assert certificate(house, fresh) == found[0]  # the first that covers it stays the one that is named
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def _planted(house: House, name: str, *, hold_seconds: int | None = 60, **changes: Any) -> str:
    """A release whose hold was written by another version."""

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        charge = {"scope": {"ranges": [[0, 10]]}, "event": {"kind": "gaussian", "noise_multiplier": 30.0}}
        proposal = releases.Proposal(kind="weights", charges=[charge], hold_seconds=hold_seconds, declared={})
        outcome = releases.propose(proposal)(book, at, connection)
        [body] = outcome.bodies
        for part in body["parts"]:
            part.pop("collapsed")  # as it was before releases could be collapsed
        body |= changes
        end = {"kind": "release.committed", "release": body["release"], "artifact": {"sha256": SHA}}
        return replace(outcome, bodies=[body, end], held=None, respond=lambda _: {"release": body["release"]})

    done = Operation(population=name, actor="somebody", decide=decide)
    return str(house.parts.writer.submit(done).result(30).document["release"])


def test_an_entry_of_an_older_version_is_certified(house: House) -> None:
    name = house.population(20, epsilon=3.0)
    said = genuine(house, certificate(house, _planted(house, name)), artifact_sha256=SHA)
    assert said["guarantee"]["release"]["epsilon_upper"] > 0
    assert said["release"]["run_by"] == "pipeline"
    job = _planted(house, name, hold_seconds=None)  # the hold of a job has no end
    assert genuine(house, certificate(house, job))["release"]["run_by"] == "worker"


# ---------------------------------------------------------------- strangers


def test_anybody_asks_the_service_and_learns_only_of_what_was_sent(house: House, release: str) -> None:
    content = certificate(house, release)
    stranger = house.as_(None)
    headers = {"Content-Type": "application/json"}
    answer = stranger.ask("POST", "/v1/verify", content=content, headers=headers, status=200).json()
    assert (answer["outcome"], answer["reasons"]) == ("genuine", [])
    assert answer["certificate"]["release"]["id"] == release
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    pasted = urlencode({"certificate": content.decode()}).encode()
    page = stranger.ask("POST", "/verify", content=pasted, headers=form, status=200).text
    said = statement(content)["predicate"]
    assert said["mechanism"]["name"] in page
    assert f"{said['release']['ended_at'][:16].replace('T', ' ')} UTC" in page
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    answer = stranger.ask("POST", "/v1/verify", content=bytes(changed), headers=headers, status=200).json()
    assert (answer["outcome"], answer["certificate"], answer["signer"]) == ("broken", None, None)
    assert answer["reasons"][0]["code"] in certificates.REASONS
    other = Ed25519PrivateKey.generate()
    secrets = replace(house.parts.secrets, signing=other)
    forged = statement(content)["predicate"]
    forged.pop("issuer")
    payload = certificates.payload(predicate=forged, signer=secrets.public_key)
    sealed = envelopes.envelope(
        payload, signature=other.sign(envelopes.signed_bytes(payload)), signer=secrets.public_key
    )
    answer = stranger.ask("POST", "/v1/verify", content=sealed, headers=headers, status=200).json()
    assert [each["code"] for each in answer["reasons"]] == ["signer.other"]
    assert stranger.ask("POST", "/v1/verify", content=b" " * (2**20 + 1), headers=headers).status_code == 413
    with Stint(house.url, house.secrets["pipeline"]) as client:
        assert client.verify_certificate(client.certificate(release))["outcome"] == "genuine"


def test_cryptography_and_the_standard_library_are_enough(house: House, release: str) -> None:
    """The recipe of docs/evidence.md, without a line of ours."""
    envelope = json.loads(certificate(house, release))
    payload = base64.b64decode(envelope["payload"])
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    kind = envelope["payloadType"].encode()
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    key = Ed25519PublicKey.from_public_bytes(house.parts.secrets.public_key)
    key.verify(signature, signed)
    with pytest.raises(InvalidSignature):
        key.verify(signature, signed.replace(b'"epsilon_upper":3', b'"epsilon_upper":1'))
    predicate = json.loads(payload)["predicate"]
    assert sha256(house.parts.secrets.public_key).hexdigest() == predicate["issuer"]["key_id"]


# ---------------------------------------------------------------- the command line


@pytest.fixture
def at_service(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STINT_URL", house.url)
    monkeypatch.setenv("STINT_KEY", house.secrets["pipeline"])
    monkeypatch.setenv("STINT_DATA", "nowhere")


@pytest.mark.usefixtures("at_service")
def test_a_certificate_is_fetched_and_checked_at_the_command_line(
    house: House, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file, key = tmp_path / "model", tmp_path / "c.json", house.parts.secrets.public_key
    model.write_bytes(b"weights")
    held = house.officer.hold(name, ({"ranges": [[0, 9]]}, pure(0.01)))
    house.officer.commit(held, sha256=sha256(b"weights").hexdigest())
    assert cli.main(["certificate", held, "--output", str(file)]) == 0
    assert file.read_bytes() == certificate(house, held)
    capsys.readouterr()

    def check(*words: str) -> tuple[int, str]:
        code = cli.main(["verify-certificate", *words])
        out, err = capsys.readouterr()
        return code, out + err

    code, said = check(str(file), "--key", key.hex(), "--artifact", str(model))
    assert code == 0
    assert said.startswith("Genuine")
    assert held in said
    assert "this release alone" in said
    pem = house.parts.secrets.signing.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pem").write_bytes(pem)
    (tmp_path / "key.hex").write_text(key.hex() + "\n")
    for each in ("key.pem", "key.hex"):
        assert check(str(file), "--key", str(tmp_path / each))[0] == 0
    assert check(str(file), "--data", str(house.parts.settings.data))[0] == 0
    code, said = check(str(file))
    assert code == 1
    assert "signer unknown" in said
    code, said = check(str(file), "--key", "00" * 32)
    assert code == 1
    assert "signer.other" in said
    model.write_bytes(b"other weights")
    code, said = check(str(file), "--key", key.hex(), "--artifact", str(model), "--json")
    assert code == 1
    assert [each["code"] for each in json.loads(said)["reasons"]] == ["artifact.other"]
    file.write_bytes(file.read_bytes()[:-9])
    assert check(str(file), "--key", key.hex())[1].startswith("Broken")
    assert check(str(file), "--key", "nonsense")[0] == 2
    assert check(str(tmp_path / "nothing"))[0] == 2
    assert check(str(file), "--data", str(tmp_path))[0] == 2
    assert not (tmp_path / "secrets.json").exists()


def test_to_check_offline_takes_less_than_a_second_and_none_of_the_service(
    house: House, release: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(certificate(house, release))
    program = (
        "import sys; from service.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'fastapi', 'sqlalchemy', 'psycopg', 'torch', 'pydantic', 'uvicorn', 'alembic'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    words = ["verify-certificate", str(file), "--key", house.parts.secrets.public_key.hex()]
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(spent) < 1.0, spent  # of a processor: how long that takes by the clock is up to what else runs
