"""Versions of a policy, how each differs from the one before, and what a new one would have denied.

Nothing here decides anything: a preview looks at decisions that were made, and says which of them a stricter version
would not have made. Each release is looked at by itself, as if everything before it had happened all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant.audit.findings import RULES, verdict_on
from accountant.book import Book, Policy, policy_to
from accountant.canonical import from_canonical
from accountant.filters import Cost
from accountant.guarantees import rounded_up
from accountant.ledger import LIFELONG
from accountant.units import SATURATED
from service.errors import NotFound
from service.operations import lives, readings
from service.operations.populations import new_version
from service.operations.reports import policy_in_words
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from accountant.book import Release
    from accountant.cohorts import Scope
    from accountant.histories import History
    from service.store.database import Database

MOST_VERSIONS: Final = 200
#: Releases that a preview looks at, the newest; and those that the gate judges, where a new δ makes that necessary.
MOST_RELEASES: Final = 10_000
MOST_JUDGED: Final = 100
_VERSIONS = text(
    "SELECT number, body FROM entry WHERE population_id = (SELECT id FROM population WHERE name = :name) "
    "AND kind IN ('population.created', 'policy.changed') ORDER BY number DESC LIMIT :limit"
)
_WORDS: Final = {
    "deny": "the release is denied",
    "trim": "whoever cannot afford it is left out",
    True: "may ask for chosen individuals",
    False: "may not ask for chosen individuals",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A release that was held and would have been denied, and why, in sentences."""

    release: str
    number: int
    at: str
    mechanism: str | None
    tasks: tuple[str, ...]
    datapoints: int
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As an answer."""
        return {
            "release": self.release,
            "number": self.number,
            "at": self.at,
            "mechanism": self.mechanism,
            "tasks": list(self.tasks),
            "datapoints": self.datapoints,
            "reasons": list(self.reasons),
        }


# ---------------------------------------------------------------- versions


def versions(database: Database, population: str) -> list[dict[str, Any]]:
    """Every version, newest first, with its words, its reason, and what it changed."""
    with database.transaction() as connection:
        rows = connection.execute(_VERSIONS, {"name": population, "limit": MOST_VERSIONS + 1}).all()
    if not rows:
        raise NotFound("population", population)
    documents = [(row.number, from_canonical(bytes(row.body))) for row in rows]
    earlier: Sequence[Mapping[str, Any] | None] = [document["policy"] for _, document in documents[1:]]
    if len(documents) <= MOST_VERSIONS:
        earlier = [*earlier, None]
    return [
        {
            "version": document["policy"]["version"],
            "number": number,
            "at": document["at"],
            "actor": document["actor"],
            "reason": document.get("reason"),
            "text": policy_in_words(document["policy"]),
            "changes": [] if before is None else differences(before, document["policy"]),
        }
        for (number, document), before in zip(documents, earlier, strict=False)
    ]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, str]]:
    """What changed from one policy of the log to another: each with its name, and both values in words.

    >>> old = {"budget": {"epsilon": 3.0, "delta": 1e-06}, "accepts": ["proved"]}
    >>> differences(old, {**old, "budget": {"epsilon": 2.5, "delta": 1e-06}})
    [{'what': 'ε for life', 'from': '3', 'to': '2.5'}]
    >>> differences(old, {**old, "budget": {"epsilon": 2.99999999, "delta": 1e-06}})
    [{'what': 'ε for life', 'from': '3', 'to': '2.99999999'}]
    """
    old, new = _lines(before), _lines(after)
    return [
        {"what": what, "from": old.get(what, "nothing"), "to": new.get(what, "nothing")}
        for what in dict.fromkeys((*old, *new))
        if old.get(what) != new.get(what)
    ]


def _lines(policy: Mapping[str, Any]) -> dict[str, str]:
    """A policy as names and words."""
    budget = policy["budget"]
    found = {"ε for life": _exact(budget["epsilon"]), "δ": _exact(budget["delta"])}
    if "on_exhausted" in policy:
        found["where somebody cannot afford a release"] = _WORDS[policy["on_exhausted"]]
    found["accepted mechanisms"] = " or ".join(policy["accepts"])
    if "named_scopes" in policy:
        found["pipelines"] = _WORDS[policy["named_scopes"]]
    for name, verdict in policy.get("findings", {}).items():
        found[f"findings: {name}"] = verdict
    for rule in policy.get("data", ()):
        found[f"rows of {rule['uri']}"] = f"by {rule['address']}"
    if policy.get("lifted"):
        found["audits that block no more"] = ", ".join(policy["lifted"])
    return found


def _exact(value: float) -> str:
    """All digits: what differs is written differently."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


# ---------------------------------------------------------------- previews


