"""Whatever is done to a log is found: by the chain, and at its end by a checkpoint. Trees agree with RFC 9162."""

from __future__ import annotations

import enum
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from hashlib import sha256
from itertools import count, islice
from typing import Any, Final, TypeAlias

import numpy as np
import pytest
import rfc8785
from hypothesis import assume, given
from hypothesis import strategies as st

from accountant.canonical import MAX_BYTES, MAX_DEPTH, canonical, from_canonical
from accountant.chain import (
    CHECKPOINT_TYPE,
    MAX_NAME,
    Chain,
    Checkpoint,
    Head,
    HeadProof,
    Link,
    append,
    begin,
    checkpoint,
    checkpoint_from_payload,
    entry_bytes,
    genesis,
    prove_head,
    verify,
    verify_head,
    verify_heads,
)
from accountant.errors import AccountantError, BrokenChain, BrokenProof, InvalidDocument, InvalidInput
from accountant.merkle import (
    EMPTY_ROOT,
    MAX_SIZE,
    Frontier,
    LeafHash,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root,
    verify_consistency,
    verify_inclusion,
)

Stored: TypeAlias = tuple[Link, bytes]

# --- Canonical bytes -------------------------------------------------------------------------------------------------

#: RFC 8785, appendix B: IEEE 754 bits and their spelling.
NUMBERS: Final = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**53) + 1, 2**53 - 1)
documents = st.recursive(
    st.none() | st.booleans() | integers | finite | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
objects = st.dictionaries(st.sampled_from("abc"), integers | finite | text | st.lists(st.booleans(), max_size=2))


@pytest.mark.parametrize(("bits", "spelling"), list(NUMBERS.items()))
def test_numbers_are_spelled_as_in_the_rfc(bits: str, spelling: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == spelling.encode()
    assert from_canonical(spelling.encode()) == number


def ecmascript(number: float) -> str:
    """Number::toString of ECMA-262, from its text: k digits, and n says where the point is."""
    if number == 0:
        return "0"
    sign, places, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    digits, k = "".join(map(str, places)), len(places)
    n = exponent + k
    if k <= n <= 21:
        shown = digits + "0" * (n - k)
    elif 0 < n <= 21:
        shown = f"{digits[:n]}.{digits[n:]}"
    elif -6 < n <= 0:
        shown = "0." + "0" * -n + digits
    else:
        shown = digits[0] + ("." + digits[1:] if k > 1 else "") + f"e{n - 1:+d}"
    return "-" * sign + shown


@given(finite | st.builds(lambda digits, power: float(f"{digits}e{power}"), integers, st.integers(-40, 30)))
def test_numbers_are_spelled_as_by_ecmascript(number: float) -> None:
    assert canonical(number).decode() == ecmascript(number)


def test_the_examples_of_the_rfc() -> None:
    document = json.loads(r"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }""")
    expected = (
        r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA'
        r"'B\"\\\\\"/"
        r'"}'
    )
    assert canonical(document) == expected.encode()


def test_names_are_sorted_by_their_utf_16_units() -> None:
    names = ["\r", "1", "\u0080", "ö", "€", "\U0001f600", "\ufb33"]  # by code points, the last two would change places
    assert list(json.loads(canonical(dict.fromkeys(sorted(names))))) == names


@given(documents)
def test_a_document_survives_its_canonical_form(document: Any) -> None:
    written = canonical(document)
    assert from_canonical(written) == document
    assert canonical(from_canonical(written)) == written
    assert json.loads(written, parse_int=float) == document  # any reader that takes numbers for doubles


class Colour(enum.StrEnum):
    RED = "red"


def loop() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    ("document", "path", "words"),
    [
        ({"a": {"b": [0, 2**53]}}, "a.b[1]", "write a larger one as text"),
        ({"a": -(2**53)}, "a", "write a larger one as text"),
        ({"a": 10**5000}, "a", "write a larger one as text"),
        ([math.nan], "[0]", "a finite number"),
        ({"a": math.inf}, "a", "a finite number"),
        (-math.inf, "document", "a finite number"),
        ({"a": "\ud800"}, "a", "lone surrogates"),
        ({"a": {"\udfff": 1}}, "a name in a", "lone surrogates"),
        ({"a": {1: 2}}, "a", "names that are text"),
        ({"a": {1: 2, "b": 3}}, "a", "names that are text"),
        ({"a": {Colour.RED: 2}}, "a", "names that are text"),
        ({"a": Colour.RED}, "a", "of Python's own types"),
        ({"a": np.float64(1)}, "a", "of Python's own types"),
        ({"a": {1, 2}}, "a", "of Python's own types"),
        ({"a": b"b"}, "a", "of Python's own types"),
        (loop(), "[0]" * (MAX_DEPTH + 1), f"at most {MAX_DEPTH} levels"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_path(document: Any, path: str, words: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        canonical(document)
    assert caught.value.argument == path
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "spelling",
    [
        b"",
        b" {}",
        b"{}\n",
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a":1.0}',
        b'{"a":-0}',
        b'{"a":1e2}',
        b'{"a":9007199254740993}',
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":"\\u0041"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' + b"1" * 5000 + b"}",
        b'"' + b"0" * MAX_BYTES + b'"',
        "{}",
        None,
        bytearray(b"{}"),
    ],
    ids=lambda spelling: repr(spelling)[:30],
)
def test_any_other_spelling_is_refused(spelling: Any) -> None:
    with pytest.raises(InvalidDocument):
        from_canonical(spelling)


# --- The chain -------------------------------------------------------------------------------------------------------


def written(bodies: Sequence[bytes], population: str = "clinic-a") -> tuple[Chain, list[Stored]]:
    """A log as the service would store it, and the chain it leads to."""
    chain, log = begin(population), []
    for body in bodies:
        chain = chain.append(body)
        log.append((chain.link, body))
    return chain, log


def broken(log: Sequence[Stored], *heads: Head, population: str = "clinic-a") -> BrokenChain:
    with pytest.raises(BrokenChain) as caught:
        verify(begin(population), log, heads=heads)
    assert f"entry {caught.value.number} breaks the chain" in str(caught.value)
    return caught.value


def flipped(value: bytes, bit: int) -> bytes:
    place = bit // 8 % len(value)
    return value[:place] + bytes([value[place] ^ 1 << bit % 8]) + value[place + 1 :]


bodies_of = st.lists(objects.map(canonical), min_size=1, max_size=8)
logs = bodies_of.map(lambda bodies: written(bodies)[1])
bits = st.integers(0, 2**16)


def some(data: st.DataObject, log: Sequence[Stored], *, beyond: int = 0) -> int:
    return data.draw(st.integers(0, len(log) - 1 + beyond))


@given(bodies_of)
def test_an_untouched_log_verifies_from_wherever_one_starts(bodies: list[bytes]) -> None:
    chain, log = written(bodies)
    assert verify(begin("clinic-a"), iter(log)) == chain
    middle, _ = written(bodies[: len(bodies) // 2])
    assert verify(middle, log[len(bodies) // 2 :], heads=[middle.head, chain.head]) == chain


@given(bodies_of)
def test_the_hash_is_that_of_the_documented_document(bodies: list[bytes]) -> None:
    previous = sha256(b"stint.genesis.v1\0" + b'{"population":"clinic-a"}').digest()
    for number, (link, body) in enumerate(written(bodies)[1], start=1):
        document = {"number": number, "previous": previous.hex(), "body": json.loads(body, parse_int=as_double)}
        assert entry_bytes(number=number, previous=previous, body=body) == canonical(document)
        previous = sha256(b"stint.entry.v1\0" + canonical(document)).digest()
        assert link.hash == previous


def as_double(digits: str) -> int | float:
    """As any reader of JSON numbers that knows doubles only."""
    return int(digits) if abs(int(digits)) < 2**53 else float(digits)


def test_the_hashes_of_version_1_never_change() -> None:
    chain, _ = written([canonical({"kind": "registered", "count": 3}), canonical({"kind": "held"})])
    assert genesis("clinic-a").hash.hex() == "71117636603fc010a5cb31149184ad1204e3dc6d50f83f23de4d239ef134115a"
    assert chain.link.hash.hex() == "798c6e77cde6875984c244d2e1ee55b66bd42bcf5a59357a78eacebda960a57a"
    assert chain.head.root.hex() == "851bbf6cdc90b05ac1be4b2bde85aa676b44961cb88f7a87ff5f3fb5a4c4e76b"
    mark = checkpoint([chain.head, begin("clinic-b").head], at="2026-11-16T12:00:00Z")
    assert mark.root.hex() == "50d948f08eed79cf213f4ad072d98801e32b3c7fa7b417fe32b18d0061e1bd9e"


@given(logs, st.data())
def test_any_changed_field_is_found_where_it_is(log: list[Stored], data: st.DataObject) -> None:
    place = some(data, log)
    link, body = log[place]
    other = data.draw(objects.map(canonical).filter(lambda other: other != body))
    bit = data.draw(bits)
    number = data.draw(st.integers(-2, 12).filter(lambda number: number != link.number))
    changes: dict[str, Stored] = {
        "number": (replace(link, number=number), body),
        "previous": (replace(link, previous=flipped(link.previous, bit)), body),
        "hash": (replace(link, hash=flipped(link.hash, bit)), body),
    }
    for fault, change in changes.items():
        found = broken([*log[:place], change, *log[place + 1 :]])
        assert (found.number, found.fault) == (place + 1, fault)
    found = broken([*log[:place], (link, other), *log[place + 1 :]])
    assert (found.number, found.fault) == (place + 1, "hash")
    for spelling in (body + b" ", b"[]", body.decode(), None, flipped(body, bit)):
        found = broken([*log[:place], (link, spelling), *log[place + 1 :]])  # type: ignore[list-item]
        assert (found.number, found.fault) in {(place + 1, "body"), (place + 1, "hash")}


@pytest.mark.parametrize("junk", [b"", b"\0" * 31, "0" * 64, None, 7])
def test_a_field_of_the_wrong_form_is_a_broken_entry_too(junk: Any) -> None:
    _, [(link, body)] = written([b"{}"])
    assert broken([(replace(link, previous=junk), body)]).fault == "previous"
    assert broken([(replace(link, hash=junk), body)]).fault == "hash"
    assert broken([(replace(link, number=10**5000), body)]).fault == "number"


@given(logs, st.data())
def test_a_changed_entry_with_its_hash_mended_breaks_the_next(log: list[Stored], data: st.DataObject) -> None:
    assume(len(log) > 1)
    place = data.draw(st.integers(0, len(log) - 2))
    body = log[place][1]
    other = data.draw(objects.map(canonical).filter(lambda other: other != body))
    head = log[place - 1][0] if place else genesis("clinic-a")
    found = broken([*log[:place], (append(head, other), other), *log[place + 1 :]])
    assert (found.number, found.fault) == (place + 2, "previous")


@given(logs, st.data())
def test_a_deleted_stretch_is_found(log: list[Stored], data: st.DataObject) -> None:
    assume(len(log) > 1)
    first = data.draw(st.integers(0, len(log) - 2))
    after = data.draw(st.integers(first + 1, len(log) - 1))
    found = broken(log[:first] + log[after:])
    assert (found.number, found.fault) == (first + 1, "number")
    renumbered = [(replace(link, number=number), body) for number, (link, body) in enumerate(log[after:], first + 1)]
    found = broken(log[:first] + renumbered)
    assert (found.number, found.fault) == (first + 1, "previous")


@given(logs, st.data())
def test_any_other_order_is_found(log: list[Stored], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(log))))
    assume(order != list(range(len(log))))
    first = next(place for place, other in enumerate(order) if place != other)
    assert broken([log[place] for place in order]).number == first + 1
    bodies = [(link, log[other][1]) for (link, _), other in zip(log, order, strict=True)]
    assume(bodies != log)
    assert broken(bodies).fault == "hash"


@given(logs, objects.map(canonical), st.data())
def test_an_inserted_entry_is_found(log: list[Stored], body: bytes, data: st.DataObject) -> None:
    place, other = some(data, log), some(data, log)
    twice = broken([*log[: place + 1], log[other], *log[place + 1 :]])
    assert (twice.number, twice.fault) == (place + (3 if other == place + 1 else 2), "number")
    head = log[place - 1][0] if place else genesis("clinic-a")
    found = broken([*log[:place], (append(head, body), body), *log[place:]])
    assert (found.number, found.fault) == (place + 2, "number")


@given(bodies_of, st.data())
def test_what_comes_from_another_population_is_found(bodies: list[bytes], data: st.DataObject) -> None:
    _, ours = written(bodies)
    _, theirs = written(bodies, "clinic-b")
    first = some(data, ours)
    after = data.draw(st.integers(first + 1, len(ours)))
    found = broken(ours[:first] + theirs[first:after] + ours[after:])
    assert (found.number, found.fault) == (first + 1, "previous")
    assert broken(ours, population="clinic-b").number == 1
    spliced = [*ours[:first], (replace(theirs[first][0], previous=ours[first][0].previous), bodies[first])]
    assert broken(spliced).fault == "hash"


@given(bodies_of, st.data())
def test_a_missing_end_is_found_by_a_checkpoint_alone(bodies: list[bytes], data: st.DataObject) -> None:
    chain, log = written(bodies)
    left = some(data, log)
    shorter = verify(begin("clinic-a"), log[:left])  # the chain cannot tell
    assert shorter.link.number == left
    neighbour = begin("clinic-b").head
    mark = checkpoint([chain.head, neighbour], at="noon")
    with pytest.raises(BrokenProof):
        verify_heads(mark, [shorter.head, neighbour])
    found = broken(log[:left], chain.head)
    assert (found.number, found.fault) == (left + 1, "end")
    grown = chain.append(b"{}")  # while a log that only grew passes
    assert verify(begin("clinic-a"), [*log, (grown.link, b"{}")], heads=[shorter.head, chain.head]) == grown


@given(bodies_of, st.data())
def test_a_log_written_anew_is_found_by_a_checkpoint_alone(bodies: list[bytes], data: st.DataObject) -> None:
    chain, log = written(bodies)
    place = some(data, log)
    other = data.draw(objects.map(canonical).filter(lambda other: other != bodies[place]))
    _, anew = written([*bodies[:place], other, *bodies[place + 1 :]])
    verify(begin("clinic-a"), anew)  # the chain cannot tell
    found = broken(anew, chain.head)
    assert (found.number, found.fault) == (len(log), "head")
    early, _ = written(bodies[: place + 1])
    assert broken(anew, early.head, chain.head).number == place + 1


def test_heads_must_be_of_this_chain_and_agree_in_full() -> None:
    chain, log = written([b"{}", b"{}"])
    for head in (written([b"{}", b"{}"], "clinic-b")[0].head, begin("clinic-a").head):
        with pytest.raises(InvalidInput, match="heads of 'clinic-a' from number 1 on"):
            verify(written([b"{}"])[0], log[1:], heads=[head])
    assert broken(log, replace(chain.head, root=EMPTY_ROOT)).fault == "head"
    assert broken(log, chain.head, replace(chain.head, hash=EMPTY_ROOT)).fault == "head"
    assert broken(log, replace(begin("clinic-a").head, hash=EMPTY_ROOT)).number == 0


def test_entries_are_read_as_a_stream_that_stops_at_the_first_fault() -> None:
    read = []

    def endless() -> Iterator[Stored]:
        chain = begin("clinic-a")
        for number in count(1):
            chain = chain.append(b"{}")
            read.append(number)
            yield chain.link, b"{}" if number != 300 else b'{"more":1}'

    assert broken(endless()).number == 300  # type: ignore[arg-type]
    assert read[-1] == 300


@pytest.mark.parametrize("population", ["", "x" * (MAX_NAME + 1), None, 7, "\ud800"])
def test_a_population_has_a_name(population: Any) -> None:
    with pytest.raises(InvalidInput, match="population: expected"):
        begin(population)


def test_appending_checks_what_it_is_given() -> None:
    chain = begin("clinic-a")
    junk: list[Any] = [b"[]", b"{ }", b"1", b"", "{}", {}]
    for body in junk:
        with pytest.raises(InvalidDocument):
            chain.append(body)
    for link in (replace(chain.link, number=-1), replace(chain.link, number=MAX_SIZE), replace(chain.link, hash=b"")):
        with pytest.raises(InvalidInput, match="of the head"):
            append(link, b"{}")
    with pytest.raises(InvalidInput, match="frontier: expected the size 0"):
        replace(chain, frontier=Frontier().append(leaf_hash(b"")))


# --- Merkle trees ----------------------------------------------------------------------------------------------------

#: The inputs of Certificate Transparency's reference tree, and the roots over the first 0, 1, …, 8 of them.
INPUTS: Final = tuple(
    map(
        bytes.fromhex,
        ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"],
    )
)
ROOTS: Final = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
REFERENCE: Final = tuple(map(leaf_hash, INPUTS))
LEAVES: Final = tuple(leaf_hash(b"%d" % place) for place in range(1200))
SIZES: Final = range(65)


def definition(leaves: Sequence[LeafHash]) -> bytes:
    """MTH of RFC 9162, section 2.1.1, as it is written there."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = max(2**power for power in range(len(leaves).bit_length()) if 2**power < len(leaves))
    return sha256(b"\1" + definition(leaves[:k]) + definition(leaves[k:])).digest()


@pytest.mark.parametrize(("size", "expected"), list(enumerate(ROOTS)))
def test_the_roots_of_the_reference_tree(size: int, expected: str) -> None:
    assert root(REFERENCE[:size]).hex() == expected


@pytest.mark.parametrize(
    ("size", "index", "path"),
    [
        (1, 0, []),
        (2, 1, ["6e340b9c"]),
        (3, 2, ["fac54203"]),
        (5, 1, ["6e340b9c", "5f083f0a", "bc1a0643"]),
        (8, 0, ["96a296d2", "5f083f0a", "6b47aaf2"]),
        (8, 5, ["bc1a0643", "ca854ea1", "d37ee418"]),
    ],
)
def test_the_inclusion_proofs_of_the_reference_tree(size: int, index: int, path: list[str]) -> None:
    assert [step.hex()[:8] for step in inclusion_proof(REFERENCE[:size], index=index)] == path


@pytest.mark.parametrize(
    ("old_size", "new_size", "path"),
    [
        (1, 1, []),
        (1, 8, ["96a296d2", "5f083f0a", "6b47aaf2"]),
        (2, 5, ["5f083f0a", "bc1a0643"]),
        (6, 8, ["0ebc5d34", "ca854ea1", "d37ee418"]),
    ],
)
def test_the_consistency_proofs_of_the_reference_tree(old_size: int, new_size: int, path: list[str]) -> None:
    assert [step.hex()[:8] for step in consistency_proof(REFERENCE[:new_size], old_size=old_size)] == path


def test_the_frontier_has_the_root_of_every_size() -> None:
    frontier = Frontier()
    for size in SIZES:
        assert (frontier.size, frontier.root) == (size, definition(LEAVES[:size]))
        assert Frontier().extend(LEAVES[:size]) == frontier
        frontier = frontier.append(LEAVES[size])


@given(st.integers(0, 1200), st.integers(0, 1200))
def test_a_frontier_may_be_stored_and_taken_up_again(one: int, other: int) -> None:
    early, late = sorted((one, other))
    frontier = Frontier().extend(LEAVES[:early])
    stored = Frontier(size=frontier.size, peaks=frontier.peaks)
    assert stored.extend(islice(LEAVES, early, late)).root == definition(LEAVES[:late])


def refused(check: Callable[..., None], **arguments: Any) -> bool:
    try:
        check(**arguments)
    except BrokenProof as reason:
        return str(reason).startswith("the proof fails: ")
    return False


def mutations(proof: tuple[bytes, ...]) -> Iterator[tuple[Any, ...]]:
    """Proofs that are not this one: a bit flipped, a step left out, put in, doubled, moved, or of the wrong form."""
    extra = leaf_hash(b"extra")
    for place, step in enumerate(proof):
        yield (*proof[:place], flipped(step, place * 37), *proof[place + 1 :])
        yield (*proof[:place], *proof[place + 1 :])
        yield (*proof[:place], step, step, *proof[place + 1 :])
        yield (*proof[:place], step[:-1], *proof[place + 1 :])
        yield (*proof[:place], step.hex(), *proof[place + 1 :])
    for place in range(len(proof) + 1):
        yield (*proof[:place], extra, *proof[place:])
        yield (*proof[:place], EMPTY_ROOT, *proof[place:])
    if len(proof) > 1:
        yield proof[::-1]
        yield ()


def check_inclusion(size: int, index: int) -> None:
    leaves = LEAVES[:size]
    honest: dict[str, Any] = {"root": definition(leaves), "size": size, "index": index, "leaf": leaves[index]}
    proof = inclusion_proof(leaves, index=index)
    verify_inclusion(**honest, proof=proof)
    for mutant in mutations(proof):
        assert refused(verify_inclusion, **honest, proof=mutant), mutant
    for name, wrong in [
        ("root", flipped(honest["root"], index)),
        ("root", b""),
        ("leaf", leaf_hash(b"other")),
        ("leaf", b"short"),
        *(("index", other) for other in range(-1, size + 2) if other != index),
        ("index", float(index)),
        ("size", index),
        ("size", 2 * size + 1),
        ("size", MAX_SIZE + 1),
    ]:
        assert refused(verify_inclusion, **honest | {name: wrong}, proof=proof), (name, wrong)


def check_consistency(old_size: int, new_size: int) -> None:
    old_root, new_root = definition(LEAVES[:old_size]), definition(LEAVES[:new_size])
    honest: dict[str, Any] = {
        "old_root": old_root,
        "old_size": old_size,
        "new_root": new_root,
        "new_size": new_size,
    }
    proof = consistency_proof(LEAVES[:new_size], old_size=old_size)
    verify_consistency(**honest, proof=proof)
    for mutant in mutations(proof):
        assert refused(verify_consistency, **honest, proof=mutant), mutant
    wrongs: list[tuple[str, Any]] = [
        ("old_root", flipped(old_root, new_size)),
        ("old_root", b""),
        ("old_size", new_size + 1),
        ("old_size", -1),
        ("new_size", True),
    ]
    if old_size > 0:  # every tree extends the empty one, whatever its root
        wrongs += [("new_root", flipped(new_root, old_size)), ("new_size", old_size - 1)]
    for name, wrong in wrongs:
        assert refused(verify_consistency, **honest | {name: wrong}, proof=proof), (name, wrong)
    if 0 < old_size < new_size:
        changed = [leaf_hash(b"changed"), *LEAVES[1:new_size]]  # a log that changed its past cannot prove it did not
        lie = consistency_proof(changed, old_size=old_size)
        assert refused(verify_consistency, **honest | {"new_root": definition(changed)}, proof=lie)


@pytest.mark.parametrize("size", SIZES[1:])
def test_every_inclusion_proof_holds_and_no_other_does(size: int) -> None:
    for index in range(size):
        check_inclusion(size, index)


@pytest.mark.parametrize("new_size", SIZES)
def test_every_consistency_proof_holds_and_no_other_does(new_size: int) -> None:
    for old_size in range(new_size + 1):
        check_consistency(old_size, new_size)


@given(st.integers(1, 1200), st.data())
def test_proofs_in_larger_trees(size: int, data: st.DataObject) -> None:
    check_inclusion(size, data.draw(st.integers(0, size - 1)))
    check_consistency(data.draw(st.integers(0, size)), size)


def test_empty_trees() -> None:
    assert root([]) == Frontier().root == EMPTY_ROOT
    with pytest.raises(InvalidInput, match="nothing is in an empty tree"):
        inclusion_proof([], index=0)
    assert refused(verify_inclusion, root=EMPTY_ROOT, size=0, index=0, leaf=LEAVES[0], proof=())
    empty: dict[str, Any] = {"old_root": EMPTY_ROOT, "old_size": 0}
    verify_consistency(**empty, new_root=EMPTY_ROOT, new_size=0, proof=())
    assert refused(verify_consistency, **empty, new_root=LEAVES[0], new_size=0, proof=())
    assert refused(verify_consistency, old_root=LEAVES[0], old_size=0, new_root=LEAVES[1], new_size=1, proof=())


def test_a_path_that_leads_to_the_root_in_another_shape_is_refused() -> None:
    """The hashes agree here, and only the number of steps tells that the tree has not the size it is said to have."""
    extra = leaf_hash(b"extra")
    grown = node_hash(extra, REFERENCE[0])
    assert refused(verify_inclusion, root=grown, size=1, index=0, leaf=REFERENCE[0], proof=[extra])
    assert refused(verify_inclusion, root=REFERENCE[0], size=2, index=0, leaf=REFERENCE[0], proof=[])

    old_root, new_root = root(REFERENCE[:3]), root(REFERENCE[:4])
    proof = consistency_proof(REFERENCE[:4], old_size=3)
    assert refused(verify_consistency, old_root=old_root, old_size=3, new_root=new_root, new_size=8, proof=proof)
    old_root, new_root, proof = node_hash(extra, old_root), node_hash(extra, new_root), (*proof, extra)
    assert refused(verify_consistency, old_root=old_root, old_size=3, new_root=new_root, new_size=4, proof=proof)


def test_a_node_cannot_pass_as_an_item() -> None:
    left, right = REFERENCE[:2]
    assert leaf_hash(left + right) != node_hash(left, right)
    assert root([leaf_hash(left + right)]) != root([left, right])


def test_making_proofs_checks_what_it_is_given() -> None:
    for index in (-1, 8, 1.0, True):
        with pytest.raises(InvalidInput, match="index: expected a whole number from 0 to 7"):
            inclusion_proof(REFERENCE, index=index)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="old_size: expected a whole number from 0 to 8"):
        consistency_proof(REFERENCE, old_size=9)
    with pytest.raises(InvalidInput, match="leaf hash: expected a hash"):
        root([LeafHash(b"an item, not its hash")])
    with pytest.raises(InvalidInput, match="peaks: expected 2 hashes for a size of 3"):
        Frontier(size=3, peaks=(LEAVES[0],))
    with pytest.raises(InvalidInput, match=r"peaks\[0\]: expected a hash"):
        Frontier(size=1, peaks=(b"",))
    with pytest.raises(InvalidInput, match="size: expected"):
        Frontier(size=-1)


def test_an_entry_is_shown_without_the_others() -> None:
    """What an outsider does: signed checkpoint, head under it, entry under the head; nobody else's entries."""
    chain, log = written([canonical({"release": number}) for number in range(1, 12)])
    heads = [begin("clinic-b").head, chain.head]
    mark = checkpoint(heads, at="noon")
    leaves = [leaf_hash(link.hash) for link, _ in log]
    proof = inclusion_proof(leaves, index=6)
    link, body = log[6]

    verify_head(mark, chain.head, prove_head(heads, population="clinic-a"))
    content = entry_bytes(number=link.number, previous=link.previous, body=body)
    leaf = leaf_hash(sha256(b"stint.entry.v1\0" + content).digest())
    verify_inclusion(root=chain.head.root, size=chain.head.number, index=link.number - 1, leaf=leaf, proof=proof)


def test_two_checkpoints_are_compared_without_any_entry() -> None:
    early, _ = written([canonical({"release": number}) for number in range(5)])
    late, log = written([canonical({"release": number}) for number in range(12)])
    proof = consistency_proof([leaf_hash(link.hash) for link, _ in log], old_size=early.head.number)
    sizes = {"old_size": early.head.number, "new_size": late.head.number}
    verify_consistency(old_root=early.head.root, new_root=late.head.root, proof=proof, **sizes)


# --- Checkpoints -----------------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
head_lists = st.lists(names, unique=True, max_size=9).map(
    lambda found: [written([canonical({"of": name})] * (place % 3), name)[0].head for place, name in enumerate(found)]
)


@given(head_lists, st.randoms(use_true_random=False))
def test_a_checkpoint_is_over_the_heads_in_the_order_of_names(heads: list[Head], random: Any) -> None:
    mark = checkpoint(heads, at="noon")
    ordered = sorted(heads, key=lambda head: head.population.encode())
    items = [
        canonical(
            {"population": head.population, "number": head.number, "hash": head.hash.hex(), "root": head.root.hex()}
        )
        for head in ordered
    ]
    assert (mark.size, mark.root) == (len(heads), definition([leaf_hash(item) for item in items]))
    assert refused(verify_heads, checkpoint=replace(mark, size=mark.size + 1), heads=heads)
    random.shuffle(heads)
    assert checkpoint(heads, at="noon") == mark
    verify_heads(mark, heads)
    for head in heads:
        proof = prove_head(heads, population=head.population)
        others = [other for other in heads if other != head]
        verify_head(mark, head, proof)
        for wrong in (
            replace(head, number=head.number + 1),
            replace(head, hash=flipped(head.hash, 9)),
            replace(head, root=flipped(head.root, 9)),
            replace(head, population=head.population + "'"),
        ):
            assert refused(verify_head, checkpoint=mark, head=wrong, proof=proof)
            assert refused(verify_heads, checkpoint=mark, heads=[wrong, *others])
        assert refused(verify_head, checkpoint=mark, head=head, proof=HeadProof(index=len(heads), path=proof.path))
        assert refused(verify_heads, checkpoint=mark, heads=others)


def test_the_order_of_names_is_that_of_utf_8_not_of_utf_16() -> None:
    heads = [begin("\ufb33").head, begin("\U0001f600").head]
    assert checkpoint(heads[::-1], at="noon").root == root([head.leaf for head in heads])


def test_what_is_signed_is_written_out() -> None:
    mark = checkpoint([], at="2026-11-16T12:00:00Z")
    payload = b'{"at":"2026-11-16T12:00:00Z","root":"%b","size":0}' % EMPTY_ROOT.hex().encode()
    assert mark.payload == payload
    assert mark.signed_bytes == b"DSSEv1 40 application/vnd.stint.checkpoint.v1+json 112 " + payload
    assert CHECKPOINT_TYPE in mark.signed_bytes.decode()


@given(head_lists, names, names)
def test_different_checkpoints_are_signed_differently(heads: list[Head], one: str, other: str) -> None:
    mark = checkpoint(heads, at=one)
    assert checkpoint_from_payload(mark.payload) == mark
    assert (replace(mark, at=other).signed_bytes == mark.signed_bytes) == (one == other)
    assert replace(mark, size=mark.size + 1).signed_bytes != mark.signed_bytes
    assert replace(mark, root=flipped(mark.root, 0)).signed_bytes != mark.signed_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"at": ""},
        {"at": 7},
        {"root": "00"},
        {"root": None},
        {"root": "AB" * 32},
        {"root": "ab " * 32},
        {"root": "zz" * 32},
        {"size": -1},
        {"size": 1.5},
        {"size": True},
        {"more": 1},
    ],
)
def test_a_payload_that_is_no_checkpoint_is_refused(change: dict[str, Any]) -> None:
    document = {"at": "noon", "root": EMPTY_ROOT.hex(), "size": 0}
    checkpoint_from_payload(canonical(document))
    with pytest.raises(InvalidDocument):
        checkpoint_from_payload(canonical(document | change))
    with pytest.raises(InvalidDocument):
        checkpoint_from_payload(json.dumps(document).encode())


def test_each_population_is_in_a_checkpoint_once() -> None:
    head = begin("clinic-a").head
    with pytest.raises(InvalidInput, match="each population once"):
        checkpoint([head, head], at="noon")
    with pytest.raises(InvalidInput, match="the name of one of the heads"):
        prove_head([head], population="clinic-b")
    for wrong in ({"number": -1}, {"hash": b""}, {"root": "00"}, {"population": ""}):
        with pytest.raises(AccountantError):
            replace(head, **wrong)
    with pytest.raises(InvalidInput, match="root: expected"):
        Checkpoint(at="noon", root=b"", size=0)


anything = st.text(st.characters(exclude_categories=[]))
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | anything,
    lambda inner: st.lists(inner) | st.dictionaries(anything, inner),
    max_leaves=12,
)


@given(plain)
def test_the_short_spelling_is_the_library_s(document: Any) -> None:
    try:
        written = canonical(document)
    except InvalidDocument:
        return
    assert written == rfc8785.dumps(document)
