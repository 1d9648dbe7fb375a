"""Tight composition beside its peers: many releases from scratch, calibration, and how both grow.

Ours runs with empty caches, right before and right after each turn of a peer, and a ratio compares the peer's turn
with those two, so that a busy machine slows both sides. Peers run in a process of their own, one at a time and after
an uncounted warm-up, and can be stopped. A missed target is said, and is not an error.
"""

import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from multiprocessing.pool import Pool
from statistics import fmean, median
from time import perf_counter
from typing import Any, Final, NamedTuple, Self, TypeAlias
from warnings import simplefilter

import dp_accounting
from dp_accounting import PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

from accountant.calibration import calibrate_noise_multiplier, dp_sgd
from accountant.engines import prv
from accountant.events import Composed, Event
from accountant.reports import Report, Sketch
from benchmarks.measure import at_least, duration, medians, times

Q: Final = 0.01
STEPS: Final = 100
DELTA: Final = 1e-5
DELTA_ERROR: Final = DELTA / 1000  # of the two PRV accountants; what Opacus chooses

COMPARED, LONG = 50, 200  # releases
ROUNDS: Final = {1: 5, 10: 2, COMPARED: 2, LONG: 1}
COMPOSE_TARGET: Final = 20
FINER_BY: Final = 16  # of the precision: a quarter of the mesh
CALIBRATE_TARGET: Final = 10
ONE_MORE_SECONDS, SKETCH_SECONDS = 2e-3, 50e-6

ALL_SECONDS: Final = 360.0  # no peer starts or goes on after that
TURN_SECONDS: Final = 120.0
REPEATABLE_SECONDS: Final = 15.0  # what takes longer has one turn
QUICK_SECONDS: Final = 3.0  # what takes longer leaves a growth curve
CURVE_SECONDS: Final = 10.0


class Run(NamedTuple):
    """One DP-SGD release with sampling probability `Q`."""

    noise_multiplier: float
    steps: int


class Bounds(NamedTuple):
    """What is known of an ε; a lower end of 0 says nothing."""

    lower: float
    upper: float


class Goal(NamedTuple):
    """What a noise multiplier is wanted for."""

    epsilon: float
    delta: float
    sampling_probability: float
    steps: int


Plan: TypeAlias = tuple[Run, ...]
ONE: Final[Plan] = (Run(1.0, STEPS),)
GOALS: Final = (Goal(1.0, 1e-5, 0.01, 1000), Goal(3.0, 1e-5, 0.001, 10_000), Goal(8.0, 1e-6, 0.05, 2000))


def main() -> None:
    """Print a table per question, and the targets at the end."""
    started = perf_counter()
    with Ring(until=started + ALL_SECONDS) as ring:
        print(f"\nFROM SCRATCH: ε of n distinct DP-SGD releases (q = {Q}, {STEPS} steps each) at δ = {DELTA:g}")
        print("error: upper − lower, where both are given; excess: upper − our lower, which is at least upper − truth")
        verdicts = [line for length in (1, 10, COMPARED) for line in from_scratch(ring, length)]
        verdicts += calibration(ring)
        verdicts += one_more()
        growth(ring, "steps of one release", [(10**power, (Run(1.0, 10**power),)) for power in range(7)])
        growth(ring, "distinct releases", [(length, distinct(length)) for length in (1, 2, 5, 10, 20, 50, 100, 200)])
        print("\nFROM SCRATCH, longer, as far as the time suffices")
        list(from_scratch(ring, LONG))
    print("\nTARGETS", *verdicts, sep="\n")
    print(f"\nMeasured in {duration(perf_counter() - started)}.")


def distinct(length: int) -> Plan:
    """So many releases, no two alike."""
    return tuple(Run(1 + 0.02 * number, STEPS) for number in range(length))


# Ours


def event_of(plan: Plan) -> Event:
    """The plan as one event."""
    return Composed(
        events=tuple(
            dp_sgd(noise_multiplier=run.noise_multiplier, sampling_probability=Q, steps=run.steps) for run in plan
        )
    )