def preview(database: Database, book: Book, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a new version would change, who is over it already, and what it would have denied. Nothing is recorded."""
    new = new_version(book, **changes)
    found, looked_at = would_have_denied(database, book, new=new)
    return {
        "version": new.version,
        "text": policy_in_words(policy_to(new)),
        "changes": differences(policy_to(book.policy), policy_to(new)),
        "already_over": readings.over(book, new.budget),
        "datapoints": book.size,
        "looked_at": looked_at,
        "admitted": sum(release.status != "denied" for release in book.releases.values()),
        "would_have_denied": [each.to_json() for each in found],
    }


def would_have_denied(database: Database, book: Book, *, new: Policy) -> tuple[list[Denied], int]:
    """The releases that a new version would have denied, newest first, and how many were looked at.

    Whether an ε is too small for a release follows from what its decision recorded: the reading of the worst-off
    datapoint that it touched, which is the smallest ε that admits it. A reading belongs to a δ; what was read at
    another one is judged by the gate, and that for the newest releases alone.
    """
    admitted = [each for each in reversed(book.releases.values()) if each.status != "denied"]
    admitted = admitted[:MOST_RELEASES]
    others = [each for each in admitted if each.reached is None or each.reached[1] != new.budget.delta]
    exceeding = _by_the_gate(database, book, others[:MOST_JUDGED], new) if others else {}
    unjudged = {each.id for each in others[MOST_JUDGED:]}
    found, looked_at = [], 0
    for release in admitted:
        if release.id in unjudged:
            continue
        looked_at += 1
        reasons = [*_refusals(release, new)]
        if release.id in exceeding:
            reasons.insert(0, exceeding[release.id])
        elif release.reached is not None and release.reached[1] == new.budget.delta:
            after = release.reached[0]
            if after is None or after > new.budget.epsilon:
                sign = "≤" if book.proof_status == "proved" else "="
                reached = "no finite ε" if after is None else f"ε {sign} {float(rounded_up(after, digits=3)):.3g}"
                reasons.insert(0, _over(new, f"It brought somebody to {reached}"))
        if reasons:
            found.append(
                Denied(
                    release=release.id,
                    number=release.number,
                    at=release.at,
                    mechanism=release.mechanism,
                    tasks=tuple(sorted(release.tasks)),
                    datapoints=release.datapoints,
                    reasons=tuple(reasons),
                )
            )
    return found, looked_at


def _by_the_gate(database: Database, book: Book, judged: Sequence[Release], new: Policy) -> dict[str, str]:
    """Which of these brought somebody over a new budget, from now back to each of them.

    How people stood right after a release is how they stand now, without what was charged to them since, and with the
    holds of then that were voided later. Those in a cohort were touched by the same charges, so this needs no replay.
    Where a sum has no finite cost at an order, nobody can say what it was before: that order is then not counted on.
    """
    oldest = min(each.number for each in judged)
    recent = [each for each in reversed(book.releases.values()) if each.status != "denied" and each.number >= oldest]
    voided = [each for each in book.releases.values() if each.status == "voided" and (each.resolved or 0) > oldest]
    wanted = list({each.id: each for each in (*recent, *voided)}.values())
    found_parts = zip(wanted, lives.parts(database, book, wanted), strict=True)
    parts = {
        each.id: [(scope, dict(spending)[LIFELONG]) for scope, spending in charged] for each, charged in found_parts
    }
    cohorts, budget, names = book.ledger.cohorts, new.budget, {each.id for each in judged}
    since: dict[History, Cost] = {}
    found: dict[str, str] = {}
    for release in recent:
        open_then = [
            part
            for other in voided
            if other.number <= release.number < (other.resolved or 0)
            for part in parts[other.id]
        ]
        for scope, _ in parts[release.id] if release.id in names else ():
            for region, more in _cut(scope, open_then):
                if any(
                    not budget.admits(_before(readings.standing(budget, history), since.get(history), more))
                    for history, _ in cohorts.touched(region)
                ):
                    found[release.id] = _over(new, "It brought somebody over this budget")
        if release.status != "voided":
            for scope, cost in parts[release.id]:
                for history, _ in cohorts.touched(scope):
                    since[history] = since[history] + cost if history in since else cost
    return found


def _cut(scope: Scope, others: Sequence[tuple[Scope, Cost]]) -> list[tuple[Scope, tuple[Cost, ...]]]:
    """A scope in pieces, each with the costs of those others that it is in."""
    pieces: list[tuple[Scope, tuple[Cost, ...]]] = [(scope, ())]
    for other, cost in others:
        halves = [((piece & other, (*costs, cost)), (piece - other, costs)) for piece, costs in pieces]
        pieces = [each for both in halves for each in both if each[0]]
    return pieces


def _before(total: Cost, since: Cost | None, more: Sequence[Cost]) -> Cost:
    """A total without what came since, and with what was there then."""
    if since is not None:
        rho = tuple(
            SATURATED if now >= SATURATED else now - later for now, later in zip(total.rho, since.rho, strict=True)
        )
        total = Cost(rho=rho, delta=total.delta - since.delta)
    return Cost.sum([total, *more])


def _over(new: Policy, did: str) -> str:
    return f"{did}." if new.on_exhausted == "deny" else f"{did}, who would have been left out."


def _refusals(release: Release, new: Policy) -> Iterator[str]:
    """What else a version says against a release."""
    if release.is_trimmed and new.on_exhausted == "deny":
        yield "Somebody could not afford it and was left out; it would have been denied as a whole."
    known = None if release.mechanism is None else CATALOG.get(release.mechanism)
    if known is not None and known.proof_status not in new.accepts:
        yield f"Mechanism {known.name} is {known.proof_status}, and that would not be accepted."
    for code, severity in release.proposed:
        if code != "mechanism.proof_status" and verdict_on(code, severity, new.findings) == "deny":
            yield f"{RULES[code].title} ({code})." if code in RULES else f"A finding ({code})."
