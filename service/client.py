"""The Python client: `from service.client import Stint`.

Thin: a method per address, documents in and documents out. Every POST and PUT carries an `Idempotency-Key`, and a
request that may have been lost is sent again under the same key, so it has one effect however often it travels.

    with Stint() as stint, stint.hold(population="clinic-a", task="2026-w46", mechanism=dp_sgd(...)) as release:
        model = train(...)
        release.commit(artifact="model.safetensors")
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import quote

import httpx

Document: TypeAlias = dict[str, Any]
Format: TypeAlias = Literal["ndjson", "csv"]

DEFAULT_URL: Final = "http://127.0.0.1:8000"

_log = logging.getLogger(__name__)
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
_CONNECT_SECONDS: Final = 10.0
_VERIFY_SECONDS: Final = 3600.0  # a long log is decided again from its first entry
_PAGE: Final = 1000
_POLL_SECONDS: Final = 2.0
_PROGRESS_EVERY: Final = 10_000
_FILE_BYTES: Final = 2**20


class StintError(Exception):
    """The service answered with a problem; `problem` is the whole document (RFC 9457)."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.problem = dict(problem)
        super().__init__(str(problem.get("detail") or problem.get("title") or "The service refused the request."))

    @property
    def name(self) -> str:
        """The last word of its type, as in docs/errors.md."""
        return str(self.problem.get("type", "")).rpartition(":")[2]

    @property
    def status(self) -> int:
        """The HTTP status; 0 if there was no answer."""
        return int(self.problem.get("status", 0))

    @property
    def advice(self) -> str:
        """What to do about it."""
        return str(self.problem.get("advice", ""))


class Unreachable(StintError):
    """There was no answer, or not one of Stint. What became of the request is unknown; to send it again is safe."""

    def __init__(self, detail: str) -> None:
        super().__init__({"type": "urn:stint:problem:unreachable", "status": 0, "detail": detail})


class Spoiled(StintError):
    """What arrived is not what the ledger says; nothing of it was kept."""

    def __init__(self, release: str, *, expected: str, got: str) -> None:
        detail = f"What arrived as the artifact of {release} has the sha256 {got}, and not {expected}."
        super().__init__({"type": "urn:stint:problem:artifact-changed", "status": 0, "detail": detail})


class Denied(Exception):
    """A proposal was denied: recorded, and charged to nobody."""

    def __init__(self, release: Mapping[str, Any]) -> None:
        self.release = dict(release)
        decision = self.release["decision"]
        self.reasons: list[Document] = decision["reasons"]
        self.advice: list[Document] = decision["advice"]
        said = (f"{each['message']} {each.get('remedy', '')}".strip() for each in (*self.reasons, *self.advice))
        super().__init__(" ".join(said))


# ---------------------------------------------------------------- mechanisms


def dp_sgd(*, noise_multiplier: float, sampling_probability: float, steps: int, clip_norm: float) -> Document:
    """DP-SGD, as a proposal names it."""
    return {
        "name": "dp-sgd",
        "parameters": {
            "noise_multiplier": noise_multiplier,
            "sampling_probability": sampling_probability,
            "steps": steps,
            "clip_norm": clip_norm,
        },
    }


def label_release(*, epsilon: float, delta: float, labels_per_unit: int = 1) -> Document:
    """Which labels exist, as a proposal names it."""
    return {
        "name": "label-release",
        "parameters": {"epsilon": epsilon, "delta": delta, "labels_per_unit": labels_per_unit},
    }


