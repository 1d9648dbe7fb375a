"""Everything that a population's log says, as one value that the log alone leads to.

A log is a list of bodies: JSON documents with a `kind`, in the order in which they were chained. `Book.apply` changes
the book as a body says, and decides nothing; the functions that decide (`Book.propose`, `Book.register`, …) change
nothing and return the body to append. So a service that stores bodies and applies them, and an auditor who replays
them, arrive at the same book. With `verify`, every decision is made again on the way.

Bodies hold no keys of datapoints, only ordinals (and a digest over keyed digests, which the book does not read), so
that a key can be forgotten while the log stays as it is. Scopes are written as they were proposed (`{"task": …}` stays
a reference to an immutable task), so an entry is small however many datapoints it touches. Integers that may pass 2⁵³
are text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from pyroaring import BitMap, FrozenBitMap

from accountant import chain, ledger
from accountant.audit.findings import DEFAULT_VERDICTS, RULES, Verdict, denying, finding_from, verdicts_of
from accountant.audit.series import PlannedAudit, bound_from, check_plan, plan_from, said_of
from accountant.audit.standing import REPORTABLE, Standing
from accountant.canonical import canonical, from_canonical
from accountant.chain import Chain, Link
from accountant.cohorts import MAX_DATAPOINTS
from accountant.errors import BrokenChain, InvalidDocument, InvalidInput
from accountant.events import Adjacency, adjacency_of, event_from_json, event_to_json
from accountant.filters import Cost, Filter, Preset
from accountant.guarantees import ProofStatus, Unit
from accountant.histories import Spending
from accountant.ledger import Charge, Decision, Held, Ledger, OnExhausted, Part, Rules
from accountant.sealed import Collapsed
from accountant.units import exact, whole

Document: TypeAlias = Mapping[str, Any]
Body: TypeAlias = dict[str, Any]
PopulationStatus: TypeAlias = Literal["open", "frozen", "closed"]
ReleaseStatus: TypeAlias = Literal["held", "denied", "committed", "expired", "voided"]

MAX_TASKS: Final = 100_000
MAX_PARTS: Final = 100
MAX_RANGES: Final = 10_000
MAX_UNION: Final = 100
_KEPT_BYTES: Final = 2**16  # of a release's scopes; who larger ones touched is read from the log when it is asked
_COUNTED: Final = frozenset({"held", "committed", "expired"})  # statuses of releases that left, or may
_PLAIN: Final = frozenset({"release.denied", "release.committed", "release.voided", "release.expired"})
_STAMP: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_STATUSES: Final[tuple[ProofStatus, ...]] = get_args(ProofStatus)


# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is allowed now: at most what was promised, and the rules on mechanisms and exhausted datapoints."""

    version: int
    budget: Filter
    on_exhausted: OnExhausted = "deny"
    accepts: tuple[ProofStatus, ...] = ("proved",)
    named_scopes: bool = False  # whether a pipeline may name single datapoints, by key or bitmap
    findings: Mapping[str, Verdict] = field(default_factory=lambda: DEFAULT_VERDICTS)  # which ones deny a release
    data: tuple[Document, ...] = ()  # whose the rows of files are, by their addresses; if empty, jobs say it
    lifted: tuple[str, ...] = ()  # audits whose violation blocks their mechanism no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift:
    """Which version of the policy said first that a violation blocks its mechanism no more, and why."""

    version: int
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Became:
    """Since which entry a population has its status: by whom and why, or by which audit."""

    entry: int
    at: str
    actor: str
    reason: str | None = None
    audit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A named subset of the population with named parts; it may have a budget of its own."""

    name: str
    members: FrozenBitMap
    parts: Mapping[str, FrozenBitMap]
    budget: Filter | None
    number: int  # of the entry that made it


class Brief(NamedTuple):
    """As much of a finding as a book keeps."""

    code: str
    severity: str


def _brief(record: Document, _by: str | None) -> Brief:
    return _same_brief(str(record["code"]), str(record["severity"]))


@lru_cache(maxsize=1024)
def _same_brief(code: str, severity: str) -> Brief:
    """The same few are found of thousands of releases, and kept once."""
    return Brief(code, severity)


_NOTHING_FOUND: Final[Standing[Brief]] = Standing()


@lru_cache(maxsize=1024)
def _proposed(found: tuple[Brief, ...]) -> Standing[Brief]:
    """What stands against a proposal; thousands may come in a second, and most are alike."""
    records = [{"code": each.code, "severity": each.severity} for each in found]
    return _NOTHING_FOUND.after({"kind": "release.held", "findings": records}, _brief)


@dataclass(slots=True, kw_only=True)
class Release:
    """What became of a release; its charges are in the entry `number`."""

    id: str
    kind: str
    status: ReleaseStatus
    number: int
    datapoints: int
    at: str
    actor: str
    tasks: frozenset[str]  # that its charges name
    touched: tuple[tuple[str, FrozenBitMap], ...] | None  # by which charges whom; None where that is in the log alone
    spending: tuple[tuple[str, Spending], ...]  # by which charges how much, in each ledger; nothing if it was denied
    expires_at: str | None = None
    resolved: int | None = None  # the entry that ended its hold
    resolved_at: str | None = None
    artifact: Document | None = None
    leans_on: frozenset[str] = frozenset()  # releases whose models it makes use of
    audited: int | None = None  # the entry of its last audit
    mechanism: str | None = None  # that was proposed by its name
    standing: Standing[Brief] = _NOTHING_FOUND
    proposed: tuple[tuple[str, str], ...] = ()  # codes and severities, of its decision
    is_trimmed: bool = False  # somebody who could not afford it was left out
    reached: tuple[float | None, float] | None = None  # what its decision read after it: ε of the worst-off, at this δ

    @property
    def findings(self) -> tuple[Brief, ...]:
        """What stands against it, each code once."""
        return self.standing.findings


@dataclass(slots=True, kw_only=True)
class Book:
    """A population as its log tells it. Make one with `Book.of` and the first body, then `apply` the others."""

    name: str
    unit: Unit
    adjacency: Adjacency
    promise: Filter
    policy: Policy
    chain: Chain
    created_at: str
    status: PopulationStatus = "open"
    became: Became | None = None  # what it is; None if it is open as it was made
    tasks: dict[str, Task] = field(default_factory=dict)
    releases: dict[str, Release] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    erased: set[int] = field(default_factory=set)
    streams: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # stream → model → releases that paid for it
    arrivals: int = 0  # where the next task of arrivals begins
    audits: dict[str, PlannedAudit] = field(default_factory=dict)  # empirical ones, in the order of their plans
    accepted: set[ProofStatus] = field(default_factory=set)  # by any policy so far
    lifts: dict[str, Lift] = field(default_factory=dict)  # of the audits that the policy lifted
    _rules: Rules | None = None

    @classmethod
    def of(cls, body: bytes) -> Book:
        """The book of a log with this first body."""
        document = from_canonical(body)
        _kind_is(document, "population.created")
        promise = filter_from(document["promise"])
        policy = _policy_from(document["policy"], promise)
        return cls(
            name=document["population"],
            unit=document["unit"],
            adjacency=adjacency_of(document["adjacency"]),
            promise=promise,
            policy=policy,
            chain=chain.begin(document["population"]).append(body),
            created_at=document["at"],
            accepted=set(policy.accepts),
        )

    @property
    def size(self) -> int:
        """How many datapoints were registered."""
        return self.ledger.cohorts.size

    @property
    def number(self) -> int:
        """The number of the last entry."""
        return self.chain.link.number

    @property
    def rules(self) -> Rules:
        """What decides on a release now."""
        if self._rules is None:
            self._rules = Rules(
                lifelong=self.policy.budget,
                adjacency=self.adjacency,
                tasks=MappingProxyType({name: task.budget for name, task in self.tasks.items() if task.budget}),
                on_exhausted=self.policy.on_exhausted,
            )
        return self._rules

    def apply(self, body: bytes) -> None:
        """Change the book as the next body of its log says."""
        document = from_canonical(body)
        if not isinstance(document, dict):
            raise InvalidDocument("body", document, "an object")
        self._apply(document, self.held_from(document) if document["kind"] == "release.held" else None)
        self.chain = self.chain.append_checked(body)

    def append(self, document: Body, *, at: str, actor: str, held: Held | None = None) -> bytes:
        """Spell a new body, change the book as it says, and return its bytes.

        The same as `apply` of those bytes. The frequent kinds, of which the book keeps nothing but text and whole
        numbers, are not read again to find out what they say. `held` is the hold that `held_body` was given, if this is
        its body.
        """
        spelled = spell(document, at=at, actor=actor)
        if (held is not None if document["kind"] == "release.held" else document["kind"] in _PLAIN) and (
            "artifact" not in document
        ):
            self._apply({**document, "at": at, "actor": actor}, held)
            self.chain = self.chain.append_checked(spelled)
        else:
            self.apply(spelled)
        return spelled

    def _apply(self, document: Document, held: Held | None) -> None:
        number = self.number + 1
        match document["kind"]:
            case "datapoints.registered":
                ledger.apply(self.ledger, ledger.Registered(count=document["count"]))
            case "datapoint.erased":
                self.erased.add(document["ordinal"])
            case "datapoint.returned":
                self.erased.discard(document["ordinal"])
            case "task.created":
                self._add(self._task_from(document, number))
            case "policy.changed":
                policy = _policy_from(document["policy"], self.promise)
                if policy.budget.epsilon > self.policy.budget.epsilon or policy.budget.delta > self.policy.budget.delta:
                    raise InvalidDocument("policy.budget", policy.budget.epsilon, "at most what it was before")
                self.policy = policy
                self.accepted.update(policy.accepts)
                lift = Lift(version=policy.version, reason=document.get("reason"))
                self.lifts = {audit: self.lifts.get(audit, lift) for audit in policy.lifted}
                self._rules = None
            case "population.frozen" | "population.opened" | "population.closed" as kind:
                self.status = kind.removeprefix("population.").replace("opened", "open")
                self.became = Became(
                    entry=number, at=document["at"], actor=document["actor"], reason=document.get("reason")
                )
            case "release.held":
                assert held is not None
                ledger.apply(self.ledger, held)
                self._record(document, "held", number, held)
                if (stream := document.get("stream")) is not None:
                    paid = self.streams.setdefault(stream["id"], {})
                    self.releases[held.release].leans_on = frozenset(paid[model][0] for model in stream["reused"])
                    for model in stream["trained"]:
                        paid.setdefault(model, []).append(held.release)
            case "release.denied":
                self.ledger.statuses[document["release"]] = "voided"  # the name is used up, and nothing was held
                self._record(document, "denied", number, None)
            case "release.committed":
                ledger.apply(self.ledger, ledger.Committed(release=document["release"]))
                self._resolve(document, "committed", number)
            case "release.voided":
                ledger.apply(self.ledger, ledger.Voided(release=document["release"]))
                self._resolve(document, "voided", number)
            case "release.expired":
                ledger.apply(self.ledger, ledger.Expired(release=document["release"]))
                self._resolve(document, "expired", number)
            case "artifact.attached":
                release = self.releases[document["release"]]
                release.artifact = document["artifact"]
                release.standing = release.standing.after(document, _brief)
            case "release.audited":
                release = self.releases[document["release"]]
                release.audited, release.standing = number, release.standing.after(document, _brief)
            case "audit.planned":
                if document["audit"] in self.audits:
                    raise InvalidDocument("audit", document["audit"], "a name that no audit had before")
                self.audits[document["audit"]] = plan_from(document, entry=number)
            case "audit.concluded":
                bound, plan = bound_from(document["bound"]), self.unfinished(document["audit"])
                ended = replace(plan, stage="concluded", bound=bound, verdict=document["verdict"], ended=number)
                self.audits[plan.id] = ended
                if ended.freezes and self.status == "open":  # by the same entry, so that nothing comes between
                    self.status = "frozen"
                    self.became = Became(entry=number, at=document["at"], actor=document["actor"], audit=plan.id)
            case "audit.abandoned":
                plan = self.unfinished(document["audit"])
                self.audits[plan.id] = replace(plan, stage="abandoned", ended=number)
            case kind:
                raise InvalidDocument("kind", kind, "a kind of entry that this version knows")

    def _add(self, task: Task) -> None:
        self.tasks[task.name] = task
        self.arrivals = max(self.arrivals, task.members.max() + 1)
        self._rules = None

    def _record(self, document: Document, status: ReleaseStatus, number: int, held: Held | None) -> None:
        parts = () if held is None else held.parts
        small = sum(part.scope.__sizeof__() for part in parts) <= _KEPT_BYTES
        self.releases[document["release"]] = Release(
            id=document["release"],
            kind=document["release_kind"],
            status=status,
            number=number,
            datapoints=document["datapoints"] if held is None else sum(len(part.scope) for part in parts),
            at=document["at"],
            actor=document["actor"],
            tasks=frozenset(name for charge in document["charges"] for name in _named(charge["scope"])),
            touched=tuple((part.touch.decode(), part.scope) for part in parts) if small else None,
            spending=tuple((part.touch.decode(), part.spending) for part in parts),
            expires_at=document.get("expires_at"),
            mechanism=_mechanism(document),
            standing=_proposed(tuple(_brief(each, None) for each in document.get("findings", ()))),
            proposed=tuple((str(each["code"]), str(each["severity"])) for each in document.get("findings", ())),
            is_trimmed="trimmed" in document,
            reached=_reached(document),
        )

    def _resolve(self, document: Document, status: ReleaseStatus, number: int) -> None:
        release = self.releases[document["release"]]
        release.status, release.resolved, release.resolved_at = status, number, document["at"]
        release.standing = release.standing.after(document, _brief)
        if status == "voided":  # its models never left, so nothing may lean on them
            for models in self.streams.values():
                for model, payers in list(models.items()):
                    if release.id in payers:
                        payers.remove(release.id)
                        if not payers:
                            del models[model]
        release.artifact = document.get("artifact")

    # ------------------------------------------------------------ deciding

    def propose(
        self,
        *,
        release: str,
        charges: Sequence[Charge],
        delta: float | None = None,
        on_exhausted: OnExhausted | None = None,
    ) -> Decision:
        """Decide on a release under the policy of now; see `ledger.propose`."""
        rules = self.rules
        if on_exhausted not in (None, rules.on_exhausted):
            rules = replace(rules, on_exhausted=on_exhausted)
        return ledger.propose(self.ledger, rules, release=release, charges=charges, delta=delta)

    def charge(self, document: Document, *, path: str) -> tuple[Charge, Body]:
        """A charge of a proposal, and how its entry will spell it."""
        if not isinstance(document, Mapping) or set(document) != {"scope", "event"}:
            raise InvalidDocument(path, document, "an object with scope and event")
        scope, task, spelled = self.scope(document["scope"], path=f"{path}.scope")
        try:
            event = event_from_json(document["event"])
        except InvalidInput as problem:
            raise InvalidDocument(f"{path}.event.{problem.argument}", problem.value, problem.expected) from None
        spelling: Body = {"scope": spelled, "event": event_to_json(event)}
        return Charge(scope=scope, event=event, task=task), spelling

    def scope(self, document: Document, *, path: str = "scope") -> tuple[FrozenBitMap, str | None, Body]:
        """Who a scope means, the task that it names, and its spelling in a log."""
        found, named, spelled = self._scope(document, path)
        if not found:
            raise InvalidDocument(path, document, "a scope that touches somebody")
        if found.max() >= self.size:
            raise InvalidDocument(path, found.max(), f"ordinals below the number of datapoints, {self.size}")
        if len(named) > 1:
            raise InvalidDocument(path, sorted(named), "at most one task; make a charge for each")
        return found, next(iter(named), None), spelled

    def _scope(self, document: Document, path: str, *, inside: bool = False) -> tuple[FrozenBitMap, set[str], Body]:
        match document:
            case {"task": str(name), **rest} if set(rest) <= {"part"}:
                return self._members(name, rest.get("part"), path), {name}, dict(document)
            case {"ranges": list(ranges), **rest} if not rest:
                return _ranges(ranges, f"{path}.ranges"), set(), {"ranges": [list(each) for each in ranges]}
            case {"bitmap": str(text), **rest} if not rest:
                return bitmap_from(text, f"{path}.bitmap"), set(), {"bitmap": text}
            case {"union": list(parts), **rest} if not rest and not inside:
                if not 1 <= len(parts) <= MAX_UNION:
                    raise InvalidDocument(f"{path}.union", len(parts), f"1 to {MAX_UNION} scopes")
                scopes = [self._scope(part, f"{path}.union[{place}]", inside=True) for place, part in enumerate(parts)]
                named = set().union(*(tasks for _, tasks, _ in scopes))
                spelled = [spelling for _, _, spelling in scopes]
                return FrozenBitMap().union(*(some for some, _, _ in scopes)), named, {"union": spelled}
            case _:
                expected = "a task (and a part of it), ranges, a bitmap, or a union of those"
                raise InvalidDocument(path, document, expected)

    def _members(self, name: str, part: object, path: str) -> FrozenBitMap:
        task = self.tasks.get(name)
        if task is None:
            raise InvalidDocument(f"{path}.task", name, "a task of this population")
        if part is None:
            return task.members
        if not isinstance(part, str) or part not in task.parts:
            raise InvalidDocument(f"{path}.part", part, f"a part of task {name!r}: {', '.join(task.parts) or 'none'}")
        return task.parts[part]

    def task(
        self,
        *,
        name: str,
        members: Document,
        parts: Mapping[str, Document],
        budget: Filter | None,
    ) -> tuple[Task, Body]:
        """A new task, and the body that makes it. `{"next": n}` are the n arrivals after those of all tasks so far."""
        if not isinstance(name, str) or not 1 <= len(name) <= ledger.MAX_NAME:
            raise InvalidInput("name", name, f"a name of 1 to {ledger.MAX_NAME} characters")
        if name in self.tasks:
            raise InvalidInput("name", name, "a name that no task of this population has")
        if len(self.tasks) >= MAX_TASKS:
            raise InvalidInput("name", name, f"at most {MAX_TASKS:,} tasks in a population")
        if len(parts) > MAX_PARTS:
            raise InvalidInput("parts", len(parts), f"at most {MAX_PARTS} parts")
        if set(members) == {"next"}:
            count = whole("members.next", members["next"], least=1, most=MAX_DATAPOINTS)
            if self.arrivals + count > self.size:
                left = self.size - self.arrivals
                raise InvalidInput("members.next", count, f"at most {left:,}, the arrivals that are in no task yet")
            members = {"ranges": [[self.arrivals, self.arrivals + count]]}
        spelled: dict[str, Body] = {}
        found, _, spelled_members = self.scope(members, path="members")
        for part, document in parts.items():
            if not 1 <= len(part) <= ledger.MAX_NAME:
                raise InvalidInput("parts", part, f"names of 1 to {ledger.MAX_NAME} characters")
            some, _, spelled[part] = self.scope(document, path=f"parts.{part}")
            if not some.issubset(found):
                raise InvalidDocument(f"parts.{part}", len(some - found), "members of the task, and nobody else")
        body: Body = {"kind": "task.created", "task": name, "members": spelled_members, "parts": spelled}
        if budget is not None:
            body["budget"] = filter_to(budget)
        return self._task_from(body, self.number + 1), body

    def _task_from(self, document: Document, number: int) -> Task:
        return Task(
            name=document["task"],
            members=self.scope(document["members"])[0],
            parts=MappingProxyType({name: self.scope(part)[0] for name, part in document["parts"].items()}),
            budget=filter_from(document["budget"]) if "budget" in document else None,
            number=number,
        )

    def leaning(self, release: str) -> list[str]:
        """The releases, held or spent, that make use of this one's models: it cannot be undone under them."""
        if not self.streams:  # most populations have none, and many releases
            return []
        return [other.id for other in self.releases.values() if release in other.leans_on and other.status != "voided"]

    def unfinished(self, audit: str) -> PlannedAudit:
        """An audit that was planned and has not ended."""
        plan = self.audits.get(audit)
        if plan is None or plan.stage != "planned":
            raise InvalidDocument("audit", audit, "an audit that is planned and has not ended")
        return plan

    def must_be_a_violation(self, audit: str) -> None:
        """Refuse to lift what does not block: above all what an audit may say one day."""
        found = self.audits.get(audit)
        if found is None or found.verdict != "violation":
            raise InvalidInput("lift", audit, "an audit of this population that found a violation")

    def blocking(self, mechanism: str | None) -> list[PlannedAudit]:
        """The audits by which a mechanism is blocked: their violations, but for those that the policy lifted."""
        return [
            audit
            for audit in self.audits.values()
            if audit.verdict == "violation" and audit.mechanism == mechanism and audit.id not in self.policy.lifted
        ]

    def violations(self, mechanism: str | None = None) -> list[PlannedAudit]:
        """Violations that stand, of mechanisms by which something was released here or may be; of one, if it is named.

        What was made by such a mechanism costs what nobody has proved, and with it the life of whom it touched.
        """
        used = {each.mechanism for each in self.releases.values() if each.status in _COUNTED} if self.audits else set()
        wanted = used if mechanism is None else used & {mechanism}
        return [audit for each in sorted(filter(None, wanted)) for audit in self.blocking(each)]

    @property
    def proof_status(self) -> ProofStatus:
        """How sure the promise for life is: as sure as the least sure mechanism that any policy accepted so far.

        It is refuted while a violation stands of a mechanism by which something was released.
        """
        order: tuple[ProofStatus, ...] = ("refuted", "claimed", "proved")
        return "refuted" if self.violations() else next(status for status in order if status in self.accepted)

    def overlaps(self, task: Task, *, after: int = 0) -> Iterator[tuple[Task, int]]:
        """Tasks of later entries than `after`, and how many datapoints each shares with this one: they pay for both."""
        for other in self.tasks.values():
            if other.number > after and other.name != task.name:
                shared = task.members.intersection_cardinality(other.members)
                if shared:
                    yield other, shared

    def lowered(self, *, epsilon: float | None = None, delta: float | None = None) -> Filter:
        """The budget of a policy that promises less: the same orders and weights, with a smaller ε or δ."""
        promise, now = self.promise, self.policy.budget
        epsilon, delta = now.epsilon if epsilon is None else epsilon, now.delta if delta is None else delta
        for name, value, most in (("epsilon", epsilon, now.epsilon), ("delta", delta, now.delta)):
            if value > most:
                raise InvalidInput(name, value, f"at most {most:g}, that of the policy in force: it is never raised")
        share = Fraction(1) if promise.delta == 0 else exact(delta) / exact(promise.delta)
        return Filter(
            epsilon=float(epsilon),
            delta=float(delta),
            orders=promise.orders,
            weights=promise.weights,
            delta_filter=promise.delta_filter * share,
            delta_parts=promise.delta_parts * share,
        )

    # ------------------------------------------------------------ the log

    def held_body(
        self,
        decision: Decision,
        *,
        kind: str,
        charges: Sequence[Body],
        expires_at: str | None,
        declared: Document,
        shown: Document,
        stream: Document | None = None,
        findings: Sequence[Document] = (),
    ) -> Body:
        """The body of an admitted release; `shown` is the decision in words and readings.

        `findings` are records of what was found against it that does not deny it. `stream` names the models that it
        trains, of which later steps may make use without paying for them again.
        """
        held = decision.hold
        assert held is not None
        touched = BitMap().union(*(charge.scope for charge in held.charges))
        trimmed = touched - BitMap().union(*(part.scope for part in held.parts))
        body: Body = {
            "kind": "release.held",
            "release": held.release,
            "release_kind": kind,
            "charges": list(charges),
            "parts": [
                {
                    "touch": part.touch.decode(),
                    "spending": {name: _cost_to(cost) for name, cost in part.spending},
                    "collapsed": {name: _collapsed_to(each) for name, each in part.collapsed},
                }
                for part in held.parts
            ],
            "declared": dict(declared),
            "decision": dict(shown),
            "policy": self.policy.version,
        }
        if trimmed:
            body["trimmed"] = bitmap_to(trimmed)
        if stream is not None:
            body["stream"] = dict(stream)
        if findings:
            body["findings"] = list(findings)
        if expires_at is not None:
            body["expires_at"] = expires_at
        return body

    def denied_body(
        self,
        *,
        release: str,
        kind: str,
        datapoints: int,
        charges: Sequence[Body],
        declared: Document,
        shown: Document,
        findings: Sequence[Document] = (),
    ) -> Body:
        """The body of a release that was refused."""
        body: Body = {
            "kind": "release.denied",
            "release": release,
            "release_kind": kind,
            "charges": list(charges),
            "datapoints": datapoints,
            "declared": dict(declared),
            "decision": dict(shown),
            "policy": self.policy.version,
        }
        if findings:
            body["findings"] = list(findings)
        return body

    def held_from(self, document: Document) -> Held:
        """The hold that a body records, if its references are read in this book."""
        charges = []
        for charge in document["charges"]:
            scope, task, _ = self.scope(charge["scope"])
            charges.append(Charge(scope=scope, event=event_from_json(charge["event"]), task=task))
        trimmed = bitmap_from(document["trimmed"], "trimmed") if "trimmed" in document else BitMap()
        cut = {",".join(map(str, touching)): scope - trimmed for touching, scope in ledger.regions(charges)}
        return Held(
            release=document["release"],
            charges=tuple(charges),
            parts=tuple(
                Part(
                    scope=FrozenBitMap(cut[part["touch"]]),
                    touch=part["touch"].encode(),
                    spending=tuple((name, _cost_from(cost)) for name, cost in sorted(part["spending"].items())),
                    collapsed=tuple(
                        (name, Collapsed(**each)) for name, each in sorted(part.get("collapsed", {}).items())
                    ),
                )
                for part in document["parts"]
            ),
        )


