"""Overview: are we inside our promises today?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query
from sqlalchemy import text

from accountant import certificates as certified
from accountant.guarantees import HOLLOW
from service.api import ledger as ledger_api
from service.api import populations as populations_api
from service.api.context import Parts, Service
from service.cursors import cursor_of, number_from
from service.dashboard import system
from service.dashboard.pages import page
from service.dashboard.sessions import utc_now
from service.dashboard.visitors import as_in, may
from service.dashboard.words import since, used_up
from service.operations import evidence, readings, reports, verifications
from service.operations.individuals import may_read
from service.operations.keys import Actor
from service.operations.populations import is_made_up
from service.operations.remembered import Remembered
from service.store.writer import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from accountant.book import Book

router = APIRouter()
Visitor = Annotated[Actor, as_in(populations_api.list_all)]
PAGE: Final = 50
HOLDS_SHOWN, FINDINGS_SHOWN = 8, 8
LOW: Final = 0.1  # of the budget: below, a population is running low
_MOST_POPULATIONS: Final = 10_000
_HEADS = text("SELECT name, number, hash FROM population ORDER BY name LIMIT :most")
_HOLDS = text(
    "SELECT hold.release, population.name, hold.expires_at, count(*) OVER () AS in_all FROM hold "
    "JOIN population ON population.id = hold.population_id "
    "WHERE hold.expires_at IS NOT NULL ORDER BY hold.expires_at LIMIT :most"
)
_SERIOUS: Final = frozenset({"error", "warning"})
_MATTERS: Final = frozenset({"held", "committed", "expired"})


def glance(book: Book) -> dict[str, Any]:
    """A population in a line: how its worst-off datapoint stands, and what needs somebody's eye."""
    return _GLANCED.of(book, None, lambda: _glance(book))


_GLANCED: Remembered[dict[str, Any]] = Remembered(_MOST_POPULATIONS)


def _seen(parts: Parts, name: str, head: bytes) -> dict[str, Any]:
    """A glance at a population, which is opened only if something was added to its ledger."""
    known = _GLANCED.known(head, None)
    if known is not None:
        return known
    with parts.books.read(name) as book:
        return glance(book)


def told(glanced: Mapping[str, Any], by: Actor) -> dict[str, Any]:
    """A glance as this key may take it: without the numbers of a few, and how many are over the policy.

    That somebody has little left, and in how many tasks nothing is left of their own budget, is said to everybody:
    whoever proposes is told so too. What is kept of a glance is for all keys, so this comes after it.
    """
    if by.sees_individuals:
        return dict(glanced)
    worst = glanced["worst_off"]
    few = worst is not None and not may_read(by, datapoints=worst["datapoints"])
    return {**glanced, "over_policy": None, **(dict.fromkeys(("worst_off", "share_available")) if few else {})}