def our_upper(plan: Plan) -> Bounds:
    """The upper bound alone."""
    return Bounds(0.0, prv.upper_bound(event_of(plan), delta=DELTA, adjacency="add_remove"))


def our_finer_upper(plan: Plan) -> Bounds:
    """The upper bound on a finer mesh, to be no looser than dp-accounting's on its own."""
    finer = prv.PRECISION / FINER_BY
    return Bounds(0.0, prv.upper_bound(event_of(plan), delta=DELTA, adjacency="add_remove", precision=finer))


def our_bracket(plan: Plan) -> Bounds:
    """Both bounds."""
    found = prv.bracket(event_of(plan), delta=DELTA, adjacency="add_remove")
    return Bounds(found.lower, found.upper)


def our_noise(goal: Goal) -> float:
    """The least noise multiplier that reaches the goal."""
    return calibrate_noise_multiplier(**goal._asdict())


def forget() -> None:
    """Empty every cache of the accountant."""
    for name, module in list(sys.modules.items()):
        if name.split(".", 1)[0] == "accountant":
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


# Peers


def with_prv_accountant(plan: Plan, eps_error: float) -> Bounds:
    """Microsoft's accountant: estimate ± `eps_error`, at δ ± `DELTA_ERROR`."""
    counts = [run.steps for run in plan]
    lower, _, upper = PRVAccountant(
        prvs=[
            PoissonSubsampledGaussianMechanism(sampling_probability=Q, noise_multiplier=run.noise_multiplier)
            for run in plan
        ],
        max_self_compositions=counts,
        eps_error=eps_error,
        delta_error=DELTA_ERROR,
    ).compute_epsilon(delta=DELTA, num_self_compositions=counts)
    return Bounds(float(lower), float(upper))


def with_pld(plan: Plan) -> Bounds:
    """Google's accountant, with its own mesh of 1e-4; it gives an upper bound only."""
    peer = PLDAccountant()
    for run in plan:
        step = dp_accounting.PoissonSampledDpEvent(Q, dp_accounting.GaussianDpEvent(run.noise_multiplier))
        peer.compose(step, run.steps)
    return Bounds(0.0, float(peer.get_epsilon(DELTA)))


def with_opacus(plan: Plan) -> Bounds:
    """Opacus' PRV accountant; it gives an upper bound only."""
    from opacus.accountants import PRVAccountant as OpacusAccountant  # noqa: PLC0415 - may be missing

    peer = OpacusAccountant()
    peer.history = [(run.noise_multiplier, Q, run.steps) for run in plan]
    return Bounds(0.0, float(peer.get_epsilon(DELTA, eps_error=0.01, delta_error=DELTA_ERROR)))


def opacus_noise(goal: Goal) -> float:
    """Opacus' noise multiplier for the goal, with its default tolerance of 0.01."""
    from opacus.accountants.utils import get_noise_multiplier  # noqa: PLC0415 - may be missing

    return float(
        get_noise_multiplier(
            target_epsilon=goal.epsilon,
            target_delta=goal.delta,
            sample_rate=goal.sampling_probability,
            steps=goal.steps,
            accountant="prv",
        )
    )


COARSE, FINE, PLD, OPACUS = "prv-accountant 0.1", "prv-accountant 0.01", "dp-accounting PLD", "Opacus PRV 0.01"
PEERS: Final[Mapping[str, Callable[[Plan], Bounds]]] = {
    COARSE: lambda plan: with_prv_accountant(plan, 0.1),
    FINE: lambda plan: with_prv_accountant(plan, 0.01),
    PLD: with_pld,
    OPACUS: with_opacus,
}
OPACUS_NOISE: Final = "Opacus"


class Turn(NamedTuple):
    """How long an answer took."""

    seconds: float
    answer: Any


Outcome: TypeAlias = Turn | str  # or why there is no answer


