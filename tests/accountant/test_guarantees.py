"""What a promise means: the odds are those of the best attacker, computed another way here."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.errors import InvalidInput
from accountant.guarantees import Guarantee, rounded_up

PROMISE: dict[str, Any] = {"unit": "user", "adjacency": "add_remove", "proof_status": "proved"}
epsilons = st.floats(0, 30)
deltas = st.one_of(st.just(0.0), st.floats(1e-12, 0.5))
rates = st.floats(0, 1)


def guarantee(epsilon: float, delta: float, **changes: Any) -> Guarantee:
    return Guarantee(epsilon=epsilon, delta=delta, **{**PROMISE, **changes})


def best_test(epsilon: float, delta: float, rate: float) -> float:
    """The most powerful test between the two laws of the canonical (ε, δ) pair, by Neyman and Pearson.

    The pair: with probability δ the answer gives the truth away, otherwise it is randomised response. Accept outcomes
    by falling likelihood ratio until the false positives are used up.
    """
    right, wrong = (1 - delta) / (1 + math.exp(-epsilon)), (1 - delta) / (1 + math.exp(epsilon))
    outcomes = [(delta, 0.0), (right, wrong), (wrong, right)]
    found, left = 0.0, rate
    for true, false in outcomes:
        share = 1.0 if false <= left else left / false
        found, left = found + share * true, left - share * false
        if share < 1:
            break
    return found


@given(epsilons, deltas, rates)
def test_the_true_positive_rate_is_that_of_the_best_test_rounded_up(epsilon: float, delta: float, rate: float) -> None:
    bound = guarantee(epsilon, delta).true_positive_rate(rate)
    best = best_test(epsilon, delta, rate)
    assert best * (1 - 1e-9) - 1e-15 <= bound <= max(best, rate) * (1 + 1e-9) + 1e-12


@given(epsilons, deltas)
def test_the_best_guess_of_a_coin_is_the_best_sum_of_both_rates(epsilon: float, delta: float) -> None:
    promise = guarantee(epsilon, delta)
    # The best test of a fair coin maximises (true positives + true negatives) / 2; its corner is at this rate.
    corner = (1 - delta) / (1 + math.exp(epsilon))
    best = (best_test(epsilon, delta, corner) + 1 - corner) / 2
    assert promise.best_guess() == pytest.approx(best, rel=1e-9)
    assert promise.best_guess() >= best * (1 - 1e-12)


@given(epsilons, st.floats(0.001, 0.999), st.floats(1e-4, 0.999))
def test_without_delta_odds_grow_at_most_by_e_to_the_epsilon(epsilon: float, prior: float, rate: float) -> None:
    posterior = guarantee(epsilon, 0.0).posterior(prior, false_positive_rate=rate)
    odds = posterior / (1 - posterior) if posterior < 1 else math.inf
    assert odds <= prior / (1 - prior) * math.exp(epsilon) * (1 + 1e-6) or posterior > 1 - 1e-9
    assert posterior >= prior * (1 - 1e-9)


def test_a_certain_accusation_needs_delta() -> None:
    assert guarantee(1.0, 0.0).true_positive_rate(0.0) == 0.0
    assert guarantee(1.0, 0.01).true_positive_rate(0.0) == pytest.approx(0.01)
    assert guarantee(1.0, 0.01).posterior(0.5, false_positive_rate=0.0) == 1.0
    assert guarantee(1.0, 0.0).posterior(0.5, false_positive_rate=0.0) == 0.5


@given(epsilons, epsilons, deltas, deltas)
def test_a_promise_implies_every_weaker_one_and_never_allows_the_attacker_more(
    epsilon: float, other_epsilon: float, delta: float, other_delta: float
) -> None:
    promise, other = guarantee(epsilon, delta), guarantee(other_epsilon, other_delta)
    assert promise.implies(other) == (epsilon <= other_epsilon and delta <= other_delta)
    if promise.implies(other):
        for rate in (0.001, 0.01, 0.1):
            assert promise.true_positive_rate(rate) <= other.true_positive_rate(rate) * (1 + 1e-9)


@pytest.mark.parametrize("changes", [{"unit": "record"}, {"adjacency": "replace_one"}])
def test_promises_about_different_things_imply_nothing(changes: dict[str, Any]) -> None:
    assert not guarantee(0.1, 0.0).implies(guarantee(5.0, 0.1, **changes))


def test_only_a_status_that_is_as_good_implies() -> None:
    proved, claimed, refuted = (guarantee(1.0, 0.0, proof_status=s) for s in ("proved", "claimed", "refuted"))
    assert proved.implies(claimed)
    assert claimed.implies(refuted)
    assert not claimed.implies(proved)
    assert not refuted.implies(claimed)


def test_the_sentence_gives_the_odds_that_an_officer_asks_for() -> None:
    promise = guarantee(1.0, 1e-6)
    text = promise.meaning()
    # e/(1+e) = 0.7311; e × 0.1 % = 0.2719 %, e × 1 % = 2.719 %, e × 10 % = 27.19 %; odds 1:99 × e = 2.673 %
    assert "right at most 73.2 % of the time" in text
    assert (
        "for 1 in 100 of those who were not in the data finds at most 2.72 % of those who were; for 1 in 1,000, "
        "0.272 %; for 1 in 10, 27.2 %." in text
    )
    assert text.endswith("says yes for 1 in 100, a yes raises a suspicion of 1 in 100 to at most 2.68 %.")
    assert "one user was in the data" in text
    assert (
        "one record had one value and not another"
        in guarantee(1.0, 0.0, unit="record", adjacency="replace_one").meaning()
    )


def test_near_certainty_never_reads_as_certainty_nor_below_it() -> None:
    assert "at most 99.9963 % of the time" in guarantee(10.2, 0.0).meaning()
    assert "at most 100 % of the time" in guarantee(60.0, 0.0).meaning()
    assert "promises nothing" in guarantee(math.inf, 0.0).meaning()


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_odds_that_are_next_to_certain_are_said_to_promise_practically_nothing(adjacency: Any) -> None:
    """From 99.95 % on, which without δ is ε = ln(1999) = 7.6004: below, the attacker's best guess is rounded up."""
    for epsilon, delta, hollow in (
        (3.0, 1e-6, False), (7.6, 0.0, False), (7.601, 0.0, True), (7.6, 1e-3, True), (1000.0, 0.0, True),
        (0.1, 0.999, True), (math.inf, 0.0, True),
    ):  # fmt: skip
        promise = guarantee(epsilon, delta, adjacency=adjacency)
        assert promise.is_hollow == hollow == (promise.best_guess() >= 0.9995)
        assert ("nothing" in promise.odds()) == hollow
    assert guarantee(7.6, 0.0).odds().endswith("a coin is right 50 %.")
    assert (
        "at most 99.951 % of the time; a coin is right 50 %. That promises practically" in guarantee(7.61, 0.0).odds()
    )
    for promise in (guarantee(9.0, 0.0), guarantee(9.0, 0.0, proof_status="claimed")):
        assert "practically" not in f"{promise}{promise.in_words()}{promise.meaning()}"  # as they were


