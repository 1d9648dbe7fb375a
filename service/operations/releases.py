"""Releases: proposed, then denied or held, then committed, voided or expired."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from accountant import sealed
from accountant.audit.findings import RULES, denying
from accountant.audit.manifests import STATEMENTS
from accountant.audit.standing import against, looked_at
from accountant.book import bitmap_from, bitmap_to
from accountant.engines import ENGINES
from accountant.errors import AccountantError
from accountant.events import Composed, counted, event_from_json, event_to_json
from accountant.ledger import LIFELONG, regions, standing
from service import pre_release
from service.errors import NotFound, Problem
from service.operations.individuals import may_read, may_see, without_readings
from service.operations.populations import entry
from service.operations.readings import bound, finite, rounded
from service.store.writer import Decide, Outcome, stamp
from trainers.catalog import mechanism as find_mechanism

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from accountant.audit.findings import Finding
    from accountant.audit.series import PlannedAudit
    from accountant.book import Body, Book, Release
    from accountant.chain import Link
    from accountant.events import Adjacency, Event
    from accountant.ledger import Advice, Charge, Decision, OnExhausted
    from service.operations.keys import Actor

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: What a pipeline may say of its release (docs/audits.md).
DECLARATIONS: Final = ("unit", "adjacency", *STATEMENTS)
MAX_ADVICE_EVENTS: Final = 20
MAX_ENGINE_LEAVES, MAX_ENGINE_KINDS = 100_000, 20
SERIOUS: Final = "serious"
#: Statuses that are asked for together: of whatever was admitted, and of what left or may leave.
TOGETHER: Final = {
    "admitted": frozenset({"held", "committed", "expired", "voided"}),
    "charged": frozenset({"held", "committed", "expired"}),
}
_FIRST, _COUNT = secrets.randbits(80), count()


def new_id(prefix: str, at: datetime) -> str:
    """A name that sorts by time: 48 bits of milliseconds and 80 of chance, in base 32 (a ULID).

    Chance is asked for once per process, and counted on from there: a system call per name would cost a writer its
    turn. Names are not secrets; they only must differ.
    """
    number = int(at.timestamp() * 1000) << 80 | (_FIRST + next(_COUNT)) % 2**80
    return prefix + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What is asked: charges, or a mechanism on a scope."""

    kind: str
    charges: Sequence[Mapping[str, Any]] = ()
    mechanism: Mapping[str, Any] | None = None
    scope: Mapping[str, Any] | None = None
    delta: float | None = None
    on_exhausted: OnExhausted | None = None
    may_trim: bool = False  # although the policy denies
    hold_seconds: int | None  # None: it lives by its job's lease, and never expires
    declared: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Priced:
    """The charges of a proposal, as the gate and as the log see them, and reasons to refuse it before the gate."""

    charges: list[Charge]
    spelled: list[Body]
    reasons: list[dict[str, Any]]
    stream: dict[str, Any] | None = None
    findings: Sequence[Finding] = ()