def _reached(document: Document) -> tuple[float | None, float] | None:
    """The reading that a decision recorded; None ε is no finite one."""
    match document.get("decision"):
        case {"epsilon": {"after": after, "delta": delta}}:
            return after, delta
        case _:
            return None


def _named(scope: Document) -> set[str]:
    """The tasks that a scope names."""
    inside = scope.get("union", [scope])
    return {each["task"] for each in inside if "task" in each}


def created(
    *,
    population: str,
    unit: Unit,
    adjacency: Adjacency,
    epsilon: float,
    delta: float,
    preset: Preset = "mixed",
    delta_parts: float | None = None,
    on_exhausted: OnExhausted = "deny",
    accepts: Sequence[ProofStatus] = ("proved",),
    named_scopes: bool = False,
    findings: Mapping[str, str] = MappingProxyType({}),
    data: Sequence[Document] = (),
) -> Body:
    """The first body of a log: what is promised, for ever."""
    if unit not in get_args(Unit):
        raise InvalidInput("unit", unit, " or ".join(map(repr, get_args(Unit))))
    chain.begin(population)  # refuses a name that has no genesis
    promise = Filter.of(epsilon=epsilon, delta=delta, preset=preset, delta_parts=delta_parts)
    policy = Policy(
        version=1,
        budget=promise,
        on_exhausted=on_exhausted,
        accepts=_accepted(accepts),
        named_scopes=named_scopes,
        findings={**DEFAULT_VERDICTS, **verdicts_of(findings)},
        data=tuple(data),
    )
    return {
        "kind": "population.created",
        "population": population,
        "unit": unit,
        "adjacency": adjacency_of(adjacency),
        "promise": filter_to(promise),
        "policy": policy_to(policy),
    }


