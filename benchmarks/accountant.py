"""The accountant beside its peers: the gate, curves, calibration, and the cohorts of `benchmarks.cohorts`.

Whatever a ratio compares is measured in the same run. A missed target is said, and is not an error: a busy
machine proves nothing.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any, Final

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from pyroaring import BitMap

from accountant.calibration import calibrate_noise_multiplier, calibrate_steps, dp_sgd, most_times
from accountant.cohorts import Cohorts
from accountant.engines import rdp
from accountant.events import Event
from accountant.filters import ORDERS, Cost, Filter, Preset
from accountant.histories import History
from benchmarks import cohorts as splits
from benchmarks.measure import at_least, at_most, duration, medians, times

Q: Final = 0.01
STEPS: Final = 100
DELTA: Final = 1e-5
BUDGET: Final = Filter.of(epsilon=8.0, delta=DELTA)

LENGTHS: Final = (50, 500, 5000)  # releases in a history
RECOMPOSED: Final = 50  # releases that the peer composes
PEER_SECONDS: Final = 90.0
DATAPOINTS: Final = 10**6
COHORTS: Final = 10
PROPOSED: Final = "proposed"

GATE_TARGET: Final = 1000
GATE_GROWTH: Final = 1.5  # what still counts as flat
CURVE_TARGET: Final = 20

ORDER_SETS: Final[dict[str, rdp.Orders]] = {
    "the gate's": ORDERS,
    "account's": rdp.ORDERS,
    "dp-accounting's default": tuple(map(float, DEFAULT_RDP_ORDERS)),
}
_UNSEEN: Final = count(1)


def main() -> None:
    """Print a table per question, and the targets at the end."""
    started = perf_counter()
    verdicts = [*gate(), *curves()]
    calibration()
    adaptivity()
    print("\nCOHORT SPLITS")
    splits.main()
    print("\nTARGETS", *verdicts, sep="\n")
    print(f"\nMeasured in {duration(perf_counter() - started)}.")


def release(number: int) -> Event:
    """The release with this number in every history: no two are alike."""
    return dp_sgd(noise_multiplier=1 + 0.02 * number, sampling_probability=Q, steps=STEPS)


def newcomer() -> Event:
    """A release that no cache has seen; all of them cost the same work."""
    return dp_sgd(noise_multiplier=2 + 1e-6 * next(_UNSEEN), sampling_probability=Q, steps=STEPS)


# The gate


def gate() -> Iterator[str]:
    """One more release onto a history, beside composing 50 releases anew."""
    row = "{:<34}{:>9}{:>12}{:>14}{:>14}"
    print(f"\nTHE GATE: one more release (DP-SGD, q = {Q}, {STEPS} steps) onto a history of distinct ones")
    peers = {error: recomposition(error, repeats) for error, repeats in ((0.1, 3), (0.01, 1))}
    for error, peer in peers.items():
        time = duration(peer) if peer else f"over {duration(PEER_SECONDS)} (stopped)"
        print(f"prv-accountant composes {RECOMPOSED} from scratch at eps_error = {error}: {time}")
    print(row.format("decision", "history", "time", "prv 0.1", "prv 0.01"))
    taken = decisions()
    for (what, length), seconds in taken.items():
        ratios = [times(peer / seconds) if peer else f"> {times(PEER_SECONDS / seconds)}" for peer in peers.values()]
        print(row.format(what, f"{length:,}", duration(seconds), *ratios), flush=True)
    ways = list(dict.fromkeys(what for what, _ in taken))
    for what in ways:
        slowest = max(taken[what, length] for length in LENGTHS)
        ratio = (peers[0.1] or PEER_SECONDS) / slowest
        yield at_least(f"gate, {what}: time of prv-accountant (0.1) : ours", ratio, GATE_TARGET)
    for what in ways:
        growth = taken[what, LENGTHS[-1]] / taken[what, LENGTHS[0]]
        yield at_most(f"gate, {what}: history of {LENGTHS[-1]:,} : {LENGTHS[0]}", growth, GATE_GROWTH)


def decisions() -> dict[tuple[str, int], float]:
    """Seconds per way to decide and length of the history."""
    prices = [BUDGET.price(release(number), "add_remove") for number in range(max(LENGTHS))]
    known = newcomer()
    # From the middle of one cohort to the end: one cohort is split, the others in the scope are renamed.
    scope = BitMap(range(DATAPOINTS // COHORTS * 5 // 2, DATAPOINTS))
    populations = {length: population(prices[:length]) for length in LENGTHS}
    ways: dict[tuple[str, int], Callable[[], None]] = {}
    for length in LENGTHS:
        used = sum(prices[1:length], start=prices[0])
        ways["stored sum, price not cached", length] = partial(decide, used, newcomer)
        ways["stored sum, price cached", length] = partial(decide, used, lambda: known)
    for length, cohorts in populations.items():
        ways["hold on cohorts, price not cached", length] = partial(hold, cohorts, scope, newcomer)
        ways["hold on cohorts, price cached", length] = partial(hold, cohorts, scope, lambda: known)

    def void() -> None:
        for cohorts in populations.values():
            cohorts.resolve(PROPOSED, lambda history: history.void(PROPOSED))

    taken = medians(ways, repeats=200, reset=void)
    return {(what, length): taken[what, length] for what, _ in ways for length in LENGTHS}


def decide(used: Cost, proposal: Callable[[], Event]) -> None:
    """Price the release, add it to the sum, compare."""
    assert BUDGET.admits(used + BUDGET.price(proposal(), "add_remove"))


def hold(cohorts: Cohorts, scope: BitMap, proposal: Callable[[], Event]) -> None:
    """Price the release, compare in every cohort that it touches, and charge it."""
    price = BUDGET.price(proposal(), "add_remove")
    for history, _ in cohorts.touched(scope):
        assert BUDGET.admits(used_by(history) + price)
    spending, touch = (("", price),), str(next(_UNSEEN)).encode()
    cohorts.charge(scope, lambda history: history.hold(PROPOSED, spending, touch))


def used_by(history: History) -> Cost:
    """What is committed and held together."""
    committed, held = history.committed_in("") or BUDGET.nothing, history.held_in("")
    return committed + held if held else committed


def population(prices: Sequence[Cost]) -> Cohorts:
    """Everyone has a release per price, except that the first ones reach fewer and fewer, which makes cohorts."""
    cohorts = Cohorts(DATAPOINTS)
    for number, price in enumerate(prices):
        first = DATAPOINTS // COHORTS * number if number < COHORTS else 0
        name, spending = str(number), (("", price),)
        cohorts.charge(
            BitMap(range(first, DATAPOINTS)), partial(History.hold, release=name, spending=spending, touch=b"")
        )
        cohorts.resolve(name, partial(History.commit, release=name))
    assert len(cohorts) == COHORTS
    return cohorts


def recomposition(eps_error: float, repeats: int) -> float | None:
    """Seconds that prv-accountant takes in a process of its own; None if it had to be stopped."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            return pool.apply_async(recompose, [eps_error, repeats]).get(timeout=PEER_SECONDS)
        except multiprocessing.TimeoutError:
            return None


