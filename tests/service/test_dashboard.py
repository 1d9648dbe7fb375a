"""Pages over HTTP: sessions, forged forms, roles, headers, JSON, and what a stranger sees. Browsers look elsewhere."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from pydantic import ValidationError
from sqlalchemy import text

from service.api import keys as keys_api
from service.api import ledger as ledger_api
from service.api.context import roles_of
from service.dashboard import pages
from service.dashboard import releases as release_pages
from service.dashboard.visitors import sessions_of
from service.operations import keys
from service.schemas import Artifact, Commit, NewKey
from tests.service.harness import Caller, Local
from tests.service.test_reads import checksums

HERE = {"Origin": "http://stint", "Accept": "text/html"}
EVENT = {"kind": "pure_dp", "epsilon": 0.2}


class Visitor:
    """A browser without scripts, as far as the service can tell: cookies, forms, no key."""

    def __init__(self, service: Local) -> None:
        self._call = service.call
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=service.app), base_url="http://stint")

    def get(self, path: str, **headers: str) -> httpx.Response:
        answer: httpx.Response = self._call.run(self.client.get(path, headers={"Accept": "text/html", **headers}))
        return answer

    def post(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        sent = {**HERE, "Content-Type": "application/x-www-form-urlencoded", **headers}
        answer: httpx.Response = self._call.run(self.client.post(path, content=urlencode(fields), headers=sent))
        return answer

    def sign_in(self, key: str, **headers: str) -> httpx.Response:
        return self.post("/sign-in", {"key": key, "next": "/overview"}, **headers)

    def form(self, path: str) -> dict[str, str]:
        """The hidden fields of the last form of a page."""
        text = self.get(path).text
        found = {}
        for name in ("csrf", "once"):
            found[name] = re.findall(rf'name="{name}" value="([^"]+)"', text)[-1]
        return found


@pytest.fixture
def visitor(service: Local) -> Iterator[Visitor]:
    made = Visitor(service)
    yield made
    service.call.run(made.client.aclose())


@pytest.fixture
def population(call: Caller) -> str:
    name = call.population(count=40, epsilon=1.0)
    call.ok("POST", f"/v1/populations/{name}/datapoints", {"keys": ["patient-ada"]})
    call.ok("POST", f"/v1/populations/{name}/tasks", {"name": "t", "members": {"ranges": [[0, 30]]}})
    return name


def key_of(service: Local, *roles: str) -> dict[str, Any]:
    return keys.create(service.parts.database, name="somebody", roles=roles)


def test_a_stranger_is_led_to_the_sign_in_and_back(visitor: Visitor, population: str) -> None:
    for path in (
        "/overview",
        f"/populations/{population}/budget",
        f"/populations/{population}/ledger?kind=task.created",
    ):
        answer = visitor.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/sign-in?next=%2F")
        assert population not in answer.text
        stranger = visitor.get(path.partition("?")[0] + ".json", Accept="application/json")
        assert stranger.status_code == 401
        assert population not in stranger.text
    assert visitor.get("/").headers["location"] == "/overview"


def test_a_session_holds_no_key_and_dies_with_it(service: Local, visitor: Visitor) -> None:
    key = key_of(service, "officer")
    answer = visitor.sign_in(key["secret"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/overview")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert key["secret"] not in cookie
    assert key["id"] not in cookie
    assert visitor.get("/overview").status_code == 200
    keys.revoke(service.parts.database, key["id"])
    service.parts.doorkeeper._seen.clear()  # two seconds later
    assert visitor.get("/overview").status_code == 303


def test_signing_out_ends_the_session_in_every_copy_of_its_cookie(service: Local, visitor: Visitor) -> None:
    key = key_of(service, "officer")["secret"]
    other = Visitor(service)
    for each in (visitor, other):
        each.sign_in(key)
    copied = visitor.client.cookies["stint-session"]
    left = visitor.post("/sign-out", {"csrf": csrf_of(visitor)})
    assert left.headers["location"] == "/sign-in"
    visitor.client.cookies.clear()
    visitor.client.cookies.set("stint-session", copied)
    assert visitor.get("/overview").status_code == 303
    assert other.get("/overview").status_code == 200  # another session of the same key goes on
    with service.parts.database.transaction() as connection:
        rows = connection.execute(text("SELECT name, until FROM ended_session")).all()
    assert len(rows) == 1
    assert rows[0].name not in copied
    sessions_of(service.parts).end(other.client.cookies["stint-session"], now=rows[0].until + timedelta(days=1))
    with service.parts.database.transaction() as connection:  # whatever has ended anyway is forgotten
        assert rows[0].name not in connection.execute(text("SELECT name FROM ended_session")).scalars().all()
    service.call.run(other.client.aclose())


def csrf_of(visitor: Visitor) -> str:
    """The token of a session, from the form by which one signs out."""
    return str(re.findall(r'name="csrf" value="([^"]+)"', visitor.get("/overview").text)[0])


def test_every_page_answers_as_json_those_for_strangers_too(service: Local, call: Caller, population: str) -> None:
    stranger = Visitor(service)
    assert stranger.get("/verify.json").json()["public_key"] == service.parts.secrets.public_key.hex()
    assert stranger.get("/sign-in.json?next=//evil.example").json() == {"next": "/"}
    signed = call.ok("GET", f"/populations/{population}/report/document.json")
    assert signed["report"]["population"] == population or population in str(signed["report"]["title"])
    call.run(stranger.client.aclose())


def test_by_https_the_cookie_is_secure_and_bound_to_the_host(service: Local, visitor: Visitor) -> None:
    answer = visitor.sign_in(key_of(service, "officer")["secret"], **{"X-Forwarded-Proto": "https"})
    assert answer.headers["set-cookie"].startswith("__Host-stint-session=")
    assert "Secure" in answer.headers["set-cookie"]


def test_a_cookie_that_was_changed_is_worth_nothing(service: Local, visitor: Visitor) -> None:
    visitor.sign_in(key_of(service, "officer")["secret"])
    value = visitor.client.cookies["stint-session"]
    for changed in (value[:-2] + ("AA" if value[-2:] != "AA" else "BB"), "A" * 80, "x", "é"[:0] or "."):
        visitor.client.cookies.clear()
        visitor.client.cookies.set("stint-session", changed)
        assert visitor.get("/overview").status_code == 303


def test_a_wrong_key_and_a_way_out_to_elsewhere_are_refused(service: Local, visitor: Visitor) -> None:
    refused = visitor.sign_in("sk_wrong")
    assert refused.status_code == 401
    assert "not known, or no longer" in refused.text
    assert "set-cookie" not in refused.headers
    for elsewhere in ("https://evil.example/", "//evil.example", "/\\evil.example"):
        answer = visitor.post("/sign-in", {"key": key_of(service, "officer")["secret"], "next": elsewhere})
        assert answer.headers["location"] == "/"


def test_every_page_says_what_a_browser_may_do(service: Local, visitor: Visitor) -> None:
    visitor.sign_in(key_of(service, "officer")["secret"])
    for path in ("/overview", "/overview.json", "/nothing", "/sign-in"):
        headers = visitor.get(path).headers
        if path != "/nothing.json":
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"


def test_no_template_has_a_style_or_a_script_in_it() -> None:
    for path in (pages.FOLDER / "templates").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?! src)|\|\s*safe", text), path.name


def test_vendored_files_are_those_of_the_manifest() -> None:
    folder = pages.FOLDER / "static" / "vendor"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    listed = {"manifest.json"}
    for each in manifest:
        assert hashlib.sha256((folder / each["file"]).read_bytes()).hexdigest() == each["sha256"]
        assert (folder / each["licence_file"]).stat().st_size > 100
        listed |= {each["file"], each["licence_file"]}
    assert {path.name for path in folder.iterdir()} == listed


def test_a_hold_is_settled_once_for_a_reason_that_the_ledger_keeps(
    service: Local, call: Caller, visitor: Visitor, population: str
) -> None:
    visitor.sign_in(key_of(service, "officer")["secret"])
    made = [call.propose(population, ({"task": "t"}, EVENT))["id"] for _ in range(2)]
    fields = {**visitor.form(f"/releases/{made[0]}/commit"), "reason": "the model is in production"}
    unsure = visitor.post(f"/releases/{made[0]}/commit", fields)
    assert unsure.status_code == 422
    assert "that you mean it" in unsure.text
    fields["sure"] = "yes"
    for _ in range(2):
        done = visitor.post(f"/releases/{made[0]}/commit", fields)
        assert done.status_code in {303, 409}
    assert visitor.get(f"/releases/{made[0]}").text.count("the model is in production") == 1
    fields = {**visitor.form(f"/releases/{made[1]}/void"), "reason": "the run crashed"}
    uncertain = visitor.post(f"/releases/{made[1]}/void", fields)
    assert uncertain.status_code == 422
    assert "the run crashed" in uncertain.text  # nothing has to be written twice
    assert visitor.post(f"/releases/{made[1]}/void", {**fields, "certain": "yes"}).status_code == 303
    bodies = [entry["body"] for entry in call.entries(population)[-2:]]
    assert [(each["kind"], each["reason"]) for each in bodies] == [
        ("release.committed", "the model is in production"),
        ("release.voided", "the run crashed"),
    ]
    call.verify(population)


def test_a_form_that_is_sent_again_with_other_words_is_refused_in_words_of_forms(
    service: Local, call: Caller, visitor: Visitor, population: str
) -> None:
    visitor.sign_in(key_of(service, "officer")["secret"])
    path = f"/populations/{population}/status?to=frozen"
    fields = {**visitor.form(path), "reason": "a question", "sure": "yes"}
    assert visitor.post(path, fields).status_code == 303
    again = visitor.post(path, {**fields, "reason": "another"})
    assert again.status_code == 422
    assert "This form was sent already, with other words." in again.text
    assert "Look at what was done, then open the form again if more is to be done." in again.text
    assert "idempotency" not in again.text.lower()
    assert call.entries(population)[-1]["body"]["reason"] == "a question"


def test_a_forged_form_changes_nothing(service: Local, call: Caller, visitor: Visitor, population: str) -> None:
    key = key_of(service, "officer")["secret"]
    visitor.sign_in(key)
    release = call.propose(population, ({"task": "t"}, EVENT))["id"]
    path = f"/releases/{release}/void"
    fields = {**visitor.form(path), "reason": "forged", "certain": "yes"}
    before = checksums(service.parts)
    other = Visitor(service)
    other.sign_in(key)
    for changed, headers in (
        ({"csrf": ""}, {}),
        ({"csrf": other.form(path)["csrf"]}, {}),  # of another session, under the same key
        ({}, {"Origin": "https://evil.example"}),
        ({}, {"Origin": "null"}),
        ({}, {"Sec-Fetch-Site": "cross-site"}),
    ):
        refused = visitor.post(path, {**fields, **changed}, **headers)
        assert refused.status_code == 403
        assert "not sent by its page" in refused.text
    alone = Visitor(service)
    assert alone.post(path, fields, Authorization=f"Bearer {key}").status_code == 401
    assert checksums(service.parts) == before
    for each in (other, alone):
        call.run(each.client.aclose())


def test_pages_ask_for_the_roles_of_their_addresses(
    service: Local, call: Caller, visitor: Visitor, population: str
) -> None:
    assert roles_of(ledger_api.entries) == ("officer", "auditor")
    assert roles_of(keys_api.list_all) == ("admin",)
    visitor.sign_in(key_of(service, "pipeline")["secret"])
    assert visitor.get(f"/populations/{population}/budget").status_code == 200
    for path in ("ledger", "datapoint?ordinal=1", "entry?number=1", "verify", "ledger/export"):
        assert visitor.get(f"/populations/{population}/{path}").status_code == 403, path
    assert f"/populations/{population}/ledger" not in visitor.get(f"/populations/{population}/budget").text
    auditor = Visitor(service)
    auditor.sign_in(key_of(service, "auditor")["secret"])
    release = call.propose(population, ({"task": "t"}, EVENT))["id"]
    assert auditor.get(f"/populations/{population}/ledger").status_code == 200
    assert auditor.get(f"/releases/{release}/void").status_code == 403
    call.run(auditor.client.aclose())


def test_a_person_is_found_by_a_key_that_is_shown_nowhere(
    service: Local, call: Caller, visitor: Visitor, population: str
) -> None:
    visitor.sign_in(key_of(service, "officer")["secret"])
    path = f"/populations/{population}/datapoint"
    found = visitor.post(path, {**visitor.form(path), "key": "patient-ada"})
    assert found.headers["location"] == f"{path}?ordinal=40"
    assert "patient-ada" not in visitor.get(f"{path}?ordinal=40").text
    call.ok("POST", f"/v1/populations/{population}/datapoints/erase", {"key": "patient-ada"})
    gone = visitor.post(path, {**visitor.form(path), "key": "patient-ada"})
    assert gone.status_code == 410
    assert "erased" in visitor.get(f"{path}?ordinal=40").text


def test_the_json_of_a_page_is_what_rest_says_and_looking_changes_nothing(
    service: Local, call: Caller, population: str
) -> None:
    release = call.propose(population, ({"task": "t"}, EVENT))["id"]
    before = checksums(service.parts)
    found = call.ok("GET", f"/populations/{population}/budget.json")
    told = call.ok("GET", f"/v1/populations/{population}/budget?windows=12")
    assert found["budget"]["worst_off"] == told["worst_off"]
    assert found["budget"]["histogram"] == told["histogram"]
    person = call.ok("GET", f"/populations/{population}/datapoint.json?ordinal=3")
    assert person["epsilon"] == call.reading(population, 3)
    assert [each["release"] for each in person["items"]] == [release]
    shown, rest = call.ok("GET", f"/releases/{release}.json"), call.ok("GET", f"/v1/releases/{release}")
    assert {name: shown[name] for name in rest if name != "engines"} == {
        name: value for name, value in rest.items() if name != "engines"
    }
    assert call.ok("GET", f"/releases/{release}/engines.json")["engines"] == rest["engines"]
    assert "Taken alone, this release costs " in call("GET", f"/releases/{release}/engines").text
    for page in ("tasks", "task?name=t", "releases?status=held", "ledger", "entry?number=2", "verify", "datapoint"):
        path, _, query = page.partition("?")
        call.ok("GET", f"/populations/{population}/{path}.json?{query}")
    call.ok("GET", "/overview.json")
    assert checksums(service.parts) == before


def test_the_budget_of_a_task_is_told_with_its_own_delta(call: Caller) -> None:
    name = call.population(count=20, epsilon=2.0, delta=1e-6)
    own = {"name": "t", "members": {"ranges": [[0, 20]]}, "budget": {"epsilon": 0.5, "delta": 3e-8}}
    call.ok("POST", f"/v1/populations/{name}/tasks", own)
    held = call.propose(name, ({"task": "t"}, {"kind": "pure_dp", "epsilon": 0.4}))
    denied = call.propose(name, ({"task": "t"}, {"kind": "pure_dp", "epsilon": 0.4}))
    assert held["status"] == "held"
    [reason] = denied["decision"]["reasons"]
    assert (reason["code"], reason["delta"]) == ("task_budget.exceeded", 3e-8)
    person = call("GET", f"/populations/{name}/datapoint?ordinal=3").text
    assert re.search(r"In the own budget of task “t”: .*δ = 3e-08", person)
    alone = (
        'reads of the release without any other, at its δ, <span class="joined">1e-06</span>; engines may prove less'
    )
    assert alone in person
    assert [each["delta"] for each in call.ok("GET", f"/v1/populations/{name}/datapoints/3")["tasks"]] == [3e-8]
    page = call("GET", f"/releases/{denied['id']}").text
    assert re.search(
        r"the own budget of their task is 0.5 <span class=\"beside\">\(<span class=\"joined\">δ = 3e-08", page
    )
    assert re.search(
        r"a task(&#39;|')s own budget of 0.5 <span class=\"beside\">\(<span class=\"joined\">δ = 3e-08", page
    )


def test_whoever_has_no_finite_epsilon_is_not_shown_within_the_budget(call: Caller) -> None:
    """A policy that lowers δ leaves no ε, however large, to those whose approximate parts are over it already."""
    name = call.population(count=20, epsilon=1.0, delta=1e-6)
    spent = call.propose(name, ({"ranges": [[0, 15]]}, {"kind": "approx_dp", "epsilon": 0.1, "delta": 4e-7}))
    call.ok("POST", f"/v1/releases/{spent['id']}/commit", {})
    call.ok("PUT", f"/v1/populations/{name}/policy", {"reason": "more caution", "delta": 1e-8})
    assert call.reading(name, 3) == {"spent": None, "held": 0.0, "available": 0.0, "budget": 1.0}
    page = call("GET", f"/populations/{name}/budget").text
    assert "15 of 20 have between ε = 1 and ∞ behind them" in page
    assert "in the last bar are some for whom no finite ε holds (δ = 1e-08" in page
    assert "nobody has more than" not in page


def test_bad_requests_are_pages_in_the_words_of_problems(service: Local, visitor: Visitor, population: str) -> None:
    visitor.sign_in(key_of(service, "officer")["secret"])
    for path, status, words in (
        ("/nothing", 404, "There is nothing at this address."),
        ("/populations/nobody/budget", 404, "There is no population"),
        (f"/populations/{population}/task?name=<script>", 404, "&lt;script&gt;"),
        (f"/populations/{population}/releases?status=lost", 422, "What was sent cannot be used as it is"),
        (f"/populations/{population}/releases?cursor=!", 422, "not a cursor"),
        (f"/populations/{population}/datapoint?ordinal=99", 404, "ordinals begin at 0"),
        ("/releases/rel_0000000000000000000000000Z", 404, "There is no release"),
    ):
        answer = visitor.get(path)
        assert answer.status_code == status, path
        assert answer.headers["content-type"].startswith("text/html")
        assert words in answer.text, path
        assert "<script>" not in answer.text
    assert visitor.get("/v1/nothing").headers["content-type"] == "application/problem+json"


def test_the_package_carries_templates_and_files(checkout: Path) -> None:
    assert (checkout / "service" / "dashboard" / "templates" / "base.html").is_file()
    assert '"service"' in (checkout / "pyproject.toml").read_text(encoding="utf-8").partition("packages = [")[2]


def test_a_form_is_refused_in_words_that_name_its_field() -> None:
    def told(make: Callable[[], object]) -> str:
        with pytest.raises(ValidationError) as failed:
            make()
        return str(pages.problem_of(failed.value).detail)

    assert told(lambda: Commit.model_validate({"artifact": {"sha256": "abc"}})) == (
        "“Digest of the artifact” has to be 64 hexadecimal digits, in small letters."
    )
    assert told(lambda: Artifact(sha256="0" * 64, uri="x" * 2001)) == "“Where it is” has more than 2000 characters."
    assert told(lambda: NewKey(name="", roles=["officer"])) == "“Name” is needed."
    assert told(lambda: NewKey(name="a", roles=["officer"], expires_in_days=-1)) == (
        "“Ends after so many days” has to be more than 0."
    )


def test_a_hold_that_must_not_leave_says_so_and_the_list_says_why_one_was_denied(call: Caller) -> None:
    name = call.population(count=20, epsilon=1.0)
    held = call.propose(name, ({"ranges": [[0, 20]]}, {"kind": "pure_dp", "epsilon": 0.4}))["id"]
    denied = call.propose(name, ({"ranges": [[0, 20]]}, {"kind": "pure_dp", "epsilon": 0.9}))["id"]
    refused, open_ = call("GET", f"/releases/{denied}").text, call("GET", f"/releases/{held}").text
    assert "Nothing was released, and no budget was used." in refused
    assert "What it would have done, and to whom" in refused
    assert "What it does, and to whom" in open_
    assert 'class="verdict warn"' in open_
    assert "20 users" in open_
    assert "20 datapoints" not in open_
    assert "Nothing was released" not in open_
    assert "not derived from a mechanism</dd>" in open_  # of which there is none, so none is proved
    assert "must not leave" not in call("GET", f"/releases/{held}").text
    assert "Over the lifelong budget." in call("GET", f"/populations/{name}/releases").text
    asked = call("GET", f"/releases/{held}/void").text
    assert "The highest ε among them was 0 before it and 0.4 right after it" in asked
    assert "What it added comes back." in asked
    call.ok("POST", f"/v1/populations/{name}/status", {"status": "frozen", "reason": "a question"})
    page = call("GET", f"/releases/{held}").text
    assert f"{name} is frozen: it must not leave. If it was never released, void it." in page
    assert re.search(r'class="button" href="/releases/\w+/void"', page)
    call.ok("POST", f"/v1/releases/{held}/void", {"reason": "stopped"})
    listed = call("GET", f"/populations/{name}/releases").text
    assert "given back, never released" in listed
    assert "while it was held" in listed
    assert "2 releases: 1 denied, 1 voided." in listed


def test_a_denial_of_before_that_says_no_delta_is_told_without_it() -> None:
    first = {"code": "task_budget.exceeded", "task": "t", "epsilon": 0.9, "budget": 0.5, "message": "no room"}
    told = "It would fit for life, but not a task's own budget: ε ≤ 0.9 of 0.5{} in task “t”."
    assert release_pages._refused([first], sign="≤") == told.format("")
    assert release_pages._refused([{**first, "delta": 1e-7}], sign="≤") == told.format(" (δ = 1e-07)")


def test_a_number_of_releases_links_to_as_many(call: Caller) -> None:
    """Admitted are all but those denied; charged are those that left or may leave."""
    name = call.population(count=20, epsilon=1.0)
    quiet = {"noise_multiplier": 20.0, "sampling_probability": 0.01, "steps": 1, "clip_norm": 1.0}
    proposal: dict[str, Any] = {"population": name, "kind": "weights", "scope": {"ranges": [[0, 20]]}}
    proposal["mechanism"] = {"name": "dp-sgd", "parameters": quiet}
    made = [call.ok("POST", "/v1/releases", proposal)["id"] for _ in range(3)]
    call.ok("POST", f"/v1/releases/{made[0]}/void", {"reason": "never ran"})
    call.ok("POST", f"/v1/releases/{made[1]}/commit", {"artifact": {"sha256": "0" * 64, "uri": "made-up:x"}})
    proposal["mechanism"]["parameters"]["noise_multiplier"] = 0.1
    denied = call.ok("POST", "/v1/releases", proposal)
    assert denied["status"] == "denied"
    for status, count in (("admitted", 3), ("charged", 2), ("denied", 1)):
        listed = call.ok("GET", f"/populations/{name}/releases.json?mechanism=dp-sgd&status={status}")["items"]
        told = call.ok("GET", f"/v1/releases?population={name}&mechanism=dp-sgd&status={status}")["items"]
        assert len(listed) == len(told) == count
    link = re.search(
        rf'<a href="(/populations/{name}/releases[^"]*)">3</a>', call("GET", f"/populations/{name}/policy").text
    )
    assert link is not None
    assert "status=admitted" in link[1]
    engines = call("GET", f"/releases/{denied['id']}/engines").text
    assert "Taken alone, this release would have cost " in engines


def test_a_release_that_only_a_task_had_no_room_for_says_by_how_much(call: Caller) -> None:
    name = call.population(count=20, epsilon=2.0)
    budget = {"epsilon": 0.5, "delta": 1e-7}
    call.ok("POST", f"/v1/populations/{name}/tasks", {"name": "t", "members": {"ranges": [[0, 20]]}, "budget": budget})
    call.propose(name, ({"task": "t"}, {"kind": "pure_dp", "epsilon": 0.9}))
    listed = call("GET", f"/populations/{name}/releases").text
    plain = re.sub("<[^>]+>", "", listed)
    own = "It would fit for life, but not a task&#39;s own budget"
    assert re.search(f"{own}: ε ≤ 0.9\\d* of 0.5 .δ = 1e-07. in task “t”.", plain)


def test_an_address_that_cannot_be_read_is_refused_in_words(call: Caller) -> None:
    name = call.population(count=20)
    page = call("GET", f"/populations/{name}/budget?times=0", headers={"Accept": "text/html"})
    assert page.status_code == 422
    assert "“How often” has to be at least 1." in page.text
    page = call("GET", f"/populations/{name}/datapoint?ordinal=x", headers={"Accept": "text/html"})
    assert "“Ordinal” has to be a whole number." in page.text


FILTERS = {
    "/jobs?population=%3Cx%3E": "“Population” has signs that it cannot have.",
    "/audits?population=%3Cx%3E": "“Population” has signs that it cannot have.",
    "/audits/new?population=%3Cx%3E": "“Population” has signs that it cannot have.",
    "/jobs?population=" + 101 * "a": "“Population” has more than 100 characters.",
    "/jobs?status=x": "“Status” is none of queued, running, committed, failed or cancelled.",
    "/audits?status=x": "“Status” is none of consistent, violation, inconclusive, queued, running, concluded or fail",
    "{population}/releases?status=x": "“Status” is none of held, denied, committed, expired, voided, admitted or ",
    "{population}/releases?kind=x": "“Kind” is none of weights, labels, prototypes, window_model or other.",
    "{population}/ledger?kind=x": "“Kind” is none of population.created, population.frozen, ",
    "{population}/ledger?release=x": "“Release” has to be the id of a release, rel_ and 26 digits and capital letters.",
    "{population}/budget?like=x": "“Releases like this one” has to be the id of a release, rel_ and 26 ",
    "{population}/entry?number=x": "“Number” has to be a whole number.",
    "{population}/entry?number=0": "“Number” has to be at least 1.",
    "{population}/task": "“Name” is needed.",
    "{population}/status?to=x": "“To” is none of frozen, open or closed.",
    "{population}/policy/change?on_exhausted=x": "“On exhausted” is none of deny or trim.",
    "/populations/%3Cx%3E/budget": "“Population” has signs that it cannot have.",
}


@pytest.mark.parametrize("path", FILTERS)
def test_no_filter_is_refused_in_words_of_a_library(path: str, call: Caller, population: str) -> None:
    answer = call("GET", path.format(population=f"/populations/{population}"), headers={"Accept": "text/html"})
    assert answer.status_code == 422
    assert FILTERS[path] in html.unescape(answer.text)
    assert not re.search("constrained|literal|pydantic|msg", answer.text)
    told = call("GET", re.sub(r"(\?|$)", r".json\1", path, count=1).format(population=f"/populations/{population}"))
    assert "." not in told.json()["field"]


def test_what_was_typed_stays_in_its_form_when_it_is_refused(
    service: Local, call: Caller, visitor: Visitor, population: str
) -> None:
    visitor.sign_in(key_of(service, "officer")["secret"])
    call.propose(population, ({"task": "t"}, EVENT))
    for path, status, field in (
        ("budget?times=0", 422, 'name="times" type="number" min="1" max="10000" value="0"'),
        ("budget?times=", 422, 'name="times" type="number" min="1" max="10000" value=""'),
        ("datapoint?ordinal=99", 404, 'aria-describedby="h-ordinal" required value="99"'),
        ("datapoint?ordinal=x%22%3E", 422, 'required value="x&#34;&gt;"'),
        ("report?from=2026-13-01&to=2026-12-31", 422, 'name="from" value="2026-13-01"'),
        ("report?from=2026-12-31&to=2026-01-01", 422, 'name="to" value="2026-01-01"'),
    ):
        page = visitor.get(f"/populations/{population}/{path}")
        assert page.status_code == status, path
        assert 'role="alert"' in page.text, path
        assert field in page.text, path
        before, _, query = path.partition("?")
        document = visitor.get(f"/populations/{population}/{before}.json?{query}")
        assert (document.status_code, document.headers["content-type"]) == (status, "application/problem+json"), path
    path = f"/populations/{population}/datapoint"
    for field, words, status in (("key", "patient-eve", 404), ("ordinal", "9" * 5000, 422)):
        page = visitor.post(path, {**visitor.form(path), field: words})
        assert page.status_code == status, field
        assert 'id="f-key"' in page.text
    assert 'required value="patient-eve"' in visitor.post(path, {**visitor.form(path), "key": "patient-eve"}).text


def test_a_period_is_of_days_that_a_calendar_has(call: Caller, population: str) -> None:
    path = f"/populations/{population}/report"
    found = call.ok("GET", f"{path}.json?from=20260101&to=2026-W10-1")
    assert found["query"] == {"from": "2026-01-01", "to": "2026-03-02"}
    assert "to=2026-03-03" in found["documents"]["html"]
    for last in ("9999-12-31", "9999-01-01", "10000-01-01", "1" * 999):
        assert call("GET", f"{path}?to={last}").status_code == 422
    assert call("GET", f"{path}?to=9998-12-31").status_code == 200


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000])
def test_no_number_is_too_long_to_be_refused(
    service: Local, call: Caller, visitor: Visitor, population: str, digits: str
) -> None:
    """Python reads no whole number of more than 4,300 digits: that is whoever sent it's mistake, and not ours."""
    visitor.sign_in(key_of(service, "admin")["secret"])
    release = call.propose(population, ({"task": "t"}, EVENT))["id"]
    at, rest = f"/populations/{population}", f"/v1/populations/{population}"
    for path in (
        f"{at}/datapoint?ordinal={digits}", f"{at}/datapoint?ordinal=3&before={digits}", f"{at}/entry?number={digits}",
        f"{at}/budget?times={digits}", f"{at}/policy/change?preview=yes&epsilon={digits}",
        f"{at}/report/document?to={digits}", f"{at}/releases?before={digits}", f"{rest}/budget?windows={digits}",
        f"{rest}/datapoints/{digits}", f"{rest}/ledger/{digits}/proof", f"{rest}/report?to={digits}",
        f"/v1/checkpoints/{digits}", f"/v1/keys?limit={digits}",
        f"{at}/report/document?from=0001-01-01T00:00:00%2B14:00", f"{at}/report/document?to=9999-12-31T23:59:59-14:00",
    ):  # fmt: skip
        assert call("GET", path, headers={"Accept": "text/html"}).status_code < 500, path
    for path, fields in (
        (f"{at}/datapoint", {"ordinal": digits}),
        ("/audits/new", {"samples": digits, "mechanism": "label-release", "population": population}),
        ("/keys/new", {"name": "a", "roles": "officer", "expires_in_days": digits}),
    ):
        sent = {**visitor.form(path), "reason": "a trial", "sure": "yes", **fields}
        assert 400 <= visitor.post(path, sent).status_code < 500, path
    for method, path, body in (
        ("POST", f"{rest}/datapoints", f'{{"count": {digits}}}'),
        ("PUT", f"{rest}/policy", f'{{"reason": "r", "epsilon": {digits}}}'),
        ("POST", "/v1/releases", f'{{"population": "{population}", "charges": {digits}}}'),
        ("POST", f"{rest}/tasks", f'{{"name": "n", "members": {{"ranges": [[0, {digits}]]}}}}'),
        ("POST", "/v1/verify", f'{{"payload": {digits}}}'),
        ("POST", "/v1/keys", f'{{"name": "n", "roles": ["officer"], "expires_in_days": {digits}}}'),
        ("POST", f"/v1/releases/{release}/commit", f'{{"artifact": {{"bytes": {digits}}}}}'),
    ):
        answer = call(method, path, content=body.encode(), headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500 or (path, answer.status_code) == ("/v1/verify", 200), path
    lines = {"Content-Type": "application/x-ndjson"}
    line = f'{{"key": {digits}}}\n'.encode()
    assert 400 <= call("POST", f"{rest}/datapoints", content=line, headers=lines).status_code < 500
    assert call("GET", f"{at}/budget", headers={"Content-Length": digits}).status_code < 500