def replay(
    entries: Iterable[tuple[Link, bytes]],
    *,
    heads: Iterable[chain.Head] = (),
    verify: bool = False,
    visit: Callable[[Book], None] = lambda _: None,
) -> Book:
    """The book of a log. With `verify`, its chain and heads are checked and every decision is made again.

    `visit` sees the book after every entry.
    """
    book: Book | None = None
    expected: dict[int, list[chain.Head]] = {}
    for seen in heads:
        expected.setdefault(seen.number, []).append(seen)
    for link, body in entries:
        if book is None:
            book = Book.of(body)
        else:
            if verify:  # before anything is made of it: what was changed is where the chain breaks first
                _same_link(chain.append(book.chain.link, body), link)
                _check(book, from_canonical(body))
            book.apply(body)
        if verify:
            _same_link(book.chain.link, link)
            chain.verify(book.chain, (), heads=expected.pop(link.number, ()))
        visit(book)
    if book is None:
        raise InvalidInput("entries", "none", "a log with at least its first entry")
    if expected:
        chain.verify(book.chain, (), heads=[head for each in expected.values() for head in each])
    return book


def _check(book: Book, document: Document) -> None:
    """Refuse a body that nobody who decides by this book would have appended to it."""
    number = book.number + 1
    match document["kind"]:
        case "release.held" | "release.denied" as kind:
            if book.status != "open":
                expected = f"an open population: entry {number} decides on release {document['release']!r}"
                raise InvalidInput("status", book.status, expected)
            if kind == "release.held":
                _must_not_be_blocked(book, _mechanism(document), f"holds release {document['release']!r}")
                rules = replace(book.rules, on_exhausted="trim") if "trimmed" in document else book.rules
                ledger.check(book.ledger, rules, book.held_from(document))
                found = [finding_from(each) for each in document.get("findings", ())]
                if denied := denying(found, book.policy.findings):
                    expected = f"findings that the policy allows: entry {number} holds {document['release']!r} with it"
                    raise InvalidInput("findings", denied[0].code, expected)
        case "release.committed":
            name = document["release"]
            known = book.releases.get(name)
            if known is not None and known.expires_at is not None and "reason" not in document:
                does = f"commits release {name!r}, and no officer says why"
                _must_not_be_blocked(book, known.mechanism, does, held=True)
            found = [finding_from(each) for each in document.get("findings", ())]
            if known is not None and known.expires_at is None and "artifact" in document:
                _must_not_be_blocked(book, known.mechanism, f"publishes what a job made for {name!r}")
                if denying(found, book.policy.findings):
                    expected = f"findings that the policy allows: entry {number} publishes what a job made for {name!r}"
                    raise InvalidInput("findings", found[0].code, expected)
        case "release.audited" if (report := document.get("reported")) is not None:
            known = book.releases.get(document["release"])
            artifact = None if known is None or known.artifact is None else known.artifact["sha256"]
            if artifact not in {None, report["artifact"]["sha256"]}:
                expected = f"the digest of the artifact: entry {number} tells what was found in another file"
                raise InvalidInput("reported.artifact.sha256", report["artifact"]["sha256"], expected)
            for code in (*report["checked"], *(each["code"] for each in report["findings"])):
                if code in RULES and code not in REPORTABLE:
                    expected = f"a rule that looks into files: entry {number} tells what was found in one"
                    raise InvalidInput("reported", code, expected)
        case "audit.planned":
            check_plan(plan_from(document, entry=number), number=len(book.audits) + 1)
        case "audit.concluded":
            follows = said_of(book.unfinished(document["audit"]), bound_from(document["bound"]))
            if document["verdict"] != follows:
                expected = f"{follows!r}, which follows from the numbers of entry {number}"
                raise InvalidInput("verdict", document["verdict"], expected)
        case "policy.changed":
            for audit in document["policy"].get("lifted", ()):
                book.must_be_a_violation(audit)
        case "release.voided":
            name = document["release"]
            known = book.releases.get(name)  # one that is not known is refused when it is applied
            ends = None if known is None else known.expires_at
            if ends is not None and _moment("at", document["at"]) >= _moment("expires_at", ends):
                expected = f"a time before {ends}, when release {name!r} ran out: entry {number} voids it"
                raise InvalidInput("at", document["at"], expected)
            if others := book.leaning(name):
                expected = f"a release whose models no other makes use of: entry {number} voids it under {others[0]!r}"
                raise InvalidInput("release", name, expected)
        case "population.frozen" | "population.opened" if book.status == "closed":
            raise InvalidInput("kind", document["kind"], f"a closed population to stay closed, at entry {number}")