def recompose(eps_error: float, repeats: int) -> float:
    """Seconds to compose the history of 50 from scratch, the median after a warm-up on one release."""
    seconds = []
    for length in (1, *[RECOMPOSED] * repeats):
        start = perf_counter()
        counts = [STEPS] * length
        PRVAccountant(
            prvs=[
                PoissonSubsampledGaussianMechanism(sampling_probability=Q, noise_multiplier=1 + 0.02 * number)
                for number in range(length)
            ],
            max_self_compositions=counts,
            eps_error=eps_error,
            delta_error=DELTA / 1000,
        ).compute_epsilon(delta=DELTA, num_self_compositions=counts)
        seconds.append(perf_counter() - start)
    return median(seconds[1:])


# Curves


def curves() -> Iterator[str]:
    """The Rényi curve of one DP-SGD event, beside dp-accounting on the same orders."""
    row = "{:<34}{:>9}{:>12}{:>16}{:>9}"
    print("\nCURVES: Rényi curve of one DP-SGD event, a new one every time")
    print(row.format("orders", "orders", "time", "dp-accounting", "ratio"))
    for name, orders in ORDER_SETS.items():
        taken = curve_times(orders)
        ratio = taken["peer"] / taken["ours"]
        figures = duration(taken["ours"]), duration(taken["peer"]), times(ratio)
        print(row.format(name, len(orders), *figures), flush=True)
        yield at_least(f"curve on {name} orders: time of dp-accounting : ours", ratio, CURVE_TARGET)


