"""Everything about a population for a period, or about one release, in one document that a regulator can read.

It is read from the log: the book is replayed up to the start of the period, then up to its end. Asked again, the same
period has the same report, apart from when it was made, from when the ledger was last verified, and from its
certificates: those say what is known of a release today, so they change with an artifact that is attached, an audit
that is made, or a violation that is found or lifted later. Nobody is named in it: counts, and never who was touched.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import text

from accountant import certificates as certified
from accountant import envelopes
from accountant.audit.checklist import SPENT_OR_HELD
from accountant.audit.findings import DEFAULT_VERDICTS, RULES
from accountant.audit.series import plan_from
from accountant.audit.standing import findings_in
from accountant.book import Book
from accountant.canonical import from_canonical
from service.errors import NotFound, Problem
from service.operations import readings, verifications
from service.operations.certificates import CERTIFIED, shortened
from service.operations.jobs import NOTHING_LEFT
from service.operations.populations import is_made_up
from service.operations.releases import read_of, with_delta
from service.operations.statements import odds_so_far
from service.printed import plain, up
from service.store.writer import stamp

if TYPE_CHECKING:
    from datetime import datetime

    from service.signing import Secrets
    from service.store.database import Database

MOST_ENTRIES: Final = 10_000  # in the period of one report
MOST_REPLAYED: Final = 500_000
MOST_CERTIFICATES: Final = 100
_PAGE: Final = 1000
_ENTRIES = text(
    "SELECT number, hash, body FROM entry WHERE population_id = (SELECT id FROM population WHERE name = :name) "
    "AND number > :after ORDER BY number LIMIT :limit"
)
_SIZE = text("SELECT number FROM population WHERE name = :name")
_RELEASE = text("SELECT number, hash, body FROM entry WHERE release = :release ORDER BY number")
_POLICIES = text(
    "SELECT number, body FROM entry WHERE population_id = (SELECT id FROM population WHERE name = :name) "
    "AND number <= :upto AND kind IN ('population.created', 'policy.changed') ORDER BY number"
)
_CHECKPOINTS = text(
    "SELECT number, at, payload, signature, public_key, count(*) OVER () AS in_all FROM checkpoint "
    "WHERE at >= CAST(:since AS timestamptz) AND at < CAST(:until AS timestamptz) ORDER BY number DESC LIMIT 1000"
)
METHOD: Final = (
    (
        "Every release is proposed before it is made: what will be done to the data (an event), and to whom (a scope). "
        "An accountant computes the most that the event can tell about any one {unit}, as a number ε with a small "
        "probability of failure δ. Both are upper bounds, and every rounding goes against us."
    ),
    (
        "A release is admitted only if every {unit} that it touches stays within the budget for life, everything that "
        "was released about them before and everything that is still held included. This is proved to hold even if "
        "each release is chosen after seeing all earlier ones (a privacy filter; docs/accounting.md has its proof)."
    ),
    (
        "What is admitted counts in full at once. It is given back only for a recorded reason that nothing left. If "
        "nobody says what became of it, it counts as if it had left."
    ),
    (
        "Before a release leaves, rules are checked against what is known of it: what its pipeline says, the ledger, "
        "and the file itself where somebody has opened it. And mechanisms are attacked, on data that is made up, to "
        "disprove what they promise: an attack shows, with a stated confidence, how large ε is at least. Where that is "
        "more than was promised, the mechanism is blocked. All attacks in a population's life together call a true "
        "promise false with a probability of at most 5 % (docs/audits.md, docs/soundness.md)."
    ),
    (
        "Every decision, refusals and changes of policy included, is an entry in a chain of hashes. Signed checkpoints "
        "over these chains show later changes to anybody who kept one (docs/ledger.md)."
    ),
)
NOT_SHOWN: Final = (
    (
        "The report shows what was declared to the ledger and what was decided there. It does not show that a pipeline "
        "did what it declared, or that nothing was released without asking. Audits look for signs of that: their "
        "findings are listed, and of every release that left it is said what was looked at. Where nobody looked, that "
        "there is no finding tells nothing."
    ),
    "It names no one: how many were touched is told, and never who.",
)
UNPROVED: Final = (
    "Policies have accepted mechanisms that are not proved. Where a number depends on one of those, it is what the "
    "mechanism claims, and no bound."
)
VIOLATED: Final = (
    "Audits have refuted mechanisms by which something was released ({audits}). What was made by those has no bound, "
    "and neither has the life of whom it touched: numbers that depend on them are what was charged."
)
#: Why releases are refused, in words; a finding that denies has its own title.
REASONS: Final[Mapping[str, str]] = {
    "budget.exceeded": "over the budget for life",
    "task_budget.exceeded": "over a task's own budget",
    "schedule.exceeded": "a schedule that would exceed the lifelong budget",
    "schedule.unpaid": "leaning on models that nobody paid for",
    "mechanism.overlap": "somebody in two scopes of one noisy sum",
    "policy.proof_status": "a mechanism whose status of proof the policy does not accept",
    "audit.violation": "a mechanism that an audit refuted",
}
_BECAME: Final = (
    ("committed", "left the house"),
    ("held", "still held"),
    ("expired", "expired into spent: nobody said what became of them"),
    ("voided", "voided: nothing of them left"),
    ("denied", "denied"),
    ("spent", "spent, although nothing of them left: numbers in their files denied them, and were paid for"),
)
#: What else is in a ledger, in words for one and for more; releases, policies and audits have sections of their own.
_ELSE: Final = (
    ("datapoints.registered", "registration", "registrations"),  # of so many
    ("task.created", "task was created", "tasks were created"),
    ("release.audited", "check of a release was made", "checks of releases were made"),
    ("artifact.attached", "file of a release was named later", "files of releases were named later"),
    ("datapoint.erased", "{unit}'s key was erased", "{unit}s' keys were erased"),
    ("datapoint.returned", "erased key came back", "erased keys came back"),
)
_STATUS: Final = frozenset({"population.frozen", "population.opened", "population.closed"})
_NAMES = text("SELECT id, name FROM api_key WHERE id = ANY(:ids)")
#: Finds the certificate of a release that left: its bytes, and its predicate.
Certify: TypeAlias = Callable[[str], tuple[bytes, Mapping[str, Any]]]


class Log:
    """The entries of a population in pages, each in a transaction of its own."""

    def __init__(self, database: Database, population: str) -> None:
        self._database, self._population = database, population
        with database.transaction() as connection:
            size = connection.execute(_SIZE, {"name": population}).scalar_one_or_none()
        if size is None:
            raise NotFound("population", population)
        if size > MOST_REPLAYED:
            raise Problem("invalid", f"A report replays at most {MOST_REPLAYED:,} entries; there are {size:,}.", "from")

    def __iter__(self) -> Iterator[tuple[int, bytes, bytes]]:
        after = 0
        while True:
            with self._database.transaction() as connection:
                asked = {"name": self._population, "after": after, "limit": _PAGE}
                rows = connection.execute(_ENTRIES, asked).all()
            for row in rows:
                yield row.number, bytes(row.hash), bytes(row.body)
            if len(rows) < _PAGE:
                return
            after = rows[-1].number


def of_population(
    database: Database,
    population: str,
    *,
    since: datetime | None,
    until: datetime,
    now: datetime,
    certify: Certify,
) -> dict[str, Any]:
    """The report on a population from `since` (its beginning, if none is said) until, and without, `until`.

    Of a period that is not over it has what there is, and says when the period ends.

    The period begins with the first entry that is not before it and ends before the first that is not inside, in the
    order of the ledger, so a clock that was wrong moves no entry past another.
    """
    first, last = "" if since is None else stamp(since), stamp(min(until, now))
    book: Book | None = None
    start: dict[str, Any] | None = None
    begun = False
    entries: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []
    ended: list[str] = []
    unmade: list[str] = []  # of those: nothing left
    added = 0
    findings: list[dict[str, Any]] = []
    audits: list[str] = []
    for number, digest, body in Log(database, population):
        document = from_canonical(body)
        if document["at"] >= last:
            break
        if not begun and document["at"] >= first:
            begun, start = True, None if book is None else budgets(book)
        if book is None:
            book = Book.of(body)
        else:
            book.apply(body)
        if book.chain.link.hash != digest:
            raise Problem("conflict", f"Entry {number:,} of {population!r} is not what was written: verify its ledger.")
        if "policy" in document and isinstance(document["policy"], dict):
            policies = [*(policies if begun else []), _policy(document, number)]
        if not begun:
            continue
        if len(entries) >= MOST_ENTRIES:
            raise Problem(
                "invalid", f"The period has more than {MOST_ENTRIES:,} entries: ask for a shorter one.", "from"
            )
        entries.append(_entry(book, number, digest, document))
        findings += _findings(number, document)
        if document["kind"] == "datapoints.registered":
            added += document["count"]
        elif document["kind"] in {"release.held", "release.denied"}:
            decisions.append(_decision(book, document, number))
        elif document["kind"] in {"release.committed", "release.expired"}:
            ended.append(document["release"])
            unmade += [document["release"]] * _left_nothing(document)
        elif document["kind"] in {"audit.concluded", "audit.abandoned"}:
            audits.append(document["audit"])
    if book is None:
        raise Problem("invalid", f"Population {population!r} did not exist before {last}.", "to")
    if not begun:  # nothing happened
        start = budgets(book)
    promise = _promise(book)
    end = budgets(book)
    worst = readings.worst_of_all(book).history if book.size else None
    for each in decisions:
        each["became"] = "spent" if each["release"] in unmade else book.releases[each["release"]].status
        each["epsilon"]["bound"] = readings.bound(book)  # as sure as it is at the end
    return {
        "title": f"Report on population {population}",
        "kind": "period",
        "population": population,
        "is_made_up": is_made_up(book),
        "release": None,
        "verdict": _verdict(book),
        "summary": _summary(
            book, decisions, findings, entries, [each for each in ended if each not in unmade], added=added
        ),
        "actors": _actors(database, [*entries, *policies]),
        "unit": book.unit,
        "adjacency": book.adjacency,
        "status": book.status,
        "from": first or book.created_at,
        "to": last,
        "ends": stamp(until),
        "made_at": stamp(now),
        "head": {"number": book.number, "hash": book.chain.link.hash.hex()},
        "verified": verifications.last(database, [book.name]).get(book.name),
        "promise": promise.to_json() | {"text": certified.told(promise.guarantee)},
        "meaning": promise.guarantee.meaning(),
        "bounds": _bounds(book),
        "policies": policies,
        "odds": promise.guarantee.odds(),
        "odds_so_far": None if worst is None else odds_so_far(book, worst),
        "odds_with_holds": worst is not None and readings.reading(book.policy.budget, worst).held > 0,
        "budgets": {"start": start, "end": end},
        "decisions": decisions,
        "refusals": sum(each["outcome"] == "denied" for each in decisions),
        "entries": entries,
        "findings": findings,
        "audits": [_audit(book, each) for each in audits],
        **_certificates(ended, certify),
        **_checkpoints(database, first or book.created_at, last),
        "method": [sentence.format(unit=book.unit) for sentence in METHOD],
        "not_shown": list(NOT_SHOWN),
    }


def of_release(
    database: Database,
    book: Book,
    release: str,
    *,
    now: datetime,
    certify: Certify,
) -> dict[str, Any]:
    """The report on one release: what was asked, what was decided and why, and what became of it."""
    with database.transaction() as connection:
        rows = connection.execute(_RELEASE, {"release": release}).all()
    documents = [(row.number, bytes(row.hash), from_canonical(bytes(row.body))) for row in rows]
    known = book.releases[release]
    promise = _promise(book)
    unmade = any(_left_nothing(document) for _, _, document in documents)
    disproved = [each for each in violations(book) if each["mechanism"] == known.mechanism]
    decided = [_decision(book, documents[0][2], documents[0][0]) | {"became": "spent" if unmade else known.status}]
    entries = [_entry(book, number, digest, document) for number, digest, document in documents]
    findings = [each for number, _, document in documents for each in _findings(number, document)]
    ended = [release] if known.status in CERTIFIED else []
    policies = _policies(database, book, documents[0][2]["policy"], documents[-1][0])
    return {
        "title": f"Report on release {release}",
        "kind": "release",
        "population": book.name,
        "is_made_up": is_made_up(book),
        "verdict": {
            "answer": known.status,
            "text": " ".join([entries[-1]["text"], *lifted_in_words(disproved)]),
        },
        "summary": _summary(book, decided, findings, entries, [] if unmade else ended),
        "actors": _actors(database, [*entries, *policies]),
        "odds": promise.guarantee.odds(),
        "odds_so_far": None,
        "odds_with_holds": False,
        "release": {"id": release, "kind": known.kind, "status": known.status, "datapoints": known.datapoints},
        "unit": book.unit,
        "adjacency": book.adjacency,
        "status": book.status,
        "from": documents[0][2]["at"],
        "to": stamp(now),
        "made_at": stamp(now),
        "head": {"number": book.number, "hash": book.chain.link.hash.hex()},
        "verified": verifications.last(database, [book.name]).get(book.name),
        "promise": promise.to_json() | {"text": certified.told(promise.guarantee)},
        "meaning": promise.guarantee.meaning(),
        "bounds": _bounds(book),
        "policies": policies,
        "budgets": {"start": None, "end": None},
        "decisions": decided,
        "refusals": int(known.status == "denied"),
        "entries": entries,
        "findings": findings,
        "audits": [
            _audit(book, each.id)
            for each in book.audits.values()
            if each.stage == "concluded" and each.mechanism == known.mechanism
        ],
        **_certificates(ended, certify),
        "checkpoints": [],
        "checkpoints_in_all": 0,
        "method": [sentence.format(unit=book.unit) for sentence in METHOD],
        "not_shown": list(NOT_SHOWN),
    }


def signed(secrets: Secrets, report: Mapping[str, Any]) -> dict[str, Any]:
    """The report with the envelope of a statement about its digest, under the key of the certificates."""
    about = {name: report[name] for name in ("kind", "population", "from", "to", "made_at", "head")}
    payload = envelopes.document_statement(
        report, predicate_type=envelopes.REPORT_TYPE, about=about, signer=secrets.public_key
    )
    signature = secrets.signing.sign(envelopes.signed_bytes(payload))
    envelope = envelopes.envelope(payload, signature=signature, signer=secrets.public_key)
    return {"report": dict(report), "envelope": from_canonical(envelope)}


# ---------------------------------------------------------------- its parts


def _verdict(book: Book) -> dict[str, Any]:
    """Whether everything is inside the promise, at the end of the period; beside it, what audits found and was lifted.

    A lifted violation leaves the answer as it was: somebody who is responsible has said why. It is told all the same.
    """
    found = _answer(book)
    return {**found, "text": " ".join([found["text"], *lifted_in_words(violations(book))])}


def _answer(book: Book) -> dict[str, Any]:
    """Yes, no or open, in a sentence."""
    if standing := book.violations():
        mechanisms = sorted({audit.mechanism for audit in standing})
        because = f"an audit refuted {' and '.join(mechanisms)}, by which something was released"
        return {"answer": "no", "text": f"Not for certain: {because}."}
    kept = all(
        book.promise.admits(readings.standing(book.promise, history)) for history, _ in book.ledger.cohorts.sizes()
    )
    if not kept:
        return {"answer": "no", "text": "No: more was charged to somebody than was promised."}
    if book.proof_status != "proved":
        return {"answer": "open", "text": unproved()}
    if broken := breaking(book):
        return {"answer": "open", "text": in_doubt(broken)}
    return {
        "answer": "yes",
        "text": (
            f"Yes. At the end, everything that was released about each of {book.size:,} {book.unit}s, and everything "
            "that is still held, is within what was promised to them for life."
        ),
    }


def violations(book: Book) -> list[dict[str, Any]]:
    """What audits found against mechanisms, with how many releases by them left or may leave.

    What a policy lifted is among them, with the version that did, and why.
    """
    admitted = Counter(each.mechanism for each in book.releases.values() if each.status in SPENT_OR_HELD)
    return [
        {
            "audit": audit.id,
            "mechanism": audit.mechanism,
            "sentence": audit.sentence,
            "admitted": admitted[audit.mechanism],
            "lifted": lift is not None,
            "version": None if lift is None else lift.version,
            "reason": None if lift is None else lift.reason,
        }
        for audit in book.audits.values()
        if audit.verdict == "violation"
        for lift in [book.lifts.get(audit.id)]
    ]


def lifted_in_words(found: Iterable[Mapping[str, Any]], where: str = "") -> list[str]:
    """Of violations that a policy lifted, that it did, and why where that is told."""
    said = []
    for each in found:
        if each["lifted"]:
            by = "" if not each["admitted"] else ", by which something was released"
            why = "." if each["reason"] is None else f": {_ended(each['reason'])}"
            said.append(
                f"An audit disproved {each['mechanism']}{where}{by}; version {each['version']} of the policy lifted "
                f"that{why}"
            )
    return said


def unproved(where: str = "") -> str:
    """What is said of lives that are within their promise by the word of a mechanism that is not proved."""
    return f"What was charged{where} is within the promise, but it is no bound. {UNPROVED}"


def in_doubt(releases: int, where: str = "") -> str:
    """What is said of lives that are within their promise if nothing is wrong with what left."""
    which = "1 release that left breaks" if releases == 1 else f"{releases:,} releases that left break"
    return f"What was charged{where} is within the promise, but {which} a rule on which it rests: see the findings."


def breaking(book: Book) -> int:
    """How many releases left although, or before, an error was found against them."""
    return sum(
        release.status in CERTIFIED and any(severity == "error" for _, severity in release.findings)
        for release in book.releases.values()
    )


def _summary(
    book: Book,
    decisions: Sequence[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    entries: Sequence[Mapping[str, Any]],
    left: Sequence[str],
    *,
    added: int = 0,
) -> dict[str, Any]:
    """How many of each: what became of proposals, why they were refused, what was opened and found, what else was."""
    became = Counter[str](each["became"] for each in decisions)
    reasons = Counter(code for each in decisions for code in {reason["code"] for reason in each["reasons"]})
    found: dict[str, set[str]] = {}
    for each in findings:
        found.setdefault(each["code"], set()).add(str(each["release"]))
    severities = {each["code"]: each["severity"] for each in findings}
    kinds = Counter(each["kind"] for each in entries)
    standings = [book.releases[each].standing for each in left]
    begins = {"datapoints.registered": f"{added:,} {book.unit}{' was' if added == 1 else 's were'} added, in "}
    return {
        "proposed": len(decisions),
        "outcomes": [{"status": name, "text": words, "releases": became[name]} for name, words in _BECAME],
        "refused_for": [
            {"code": code, "text": _reason(code), "releases": count} for code, count in reasons.most_common()
        ],
        "left": len(left),
        "opened": sum(each.artifact is not None and each.artifact in each.opened for each in standings),
        "findings": [
            {
                "code": code,
                "severity": severities[code],
                "title": RULES[code].title if code in RULES else code,
                "releases": len(those),
            }
            for code, those in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        ],
        "else": [
            {
                "kind": kind,
                "entries": kinds[kind],
                "text": f"{begins.get(kind, '')}{kinds[kind]:,} "
                f"{(one if kinds[kind] == 1 else more).format(unit=book.unit)}",
            }
            for kind, one, more in _ELSE
            if kinds[kind]
        ],
        "status": [{"at": each["at"], "text": each["text"]} for each in entries if each["kind"] in _STATUS],
    }


def _reason(code: str) -> str:
    return REASONS.get(code) or (RULES[code].title if code in RULES else code)


def _actors(database: Database, entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Under which keys it was asked, by the names that they have now, and how often."""
    counted = Counter(str(each["actor"]) for each in entries)
    with database.transaction() as connection:
        names = {row.id: row.name for row in connection.execute(_NAMES, {"ids": list(counted)})}
    return [
        {"id": actor, "name": names.get(actor), "entries": count}
        for actor, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ]


