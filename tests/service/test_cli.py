"""The command line: what each command does and prints, what it says of a mistake, and how it exits."""

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from service import app
from service.audits_cli import _stands, _would_see
from service.cli import main, stint
from service.client import Stint
from service.settings import Settings
from service.store import database
from tests.service.terminal import Running, command, servers_of, service, short_folder

SGD = ["--mechanism", "dp-sgd"]
for pair in ("noise_multiplier=2", "sampling_probability=0.01", "steps=100", "clip_norm=1"):
    SGD += ["-p", pair]
HASTY = [word.replace("noise_multiplier=2", "noise_multiplier=0.3") for word in SGD]


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STINT_URL", "STINT_KEY", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with service() as started:
        with Stint(started.url, started.key) as client:
            client.create_population("clinic", unit="user", epsilon=1.0, delta=1e-6)
            client.register_count("clinic", 1000)
            client.create_task("clinic", "w1", members={"next": 500}, parts={"memory": {"ranges": [[0, 50]]}})
        yield started


@pytest.fixture
def at_service(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STINT_URL", running.url)
    monkeypatch.setenv("STINT_KEY", running.key)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints; it must exit as said, with nothing on standard error."""
    found = main(words)
    out, err = capsys.readouterr()
    assert (found, err) == (code, ""), out
    return out


def as_json(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    return json.loads(said(capsys, *words, "--json", code=code))


def complaint(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The one line that a command has to say of a mistake."""
    found = main(words)
    out, err = capsys.readouterr()
    assert (found, out) == (code, ""), err
    assert re.fullmatch(r"stint: [^\n]+\n", err), err
    return err


# ---------------------------------------------------------------- every command


def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, each in stint.commands.items():
        found += [(name, inner) for inner in each.commands] if isinstance(each, click.Group) else [(name,)]
    return found


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_command_explains_itself_and_has_json(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *words, "--help")
    assert text.startswith(f"Usage: stint {' '.join(words)}")
    assert "--json" in text
    complaint(capsys, *words, "--no-such-option")


def test_the_commands_are_those_of_the_design() -> None:
    wanted = {"run", "serve", "migrate", "demo", "price", "calibrate", "propose", "dry-run", "commit", "void", "verify"}
    wanted |= {"audit", "audits", "export", "jobs", "keys", "populations", "register", "worker"}
    assert set(stint.commands) == wanted | {"certificate", "statement", "verify-certificate", "verify-report"}


def test_no_command_gets_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("Usage: stint")
    assert "No such command 'tset'" in complaint(capsys, "tset")
    assert said(capsys, "--version") == "0.1.0\n"


# ---------------------------------------------------------------- offline


def test_an_event_is_priced_by_every_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    event = {"version": 1, "kind": "gaussian", "noise_multiplier": 4.0}
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    found = as_json(capsys, "price", str(file), "--delta", "1e-5")
    assert found["engine"] == "closed_form"
    assert set(found["engines"]) == {"closed_form", "rdp", "prv"}
    assert found["epsilon_lower"] <= found["epsilon_upper"] <= found["engines"]["rdp"]["upper"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(event).encode())))
    assert as_json(capsys, "price", "-", "--delta", "1e-5") == found
    twice = as_json(capsys, "price", str(file), "--delta", "1e-5", "--adjacency", "replace_one")
    assert twice["epsilon_upper"] > found["epsilon_upper"]
    lines = said(capsys, "price", *SGD).splitlines()
    assert re.fullmatch(r"ε ≤ \d+\.\d{6} at δ = 1e-06 \(add_remove\), by prv", lines[0])
    assert lines[1].split() == ["closed_form", "no", "upper", "bound"]
    none = as_json(capsys, "price", "--mechanism", "label-release", "-p", "epsilon=1", "-p", "delta=0.5")
    assert none["epsilon_upper"] is None


