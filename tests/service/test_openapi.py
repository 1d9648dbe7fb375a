"""Schemathesis reads the OpenAPI document and tries everything: no fault of ours, and no answer that is not in it."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conftest import PROFILE
from tests.service.harness import Caller, Local

EXAMPLES = {"quick": 5, "default": 10, "full": 200}[PROFILE]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = 48  # a route that is not documented would lower it


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=["what fits the document", "what does not"])
def test_no_request_finds_a_fault_or_an_undocumented_answer(service: Local, mode: GenerationMode) -> None:
    _furnish(service.call)
    schema = schemathesis.openapi.from_asgi("/openapi.json", service.app)
    found = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(found) >= OPERATIONS
    for operation in found:

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case: Any) -> None:
            if case.path == "/v1/advice/calibrate":
                _bound(case.body)
            case.call_and_validate(headers={"Authorization": f"Bearer {service.call.key}"}, checks=CHECKS)

        with suppress(Unsatisfiable):  # an address that takes nothing takes nothing wrong
            run()


def _bound(body: Any) -> None:
    """A calibration for odd parameters takes minutes, and there is nothing else to learn from it here."""
    for name, least, most in (
        ("steps", 1, 100),
        ("epsilon", 0.5, 10),
        ("delta", 1e-9, 1e-3),
        ("sampling_probability", 1e-3, 1),
    ):
        if isinstance(body, dict) and isinstance(body.get(name), int | float) and body[name] > 0:
            body[name] = min(max(body[name], least), most)


def _furnish(call: Caller) -> None:
    """So that guessed names meet something: schemathesis takes examples from the document."""
    call("POST", "/v1/populations", {"name": "clinic-a", "unit": "user", "budget": {"epsilon": 3.0, "delta": 1e-6}})
    call("POST", "/v1/populations/clinic-a/datapoints", {"count": 1000})
    call("POST", "/v1/populations/clinic-a/tasks", {"name": "2026-w46", "members": {"ranges": [[0, 500]]}})


# What a generator of documents hardly ever draws.

_JSON = {"Content-Type": "application/json"}
_NDJSON = {"Content-Type": "application/x-ndjson"}
_CSV = {"Content-Type": "text/csv"}


def _release(scope: str, event: str = '{"kind": "pure_dp", "epsilon": 0.1}') -> bytes:
    return f'{{"population": "POPULATION", "charges": [{{"scope": {scope}, "event": {event}}}]}}'.encode()


def _cursor(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


@pytest.mark.parametrize(
    ("method", "path", "content", "headers"),
    [
        pytest.param("POST", "/v1/releases", _release('{"bitmap": ""}'), _JSON, id="no bytes as a bitmap"),
        pytest.param("POST", "/v1/releases", _release('{"bitmap": "AAAA"}'), _JSON, id="other bytes as a bitmap"),
        pytest.param("POST", "/v1/releases", _release('{"keys": ["\\ud800"]}'), _JSON, id="a key that is no text"),
        pytest.param("POST", "/v1/releases", _release('{"keys": [{}]}'), _JSON, id="a key that is an object"),
        pytest.param("POST", "/v1/releases", _release('{"task": "\\ud800"}'), _JSON, id="a task that is no text"),
        pytest.param("POST", "/v1/releases", _release('{"ranges": [[0, 1e400]]}'), _JSON, id="an infinite range"),
        pytest.param("POST", "/v1/releases", _release('{"ranges": [[0, true]]}'), _JSON, id="a range of booleans"),
        pytest.param("POST", "/v1/releases", _release('{"union": [[]]}'), _JSON, id="a union of lists"),
        pytest.param("POST", "/v1/releases", _release("{}", "NaN"), _JSON, id="no number as an event"),
        pytest.param("POST", "/v1/releases", b"[" * 100_000, _JSON, id="a deep document"),
        pytest.param("POST", "/v1/releases", b'{"population": ' + b"9" * 5000, _JSON, id="a long number"),
        pytest.param("POST", "PATH/datapoints", b"[" * 100_000, _JSON, id="a deep registration"),
        pytest.param("POST", "PATH/datapoints", b"[" * 6_000, _NDJSON, id="a deep line"),
        pytest.param("POST", "PATH/datapoints", b'{"key": "\\ud800"}', _NDJSON, id="a line that is no text"),
        pytest.param("POST", "PATH/datapoints", b"\xff\xfe", _NDJSON, id="a line that is not UTF-8"),
        pytest.param("POST", "PATH/datapoints", b"key\na\rb\n", _CSV, id="half a line end"),
        pytest.param("POST", "PATH/datapoints", b"name\na\n", _CSV, id="no column of keys"),
        pytest.param("POST", "PATH/datapoints/lookup", b'{"key": "\\ud800"}', _JSON, id="looking for no text"),
        pytest.param("POST", "/v1/keys", b'{"name": "a\\u0000", "roles": ["auditor"]}', _JSON, id="a name with NUL"),
        pytest.param("DELETE", "/v1/keys/a%00b", b"", {}, id="a key with NUL"),
        pytest.param("GET", f"/v1/populations?cursor={_cursor({'after': chr(0)})}", b"", {}, id="after NUL"),
        pytest.param("GET", f"/v1/populations?cursor={_cursor({'after': {}})}", b"", {}, id="after an object"),
        pytest.param("GET", f"/v1/keys?cursor={_cursor({'after': chr(0)})}", b"", {}, id="keys after NUL"),
        *(
            pytest.param("GET", f"{path}cursor={_cursor({'number': number})}", b"", {}, id=f"{path} after {number!r}")
            for path in ("/v1/releases?population=POPULATION&", "PATH/ledger?", "PATH/tasks?")
            for number in ("x", None, 2**70, 1.5, [1])
        ),
    ],
)
def test_what_cannot_be_read_is_422(
    call: Caller, method: str, path: str, content: bytes, headers: dict[str, str]
) -> None:
    name = call.population(count=3)
    path = path.replace("PATH", f"/v1/populations/{name}").replace("POPULATION", name)
    answer = call(method, path, content=content.replace(b"POPULATION", name.encode()), headers=headers)
    assert answer.status_code == 422, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:stint:problem:invalid"


def test_a_body_that_turns_out_too_large_is_413(call: Caller) -> None:
    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 2**20

    answer = call("POST", "/v1/releases", content=pieces(), headers=_JSON)
    assert answer.status_code == 413


def test_every_problem_says_what_it_is(call: Caller) -> None:
    answer = call("GET", "/v1/populations/nobody")
    assert answer.status_code == 404
    assert answer.json()["instance"] == f"urn:stint:request:{answer.headers['X-Request-Id']}"
    assert {"type", "title", "status", "detail", "advice"} <= set(answer.json())
    assert call("GET", "/nowhere").status_code == 404
    assert call("PATCH", "/v1/populations").status_code == 405
    assert call("GET", "/v1/populations", headers={"Authorization": "Bearer sk_wrong"}).status_code == 401
    assert call("GET", "/v1/populations/nobody/ledger/consistency?since=0&until=0").status_code == 404