def price(book: Book, proposal: Proposal) -> Priced:
    """What a proposal charges whom."""
    documents, reasons = list(proposal.charges), list[dict[str, Any]]()
    stream, one_sum = None, tuple[int, ...]()
    paths = [f"charges[{place}]" for place in range(len(documents))]
    if proposal.mechanism is not None:
        mechanism = find_mechanism(str(proposal.mechanism.get("name")))
        quoted = mechanism.quote(proposal.mechanism.get("parameters", {}), adjacency=book.adjacency)
        if mechanism.proof_status not in book.policy.accepts:
            message = f"Mechanism {mechanism.name!r} is {mechanism.proof_status}: {mechanism.proof_note}"
            reasons.append({"code": "policy.proof_status", "message": message})
        reasons += [
            {
                "code": "audit.violation",
                "message": f"Audit {audit.id} blocks this mechanism. {audit.sentence}",
                "remedy": "propose another mechanism, or have an officer lift this audit by a new policy that says why",
            }
            for audit in book.blocking(mechanism.name)
        ]
        if quoted.life is not None and not _fits_a_life(book, quoted.life):
            budget = book.policy.budget
            message = (
                "Whoever is worst off in this schedule would pass their lifelong budget of "
                f"ε = {budget.epsilon:g} at δ = {budget.delta:g} before they leave the stream."
            )
            reasons.append({"code": "schedule.exceeded", "message": message})
        if quoted.stream is not None:
            stream = quoted.models
            paid = book.streams.get(quoted.stream, {})
            if unpaid := [model for model in quoted.reused if model not in paid]:
                message = f"This step leans on models that no step of its stream was charged for: {'; '.join(unpaid)}."
                reasons.append({"code": "schedule.unpaid", "message": message})
        if proposal.scope is not None and any(each.start is not None for each in quoted.charges):
            # Its ranges would not be charged to the task that the proposal names.
            raise Problem(
                "invalid", f"Mechanism {mechanism.name!r} names its datapoints itself: leave this out.", "task"
            )
        one_sum = tuple(len(documents) + place for place in quoted.one_sum)
        for each in quoted.charges:
            if each.start is not None:
                scope: Mapping[str, Any] | None = {"ranges": [[each.start, each.stop]]}
            else:
                scope = proposal.scope if each.task is None else {"task": each.task}
                if scope is not None and each.part is not None:
                    scope = {**scope, "part": each.part}
            if scope is None:
                raise Problem("invalid", f"Mechanism {mechanism.name!r} needs a task or a scope.", "task")
            documents.append({"scope": scope, "event": event_to_json(each.event)})
            paths.append("mechanism")
    if not documents:
        raise Problem("invalid", "A proposal has charges, or a mechanism.", "charges")
    pairs = [book.charge(document, path=path) for document, path in zip(documents, paths, strict=True)]
    seen = BitMap()
    for scope_of_sum in (pairs[place][0].scope for place in one_sum):
        if scope_of_sum.intersect(seen):
            message = (
                "Datapoints are in two of the scopes that enter one noisy sum; no theorem covers what they would pay."
            )
            reasons.append({"code": "mechanism.overlap", "message": message})
            break
        seen |= scope_of_sum
    charges = [charge for charge, _ in pairs]
    findings = pre_release.at_proposal(
        book,
        kind=proposal.kind,
        declared=proposal.declared,
        charged=[charge.event for charge in charges],
        tasks={charge.task for charge in charges if charge.task is not None},
        is_ours=proposal.hold_seconds is None,
    )
    reasons += [
        {"code": finding.code, "message": finding.message, "remedy": RULES[finding.code].remedy}
        for finding in denying(findings, book.policy.findings)
        if finding.code != "mechanism.proof_status"  # `accepts` decides on that, and has its own reason
    ]
    return Priced(
        charges=charges, spelled=[body for _, body in pairs], reasons=reasons, stream=stream, findings=findings
    )


def _fits_a_life(book: Book, life: Event) -> bool:
    budget = book.policy.budget
    return sealed.admits(budget, Composed(events=(life,)), book.adjacency, {budget.nothing: 1}, delta=0.0)


def propose(proposal: Proposal) -> Decide:
    """Decide, and record the decision whatever it is."""

    def decide(book: Book, at: datetime, _connection: Connection | None) -> Outcome:
        if book.status != "open":
            raise Problem("conflict", f"Population {book.name!r} is {book.status}: nothing is released from it.")
        release = new_id("rel_", at)
        priced = price(book, proposal)
        decision = _decision(book, proposal, priced, release)
        document = decision_shown(book, decision, priced.reasons, proposal)
        records = [finding.to_record() for finding in priced.findings]
        admitted = document["outcome"] == "admitted"
        seconds = proposal.hold_seconds
        expires_at = stamp(at + timedelta(seconds=seconds)) if admitted and seconds is not None else None
        body = (
            book.held_body(
                decision,
                kind=proposal.kind,
                charges=priced.spelled,
                expires_at=expires_at,
                declared=proposal.declared,
                shown=document,
                stream=priced.stream,
                findings=records,
            )
            if admitted
            else book.denied_body(
                release=release,
                kind=proposal.kind,
                datapoints=decision.datapoints,
                charges=priced.spelled,
                declared=proposal.declared,
                shown=document,
                findings=records,
            )
        )

        def respond(links: Sequence[Link]) -> dict[str, Any]:
            return {
                "id": release,
                "population": book.name,
                "kind": proposal.kind,
                "status": "held" if admitted else "denied",
                "decision": document,
                "findings": [finding.to_json() for finding in priced.findings],
                "expires_at": expires_at,
                "entry": entry(links[-1]),
            }

        return Outcome(bodies=[body], status=201, respond=respond, held=decision.hold if admitted else None)

    return decide