def test_noise_and_steps_are_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    promise = ["calibrate", "--epsilon", "1", "--delta", "1e-5", "--sampling-probability", "0.01"]
    noise = as_json(capsys, *promise, "--steps", "1000")["noise_multiplier"]
    assert noise == pytest.approx(1.415, abs=1e-3)
    assert as_json(capsys, *promise, "--noise-multiplier", "1")["steps"] == 254
    assert said(capsys, *promise, "--noise-multiplier", "1").startswith("steps ≤ 254 keeps ε ≤ 1 at")
    assert said(capsys, *promise, "--steps", "1000").startswith("noise_multiplier ≥ 1.41")
    assert "either --steps or" in complaint(capsys, *promise)
    assert "epsilon" in complaint(capsys, "calibrate", "--epsilon", "-1", "--delta", "1e-5", "--steps", "1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["price"], "Give either a file"),
        (["price", "missing.json"], "missing.json: No such file"),
        (["price", "--mechanism", "dp-sdg"], "expected one of dp-sgd"),
        (["price", "--mechanism", "dp-sgd", "-p", "steps"], "name=value"),
        (["price", "--mechanism", "dp-sgd", "-p", "steps=x"], "parameters."),
        (["price", *SGD, "--delta", "2"], "delta"),
        (["price", *SGD, "--delta", "much"], "--delta"),
        (["price", "x.json", "-p", "a=1"], "belongs to --mechanism"),
        (["propose"], "Name the --population"),
        (["propose", "--population", "p", "-p", "a=1"], "belongs to --mechanism"),
        (["commit"], "Missing argument 'RELEASE'"),
        (["commit", "rel_x", "--uri", "s3://x"], "belongs to --artifact"),
        (["commit", "rel_x", "--artifact", "missing"], "missing: No such file"),
        (["void", "rel_x"], "Missing option '--reason'"),
        (["register", "p", "people.txt"], "NDJSON, CSV or Parquet"),
        (["register", "p", "people.csv"], "people.csv: No such file"),
        (["export", "p", "--json"], "needs a file"),
        (["keys", "create", "n"], "Missing option '--role'"),
        (["keys", "create", "n", "--role", "king"], "'king' is not one of"),
        (["verify", "--data", "nowhere"], "nowhere holds no embedded PostgreSQL"),
        (["run", "--port", "123456"], "--port"),
        (["serve", "--host", "256.256.256.256"], "cannot serve at 256.256.256.256"),
        (["populations"], "set STINT_KEY"),
        (["worker", "--device", "gpu"], "--device takes cpu, cuda or cuda:0, not 'gpu'"),
        (["worker", "--queue", "a@b"], "--queue takes a name that jobs can have"),
        (["worker", "--queue", "default\n"], "--queue takes a name that jobs can have"),
        (["worker", "--data", ""], "--data: expected a path"),
        (["worker", "--data", "file://inputs"], "--data: expected a path"),
        (["worker", "--data", "/srv", "--data", "s3://bucket/my%20data/"], "--data: expected a path"),
        (["worker", "--data", "nosuch://bucket/"], "nosuch://bucket/ cannot be read"),
        (["worker", "--seed", "x"], "--seed"),
        (["worker", "default"], "unexpected extra argument"),
        (["jobs", "show"], "Missing argument 'JOB'"),
        (["jobs", "list", "--status", "lost"], "'lost' is not one of"),
    ],
    ids=lambda given: " ".join(given)[:50] if isinstance(given, list) else "",
)
def test_a_mistake_is_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in complaint(capsys, *words)


def test_what_is_not_json_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.json"
    file.write_text("{")
    assert "is not JSON" in complaint(capsys, "price", str(file))
    assert "is not JSON" in complaint(capsys, "propose", str(file))
    file.write_text("[1]")
    assert "a JSON object is expected" in complaint(capsys, "propose", str(file))
    complaint(capsys, "price", str(file))
    file.write_bytes(b"\xff\xfe")
    complaint(capsys, "price", str(file))