def _must_not_be_blocked(book: Book, mechanism: str | None, does: str, *, held: bool = False) -> None:
    if blocking := [audit for audit in book.blocking(mechanism) if audit.stops_holds or not held]:
        expected = f"a mechanism that no audit refuted, as {blocking[0].id} did: entry {book.number + 1} {does}"
        raise InvalidInput("mechanism", mechanism, expected)


def _mechanism(document: Document) -> str | None:
    """The mechanism that a release was proposed by, if by its name."""
    match document["declared"].get("mechanism"):
        case {"name": str(name)}:
            return name
        case _:
            return None


def _moment(path: str, text: str) -> str:
    """A time of which the earlier is the smaller text: there is one spelling, and this file has no calendar."""
    if not _STAMP.fullmatch(text):
        raise InvalidDocument(path, text, "a time like 2026-01-01T00:00:00.000000Z")
    return text


def _same_link(found: Link, stored: Link) -> None:
    faults: tuple[Literal["number", "previous", "hash"], ...] = ("number", "previous", "hash")
    for fault in faults:
        if getattr(found, fault) != getattr(stored, fault):
            raise BrokenChain(found.number, fault, f"its stored {fault} is not that of the log")


# ---------------------------------------------------------------- spellings


def _kind_is(document: Document, kind: str) -> None:
    if document.get("kind") != kind:
        raise InvalidDocument("kind", document.get("kind"), kind)


