"""Cohorts agree with a ledger that keeps a list per datapoint, in every representation, whatever happens."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap, FrozenBitMap

from accountant import cohorts as module
from accountant.cohorts import Cohorts, Representation
from accountant.errors import InvalidInput, UnknownRelease
from accountant.filters import Cost
from accountant.histories import UNTOUCHED, History, Spending

LEDGERS = ("", "task one", "task two")
REPRESENTATIONS: tuple[Representation, ...] = ("bitmaps", "dense")
both = pytest.mark.parametrize("representation", REPRESENTATIONS)


@contextmanager
def small_constants() -> Iterator[None]:
    """Let populations of a hundred datapoints fill several chunks, change form and rewrite their labels."""
    with mock.patch.multiple(module, CHUNK=37, _MIN_SPARE_LABELS=1, SCATTERED_CONTAINERS_PER_BLOCK=3):
        yield


def price(seed: int) -> Cost:
    return Cost(rho=(seed, 7 * seed + 1), delta=seed % 3)


def lifelong(seed: int = 1) -> Spending:
    return (("", price(seed)),)


def total(costs: Sequence[Cost]) -> Cost | None:
    return reduce(add, costs) if costs else None


def holding(release: str, spending: Spending = (), touch: bytes = b"") -> Callable[[History], History]:
    return lambda history: history.hold(release, spending, touch)


def committing(release: str) -> Callable[[History], History]:
    return lambda history: history.commit(release)


def voiding(release: str) -> Callable[[History], History]:
    return lambda history: history.void(release)


# The oracle: nothing is shared between datapoints, nothing is added up before it is asked for.


@dataclass(frozen=True)
class Charge:
    """One charge of a release: its price counts in the lifelong ledger and in those of the tasks it names."""

    scope: BitMap
    ledgers: tuple[str, ...]
    cost: Cost


@dataclass
class Datapoint:
    """Every charge that ever touched one datapoint, by release."""

    committed: dict[str, list[tuple[int, Charge]]] = field(default_factory=dict)
    holds: dict[str, list[tuple[int, Charge]]] = field(default_factory=dict)

    def identity(self) -> tuple[frozenset[tuple[str, bytes]], ...]:
        return tuple(
            frozenset((release, bytes(position for position, _ in charges)) for release, charges in side.items())
            for side in (self.committed, self.holds)
        )

    def costs(self, side: dict[str, list[tuple[int, Charge]]], ledger: str) -> list[Cost]:
        return [charge.cost for charges in side.values() for _, charge in charges if ledger in charge.ledgers]


def atoms(charges: Sequence[Charge]) -> Iterator[tuple[BitMap, Spending, bytes]]:
    """Disjoint scopes, each with the sum of its charges: a sealed release is one hold per datapoint."""
    for subset in range(1, 2 ** len(charges)):
        positions = [position for position in range(len(charges)) if subset >> position & 1]
        scope = BitMap.intersection(*[charges[position].scope for position in positions])
        for position, charge in enumerate(charges):
            if position not in positions:
                scope -= charge.scope
        costs = {
            ledger: total([charges[position].cost for position in positions if ledger in charges[position].ledgers])
            for ledger in LEDGERS
        }
        yield (
            scope,
            tuple((ledger, cost) for ledger, cost in costs.items() if cost is not None),
            bytes(positions),
        )


@st.composite
def scopes(draw: st.DrawFn, size: int) -> BitMap:
    """Ranges, combs and arbitrary sets of ordinals below `size`, the empty one included."""
    kind = draw(st.sampled_from(["range", "comb", "any"]))
    if kind == "any":
        bits = draw(st.integers(0, 2**size - 1))
        return BitMap([ordinal for ordinal in range(size) if bits >> ordinal & 1])
    start, stop = draw(st.integers(0, size)), draw(st.integers(0, size))
    return BitMap(range(start, stop, 1 if kind == "range" else draw(st.integers(2, 5))))


def charges_on(size: int) -> st.SearchStrategy[list[Charge]]:
    ledgers = st.sampled_from([("",), ("", "task one"), ("", "task two"), LEDGERS])
    return st.lists(st.builds(Charge, scopes(size), ledgers, st.integers(0, 9).map(price)), min_size=1, max_size=3)


class CohortsAgainstDatapoints(RuleBasedStateMachine):
    """Bitmaps, labels and a population that changes form on its way, beside the oracle."""

    @initialize(size=st.integers(0, 90))
    def start(self, size: int) -> None:
        self.constants = small_constants()
        self.constants.__enter__()
        self.forms = [Cohorts(size, representation=name) for name in REPRESENTATIONS]
        self.forms.append(Cohorts(size))
        self.datapoints = [Datapoint() for _ in range(size)]
        self.releases = 0
        self.open: list[str] = []

    def teardown(self) -> None:
        if hasattr(self, "constants"):
            self.constants.__exit__(None, None, None)

    @property
    def size(self) -> int:
        return len(self.datapoints)

    @rule(count=st.integers(0, 25))
    def extend(self, count: int) -> None:
        for cohorts in self.forms:
            cohorts.extend(count)
        self.datapoints += [Datapoint() for _ in range(count)]

    def hold(self, charges: Sequence[Charge]) -> str:
        release = f"release {self.releases}"
        self.releases += 1
        for scope, spending, touch in atoms(charges):
            for cohorts in self.forms:
                cohorts.charge(scope, holding(release, spending, touch))
        for position, charge in enumerate(charges):
            for ordinal in charge.scope:
                self.datapoints[ordinal].holds.setdefault(release, []).append((position, charge))
        self.open.append(release)
        return release

    @rule(data=st.data())
    def propose(self, data: st.DataObject) -> None:
        self.hold(data.draw(charges_on(self.size)))

    @rule(data=st.data(), exhausted=st.sets(st.integers(0, 5), max_size=3))
    def propose_and_trim(self, data: st.DataObject, exhausted: set[int]) -> None:
        charge = data.draw(charges_on(self.size))[0]
        touched = self.forms[0].touched(charge.scope)
        gone = [history for position, (history, _) in enumerate(touched) if position in exhausted]
        trimmed = self.forms[0].members(charge.scope, gone)
        assert all(cohorts.members(charge.scope, gone) == trimmed for cohorts in self.forms)
        identities = {self.datapoints[ordinal].identity() for ordinal in trimmed}
        assert trimmed == BitMap([o for o in charge.scope if self.datapoints[o].identity() in identities])
        assert len(identities) == len(gone)
        self.hold([Charge(charge.scope - trimmed, charge.ledgers, charge.cost)])

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        scope = data.draw(scopes(self.size))
        readings = [cohorts.touched(scope) for cohorts in self.forms]
        assert readings[0] == readings[1] == readings[2]
        expected = Counter(self.datapoints[ordinal].identity() for ordinal in scope)
        assert sorted(count for _, count in readings[0]) == sorted(expected.values())
        for ordinal in [0, self.size - 1] if self.size else []:
            histories = [cohorts.history(ordinal) for cohorts in self.forms]
            assert histories[0] == histories[1] == histories[2]
            assert {hold.release for hold in histories[0].holds} == set(self.datapoints[ordinal].holds)

    @rule(data=st.data())
    def hold_then_void_restores_the_cohorts(self, data: st.DataObject) -> None:
        before = [dict(cohorts.items()) for cohorts in self.forms]
        self.void(self.hold(data.draw(charges_on(self.size))))
        assert [dict(cohorts.items()) for cohorts in self.forms] == before

    @precondition(lambda self: self.open)
    @rule(data=st.data(), outcome=st.sampled_from(["commit", "expire", "void"]))
    def resolve(self, data: st.DataObject, outcome: str) -> None:
        release = data.draw(st.sampled_from(self.open))
        if outcome == "void":
            self.void(release)
            return
        for cohorts in self.forms:  # an expired hold is a committed one
            cohorts.resolve(release, committing(release))
        self.open.remove(release)
        for datapoint in self.datapoints:
            if release in datapoint.holds:
                datapoint.committed[release] = datapoint.holds.pop(release)

    def void(self, release: str) -> None:
        for cohorts in self.forms:
            cohorts.resolve(release, voiding(release))
        self.open.remove(release)
        for datapoint in self.datapoints:
            datapoint.holds.pop(release, None)

    @invariant()
    def all_agree(self) -> None:
        listing = list(self.forms[0].items())
        for cohorts in self.forms:
            assert list(cohorts.items()) == listing
            assert list(cohorts.sizes()) == [(history, len(members)) for history, members in listing]
            assert len(cohorts) == len(listing)
            witnesses = {history: ordinal for ordinal, history in cohorts.witnesses().items()}
            assert len(witnesses) == len(listing)
            assert all(witnesses[history] in members for history, members in listing)
            assert cohorts.size == self.size
        histories = [history for history, _ in listing]
        assert len(set(histories)) == len(histories)
        assert sorted(ordinal for _, members in listing for ordinal in members) == list(range(self.size))
        assert all(members for _, members in listing)
        for history, members in listing:
            datapoint = self.datapoints[members[0]]
            assert {self.datapoints[ordinal].identity() for ordinal in members} == {datapoint.identity()}
            assert {hold.release for hold in history.holds} == set(datapoint.holds)
            for ledger in LEDGERS:
                assert history.committed_in(ledger) == total(datapoint.costs(datapoint.committed, ledger))
                assert history.held_in(ledger) == total(datapoint.costs(datapoint.holds, ledger))
        assert len(listing) == len({datapoint.identity() for datapoint in self.datapoints})

    @invariant()
    def the_forms_keep_their_own_books(self) -> None:
        bitmaps, labels, changing = (cohorts._form for cohorts in self.forms)
        assert isinstance(bitmaps, module._Bitmaps)
        assert bitmaps._scattered == sum(map(module._scattered, bitmaps.cohorts.values()))
        if isinstance(changing, module._Bitmaps):
            assert bitmaps._scattered == changing._scattered
        for form in (bitmaps, labels, changing):
            holding: dict[str, list[History]] = {}
            for history in form.cohorts:
                for hold in history.holds:
                    holding.setdefault(hold.release, []).append(history)
            assert {release: list(found) for release, found in form.holding.items()} == holding
        for ordinal in range(0, self.size, 7):
            near = [history for history, members in bitmaps.items() if members.min() <= ordinal <= members.max()]
            assert bitmaps._index.between(ordinal, ordinal) == near
        assert isinstance(labels, module._Labels)
        in_use = sorted(label for part in labels.cohorts.values() for label in part)
        assert in_use == list(range(len(labels._sizes)))
        counts = np.bincount(np.concatenate([np.empty(0, np.uint32), *labels._chunks]), minlength=len(in_use))
        assert counts.tolist() == labels._sizes
        assert len(in_use) <= 2 * len(labels.cohorts) + 1


TestCohortsAgainstDatapoints = CohortsAgainstDatapoints.TestCase
TestCohortsAgainstDatapoints.settings = settings(stateful_step_count=25)


# Whole histories


@given(st.data())
def test_the_order_of_commits_is_irrelevant(data: st.DataObject) -> None:
    size = 50
    proposals = data.draw(st.lists(charges_on(size), min_size=2, max_size=4))
    releases = [f"release {number}" for number in range(len(proposals))]
    orders = [releases, data.draw(st.permutations(releases))]
    results = []
    for order, representation in zip(orders, REPRESENTATIONS, strict=True):
        cohorts = Cohorts(size, representation=representation)
        for release in order:
            for scope, spending, touch in atoms(proposals[releases.index(release)]):
                cohorts.charge(scope, holding(release, spending, touch))
        for release in reversed(order):
            cohorts.resolve(release, committing(release))
        results.append(dict(cohorts.items()))
    assert results[0] == results[1]


def played(representation: Representation | None, *, size: int, seed: int) -> Cohorts:
    """A long life on a population of several blocks and chunks, made of every kind of scope."""
    chance = np.random.default_rng(seed)
    cohorts = Cohorts(size, representation=representation or "automatic")
    pending: list[str] = []
    for step in range(40):
        release = f"release {step}"
        start, stop = sorted(chance.integers(0, cohorts.size, 2).tolist())
        if step % 3 == 0:
            scope = BitMap(range(start, stop))
        elif step % 3 == 1:
            scope = BitMap(np.flatnonzero(chance.random(cohorts.size) < 0.02).tolist())
        else:
            scope = BitMap(range(start, stop, 7)) | BitMap(range(start // 2))
        cohorts.charge(scope, holding(release, lifelong(step)))
        pending.append(release)
        if step % 4 == 3:
            resolved = pending.pop(int(chance.integers(len(pending))))
            cohorts.resolve(resolved, committing(resolved) if step % 8 == 3 else voiding(resolved))
        if step % 10 == 9:
            cohorts.extend(1000)
    for release in pending[3:]:
        cohorts.resolve(release, voiding(release))
    return cohorts


def test_repeating_the_operations_gives_the_same_state_in_every_representation() -> None:
    with mock.patch.object(module, "CHUNK", 2**16 + 3):
        results = {name: played(name, size=200_000, seed=1) for name in (*REPRESENTATIONS, None)}
        listing = list(results["bitmaps"].items())
        assert list(played("bitmaps", size=200_000, seed=1).items()) == listing
        assert list(results["dense"].items()) == listing
        assert list(results[None].items()) == listing
    assert results[None].representation == "dense"
    assert sum(len(members) for _, members in listing) == 204_000
    assert len(listing) > 10


def test_more_cohorts_than_sixteen_bits_count() -> None:
    size = 2**16 + 1
    cohorts = Cohorts(size, representation="dense")
    for bit in range(17):  # each datapoint is held by the releases of its ordinal's own bits
        cohorts.charge(BitMap([o for o in range(size) if o >> bit & 1]), holding(f"{bit:02}"))
    assert len(cohorts) == size
    for history, members in cohorts.items():
        assert sum(2 ** int(hold.release) for hold in history.holds) == members[0]


# What a charge rewrites


def test_a_charge_on_whole_cohorts_rewrites_no_bitmap() -> None:
    cohorts = Cohorts(1000, representation="bitmaps")
    cohorts.charge(BitMap(range(0, 500, 3)), holding("first"))
    cohorts.charge(BitMap(range(200)), holding("second"))
    before = [members for _, members in cohorts.items()]
    cohorts.charge(BitMap(range(1000)), holding("third"))
    after = [members for _, members in cohorts.items()]
    assert len(before) == len(after) == 4
    assert all(one is other for one, other in zip(before, after, strict=True))


def test_a_charge_rewrites_only_the_bitmaps_that_it_splits() -> None:
    cohorts = Cohorts(1000, representation="bitmaps")
    cohorts.charge(BitMap(range(500)), holding("first"))
    _, touched = cohorts.items()
    cohorts.charge(BitMap(range(600, 700)), holding("second"))
    assert any(members is touched[1] for _, members in cohorts.items())


def test_joining_labels_and_charging_whole_cohorts_writes_no_datapoint() -> None:
    cohorts = Cohorts(1000, representation="dense")
    cohorts.charge(BitMap(range(0, 500, 3)), holding("first"))
    cohorts.charge(BitMap(range(200)), holding("second"))
    labels = cohorts._form
    assert isinstance(labels, module._Labels)
    for chunk in labels._chunks:
        chunk.flags.writeable = False
    cohorts.charge(BitMap(range(1000)), holding("third"))
    cohorts.resolve("second", voiding("second"))
    assert [len(history.holds) for history, _ in cohorts.items()] == [1, 2]
    with pytest.raises(ValueError, match="read-only"):  # so the two lines above would have failed too
        cohorts.charge(BitMap([5]), holding("fourth"))


def test_a_voided_random_hold_leaves_a_range_as_small_as_it_was() -> None:
    cohorts = Cohorts(10**6, representation="bitmaps")
    before = cohorts.nbytes
    cohorts.charge(BitMap(range(0, 10**6, 3)), holding("random"))
    assert cohorts.nbytes > 10**5
    cohorts.resolve("random", voiding("random"))
    assert cohorts.nbytes == before < 1000


def test_ranges_of_a_huge_population_stay_in_kilobytes() -> None:
    cohorts = Cohorts(10**8)
    for step in range(200):
        start = step * 48_611_317 % 10**8
        cohorts.charge(BitMap(range(start, min(start + 10**7, 10**8))), holding(f"{step:03}"))
    assert cohorts.representation == "bitmaps"
    assert len(cohorts) > 300
    assert cohorts.nbytes < 100_000


def test_the_largest_population() -> None:
    cohorts = Cohorts(2**32)
    last = BitMap([2**32 - 1])
    cohorts.charge(last, holding("last"))
    assert cohorts.touched(last) == [(cohorts.history(2**32 - 1), 1)]
    assert [len(members) for _, members in cohorts.items()] == [2**32 - 1, 1]
    with pytest.raises(InvalidInput, match="count: expected a whole number from 0 to 0"):
        cohorts.extend(1)


# The change of form


def test_bitmaps_become_labels_just_above_the_limit_of_scattered_containers() -> None:
    forms = {name: Cohorts(2**16, representation=name) for name in REPRESENTATIONS} | {"automatic": Cohorts(2**16)}
    seen = []
    for bit in range(5):  # 2, 4, 8, 16 and 32 cohorts, each scattered over the one block
        for cohorts in forms.values():
            scope = BitMap([ordinal for ordinal in range(2**16) if ordinal >> bit & 1])
            cohorts.charge(scope, holding(f"{bit}"))
        seen.append(forms["automatic"].representation)
    assert seen == ["bitmaps"] * 4 + ["dense"]
    assert [forms[name].representation for name in REPRESENTATIONS] == list(REPRESENTATIONS)
    assert forms["dense"].nbytes == forms["automatic"].nbytes == 4 * 2**16
    listings = [list(cohorts.items()) for cohorts in forms.values()]
    assert listings[0] == listings[1] == listings[2]


def test_the_limit_is_per_block_of_the_population() -> None:
    cohorts = Cohorts(3 * 2**16)
    for bit in range(5):
        cohorts.charge(BitMap([o for o in range(2**16) if o >> bit & 1]), holding(f"{bit}"))
    assert cohorts.representation == "bitmaps"


# Transitions


@both
def test_a_new_history_may_be_the_old_one_of_another_cohort(representation: Representation) -> None:
    cohorts = Cohorts(9, representation=representation)

    def one_more(history: History) -> History:
        return history.hold(f"{len(history.holds)}", (), b"")

    cohorts.charge(BitMap(range(6)), one_more)
    cohorts.charge(BitMap(range(3, 9)), one_more)
    sizes = {len(history.holds): list(members) for history, members in cohorts.items()}
    assert sizes == {1: [0, 1, 2, 6, 7, 8], 2: [3, 4, 5]}


@both
def test_a_transition_that_maps_cohorts_to_one_history_joins_them(representation: Representation) -> None:
    cohorts = Cohorts(9, representation=representation)
    cohorts.charge(BitMap(range(0, 9, 2)), holding("even"))
    cohorts.charge(BitMap(range(4)), lambda _: UNTOUCHED.hold("same", (), b""))
    assert {len(members) for _, members in cohorts.items()} == {4, 3, 2}
    cohorts.charge(BitMap(range(9)), lambda _: UNTOUCHED)
    assert list(cohorts.items()) == [(UNTOUCHED, FrozenBitMap(range(9)))]


@both
def test_a_transition_that_changes_nothing_splits_nothing(representation: Representation) -> None:
    cohorts = Cohorts(9, representation=representation)
    (before,) = cohorts._form.cohorts.values()
    cohorts.charge(BitMap([1, 4]), lambda history: history)
    (after,) = cohorts._form.cohorts.values()
    assert after is before
    assert list(cohorts.items()) == [(UNTOUCHED, FrozenBitMap(range(9)))]


@both
def test_new_datapoints_are_untouched_after_all_others_were_charged(representation: Representation) -> None:
    cohorts = Cohorts(9, representation=representation)
    cohorts.charge(BitMap(range(9)), holding("first"))
    cohorts.extend(2)
    cohorts.extend(1)
    assert [(len(history.holds), list(members)) for history, members in cohorts.items()] == [
        (1, list(range(9))),
        (0, [9, 10, 11]),
    ]


@both
def test_a_transition_that_raises_changes_nothing(representation: Representation) -> None:
    cohorts = Cohorts(9, representation=representation)
    cohorts.charge(BitMap(range(4)), holding("first"))
    before = list(cohorts.items())
    with pytest.raises(InvalidInput, match="release"):
        cohorts.charge(BitMap(range(9)), holding("first"))
    with pytest.raises(UnknownRelease, match="second"):
        cohorts.resolve("first", committing("second"))
    assert list(cohorts.items()) == before


@both
def test_members_ignores_histories_that_nobody_has(representation: Representation) -> None:
    cohorts = Cohorts(9, representation=representation)
    nobody = UNTOUCHED.hold("nobody", (), b"")
    assert cohorts.members(BitMap([2, 5]), [nobody]) == BitMap()
    assert cohorts.members(BitMap([2, 5]), [nobody, UNTOUCHED]) == BitMap([2, 5])


def test_given_bitmaps_are_neither_kept_nor_changed() -> None:
    for representation in REPRESENTATIONS:
        cohorts = Cohorts(9, representation=representation)
        scope = BitMap([2, 5])
        cohorts.charge(scope, holding("first"))
        trimmed = cohorts.members(scope, [cohorts.history(2)])
        scope.add(7)
        trimmed.add(8)
        assert [list(members) for _, members in cohorts.items()][1] == [2, 5]


# Histories


def test_a_history_remembers_which_charges_touched_it() -> None:
    first = UNTOUCHED.hold("release", lifelong(), b"\x00").commit("release")
    second = UNTOUCHED.hold("release", lifelong(), b"\x01").commit("release")
    assert first.committed == second.committed
    assert first != second
    shifted = UNTOUCHED.hold("releas", lifelong(), b"e\x00").commit("releas")
    assert len({first.digest, second.digest, shifted.digest}) == 3


def test_what_is_held_and_what_is_committed_are_apart() -> None:
    history = UNTOUCHED.hold("b", (("", price(1)), ("task", price(2))), b"").hold("a", lifelong(4), b"")
    assert [hold.release for hold in history.holds] == ["a", "b"]
    assert history.committed_in("") is None
    assert history.held_in("") == price(1) + price(4)
    history = history.commit("b")
    assert history.committed == (("", price(1)), ("task", price(2)))
    assert (history.held_in(""), history.held_in("task")) == (price(4), None)
    assert history.void("a").hold("a", lifelong(4), b"") == history


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_holds_is_irrelevant(order: list[str]) -> None:
    history = reduce(lambda before, release: before.hold(release, lifelong(), b""), order, UNTOUCHED)
    assert [hold.release for hold in history.holds] == ["a", "b", "c", "d"]


def test_a_release_is_resolved_once() -> None:
    history = UNTOUCHED.hold("a", lifelong(), b"")
    for resolve in (committing("a"), voiding("a")):
        with pytest.raises(UnknownRelease, match="'a' has no open hold"):
            resolve(resolve(history))


def test_a_spending_names_each_ledger_once_and_in_order() -> None:
    for ledgers in (["b", "a"], ["a", "a"]):
        with pytest.raises(InvalidInput, match="spending: expected ledgers that are sorted and different"):
            UNTOUCHED.hold("release", tuple((ledger, price(1)) for ledger in ledgers), b"")


# Bad input


@pytest.mark.parametrize("count", [-1, 2**32 + 1, 10**100, 1.5, True, "3", None])
def test_a_bad_count_is_named(count: int) -> None:
    with pytest.raises(InvalidInput, match="count: expected a whole number from 0 to"):
        Cohorts(count)
    with pytest.raises(InvalidInput, match="count: expected a whole number from 0 to"):
        Cohorts(5).extend(count)


@both
@pytest.mark.parametrize(
    "scope",
    [
        [1, 2],
        {1, 2},
        range(3),
        None,
        BitMap([9]),
        FrozenBitMap([1, 2**32 - 1]),
        BitMap([1], copy_on_write=True),
    ],
)
def test_a_bad_scope_is_named(representation: Representation, scope: BitMap) -> None:
    cohorts = Cohorts(9, representation=representation)
    calls: list[Callable[[], object]] = [
        lambda: cohorts.touched(scope),
        lambda: cohorts.members(scope, [UNTOUCHED]),
        lambda: cohorts.charge(scope, holding("first")),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match=r"scope: expected (a bitmap of ordinals|ordinals below)"):
            call()
    assert list(cohorts.items()) == [(UNTOUCHED, FrozenBitMap(range(9)))]


@both
@pytest.mark.parametrize("ordinal", [-1, 9, 2**70, 1.0, None])
def test_a_bad_ordinal_is_named(representation: Representation, ordinal: int) -> None:
    with pytest.raises(InvalidInput, match="ordinal: expected a whole number from 0 to 8"):
        Cohorts(9, representation=representation).history(ordinal)
    with pytest.raises(InvalidInput, match="ordinal: expected a datapoint of the population, which is empty"):
        Cohorts(representation=representation).history(ordinal)


def test_a_bad_representation_is_named() -> None:
    with pytest.raises(InvalidInput, match="representation: expected automatic, bitmaps or dense"):
        Cohorts(9, representation="sparse")  # type: ignore[arg-type]


@both
def test_an_empty_population_has_no_cohorts(representation: Representation) -> None:
    cohorts = Cohorts(representation=representation)
    cohorts.charge(BitMap(), holding("first"))
    assert (cohorts.size, len(cohorts), list(cohorts.items()), cohorts.nbytes) == (0, 0, [], 0)
    assert cohorts.touched(BitMap()) == []
    assert cohorts.members(BitMap(), [UNTOUCHED]) == BitMap()
