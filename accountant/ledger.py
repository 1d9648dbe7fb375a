"""The ledger's rules: which releases are admitted, and what a life of holds, commits, voids and expiries adds up to.

A release is a list of charges, and a charge is an event on a scope. `propose` decides and changes nothing; `apply`
changes the ledger as an entry says and decides nothing. Entries are the truth: `replay` gives the same ledger from
them at any time, and prices every charge again when it is given the rules.

Every datapoint has a budget for life, and every task may have one of its own: a second filter, with its own state, over
the charges whose scope names that task. Both must admit. All charges of a release that meet in a datapoint are composed
first and priced once, because a release is sealed: its parameters are fixed before its first output. How it was priced,
by its curve or collapsed (`accountant.sealed`), is chosen when it is proposed and recorded in its hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias, assert_never

from pyroaring import BitMap, FrozenBitMap

from accountant import sealed
from accountant.calibration import least_noise_factor, most_times, noisier
from accountant.cohorts import Cohorts, Scope, Transition
from accountant.engines import VERSIONS
from accountant.errors import InvalidInput, Unattainable, UnknownRelease
from accountant.events import Adjacency, Composed, Event, Repeated, adjacency_of, event_of
from accountant.filters import Cost, Explanation, Filter
from accountant.guarantees import rounded_up
from accountant.histories import History, Spending
from accountant.sealed import Collapsed, Price
from accountant.units import Range, real

LIFELONG: Final = ""  # the name of the ledger over a datapoint's whole life; a task's own has the task's name
MAX_CHARGES: Final = 1_000
MAX_REGIONS: Final = 1_000  # disjoint sets into which the scopes of one release cut each other
MAX_NAME: Final = 200
_PROBES, _FEW_PROBES = 14, 3  # compositions per advice, of what is composed quickly and of what is not
_QUICK_NODES, _QUICK_LEAVES = 20, 50_000
_MOST_FACTOR: Final = 100.0  # by which noise would have to grow, beyond which composing is not tried
MAX_COMPOSED_NODES: Final = 200  # of all charges together; larger releases are charged by their curve
MAX_COLLAPSES: Final = 32  # different events that one release may come to; to compose each takes milliseconds

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
    ledgers: Ledgers = field(init=False, repr=False, compare=False)  # every budget by its ledger's name

    def __post_init__(self) -> None:
        object.__setattr__(self, "ledgers", MappingProxyType({LIFELONG: self.lifelong, **self.tasks}))
        adjacency_of(self.adjacency)
        if self.on_exhausted not in ("deny", "trim"):
            raise InvalidInput("on_exhausted", self.on_exhausted, "'deny' or 'trim'")
        if LIFELONG in self.tasks:
            raise InvalidInput("tasks", LIFELONG, "names that are not empty")
        for name, budget in self.ledgers.items():
            if not isinstance(budget, Filter):
                raise InvalidInput(f"tasks[{name!r}]" if name else "lifelong", budget, "a Filter")


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
    """Datapoints that the same charges of a release touch, and what that costs in each ledger.

    A ledger that is not among `collapsed` was charged by the curve.
    """

    scope: FrozenBitMap
    touch: bytes
    spending: Spending
    collapsed: tuple[tuple[str, Collapsed], ...] = ()


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
class Quote:
    """What these charges of a release together cost a ledger of the datapoints that they alone meet in, and how so."""

    charges: tuple[int, ...]
    ledger: str
    datapoints: int
    price: Price


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

    `epsilon_before` and `epsilon_after` are the highest readings of the lifelong meter among the datapoints that are
    touched, with open holds counted; they need not be those of the same datapoint. `quotes` are the prices that were
    compared with what is left, whatever came of it.
    """

    hold: Held | None
    quotes: tuple[Quote, ...]
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