def disproved(actor: Actor, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Violations as a key is told of them: why one was lifted is for whoever may read the ledger."""
    told = found if may(actor, ledger_api.entries) else [{**each, "reason": None} for each in found]
    return [{**each, "text": " ".join([each["sentence"], *reports.lifted_in_words([each])])} for each in told]


def _glance(book: Book) -> dict[str, Any]:
    budget = book.policy.budget
    # Whoever reads well below the budget is within it; at the edge, and beyond, the gate itself is asked.
    near = [each for each in readings.everybody(book).values() if each.meter > 0.999 * budget.epsilon]
    over = sum(each.datapoints for each in near if not budget.admits(readings.standing(budget, each.history)))
    worst = None
    if book.size:
        cohort = readings.worst_of_all(book)
        worst = {**readings.shown(readings.reading(budget, cohort.history)), "datapoints": cohort.datapoints}
    found: dict[str, dict[str, Any]] = {}
    flagged = 0
    matters = [release for release in reversed(book.releases.values()) if release.status in _MATTERS]
    for release in matters:
        serious = [each for each in release.findings if each[1] in _SERIOUS]
        flagged += bool(serious)
        for code, severity in serious:
            new = {"code": code, "severity": severity, "releases": 0, "release": release.id, "at": release.at}
            found.setdefault(code, new)["releases"] += 1
    promise = book.promise
    # What the policy admits, the promise does; policies only ever lower it.
    kept = all(promise.admits(readings.standing(promise, each.history)) for each in near)
    available = budget.epsilon if worst is None or worst["available"] is None else worst["available"]
    room = "exhausted" if available <= 0 else "low" if available < LOW * budget.epsilon else "inside"
    proof_status, breaking = book.proof_status, reports.breaking(book)
    doubtful = not kept or bool(breaking) or (bool(matters) and proof_status != "proved")
    return {
        "name": book.name,
        "status": book.status,
        "is_made_up": is_made_up(book),
        "unit": book.unit,
        "datapoints": book.size,
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "promise": {"epsilon": promise.epsilon, "delta": promise.delta},
        "hollow": certified.lifelong(
            promise=promise, unit=book.unit, adjacency=book.adjacency, accepted=[proof_status]
        ).guarantee.is_hollow,
        "worst_off": worst,
        "share_available": min(1.0, available / budget.epsilon),
        "room": room,
        "standing": "in doubt" if doubtful else room,
        "charged": bool(matters),
        "over_policy": over,
        "tasks_used_up": readings.used_up(book),
        "promise_kept": kept,
        "proof_status": proof_status,
        "breaking": breaking,
        "open_holds": sum(release.status == "held" for release in matters),
        "flagged": flagged,
        "findings": list(found.values()),
        "violations": reports.violations(book),
        "entries": book.number,
    }


@page(
    router,
    "/overview",
    title="Overview",
    question="Are we inside our promises today?",
    template="overview.html",
)
def overview(
    parts: Service, actor: Visitor, cursor: Annotated[str | None, Query(max_length=1000)] = None
) -> dict[str, Any]:
    """Populations by least available, open findings, holds about to expire, and when the ledger was verified."""
    first = number_from(cursor) or 0
    with parts.database.transaction() as connection:
        heads = connection.execute(_HEADS, {"most": _MOST_POPULATIONS}).all()
        holds = connection.execute(_HOLDS, {"most": HOLDS_SHOWN}).all()
        signed = evidence.last_signed(connection)
    seen = [told(_seen(parts, row.name, bytes(row.hash)), actor) for row in heads]
    seen = [{**each, "violations": disproved(actor, each["violations"])} for each in seen]
    seen.sort(key=lambda each: (each["standing"] != "in doubt", _share(each), each["name"]))
    findings = by_code(seen)
    verified = verifications.last(parts.database, [each["name"] for each in seen])
    now = utc_now()
    return {
        "at": stamp(now),
        **_answer(seen, verified, now),
        "not_in_order": [each["text"] for each in system.checks(parts, now) if not each["ok"]],
        "populations": [{**each, "verified": verified.get(each["name"])} for each in seen[first : first + PAGE]],
        "may_verify": may(actor, ledger_api.entries, ledger_api.verify),
        "populations_in_all": len(seen),
        "in_doubt": sum(each["standing"] == "in doubt" for each in seen),
        "next": cursor_of({"number": first + PAGE}) if len(seen) > first + PAGE else None,
        "findings": findings[:FINDINGS_SHOWN],
        "findings_in_all": len(findings),
        "violations": [{"population": each["name"], **found} for each in seen for found in each["violations"]],
        "holds": [
            {"release": row.release, "population": row.name, "expires_at": stamp(row.expires_at)} for row in holds
        ],
        "held_by_jobs": max(0, sum(each["open_holds"] for each in seen) - (holds[0].in_all if holds else 0)),
        "holds_in_all": holds[0].in_all if holds else 0,
        "checkpoint": None
        if signed is None
        else {
            "number": signed["number"],
            "at": signed["at"],
            "grown": sum(row.number > signed["covers"].get(row.name, 0) for row in heads),
        },
        "checkpoint_seconds": parts.settings.checkpoint_seconds,
    }


def _share(seen: Mapping[str, Any]) -> float:
    """What is available of the budget; by its word if it is not told, so that the order tells no more than the page."""
    share: float | None = seen["share_available"]
    return {"exhausted": 0.0, "low": LOW, "inside": 1.0}[seen["room"]] if share is None else share


def by_code(seen: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Open findings of every kind, with the populations in which they are: errors first, then what is most frequent."""
    found: dict[str, dict[str, Any]] = {}
    for each in seen:
        for finding in each["findings"]:
            new = {"code": finding["code"], "severity": finding["severity"], "releases": 0, "at": "", "populations": []}
            kind = found.setdefault(finding["code"], new)
            kind["severity"] = min(kind["severity"], finding["severity"])  # an error, if it is one anywhere
            kind["releases"] += finding["releases"]
            kind["at"] = max(kind["at"], finding["at"])
            kind["populations"].append({"name": each["name"], "releases": finding["releases"]})
    for kind in found.values():
        kind["populations"].sort(key=lambda where: -where["releases"])
    return sorted(found.values(), key=lambda kind: (kind["severity"] != "error", -kind["releases"], kind["code"]))


def _answer(seen: Sequence[dict[str, Any]], verified: Mapping[str, dict[str, Any]], now: datetime) -> dict[str, Any]:
    """Yes or no, how sure that is, and what stands beside it, in sentences."""
    if not seen:
        sentence = "Nothing has been promised yet: there are no populations."
        return {"answer": "none", "sentence": sentence, "beside": [], "hollow": []}
    broken = [name for name, said in verified.items() if not said["ok"]]
    stands = [(each["name"], found) for each in seen for found in each["violations"] if not found["lifted"]]
    used = [(name, found) for name, found in stands if found["admitted"]]
    reasons = []
    if not_kept := [each["name"] for each in seen if not each["promise_kept"]]:
        reasons.append(f"in {_names(not_kept)} more was charged to somebody than was promised")
    if broken:
        reasons.append(f"the ledger of {_names(broken)} did not verify")
    if used:
        mechanisms = sorted({found["mechanism"] for _, found in used})
        admitted = {(name, found["mechanism"]): found["admitted"] for name, found in used}
        where = _names(list(dict.fromkeys(name for name, _ in used)))
        what = f"a release of {where} was" if sum(admitted.values()) == 1 else f"releases of {where} were"
        reasons.append(f"an audit disproved {_names(mechanisms)}, by which {what} admitted")
    hollow = [each["name"] for each in seen if each["hollow"]]
    people = sum(each["datapoints"] for each in seen)
    invented = sum(each["datapoints"] for each in seen if each["is_made_up"])
    which = "all" if invented == people else f"{invented:,}"
    made_up = f", {which} of them made up," if invented else ""
    where = f"the population {seen[0]['name']}" if len(seen) == 1 else f"all {len(seen):,} populations"
    if reasons:
        answer, sentence = "no", f"Not for certain: {'; '.join(reasons)}."
    elif doubts := _doubts(seen):
        sure = sum(each["standing"] != "in doubt" for each in seen)
        begins = f"Yes for {sure:,} of {len(seen):,} populations." if sure else "Not for certain."
        answer, sentence = "open", " ".join([begins, *doubts])
    else:
        answer = "yes"
        none = f", but that of {_names(hollow)} is practically none" if hollow else ""
        sentence = (
            f"Yes. In {where}, everything released about each of {people:,} datapoints{made_up} is within its "
            f"promise{none}."
        )
    sentence = f"{sentence} {_how_sure(seen, verified, now)}"
    beside = []
    if hollow:
        beside.append(
            f"Practically nothing is promised in {_names(hollow)}: an attacker who has seen every release may be right "
            f"{100 * HOLLOW:g} % of the time, or more often, about any one of them."
        )
    low = [each["name"] for each in seen if each["room"] == "low"]
    out = [each["name"] for each in seen if each["room"] == "exhausted" and not each["over_policy"]]  # said below
    if out:
        beside.append(f"Some of {_names(out)} have nothing left: no release that touches them is admitted.")
    if low:
        beside.append(
            f"{_names(low)} {'is' if len(low) == 1 else 'are'} running low: somebody has less than a tenth left."
        )
    over = [each for each in seen if each["over_policy"]]
    if over:
        people = sum(each["over_policy"] for each in over)
        where = _names([each["name"] for each in over])
        has = "datapoint" if people == 1 else "datapoints"
        them = "has more behind it" if people == 1 else "have more behind them"
        beside.append(
            f"{people:,} {has} of {where} {them} than the current policy allows: nothing more is admitted about "
            f"{'it' if people == 1 else 'them'}."
        )
    if spent := [each for each in seen if each["tasks_used_up"]]:
        where = _names([each["name"] for each in spent])
        beside.append(used_up(sum(each["tasks_used_up"] for each in spent), f" of {where}"))
    for mechanism in sorted({found["mechanism"] for _, found in stands if not found["admitted"]}):
        unused = [name for name, found in stands if found["mechanism"] == mechanism and not found["admitted"]]
        where = _names(list(dict.fromkeys(unused)))
        beside.append(
            f"An audit disproved {mechanism} in {where}, where nothing made by it has left or may leave; it is blocked "
            "there."
        )
    for each in seen:
        beside += reports.lifted_in_words(each["violations"], f" in {each['name']}")
    frozen = [each["name"] for each in seen if each["status"] == "frozen"]
    if frozen:
        beside.append(f"{_names(frozen)} {'is' if len(frozen) == 1 else 'are'} frozen: nothing is released from there.")
    return {"answer": answer, "sentence": sentence, "beside": beside, "hollow": hollow}


def _doubts(seen: Sequence[dict[str, Any]]) -> list[str]:
    """Why what was charged may be less than what was told, in the report's words; where nothing was, it is not."""
    doubts = []
    if claimed := [each["name"] for each in seen if each["charged"] and each["proof_status"] != "proved"]:
        doubts.append(reports.unproved(f" in {_names(claimed)}"))
    if broken := [each for each in seen if each["breaking"]]:
        where = _names([each["name"] for each in broken])
        doubts.append(reports.in_doubt(sum(each["breaking"] for each in broken), f" in {where}"))
    return doubts


def _how_sure(seen: Sequence[dict[str, Any]], verified: Mapping[str, dict[str, Any]], now: datetime) -> str:
    """How long ago it was verified that the ledgers, from which all of it is read, are as they were written."""
    never = [each["name"] for each in seen if each["name"] not in verified]
    if len(never) == len(seen):
        return "No ledger has been verified yet: this is what they say as they stand."
    oldest = min(said["at"] for said in verified.values())
    if never:
        return (
            f"The {'ledger' if len(never) == 1 else 'ledgers'} of {_names(never)} {_has(never)} not been verified yet."
        )
    grown = sum(each["entries"] > verified[each["name"]]["entries"] for each in seen)
    since_then = f"; {grown:,} of {len(seen):,} have grown since" if grown else ""
    which = "The ledger was verified" if len(seen) == 1 else "All ledgers were verified, the longest ago"
    return f"{which} {since(oldest, now)}{since_then}."


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _names(names: Sequence[str]) -> str:
    shown = list(names[:3]) + ([f"{len(names) - 3:,} more"] if len(names) > 3 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
