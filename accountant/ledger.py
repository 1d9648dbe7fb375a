"""The ledger's rules: which releases are admitted, and what a life of holds, commits, voids and expiries adds up to.

A release is a list of charges, and a charge is an event on a scope. `propose` decides and changes nothing; `apply`
changes the ledger as an entry says and decides nothing. Entries are the truth: `replay` gives the same ledger from
them at any time, and prices every charge again when it is given the rules.

Every datapoint has a budget for life, and every task may have one of its own: a second filter, with its own state, over
the charges whose scope names that task. Both must admit. All charges of a release that meet in a datapoint are composed
first and priced once, because a release is sealed: its parameters are fixed before its first output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias, assert_never

from pyroaring import BitMap, FrozenBitMap

from accountant.calibration import least_noise_factor, most_times, noisier
from accountant.cohorts import Cohorts, Scope, Transition
from accountant.errors import InvalidInput, Unattainable, UnknownRelease
from accountant.events import Adjacency, Composed, Event, Repeated, adjacency_of, event_of
from accountant.filters import Cost, Explanation, Filter
from accountant.guarantees import rounded_up
from accountant.histories import History, Spending

LIFELONG: Final = ""  # the name of the ledger over a datapoint's whole life; a task's own has the task's name
MAX_CHARGES: Final = 1_000
MAX_REGIONS: Final = 10_000  # disjoint sets into which the scopes of one release cut each other
MAX_NAME: Final = 200

OnExhausted: TypeAlias = Literal["deny", "trim"]
Ledgers: TypeAlias = Mapping[str, Filter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a population promised, and what happens to datapoints that have too little left.

    `trim` makes them null records of the release: they are not charged, and sizes and rates stay as they were.
    """

    lifelong: Filter
    adjacency: Adjacency = "add_remove"
    tasks: Ledgers = field(default_factory=lambda: MappingProxyType({}))
    on_exhausted: OnExhausted = "deny"

    def __post_init__(self) -> None:
        adjacency_of(self.adjacency)
        if self.on_exhausted not in ("deny", "trim"):
            raise InvalidInput("on_exhausted", self.on_exhausted, "'deny' or 'trim'")
        if LIFELONG in self.tasks:
            raise InvalidInput("tasks", LIFELONG, "names that are not empty")
        for name, budget in self.ledgers.items():
            if not isinstance(budget, Filter):
                raise InvalidInput(f"tasks[{name!r}]" if name else "lifelong", budget, "a Filter")

    @property
    def ledgers(self) -> Ledgers:
        """Every budget by its ledger's name."""
        return {LIFELONG: self.lifelong, **self.tasks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """An event on a scope; `task` is the task that the scope names, or a part of which it names."""

    scope: Scope
    event: Event
    task: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.scope, BitMap | FrozenBitMap):
            raise InvalidInput("scope", self.scope, "a bitmap of ordinals")
        object.__setattr__(self, "scope", FrozenBitMap(self.scope))  # a log must not change under its reader
        event_of(self.event)
        if self.task is not None:
            _named("task", self.task)