def peer_turn(name: str, question: Any) -> Outcome:
    """What a peer answers; runs in the peers' process."""
    try:
        _warm_up(name)
        return timed(opacus_noise if name == OPACUS_NOISE else PEERS[name], question)
    except ImportError as problem:
        return f"not installed: {problem.name}"
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as problem:
        return f"failed: {type(problem).__name__}"


@cache
def _warm_up(name: str) -> None:
    if name == OPACUS_NOISE:
        opacus_noise(GOALS[0])
    else:
        PEERS[name](ONE)


def timed(action: Callable[[Any], Any], question: Any) -> Turn:
    """One call."""
    start = perf_counter()
    answer = action(question)
    return Turn(perf_counter() - start, answer)


@dataclass(kw_only=True)
class Ring:
    """Where peers run: a process that is replaced when a turn had to be stopped."""

    until: float
    _pool: Pool | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def turn(self, name: str, question: Any, *, most_seconds: float) -> Outcome:
        """What the peer answers, or why it does not."""
        seconds = min(most_seconds, self.until - perf_counter())
        if seconds < 1:
            return "not run: no time left"
        if self._pool is None:
            self._pool = multiprocessing.get_context("spawn").Pool(1, simplefilter, ("ignore",))
        try:
            return self._pool.apply_async(peer_turn, (name, question)).get(timeout=seconds)
        except multiprocessing.TimeoutError:
            self._stop()
            return f"stopped after {duration(seconds)}"

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
            self._pool = None


class Contest:
    """Turns of ours and of peers, one after the other."""

    def __init__(self, ours: Mapping[str, Callable[[Any], Any]], question: Any) -> None:
        self.ours, self.question = ours, question
        self.turns: dict[str, list[Turn]] = {name: [] for name in ours}
        self.ratios: dict[str, dict[str, list[float]]] = {}
        self.excuses: dict[str, str] = {}
        self.our_turn()

    def our_turn(self) -> None:
        """One turn of each of ours, with empty caches."""
        for name, action in self.ours.items():
            forget()
            self.turns[name].append(timed(action, self.question))

    def against(self, ring: Ring, peer: str, *, most_seconds: float) -> None:
        """A turn of the peer between two of ours."""
        outcome = ring.turn(peer, self.question, most_seconds=most_seconds)
        self.our_turn()
        if isinstance(outcome, str):
            self.excuses[peer] = outcome
            return
        self.turns.setdefault(peer, []).append(outcome)
        for name in self.ours:
            around = fmean(turn.seconds for turn in self.turns[name][-2:])
            self.ratios.setdefault(peer, {}).setdefault(name, []).append(outcome.seconds / around)

    def seconds(self, name: str) -> float:
        """The median turn."""
        return median(turn.seconds for turn in self.turns[name])

    def answer(self, name: str) -> Any:
        """The last answer; all of them are the same."""
        return self.turns[name][-1].answer

    def ratio(self, peer: str, ours: str) -> float:
        """How many times longer the peer takes."""
        return median(self.ratios[peer][ours])


def contest(
    ring: Ring,
    ours: Mapping[str, Callable[[Any], Any]],
    question: Any,
    peers: Sequence[str],
    *,
    rounds: int,
    most_seconds: float,
) -> Contest:
    """So many rounds, except that a peer that has no answer or is slow has only one turn."""
    timed(next(iter(ours.values())), question)
    result = Contest(ours, question)
    for _ in range(rounds):
        for peer in peers:
            slow = peer in result.turns and result.seconds(peer) > REPEATABLE_SECONDS
            if peer not in result.excuses and not slow:
                result.against(ring, peer, most_seconds=most_seconds)
    return result


# From scratch

UPPER, BRACKET, FINER = "Stint, upper", "Stint, bracket", "Stint, finer upper"
OURS: Final = {UPPER: our_upper, BRACKET: our_bracket}
ALL_OURS: Final = {**OURS, FINER: our_finer_upper}


