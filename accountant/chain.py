r"""Tamper evidence for append-only logs: a hash chain for each population, and checkpoints over all of them.

A body is stored as its canonical bytes, and what was hashed is what is stored. An entry's hash covers its number, the
hash before it and its body, and the first of those hashes is bound to the population's name. So a log in which anything
was changed, dropped, added, moved or brought in from another population no longer verifies. What a chain cannot show is
that entries are missing **at its end**, or that all of it was written anew; a checkpoint kept elsewhere shows both.

Nothing here holds a key: a checkpoint says which bytes to sign, and the service signs them. The formats are in
docs/ledger.md, and are promises for ever: a new one gets a new version in its prefix or its payload type.

>>> body = canonical({"kind": "registered", "count": 3})
>>> chain = begin("clinic-a").append(body)
>>> verify(begin("clinic-a"), [(chain.link, body)]) == chain
True
>>> verify(begin("clinic-b"), [(chain.link, body)])
Traceback (most recent call last):
accountant.errors.BrokenChain: entry 1 breaks the chain: it names ... as the hash before it, which is ...
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Final

from accountant.canonical import canonical, from_canonical
from accountant.errors import BrokenChain, BrokenProof, InvalidDocument, InvalidInput
from accountant.merkle import (
    HASH_BYTES,
    MAX_SIZE,
    Frontier,
    LeafHash,
    check_hash,
    inclusion_proof,
    is_hash,
    leaf_hash,
    root,
    verify_inclusion,
)
from accountant.units import whole

MAX_NAME: Final = 200

#: Prefixes that keep one kind of hash from passing as another. No Merkle hash starts with a letter.
_GENESIS: Final = b"stint.genesis.v1\x00"
_ENTRY: Final = b"stint.entry.v1\x00"
_NOTHING: Final = bytes(HASH_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An entry's place in its chain. It is plain, so that `verify` can hold and name one that is wrong."""

    number: int
    previous: bytes
    hash: bytes


def genesis(population: str) -> Link:
    """What the first entry of a population follows: number 0, with a hash that no other population has."""
    _check_name("population", population)
    document = canonical({"population": population})
    return Link(number=0, previous=_NOTHING, hash=sha256(_GENESIS + document).digest())


def entry_bytes(*, number: int, previous: bytes, body: bytes) -> bytes:
    """The canonical bytes of `{"body": …, "number": …, "previous": …}`, given those of the body."""
    return b'{"body":%b,"number":%d,"previous":"%b"}' % (body, number, previous.hex().encode())


def append(head: Link, body: bytes) -> Link:
    """The link of a new entry after `head`; `body` is the canonical bytes of an object, and is stored as it is."""
    whole("number of the head", head.number, least=0, most=MAX_SIZE - 1)
    check_hash("hash of the head", head.hash)
    _check_body(body)
    return _next(head, body)


def _next(head: Link, body: bytes) -> Link:
    number = head.number + 1
    content = entry_bytes(number=number, previous=head.hash, body=body)
    return Link(number=number, previous=head.hash, hash=sha256(_ENTRY + content).digest())


def _check_body(body: bytes) -> None:
    if not isinstance(document := from_canonical(body), dict):
        raise InvalidDocument("body", document, "an object")