def _named(argument: str, value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME:
        raise InvalidInput(argument, value, f"a name of 1 to {MAX_NAME} characters")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Datapoints that the same charges of a release touch, and what that costs in each ledger."""

    scope: FrozenBitMap
    touch: bytes
    spending: Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """So many datapoints arrived."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A release was admitted; it counts in full from here on.

    `charges` is what was proposed, `parts` what it costs whom: without those who were trimmed.
    """

    release: str
    charges: tuple[Charge, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The release left the trusted side: what was held is spent."""

    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Nobody said what became of the release: an unknown outcome is spent."""

    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Voided:
    """Nothing of the release left the trusted side: as if it had never been held."""

    release: str


Entry: TypeAlias = Registered | Held | Committed | Expired | Voided
Status: TypeAlias = Literal["held", "committed", "expired", "voided"]


@dataclass(slots=True)
class Ledger:
    """A population's life so far: its cohorts, and what became of each release. A name is used once."""

    cohorts: Cohorts = field(default_factory=Cohorts)
    statuses: dict[str, Status] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a ledger refuses: for how many datapoints, and how the worst-off of them stands."""

    code: Literal["budget.exceeded", "task_budget.exceeded"]
    ledger: str
    datapoints: int
    epsilon: float
    budget: Filter
    explanation: Explanation

    @property
    def message(self) -> str:
        """The reason as sentences."""
        whose = "the lifelong budget" if self.ledger == LIFELONG else f"the budget of task {self.ledger!r}"
        who = "1 datapoint" if self.datapoints == 1 else f"{self.datapoints:,} datapoints"
        where = "beyond any ε" if math.isinf(self.epsilon) else f"to ε = {rounded_up(self.epsilon, digits=6)}"
        return (
            f"This release would bring {who} {where}; {whose} is "
            f"ε = {self.budget.epsilon:g} at δ = {self.budget.delta:g}: {self.explanation}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change that would be admitted now: events to propose instead (one per charge), or datapoints to trim."""

    kind: Literal["noise", "steps", "trim"]
    message: str
    events: tuple[Event, ...] = ()
    datapoints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Admitted with a hold to record, or denied with reasons and advice.

    `epsilon_before` and `epsilon_after` are readings of the lifelong meter of the worst-off datapoint that is touched,
    with open holds counted.
    """

    hold: Held | None
    reasons: tuple[Reason, ...]
    advice: tuple[Advice, ...]
    datapoints: int
    trimmed: int
    epsilon_before: float
    epsilon_after: float

    @property
    def outcome(self) -> Literal["admitted", "denied"]:
        """The word for it."""
        return "denied" if self.hold is None else "admitted"


def propose(ledger: Ledger, rules: Rules, *, release: str, charges: Sequence[Charge]) -> Decision:
    """Decide on a release; nothing is changed until its hold is applied."""
    if _named("release", release) in ledger.statuses:
        raise InvalidInput("release", release, "a name that no release had before")
    if not isinstance(charges, list | tuple) or not all(isinstance(charge, Charge) for charge in charges):
        raise InvalidInput("charges", charges, "a list of Charge")
    if not 1 <= len(charges) <= MAX_CHARGES:
        raise InvalidInput("charges", len(charges), f"1 to {MAX_CHARGES} charges")
    cohorts = ledger.cohorts
    regions = [_Region(*region, cohorts.touched(region[1])) for region in _regions(charges)]
    prices = _prices(rules, charges, regions)
    shortfalls = list(_shortfalls(rules, regions, prices))
    exhausted = {(short.region, short.history): short.datapoints for short in shortfalls}
    datapoints, trimmed = sum(len(region.scope) for region in regions), sum(exhausted.values())

    reasons = tuple(_reasons(rules, shortfalls))
    denied = trimmed and (rules.on_exhausted == "deny" or trimmed == datapoints)
    parts = () if denied else _parts(cohorts, regions, prices, exhausted)
    kept = [
        (history, price[LIFELONG])
        for number, (region, price) in enumerate(zip(regions, prices, strict=True))
        for history, _ in region.touched
        if denied or (number, history) not in exhausted
    ]
    standings = [(_standing(rules.lifelong, history, LIFELONG), cost) for history, cost in kept]
    return Decision(
        hold=None if denied else Held(release=release, charges=tuple(charges), parts=parts),
        reasons=reasons if denied else (),
        advice=tuple(_advice(rules, charges, regions, exhausted)) if denied else (),
        datapoints=datapoints,
        trimmed=0 if denied else trimmed,
        epsilon_before=max((rules.lifelong.meter(total) for total, _ in standings), default=0.0),
        epsilon_after=max((rules.lifelong.meter(total + cost) for total, cost in standings), default=0.0),
    )


def apply(ledger: Ledger, entry: Entry) -> None:
    """Change the ledger as the entry says; one that holds a known name, or resolves what is not held, is refused."""
    match entry:
        case Registered(count=count):
            ledger.cohorts.extend(count)
        case Held(release=release, parts=parts):
            if release in ledger.statuses:
                raise InvalidInput("release", release, "a name that no release had before")
            for part in parts:
                ledger.cohorts.charge(part.scope, _with_hold(release, part))
            ledger.statuses[release] = "held"
        case Committed(release=release):
            _resolve(ledger, release, "committed")
        case Expired(release=release):
            _resolve(ledger, release, "expired")
        case Voided(release=release):
            _resolve(ledger, release, "voided")
        case _:
            assert_never(entry)


def _resolve(ledger: Ledger, release: str, status: Status) -> None:
    if ledger.statuses.get(release) != "held":
        raise UnknownRelease(release)
    outcome = History.void if status == "voided" else History.commit
    ledger.cohorts.resolve(release, lambda history: outcome(history, release))
    ledger.statuses[release] = status


def _with_hold(release: str, part: Part) -> Transition:
    return lambda history: history.hold(release, part.spending, part.touch)


def replay(entries: Iterable[Entry], *, rules: Rules | None = None) -> Ledger:
    """The ledger that a log leads to. With the rules every charge is priced again, and a wrong price is refused."""
    ledger = Ledger()
    for entry in entries:
        if rules is not None and isinstance(entry, Held):
            _check_prices(rules, entry)
        apply(ledger, entry)
    return ledger


def _check_prices(rules: Rules, held: Held) -> None:
    for part in held.parts:
        touching = [held.charges[int(number)] for number in part.touch.split(b",")]
        if part.spending != tuple(sorted(_priced(rules, touching).items())):
            raise InvalidInput("spending", part.touch, f"the price of these charges of release {held.release!r}")
        if not all(part.scope.issubset(charge.scope) for charge in touching):
            raise InvalidInput("scope", part.touch, f"datapoints that these charges of release {held.release!r} touch")


class _Region(NamedTuple):
    """The datapoints that exactly these charges touch, and the histories that they have."""

    charges: tuple[int, ...]
    scope: BitMap
    touched: list[tuple[History, int]]


class _Shortfall(NamedTuple):
    """Datapoints of a region with one history, for which a ledger refuses."""

    region: int
    history: History
    datapoints: int
    ledger: str
    total: Cost


def _regions(charges: Sequence[Charge]) -> list[tuple[tuple[int, ...], BitMap]]:
    """The scopes cut into disjoint sets, each with the charges that touch it."""
    regions: list[tuple[tuple[int, ...], BitMap]] = []
    for number, charge in enumerate(charges):
        rest, cut = BitMap(charge.scope), []
        for touching, scope in regions:
            inside, outside = scope & rest, scope - rest
            rest -= scope
            cut += [(touching, outside), ((*touching, number), inside)]
        regions = [region for region in (*cut, ((number,), rest)) if region[1]]
        if len(regions) > MAX_REGIONS:
            raise InvalidInput("charges", number + 1, f"scopes that cut each other into at most {MAX_REGIONS} sets")
    return regions


def _prices(rules: Rules, charges: Sequence[Charge], regions: Sequence[_Region]) -> list[dict[str, Cost]]:
    """What the release costs each region, in every ledger that it touches."""
    return [_priced(rules, [charges[number] for number in region.charges]) for region in regions]


def _priced(rules: Rules, touching: Sequence[Charge]) -> dict[str, Cost]:
    """What these charges of one release together cost a datapoint, in every ledger that they touch."""
    price = {LIFELONG: _price(rules.lifelong, rules.adjacency, touching)}
    for task, budget in rules.tasks.items():
        if naming := [charge for charge in touching if charge.task == task]:
            price[task] = _price(budget, rules.adjacency, naming)
    return price


def _price(budget: Filter, adjacency: Adjacency, charges: Sequence[Charge]) -> Cost:
    return budget.price(Composed(events=tuple(charge.event for charge in charges)), adjacency)


def _standing(budget: Filter, history: History, ledger: str) -> Cost:
    """Committed and held together: a hold counts in full."""
    total = budget.nothing
    for cost in (history.committed_in(ledger), history.held_in(ledger)):
        total = total if cost is None else total + cost
    return total


def _shortfalls(rules: Rules, regions: Sequence[_Region], prices: Sequence[Mapping[str, Cost]]) -> Iterator[_Shortfall]:
    ledgers = rules.ledgers
    for number, (region, price) in enumerate(zip(regions, prices, strict=True)):
        for history, datapoints in region.touched:
            for ledger, cost in price.items():
                total = _standing(ledgers[ledger], history, ledger) + cost
                if not ledgers[ledger].admits(total):
                    yield _Shortfall(number, history, datapoints, ledger, total)


def _reasons(rules: Rules, shortfalls: Sequence[_Shortfall]) -> Iterator[Reason]:
    for ledger, budget in rules.ledgers.items():
        those = [short for short in shortfalls if short.ledger == ledger]
        if those:
            worst = max(those, key=lambda short: budget.meter(short.total))
            yield Reason(
                code="budget.exceeded" if ledger == LIFELONG else "task_budget.exceeded",
                ledger=ledger,
                datapoints=sum(short.datapoints for short in those),
                epsilon=budget.meter(worst.total),
                budget=budget,
                explanation=budget.explain(worst.total),
            )


def _parts(
    cohorts: Cohorts,
    regions: Sequence[_Region],
    prices: Sequence[Mapping[str, Cost]],
    exhausted: Mapping[tuple[int, History], int],
) -> tuple[Part, ...]:
    parts = []
    for number, (region, price) in enumerate(zip(regions, prices, strict=True)):
        left_out = [history for history, _ in region.touched if (number, history) in exhausted]
        scope = region.scope - cohorts.members(region.scope, left_out) if left_out else region.scope
        if scope:
            touch = ",".join(map(str, region.charges)).encode()
            parts.append(Part(scope=FrozenBitMap(scope), touch=touch, spending=tuple(sorted(price.items()))))
    return tuple(parts)


def _advice(
    rules: Rules, charges: Sequence[Charge], regions: Sequence[_Region], exhausted: Mapping[tuple[int, History], int]
) -> Iterator[Advice]:
    """The nearest parameters that every touched datapoint could still afford, found by asking the gate."""

    ledgers = rules.ledgers
    standings = [
        {
            ledger: {_standing(budget, history, ledger) for history, _ in region.touched}
            for ledger, budget in ledgers.items()
        }
        for region in regions
    ]

    def instead(events: Sequence[Event]) -> bool:
        changed = [replace(charge, event=event) for charge, event in zip(charges, events, strict=True)]
        return all(
            ledgers[ledger].admits(total + cost)
            for standing, price in zip(standings, _prices(rules, changed, regions), strict=True)
            for ledger, cost in price.items()
            for total in standing[ledger]
        )

    def with_noise(factor: float) -> list[Event]:
        return [noisier(charge.event, factor) for charge in charges]

    with suppress(Unattainable):
        factor = float(rounded_up(least_noise_factor(lambda factor: instead(with_noise(factor))), digits=5))
        if instead(with_noise(factor)):
            yield Advice(
                kind="noise",
                message=f"Noise {factor:g} times as large (or ε divided by it) would be admitted.",
                events=tuple(with_noise(factor)),
            )
    if len(charges) == 1 and isinstance(event := charges[0].event, Repeated) and event.times > 1:
        inner = event.event
        times = most_times(lambda times: instead([Repeated(times=times, event=inner)]), most=event.times - 1)
        if times:
            yield Advice(
                kind="steps",
                message=f"{times:,} steps instead of {event.times:,} would be admitted.",
                events=(Repeated(times=times, event=inner),),
            )
    trimmed = sum(exhausted.values())
    if trimmed < sum(len(region.scope) for region in regions):
        yield Advice(
            kind="trim",
            message=f"Without the {trimmed:,} that have too little left, it would be admitted (on_exhausted = trim).",
            datapoints=trimmed,
        )