def test_a_worker_in_the_wrong_folder_makes_no_house_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever for jobs that nobody can submit there."""
    monkeypatch.chdir(tmp_path)
    assert "data holds no embedded PostgreSQL of Stint" in complaint(capsys, "worker", "--once")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_worker_that_could_run_nothing_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so before it looks for a database: every job that it took would fail."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "torch cannot use cuda:0 on this machine" in complaint(capsys, "worker", "--once", "--device", "cuda:0")
    Path("odd.json").write_text(json.dumps({"backbones": {"ours": {"factory": "vision"}}}))
    for name, expected in (
        ("missing.toml", "missing.toml cannot be read as docs/backbones.md says"),
        ("odd.json", "backbones.ours.factory: expected module:function"),
    ):
        monkeypatch.setenv("STINT_BACKBONES", name)
        assert expected in complaint(capsys, "worker", "--once")
    assert [path.name for path in tmp_path.iterdir()] == ["odd.json"]


def test_a_worker_starts_with_what_it_may_read_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path would be compared with nothing, and keep jobs from what others allow."""
    started: list[Any] = []
    monkeypatch.setattr("service.worker.work", lambda _, options, **__: started.append(options))
    monkeypatch.setattr("service.logs.configure", lambda _: None)
    monkeypatch.setenv("DATABASE_URL", "postgresql://nowhere")
    monkeypatch.chdir(tmp_path)
    assert main(["worker", "--data", "inputs", "--data", "memory://bucket/rows", "--data", "/srv"]) == 0
    monkeypatch.setenv("STINT_INPUTS", "more file:///srv")
    assert main(["worker"]) == 0
    assert [each.allowed for each in started] == [
        [f"{tmp_path}/inputs", "memory://bucket/rows", "/srv"], [f"{tmp_path}/more", "file:///srv"],
    ]  # fmt: skip