def sliding_window(
    *,
    k: int,
    w0: int,
    step: int,
    epsilon: float | None = None,
    mu: float | None = None,
    offset: int = 0,
    startup: Literal["full", "partial"] = "full",
    chain: Sequence[Mapping[str, int]] | None = None,
) -> Document:
    """One step of a window over a stream, as a proposal names it: pure noise with `epsilon`, Gaussian with `mu`.

    `chain` are the blocks that were, or will be, trained; left out, those of the schedule. Whoever knows better what it
    trains should say it: the service compares.
    """
    if (epsilon is None) == (mu is None):
        raise ValueError("a sliding window has either epsilon (pure noise) or mu (Gaussian noise)")
    if chain is None:
        from accountant.streams.schedules import SlidingWindow  # noqa: PLC0415 - the rest needs no mathematics

        due = SlidingWindow(k=k, w0=w0, startup=startup).step(step)
        chain = [
            {"level": block.level, "start": block.start + offset, "stop": block.stop + offset} for block in due.trained
        ]
    parameters: Document = {
        "k": k, "w0": w0, "step": step, "chain": [dict(block) for block in chain], "offset": offset, "startup": startup,
    }  # fmt: skip
    noise: Document = {"noise": "gaussian", "mu": mu} if epsilon is None else {"noise": "pure", "epsilon": epsilon}
    return {"name": "sliding-window", "parameters": parameters | noise}


def artifact_of(path: str | os.PathLike[str], *, uri: str | None = None, metrics: Document | None = None) -> Document:
    """What is recorded of a file that leaves the house: its digest and its size, and not where it lies."""
    digest, size = hashlib.sha256(), 0
    with Path(path).open("rb") as file:
        while piece := file.read(_FILE_BYTES):
            digest.update(piece)
            size += len(piece)
    document: Document = {"sha256": digest.hexdigest(), "bytes": size}
    return document | ({"uri": uri} if uri else {}) | ({"metrics": metrics} if metrics else {})


# ---------------------------------------------------------------- the client


