"""Policies: who may spend what, since when and why; a new version with what it would have denied; freeze and close."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from pydantic import ValidationError

from accountant.audit.findings import SEVERITIES
from accountant.errors import AccountantError, InvalidInput
from service.api import ledger as ledger_api
from service.api import populations as populations_api
from service.api.context import Service
from service.api.populations import Population
from service.dashboard.decisions import carried_out, must_be_confirmed, reason_of
from service.dashboard.pages import Asked, Data, Done, action, address, page, problem_of
from service.dashboard.visitors import as_in, may
from service.errors import Problem
from service.operations import jobs, keys, policies, populations, readings
from service.operations.keys import Actor
from service.schemas import PolicyChange
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.book import Book

router = APIRouter()
Reader = Annotated[Actor, as_in(populations_api.get_policy)]
Changer = Annotated[Actor, as_in(populations_api.change_policy)]
Freezer = Annotated[Actor, as_in(populations_api.change_status)]
STATUSES = ("proved", "claimed", "refuted")
_BECOMES = {
    "frozen": "While frozen, nothing can be proposed, and what is held must not leave, until it is opened again.",
    "open": "Releases can be proposed again, under the current policy.",
    "closed": "Once closed, nothing can ever be proposed again, and what is held must not leave. It cannot be undone.",
}


@page(
    router,
    "/populations/{population}/policy",
    title=lambda data: f"Policy of {data['population']}",
    question="Who may spend what, and since when?",
    template="policy.html",
)
def policy(population: Population, parts: Service, actor: Reader) -> Data:
    """The policy of now in words, what it says of every mechanism, and every version.

    Who changed it, why and by which entry is said to whoever may read the ledger.
    """
    found = policies.versions(parts.database, population)
    if not (reads := may(actor, ledger_api.entries)):
        found = [{**each, "actor": None, "reason": None, "number": None} for each in found]
    with parts.books.read(population) as book:
        admitted = Counter(each.mechanism for each in book.releases.values() if each.status != "denied")
        return {
            **_standing(book),
            "text": found[0]["text"],
            "versions": found,
            "mechanisms": _mechanisms(book, admitted),
            "explicit": admitted[None],  # by no mechanism
            "reads_ledger": reads,
            "names": keys.names(parts.database, _actors(book, found)) if reads else {},
            "may_change": may(actor, populations_api.change_policy, populations_api.change_status),
            "means": None if book.status == "open" else _BECOMES[book.status],
            "became": _became(book, told=reads),
            "severities": SEVERITIES,
            "over": _over(book) if reads else None,
        }


def _actors(book: Book, versions: Sequence[Data]) -> list[str]:
    """Of the versions and of the status."""
    return [*(each["actor"] for each in versions), *([] if book.became is None else [book.became.actor])]


def _became(book: Book, *, told: bool) -> Data | None:
    """Since when it is what it is; for whoever may read the ledger also by whom, why and by which entry."""
    became = book.became
    if became is None:
        return None
    known = asdict(became)
    return known if told else {**dict.fromkeys(known), "at": became.at}


def _over(book: Book) -> int:
    """How many have more behind them than the policy allows; nobody has more than was promised."""
    return 0 if book.policy.budget == book.promise else readings.over(book, book.policy.budget)


def _standing(book: Book) -> Data:
    budget = book.policy.budget
    return {
        "population": book.name,
        "unit": book.unit,
        "status": book.status,
        "proof_status": book.proof_status,
        "promise": {"epsilon": book.promise.epsilon, "delta": book.promise.delta},
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "policy": populations.policy(book.policy),
    }


def _mechanisms(book: Book, admitted: Counter[str | None]) -> list[Data]:
    """What the policy says of each: accepted, not accepted, or blocked by an audit; with how often it was admitted."""
    return [
        {
            "name": each.name,
            "title": each.title,
            "proof_status": each.proof_status,
            "accepted": each.proof_status in book.policy.accepts,
            "blocked_by": [audit.id for audit in book.blocking(each.name)],
            "releases": admitted[each.name],
        }
        for each in CATALOG.values()
    ]


# ---------------------------------------------------------------- a new version


def change(
    population: Population,
    parts: Service,
    _actor: Changer,
    epsilon: Annotated[str, Query(max_length=40)] = "",
    delta: Annotated[str, Query(max_length=40)] = "",
    on_exhausted: Annotated[Literal["", "deny", "trim"], Query()] = "",
    named_scopes: Annotated[Literal["", "yes", "no"], Query()] = "",
    accepts: Annotated[list[str] | None, Query(max_length=4)] = None,
    deny: Annotated[list[str] | None, Query(max_length=50)] = None,
    lift: Annotated[list[str] | None, Query(max_length=50)] = None,
    preview: Annotated[Literal["", "yes"], Query()] = "",
) -> Data:
    """What would change, and what it would have denied; its state is in the address.

    What an address does not speak of stays as it is. A form says of every tick that it has ticks, even where none is
    set, so a link that asks for one thing changes that and nothing beside it.
    """
    filled = {
        "epsilon": epsilon, "delta": delta, "on_exhausted": on_exhausted, "named_scopes": named_scopes,
        "accepts": accepts, "deny": deny, "lift": lift or [],
    }  # fmt: skip
    with parts.books.read(population) as book:
        now = book.policy
        denying = [name for name, verdict in now.findings.items() if verdict == "deny"]
        data: Data = {
            **_standing(book),
            "statuses": STATUSES,
            "severities": SEVERITIES,
            "asked": filled
            | {
                "accepts": list(now.accepts) if accepts is None else [each for each in accepts if each],
                "deny": denying if deny is None else [each for each in deny if each],
            },
            "codes": {name: verdict for name, verdict in now.findings.items() if name not in SEVERITIES},
            "blocked": [
                {"audit": audit.id, "mechanism": audit.mechanism, "sentence": audit.sentence}
                for audit in book.audits.values()
                if audit.verdict == "violation" and audit.id not in now.lifted
            ],
            "preview": None,
            "refused": None,
        }
        if preview:
            try:
                found = _changes(data["asked"], now.findings)
                data["preview"] = policies.preview(parts.database, book, found)
            except (Problem, AccountantError, ValueError) as failure:
                data["refused"] = {"detail": _refusal(failure)}
    return data


def _refusal(failure: Exception) -> str:
    """Why there is nothing to preview, by the words that stand beside the fields.

    >>> _refusal(InvalidInput("epsilon", 9.0, "at most 2.5, that of the policy in force"))
    'ε may be at most 2.5, that of the policy in force. You asked for 9.'
    """
    problem = problem_of(failure)
    sign = {"epsilon": "ε", "delta": "δ"}.get(problem.field_name or "")
    if sign is None or isinstance(failure, ValidationError):  # which names its field
        return problem.detail
    if isinstance(failure, InvalidInput):
        return f"{sign} may be {failure.expected}. You asked for {failure.value:g}."
    return f"{sign}: {problem.detail.removeprefix(f'{problem.field_name}: ')}"


def _changes(asked: Mapping[str, Any], now: Mapping[str, str]) -> dict[str, Any]:
    """What a form says of a new version, read as strictly as a request."""
    verdicts = dict(now) | {name: "deny" if name in asked["deny"] else "allow" for name in SEVERITIES}
    said = PolicyChange.model_validate(
        {
            "reason": "preview",
            "epsilon": _number("epsilon", asked["epsilon"]),
            "delta": _number("delta", asked["delta"]),
            "on_exhausted": asked["on_exhausted"] or None,
            "accepts": asked["accepts"],
            "named_scopes": {"": None, "yes": True, "no": False}[asked["named_scopes"]],
            "findings": verdicts,
            "lift": asked["lift"],
        }
    )
    return said.model_dump(exclude={"reason"})


def _number(name: str, words: str) -> float | None:
    try:
        return float(words) if words.strip() else None
    except ValueError:
        raise Problem("invalid", f"{words!r} is not a number.", name) from None


@action(
    router,
    "/populations/{population}/policy/change",
    title=lambda data: f"A new version of the policy of {data['population']}",
    question="What would it change, and what would it have denied?",
    template="policy_change.html",
    data=change,
)
async def changed(asked: Asked) -> Done:
    """Put a version into force that was previewed, for a reason; not if another one came between."""
    must_be_confirmed(asked)
    population = asked.shown["population"]
    if asked.shown["preview"] is None:
        raise Problem("invalid", "Look at the preview first.", "preview")
    found = _changes(asked.shown["asked"], asked.shown["policy"]["findings"])
    operation = populations.change_policy(**found, reason=reason_of(asked), if_match=asked.form.text("version"))
    answer = await carried_out(asked, population, operation)
    over = answer.document["already_over"]
    stands = f" {over:,} are over it already, and can be charged nothing more." if over else ""
    return Done(
        notice=f"Version {answer.document['version']} of the policy of {population} is in force.{stands}",
        to=f"/populations/{population}/policy",
    )


# ---------------------------------------------------------------- freeze, open, close


def status(
    population: Population,
    parts: Service,
    _actor: Freezer,
    to: Annotated[Literal["frozen", "open", "closed"], Query()] = "frozen",
) -> Data:
    """What would follow."""
    with parts.books.read(population) as book:
        held = [each.id for each in book.releases.values() if each.status == "held"]
        standing = _standing(book)
    return {
        **standing,
        "to": to,
        "becomes": _BECOMES[to],
        "held": len(held),
        "jobs": jobs.unfinished(parts.database, population),
    }


@action(
    router,
    "/populations/{population}/status",
    title=lambda data: {"frozen": "Freeze", "open": "Open", "closed": "Close"}[data["to"]] + f" {data['population']}",
    question="What would follow?",
    template="status_change.html",
    data=status,
)
async def status_changed(asked: Asked) -> Done:
    """Freeze, open or close, for a reason."""
    must_be_confirmed(asked)
    population, to = asked.shown["population"], asked.shown["to"]
    await carried_out(asked, population, populations.change_status(to=to, reason=reason_of(asked)))
    return Done(notice=f"{population} is {to}.", to=f"/populations/{population}/policy")


def acceptance(book: Book, status: str) -> str:
    """Where an officer looks at a version that accepts what this one does, and mechanisms of this status."""
    accepted = [each for each in STATUSES if each in book.policy.accepts or each == status]
    query = urlencode({"preview": "yes", "accepts": accepted}, doseq=True)
    return f"/populations/{book.name}/policy/change?{query}"


def lifting(population: str, audit: str) -> str:
    """Where an officer looks at a version under which an audit blocks its mechanism no more."""
    return address(f"/populations/{population}/policy/change", preview="yes", lift=audit)