def test_no_service_no_key_no_port(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STINT_KEY", "sk_ä")
    assert "STINT_KEY" in complaint(capsys, "populations")
    monkeypatch.setenv("STINT_KEY", "sk_x")
    for url in ("http://127.0.0.1:1", "http://127.0.0.1:99999", "nonsense"):
        monkeypatch.setenv("STINT_URL", url)
        assert "cannot be reached" in complaint(capsys, "populations")
    monkeypatch.setenv("STINT_PORT", "eight")
    assert "STINT_PORT" in complaint(capsys, "run")
    monkeypatch.delenv("STINT_PORT")
    for variable, value in (("STINT_LOG_LEVEL", "foo"), ("STINT_HOLD_SECONDS", "999999999999")):
        with monkeypatch.context() as environment:
            environment.setenv(variable, value)
            assert variable in complaint(capsys, "serve")
    for server in ("postgresql://127.0.0.1:1/none", "nonsense"):
        assert "the database cannot be used" in complaint(capsys, "verify", "--database", server)
        assert "the database cannot be used" in complaint(capsys, "migrate", "--database", server)


def test_a_folder_that_is_named_is_migrated_whatever_the_environment_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []

    @contextmanager
    def found(settings: Settings) -> Iterator[str]:
        asked.append(settings)
        yield "postgresql://nowhere"

    monkeypatch.setattr(app, "database_url", found)
    monkeypatch.setattr(database, "migrate", lambda _: None)
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere")
    for words in ([], ["--data", str(tmp_path)], ["--data", str(tmp_path), "--database", "postgresql://here"]):
        said(capsys, "migrate", *words)
    assert [each.database_url for each in asked] == ["postgresql://elsewhere", "", "postgresql://here"]
    assert asked[1].data == tmp_path


# ---------------------------------------------------------------- with a service


@pytest.mark.slow
@pytest.mark.usefixtures("at_service")
def test_a_release_from_proposal_to_commit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    on_task = ["--population", "clinic", "--task", "w1"]
    tried = as_json(capsys, "dry-run", *on_task, *SGD)
    assert tried["status"] == "dry_run"
    held = as_json(capsys, "propose", *on_task, *SGD, "--idempotency-key", "cli-1")
    assert held["status"] == "held"
    assert as_json(capsys, "propose", *on_task, *SGD, "--idempotency-key", "cli-1") == held
    artifact = tmp_path / "model"
    artifact.write_bytes(b"weights")
    why = ("--reason", "settled by hand")
    done = as_json(capsys, "commit", held["id"], "--artifact", str(artifact), "--uri", "s3://models/1", *why)
    assert done["status"] == "committed"
    assert done["artifact"]["uri"] == "s3://models/1"
    exported = tmp_path / "ledger"
    said(capsys, "export", "clinic", "--format", "ndjson", "-o", str(exported))
    bodies = [json.loads(line)["body"] for line in exported.read_text().splitlines()]
    assert bodies[-1]["reason"] == "settled by hand"
    assert said(capsys, "commit", held["id"]).startswith(f"{held['id']}: committed (entry ")
    assert "only an open hold" in complaint(capsys, "void", held["id"], "--reason", "late", code=1)

    denied = said(capsys, "propose", *on_task, *HASTY, code=1)
    assert re.search(r"^rel_\w+: denied, 500 datapoints, highest ε \S+ → \S+ of 1\n", denied)
    assert "the lifelong budget is" in denied
    assert as_json(capsys, "dry-run", *on_task, *HASTY, code=1)["decision"]["outcome"] == "denied"

    file = tmp_path / "proposal.json"
    charge = {"scope": {"task": "w1", "part": "memory"}, "event": {"kind": "gaussian", "noise_multiplier": 50.0}}
    file.write_text(json.dumps({"population": "clinic", "charges": [charge]}))
    second = as_json(capsys, "propose", str(file), "--hold-seconds", "600", "--kind", "prototypes")
    assert second["kind"] == "prototypes"
    assert said(capsys, "void", second["id"], "--reason", "a test").startswith(f"{second['id']}: voided")


@pytest.mark.slow
@pytest.mark.usefixtures("at_service")
def test_what_the_service_refuses_is_one_line_and_exit_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no population" in complaint(capsys, "propose", "--population", "nobody", "--task", "t", *SGD, code=1)
    assert "no population" in complaint(capsys, "verify", "nobody", code=1)
    assert "no population" in complaint(capsys, "export", "nobody", code=1)
    assert "a task of this population, got 'w2'. Change" in complaint(
        capsys, "propose", "--population", "clinic", "--task", "w2", *SGD, code=1
    )
    complaint(capsys, "commit", "rel_x", code=1)
    complaint(capsys, "propose", "--population", "../x", "--task", "w2", *SGD, code=1)
    complaint(capsys, "keys", "revoke", "key_x", code=1)
    for word in ("show", "fetch", "card", "cancel"):
        for name in ("job_x", ".", "..", "", "a/b", "é"):
            complaint(capsys, "jobs", word, name, code=1)
        assert "There is no job" in complaint(capsys, "jobs", word, f"job_{'0' * 26}", code=1)
    file = tmp_path / "request.json"
    for words in (("jobs", "submit"), ("propose",), ("dry-run",)):
        file.write_text(json.dumps({"population": "clinic", "self": 1}))
        complaint(capsys, *words, str(file), code=1)
        file.write_text(json.dumps({"population": "clinic", "idempotency_key": "twice"}))
        assert "--idempotency-key" in complaint(capsys, *words, str(file))
    complaint(capsys, "propose", "--population", "clinic", "--task", "w2", *SGD, "--idempotency-key", "é", code=1)
    monkeypatch.setenv("STINT_KEY", "sk_wrong")
    assert "not known" in complaint(capsys, "populations", code=1)


@pytest.mark.slow
@pytest.mark.usefixtures("at_service")
def test_populations_keys_and_evidence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "clinic" in [each["name"] for each in as_json(capsys, "populations")]
    assert re.search(r"^clinic: 1,000 datapoints, .* Promise: ε ≤ 1", said(capsys, "populations"), re.MULTILINE)
    assert all(each["ok"] for each in as_json(capsys, "verify"))
    assert said(capsys, "verify", "clinic").startswith("clinic: ok, ")
    assert "The log of keys: ok, " in said(capsys, "verify")
    for form in ("ndjson", "csv"):
        file = tmp_path / form
        report = as_json(capsys, "export", "clinic", "--format", form, "-o", str(file))
        assert report["bytes"] == file.stat().st_size > 0
    entries = [json.loads(line) for line in (tmp_path / "ndjson").read_text().splitlines()]
    assert entries[0]["body"]["kind"] == "population.created"
    assert said(capsys, "export", "clinic", "-o", str(tmp_path / "again")).startswith(f"{tmp_path}/again: ")
    made = as_json(capsys, "keys", "create", "ci", "--role", "pipeline", "--days", "2")
    assert made["secret"].startswith("sk_")
    assert said(capsys, "keys", "create", "ci", "--role", "auditor").startswith("sk_")
    assert made["id"] in [each["id"] for each in as_json(capsys, "keys", "list")]
    assert made["id"] in said(capsys, "keys", "list")
    assert as_json(capsys, "keys", "revoke", made["id"]) == {"id": made["id"], "revoked": True}


@pytest.mark.slow
@pytest.mark.usefixtures("at_service")
def test_datapoints_are_registered_from_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stint() as client:
        client.create_population("keyed", unit="user", epsilon=1.0, delta=1e-6)
    file = tmp_path / "people.ndjson"
    file.write_text("".join(json.dumps({"key": f"k{n}"}) + "\n" for n in range(3000)))
    assert as_json(capsys, "register", "keyed", str(file))["registered"] == 3000
    table = tmp_path / "people.csv"
    table.write_text("key,colour\nk1,red\nnew,blue\n")
    assert said(capsys, "register", "keyed", str(table)).startswith("1 registered, 1 known before")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"key": "from a pipe"}\n')))
    assert as_json(capsys, "register", "keyed", "-")["registered"] == 1
    (tmp_path / "empty.csv").write_text("")
    assert as_json(capsys, "register", "keyed", str(tmp_path / "empty.csv"))["registered"] == 0
    table.write_text("name\nk1\n")
    assert "must be `key`" in complaint(capsys, "register", "keyed", str(table), code=1)
    columns = tmp_path / "people.parquet"
    pq.write_table(pa.table({"key": ["a parquet key", "another"]}), columns)
    assert as_json(capsys, "register", "keyed", str(columns))["registered"] == 2
    assert as_json(capsys, "register", "keyed", str(columns), "--format", "parquet")["known"] == 2
    assert "not a Parquet file" in complaint(capsys, "register", "keyed", str(table), "--format", "parquet", code=1)