def _promise(book: Book) -> certified.Certified:
    """What is promised for life, as sure as it is."""
    return certified.lifelong(
        promise=book.promise, unit=book.unit, adjacency=book.adjacency, accepted=[book.proof_status]
    )


def _bounds(book: Book) -> str:
    if violations := book.violations():
        return VIOLATED.format(audits=", ".join(audit.id for audit in violations))
    return "Every ε is an upper bound." if book.proof_status == "proved" else UNPROVED


def budgets(book: Book) -> dict[str, Any]:
    """How the budget stood over all datapoints."""
    found = readings.distribution(book) | {"quantiles": readings.quantiles(book)}
    kept = ("budget", "bound", "datapoints", "cohorts", "worst_off", "quantiles", "note")
    return {"number": book.number, **{name: found[name] for name in kept}}


def _policies(database: Database, book: Book, version: int, upto: int) -> list[dict[str, Any]]:
    """The policy by which a release was decided, and those that followed while it was under way."""
    with database.transaction() as connection:
        rows = connection.execute(_POLICIES, {"name": book.name, "upto": upto}).all()
    documents = [(row.number, from_canonical(bytes(row.body))) for row in rows]
    return [_policy(document, number) for number, document in documents if document["policy"]["version"] >= version]


def _policy(document: Mapping[str, Any], number: int) -> dict[str, Any]:
    policy = document["policy"]
    return {
        "version": policy["version"],
        "number": number,
        "at": document["at"],
        "actor": document["actor"],
        "reason": document.get("reason"),
        "epsilon": policy["budget"]["epsilon"],
        "delta": policy["budget"]["delta"],
        "text": policy_in_words(policy),
    }