def from_scratch(ring: Ring, length: int) -> Iterator[str]:
    """The ε of so many distinct releases with nothing known beforehand."""
    row = "{:>4}  {:<22}{:>10}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}"
    print(row.format("n", "", "time", ": upper", ": bracket", ": finer", "ε, upper", "error", "excess"))
    peers = list(PEERS) if length <= COMPARED else [PLD, COARSE]  # the others take minutes
    result = contest(ring, ALL_OURS, distinct(length), peers, rounds=ROUNDS[length], most_seconds=TURN_SECONDS)
    least = result.answer(BRACKET).lower
    for name in (*ALL_OURS, *peers):
        if name in result.excuses:
            print(f"{length:>4}  {name:<22}  {result.excuses[name]}")
            continue
        ratios = [times(result.ratio(name, ours)) if name in peers else "" for ours in ALL_OURS]
        lower, upper = result.answer(name)
        figures = f"{upper:.6f}", f"{upper - lower:.6f}" if lower else "", f"{upper - least:.6f}"
        print(row.format(length, name, duration(result.seconds(name)), *ratios, *figures), flush=True)
    if length == COMPARED:
        for peer in peers:
            yield from compose_verdicts(result, peer)


def compose_verdicts(result: Contest, peer: str) -> Iterator[str]:
    """Whether ours is as much faster as it should be, by every way that is no looser than the peer."""
    if peer in result.excuses:
        yield f"unknown {COMPARED} releases beside {peer}: {result.excuses[peer]}"
        return
    for ours in ALL_OURS:
        looser = result.answer(ours).upper - result.answer(peer).upper
        what = f"{COMPARED} releases: time of {peer} : {ours}"
        if looser <= 0:
            yield at_least(f"{what}, no looser", result.ratio(peer, ours), COMPOSE_TARGET)
        else:
            yield f"{'-':<7} {what}: {times(result.ratio(peer, ours))}, looser by {looser:.1e}, so not compared"


# Calibration


def calibration(ring: Ring) -> Iterator[str]:
    """The least noise for a goal; the ε that either answer really has is checked with our bracket."""
    row = "  {:<12}{:>10}{:>9}{:>18}{:>24}"
    print("\nCALIBRATION: least noise multiplier for a goal, and the ε that it really has")
    print(row.format("", "time", "ratio", "noise multiplier", "ε"))
    ours = "Stint"
    for goal in GOALS:
        what = f"ε = {goal.epsilon:g}, δ = {goal.delta:g}, q = {goal.sampling_probability:g}, {goal.steps:,} steps"
        print(what)
        result = contest(ring, {ours: our_noise}, goal, [OPACUS_NOISE], rounds=2, most_seconds=TURN_SECONDS)
        if OPACUS_NOISE in result.excuses:
            yield f"unknown calibration to {what}: Opacus {result.excuses[OPACUS_NOISE]}"
        else:
            ratio = result.ratio(OPACUS_NOISE, ours)
            yield at_least(f"calibration to {what}: time of Opacus : ours", ratio, CALIBRATE_TARGET)
            less = result.answer(ours) <= result.answer(OPACUS_NOISE)
            yield f"{'met' if less else 'missed':<7} calibration to {what}: no more noise than Opacus"
        for name in (ours, OPACUS_NOISE):
            if name in result.excuses:
                print(f"  {name:<12}  {result.excuses[name]}")
                continue
            noise = result.answer(name)
            reached = attained(goal, noise)
            figures = times(result.ratio(name, ours)) if name != ours else "", f"{noise:.6f}"
            truth = f"{reached.lower:.5f} to {reached.upper:.5f}"
            print(row.format(name, duration(result.seconds(name)), *figures, truth), flush=True)


def attained(goal: Goal, noise: float) -> Bounds:
    """Between which bounds the ε of this noise lies."""
    event = dp_sgd(noise_multiplier=noise, sampling_probability=goal.sampling_probability, steps=goal.steps)
    found = prv.bracket(event, delta=goal.delta, adjacency="add_remove")
    return Bounds(found.lower, found.upper)