def propose(
    ledger: Ledger, rules: Rules, *, release: str, charges: Sequence[Charge], delta: float | None = None
) -> Decision:
    """Decide on a release; nothing is changed until its hold is applied.

    How it is priced is up to `sealed.choose`: by its curve, or collapsed at the δ that `delta` declares (by default a
    share of what the budget has for it). With 0 there is only the curve, and likewise if the scopes cut the release
    into more than `MAX_COLLAPSES` different events.
    """
    if _named("release", release) in ledger.statuses:
        raise InvalidInput("release", release, "a name that no release had before")
    if not isinstance(charges, list | tuple) or not all(isinstance(charge, Charge) for charge in charges):
        raise InvalidInput("charges", charges, "a list of Charge")
    if not 1 <= len(charges) <= MAX_CHARGES:
        raise InvalidInput("charges", len(charges), f"1 to {MAX_CHARGES} charges")
    if delta is not None:
        most = float(rules.lifelong.delta_parts)
        delta = real(
            "delta", delta, Range(f"0 to {most:g}, the budget's share for it", lambda value: 0 <= value <= most)
        )
    cohorts = ledger.cohorts
    cut = [_Region(*region, cohorts.touched(region[1])) for region in regions(charges)]
    dues = list(_dues(rules, charges, cut))
    if (
        len({_composed(charges, due.charges) for due in dues}) > MAX_COLLAPSES
        or sum(charge.event.shape.nodes for charge in charges) > MAX_COMPOSED_NODES
    ):
        delta = 0.0
    prices = [
        sealed.choose(due.budget, _composed(charges, due.charges), rules.adjacency, due.standings, delta=delta)
        for due in dues
    ]
    shortfalls = list(_shortfalls(cut, dues, prices))
    exhausted = {(short.region, short.history): short.datapoints for short in shortfalls}
    datapoints, trimmed = sum(len(region.scope) for region in cut), sum(exhausted.values())

    reasons = tuple(_reasons(rules, shortfalls))
    denied = trimmed and (rules.on_exhausted == "deny" or trimmed == datapoints)
    parts = () if denied else _parts(cohorts, cut, dues, prices, exhausted)
    standings = {
        (total, price.cost)
        for due, price in zip(dues, prices, strict=True)
        if due.ledger == LIFELONG
        for total in _charged(cut[due.region], due, {} if denied else exhausted)
    }
    return Decision(
        hold=None if denied else Held(release=release, charges=tuple(charges), parts=parts),
        quotes=tuple(_quotes(cut, dues, prices)),
        reasons=reasons if denied else (),
        advice=tuple(_advice(rules, charges, cut, dues, exhausted, delta=delta)) if denied else (),
        datapoints=datapoints,
        trimmed=0 if denied else trimmed,
        epsilon_before=rules.lifelong.highest(total for total, _ in standings),
        epsilon_after=rules.lifelong.highest(total + cost for total, cost in standings),
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
    """The ledger that a log leads to.

    With the rules everything is decided again: a price that no proof gives, a datapoint that is not charged (under
    `trim`, somebody may be), and a hold that the gate would not have admitted are refused.
    """
    ledger = Ledger()
    for entry in entries:
        if rules is not None and isinstance(entry, Held):
            check(ledger, rules, entry)
        apply(ledger, entry)
    return ledger


def check(ledger: Ledger, rules: Rules, held: Held) -> None:
    """Refuse a hold that the gate would not have made of these charges, at this point of the log."""
    _check_prices(rules, held)
    _check_admission(ledger, rules, held)


def _check_prices(rules: Rules, held: Held) -> None:
    """Prices are those of the charges; which of the two proofs was charged is the log's to say."""
    for part in held.parts:
        touch = _touching(part, held)
        for number, charge in enumerate(held.charges):
            if not (part.scope.issubset if number in touch else part.scope.isdisjoint)(charge.scope):
                expected = f"datapoints that these charges of release {held.release!r} touch, and no others"
                raise InvalidInput("scope", part.touch, expected)
        collapsed, prices = dict(part.collapsed), {}
        for ledger, charges in _naming(rules, held.charges, touch):
            budget, event, collapse = (
                rules.ledgers[ledger],
                _composed(held.charges, charges),
                collapsed.pop(ledger, None),
            )
            if collapse is None:
                prices[ledger] = sealed.by_curve(budget, event, rules.adjacency).cost
            elif collapse.engine in VERSIONS and sealed.proves(event, collapse, rules.adjacency):
                prices[ledger] = sealed.by_collapse(budget, collapse, rules.adjacency).cost
            else:
                expected = f"an (ε, δ) that the engines prove of these charges of release {held.release!r}"
                raise InvalidInput("collapsed", str(collapse), expected)
        if (
            collapsed
            or len(part.collapsed) > len(dict(part.collapsed))
            or part.spending != tuple(sorted(prices.items()))
        ):
            raise InvalidInput("spending", part.touch, f"the price of these charges of release {held.release!r}")


def _check_admission(ledger: Ledger, rules: Rules, held: Held) -> None:
    """Everybody in the scopes is charged (under `trim`: or left out), once, and the gate admits it."""
    charged, scopes = BitMap(), BitMap().union(*(charge.scope for charge in held.charges))
    for part in held.parts:
        if not charged.isdisjoint(part.scope):
            raise InvalidInput("parts", part.touch, f"each datapoint of release {held.release!r} once")
        charged |= part.scope
        for history, _ in ledger.cohorts.touched(part.scope):
            for name, cost in part.spending:
                budget = rules.ledgers[name]
                if not budget.admits(standing(budget, history, name) + cost):
                    raise InvalidInput("hold", held.release, f"a hold that ledger {name!r} admits")
    if charged != scopes and not (rules.on_exhausted == "trim" and charged and charged.issubset(scopes)):
        raise InvalidInput("parts", held.release, f"all {len(scopes):,} datapoints that its charges touch")
    if charged != scopes:
        _check_trim(ledger, rules, held, charged)


def _check_trim(ledger: Ledger, rules: Rules, held: Held, charged: BitMap) -> None:
    """Whoever was left out could not afford it: some ledger refuses the price that the others paid.

    Where everybody with the same charges was left out, no price is known but the curve's, which also must be refused.
    """
    paid = {part.touch: part.spending for part in held.parts}
    for touch, scope in regions(held.charges):
        left_out = scope - charged
        if not left_out:
            continue
        spending = paid.get(",".join(map(str, touch)).encode()) or tuple(
            (name, sealed.by_curve(rules.ledgers[name], _composed(held.charges, charges), rules.adjacency).cost)
            for name, charges in _naming(rules, held.charges, touch)
        )
        for history, datapoints in ledger.cohorts.touched(left_out):
            if all(
                rules.ledgers[name].admits(standing(rules.ledgers[name], history, name) + cost)
                for name, cost in spending
            ):
                expected = f"nobody who can afford release {held.release!r} left out of it"
                raise InvalidInput("trimmed", datapoints, expected)


def _touching(part: Part, held: Held) -> tuple[int, ...]:
    """The numbers of the charges that a part says it is touched by."""
    with suppress(ValueError):
        touch = tuple(int(number) for number in part.touch.split(b","))
        if touch and all(0 <= number < len(held.charges) for number in touch):
            return touch
    raise InvalidInput("touch", part.touch, f"numbers of charges of release {held.release!r}, with commas between them")


class _Region(NamedTuple):
    """The datapoints that exactly these charges touch, and the histories that they have."""

    charges: tuple[int, ...]
    scope: BitMap
    touched: list[tuple[History, int]]


class _Due(NamedTuple):
    """What a region owes to one ledger: for which charges, and how each of its histories stands there already."""

    region: int
    ledger: str
    budget: Filter
    charges: tuple[int, ...]
    totals: list[Cost]  # in the order of the region's histories
    standings: Mapping[Cost, int]  # different totals, with the number of datapoints


class _Shortfall(NamedTuple):
    """Datapoints of a region with one history, for which a ledger refuses."""

    region: int
    history: History
    datapoints: int
    ledger: str
    total: Cost


def regions(charges: Sequence[Charge]) -> list[tuple[tuple[int, ...], BitMap]]:
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


def _naming(rules: Rules, charges: Sequence[Charge], touch: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The ledgers that these charges touch, and which of them count there."""
    yield LIFELONG, touch
    for task in sorted({task for number in touch if (task := charges[number].task) and task in rules.tasks}):
        yield task, tuple(number for number in touch if charges[number].task == task)


def _composed(charges: Sequence[Charge], numbers: tuple[int, ...]) -> Event:
    return Composed(events=tuple(charges[number].event for number in numbers))


def _dues(rules: Rules, charges: Sequence[Charge], regions: Sequence[_Region]) -> Iterator[_Due]:
    ledgers = rules.ledgers
    for number, region in enumerate(regions):
        for ledger, naming in _naming(rules, charges, region.charges):
            totals = [standing(ledgers[ledger], history, ledger) for history, _ in region.touched]
            standings = Counter[Cost]()
            for total, (_, datapoints) in zip(totals, region.touched, strict=True):
                standings[total] += datapoints
            yield _Due(number, ledger, ledgers[ledger], naming, totals, standings)


def standing(budget: Filter, history: History, ledger: str) -> Cost:
    """Committed and held together: a hold counts in full."""
    committed, held = history.committed_in(ledger), history.held_in(ledger)
    if committed is None or held is None:
        return committed or held or budget.nothing
    return committed + held


def _charged(region: _Region, due: _Due, exhausted: Mapping[tuple[int, History], int]) -> Iterable[Cost]:
    """How those stand who are not left out."""
    if not exhausted:
        return due.standings
    return {
        total
        for (history, _), total in zip(region.touched, due.totals, strict=True)
        if (due.region, history) not in exhausted
    }


def _shortfalls(regions: Sequence[_Region], dues: Sequence[_Due], prices: Sequence[Price]) -> Iterator[_Shortfall]:
    for due, price in zip(dues, prices, strict=True):
        admitted = due.budget.admitted(due.standings, price.cost)
        if len(admitted) == len(due.standings):
            continue
        refused = set(due.standings).difference(admitted)
        for (history, datapoints), total in zip(regions[due.region].touched, due.totals, strict=True):
            if total in refused:
                yield _Shortfall(due.region, history, datapoints, due.ledger, total + price.cost)


def _quotes(regions: Sequence[_Region], dues: Sequence[_Due], prices: Sequence[Price]) -> Iterator[Quote]:
    for due, price in zip(dues, prices, strict=True):
        datapoints = len(regions[due.region].scope)
        yield Quote(charges=due.charges, ledger=due.ledger, datapoints=datapoints, price=price)


def _reasons(rules: Rules, shortfalls: Sequence[_Shortfall]) -> Iterator[Reason]:
    if not shortfalls:
        return
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
    dues: Sequence[_Due],
    prices: Sequence[Price],
    exhausted: Mapping[tuple[int, History], int],
) -> tuple[Part, ...]:
    by_region: list[list[tuple[str, Price]]] = [[] for _ in regions]
    for due, price in zip(dues, prices, strict=True):
        by_region[due.region].append((due.ledger, price))
    parts = []
    for number, region in enumerate(regions):
        left_out = [history for history, _ in region.touched if (number, history) in exhausted]
        scope = region.scope - cohorts.members(region.scope, left_out) if left_out else region.scope
        if scope:
            priced = sorted(by_region[number], key=lambda entry: entry[0])
            parts.append(
                Part(
                    scope=FrozenBitMap(scope),
                    touch=",".join(map(str, region.charges)).encode(),
                    spending=tuple((ledger, price.cost) for ledger, price in priced),
                    collapsed=tuple((ledger, price.collapsed) for ledger, price in priced if price.collapsed),
                )
            )
    return tuple(parts)


def _advice(
    rules: Rules,
    charges: Sequence[Charge],
    regions: Sequence[_Region],
    dues: Sequence[_Due],
    exhausted: Mapping[tuple[int, History], int],
    *,
    delta: float | None,
) -> Iterator[Advice]:
    """Parameters near those proposed that every touched datapoint could still afford, found by asking the gate.

    Prices by curves are cheap, and searched to the end. Composing is not: a few probes look for something nearer.
    """

    def instead(events: Sequence[Event], *, delta: float | None) -> bool:
        changed = [replace(charge, event=event) for charge, event in zip(charges, events, strict=True)]
        return all(
            sealed.admits(due.budget, _composed(changed, due.charges), rules.adjacency, due.standings, delta=delta)
            for due in dues
        )

    def with_noise(factor: float) -> list[Event]:
        return [noisier(charge.event, factor) for charge in charges]

    def with_steps(times: int) -> list[Event]:
        return [Repeated(times=times, event=inner)]

    is_quick = len(dues) * sum(charge.event.shape.nodes for charge in charges) <= _QUICK_NODES and all(
        charge.event.shape.leaves <= _QUICK_LEAVES for charge in charges
    )
    probes = 0 if delta == 0 else _PROBES if is_quick else _FEW_PROBES
    factor = math.inf
    with suppress(Unattainable):
        factor = least_noise_factor(lambda factor: instead(with_noise(factor), delta=0.0))
    low, high = 1.0, min(factor, _MOST_FACTOR)
    for _ in range(probes):
        middle = float(rounded_up(math.sqrt(low * high), digits=5))
        if not low < middle < high:
            break
        if instead(with_noise(middle), delta=delta):
            factor = high = middle
        else:
            low = middle
    if factor < math.inf:
        factor = float(rounded_up(factor, digits=5))
        if instead(with_noise(factor), delta=delta):
            yield Advice(
                kind="noise",
                message=f"Noise {factor:g} times as large (or ε divided by it) would be admitted.",
                events=tuple(with_noise(factor)),
            )
    if len(charges) == 1 and isinstance(event := charges[0].event, Repeated) and event.times > 1:
        inner = event.event
        times = most_times(lambda times: instead(with_steps(times), delta=0.0), most=event.times - 1)
        least, most = times, event.times
        for _ in range(probes):
            middle = math.isqrt(max(1, least) * most)
            if not least < middle < most:
                break
            if instead(with_steps(middle), delta=delta):
                times = least = middle
            else:
                most = middle
        if times:
            yield Advice(
                kind="steps",
                message=f"{times:,} steps instead of {event.times:,} would be admitted.",
                events=tuple(with_steps(times)),
            )
    trimmed = sum(exhausted.values())
    if trimmed < sum(len(region.scope) for region in regions):
        yield Advice(
            kind="trim",
            message=f"Without the {trimmed:,} that have too little left, it would be admitted (on_exhausted = trim).",
            datapoints=trimmed,
        )