def policy_in_words(policy: Mapping[str, Any]) -> str:
    """A policy of the log as sentences."""
    exhausted = {
        "deny": "A release that somebody cannot afford is denied.",
        "trim": "Whoever cannot afford a release is left out of it.",
    }
    asks = "may also ask for" if policy["named_scopes"] else "may ask for tasks and groups only, not for"
    budget, accepts = policy["budget"], f"{' and '.join(policy['accepts']).capitalize()} mechanisms are accepted."
    if policy["accepts"] == ["proved"]:
        accepts = "Only proved mechanisms are accepted."
    findings = {**DEFAULT_VERDICTS, **policy.get("findings", {})}
    deny = [each for each, said in findings.items() if said == "deny"]
    levels = " or ".join(f"“{each}”" for each in deny if each in DEFAULT_VERDICTS)
    named = " or ".join(each for each in deny if each not in DEFAULT_VERDICTS)
    kinds = " or ".join(kind for kind in (levels and f"marked {levels}", named and f"of the kind {named}") if kind)
    allowed = " or ".join(each for each, said in findings.items() if said == "allow" and each in RULES)
    more = [f"A release with a finding {kinds} is denied." if kinds else "No finding denies a release."]
    more += [f"A finding of the kind {allowed} is allowed by name."] if allowed else []
    more += ["Whose the rows of files are is said by rules."] if policy.get("data") else []
    more += [f"Violations that block no more: {', '.join(policy['lifted'])}."] if policy.get("lifted") else []
    return (
        f"Nobody may be charged more than ε = {plain(budget['epsilon'])} at δ = {plain(budget['delta'])} for life. "
        f"{accepts} {exhausted[policy['on_exhausted']]} Pipelines {asks} chosen individuals. {' '.join(more)}"
    )