def dry_run(book: Book, proposal: Proposal) -> dict[str, Any]:
    """The decision that would be made now; nothing is recorded."""
    priced = price(book, proposal)
    decision = _decision(book, proposal, priced, "dry run")
    document = decision_shown(book, decision, priced.reasons, proposal)
    if book.status != "open":
        message = f"Population {book.name!r} is {book.status}: nothing is released from it."
        document = {**document, "outcome": "denied"}
        document["reasons"] = [{"code": "population.status", "message": message}, *document["reasons"]]
    return {
        "population": book.name,
        "kind": proposal.kind,
        "status": "dry_run",
        "decision": document,
        "findings": [finding.to_json() for finding in priced.findings],
    }


def _decision(book: Book, proposal: Proposal, priced: Priced, release: str) -> Decision:
    if proposal.on_exhausted == "trim" and book.policy.on_exhausted == "deny" and not proposal.may_trim:
        raise Problem(
            "forbidden", "The policy denies a release that somebody cannot afford: it trims nobody.", "on_exhausted"
        )
    return book.propose(
        release=release, charges=priced.charges, delta=proposal.delta, on_exhausted=proposal.on_exhausted
    )


def decision_shown(
    book: Book, decision: Decision, refusals: Sequence[Mapping[str, Any]], proposal: Proposal
) -> dict[str, Any]:
    """A decision as an answer: what, why, from where to where, and what would do instead."""
    denied = bool(refusals) or decision.outcome == "denied"
    reasons = [dict(each) for each in refusals] + [
        {
            "code": reason.code,
            "message": reason.message,
            "task": None if reason.ledger == LIFELONG else reason.ledger,
            "datapoints": reason.datapoints,
            "epsilon": finite(reason.epsilon),
            "budget": reason.budget.epsilon,
            "delta": reason.budget.delta,
            "order": finite(reason.explanation.order),
            "over": finite(reason.explanation.over),
            "delta_over": max(0.0, reason.explanation.delta_over),
        }
        for reason in decision.reasons
    ]
    return {
        "outcome": "denied" if denied else "admitted",
        "reasons": reasons,
        "epsilon": {
            "before": finite(decision.epsilon_before),
            "after": rounded(decision.epsilon_after),
            "budget": book.policy.budget.epsilon,
            "delta": book.policy.budget.delta,
            "bound": bound(book),
        },
        "datapoints": decision.datapoints,
        "trimmed": decision.trimmed,
        "quotes": [
            {
                "charges": list(quote.charges),
                "task": None if quote.ledger == LIFELONG else quote.ledger,
                "datapoints": quote.datapoints,
                "price": str(quote.price),
            }
            for quote in decision.quotes[:100]
        ],
        "advice": [_advice_shown(book, proposal, advice) for advice in decision.advice],
    }


def _advice_shown(book: Book, proposal: Proposal, advice: Advice) -> dict[str, Any]:
    """Advice; to who proposed a mechanism, with the parameters that would fit, and then the events that they charge."""
    message, events = advice.message, advice.events
    fitting = _fitting(book, proposal, events)
    if fitting is not None:
        assert proposal.mechanism is not None
        parameters, events = fitting
        given = proposal.mechanism.get("parameters", {})
        changed = [f"{name} = {value!r}" for name, value in parameters.items() if value != given.get(name)]
        message = f"{message} As parameters: {', '.join(changed)}."
    return {
        "kind": advice.kind,
        "message": message,
        "events": [event_to_json(event) for event in events[:MAX_ADVICE_EVENTS]],
        "parameters": None if fitting is None else fitting[0],
        "datapoints": advice.datapoints,
    }


def _fitting(
    book: Book, proposal: Proposal, events: Sequence[Event]
) -> tuple[dict[str, Any], tuple[Event, ...]] | None:
    """Parameters that come to these events, and the events that they come to: only if the gate would admit just that.

    It has admitted the events that are advised. Parameters may come to a little less, as rounded numbers: then it is
    asked again. And there may be other reasons against them, such as a stream that nobody paid for.
    """
    if proposal.mechanism is None or not events:
        return None
    mechanism = find_mechanism(str(proposal.mechanism.get("name")))
    try:
        parameters = mechanism.instead(proposal.mechanism.get("parameters", {}), events, adjacency=book.adjacency)
        if parameters is None:
            return None
        changed = replace(proposal, mechanism={**proposal.mechanism, "parameters": parameters})
        priced = price(book, changed)
    except AccountantError:  # beyond what the mechanism takes
        return None
    if priced.reasons:
        return None
    found = tuple(charge.event for charge in priced.charges)
    if found != tuple(events):
        decision = _decision(book, changed, priced, "advice")
        if decision.outcome == "denied" or decision.trimmed:
            return None
    return parameters, found