def _check_name(argument: str, value: object) -> None:
    if type(value) is not str or not 1 <= len(value) <= MAX_NAME:
        raise InvalidInput(argument, value, f"a name of 1 to {MAX_NAME} characters")
    if value.isascii():
        return
    try:
        canonical(value)
    except InvalidDocument as reason:
        raise InvalidInput(argument, value, reason.expected) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a checkpoint says of one population: its last entry, and the root of the tree over all its entries' hashes.

    The hash fixes every entry for who has them all; the root lets one entry be shown without the others.
    """

    population: str
    number: int
    hash: bytes
    root: bytes

    def __post_init__(self) -> None:
        _check_name("population", self.population)
        whole("number", self.number, least=0, most=MAX_SIZE)
        check_hash("hash", self.hash)
        check_hash("root", self.root)

    @property
    def leaf(self) -> LeafHash:
        """Its leaf hash in the tree of a checkpoint."""
        document = {"hash": self.hash.hex(), "number": self.number, "population": self.population}
        return leaf_hash(canonical({**document, "root": self.root.hex()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A population's chain up to its last entry: all that is needed to append, in O(log number)."""

    population: str
    link: Link
    frontier: Frontier

    def __post_init__(self) -> None:
        _check_name("population", self.population)
        if self.frontier.size != self.link.number:
            raise InvalidInput(
                "frontier", self.frontier.size, f"the size {self.link.number}, the number of the last entry"
            )

    def append(self, body: bytes) -> Chain:
        """The chain with one more entry, whose link is then `link`."""
        return _grown(self, append(self.link, body))

    def append_checked(self, body: bytes) -> Chain:
        """The same, by a caller who made or read these bytes just now: they are the canonical ones of an object."""
        return _grown(self, _next(self.link, body))

    @property
    def head(self) -> Head:
        """What a checkpoint says of this chain."""
        link = self.link
        return Head(population=self.population, number=link.number, hash=link.hash, root=self.frontier.root)


def _grown(chain: Chain, link: Link) -> Chain:
    return Chain(population=chain.population, link=link, frontier=chain.frontier.append(leaf_hash(link.hash)))


def begin(population: str) -> Chain:
    """The chain of a population that has no entries yet."""
    return Chain(population=population, link=genesis(population), frontier=Frontier())


def verify(chain: Chain, entries: Iterable[tuple[Link, bytes]], *, heads: Iterable[Head] = ()) -> Chain:
    """The chain that the stored entries after `chain` lead to, or `BrokenChain` at the first that does not follow.

    Start from `begin(population)` to check a whole log, or from a chain that was kept where nobody could change it.
    `heads` are what trusted checkpoints said of this population: the log must pass through each, so that a log that was
    cut at its end, or written anew, is found. Entries are read once, and none is kept.
    """
    expected: dict[int, list[Head]] = {}
    for head in heads:
        if head.population != chain.population or head.number < chain.link.number:
            wanted = f"heads of {chain.population!r} from number {chain.link.number} on"
            raise InvalidInput("heads", (head.population, head.number), wanted)
        expected.setdefault(head.number, []).append(head)
    _compare(chain, expected)
    for link, body in entries:
        chain = _grown(chain, _verified(chain.link, link, body))
        _compare(chain, expected)
    if expected:
        missing = f"the log ends at entry {chain.link.number}, but a checkpoint saw entry {max(expected)}"
        raise BrokenChain(chain.link.number + 1, "end", missing)
    return chain


def _verified(head: Link, link: Link, body: bytes) -> Link:
    """The link that follows `head`, if it is `link`; the number that an error names is the one due here."""
    due = head.number + 1
    if link.number != due:
        shown = (
            f"number {link.number}"
            if type(link.number) is int and abs(link.number) <= MAX_SIZE
            else "no possible number"
        )
        raise BrokenChain(due, "number", f"in its place stands an entry with {shown}")
    if link.previous != head.hash:
        shown = f"it names {_hex(link.previous)} as the hash before it, which is {head.hash.hex()}"
        raise BrokenChain(due, "previous", shown)
    try:
        _check_body(body)
    except InvalidDocument as reason:
        raise BrokenChain(due, "body", f"its body is not the canonical bytes of an object ({reason})") from None
    found = _next(head, body)
    if link.hash != found.hash:
        raise BrokenChain(due, "hash", f"its hash is {_hex(link.hash)}, but its content has {found.hash.hex()}")
    return found


def _compare(chain: Chain, expected: dict[int, list[Head]]) -> None:
    """Strike off the heads at this number, which must be this chain's."""
    for head in expected.pop(chain.link.number, ()):
        if head != chain.head:
            saw, has = (f"hash {each.hash.hex()} and root {each.root.hex()}" for each in (head, chain.head))
            raise BrokenChain(head.number, "head", f"a checkpoint saw {saw} here, but the log has {has}")