def _decision(book: Book, document: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A decision as it was made, refusals with their reasons; scopes stay where they are."""
    decision = document["decision"]
    mechanism = document["declared"].get("mechanism")
    return {
        "release": document["release"],
        "number": number,
        "at": document["at"],
        "actor": document["actor"],
        "kind": document["release_kind"],
        "outcome": "admitted" if document["kind"] == "release.held" else "denied",
        "mechanism": None if mechanism is None else mechanism["name"],
        "tasks": sorted({name for charge in document["charges"] for name in _tasks(charge["scope"])}),
        "events": [shortened(charge["event"]) for charge in document["charges"]],
        "reasons": [_why(book, with_delta(book, each, decision)) for each in decision["reasons"]],
        "datapoints": decision["datapoints"],
        "trimmed": decision["trimmed"],
        "charged": read_of(decision) if document["kind"] == "release.held" else 0,
        "epsilon": {**decision["epsilon"], "bound": readings.bound(book)},
        "policy": document["policy"],
    }


def _why(book: Book, reason: Mapping[str, Any]) -> dict[str, Any]:
    """A reason as it was given, and in words for whoever knows no orders; with the ε of a task that had no room."""
    text = re.sub(r"\bdatapoint(s?)\b", rf"{book.unit}\1", reason["message"])
    said = {"code": reason["code"], "message": reason["message"], "text": text, "task_epsilon": None}
    if "budget" not in reason:
        return said
    task, epsilon, count = reason["task"], reason["epsilon"], reason["datapoints"]
    whose = "the lifelong budget" if task is None else f"the budget of task {task!r} itself"
    where = "beyond any ε" if epsilon is None else f"to an ε of {up(epsilon)}"
    more = ", and what it adds to δ is over its share" if reason.get("delta_over") else ""
    text = (
        f"This release would bring {count:,} {book.unit}{'' if count == 1 else 's'} {where}; {whose} is "
        f"ε = {plain(reason['budget'])} at δ = {plain(reason['delta'])}{more}."
    )
    return said | {"text": text, "task_epsilon": None if task is None else epsilon}


def _left_nothing(document: Mapping[str, Any]) -> bool:
    """Whether a release is spent without anything having left: numbers in its file denied it."""
    return (
        document["kind"] == "release.committed"
        and "artifact" not in document
        and document.get("reason", "").startswith(NOTHING_LEFT)
    )


def _tasks(scope: Mapping[str, Any]) -> list[str]:
    """The tasks that a scope names."""
    return [each["task"] for each in scope.get("union", [scope]) if "task" in each]


def _findings(number: int, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an entry says against its release, in words."""
    where = {"release": document.get("release"), "entry": number}
    return [where | found.to_json() for found in findings_in(document)]


def _audit(book: Book, audit: str) -> dict[str, Any]:
    """What an experiment came to, and whether it still blocks its mechanism."""
    found = book.audits[audit]
    return {
        "audit": found.id,
        "number": found.number,
        "mechanism": found.mechanism,
        "name": found.name,
        "entry": found.ended,
        "verdict": found.verdict,
        "promise": {"epsilon": found.epsilon, "delta": found.delta, "by": found.by},
        "epsilon_lower": None if found.bound is None else found.bound.epsilon_lower,
        "confidence": found.confidence,
        "blocks": found in book.blocking(found.mechanism),
        "text": found.sentence,
    }


def _entry(book: Book, number: int, digest: bytes, document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "number": number,
        "hash": digest.hex(),
        "at": document["at"],
        "actor": document["actor"],
        "kind": document["kind"],
        "release": document.get("release"),
        "text": entry_in_words(book, document),
    }


def entry_in_words(book: Book, document: Mapping[str, Any]) -> str:
    """What an entry of the log says, without saying of whom; the book is that after the entry."""
    release = document.get("release")
    match document["kind"]:
        case "population.created":
            promise = document["promise"]
            return (
                f"The population was made, with a promise of ε = {plain(promise['epsilon'])} at "
                f"δ = {plain(promise['delta'])} for life to every {document['unit']}."
            )
        case "datapoints.registered":
            return f"{document['count']:,} {book.unit}s were registered."
        case "datapoint.erased":
            return "A key was erased; what was released about its datapoint stays counted."
        case "datapoint.returned":
            return "An erased key came back, and found its old balance."
        case "task.created":
            return f"Task {document['task']!r} was made, with {len(book.tasks[document['task']].members):,} members."
        case "policy.changed":
            version = document["policy"]["version"]
            return f"Version {version} of the policy came into force: {_ended(document.get('reason'))}"
        case "population.frozen" | "population.opened" | "population.closed" as kind:
            became = kind.removeprefix("population.")
            return f"The population was {became}: {_ended(document.get('reason'))}"
        case "release.held":
            asked, charged = document["decision"]["datapoints"], read_of(document["decision"])
            left_out = "" if charged == asked else f"; {asked - charged:,} of {asked:,} were left out"
            return (
                f"Release {release} ({document['release_kind']}) was admitted and held, for {charged:,} "
                f"{book.unit}{'' if charged == 1 else 's'}{left_out}."
            )
        case "release.denied":
            reasons = ", ".join(_reason(each["code"]) for each in document["decision"]["reasons"])
            return f"Release {release} ({document['release_kind']}) was denied: {reasons}."
        case "release.audited":
            return _audited_in_words(document)
        case "release.committed" if _left_nothing(document):
            codes = document["reason"].rpartition(": ")[2].split(", ")
            return (
                f"Nothing of release {release} left; what was held is spent all the same, since numbers in its file, "
                f"which were paid for, deny it: {'; '.join(map(_reason, codes))}."
            )
        case "release.committed":
            artifact = document.get("artifact")
            named = f", as the artifact {artifact['sha256']}" if artifact else ""
            because = f": {_ended(document['reason'])}" if "reason" in document else "."
            return f"Release {release} left the house{named}{because}"
        case "release.voided":
            return f"Release {release} was voided, nothing of it having left: {_ended(document['reason'])}"
        case "release.expired":
            return f"Nobody said what became of release {release}: it counts as if it had left."
        case "artifact.attached":
            return f"The artifact of release {release} was told later: {document['artifact']['sha256']}."
        case "audit.planned":  # what came of it is another entry
            plan = plan_from(document, entry=book.audits[document["audit"]].entry)
            because = f" Why: {_ended(document['reason'])}" if "reason" in document else ""
            return f"Audit {plan.id}: {plan.sentence}{because}"
        case "audit.concluded" | "audit.abandoned":
            audit = book.audits[document["audit"]]
            return f"Audit {audit.id}: {audit.sentence}"
        case kind:
            return f"Entry of the kind {kind}."


def _audited_in_words(document: Mapping[str, Any]) -> str:
    """What an audit looked at, and how much it found; which findings those are is told beside it."""
    opened = "the service opened the artifact" if "artifact" in document else "the service did not open the artifact"
    said = (
        f"Release {document['release']} was audited: {len(document['checked']):,} rules were checked, {opened}, and "
        f"{len(document['findings']):,} findings were made."
    )
    if (report := document.get("reported")) is None:
        return said
    return (
        f"{said} Whoever asked had opened the file {report['artifact']['sha256']}, and says that of "
        f"{len(report['checked']):,} rules that were checked there {len(report['findings']):,} findings were made."
    )


def _ended(reason: str | None) -> str:
    """A reason at the end of a sentence, which has one full stop."""
    said = reason or "no reason was given"
    return said if said.endswith((".", "!", "?", "…")) else f"{said}."


def _certificates(ended: Sequence[str], certify: Certify) -> dict[str, Any]:
    """The certificates of releases that left, by digest, with the ε of each alone; the newest of very many."""
    found = []
    for release in ended[-MOST_CERTIFICATES:]:
        content, predicate = certify(release)
        own, artifact = predicate["guarantee"]["release"], predicate["artifact"]
        found.append(
            {
                "release": release,
                "status": predicate["release"]["status"],
                "sha256": sha256(content).hexdigest(),
                "artifact": None if artifact is None else artifact["sha256"],
                "epsilon_upper": own["epsilon_upper"],
                "delta": own["delta"],
                "proof_status": own["proof_status"],
                "engine": own["engine"],
                "text": own["text"],
                "findings": [each["code"] for each in predicate["findings"]],
                "audit": certified.looked(predicate).to_json(),
            }
        )
    return {"certificates": found, "certificates_in_all": len(ended)}


def _checkpoints(database: Database, since: str, until: str) -> dict[str, Any]:
    """The newest of the period, oldest first, and how many there were."""
    with database.transaction() as connection:
        rows = connection.execute(_CHECKPOINTS, {"since": since, "until": until}).all()
    listed = [
        {
            "number": row.number,
            "at": stamp(row.at),
            "payload": bytes(row.payload).decode(),
            "signature": bytes(row.signature).hex(),
            "public_key": bytes(row.public_key).hex(),
        }
        for row in reversed(rows)
    ]
    return {"checkpoints": listed, "checkpoints_in_all": rows[0].in_all if rows else 0}
