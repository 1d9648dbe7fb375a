"""The header of a safetensors file that is not trusted: limited before it is parsed, and compared with the file's size.

The form is that of https://huggingface.co/docs/safetensors: eight bytes of length, JSON, then the bytes of all tensors
without a gap. What does not keep to it is refused, since readers differ in what they make of it: names that come twice,
tensors that share bytes, bytes that belong to none. Parts of the header are counted before it is parsed, since JSON
grows many times over in memory; what stands in a text is no part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_HEADER: Final = 100_000_000  # as the library has it, which reads no file with a longer one
MAX_TENSORS: Final = 100_000
MAX_DIMENSIONS: Final = 32
_MAX_NESTED, _MAX_PARTS = 500_000, 2_000_000  # brackets and commas of a header, or of JSON in it
MAX_SIDE: Final = 1 << 53

#: Types as the file names them, and as NumPy does; of those that it has not, the bytes (see `widened`).
DTYPES: Final[Mapping[str, str]] = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
#: Types that the form has, and that are not read here.
_OTHER_DTYPES: Final = frozenset({"F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"})


class Malformed(Exception):
    """Why a file is not safetensors: words of a closed list, and nothing of what the file says."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where a tensor lies, counted from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says of itself."""

    slots: Sequence[Slot]
    metadata: Mapping[str, str]


def read_header(stream: IO[bytes], size: int) -> Header:
    """The header of a file of this size, whose first byte is next; or `Malformed`."""
    begin = stream.read(8)
    length = int.from_bytes(begin, "little")
    if len(begin) < 8:
        raise Malformed("it is too short for a header")
    if length > MAX_HEADER:
        raise Malformed("its header is longer than 100 MB")
    if 8 + length > size:
        raise Malformed("it ends within its header")
    raw = stream.read(length)
    if has_too_many_parts(raw):
        raise Malformed("its header has too many parts")
    try:
        index = json.loads(raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Malformed("its header is no JSON") from None
    if not isinstance(index, dict):
        raise Malformed("its header is no object")
    metadata = index.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Malformed("its metadata is not text")
    if len(index) > MAX_TENSORS:
        raise Malformed("it has more than 100,000 tensors")
    if not all(map(is_text, (*index, *metadata, *metadata.values()))):
        raise Malformed("its header has text that is no Unicode")
    slots = [_slot(name, tensor, 8 + length, size) for name, tensor in index.items()]
    _check_bytes(slots, 8 + length, size)
    return Header(slots=slots, metadata=metadata)


def has_too_many_parts(raw: bytes) -> bool:
    """Whether JSON would be too large in memory; only where the short way cannot tell are its texts left out."""

    def exceeds(raw: bytes) -> bool:
        return raw.count(b"[") + raw.count(b"{") > _MAX_NESTED or raw.count(b",") > _MAX_PARTS

    return exceeds(raw) and exceeds(_without_texts(raw))


def _without_texts(raw: bytes) -> bytes:
    """What of JSON stands outside of its texts: where the number of quotation marks before it is even."""
    signs = np.frombuffer(raw.replace(b"\\\\", b"").replace(b'\\"', b""), dtype=np.uint8)
    within = np.cumsum(signs == ord('"'), dtype=np.uint8) & 1  # where it goes round, it stays odd or even
    return bytes(signs[within == 0])


def widened(numbers: NDArray[Any], dtype: str) -> NDArray[Any]:
    """What bytes of this type mean, as numbers of a type that NumPy has, exactly.

    BF16 is the upper half of a float32 and F8_E5M2 that of a float16; the others of 8 bits are in the paper of the
    Open Compute Project, OCP 8-bit Floating Point and Microscaling Formats, 2023.
    """
    match dtype:
        case "BF16":
            return (numbers.astype(np.uint32) << 16).view(np.float32)
        case "F8_E5M2":
            return (numbers.astype(np.uint16) << 8).view(np.float16)
        case "F8_E4M3":
            return np.take(_E4M3, numbers)
        case "F8_E8M0":
            return np.take(_E8M0, numbers)
        case _:
            return numbers


def _e4m3() -> NDArray[np.float32]:
    """Four bits of exponent, biased by 7, three of mantissa; there is no infinity, and one NaN of each sign."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    size[bits & 127 == 127] = np.nan
    return np.where(bits < 128, size, -size).astype(np.float32)


_E4M3: Final = _e4m3()
_E8M0: Final = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)  # powers of two alone


def is_text(given: str) -> bool:
    """Whether it can be written at all: half of a surrogate pair cannot."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def _slot(name: str, tensor: object, origin: int, size: int) -> Slot:
    match tensor:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(first), int(last)], **rest} if not rest:
            pass
        case _:
            raise Malformed("a tensor has not a dtype, a shape and two offsets")
    if dtype in _OTHER_DTYPES:
        raise Malformed("a tensor is of a type that is not read here (4 or 6 bits, FNUZ, or complex)")
    if dtype not in DTYPES:
        raise Malformed("a tensor is of an unknown type")
    if len(shape) > MAX_DIMENSIONS or not all(type(side) is int and 0 <= side <= MAX_SIDE for side in shape):
        raise Malformed("a tensor has an impossible shape")
    if not 0 <= first <= last or origin + last > size:
        raise Malformed("a tensor lies outside of the file")
    if last - first != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
        raise Malformed("a tensor has more or fewer bytes than its shape says")
    return Slot(name=name, dtype=dtype, shape=tuple(shape), start=origin + first, stop=origin + last)


def _check_bytes(slots: Sequence[Slot], origin: int, size: int) -> None:
    """Every byte belongs to one tensor."""
    end = origin
    for slot in sorted(slots, key=lambda each: (each.start, each.stop)):
        if slot.start < end:
            raise Malformed("two tensors share bytes")
        if slot.start > end:
            raise Malformed("bytes between its tensors belong to none")
        end = slot.stop
    if end != size:
        raise Malformed("bytes after its tensors belong to none")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("a name comes twice in its header")
    return found


def _no_number(_text: str) -> Any:
    raise Malformed("its header is no JSON")