def bitmap_to(scope: BitMap | FrozenBitMap) -> str:
    """A set of ordinals as portable roaring bytes in base64."""
    compact = BitMap(scope)
    compact.run_optimize()
    return base64.b64encode(compact.serialize()).decode()


def bitmap_from(text: str, path: str = "bitmap") -> FrozenBitMap:
    """The set that `bitmap_to` spells."""
    try:
        return FrozenBitMap.deserialize(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, IndexError):  # the last of no bytes at all
        raise InvalidDocument(path, text, "a roaring bitmap in its portable form, as base64") from None


def _ranges(ranges: Sequence[Any], path: str) -> FrozenBitMap:
    if not 1 <= len(ranges) <= MAX_RANGES:
        raise InvalidDocument(path, len(ranges), f"1 to {MAX_RANGES:,} ranges")
    found = BitMap()
    for place, each in enumerate(ranges):
        match each:
            case [int(start), int(stop)] if type(start) is type(stop) is int and 0 <= start < stop <= MAX_DATAPOINTS:
                found.add_range(start, stop)
            case _:
                raise InvalidDocument(f"{path}[{place}]", each, "[start, stop] with 0 <= start < stop <= 2^32")
    return FrozenBitMap(found)


def filter_to(budget: Filter) -> Body:
    """A budget in a log; fractions are text."""
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "orders": list(budget.orders),
        "weights": [str(weight) for weight in budget.weights],
        "delta_filter": str(budget.delta_filter),
        "delta_parts": str(budget.delta_parts),
    }


