"""Merkle trees of RFC 9162, section 2.1, over SHA-256: roots that grow with a log, and proofs without the log.

RFC 6962 has the same trees. An inclusion proof shows that an item is in a tree, a consistency proof that a tree only
grew. Making a proof hashes every leaf once; checking one takes a logarithm of that. Checks raise `BrokenProof` and
return nothing, so that nobody can forget to look at their answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NewType

from accountant.errors import BrokenProof, InvalidInput
from accountant.units import whole

HASH_BYTES: Final = 32
MAX_SIZE: Final = 2**53 - 1  # sizes stand in JSON documents

#: What stands at the foot of a tree. A type of its own, since an item may itself be a hash of 32 bytes.
LeafHash = NewType("LeafHash", bytes)

EMPTY_ROOT: Final = sha256().digest()


def leaf_hash(item: bytes) -> LeafHash:
    """The hash of an item. Its prefix keeps an inner node from passing as an item."""
    return LeafHash(sha256(b"\x00" + item).digest())


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The right edge of a tree: all that is needed to let it grow and to know its root, in O(log size).

    `peaks` are the roots of the full subtrees into which the items fall, one for each bit of `size`, largest first.
    """

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        whole("size", self.size, least=0, most=MAX_SIZE)
        if len(self.peaks) != self.size.bit_count():
            raise InvalidInput("peaks", len(self.peaks), f"{self.size.bit_count()} hashes for a size of {self.size}")
        for place, peak in enumerate(self.peaks):
            check_hash(f"peaks[{place}]", peak)

    def append(self, leaf: LeafHash) -> Frontier:
        """The edge of the tree with one more item."""
        return self.extend((leaf,))

    def extend(self, leaves: Iterable[LeafHash]) -> Frontier:
        """The edge of the tree with more items, one at a time."""
        size, peaks = self.size, list(self.peaks)
        for leaf in leaves:
            check_hash("leaf hash", leaf)
            node: bytes = leaf
            for _ in range((~size & (size + 1)).bit_length() - 1):  # one merge for each trailing 1 of the size
                node = node_hash(peaks.pop(), node)
            peaks.append(node)
            size += 1
        return Frontier(size=size, peaks=tuple(peaks))

    @property
    def root(self) -> bytes:
        """The Merkle tree hash; that of no items is the hash of nothing."""
        if not self.peaks:
            return EMPTY_ROOT
        *others, node = self.peaks
        for peak in reversed(others):
            node = node_hash(peak, node)
        return node


def root(leaves: Iterable[LeafHash]) -> bytes:
    """The Merkle tree hash of items in their order (section 2.1.1)."""
    return Frontier().extend(leaves).root


def inclusion_proof(leaves: Sequence[LeafHash], *, index: int) -> tuple[bytes, ...]:
    """What shows that the item at `index` (from 0) is in the tree (section 2.1.3.1); it hashes every leaf once."""
    if not leaves:
        raise InvalidInput("leaves", leaves, "at least one: nothing is in an empty tree")
    whole("index", index, least=0, most=len(leaves) - 1)
    low, high = 0, len(leaves)
    path: list[bytes] = []
    while high - low > 1:
        middle = _split(low, high)
        if index < middle:
            path.append(_range_root(leaves, middle, high))
            high = middle
        else:
            path.append(_range_root(leaves, low, middle))
            low = middle
    return tuple(reversed(path))


def consistency_proof(leaves: Sequence[LeafHash], *, old_size: int) -> tuple[bytes, ...]:
    """What shows that the tree only grew since it had `old_size` items (section 2.1.4.1).

    The RFC leaves out no items and all items, where nothing needs to be shown: the proof is empty then.
    """
    whole("old_size", old_size, least=0, most=len(leaves))
    low, high = 0, len(leaves)
    path: list[bytes] = []
    while 0 < old_size < high:
        middle = _split(low, high)
        if old_size <= middle:
            path.append(_range_root(leaves, middle, high))
            high = middle
        else:
            path.append(_range_root(leaves, low, middle))
            low = middle
    if low > 0:  # else the subtree that is left is the old tree itself, whose root the verifier has
        path.append(_range_root(leaves, low, high))
    return tuple(reversed(path))


def _split(low: int, high: int) -> int:
    """Where a tree of at least two items is cut: after the largest power of two that is less than its size."""
    return low + (1 << (high - low - 1).bit_length() - 1)


