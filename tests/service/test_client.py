"""The Python client against a real service: hold, commit, void, denial, leaving; repeats; streams; refusals."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from service.client import Denied, Stint, StintError, Unreachable, dp_sgd, label_release, sliding_window
from tests.service.terminal import Running
from trainers.catalog import CATALOG

TRAINING = dp_sgd(noise_multiplier=2.0, sampling_probability=0.01, steps=100, clip_norm=1.0)


@pytest.fixture
def population(stint: Stint, request: pytest.FixtureRequest) -> str:
    """A population of 1,000 with one task of 500."""
    name = str(request.node.name).replace("_", "-").replace("[", ".").replace("]", "")[:100]
    stint.create_population(name, unit="user", epsilon=1.0, delta=1e-6)
    stint.register_count(name, 1000)
    stint.create_task(name, "week 1/a", members={"next": 500}, parts={"memory": {"ranges": [[0, 50]]}})
    return name


def test_the_mechanisms_are_those_of_the_catalog() -> None:
    window = sliding_window(k=2, w0=10, step=0, epsilon=1.0)
    gaussian = sliding_window(k=2, w0=10, step=1, mu=0.5, offset=7)
    for chosen in (TRAINING, label_release(epsilon=0.5, delta=1e-9), window, gaussian):
        CATALOG[chosen["name"]].quote(chosen["parameters"], adjacency="add_remove")
    with pytest.raises(ValueError, match="either epsilon"):
        sliding_window(k=2, w0=10, step=0)


@pytest.mark.slow
def test_a_hold_is_committed_with_the_digest_of_a_file(stint: Stint, population: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"weights")
    with stint.hold(population=population, task="week 1/a", mechanism=TRAINING) as release:
        assert release.decision["outcome"] == "admitted"
        assert stint.release(release.id)["status"] == "held"
        release.commit(artifact=model)
    after = stint.release(release.id)
    assert after["status"] == "committed"
    assert after["artifact"] == {"sha256": hashlib.sha256(b"weights").hexdigest(), "bytes": 7}
    assert stint.datapoint(population, 0)["epsilon"]["spent"] > 0
    assert stint.task(population, "week 1/a")["epsilon"]["spent"] > 0
    assert [each["name"] for each in stint.tasks(population)] == ["week 1/a"]
    assert [each["id"] for each in stint.releases(population, status="committed")] == [release.id]


@pytest.mark.slow
def test_a_denied_hold_raises_with_reasons_and_advice(stint: Stint, population: str) -> None:
    hasty = dp_sgd(noise_multiplier=0.5, sampling_probability=0.1, steps=1000, clip_norm=1.0)
    with (
        pytest.raises(Denied, match="lifelong budget") as denied,
        stint.hold(population=population, task="week 1/a", mechanism=hasty),
    ):
        pytest.fail("the block must not run")
    assert denied.value.reasons[0]["code"] == "budget.exceeded"
    assert denied.value.advice
    assert stint.release(denied.value.release["id"])["status"] == "denied"
    assert stint.datapoint(population, 0)["epsilon"]["spent"] == 0


@pytest.mark.slow
def test_leaving_without_a_word_lets_the_hold_stand(stint: Stint, population: str) -> None:
    with stint.hold(population=population, task="week 1/a", mechanism=TRAINING) as left:
        pass
    with (
        pytest.raises(RuntimeError, match="the training crashed"),
        stint.hold(population=population, task="week 1/a", mechanism=TRAINING) as crashed,
    ):
        raise RuntimeError("the training crashed")
    with stint.hold(population=population, task="week 1/a", mechanism=TRAINING) as voided:
        voided.void(reason="a test")
    states = {each["id"]: each["status"] for each in stint.releases(population)}
    assert states == {left.id: "held", crashed.id: "held", voided.id: "voided"}


@pytest.mark.slow
def test_one_key_one_effect(stint: Stint, population: str) -> None:
    asked: dict[str, Any] = {"population": population, "task": "week 1/a", "mechanism": TRAINING}
    first = stint.propose(idempotency_key="monday", **asked)
    assert stint.propose(idempotency_key="monday", **asked) == first
    with pytest.raises(StintError, match="another request") as reused:
        stint.propose(idempotency_key="monday", **(asked | {"part": "memory"}))
    assert (reused.value.name, reused.value.status) == ("key-reused", 422)
    assert len(list(stint.releases(population))) == 1
    both = stint.propose_batch([asked, asked | {"task": "unknown"}])
    assert [each["status"] for each in both] == ["held", "refused"]
    assert stint.dry_run(**asked)["status"] == "dry_run"
    assert len(list(stint.releases(population))) == 2


@pytest.mark.slow
def test_keys_are_streamed_with_progress(stint: Stint) -> None:
    stint.create_population("streamed", unit="user", epsilon=1.0, delta=1e-6)
    heard: list[int] = []
    answer = stint.register_keys("streamed", (f"person {n}" for n in range(25_000)), progress=heard.append)
    assert (answer["registered"], answer["known"], answer["datapoints"]) == (25_000, 0, 25_000)
    assert heard == [10_000, 20_000]
    assert stint.register_keys("streamed", ["person 7", "newcomer"])["registered"] == 1
    assert stint.lookup("streamed", "person 7")["ordinal"] == 7
    assert stint.erase("streamed", "person 7")["erased"]
    with pytest.raises(StintError) as gone:
        stint.lookup("streamed", "person 7")
    assert gone.value.status == 410


@pytest.mark.slow
def test_policies_status_and_evidence(stint: Stint, population: str) -> None:
    assert stint.policy(population)["version"] == 1
    assert stint.change_policy(population, reason="a test", epsilon=0.5, version=1)["version"] == 2
    with pytest.raises(StintError) as stale:
        stint.change_policy(population, reason="a test", epsilon=0.4, version=1)
    assert stale.value.status == 412
    assert stint.change_status(population, "frozen", reason="a test")["status"] == "frozen"
    entries = list(stint.ledger(population))
    assert [each["number"] for each in entries] == list(range(1, len(entries) + 1))
    with stint.export(population) as pieces:
        assert [json.loads(line) for line in b"".join(pieces).splitlines()] == entries
    made = stint.make_checkpoint()
    assert stint.proof(population, 1, checkpoint=made["number"])["hash"] == entries[0]["hash"]
    assert stint.checkpoints()[-1]["number"] == made["number"]
    assert stint.verify(population)["ok"]
    assert stint.budget(population)["datapoints"] == 1000
    assert population in [each["name"] for each in stint.populations()]
    assert stint.population(population)["status"] == "frozen"
    with pytest.raises(StintError), stint.export("nobody"):
        pytest.fail("there is nothing to export")


@pytest.mark.slow
def test_keys_mechanisms_and_advice(stint: Stint, running: Running) -> None:
    made = stint.create_key("a pipeline", roles=["pipeline"], expires_in_days=1)
    with Stint(running.url, made["secret"]) as other:
        assert other.whoami()["roles"] == ["pipeline"]
        with pytest.raises(StintError, match="roles") as forbidden:
            other.create_key("mine", roles=["admin"])
        assert forbidden.value.name == "forbidden"
        assert forbidden.value.advice
    stint.revoke_key(made["id"])
    keys = stint.keys()
    assert [each["revoked"] for each in keys if each["id"] == made["id"]] == [True]
    assert {each["name"] for each in stint.mechanisms()} == set(CATALOG)
    assert 0 < stint.price(TRAINING)["epsilon_upper"] < 1
    noise = stint.calibrate(epsilon=1.0, delta=1e-5, sampling_probability=0.01, steps=1000)["noise_multiplier"]
    assert noise == pytest.approx(1.415, abs=1e-3)


@pytest.mark.slow
def test_a_restart_is_waited_for(running: Running, stint: Stint, population: str) -> None:
    restart = threading.Thread(target=running.restart)
    restart.start()
    answers: list[dict[str, Any]] = []
    while restart.is_alive() or not answers:
        answers.append(stint.propose(population=population, task="week 1/a", mechanism=TRAINING))
    restart.join()
    recorded = [each["id"] for each in stint.releases(population)]
    assert sorted(recorded) == sorted(each["id"] for each in answers)  # none lost, none twice
    assert stint.verify(population)["ok"]


class Busy(BaseHTTPRequestHandler):
    """Busy three times, then fine; remembers the keys under which it was asked."""

    asked: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked.append(self.headers["Idempotency-Key"])
        busy = len(type(self).asked) < 4
        body = b'{"detail": "busy", "status": 503}' if busy else b'{"status": "held"}'
        self.send_response(503 if busy else 201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_busy_service_is_asked_again_under_the_same_key() -> None:
    Busy.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with Stint(f"http://127.0.0.1:{server.server_port}", "sk_x") as client:
                assert client.propose(population="p")["status"] == "held"
                assert len(Busy.asked) == 4
                assert len(set(Busy.asked)) == 1
                Busy.asked = []
                client.create_population("p", unit="user", epsilon=1.0, delta=1e-6)
                assert len(Busy.asked) == 4
                assert len(set(Busy.asked)) == 1
                Busy.asked = []
                with pytest.raises(StintError, match="busy"):  # a second key would be one too many
                    client.create_key("k", roles=["admin"])
                assert len(Busy.asked) == 1
            with Stint(f"http://127.0.0.1:{server.server_port}", "sk_x", retry_seconds=0) as client:
                Busy.asked = []
                with pytest.raises(StintError) as busy:
                    client.propose(population="p")
                assert busy.value.status == 503
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://127.0.0.1:99999", "no address", "http://[::", "ftp://127.0.0.1"]
)
def test_an_address_without_a_service_is_said(url: str) -> None:
    with pytest.raises(Unreachable) as problem, Stint(url, "sk_x", retry_seconds=0) as client:
        client.whoami()
    assert problem.value.status == 0
    with pytest.raises(Unreachable), Stint(url, "sk_x", retry_seconds=0) as client:
        client.register_keys("p", ["a"])


def test_a_key_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STINT_KEY", "sk_ä")
    with pytest.raises(ValueError, match="plain letters"):
        Stint()
