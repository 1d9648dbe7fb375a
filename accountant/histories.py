"""What was ever released about a datapoint: committed sums and open holds, per ledger."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from operator import lt
from typing import Final, TypeAlias

from accountant.errors import InvalidInput, UnknownRelease
from accountant.filters import Cost

#: Sums per ledger, sorted by ledger: "" is the lifelong ledger, a task's own ledger has the task's name.
Spending: TypeAlias = tuple[tuple[str, Cost], ...]

_DIGEST_MODULUS: Final = 2**256


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An open hold: it counts in full until its release is committed, voided or expires."""

    release: str
    spending: Spending
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was ever released about each datapoint of a cohort; equal whatever the order it happened in.

    `digest` sums a token per committed hold, so that datapoints which different charges of the same price
    touched stay apart. A collision would only join cohorts that have spent the same.
    """

    committed: Spending = ()
    holds: tuple[Hold, ...] = ()
    digest: int = 0
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Tokens suffice. Histories are looked up often, and hashing their sums would cost more than a split.
        object.__setattr__(self, "_hash", hash((self.digest, *[hold.token for hold in self.holds])))

    def __hash__(self) -> int:
        return self._hash

    def hold(self, release: str, spending: Spending, touch: bytes) -> History:
        """With one more open hold; `touch` says which charges of the release touch these datapoints."""
        if self.has_hold(release):
            raise InvalidInput("release", release, "a release without an open hold")
        added = _new_hold(release, spending, touch)
        position = bisect(self.holds, release, key=lambda hold: hold.release)
        holds = (*self.holds[:position], added, *self.holds[position:])
        return History(committed=self.committed, holds=holds, digest=self.digest)

    def commit(self, release: str) -> History:
        """The open hold becomes spent; expiry is the same, because an unknown outcome is spent."""
        hold, others = self._without(release)
        committed = hold.spending
        if self.committed:
            sums = dict(self.committed)
            for ledger, cost in hold.spending:
                sums[ledger] = sums[ledger] + cost if ledger in sums else cost
            # By ledger alone: a cost has no order.
            committed = tuple(sorted(sums.items(), key=lambda entry: entry[0]))
        return History(committed=committed, holds=others, digest=(self.digest + hold.token) % _DIGEST_MODULUS)

    def void(self, release: str) -> History:
        """As if the hold had never been: nothing left the trusted side."""
        return History(committed=self.committed, holds=self._without(release)[1], digest=self.digest)

    def has_hold(self, release: str) -> bool:
        """Whether the release is held, neither committed nor voided."""
        # A loop, since it runs for every touched cohort, where a generator would cost more than it finds.
        for hold in self.holds:  # noqa: SIM110
            if hold.release == release:
                return True
        return False

    def committed_in(self, ledger: str) -> Cost | None:
        """What is spent in the ledger; None if nothing ever was."""
        for name, cost in self.committed:
            if name == ledger:
                return cost
        return None

    def held_in(self, ledger: str) -> Cost | None:
        """What the open holds keep in the ledger, summed anew and never subtracted; None if nothing."""
        costs = [cost for hold in self.holds for name, cost in hold.spending if name == ledger]
        return Cost.sum(costs) if costs else None

    def _without(self, release: str) -> tuple[Hold, tuple[Hold, ...]]:
        for position, hold in enumerate(self.holds):
            if hold.release == release:
                return hold, self.holds[:position] + self.holds[position + 1 :]
        raise UnknownRelease(release)


@lru_cache(maxsize=64)  # a charge makes the same hold in every cohort it touches
def _new_hold(release: str, spending: Spending, touch: bytes) -> Hold:
    ledgers = [ledger for ledger, _ in spending]
    if not all(map(lt, ledgers, ledgers[1:])):
        raise InvalidInput("spending", ledgers, "ledgers that are sorted and different")
    name = release.encode()
    token = int.from_bytes(sha256(len(name).to_bytes(8) + name + touch).digest())
    return Hold(release=release, spending=spending, token=token)


#: Nothing was released yet.
UNTOUCHED: Final = History()