def filter_from(document: Document) -> Filter:
    """The budget that `filter_to` spells."""
    return Filter(
        epsilon=float(document["epsilon"]),
        delta=float(document["delta"]),
        orders=tuple(float(order) for order in document["orders"]),
        weights=tuple(Fraction(weight) for weight in document["weights"]),
        delta_filter=Fraction(document["delta_filter"]),
        delta_parts=Fraction(document["delta_parts"]),
    )


def _accepted(accepts: Sequence[ProofStatus]) -> tuple[ProofStatus, ...]:
    if not accepts or any(status not in _STATUSES for status in accepts):
        raise InvalidInput("accepts", list(accepts), "one or more of " + ", ".join(_STATUSES))
    return tuple(status for status in _STATUSES if status in accepts)


def policy_to(policy: Policy) -> Body:
    """A policy in a log."""
    body: Body = {
        "version": policy.version,
        "budget": filter_to(policy.budget),
        "on_exhausted": policy.on_exhausted,
        "accepts": list(policy.accepts),
        "named_scopes": policy.named_scopes,
        "findings": dict(policy.findings),
        "data": [dict(rule) for rule in policy.data],
    }
    if policy.lifted:
        body["lifted"] = list(policy.lifted)
    return body


def _policy_from(document: Document, promise: Filter) -> Policy:
    budget = filter_from(document["budget"])
    if (budget.orders, budget.weights) != (promise.orders, promise.weights):
        raise InvalidDocument("policy.budget", "other orders or weights", "those of the promise")
    if budget.epsilon > promise.epsilon or budget.delta > promise.delta:
        raise InvalidDocument("policy.budget", budget.epsilon, "at most the promise")
    return Policy(
        version=document["version"],
        budget=budget,
        on_exhausted=document["on_exhausted"],
        accepts=_accepted(document["accepts"]),
        named_scopes=document["named_scopes"],
        findings={**DEFAULT_VERDICTS, **verdicts_of(document.get("findings", {}))},  # older logs say nothing of them
        data=tuple(document.get("data", ())),
        lifted=tuple(document.get("lifted", ())),
    )


def _cost_to(cost: Cost) -> Body:
    return {"rho": " ".join(map(str, cost.rho)), "delta": str(cost.delta)}


def _cost_from(document: Document) -> Cost:
    return Cost(rho=tuple(map(int, document["rho"].split())), delta=int(document["delta"]))


def spending_of(document: Document, touch: str) -> dict[str, Cost]:
    """What a hold took, in each ledger, from whoever was touched by just these of its charges."""
    return {
        ledger: _cost_from(cost)
        for part in document["parts"]
        if part["touch"] == touch
        for ledger, cost in part["spending"].items()
    }


def _collapsed_to(collapsed: Collapsed) -> Body:
    return {
        "epsilon": collapsed.epsilon,
        "delta": collapsed.delta,
        "engine": collapsed.engine,
        "version": collapsed.version,
    }


def spell(body: Body, *, at: str, actor: str) -> bytes:
    """The canonical bytes of a body, with when it happened and who did it."""
    return canonical({**body, "at": at, "actor": actor})