def _range_root(leaves: Sequence[LeafHash], low: int, high: int) -> bytes:
    return root(leaves[place] for place in range(low, high))


def verify_inclusion(*, root: bytes, size: int, index: int, leaf: LeafHash, proof: Sequence[bytes]) -> None:
    """Refuse, with `BrokenProof`, all but a proof that `leaf` is at `index` in the tree (section 2.1.3.2).

    `root` and `size` must come from one trusted statement: a proof alone does not fix the size of a tree.
    """
    _check_sizes(index=index, size=size)
    _check_hashes(root=root, leaf=leaf, proof=proof)
    if index >= size:
        raise BrokenProof(f"there is no item {index} in a tree of {size}")
    node: bytes = leaf
    place, last = index, size - 1
    for step in proof:
        if last == 0:
            raise BrokenProof(f"{len(proof)} hashes are too many for item {index} of {size}")
        if place & 1 or place == last:
            node = node_hash(step, node)
            while place and not place & 1:  # levels at which this is the last node, without a sibling
                place, last = place >> 1, last >> 1
        else:
            node = node_hash(node, step)
        place, last = place >> 1, last >> 1
    if last != 0:
        raise BrokenProof(f"{len(proof)} hashes are too few for item {index} of {size}")
    if node != root:
        raise BrokenProof("it leads to another root: the item, its place or the proof was changed")


def verify_consistency(
    *, old_root: bytes, old_size: int, new_root: bytes, new_size: int, proof: Sequence[bytes]
) -> None:
    """Refuse, with `BrokenProof`, all but a proof that the new tree is the old one with items added (section 2.1.4.2).

    Where the RFC asks for no proof, only the empty one passes: equal sizes must have equal roots, and an old tree of no
    items must have the root of the empty tree (every tree extends it, so this says nothing about the new one).
    """
    _check_sizes(old_size=old_size, new_size=new_size)
    _check_hashes(old_root=old_root, new_root=new_root, proof=proof)
    if old_size > new_size:
        raise BrokenProof(f"a tree of {old_size} items cannot have grown to {new_size}")
    if old_size in (0, new_size):
        if proof:
            raise BrokenProof(f"from {old_size} to {new_size} items, the proof must be empty")
        if old_root != (EMPTY_ROOT if old_size == 0 else new_root):
            raise BrokenProof("two trees of one size have different roots: one of them was changed")
        if new_size == 0 and new_root != EMPTY_ROOT:
            raise BrokenProof("a tree without items has another root than the empty tree")
        return
    place, last = old_size - 1, new_size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    steps = list(proof)
    if place == 0:  # the old tree is one full subtree, and its root is not repeated in the proof
        steps.insert(0, old_root)
    if not steps:
        raise BrokenProof(f"0 hashes are too few from {old_size} to {new_size} items")
    old = new = steps[0]
    for step in steps[1:]:
        if last == 0:
            raise BrokenProof(f"{len(proof)} hashes are too many from {old_size} to {new_size} items")
        if place & 1 or place == last:
            old, new = node_hash(step, old), node_hash(step, new)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, step)
        place, last = place >> 1, last >> 1
    if last != 0:
        raise BrokenProof(f"{len(proof)} hashes are too few from {old_size} to {new_size} items")
    if old != old_root or new != new_root:
        raise BrokenProof(
            "it leads to other roots: the old items are not the first of the new, or the proof was changed"
        )


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if type(value) is not int or not 0 <= value <= MAX_SIZE:
            raise BrokenProof(f"{name} is not a whole number from 0 to {MAX_SIZE}")


def _check_hashes(*, proof: Sequence[bytes], **hashes: bytes) -> None:
    for name, value in (*hashes.items(), *((f"proof[{place}]", step) for place, step in enumerate(proof))):
        if not is_hash(value):
            raise BrokenProof(f"{name} is not a hash of {HASH_BYTES} bytes")


def is_hash(value: object) -> bool:
    """Whether a value has the form of a SHA-256 hash."""
    return type(value) is bytes and len(value) == HASH_BYTES


def check_hash(argument: str, value: object) -> None:
    """Refuse, naming the argument, what has not the form of a hash."""
    if not is_hash(value):
        raise InvalidInput(argument, value, f"a hash, as {HASH_BYTES} bytes")