class Stint:
    """A connection to the service. `url` and `key` default to STINT_URL and STINT_KEY.

    `retry_seconds` is how long a request is repeated while the service is busy or cannot be reached.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retry_seconds: float = 30.0,
        timeout_seconds: float = 120.0,
    ) -> None:
        self.url = (url or os.environ.get("STINT_URL") or DEFAULT_URL).rstrip("/")
        secret = (key or os.environ.get("STINT_KEY") or "").strip()
        if not (secret.isascii() and secret.isprintable()):
            raise ValueError("a key is a line of plain letters, sk_…")
        self._retry_seconds = retry_seconds
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {secret}"} if secret else {},
                timeout=httpx.Timeout(timeout_seconds, connect=_CONNECT_SECONDS),
                trust_env=False,  # a ledger is asked directly, not through whatever proxy is around
            )
        except httpx.InvalidURL as problem:
            raise Unreachable(f"{self.url} is no address: {problem}.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    # Populations

    def create_population(
        self,
        name: str,
        *,
        unit: Literal["record", "user"],
        epsilon: float,
        delta: float,
        adjacency: Literal["add_remove", "replace_one"] = "add_remove",
        **rest: Any,
    ) -> Document:
        """Promise something to a new population; `rest` are further fields, such as `on_exhausted`."""
        body = {"name": name, "unit": unit, "adjacency": adjacency, "budget": {"epsilon": epsilon, "delta": delta}}
        return self._post("/v1/populations", body | rest)

    def populations(self) -> Iterator[Document]:
        """All of them, by name."""
        return self._pages("/v1/populations")

    def population(self, name: str) -> Document:
        """What was promised to it, and how large it is."""
        return self._get(f"/v1/populations/{_quoted(name)}")

    def policy(self, population: str) -> Document:
        """The policy of now."""
        return self._get(f"/v1/populations/{_quoted(population)}/policy")

    def change_policy(self, population: str, *, reason: str, version: int | None = None, **changes: Any) -> Document:
        """A new version, for a reason. With `version`, only if that is still the policy of now."""
        match = {} if version is None else {"If-Match": f'"{version}"'}
        return self._document(
            "PUT", f"/v1/populations/{_quoted(population)}/policy", body={"reason": reason, **changes}, headers=match
        )

    def change_status(self, population: str, status: Literal["open", "frozen", "closed"], *, reason: str) -> Document:
        """Freeze, open again, or close for good."""
        return self._post(f"/v1/populations/{_quoted(population)}/status", {"status": status, "reason": reason})

    def budget(self, population: str) -> Document:
        """Spent, held and available over all datapoints, and per task."""
        return self._get(f"/v1/populations/{_quoted(population)}/budget")

    # Datapoints

    def register_count(self, population: str, count: int) -> Document:
        """So many datapoints without keys."""
        return self._post(f"/v1/populations/{_quoted(population)}/datapoints", {"count": count})

    def register_keys(
        self, population: str, keys: Iterable[str], *, progress: Callable[[int], object] | None = None
    ) -> Document:
        """Datapoints with keys, streamed: any number, in little memory. `progress` hears how many were sent.

        A stream that broke is not repeated by itself; to send all of it again is safe, since known keys stay known.
        """

        def lines() -> Iterator[bytes]:
            for number, key in enumerate(keys, start=1):
                yield json.dumps({"key": key}, ensure_ascii=False).encode() + b"\n"
                if progress is not None and number % _PROGRESS_EVERY == 0:
                    progress(number)

        return self.register_stream(population, _joined(lines()), content_type="application/x-ndjson")

    def register_stream(self, population: str, body: Iterable[bytes], *, content_type: str) -> Document:
        """A file of keys as it is: NDJSON (`application/x-ndjson`), CSV (`text/csv`) or Parquet
        (`application/vnd.apache.parquet`)."""
        path = f"/v1/populations/{_quoted(population)}/datapoints"
        try:
            answer = self._http.post(path, content=body, headers={"Content-Type": content_type})
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as problem:
            raise self._unreachable(problem) from problem
        return self._read(answer)

    def datapoint(self, population: str, ordinal: int) -> Document:
        """Everything released about one datapoint."""
        return self._get(f"/v1/populations/{_quoted(population)}/datapoints/{ordinal}")

    def lookup(self, population: str, key: str) -> Document:
        """Everything released about the datapoint with this key."""
        return self._post(f"/v1/populations/{_quoted(population)}/datapoints/lookup", {"key": key})

    def erase(self, population: str, key: str) -> Document:
        """Forget a key; its balance stays, for whoever comes back with it."""
        return self._post(f"/v1/populations/{_quoted(population)}/datapoints/erase", {"key": key})

    # Tasks

    def create_task(
        self,
        population: str,
        name: str,
        *,
        members: Mapping[str, Any],
        parts: Mapping[str, Any] | None = None,
        budget: Mapping[str, float] | None = None,
    ) -> Document:
        """A named subset, with named parts, and a budget of its own if it has one."""
        body: Document = {"name": name, "members": dict(members)}
        body |= ({"parts": dict(parts)} if parts else {}) | ({"budget": dict(budget)} if budget else {})
        return self._post(f"/v1/populations/{_quoted(population)}/tasks", body)

    def tasks(self, population: str) -> Iterator[Document]:
        """All of them, in the order in which they were made."""
        return self._pages(f"/v1/populations/{_quoted(population)}/tasks")

    def task(self, population: str, name: str) -> Document:
        """One task, with all tasks that it shares datapoints with."""
        path = f"/v1/populations/{_quoted(population)}/tasks/{_quoted(name)}"
        found = self._get(path, {"limit": str(_PAGE)})
        while (cursor := found["overlaps_next"]) is not None:
            page = self._get(path, {"limit": str(_PAGE), "cursor": cursor})
            found |= {"overlaps": found["overlaps"] + page["overlaps"], "overlaps_next": page["overlaps_next"]}
        return found

    # Releases

    def propose(self, /, *, idempotency_key: str | None = None, **proposal: Any) -> Document:
        """Propose a release; the answer is held or denied, and recorded. Fields are those of POST /v1/releases."""
        return self._post("/v1/releases", proposal, key=idempotency_key)

    def dry_run(self, /, **proposal: Any) -> Document:
        """The decision that would be made now; nothing is recorded."""
        return self._document("POST", "/v1/releases", body=proposal, query={"dry_run": "true"})

    def propose_batch(
        self, proposals: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[Document]:
        """Several, one after the other; each has its own decision, or its own problem."""
        body = {"proposals": [dict(each) for each in proposals]}
        items: list[Document] = self._post("/v1/releases/batch", body, key=idempotency_key)["items"]
        return items

    def commit(
        self,
        release: str,
        *,
        artifact: str | os.PathLike[str] | Document | None = None,
        evaluation: Document | None = None,
        reason: str | None = None,
    ) -> Document:
        """It left the house: what was held is spent. Of a file, digest and size are recorded.

        An officer's `reason` says why it is settled by hand: so is what left before an audit blocked its mechanism.
        """
        if artifact is not None and not isinstance(artifact, dict):
            artifact = artifact_of(artifact)
        said = {"artifact": artifact, "evaluation": evaluation, "reason": reason}
        body = {name: value for name, value in said.items() if value is not None}
        return self._post(f"/v1/releases/{_quoted(release)}/commit", body)

    def void(self, release: str, *, reason: str, evidence: Document | None = None) -> Document:
        """Nothing of it left the house, for a reason."""
        return self._post(
            f"/v1/releases/{_quoted(release)}/void", {"reason": reason} | ({"evidence": evidence} if evidence else {})
        )

    def audit(self, release: str, *, found: Mapping[str, Any] | None = None) -> Document:
        """Check a release against the rules of docs/audits.md; what is found is recorded.

        `found` is what you found in its file, if the service does not have that: recorded as your word.
        """
        return self._post(f"/v1/releases/{_quoted(release)}/audit", {} if found is None else {"found": dict(found)})

    def release(self, release: str) -> Document:
        """Its charges, its decision and what became of it."""
        return self._get(f"/v1/releases/{_quoted(release)}")

    def releases(self, population: str, *, status: str | None = None) -> Iterator[Document]:
        """Newest first."""
        return self._pages("/v1/releases", {"population": population} | ({"status": status} if status else {}))

    def artifact(
        self,
        release: str,
        path: str | os.PathLike[str],
        *,
        sha256: str | None = None,
        overwrite: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Document:
        """What a job made of a release, as a file with this digest, or there is none; left out, that of the ledger.

        It arrives beside the target, and takes the target's name once it is found right. `progress` hears how many
        bytes of how many are here.
        """
        target = Path(path)
        if not overwrite and target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        if sha256 is None:
            sha256 = (self.release(release)["artifact"] or {}).get("sha256")
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        digest, size = hashlib.sha256(), 0
        with self._streamed(f"/v1/releases/{_quoted(release)}/artifact") as answer:
            try:
                with part.open("xb") as file:
                    for piece in answer.iter_bytes():
                        file.write(piece)
                        digest.update(piece)
                        size += len(piece)
                        if progress is not None:
                            progress(size, int(answer.headers.get("Content-Length", size)))
                    file.flush()
                    os.fsync(file.fileno())
                if digest.hexdigest() != sha256:
                    raise Spoiled(release, expected=str(sha256), got=digest.hexdigest())
                part.replace(target)
            except OSError as problem:
                if str(problem.filename) == str(part):  # of which the caller knows nothing
                    problem.filename = str(target)
                raise
            finally:
                with suppress(OSError):
                    part.unlink()
        return {"release": release, "file": str(target), "sha256": digest.hexdigest(), "bytes": size}

    def card(self, release: str) -> Document:
        """The model card of what a job made."""
        return self._get(f"/v1/releases/{_quoted(release)}/card")

    def card_text(self, release: str) -> str:
        """The same for people, in Markdown."""
        with self._streamed(f"/v1/releases/{_quoted(release)}/card", {"format": "md"}) as answer:
            return answer.read().decode()

    def hold(
        self,
        *,
        population: str,
        mechanism: Mapping[str, Any] | None = None,
        task: str | None = None,
        idempotency_key: str | None = None,
        **proposal: Any,
    ) -> Hold:
        """Propose, and work while the budget is held. A denial is raised as `Denied`.

        Leaving the block without commit or void, or by an exception, lets the hold stand until it expires into spent:
        whether something left the house is then unknown, and unknown is spent.
        """
        asked: Document = {"population": population, "mechanism": mechanism, "task": task, **proposal}
        return Hold(self, {name: value for name, value in asked.items() if value is not None}, idempotency_key)

    # Evidence

    def certificate(self, release: str) -> bytes:
        """The signed certificate of a release that left the house: keep the bytes as they are."""
        return self._content(f"/v1/releases/{_quoted(release)}/certificate")

    def verify_certificate(self, content: bytes) -> Document:
        """What the service says of a certificate; it needs no key, and knows only its own signatures."""
        request = self._http.build_request(
            "POST", "/v1/verify", content=content, headers={"Content-Type": "application/json"}
        )
        return self._read(self._send(request, repeatable=True))

    def statement(
        self, population: str, *, ordinal: int | None = None, key: str | None = None, form: str = "json"
    ) -> bytes:
        """What has been released about one person, by ordinal or by key: as `json`, `text` or `html`."""
        if (ordinal is None) == (key is None):
            raise ValueError("a statement is about one datapoint: give its ordinal or its key")
        path = f"/v1/populations/{_quoted(population)}/datapoints"
        if key is None:
            return self._content(f"{path}/{ordinal}/statement", {"format": form})
        return self._content(f"{path}/statement", {"format": form}, body={"key": key})

    def report(
        self,
        *,
        population: str | None = None,
        release: str | None = None,
        since: str | None = None,
        until: str | None = None,
        form: str = "json",
    ) -> bytes:
        """Everything about a population for a period, or about one release: signed `json`, or `html` that prints."""
        if (population is None) == (release is None):
            raise ValueError("a report is about a population or about a release")
        query = {"format": form, "from": since, "to": until}
        asked = {name: value for name, value in query.items() if value is not None}
        if release is not None:
            return self._content(f"/v1/releases/{_quoted(release)}/report", asked)
        return self._content(f"/v1/populations/{_quoted(str(population))}/report", asked)

    # The ledger

    def ledger(self, population: str) -> Iterator[Document]:
        """Every entry, oldest first."""
        return self._pages(f"/v1/populations/{_quoted(population)}/ledger")

    @contextmanager
    def export(self, population: str, *, form: Format = "ndjson") -> Iterator[Iterator[bytes]]:
        """The whole ledger as a file, in pieces."""
        with self._streamed(f"/v1/populations/{_quoted(population)}/ledger/export", {"format": form}) as answer:
            yield answer.iter_bytes()

    def verify(self, population: str) -> Document:
        """Rebuild a population from its log on the server, and compare."""
        path = f"/v1/populations/{_quoted(population)}/ledger/verify"
        return self._document("POST", path, seconds=_VERIFY_SECONDS)

    def proof(self, population: str, number: int, *, checkpoint: int) -> Document:
        """What shows an outsider that an entry is in the ledger that a checkpoint saw."""
        return self._get(
            f"/v1/populations/{_quoted(population)}/ledger/{number}/proof", {"checkpoint": str(checkpoint)}
        )

    def checkpoints(self) -> list[Document]:
        """Signed heads of all populations."""
        items: list[Document] = self._get("/v1/checkpoints")["items"]
        return items

    def make_checkpoint(self) -> Document:
        """Sign all heads now."""
        return self._post("/v1/checkpoints", None)

    # Jobs

    def submit(self, /, *, idempotency_key: str | None = None, **job: Any) -> Job:
        """Have a worker run a mechanism. Fields are those of POST /v1/jobs; `Denied` if the release is."""
        answer = self._post("/v1/jobs", job, key=idempotency_key)
        if answer["id"] is None:
            raise Denied(answer["release"])
        return self.job(answer["id"])

    def job(self, identity: str) -> Job:
        """One job, as it is now."""
        return Job(self, self._get(f"/v1/jobs/{_quoted(identity)}"))

    def jobs(self, *, population: str | None = None, status: str | None = None) -> Iterator[Document]:
        """All of them, newest first; of one population or status, if that is said."""
        asked = {"population": population, "status": status}
        return self._pages("/v1/jobs", {name: value for name, value in asked.items() if value is not None})

    def job_lines(self, identity: str) -> list[Document]:
        """How a job changed its status."""
        lines: list[Document] = self._get(f"/v1/jobs/{_quoted(identity)}/logs")["lines"]
        return lines

    def cancel_job(self, identity: str) -> Document:
        """Void its release; nothing of it is published."""
        return self._post(f"/v1/jobs/{_quoted(identity)}/cancel", None)

    # Empirical audits

    def start_audit(self, population: str, *, idempotency_key: str | None = None, **audit: Any) -> Document:
        """Plan an audit of a mechanism. Fields are those of POST /v1/audits."""
        return self._post("/v1/audits", {"population": population, **audit}, key=idempotency_key)

    def empirical_audit(self, identity: str) -> Document:
        """One audit, as it is now."""
        return self._get(f"/v1/audits/{_quoted(identity)}")

    def wait_for_audit(
        self, identity: str, *, seconds: float | None = None, progress: Callable[[int, int], object] | None = None
    ) -> Document:
        """The audit once it has ended, however that is, or after so many seconds `TimeoutError`.

        `progress` hears the samples done, and of how many.
        """
        return _ended(lambda: self.empirical_audit(identity), seconds=seconds, progress=progress)

    def audits(self, *, population: str | None = None) -> Iterator[Document]:
        """All of them, newest first; of one population, if that is said."""
        return self._pages("/v1/audits", {} if population is None else {"population": population})

    # Keys

    def create_key(
        self, name: str, *, roles: Sequence[str], expires_in_days: float | None = None, reason: str | None = None
    ) -> Document:
        """A new key; its secret is in this answer and nowhere else. The log of keys has the reason."""
        body: Document = {"name": name, "roles": list(roles)}
        if expires_in_days is not None:
            body["expires_in_days"] = expires_in_days
        if reason is not None:
            body["reason"] = reason
        return self._post("/v1/keys", body, repeatable=False)

    def key_log(self) -> list[Document]:
        """Who was let in by whom, and why, newest first."""
        return list(self._pages("/v1/keys/log"))

    def verify_keys(self) -> Document:
        """Have the log of keys checked; `ok` says whether everything agrees."""
        return self._document("POST", "/v1/keys/log/verify", seconds=_VERIFY_SECONDS)

    def keys(self) -> list[Document]:
        """All keys, without their secrets."""
        return list(self._pages("/v1/keys"))

    def revoke_key(self, identity: str, *, reason: str | None = None) -> None:
        """Within two seconds it opens nothing any more. The log of keys has the reason."""
        asked = {} if reason is None else {"reason": reason}
        request = self._http.build_request("DELETE", f"/v1/keys/{_quoted(identity)}", params=asked)
        self._read(self._send(request, repeatable=True))

    def whoami(self) -> Document:
        """Who the service thinks you are."""
        return self._get("/v1/keys/self")

    # Mechanisms and advice

    def mechanisms(self) -> list[Document]:
        """The catalog."""
        items: list[Document] = self._get("/v1/mechanisms")["items"]
        return items

    def price(self, mechanism: Mapping[str, Any], *, adjacency: str = "add_remove", delta: float = 1e-6) -> Document:
        """What one release by a mechanism would cost."""
        body = {"parameters": mechanism.get("parameters", {}), "adjacency": adjacency, "delta": delta}
        return self._post(f"/v1/mechanisms/{_quoted(mechanism['name'])}/price", body)

    def calibrate(
        self, *, epsilon: float, delta: float, sampling_probability: float, steps: int, adjacency: str = "add_remove"
    ) -> Document:
        """The smallest noise for a promise."""
        body = {
            "epsilon": epsilon, "delta": delta, "sampling_probability": sampling_probability, "steps": steps,
            "adjacency": adjacency,
        }  # fmt: skip
        return self._post("/v1/advice/calibrate", body)

    # How requests travel

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        return self._document("GET", path, query=query)

    def _content(self, path: str, query: Mapping[str, str] | None = None, *, body: Any = None) -> bytes:
        """An answer as its bytes, which may be signed."""
        method = "GET" if body is None else "POST"
        answer = self._send(self._http.build_request(method, path, params=query, json=body), repeatable=True)
        if not answer.is_success:
            self._read(answer)
        return answer.content

    def _post(self, path: str, body: Any, *, key: str | None = None, repeatable: bool = True) -> Document:
        return self._document("POST", path, body=body, key=key, repeatable=repeatable)

    def _pages(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Document]:
        cursor: str | None = None
        while True:
            page = self._get(path, {"limit": str(_PAGE), **(query or {}), **({"cursor": cursor} if cursor else {})})
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def _document(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        repeatable: bool = True,
        seconds: float | None = None,
    ) -> Document:
        sent = dict(headers or {})
        limit = self._http.timeout if seconds is None else httpx.Timeout(seconds, connect=_CONNECT_SECONDS)
        if method in {"POST", "PUT"}:
            sent["Idempotency-Key"] = key or f"client-{uuid.uuid4()}"
        try:
            named = httpx.Headers(sent, encoding="utf-8")
            request = self._http.build_request(method, path, json=body, params=query, headers=named, timeout=limit)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as problem:
            raise self._unreachable(problem) from problem
        return self._read(self._send(request, repeatable=repeatable))

    @contextmanager
    def _streamed(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[httpx.Response]:
        """An answer whose body is read in pieces; one that is no success is raised."""
        try:
            request = self._http.build_request("GET", path, params=query)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as problem:
            raise self._unreachable(problem) from problem
        answer = self._send(request, repeatable=True, stream=True)
        try:
            if not answer.is_success:
                answer.read()
                self._read(answer)
            yield answer
        except httpx.TransportError as problem:
            raise self._unreachable(problem) from problem
        finally:
            answer.close()

    def _send(self, request: httpx.Request, *, repeatable: bool, stream: bool = False) -> httpx.Response:
        """Send, and again while the service is busy or away; what the service cannot recognise as a repetition is
        repeated only if it never got there."""
        give_up = time.monotonic() + self._retry_seconds
        wait = _FIRST_WAIT
        while True:
            problem: httpx.TransportError | None = None
            answer: httpx.Response | None = None
            try:
                answer = self._http.send(request, stream=stream)
                again = answer.status_code == 503 and repeatable
            except (httpx.TransportError, httpx.UnsupportedProtocol) as failure:
                problem = failure
                again = isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout) or (
                    repeatable and not isinstance(failure, httpx.UnsupportedProtocol)
                )
            pause = max(wait * (0.5 + random.random()), _retry_after(answer))  # noqa: S311 - spread, not secrecy
            if not again or time.monotonic() + pause > give_up:
                if answer is not None:
                    return answer
                assert problem is not None
                raise self._unreachable(problem) from problem
            if answer is not None:
                answer.close()
            time.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _unreachable(self, problem: Exception) -> Unreachable:
        return Unreachable(f"Stint at {self.url} cannot be reached: {str(problem) or type(problem).__name__}")

    def _read(self, answer: httpx.Response) -> Document:
        if answer.status_code == 204:
            return {}
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict) or (not answer.is_success and "detail" not in document):
            raise Unreachable(f"What answers at {self.url} is not Stint (status {answer.status_code}).")
        if not answer.is_success:
            raise StintError(document)
        return document


class Hold:
    """A release whose budget is held while a block runs."""

    def __init__(self, stint: Stint, proposal: Document, idempotency_key: str | None) -> None:
        self._stint, self._proposal, self._key = stint, proposal, idempotency_key
        self.document: Document = {}
        self.resolved = False

    @property
    def id(self) -> str:
        """The release's name."""
        return str(self.document["id"])

    @property
    def decision(self) -> Document:
        """Why it was admitted, and from where to where ε goes."""
        decision: Document = self.document["decision"]
        return decision

    def commit(
        self, artifact: str | os.PathLike[str] | Document | None = None, *, evaluation: Document | None = None
    ) -> Document:
        """It left the house. Of a file, digest and size are recorded; `evaluation` says on which data metrics are."""
        answer = self._stint.commit(self.id, artifact=artifact, evaluation=evaluation)
        self.resolved = True
        return answer

    def void(self, *, reason: str, evidence: Document | None = None) -> Document:
        """Nothing of it left the house."""
        answer = self._stint.void(self.id, reason=reason, evidence=evidence)
        self.resolved = True
        return answer

    def __enter__(self) -> Self:
        self.document = self._stint.propose(idempotency_key=self._key, **self._proposal)
        if self.document["status"] == "denied":
            raise Denied(self.document)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.resolved:
            _log.warning(
                "release %s was neither committed nor voided: its hold stands until %s, and is then spent",
                self.id,
                self.document["expires_at"],
            )


