"""What a worker committed is fetched over HTTP: whole and with the digest of the ledger, or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import published
from service.cli import main
from service.client import Spoiled, Stint, StintError, Unreachable
from service.errors import Problem
from service.operations import keys
from service.published import Artifact
from tests.service import work
from tests.service.fixtures_behaviour import ROLES, House, serving, with_settings
from tests.service.harness import Local, local
from tests.service.work import ended, job, worker

pytestmark = pytest.mark.slow
NOBODY = "rel_" + "0" * 26


@pytest.fixture(scope="module")
def here() -> Iterator[Local]:
    with local() as running:
        yield running


@pytest.fixture(scope="module")
def house(here: Local) -> Iterator[House]:
    """The same service over real HTTP."""
    secrets = {role: keys.create(here.parts.database, name=role, roles=[role])["secret"] for role in ROLES}
    with serving(here.parts) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield House(here.parts, client, secrets, None, url)


@pytest.fixture(scope="module")
def population(here: Local) -> str:
    return here.call.population(count=60, epsilon=2.0, delta=1e-5)


@pytest.fixture(scope="module")
def made(here: Local, population: str) -> dict[str, Any]:
    """A job that a real worker committed."""
    identity = here.call.ok("POST", "/v1/jobs", job(population, work.data(here.parts)))["id"]
    said = ended(worker(here.parts, "--once"))
    found: dict[str, Any] = here.call.ok("GET", f"/v1/jobs/{identity}")
    assert found["status"] == "committed", said
    return found


@pytest.fixture
def file(here: Local, made: dict[str, Any]) -> Iterator[Path]:
    """The published file; whatever a test does to it and its folder is undone."""
    folder = here.parts.settings.artifacts_folder / made["release"]
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    yield folder / "model.safetensors"
    shutil.rmtree(folder, ignore_errors=True)
    kept.rename(folder)


@pytest.fixture
def stint(house: House) -> Iterator[Stint]:
    with Stint(house.url, house.secrets["pipeline"], retry_seconds=0.2) as client:
        yield client


def address(made: dict[str, Any]) -> str:
    return f"/v1/releases/{made['release']}/artifact"


def problem(answer: httpx.Response, status: int, name: str) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert document["type"] == f"urn:stint:problem:{name}"
    assert document["advice"]
    return str(document["detail"])


# ---------------------------------------------------------------- over HTTP


def test_everybody_with_a_key_gets_the_bytes_that_were_committed(
    house: House, made: dict[str, Any], file: Path
) -> None:
    digest = made["artifact"]["sha256"]
    for role in ROLES:
        assert house.as_(role).ask("GET", address(made), status=200).content == file.read_bytes()
    answer = house.pipeline.ask("GET", address(made), status=200)
    assert hashlib.sha256(answer.content).hexdigest() == digest
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Length"] == str(made["artifact"]["bytes"])
    assert answer.headers["ETag"] == f'"{digest}"'
    assert answer.headers["Repr-Digest"] == f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{made["release"]}.safetensors"'
    problem(house.as_(None).ask("GET", address(made)), 401, "unauthorized")


@pytest.mark.parametrize(
    ("given", "status"), [('"{}"', 304), ('"x", W/"{}"', 304), ("*", 304), ('"x"', 200), ("", 200)]
)
def test_whoever_has_it_is_not_sent_it_again(house: House, made: dict[str, Any], given: str, status: int) -> None:
    headers = {"If-None-Match": given.format(made["artifact"]["sha256"])}
    answer = house.pipeline.ask("GET", address(made), headers=headers, status=status)
    assert answer.headers["ETag"] == f'"{made["artifact"]["sha256"]}"'
    assert bool(answer.content) is (status == 200)


def test_the_card_is_the_one_that_the_worker_wrote(house: House, made: dict[str, Any], file: Path) -> None:
    """It is made of the ledger again, so it needs no file."""
    path = f"/v1/releases/{made['release']}/card"
    written, readable = file.with_name("card.json").read_text(), file.with_name("card.md").read_text()
    shutil.rmtree(file.parent)
    for role in ROLES:
        assert house.as_(role).get(path) == json.loads(written)
    answer = house.pipeline.ask("GET", f"{path}?format=md", status=200)
    assert answer.headers["Content-Type"] == "text/markdown; charset=utf-8"
    assert answer.text == readable
    problem(house.pipeline.ask("GET", f"{path}?format=pdf"), 422, "invalid")


def test_a_card_of_a_mechanism_that_is_gone_is_not_made_up(
    house: House, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.catalog.CATALOG", {})
    answer = house.pipeline.ask("GET", f"/v1/releases/{made['release']}/card")
    assert "'dp-sgd'" in problem(answer, 404, "not-found")


def test_a_file_is_looked_through_once(
    house: House, made: dict[str, Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, digest = list[int](), published._digest

    def counted(handle: int) -> str:
        looked.append(handle)
        return digest(handle)

    monkeypatch.setattr(published, "_digest", counted)
    os.utime(file)  # as if it were new
    for _ in range(3):
        house.pipeline.ask("GET", address(made), status=200)
    assert len(looked) == 1
    os.utime(file)
    house.pipeline.ask("GET", address(made), status=200)
    assert len(looked) == 2


def test_too_many_looks_at_a_time_are_told_to_come_back(
    house: House, made: dict[str, Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(file)
    with monkeypatch.context() as patch:
        patch.setattr(published._looking, "acquire", lambda **_: False)
        answer = house.pipeline.ask("GET", address(made))
    problem(answer, 503, "busy")
    assert answer.headers["Retry-After"] == "1"
    house.pipeline.ask("GET", address(made), status=200)


def test_what_is_committed_and_not_published_yet_is_there_already(
    here: Local, house: House, made: dict[str, Any], file: Path
) -> None:
    """As a worker leaves it that dies between the two."""
    content, staged = file.read_bytes(), here.parts.settings.artifacts_folder / ".staged" / f"{made['id']}.1"
    file.parent.rename(staged)
    try:
        assert house.pipeline.ask("GET", address(made), status=200).content == content
    finally:
        shutil.rmtree(staged)
    problem(house.pipeline.ask("GET", address(made)), 404, "artifact-absent")


def test_a_file_that_is_elsewhere_is_said_to_be(house: House, made: dict[str, Any], tmp_path: Path) -> None:
    with with_settings(house, artifacts=str(tmp_path / "nobody-published-here")) as other:
        detail = problem(other.pipeline.ask("GET", address(made)), 404, "artifact-absent")
    assert made["release"] in detail
    assert str(tmp_path) not in detail
    house.pipeline.ask("GET", address(made), status=200)


@pytest.mark.parametrize("change", ["a bit", "shorter", "longer", "another", "a folder", "a pipe"])
def test_a_file_that_was_changed_is_not_sent(house: House, made: dict[str, Any], file: Path, change: str) -> None:
    house.pipeline.ask("GET", address(made), status=200)  # it was right once
    content = bytearray(file.read_bytes())
    match change:
        case "a bit":
            content[-1] ^= 1
            file.write_bytes(content)
        case "shorter":
            file.write_bytes(content[:-1])
        case "longer":
            file.write_bytes(content + b"\0")
        case "another":
            other = file.with_name("other")
            other.write_bytes(bytes(len(content)))
            other.replace(file)
        case "a folder":
            file.unlink()
            file.mkdir()
        case _:
            file.unlink()
            os.mkfifo(file)  # to open it as a file would wait for ever
    answer = house.pipeline.ask("GET", address(made))
    assert made["artifact"]["sha256"] in problem(answer, 500, "artifact-changed")
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    shutil.copy(file.parent.with_name("kept") / file.name, file)
    house.pipeline.ask("GET", address(made), status=200)


def test_a_file_that_rots_unnoticed_never_arrives_whole(
    *,
    house: House,
    stint: Stint,
    made: dict[str, Any],
    file: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its state says that it was found right, and its bytes are others."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    known = file.stat()
    state = (known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns)
    published._right[state] = made["artifact"]["sha256"]
    with pytest.raises(httpx.RemoteProtocolError, match=r"incomplete|without sending complete"):
        house.pipeline.ask("GET", address(made))
    assert "was changed while it was sent" in caplog.text
    with pytest.raises(Unreachable):
        stint.artifact(made["release"], tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_only_what_a_job_of_ours_committed_has_an_artifact(
    here: Local, house: House, made: dict[str, Any], population: str
) -> None:
    call, who, uri = here.call, house.pipeline, made["artifact"]["uri"]
    tiny = ({"ranges": [[0, 60]]}, {"kind": "pure_dp", "epsilon": 0.01})
    held, borrowed = call.propose(population, tiny)["id"], call.propose(population, tiny)["id"]
    denied = call.propose(population, ({"ranges": [[0, 60]]}, {"kind": "pure_dp", "epsilon": 9.0}))["id"]
    call.ok("POST", f"/v1/releases/{borrowed}/commit", {"artifact": made["artifact"]})  # with the name of ours
    forged = here.parts.settings.artifacts_folder / borrowed
    forged.mkdir()
    shutil.copy(here.parts.settings.artifacts_folder / made["release"] / "model.safetensors", forged)
    try:
        for release in (held, denied, borrowed):
            for what in ("artifact", "card"):
                detail = problem(who.ask("GET", f"/v1/releases/{release}/{what}"), 404, "not-found")
                assert f"{release} is not of a job" in detail
    finally:
        shutil.rmtree(forged)
    assert uri == f"stint:artifacts/{made['release']}/model.safetensors"
    for what in ("artifact", "card"):
        problem(who.ask("GET", f"/v1/releases/{NOBODY}/{what}"), 404, "not-found")
    waits = call.ok("POST", "/v1/jobs", job(population, "/x.npz", queue="nobody"))
    for status in ("queued", "cancelled"):
        for what in ("artifact", "card"):
            detail = problem(who.ask("GET", f"/v1/releases/{waits['release']['id']}/{what}"), 409, "conflict")
            assert detail.startswith(f"Job {waits['id']} is {status}")
        call.ok("POST", f"/v1/jobs/{waits['id']}/cancel")


@pytest.mark.parametrize(
    "name",
    [
        "..", "%2e%2e", "..%2f..%2fsecrets.json", "rel_%2e%2e%2f" + "0" * 20, "/etc/passwd", "%2fetc%2fpasswd",
        "rel_" + "0" * 25 + "%00", "rel_" + "0" * 26 + "%0a", "rel_" + "a" * 26, ".staged", ".logs", "kept",
        "rel_" + "0" * 26 + "%2fmodel.safetensors", "~", "%s",
    ],
)  # fmt: skip
def test_a_name_that_is_none_of_a_release_leads_nowhere(house: House, name: str) -> None:
    for what in ("artifact", "card"):
        answer = house.admin.ask("GET", f"/v1/releases/{name}/{what}")
        assert answer.status_code in {404, 422}, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"


# ---------------------------------------------------------------- pieces of a file


def large(tmp_path: Path, size: int = 3 * 2**20 + 17) -> tuple[Path, Artifact]:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(size))
    return path, Artifact(release=NOBODY, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), bytes=size)


def test_a_large_file_is_sent_in_small_pieces(tmp_path: Path) -> None:
    path, artifact = large(tmp_path)
    with published.opened(artifact, [tmp_path / "nowhere" / "x", path]) as file:
        sent = list(published.pieces(artifact, file))
    assert max(map(len, sent)) <= 2**20
    assert b"".join(sent) == path.read_bytes()


@pytest.mark.parametrize("place", [0, -1, None], ids=["first byte", "last byte", "shorter"])
def test_what_changes_while_it_is_sent_is_cut_short(tmp_path: Path, place: int | None) -> None:
    path, artifact = large(tmp_path)
    content, arrived = bytearray(path.read_bytes()), list[bytes]()
    with published.opened(artifact, [path]) as file:
        if place is None:
            content.pop()
        else:
            content[place] ^= 1
        path.write_bytes(content)  # in its place, so that an open file sees it
        with pytest.raises(Problem, match=artifact.sha256):
            arrived.extend(published.pieces(artifact, file))
    assert len(b"".join(arrived)) < artifact.bytes


def test_what_is_added_while_it_is_sent_is_not_sent(tmp_path: Path) -> None:
    path, artifact = large(tmp_path)
    content = path.read_bytes()
    with published.opened(artifact, [path]) as file:
        path.write_bytes(content + b"more")
        assert b"".join(published.pieces(artifact, file)) == content


# ---------------------------------------------------------------- the client and the command line


def test_the_client_fetches_what_the_ledger_says(
    stint: Stint, made: dict[str, Any], file: Path, tmp_path: Path
) -> None:
    target, heard = tmp_path / "model.safetensors", list[tuple[int, int]]()
    known = stint.artifact(made["release"], target, progress=lambda *seen: heard.append(seen))
    assert target.read_bytes() == file.read_bytes()
    assert known == {"release": made["release"], "file": str(target)} | {
        name: made["artifact"][name] for name in ("sha256", "bytes")
    }
    assert heard[-1] == (known["bytes"], known["bytes"])
    found = stint.job(made["id"])
    with pytest.raises(FileExistsError):
        found.download(target)
    target.write_bytes(b"older")
    assert found.download(target, overwrite=True)["sha256"] == known["sha256"]
    assert target.read_bytes() == file.read_bytes()
    assert stint.card(made["release"])["artifact"]["sha256"] == known["sha256"]
    assert known["sha256"] in stint.card_text(made["release"])
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_client_keeps_nothing_that_is_not_right(
    stint: Stint, made: dict[str, Any], file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "model.safetensors"
    target.write_bytes(b"older")
    with pytest.raises(Spoiled, match="0" * 64) as spoiled:
        stint.artifact(made["release"], target, sha256="0" * 64, overwrite=True)
    assert spoiled.value.name == "artifact-changed"
    with pytest.raises(FileNotFoundError):
        stint.artifact(made["release"], tmp_path / "no" / "folder")
    file.unlink()
    with pytest.raises(StintError) as absent:
        stint.artifact(made["release"], target, overwrite=True)
    assert (absent.value.name, absent.value.status) == ("artifact-absent", 404)
    with pytest.raises(StintError):
        stint.artifact(NOBODY, target, overwrite=True)
    assert target.read_bytes() == b"older"
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_command_line_fetches(
    *,
    here: Local,
    house: House,
    made: dict[str, Any],
    file: Path,
    population: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STINT_URL", house.url)
    monkeypatch.setenv("STINT_KEY", house.secrets["auditor"])
    monkeypatch.chdir(tmp_path)

    def said(*words: str, code: int = 0) -> str:
        assert main(["jobs", *words]) == code
        out, err = capsys.readouterr()
        assert bool(out) is (code == 0)
        assert err == "" if code == 0 else err.startswith("stint: ") and err.count("\n") == 1
        return out + err

    default = Path(f"{made['release']}.safetensors")
    assert made["artifact"]["sha256"] in said("fetch", made["id"])
    assert default.read_bytes() == file.read_bytes()
    assert "--force" in said("fetch", made["id"], code=2)
    default.write_bytes(b"older")
    said("fetch", made["id"], "--force")
    assert default.read_bytes() == file.read_bytes()
    Path("models").mkdir()
    shown = json.loads(said("fetch", made["id"], "--to", "models", "--json"))
    assert Path(shown["file"]) == Path("models") / default
    said("fetch", made["id"], "--to", "other")
    assert Path("other").read_bytes() == file.read_bytes()
    assert "stint: no/folder: No such file" in said("fetch", made["id"], "--to", "no/folder", code=2)
    assert "stint: other/folder: Not a directory" in said("fetch", made["id"], "--to", "other/folder", code=2)
    assert f"# Release {made['release']}" in said("card", made["id"])
    assert json.loads(said("card", made["id"], "--json"))["release"] == made["release"]
    said("fetch", "job_" + "0" * 26, code=1)
    waits = here.call.ok("POST", "/v1/jobs", job(population, "/x.npz", queue="nobody"))["id"]
    assert f"{waits} is queued" in said("fetch", waits, code=1)
    here.call.ok("POST", f"/v1/jobs/{waits}/cancel")
    file.unlink()
    assert "STINT_ARTIFACTS" in said("fetch", made["id"], "--to", "third", code=1)
    monkeypatch.setenv("STINT_URL", "http://127.0.0.1:1")
    assert "cannot be reached" in said("fetch", made["id"], "--to", "third", code=2)
    assert sorted(path.name for path in Path().iterdir()) == sorted([default.name, "models", "other"])