# Growth


def one_more() -> Iterator[str]:
    """One more release onto a history of 50, where what went before is kept by either side."""
    history = Report.of(event_of(distinct(COMPARED)), delta=DELTA)
    sketch = history.history
    assert isinstance(sketch, Sketch)
    known, budget = event_of(ONE), 3.0
    fresh = (event_of((Run(2 + 0.001 * number, STEPS),)) for number in count())
    pld, rdp = PLDAccountant(), RdpAccountant()
    for accountant in (pld, rdp):
        for run in distinct(COMPARED):
            accountant.compose(peer_event(run))

    def theirs(accountant: PrivacyAccountant) -> float:
        longer = deepcopy(accountant)
        return float(longer.compose(peer_event(ONE[0])).get_epsilon(DELTA))

    seen, at_budget = "ε, a mechanism seen before", f"δ at ε = {budget:g}, seen before"
    taken = medians(
        {
            seen: lambda: history.plus(known).epsilon,
            "ε, a new mechanism": lambda: history.plus(next(fresh)).epsilon,
            "dp-accounting PLD": lambda: theirs(pld),
            "dp-accounting RDP": lambda: theirs(rdp),
        },
        repeats=9,
    )
    taken |= medians({at_budget: lambda: sketch.plus(known, "add_remove").delta(budget)}, repeats=9, calls=200)
    frequencies = sketch.law.kept
    print(f"\nONE MORE RELEASE onto a history of {COMPARED}, kept as a sketch of 2 × {frequencies} frequencies")
    for name, seconds in taken.items():
        print(f"{name:<32}{duration(seconds):>10}")
    ours, quick = taken[seen], taken[at_budget]
    for what, seconds, target in (("ε", ours, ONE_MORE_SECONDS), ("δ by a sketch", quick, SKETCH_SECONDS)):
        verdict = "met" if seconds <= target else "missed"
        yield f"{verdict:<7} one more release, {what}: {duration(seconds)}, target {duration(target)}"
    yield at_least("one more release beside dp-accounting PLD", taken["dp-accounting PLD"] / ours, COMPOSE_TARGET)


def peer_event(run: Run) -> dp_accounting.DpEvent:
    """A release in the terms of dp-accounting."""
    step = dp_accounting.PoissonSampledDpEvent(Q, dp_accounting.GaussianDpEvent(run.noise_multiplier))
    return dp_accounting.SelfComposedDpEvent(step, run.steps)


def growth(ring: Ring, what: str, plans: Sequence[tuple[int, Plan]]) -> None:
    """How the time grows; a peer that took some seconds is not asked for more."""
    row = "{:>10}{:>12}{:>12}{:>12}{:>12}" + "{:>23}" * len(PEERS)
    print(f"\nGROWTH with the number of {what}, from scratch (-: not asked, having taken {QUICK_SECONDS:g} s before)")
    print(row.format("number", "upper", "bracket", "ε, upper", "error", *PEERS))
    quick = dict.fromkeys(PEERS, True)
    for number, plan in plans:
        asked = [peer for peer in PEERS if quick[peer]]
        result = contest(ring, OURS, plan, asked, rounds=1, most_seconds=CURVE_SECONDS)
        cells = []
        for peer in PEERS:
            known = peer in result.turns
            quick[peer] = known and result.seconds(peer) <= QUICK_SECONDS
            cells.append(duration(result.seconds(peer)) if known else result.excuses.get(peer, "-"))
        lower, upper = result.answer(BRACKET)
        error = f"{upper - lower:.5f}" if math.isfinite(upper) else "none"
        print(
            row.format(
                f"{number:,}",
                duration(result.seconds(UPPER)),
                duration(result.seconds(BRACKET)),
                f"{upper:.5f}",
                error,
                *cells,
            ),
            flush=True,
        )