def _ended(
    ask: Callable[[], Document], *, seconds: float | None, progress: Callable[[int, int], object] | None
) -> Document:
    """A job or an audit once it neither waits nor runs, asked for again and again."""
    ends = None if seconds is None else time.monotonic() + seconds
    pause = _FIRST_WAIT
    while (found := ask())["status"] in {"queued", "running"}:
        if progress is not None:
            progress(found["progress"]["step"], found["progress"]["steps"])
        if ends is not None and time.monotonic() + pause > ends:
            raise TimeoutError(f"{found['id']} is still {found['status']}")
        time.sleep(pause)
        pause = min(1.5 * pause, _POLL_SECONDS)
    return found


class Job:
    """A mechanism that a worker runs; `document` is what the service said of it last."""

    def __init__(self, stint: Stint, document: Document) -> None:
        self._stint, self.document = stint, document

    @property
    def id(self) -> str:
        """The job's name."""
        return str(self.document["id"])

    @property
    def release(self) -> str:
        """The name of what it makes."""
        return str(self.document["release"])

    @property
    def status(self) -> str:
        """queued, running, committed, failed or cancelled."""
        return str(self.document["status"])

    def refresh(self) -> Document:
        """Ask how far it is."""
        self.document = self._stint.job(self.id).document
        return self.document

    def wait(self, *, seconds: float | None = None, progress: Callable[[int, int], object] | None = None) -> Document:
        """Until it has ended, however that is, or for so many seconds: then `TimeoutError`."""
        return _ended(self.refresh, seconds=seconds, progress=progress)

    def download(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Document:
        """What it made, as `Stint.artifact` does it."""
        kept = self.document["artifact"] or self.refresh()["artifact"] or {}
        return self._stint.artifact(
            self.release, path, sha256=kept.get("sha256"), overwrite=overwrite, progress=progress
        )

    def cancel(self) -> Document:
        """Void its release; nothing of it is published."""
        self.document = self._stint.cancel_job(self.id)
        return self.document


def _quoted(name: str) -> str:
    """A name as a part of an address. As they are, dots would lead to another one."""
    return quote(name, safe="") if name.strip(".") else "%2E" * len(name)


def _retry_after(answer: httpx.Response | None) -> float:
    given = "" if answer is None else answer.headers.get("Retry-After", "")
    return float(given) if given.isdigit() else 0.0


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines in pieces that are worth a packet."""
    piece = bytearray()
    for line in lines:
        piece += line
        if len(piece) >= 65536:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)