@pytest.mark.slow
@pytest.mark.usefixtures("at_service")
def test_the_demo_is_made_once(capsys: pytest.CaptureFixture[str]) -> None:
    made = as_json(capsys, "demo")
    assert made["population"] == "demo"
    assert made["steps"] > 500
    assert said(capsys, "demo") == "Demo population: demo (0 steps: it was there already).\n"
    with Stint() as client:
        statuses = [each["status"] for each in client.releases("demo")]
        assert client.population("demo")["policy"]["version"] == 2
        assert any(task["budget"] for task in client.tasks("demo"))
    assert {"denied", "committed", "voided"} <= set(statuses)
    assert as_json(capsys, "verify", "demo")[0]["ok"]


@pytest.mark.slow
def test_without_the_service_the_database_itself_is_used() -> None:
    with short_folder() as folder:
        for words, expected in [
            (["migrate"], "The database is up to date."),
            (["verify", "--data", str(folder)], "There is no population."),
            (["keys", "create", "rescue", "--role", "admin", "--data", str(folder)], "The secret is shown this once."),
        ]:
            process = command(folder, *words)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (0, ""), words
            assert expected in out
            assert not servers_of(folder)


# ---------------------------------------------------------------- empirical audits


@pytest.mark.usefixtures("at_service")
def test_an_audit_is_planned_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("audits", "start", "clinic", "dp-sgd", "weights after one step", "--samples", "200", "--freeze")
    planned = as_json(capsys, *words)
    assert (planned["number"], planned["samples"], planned["on_violation"]) == (1, 200, "freeze")
    first, second = said(capsys, "audits", "start", "clinic", "dp-cl-as-published").splitlines()
    assert first.endswith(": audit 2 of clinic, at confidence 0.992401.")
    assert second == "With 200,000 samples it shows the mechanism as it is."
    for power, words_of_it in (
        ({"twin": "half", "samples": 300}, "It shows half from 300 samples on: with fewer it finds a violation or"),
        ({"twin": "half", "samples": None}, "At this confidence it would not show half: unless it finds"),
    ):
        assert _would_see({"samples": 200, "power": power}).startswith(words_of_it)
    assert [each["number"] for each in as_json(capsys, "audits", "list", "--population", "clinic")] == [2, 1]
    assert said(capsys, "audits", "list").splitlines()[1] == (
        f"{planned['id']}  clinic  dp-sgd: weights after one step  queued"
    )
    assert as_json(capsys, "audits", "show", planned["id"])["status"] == "queued"
    shown = said(capsys, "audits", "show", planned["id"])
    assert shown.startswith(f"{planned['id']}: queued. Audit 1 of this population, of 'dp-sgd'")
    assert "has these audits" in complaint(capsys, "audits", "start", "clinic", "dp-sgd", code=1)


def test_an_audit_says_how_it_stands() -> None:
    done = {"step": 1200, "steps": 3000}
    assert _stands({"status": "running", "verdict": None, "progress": done}) == "running, 1,200 of 3,000 samples"
    assert _stands({"status": "concluded", "verdict": "violation", "progress": done}) == "violation"
    assert _stands({"status": "failed", "verdict": None, "progress": done}) == "failed"