def curve_times(orders: rdp.Orders) -> dict[str, float]:
    """Seconds for ours and the peer's; making the events is not counted."""
    repeats, calls = 20, 5
    amount = (repeats + 1) * calls
    events = iter([newcomer() for _ in range(amount)])
    peer_events = iter([peer_dp_sgd(2 + 1e-6 * next(_UNSEEN), steps=STEPS) for _ in range(amount)])
    return medians(
        {
            "ours": lambda: rdp.curve(next(events), orders, "add_remove"),
            "peer": lambda: RdpAccountant(orders).compose(next(peer_events)),
        },
        repeats=repeats,
        calls=calls,
    )


def peer_dp_sgd(noise_multiplier: float, *, steps: int) -> Any:
    """DP-SGD as dp-accounting says it."""
    step = dp_accounting.PoissonSampledDpEvent(Q, dp_accounting.GaussianDpEvent(noise_multiplier))
    return dp_accounting.SelfComposedDpEvent(step, steps)


# For information


def calibration() -> None:
    """The least noise for a target, beside dp-accounting."""
    epsilon, steps = 1.0, 1000
    answers: dict[str, float] = {}

    def ours() -> None:
        # A sampling probability that no cache has seen; the answer does not change in the digits that are printed.
        answers["Stint"] = calibrate_noise_multiplier(
            epsilon=epsilon, delta=DELTA, sampling_probability=Q + 1e-12 * next(_UNSEEN), steps=steps
        )

    def peer() -> None:
        answers["dp-accounting, RDP"] = dp_accounting.calibrate_dp_mechanism(
            RdpAccountant, partial(peer_dp_sgd, steps=steps), target_epsilon=epsilon, target_delta=DELTA
        )

    row = "{:<34}{:>12}{:>18}{:>9}"
    print(f"\nCALIBRATION: least noise multiplier for ε = {epsilon:g}, δ = {DELTA:g}, q = {Q}, {steps:,} steps")
    print(row.format("", "time", "noise multiplier", "ratio"))
    taken = medians({"Stint": ours, "dp-accounting, RDP": peer}, repeats=5)
    for name, seconds in taken.items():
        print(row.format(name, duration(seconds), f"{answers[name]:.6f}", times(seconds / taken["Stint"])))


def adaptivity() -> None:
    """How many DP-SGD steps a budget admits when each is chosen after the last, and when all are fixed beforehand."""
    row = "{:>4}{:>14}{:>17}{:>13}{:>13}{:>14}{:>17}"
    print(f"\nADAPTIVITY: DP-SGD steps (noise multiplier 1, q = {Q}) within (ε, {DELTA:g})")
    print(row.format("ε", "gate, mixed", "gate, gaussian", "plan, Stint", "plan, PLD", "mixed : PLD", "gaussian : PLD"))
    for epsilon in (8.0, 3.0, 1.0):
        mixed, gaussian = admitted(epsilon, "mixed"), admitted(epsilon, "gaussian")
        plan = calibrate_steps(epsilon=epsilon, delta=DELTA, noise_multiplier=1.0, sampling_probability=Q)
        peer = dp_accounting.calibrate_dp_mechanism(
            PLDAccountant,
            lambda steps: peer_dp_sgd(1.0, steps=steps),
            target_epsilon=epsilon,
            target_delta=DELTA,
            bracket_interval=dp_accounting.LowerEndpointAndGuess(1, 2 * plan + 2),
            discrete=True,
        )
        counts = [f"{steps:,}" for steps in (mixed, gaussian, plan, peer)]
        print(row.format(f"{epsilon:g}", *counts, f"{mixed / peer:.2f}", f"{gaussian / peer:.2f}"), flush=True)


def admitted(epsilon: float, preset: Preset) -> int:
    """How many steps the gate admits, each a release of its own."""
    budget = Filter.of(epsilon=epsilon, delta=DELTA, preset=preset)
    price = budget.price(dp_sgd(noise_multiplier=1.0, sampling_probability=Q), "add_remove")
    return most_times(lambda times: budget.admits(price * times))