def _hex(value: bytes) -> str:
    return value.hex() if is_hash(value) else "something that is no hash"


CHECKPOINT_TYPE: Final = "application/vnd.stint.checkpoint.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The root over the heads of all populations, how many there are, and when, in the words of whoever made it."""

    at: str
    root: bytes
    size: int

    def __post_init__(self) -> None:
        _check_name("at", self.at)
        check_hash("root", self.root)
        whole("size", self.size, least=0, most=MAX_SIZE)

    @property
    def payload(self) -> bytes:
        """Its canonical bytes, which an envelope carries."""
        return canonical({"at": self.at, "root": self.root.hex(), "size": self.size})

    @property
    def signed_bytes(self) -> bytes:
        """What is signed: DSSE's encoding, because certificates use it too and its type keeps the two apart."""
        return pre_authentication_encoding(CHECKPOINT_TYPE, self.payload)


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """The bytes under a signature of a DSSE envelope, version 1 (github.com/secure-systems-lab/dsse, protocol.md).

    >>> pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def checkpoint(heads: Iterable[Head], *, at: str) -> Checkpoint:
    """The checkpoint over these heads, in whatever order they come."""
    leaves = [head.leaf for head in _sorted(heads)]
    return Checkpoint(at=at, root=root(leaves), size=len(leaves))


def checkpoint_from_payload(payload: bytes) -> Checkpoint:
    """The checkpoint that an envelope carries; check the signature first."""
    document = from_canonical(payload)
    if not isinstance(document, dict) or set(document) != {"at", "root", "size"}:
        raise InvalidDocument("checkpoint", document, "an object with at, root and size, and nothing else")
    try:
        digest = bytes.fromhex(document["root"])
        found = Checkpoint(at=document["at"], root=digest, size=document["size"])
    except (TypeError, ValueError) as reason:  # InvalidInput is a ValueError
        raise InvalidDocument("checkpoint", document, f"at, root and size of a checkpoint ({reason})") from None
    if found.payload != payload:  # hexadecimal digits have more than one spelling
        raise InvalidDocument("root", document["root"], f"{HASH_BYTES} bytes as lower-case hexadecimal digits")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadProof:
    """Where a head stands among those of a checkpoint, and the inclusion proof of that."""

    index: int
    path: tuple[bytes, ...]


def prove_head(heads: Iterable[Head], *, population: str) -> HeadProof:
    """What shows that this population's head is under the checkpoint over these heads."""
    ordered = _sorted(heads)
    for index, head in enumerate(ordered):
        if head.population == population:
            return HeadProof(index=index, path=inclusion_proof([each.leaf for each in ordered], index=index))
    raise InvalidInput("population", population, "the name of one of the heads")


def verify_head(checkpoint: Checkpoint, head: Head, proof: HeadProof) -> None:
    """Refuse, with `BrokenProof`, a head that is not under the checkpoint."""
    verify_inclusion(root=checkpoint.root, size=checkpoint.size, index=proof.index, leaf=head.leaf, proof=proof.path)


def verify_heads(checkpoint: Checkpoint, heads: Iterable[Head]) -> None:
    """Refuse, with `BrokenProof`, all but exactly the heads that the checkpoint is over."""
    leaves = [head.leaf for head in _sorted(heads)]
    if len(leaves) != checkpoint.size:
        raise BrokenProof(f"the checkpoint is over {checkpoint.size} populations, not {len(leaves)}")
    if root(leaves) != checkpoint.root:
        raise BrokenProof("these heads have another root: one of them is not what the checkpoint saw")


def _sorted(heads: Iterable[Head]) -> list[Head]:
    """By population, in the order of code points, which is that of UTF-8 bytes; each population once."""
    ordered = sorted(heads, key=lambda head: head.population)
    for one, other in pairwise(ordered):
        if one.population == other.population:
            raise InvalidInput("heads", one.population, "each population once")
    return ordered
