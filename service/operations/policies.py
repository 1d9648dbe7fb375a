"""Versions of a policy, how each differs from the one before, and what a new one would have denied.

Nothing here decides anything: a preview looks at decisions that were made, and says which of them a stricter version
would not have made. Each release is looked at by itself, as if everything before it had happened all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant.audit.findings import denying, finding_from
from accountant.book import Book, Policy, policy_to
from accountant.canonical import from_canonical
from accountant.guarantees import rounded_up
from service.errors import NotFound, Problem
from service.operations import readings
from service.operations.populations import new_version
from service.operations.reports import policy_in_words
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from service.store.database import Database

MOST_VERSIONS: Final = 200
#: Releases that a preview looks at, the newest; and entries that it replays where a new δ makes that necessary.
MOST_RELEASES: Final = 10_000
MOST_REPLAYED: Final = 50_000
_VERSIONS = text(
    "SELECT number, body FROM entry WHERE population_id = (SELECT id FROM population WHERE name = :name) "
    "AND kind IN ('population.created', 'policy.changed') ORDER BY number DESC LIMIT :limit"
)
_HELD = text(
    "SELECT number, body FROM entry WHERE population_id = (SELECT id FROM population WHERE name = :name) "
    "AND kind = 'release.held' ORDER BY number DESC LIMIT :limit"
)
_LOG = text(
    "SELECT number, body FROM entry WHERE population_id = (SELECT id FROM population WHERE name = :name) "
    "AND number > :after ORDER BY number LIMIT 1000"
)
_WORDS: Final = {
    "deny": "the release is denied",
    "trim": "whoever cannot afford it is left out",
    True: "may name single datapoints",
    False: "may not name single datapoints",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A release that was held and would have been denied, and why, in sentences."""

    release: str
    number: int
    at: str
    mechanism: str | None
    datapoints: int
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As an answer."""
        return {
            "release": self.release,
            "number": self.number,
            "at": self.at,
            "mechanism": self.mechanism,
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
    found = {"ε for life": f"{budget['epsilon']:g}", "δ": f"{budget['delta']:g}"}
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


# ---------------------------------------------------------------- previews


def preview(database: Database, book: Book, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a new version would change, who is over it already, and what it would have denied. Nothing is recorded."""
    new = new_version(book, **changes)
    over = sum(
        datapoints
        for history, datapoints in book.ledger.cohorts.sizes()
        if not new.budget.admits(readings.standing(new.budget, history))
    )
    found, looked_at = would_have_denied(database, book.name, now=book.policy, new=new)
    return {
        "version": new.version,
        "text": policy_in_words(policy_to(new)),
        "changes": differences(policy_to(book.policy), policy_to(new)),
        "already_over": over,
        "looked_at": looked_at,
        "would_have_denied": [each.to_json() for each in found],
    }


def would_have_denied(database: Database, population: str, *, now: Policy, new: Policy) -> tuple[list[Denied], int]:
    """The releases that a new version would have denied, newest first, and how many were looked at.

    Whether an ε is too small for a release follows from what its decision recorded: the reading of the worst-off
    datapoint that it touched, which is the smallest ε that admits it. A reading belongs to a δ, so for a new δ the log
    is replayed, and the gate asked again.
    """
    with database.transaction() as connection:
        rows = connection.execute(_HELD, {"name": population, "limit": MOST_RELEASES}).all()
    documents = [(row.number, from_canonical(bytes(row.body))) for row in rows]
    changed = new.budget.delta < now.budget.delta or any(
        document["decision"]["epsilon"]["delta"] != new.budget.delta for _, document in documents
    )
    exceeding = _replayed(database, population, new) if changed and documents else _recorded(documents, new)
    found = []
    for number, document in documents:
        reasons = [*_refusals(document, new)]
        if number in exceeding:
            reasons.insert(0, exceeding[number])
        if reasons:
            mechanism = document["declared"].get("mechanism")
            found.append(
                Denied(
                    release=document["release"],
                    number=number,
                    at=document["at"],
                    mechanism=None if mechanism is None else mechanism["name"],
                    datapoints=document["decision"]["datapoints"],
                    reasons=tuple(reasons),
                )
            )
    return found, len(documents)


def _recorded(documents: Sequence[tuple[int, Mapping[str, Any]]], new: Policy) -> dict[int, str]:
    """Entries after which somebody would have been over, by the readings that their decisions recorded."""
    found = {}
    for number, document in documents:
        after = document["decision"]["epsilon"]["after"]
        if after is None or after > new.budget.epsilon:
            reached = "no finite ε" if after is None else f"ε = {rounded_up(after, digits=3)}"
            found[number] = _over(new, f"It brought somebody to {reached}")
    return found


def _replayed(database: Database, population: str, new: Policy) -> dict[int, str]:
    """The same, by asking the gate again after each of them."""
    found = {}
    book: Book | None = None
    for number, body in _entries(database, population):
        if book is None:
            book = Book.of(body)
        else:
            book.apply(body)
        document = from_canonical(body)
        if document["kind"] != "release.held":
            continue
        touched = {
            history for part in book.held_from(document).parts for history, _ in book.ledger.cohorts.touched(part.scope)
        }
        if not all(new.budget.admits(readings.standing(new.budget, history)) for history in touched):
            found[number] = _over(new, "It brought somebody over this budget")
    return found


def _entries(database: Database, population: str) -> Iterator[tuple[int, bytes]]:
    after = 0
    while True:
        with database.transaction() as connection:
            rows = connection.execute(_LOG, {"name": population, "after": after}).all()
        for row in rows:
            if row.number > MOST_REPLAYED:
                message = f"For a new δ the log is replayed, and that is done for at most {MOST_REPLAYED:,} entries."
                raise Problem("invalid", message, "delta")
            yield row.number, bytes(row.body)
        if len(rows) < 1000:
            return
        after = rows[-1].number


def _over(new: Policy, did: str) -> str:
    return f"{did}." if new.on_exhausted == "deny" else f"{did}, who would have been left out."


def _refusals(document: Mapping[str, Any], new: Policy) -> Iterator[str]:
    """What else a version says against a release."""
    mechanism = document["declared"].get("mechanism")
    known = None if mechanism is None else CATALOG.get(mechanism["name"])
    if known is not None and known.proof_status not in new.accepts:
        yield f"Mechanism {known.name} is {known.proof_status}, and that would not be accepted."
    for finding in denying([finding_from(each) for each in document.get("findings", ())], new.findings):
        if finding.code != "mechanism.proof_status":
            yield f"{finding.message} ({finding.code})"
