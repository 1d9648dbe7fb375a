"""What REST refuses a key, no page tells it, and no page leads it to: every link is followed under every role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest

from service.operations import keys, readings
from service.operations.keys import ROLES
from tests.service.harness import Caller, Local, local
from tests.service.test_dashboard import Visitor
from tests.service.test_refuted_evidence import violated

EVENT = {"kind": "pure_dp", "epsilon": 0.2}
FEW = ("pipeline", "worker")  # who sees neither individuals nor the ledger
SECRETIVE = "because of somebody in Room 5"
OFFICER = "Officer Ada"


@pytest.fixture(scope="module")
def service() -> Iterator[Local]:
    """A service of this module's own: what can be reached there is what was made here."""
    with local() as running:
        yield running


@pytest.fixture(scope="module")
def call(service: Local) -> Caller:
    return service.call


@pytest.fixture(scope="module")
def history(service: Local, call: Caller) -> dict[str, Any]:
    """Releases of one person and of many, a void, a change of policy and a freeze, each for a reason that is kept."""
    officer = keys.create(service.parts.database, name=OFFICER, roles=["officer"])
    by = {"headers": {"Authorization": f"Bearer {officer['secret']}"}}
    name = call.population(count=40, epsilon=1.0)
    call.ok("POST", f"/v1/populations/{name}/tasks", {"name": "t", "members": {"ranges": [[0, 30]]}})
    many = call.propose(name, ({"task": "t"}, EVENT))["id"]
    voided = call.propose(name, ({"task": "t"}, EVENT))["id"]
    call.ok("POST", f"/v1/releases/{voided}/void", {"reason": SECRETIVE}, **by)
    call.ok("POST", f"/v1/populations/{name}/tasks", {"name": "many", "members": {"ranges": [[10, 30]]}})
    lone = {"name": "lone", "members": {"ranges": [[35, 36]]}, "budget": {"epsilon": 0.5, "delta": 1e-7}}
    call.ok("POST", f"/v1/populations/{name}/tasks", lone, **by)
    alone = call.propose(name, ({"task": "lone"}, {"kind": "pure_dp", "epsilon": 0.0625}))["id"]
    charges = [{"scope": {"ranges": [[3, 4]]}, "event": EVENT}]
    one = call.ok("POST", "/v1/releases", {"population": name, "charges": charges}, **by)["id"]
    charges = [{"scope": {"ranges": [[3, 4]]}, "event": {"kind": "pure_dp", "epsilon": 0.9}}]
    denied = call.ok("POST", "/v1/releases", {"population": name, "charges": charges}, **by)["id"]
    audit = violated(call, service.parts, name)
    call.ok("PUT", f"/v1/populations/{name}/policy", {"reason": SECRETIVE, "epsilon": 0.9}, **by)
    for status in ("frozen", "open"):
        call.ok("POST", f"/v1/populations/{name}/status", {"status": status, "reason": SECRETIVE}, **by)
    return {"population": name, "many": many, "voided": voided, "one": one, "audit": audit, "officer": officer["id"],
            "denied": denied, "alone": alone}  # fmt: skip