def commit(
    *,
    release: str,
    artifact: Mapping[str, Any] | None,
    by: Actor,
    evaluation: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> Decide:
    """The release left the house. Once it has expired it is spent already, and only its artifact can be attached.

    What is to be said against it is recorded, and stops nothing: what left has left. Of a mechanism that an audit
    blocks nothing leaves any more: a hold is voided then, or an officer says why it left all the same, and it is spent.
    """
    found = [] if artifact is None else pre_release.at_commit(metrics=artifact.get("metrics"), evaluation=evaluation)
    said: Body = {} if evaluation is None else {"declared": {"evaluation": dict(evaluation)}}
    said |= {"findings": [finding.to_record() for finding in found]} if found else {}
    said |= {} if reason is None else {"reason": reason}

    def decide(book: Book, _at: datetime, _connection: Connection | None) -> Outcome:
        known = _owned(book, release, by)
        match known.status:
            case "held":
                if (blocking := book.blocking(known.mechanism)) and (reason is None or not by.has("officer")):
                    raise _blocked(known, blocking[0])
                body: Body = {"kind": "release.committed", "release": release, **said}
                if artifact is not None:
                    body["artifact"] = dict(artifact)
                return _resolved(book, release, [body])
            case "committed" | "expired" if artifact is None or known.artifact == artifact:
                return _resolved(book, release, [])
            case "committed" | "expired" if artifact is not None and known.artifact is None:
                attach: Body = {"kind": "artifact.attached", "release": release, "artifact": dict(artifact), **said}
                return _resolved(book, release, [attach])
            case "committed" | "expired":
                raise Problem("conflict", f"Release {release} has another artifact already.", "artifact")
            case status:
                raise Problem("conflict", f"Release {release} is {status}: there is nothing to commit.")

    return decide


def _blocked(release: Release, audit: PlannedAudit) -> Problem:
    message = (
        f"Audit {audit.id} blocks mechanism {audit.mechanism!r}, so release {release.id} must not leave the house. "
        "If nothing of it left, void it. If it has left, it is spent: an officer commits it with a reason."
    )
    return Problem("blocked", message, extra={"audit": audit.id})


def void(*, release: str, reason: str, evidence: Mapping[str, Any] | None, by: Actor) -> Decide:
    """Nothing of the release left the house, for a reason that is recorded; once the hold ran out it is too late."""

    def decide(book: Book, at: datetime, _connection: Connection | None) -> Outcome:
        known = _owned(book, release, by)
        match known.status:
            case "held":
                if known.expires_at is not None and datetime.fromisoformat(known.expires_at) <= at:
                    raise Problem("conflict", f"Release {release} ran out at {known.expires_at}: unknown is spent.")
                if others := book.leaning(release):
                    message = f"Release {others[0]} makes use of its models: void that first, or commit this one."
                    raise Problem("conflict", message)
                body: Body = {"kind": "release.voided", "release": release, "reason": reason}
                if evidence is not None:
                    body["evidence"] = dict(evidence)
                return _resolved(book, release, [body])
            case "voided":
                return _resolved(book, release, [])
            case status:
                raise Problem("conflict", f"Release {release} is {status}: only an open hold can be voided.")

    return decide


def expire(*, releases: Sequence[str]) -> Decide:
    """What became of these is unknown, and unknown is spent. One that was resolved meanwhile is left alone."""

    def decide(book: Book, at: datetime, _connection: Connection | None) -> Outcome:
        due = [
            name
            for name in releases
            if (known := book.releases.get(name)) is not None
            and known.status == "held"
            and known.expires_at is not None
            and datetime.fromisoformat(known.expires_at) <= at
        ]
        bodies: list[Body] = [{"kind": "release.expired", "release": name} for name in due]
        return Outcome(bodies=bodies, status=200, respond=lambda _: {"expired": due})

    return decide


def _owned(book: Book, release: str, by: Actor) -> Release:
    """A release that the actor may resolve: its own, or any if it is an officer."""
    known = _known(book, release)
    if known.actor != by.id and not by.has("officer"):
        raise Problem("forbidden", f"Release {release} was proposed under another key.")
    if known.status == "held" and known.expires_at is None:
        raise Problem("conflict", f"Release {release} belongs to a job: that commits or voids it. Cancel the job.")
    return known


def _known(book: Book, release: str) -> Release:
    known = book.releases.get(release)
    if known is None:
        raise NotFound("release", release)
    return known


def _resolved(book: Book, release: str, bodies: Sequence[Body]) -> Outcome:
    def respond(links: Sequence[Link]) -> dict[str, Any]:
        return {**summary(book, release), "entry": entry(links[-1] if links else book.chain.link)}

    return Outcome(bodies=bodies, status=200, respond=respond)


def summary(book: Book, release: str) -> dict[str, Any]:
    """A release in a list."""
    known = _known(book, release)
    return {
        "id": known.id,
        "population": book.name,
        "kind": known.kind,
        "status": known.status,
        "proposed_at": known.at,
        "tasks": sorted(known.tasks),
        "datapoints": known.datapoints,
        "expires_at": known.expires_at if known.status == "held" else None,
        "artifact": known.artifact,
        "mechanism": known.mechanism,
        "finding_codes": [code for code, _ in known.findings],
    }


def _has(release: Release, finding: str) -> bool:
    if finding == SERIOUS:
        matters = release.status in TOGETHER["charged"]
        return matters and any(severity in {"error", "warning"} for _, severity in release.findings)
    return any(code == finding for code, _ in release.findings)


def page(
    book: Book,
    *,
    status: str | None = None,
    kind: str | None = None,
    task: str | None = None,
    mechanism: str | None = None,
    finding: str | None = None,
    before: int | None = None,
    limit: int,
) -> tuple[list[dict[str, Any]], int | None]:
    """The newest releases that are like this, and the entry before which they go on, if they do.

    A `status` may be one of `TOGETHER`. A `finding` is a code, or `SERIOUS`: any error or warning of a release that
    left or may leave.
    """
    fitting = (
        each
        for each in reversed(book.releases.values())
        if (status is None or each.status in TOGETHER.get(status, {status}))
        and (kind is None or each.kind == kind)
        and (task is None or task in each.tasks)
        and (mechanism is None or each.mechanism == mechanism)
        and (finding is None or _has(each, finding))
        and (before is None or each.number < before)
    )
    found = list(islice(fitting, limit + 1))
    items = [summary(book, each.id) for each in found[:limit]]
    return items, found[limit - 1].number if len(found) > limit else None


def detail(
    book: Book,
    release: str,
    body: Mapping[str, Any],
    *,
    by: Actor,
    entries: Sequence[tuple[int, Mapping[str, Any]]],
) -> dict[str, Any]:
    """A release with its charges and the decision that was made; whom it touched is for officers and auditors.

    So are readings of a few, unless whoever asks proposed it.

    What stands against it, and what was looked at to find that, follows from its entries in the log.
    """
    decision = body["decision"]
    to = Charged.of(book, body)
    # Counts of overlapping parts would say who was trimmed, and not only how many.
    is_counted = by.sees_individuals or not decision["trimmed"]
    shown = {
        **decision,
        "epsilon": {**decision["epsilon"], "bound": bound(book)},  # of now: what was proved then may be refuted
        "reasons": [with_delta(book, each, decision) for each in decision["reasons"]],
    }
    charges = []
    for charge, charged in zip(body["charges"], to.charges, strict=True):
        scope, _, _ = book.scope(charge["scope"])
        charges.append(
            {
                "event": charge["event"],
                "datapoints": len(scope),
                "charged": charged if is_counted else None,
                "scope": charge["scope"] if may_see(by, charge["scope"], proposer=body["actor"]) else None,
            }
        )
    return {
        **summary(book, release),
        "actor": body["actor"],
        "charges": charges,
        "declared": body["declared"],
        "decision": shown
        if may_read(by, datapoints=read_of(decision), proposer=body["actor"])
        else without_readings(shown),
        # Beside the decision, which is read again as it was told.
        "quotes_charged": list(to.quotes) if is_counted else None,
        "findings": [finding.to_json() for finding in against(each for _, each in entries).findings],
        "audit": _looked(entries),
        "policy": body["policy"],
    }


def read_of(decision: Mapping[str, Any]) -> int:
    """Of how many a decision has the readings: of all that were asked for, without those who were left out.

    Those are whom an admitted release is charged to, and whom a denied one would have been charged to.
    """
    asked, left_out = decision["datapoints"], decision["trimmed"]
    return int(asked - left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """To how many each charge of a release is charged, and each of its quotes: nobody who was left out, or denied."""

    charges: tuple[int, ...]
    quotes: tuple[int, ...]

    @staticmethod
    def of(book: Book, body: Mapping[str, Any]) -> Charged:
        """As the entry says that the release was proposed with."""
        listed = body["decision"]["quotes"]
        if body["kind"] != "release.held":
            return Charged(charges=(0,) * len(body["charges"]), quotes=(0,) * len(listed))
        left_out = bitmap_from(body["trimmed"], "trimmed") if "trimmed" in body else BitMap()
        scopes = [book.scope(charge["scope"])[0] for charge in body["charges"]]
        parts = {part.touch: len(part.scope) for part in book.held_from(body).parts} if left_out else {}
        quotes, here = [], 0
        for quote in listed:
            if quote["task"] is None:  # the first of those who share their charges; what tasks ask of them follows
                touch = ",".join(map(str, quote["charges"])).encode()
                here = parts.get(touch, 0) if left_out else quote["datapoints"]
            quotes.append(here)
        return Charged(charges=tuple(len(scope - left_out) for scope in scopes), quotes=tuple(quotes))


def _looked(entries: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """What was looked at; of what was denied there is no artifact that anybody could have opened."""
    looked = looked_at(entries).to_json()
    if entries[0][1]["kind"] == "release.denied" and not looked["artifact_opened"]:
        first = f"Audited, last in entry {looked['entry']}" if looked["made"] else "Not audited"
        looked["text"] = f"{first}: it was denied, so there is no artifact, and at most its proposal was checked."
    return looked


def with_delta(book: Book, reason: Mapping[str, Any], decision: Mapping[str, Any]) -> dict[str, Any]:
    """A reason with the δ of the budget that had no room; entries of before do not say it, and tasks keep theirs."""
    task = book.tasks.get(reason.get("task") or "")
    own = None if task is None else task.budget
    return {"delta": decision["epsilon"]["delta"] if own is None else own.delta, **reason}


def members(book: Book, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Who was charged with what: nobody by a release that was denied."""
    if body["kind"] != "release.held":
        return []
    parts = book.held_from(body).parts
    return [
        {
            "event": charge["event"],
            "bitmap": bitmap_to(
                BitMap().union(*(part.scope for part in parts if str(number) in part.touch.decode().split(",")))
            ),
        }
        for number, charge in enumerate(body["charges"])
    ]


def engines(body: Mapping[str, Any], *, delta: float, adjacency: Adjacency) -> list[dict[str, Any]]:
    """What each engine proves of all charges together, at the δ of the budget: by itself, not as part of a life."""
    event = Composed(events=tuple(event_from_json(charge["event"]) for charge in body["charges"]))
    if delta == 0 or event.shape.leaves > MAX_ENGINE_LEAVES or len(counted(event)) > MAX_ENGINE_KINDS:
        return []
    found = []
    for name, engine in ENGINES.items():
        interval = engine(event, delta, adjacency)
        found.append({"engine": name, "epsilon_lower": interval.lower, "epsilon_upper": finite(interval.upper)})
    return found


def how_often(book: Book, priced: Priced, *, most: int) -> int:
    """How many releases with these charges would be admitted one after the other, each by its curve."""
    if priced.reasons:
        return 0
    fits = most
    for touching, scope in regions(priced.charges):
        for ledger, budget in book.rules.ledgers.items():
            named = [n for n in touching if ledger in (LIFELONG, priced.charges[n].task)]
            if not named:
                continue
            cost = budget.price(Composed(events=tuple(priced.charges[n].event for n in named)), book.adjacency)
            for history, _ in book.ledger.cohorts.touched(scope):
                fits = min(fits, budget.how_often(cost, after=standing(budget, history, ledger)))
    return fits