def test_what_is_not_proved_is_not_given_odds() -> None:
    for status in ("claimed", "refuted"):
        text = guarantee(1.0, 0.0, proof_status=status).meaning()
        assert text.startswith(f"This is not a proved promise: its status is {status}.")
        assert "%" not in text


def test_a_promise_prints_rounded_up() -> None:
    assert str(guarantee(2.0001, 1e-6)).startswith("ε ≤ 2.01 (δ = 1e-06, per user, add_remove, proved")
    assert str(guarantee(math.inf, 0.0)).startswith("ε ≤ ∞")


def test_people_read_no_identifier_and_certificates_are_spelled_as_ever() -> None:
    replaced = guarantee(1000.0, 0.0, unit="record", adjacency="replace_one")
    assert replaced.in_words() == "ε ≤ 1000 (δ = 0, per record, with one record replaced, proved, upper bound)"
    assert guarantee(2.0001, 1e-6).in_words().startswith("ε ≤ 2.01 (δ = 1e-06, per user, with or without one user,")
    assert str(guarantee(2.0, 0.0)) == "ε ≤ 2.0 (δ = 0, per user, add_remove, proved, upper bound)"
    assert str(rounded_up(0.1, digits=3)) == "0.1"
    assert str(rounded_up(1.23401, digits=4)) == "1.235"


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"unit": "row"}, "unit"),
        ({"adjacency": "both"}, "adjacency"),
        ({"proof_status": "hoped"}, "proof_status"),
    ],
)
def test_a_promise_of_nothing_known_is_refused(changes: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Guarantee(**{"epsilon": 1.0, "delta": 0.0, **PROMISE, **changes})
    assert error.value.argument == argument


def test_rates_and_priors_are_probabilities() -> None:
    with pytest.raises(InvalidInput, match="false_positive_rate"):
        guarantee(1.0, 0.0).true_positive_rate(1.5)
    with pytest.raises(InvalidInput, match="prior"):
        guarantee(1.0, 0.0).posterior(-0.1, false_positive_rate=0.1)


@pytest.mark.parametrize("epsilon", [701.0, 1000.0])
def test_a_huge_epsilon_lets_the_attacker_find_everybody(epsilon: float) -> None:
    assert guarantee(epsilon, 0.0).true_positive_rate(1e-300) == 1.0
    assert guarantee(epsilon, 0.0).true_positive_rate(0.0) == 0.0
    assert guarantee(epsilon, 0.0).best_guess() == 1.0


def test_without_a_promise_the_attacker_is_certain() -> None:
    nothing = guarantee(math.inf, 0.0)
    assert nothing.true_positive_rate(0.0) == nothing.best_guess() == 1.0
    assert nothing.posterior(0.01, false_positive_rate=0.0) == 1.0


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1.2345644e-6, 9.9999901e-5, 0.1])
def test_a_delta_is_shown_no_smaller_than_it_is(delta: float) -> None:
    shown = str(guarantee(1.0, delta)).partition("δ = ")[2].partition(",")[0]
    assert delta <= float(shown) <= delta * (1 + 1e-5)