@pytest.fixture(scope="module", params=ROLES)
def role(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def visitor(service: Local, role: str) -> Iterator[Visitor]:
    """Somebody who has signed in with a key of this role alone."""
    made = Visitor(service)
    made.sign_in(keys.create(service.parts.database, name=f"a {role}", roles=[role])["secret"])
    yield made
    service.call.run(made.client.aclose())


class Links(HTMLParser):
    """Where a page leads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.found |= {str(said[name]) for name in ("href", "hx-get") if said.get(name) and tag != "link"}


@pytest.fixture(scope="module")
def reached(visitor: Visitor, history: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Everything that can be reached from the overview and from what somebody was sent a link to, with its answer."""
    waiting = ["/overview", f"/releases/{history['voided']}", f"/releases/{history['one']}"]
    seen: dict[str, tuple[int, str]] = {}
    while waiting:
        path = urldefrag(waiting.pop()).url
        if path in seen or _alike(path, seen) > 12:
            continue
        assert not urlsplit(path).netloc, path
        answer = visitor.get(path)
        seen[path] = answer.status_code, answer.text
        if answer.headers.get("content-type", "").startswith("text/html"):
            links = Links()
            links.feed(answer.text)
            waiting += sorted(urljoin(path, each) for each in links.found)
    return seen


def _alike(path: str, seen: dict[str, tuple[int, str]]) -> int:
    """How many pages of the same kind were looked at."""

    def kind(each: str) -> str:
        return re.sub(r"(number|name|ordinal|cursor)=[^&]*|mechanisms/[^/]+|mechanism=[^&]*", "", each)

    return sum(kind(each) == kind(path) for each in seen)


def test_no_page_leads_a_key_to_where_it_may_not_go(reached: dict[str, tuple[int, str]], role: str) -> None:
    assert len(reached) > 30
    assert {path: status for path, (status, _) in reached.items() if status >= 400} == {}
    assert any("/ledger" in path for path in reached) == (role not in FEW)


def test_a_key_that_may_not_read_the_ledger_is_told_nothing_of_it(
    reached: dict[str, tuple[int, str]], role: str, history: dict[str, Any], call: Caller
) -> None:
    """Reasons, who did what, and hashes of entries are the ledger's: pages tell them to whoever may read that."""
    said = "\n".join(text for _, text in reached.values())
    hashes = [each["hash"] for each in call.entries(history["population"])]
    told = {
        "reasons": SECRETIVE in said,
        "names": OFFICER in said,
        "hashes": any(each in said for each in hashes),
    }
    assert told == dict.fromkeys(told, role not in FEW)
    for path, (_, text) in reached.items():
        if role in FEW and history["officer"] in text:  # REST says as well who proposed a release
            assert history["one"] in path or history["denied"] in path


def test_what_a_few_people_have_left_is_told_to_nobody_who_may_not_name_them(
    visitor: Visitor, role: str, history: dict[str, Any], call: Caller
) -> None:
    path = f"/populations/{history['population']}/budget"
    found = visitor.get(f"{path}.json", Accept="application/json").json()
    listed = [each["id"] for each in found["repeatable"]]
    asked = visitor.get(f"{path}.json?like={history['one']}", Accept="application/json")
    if role not in FEW:
        assert listed[0] == found["plan"]["like"] == history["one"]
        assert asked.json()["plan"]["datapoints"] == 1
        return
    assert asked.status_code == 403
    assert history["one"] not in listed
    if role == "worker":  # REST answers it no what-if at all
        assert (found["plan"], listed) == (None, [])
        assert visitor.get(f"{path}.json?like={history['many']}", Accept="application/json").status_code == 403
    else:
        assert found["plan"]["like"] == history["many"] == listed[0]
        call.ok("PUT", f"/v1/populations/{history['population']}/policy", {"reason": "a trial", "named_scopes": True})
        try:
            named = visitor.get(f"{path}.json?like={history['one']}", Accept="application/json")
            assert named.json()["plan"]["datapoints"] == 1  # as REST would then answer
        finally:
            back = {"reason": "the trial is over", "named_scopes": False}
            call.ok("PUT", f"/v1/populations/{history['population']}/policy", back)


def test_readings_of_a_few_people_are_told_to_nobody_who_may_not_see_them(
    visitor: Visitor, role: str, history: dict[str, Any], service: Local, call: Caller
) -> None:
    """Neither by a page nor over REST: what one person had before a release, or has in a task of one member."""
    key = {"Authorization": f"Bearer {keys.create(service.parts.database, name='again', roles=[role])['secret']}"}
    population, told = history["population"], role not in FEW

    def both(page: str, rest: str) -> list[Any]:
        return [visitor.get(page, Accept="application/json").json(), call.ok("GET", rest, headers=key)]

    for name in ("one", "denied", "alone"):
        for found in both(f"/releases/{history[name]}.json", f"/v1/releases/{history[name]}"):
            decision = found["decision"]
            assert (decision["epsilon"] is not None) == told
            assert all((each["price"] is not None) == told for each in decision["quotes"])
            assert all((each["epsilon"] is not None) == told for each in decision["reasons"])
            assert [each["code"] for each in decision["reasons"]] == (["budget.exceeded"] if name == "denied" else [])
            assert told or not decision["advice"]
            scopes = [each["scope"] for each in found["charges"]]
            assert scopes == ([{"task": "lone"}] if name == "alone" else [{"ranges": [[3, 4]]} if told else None])
        page = visitor.get(f"/releases/{history[name]}").text
        assert ("to officers and auditors" in page or "told to this key" in page) != told
        assert ("0.0625" in re.sub(r"epsilon = 0.0625", "", page)) == (told and name == "alone")
    [many] = [call.ok("GET", f"/v1/releases/{history['many']}", headers=key)]
    assert many["decision"]["epsilon"]["after"] == 0.2
    listed = visitor.get(f"/populations/{population}/releases.json", Accept="application/json").json()["items"]
    known = {each["id"]: each["epsilon"] is not None for each in listed}
    assert [known[history[each]] for each in ("one", "denied", "alone", "many")] == [told, told, told, True]
    for found in both(f"/populations/{population}/tasks.json", f"/v1/populations/{population}/tasks"):
        standing = {each["name"]: (each["epsilon"], each["task_epsilon"]) for each in found["items"]}
        assert (None not in standing["lone"]) == told
        assert (standing["t"][0] is not None) == told  # its worst-off member is the one person of a release
        assert standing["many"][0]["held"] == 0.2
    one_task = both(f"/populations/{population}/task.json?name=lone", f"/v1/populations/{population}/tasks/lone")
    for found in one_task:
        assert (found["epsilon"] is not None, found["task_epsilon"] is not None) == (told, told)
    for path in ("task?name=lone", "tasks", "releases"):
        assert visitor.get(f"/populations/{population}/{path}").status_code == 200
    tasks = call.ok("GET", f"/v1/populations/{population}/budget", headers=key)["tasks"]
    assert {each["name"]: each["epsilon"] is not None for each in tasks} == {"t": told, "lone": told, "many": True}
    shown = visitor.get(f"/populations/{population}/budget.json", Accept="application/json").json()
    assert {each["name"] for each in shown["budget"]["tasks"]} == ({"t", "lone", "many"} if told else {"many"})
    assert shown["left_out"] != told


@pytest.fixture(scope="module", params=[False, True], ids=["few", "many"])
def standing(request: pytest.FixtureRequest, call: Caller) -> tuple[str, bool]:
    """Forty who have 0.25 behind them, then one or twenty who have 0.6875 and are over a stricter policy."""
    name, many = call.population(count=40, epsilon=1.0), bool(request.param)
    call.propose(name, ({"ranges": [[0, 40]]}, {"kind": "pure_dp", "epsilon": 0.25}))
    call.propose(name, ({"ranges": [[3, 23 if many else 4]]}, {"kind": "pure_dp", "epsilon": 0.4375}))
    call.ok("PUT", f"/v1/populations/{name}/policy", {"reason": "to be sure", "epsilon": 0.5})
    return name, many


def test_the_worst_off_is_told_where_ten_share_a_history(
    visitor: Visitor, role: str, standing: tuple[str, bool], service: Local, call: Caller
) -> None:
    """The reading of one person, and what gives it away: bins, quantiles, odds, windows, and how many are over."""
    name, many = standing
    key = {"Authorization": f"Bearer {keys.create(service.parts.database, name='again', roles=[role])['secret']}"}
    told, seen = many or role not in FEW, role not in FEW
    page = visitor.get(f"/populations/{name}/budget.json", Accept="application/json").json()
    everywhere = visitor.get("/overview.json", Accept="application/json").json()
    [line] = [each for each in everywhere["populations"] if each["name"] == name]
    rest = call.ok("GET", f"/v1/populations/{name}/budget?windows=2", headers=key)
    for found in (rest, page["budget"]):
        assert ((found["worst_off"] or {}).get("held") == 0.6875) == told
        bins = [each["datapoints"] for each in found["histogram"]]
        assert sum(bins) == 40
        assert seen or all(each == 0 or each >= 10 for each in bins)
        assert (found["histogram"][0]["from"], found["histogram"][-1]["to"]) == (0, 0.5)
    assert [each["epsilon"] is not None for each in rest["windows"]] == [told, seen or not many]  # three are in it
    assert (rest["quantiles"][-1]["held"] == 0.6875) == told
    assert rest["quantiles"][0]["held"] == 0.25
    assert (line["worst_off"] is not None, line["share_available"] is not None) == (told, told)
    assert (page["odds_so_far"] is not None) == told
    assert line["room"] == page["room"] == "exhausted"  # whoever proposes is told so
    over = (20 if many else 1) if seen else None
    assert line["over_policy"] == page["over_policy"] == over
    said = visitor.get(f"/populations/{name}/budget").text
    assert ("0.688" in said) == told
    assert ("is told to officers and auditors, and not to this key" in said) != told
    assert ("than the current policy allows" in said) == seen
    said = visitor.get("/overview").text
    assert ("over the policy</div>" in said, "than the current policy allows" in said) == (seen, seen)
    assert ("of so few, not told to this key" in said) == (not seen)


def test_no_rate_of_a_few_is_told(service: Local, call: Caller) -> None:
    """What is left by the day gives the reading away, so it goes with it."""
    name = call.population(count=40, epsilon=1.0)
    for start in (0, 3):
        call.propose(name, ({"ranges": [[start, 40 if start == 0 else 4]]}, EVENT))
    at = datetime.now(UTC) + timedelta(days=4)
    with service.parts.books.read(name) as book:
        rate = readings.burn_rate(book, at=at)
        assert rate is not None
        read = readings.distribution(book)["worst_off"]
        assert rate["epsilon_per_day"] == pytest.approx((read["spent"] + read["held"]) / 4, rel=1e-3)
        assert readings.burn_rate(book, at=at, least=10) is None
        assert readings.burn_rate(book, at=datetime.now(UTC)) is None  # in the first day
        assert read["datapoints"] == 1


def test_who_proposes_is_told_the_decision_and_may_read_it_again(service: Local, call: Caller) -> None:
    """Where the policy lets it name single datapoints, its own answer has the shape of every other."""
    name = call.population(count=40, epsilon=1.0, named_scopes=True)
    own, other = (keys.create(service.parts.database, name=each, roles=["pipeline"])["secret"] for each in "ab")
    charges = [{"scope": {"ranges": [[3, 4]]}, "event": EVENT}]
    asked: dict[str, Any] = {"headers": {"Authorization": f"Bearer {own}"}}
    made = call.ok("POST", "/v1/releases", {"population": name, "charges": charges}, **asked)
    assert (made["decision"]["epsilon"]["before"], made["decision"]["epsilon"]["after"]) == (0.0, 0.2)
    again = call.ok("GET", f"/v1/releases/{made['id']}", **asked)
    assert again["decision"]["epsilon"] == made["decision"]["epsilon"]
    assert again["charges"][0]["scope"] == charges[0]["scope"]
    seen = call.ok("GET", f"/v1/releases/{made['id']}", headers={"Authorization": f"Bearer {other}"})
    assert seen["decision"]["epsilon"] is None
    assert seen["charges"][0]["scope"] is None
